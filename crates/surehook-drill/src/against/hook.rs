//! The `post-receive` of those that surehook is compared with. Naive: it sends, once, and goes on. Textbook: it writes a row.
//! Whatever happens, the push has happened.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use surehook_testkit::postgres::try_connect;
use surehook_webhook::envelope;
use surehook_webhook::secret::{Secret, Secrets};
use uuid::Uuid;

use super::{payload, textbook};
use crate::http::exchange;

/// What people give `curl` in such a hook.
const DEADLINE: Duration = Duration::from_secs(5);

/// Options of the hidden command `hook`.
#[derive(Clone, Debug, Args)]
pub struct HookArgs {
    /// Whose hook it is.
    #[arg(long)]
    repository: String,
    /// Send there.
    #[arg(long, required_unless_present = "database", requires = "secret")]
    url: Option<String>,
    /// Sign with this.
    #[arg(long)]
    secret: Option<String>,
    /// Write a row there instead.
    #[arg(long)]
    database: Option<String>,
}

/// Tells what git says on standard input.
pub async fn run(args: HookArgs) -> anyhow::Result<()> {
    let lines = std::io::read_to_string(std::io::stdin()).context("what git says")?;
    for line in lines.lines() {
        let mut words = line.split(' ');
        let (Some(before), Some(after), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
        if let Some(database) = &args.database {
            let client = try_connect(database).await.context("the database is away")?;
            textbook::write(&client, &args.repository, before, after, name).await?;
            client.close().await;
        } else if let (Some(url), Some(secret)) = (&args.url, &args.secret) {
            let (_, body) = payload(&args.repository, before, after, name, None);
            match send(url, secret, Uuid::new_v4(), &body, DEADLINE).await {
                Ok(200..300) => {}
                Ok(status) => eprintln!("{name}: HTTP {status}"),
                Err(error) => eprintln!("{name}: {error:#}"),
            }
        }
    }
    Ok(())
}

/// One signed POST; gives the status.
pub(super) async fn send(url: &str, secret: &str, id: Uuid, body: &[u8], within: Duration) -> anyhow::Result<u16> {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let secrets = Secrets::from(Secret::parse(secret).context("the secret")?);
    let headers = envelope::headers(id, jiff_now(), body, &secrets);
    Ok(exchange(address, "POST", "/", &headers, body, within).await?.status)
}

#[expect(clippy::disallowed_methods, reason = "these senders have no clock but the machine's")]
fn jiff_now() -> i64 {
    jiff::Timestamp::now().as_second()
}
