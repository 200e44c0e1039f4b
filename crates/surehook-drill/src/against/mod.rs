//! What surehook is compared with, on the same plan: a hook that sends, and the outbox of the textbook. None of it is ever part
//! of the product. Their repositories are plain bare ones, pushed to by `file://`.

pub mod hook;
pub mod textbook;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use crate::stack::{Place, Stack};

/// What sends the webhooks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Against {
    /// surehook
    Surehook,
    /// A post-receive hook that sends, with a deadline of 5 s
    Naive,
    /// A hook that writes a row, and a worker: 1 s tick, ten rows, POST inside the transaction that holds them, five attempts
    Textbook,
}

impl Against {
    /// The `post-receive` of a repository.
    pub fn hook(self, stack: &Stack, place: &Place) -> anyhow::Result<String> {
        let program = std::env::current_exe().context("this program's own file cannot be found")?;
        let how = match self {
            Self::Surehook => anyhow::bail!("surehook brings its own"),
            Self::Naive => format!("--url {} --secret '{}'", stack.webhook_url(), stack.secret()),
            Self::Textbook => format!("--database '{}'", stack.sender_url()),
        };
        let log = stack.folder().join("hook.log");
        Ok(format!(
            "#!/bin/sh\nexec '{}' hook --repository {} {how} 2>> {}\n",
            program.display(),
            place.name,
            log.display()
        ))
    }
}

/// The body of a push, as both send it.
fn payload(repository: &str, before: &str, after: &str, name: &str, sequence: Option<i64>) -> (Uuid, Vec<u8>) {
    let event_id = Uuid::new_v4();
    let body = json!({
        "event_id": event_id, "ref": name, "before": before, "after": after, "sequence": sequence,
        "repository": {"id": repository, "name": repository},
    });
    (event_id, body.to_string().into_bytes())
}
