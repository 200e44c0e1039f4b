//! `surehook endpoint add`: a new endpoint, and what it is told of from before.

use clap::Args;
use surehook_outbox::Database;
use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::send::PAGERDUTY;
use surehook_outbox::store::endpoints::{self, NewEndpoint};
use surehook_outbox::store::jobs::add_with_backfill;

use super::endpoint::{LimitArgs, Made, scope, show};
use super::output::Out;
use super::values::{SecretArgs, Since, parse_since};
use super::{CliError, backfill};
use crate::store::watch::ALERT_EVENT;

/// Where PagerDuty takes events.
const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";

/// Options of `endpoint add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// What it is called: letters, digits, . _ -
    name: String,
    /// Whose pushes: a repository, GROUP/* for all below a group, or * for all
    #[arg(long, value_name = "REPO", required_unless_present_any = ["aggregate", "alerts"])]
    repo: Option<String>,
    /// Events of this aggregate instead, where events do not come from repositories
    #[arg(long, value_name = "ID", conflicts_with = "repo")]
    aggregate: Option<String>,
    /// Alerts instead: dead letters, storage in doubt, deliveries that wait too long
    #[arg(long, conflicts_with_all = ["repo", "aggregate", "event_types"])]
    alerts: bool,
    /// Where webhooks are POSTed: http:// or https:// [default with --format pagerduty: PagerDuty's address]
    #[arg(long, value_name = "URL", required_unless_present = "alerts")]
    url: Option<String>,
    #[command(flatten)]
    secret: SecretArgs,
    /// The body that it is sent. pagerduty is for --alerts, and its secret is the routing key of the integration
    #[arg(long, value_name = "FORMAT", default_value = "native", value_parser = ["native", PAGERDUTY])]
    format: String,
    /// It is meant to lead to a loopback or private address
    #[arg(long)]
    allow_private: bool,
    /// Do not keep the order of a repository's events: each goes out at once
    #[arg(long)]
    unordered: bool,
    /// Count every attempt without an answer towards --max-unanswered, also while nothing gets through (the textbook rule)
    #[arg(long)]
    count_every_silence: bool,
    /// Tell it first of the events since then that it would have been told of: how long ago (7d), or a time
    #[arg(long, value_name = "TIME", value_parser = parse_since, conflicts_with = "alerts")]
    backfill: Option<Since>,
    #[command(flatten)]
    limits: LimitArgs,
}

pub(super) async fn add(database: &Database, args: AddArgs, out: Out) -> Result<(), CliError> {
    let secret = args.secret.read()?;
    let was_made = secret.is_none();
    let is_pagerduty = args.format == PAGERDUTY;
    if is_pagerduty && !args.alerts {
        return Err(CliError::new("PagerDuty is told of alerts, not of pushes.", "Add --alerts instead of --repo."));
    }
    if is_pagerduty && was_made {
        return Err(CliError::new(
            "PagerDuty needs a routing key.",
            "Give the integration's key with --secret-file, or in SUREHOOK_SECRET.",
        ));
    }
    let Some(url) = args.url.or_else(|| is_pagerduty.then(|| PAGERDUTY_URL.to_owned())) else {
        return Err(CliError::new(
            "An endpoint needs --url.",
            "Say where alerts are POSTed, or choose --format pagerduty.",
        ));
    };
    let scope = match scope(database, args.repo, args.aggregate).await? {
        Some(scope) => scope,
        None if args.alerts => Scope::All,
        None => return Err(CliError::new("An endpoint needs --repo.", "Name a repository, GROUP/* or *.")),
    };
    let limits = args.limits.change();
    let settings = EndpointChange {
        allow_private: Some(args.allow_private),
        ordered: Some(!args.unordered),
        count_every_silence: Some(args.count_every_silence),
        event_types: args.alerts.then(|| Some(vec![ALERT_EVENT.to_owned()])).or(limits.event_types.clone()),
        ..limits
    };
    let new = NewEndpoint { secret, format: args.format, settings, ..NewEndpoint::new(args.name, url, scope) };
    let (endpoint, job) = match args.backfill {
        None => (endpoints::add(database, new).await?, None),
        Some(since) => {
            let wanted = backfill::wanted(database, since).await?;
            let (endpoint, job) = add_with_backfill(database, new, &wanted).await?;
            (endpoint, Some(job))
        }
    };
    let secret = was_made.then(|| endpoint.secret.clone());
    show(database, endpoint, Made { secret, job }, out).await
}
