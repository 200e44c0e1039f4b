//! `surehook token`: make, list and revoke access tokens.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use surehook_outbox::store::operate::database_time;
use uuid::Uuid;

use super::connect::with_database;
use super::output::{Out, cell, properties, table, when, when_or};
use super::values::parse_id;
use super::{CliError, Globals};
use crate::store::tokens::{self, NewToken, Revoked, Token};

/// Access tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and show it this once
    #[command(after_help = "Examples:\n  \
        surehook token create --push team/app --note \"laptop of Ada\"\n  \
        surehook token create --read 'team/*' --push team/docs\n  \
        surehook token create --admin\n\n\
        git asks for a user name and a password: any user name will do, the token is the password.")]
    Create {
        /// It may push to this repository and read it; GROUP/* means all below a group, * means all. May be repeated
        #[arg(long, value_name = "REPO")]
        push: Vec<String>,
        /// It may read this repository; the same patterns. May be repeated
        #[arg(long, value_name = "REPO")]
        read: Vec<String>,
        /// It may do everything
        #[arg(long)]
        admin: bool,
        /// What it is for; shown as the pusher
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// List tokens, the newest first
    #[command(after_help = "Example:\n  surehook token list --revoked --json")]
    List {
        /// Also those that were revoked
        #[arg(long)]
        revoked: bool,
    },
    /// Revoke a token: it opens nothing from then on
    #[command(after_help = "Example:\n  surehook token revoke 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11")]
    Revoke {
        /// The token's id, from `surehook token list`
        #[arg(value_name = "ID", value_parser = parse_id)]
        token_id: Uuid,
    },
}

#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    token: &'a Token,
    /// The token itself.
    #[serde(rename = "token")]
    text: &'a str,
}

pub(super) async fn run(globals: &Globals, command: TokenCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        TokenCommand::Create { push, read, admin, note } => {
            let new = NewToken { note, is_admin: admin, push, read };
            let (token, text) = tokens::create(database, new).await?;
            out.one(&Created { token: &token, text: &text }, || {
                format!(
                    "{}\n\nThis is the only time that the token is shown. Use it as the password; any user name will do.",
                    properties(&[
                        ("token", text.clone()),
                        ("id", token.token_id.to_string()),
                        ("may", may(&token)),
                        ("note", token.note.clone().unwrap_or_default()),
                    ])
                )
            })
        }
        TokenCommand::List { revoked } => {
            let tokens = tokens::list(database, revoked).await?;
            let now = database_time(database).await?;
            let nothing = "There are no tokens. Make one with: surehook token create --push REPO";
            out.list(&tokens, nothing, || {
                let mut table = table(&["ID", "MAY", "NOTE", "CREATED", "LAST USED", "REVOKED"]);
                for token in &tokens {
                    table.add_row([
                        token.token_id.to_string(),
                        may(token),
                        cell(token.note.as_deref().unwrap_or("-"), 40),
                        when(token.created_at, now),
                        when_or(token.last_used_at, now, "never"),
                        when_or(token.revoked_at, now, "-"),
                    ]);
                }
                table
            })
        }
        TokenCommand::Revoke { token_id } => match tokens::revoke(database, token_id).await? {
            Revoked::Unknown => Err(CliError::new(
                format!("There is no token with the id {token_id}."),
                "List them with: surehook token list",
            )),
            Revoked::Now | Revoked::Before => {
                let result = serde_json::json!({ "token_id": token_id, "revoked": true });
                out.one(&result, || format!("Token {token_id} opens nothing any more."))
            }
        },
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

fn may(token: &Token) -> String {
    if token.is_admin {
        return "everything".into();
    }
    let grants = token
        .push
        .iter()
        .map(|name| format!("push {name}"))
        .chain(token.read.iter().map(|name| format!("read {name}")));
    grants.collect::<Vec<_>>().join(", ")
}
