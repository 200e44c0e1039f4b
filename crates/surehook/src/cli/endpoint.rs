//! `surehook endpoint`: who is told, and how.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use surehook_outbox::Database;
use surehook_outbox::endpoint::{Conflict, Endpoint, EndpointChange, EndpointState, OnDead, Scope};
use surehook_outbox::store::endpoints::{self, EndpointError, Removed};
use surehook_outbox::store::jobs::Job;
use surehook_outbox::store::operate::database_time;
use surehook_outbox::store::windows::{self, WindowShown};

use super::backfill::{self, BackfillArgs};
use super::connect::{tell_workers, with_database};
use super::endpoint_add::{self, AddArgs};
use super::job::detached_words;
use super::output::{Out, cell, count, properties, span_words, table, when, when_or};
use super::standing;
use super::values::{header_map, parse_header, parse_ms, parse_s, read_secret_file};
use super::{CliError, Globals};
use crate::store::{lookup, repositories};

/// Endpoints.
#[derive(Debug, Subcommand)]
pub enum EndpointCommand {
    /// Add an endpoint; it is told of every push from then on
    #[command(after_help = "Examples:\n  \
        surehook endpoint add ci --repo team/app --url https://ci.example.com/hook\n  \
        surehook endpoint add audit --repo '*' --url https://audit.example.com/ --secret-file secret.txt\n  \
        surehook endpoint add local --repo 'team/*' --url http://127.0.0.1:9000/ --allow-private\n  \
        surehook endpoint add ci2 --repo team/app --url https://ci2.example.com/hook --backfill 7d\n  \
        surehook endpoint add pager --alerts --format pagerduty --secret-file routing-key.txt\n\n\
        Without a secret one is made and shown this once. The format cannot be changed later: add another endpoint for it.")]
    Add(Box<AddArgs>),
    /// Tell an endpoint of earlier events that it was not told of, in their order, by a job
    #[command(after_help = "Examples:\n  \
        surehook endpoint backfill ci --since 7d --dry-run\n  \
        surehook endpoint backfill ci --since 2026-01-31T08:00:00Z --rate 20\n\n\
        Nothing is told twice: a second time it finds what is still missing. What is pushed meanwhile waits until the older ones of\n\
        its repository are enqueued. Like every job it can be watched, cancelled and resumed: surehook job --help")]
    Backfill(BackfillArgs),
    /// List endpoints, by name
    #[command(after_help = "Example:\n  surehook endpoint list --json")]
    List {
        /// Also those that were removed
        #[arg(long)]
        removed: bool,
    },
    /// Show an endpoint with all its settings; its secret is not shown
    #[command(after_help = "Example:\n  surehook endpoint show ci")]
    Show {
        /// Its name or id
        name: String,
    },
    /// Change settings of an endpoint; what is not named stays
    #[command(after_help = "Examples:\n  \
        surehook endpoint set ci --url https://ci2.example.com/hook --timeout 20s\n  \
        surehook endpoint set ci --allow-private true\n  \
        surehook endpoint set ci --secret-next-file new.txt     sign with both while the receiver changes over\n  \
        surehook endpoint set ci --end-rotation                 then with the new one alone")]
    Set(Box<SetArgs>),
    /// Hold every delivery to an endpoint; they wait until it is resumed
    #[command(after_help = "Example:\n  surehook endpoint pause ci --reason \"CI moves house\"")]
    Pause {
        /// Its name or id
        name: String,
        /// Why, for whoever looks at it later
        #[arg(long, value_name = "TEXT", default_value = "paused by an operator")]
        reason: String,
    },
    /// Let deliveries go out again
    #[command(after_help = "Example:\n  surehook endpoint resume ci")]
    Resume {
        /// Its name or id
        name: String,
    },
    /// Remove an endpoint; what it has not received yet is cancelled
    #[command(
        after_help = "Example:\n  surehook endpoint remove ci\n\nIts history and its dead letters stay readable."
    )]
    Remove {
        /// Its name or id
        name: String,
    },
}

/// Options of `endpoint set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Its name or id
    name: String,
    /// Whose pushes: a repository, GROUP/* for all below a group, or * for all
    #[arg(long, value_name = "REPO")]
    repo: Option<String>,
    /// Events of this aggregate instead
    #[arg(long, value_name = "ID", conflicts_with = "repo")]
    aggregate: Option<String>,
    /// Where webhooks are POSTed
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Sign with this secret, at once and alone; better from a file
    #[arg(long, value_name = "SECRET")]
    secret: Option<String>,
    /// The same, read from a file (- is standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    secret_file: Option<PathBuf>,
    /// Begin a rotation: sign with this second secret too, read from a file (- is standard input)
    #[arg(long, value_name = "FILE")]
    secret_next_file: Option<PathBuf>,
    /// End a rotation: the second secret becomes the only one
    #[arg(long, conflicts_with_all = ["secret", "secret_file", "secret_next_file"])]
    end_rotation: bool,
    /// Whether it may lead to a loopback or private address
    #[arg(long, value_name = "BOOL")]
    allow_private: Option<bool>,
    /// Whether the order of a repository's events is kept; between what waits now and what comes later there is none
    #[arg(long, value_name = "BOOL")]
    ordered: Option<bool>,
    /// Whether every attempt without an answer counts towards --max-unanswered
    #[arg(long, value_name = "BOOL")]
    count_every_silence: Option<bool>,
    /// Receive every event type again
    #[arg(long, conflicts_with = "event_types")]
    all_event_types: bool,
    /// Send no custom headers any more
    #[arg(long, conflicts_with = "headers")]
    no_headers: bool,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Settings that are added and changed in the same way.
#[derive(Debug, Default, Args)]
pub(super) struct LimitArgs {
    /// Deadline of one attempt [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    timeout: Option<i32>,
    /// The longest wait between two attempts [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    retry_max_delay: Option<i32>,
    /// Answers that refuse a delivery until it is a dead letter [default: 5]
    #[arg(long, value_name = "N")]
    max_attempts: Option<i32>,
    /// Attempts without an answer until it is one [default: 20]
    #[arg(long, value_name = "N")]
    max_unanswered: Option<i32>,
    /// How long a delivery is tried at most [default: 3d]
    #[arg(long, value_name = "TIME", value_parser = parse_s)]
    max_age: Option<i32>,
    /// Requests at once from one worker process at most: the bound of its window [default: 256]
    #[arg(long, value_name = "N")]
    in_flight_max: Option<i32>,
    /// Requests per second from one worker process at most; 0 for no limit [default: no limit]
    #[arg(long, value_name = "N")]
    rate_max: Option<i32>,
    /// When a delivery dies: go on with the next, or stop until an operator acts [default: skip]
    #[arg(long, value_name = "WHAT", value_parser = OnDead::WORDS.to_vec())]
    on_dead: Option<String>,
    /// What an answer of 409 means [default: auto]
    #[arg(long, value_name = "WHAT", value_parser = Conflict::WORDS.to_vec())]
    conflict: Option<String>,
    /// A further request header, "Name: value". May be repeated; all of them together replace those that there were
    #[arg(long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// Only events of this type. May be repeated; all of them together replace those that there were
    #[arg(long = "event-type", value_name = "TYPE")]
    event_types: Vec<String>,
}

impl LimitArgs {
    pub(super) fn change(self) -> EndpointChange {
        EndpointChange {
            timeout_ms: self.timeout,
            retry_max_delay_ms: self.retry_max_delay,
            max_attempts: self.max_attempts,
            max_unanswered: self.max_unanswered,
            max_age_s: self.max_age,
            in_flight_max: self.in_flight_max,
            rate_max_per_s: self.rate_max.map(|rate| (rate != 0).then_some(rate)),
            on_dead: self.on_dead.as_deref().and_then(OnDead::from_word),
            conflict: self.conflict.as_deref().and_then(Conflict::from_word),
            headers: (!self.headers.is_empty()).then(|| header_map(self.headers)),
            event_types: (!self.event_types.is_empty()).then_some(Some(self.event_types)),
            ..EndpointChange::default()
        }
    }
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    endpoint: Endpoint,
    /// The name of the repository that `aggregate_id` is.
    repository: Option<String>,
    /// How much each worker may have under way there, and whether its circuit is open. Only where one endpoint is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows: Option<Vec<WindowShown>>,
    /// Only where it was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The job that tells it of earlier events. Only where it was just made.
    #[serde(skip_serializing_if = "Option::is_none")]
    backfill: Option<Job>,
    /// How it stands; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<standing::Shown>,
}

pub(super) async fn run(globals: &Globals, command: EndpointCommand, out: Out) -> Result<ExitCode, CliError> {
    with_database(globals, async |database| match command {
        EndpointCommand::Add(args) => endpoint_add::add(database, *args, out).await,
        EndpointCommand::Backfill(args) => backfill::run(database, args, out).await,
        EndpointCommand::List { removed } => list(database, removed, out).await,
        EndpointCommand::Show { name } => {
            let endpoint = find(database, &name).await?;
            show(database, endpoint, Made::default(), out).await
        }
        EndpointCommand::Set(args) => {
            let endpoint = set(database, *args).await?;
            show(database, endpoint, Made::default(), out).await
        }
        EndpointCommand::Pause { name, reason } => {
            find(database, &name).await?;
            let endpoint = endpoints::pause(database, &name, &reason).await?;
            out.one(&endpoint, || {
                format!("Endpoint {name} is paused: {reason}\nIts deliveries wait. Let them go out with: surehook endpoint resume {name}")
            })
        }
        EndpointCommand::Resume { name } => {
            find(database, &name).await?;
            let endpoint = endpoints::resume(database, &name).await?;
            tell_workers(database).await;
            out.one(&endpoint, || format!("Endpoint {name} is active: what waited goes out now."))
        }
        EndpointCommand::Remove { name } => {
            find(database, &name).await?;
            let removed = endpoints::remove(database, &name).await?;
            out.one(&RemovedShown::from(&removed), || {
                let cancelled = count(removed.cancelled, "delivery was", "deliveries were");
                format!("Endpoint {name} is removed; {cancelled} cancelled.")
            })
        }
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct RemovedShown<'a> {
    #[serde(flatten)]
    endpoint: &'a Endpoint,
    cancelled: i64,
}

impl<'a> From<&'a Removed> for RemovedShown<'a> {
    fn from(removed: &'a Removed) -> Self {
        Self { endpoint: &removed.endpoint, cancelled: removed.cancelled }
    }
}

/// Finds an endpoint by name or id, or says which one was perhaps meant.
pub(super) async fn find(database: &Database, name: &str) -> Result<Endpoint, CliError> {
    match endpoints::find(database, name).await {
        Err(EndpointError::NotFound(_)) => {
            let names: Vec<String> =
                endpoints::list(database, false).await?.into_iter().map(|found| found.name).collect();
            Err(CliError::unknown_name("endpoint", name, &names, "surehook endpoint list"))
        }
        found => Ok(found?),
    }
}

async fn set(database: &Database, args: SetArgs) -> Result<Endpoint, CliError> {
    let endpoint = find(database, &args.name).await?;
    let mut change = EndpointChange {
        url: args.url,
        scope: scope(database, args.repo, args.aggregate).await?,
        allow_private: args.allow_private,
        ordered: args.ordered,
        count_every_silence: args.count_every_silence,
        ..args.limits.change()
    };
    change.secret = match args.secret_file {
        Some(file) => Some(read_secret_file(&file)?),
        None => args.secret.map(SecretString::from),
    };
    if let Some(file) = args.secret_next_file {
        change.secret_next = Some(Some(read_secret_file(&file)?));
    }
    if args.end_rotation {
        let Some(next) = endpoint.secret_next else {
            return Err(CliError::new(
                format!("Endpoint {} has no second secret.", endpoint.name),
                "Begin a rotation with --secret-next-file.",
            ));
        };
        (change.secret, change.secret_next) = (Some(next), Some(None));
    }
    if args.all_event_types {
        change.event_types = Some(None);
    }
    if args.no_headers {
        change.headers = Some(header_map(Vec::new()));
    }
    Ok(endpoints::set(database, &endpoint.endpoint_id.to_string(), change).await?)
}

/// What `--repo` or `--aggregate` say; None if neither is there.
pub(super) async fn scope(
    database: &Database,
    repo: Option<String>,
    aggregate: Option<String>,
) -> Result<Option<Scope>, CliError> {
    if let Some(id) = aggregate {
        return Ok(Some(Scope::Aggregate(id)));
    }
    let Some(repo) = repo else { return Ok(None) };
    if repo == "*" {
        return Ok(Some(Scope::All));
    }
    if let Some(group) = repo.strip_suffix("/*") {
        let good = !group.is_empty() && group.split('/').all(|part| !part.is_empty() && !part.contains('*'));
        return if good {
            Ok(Some(Scope::Group(group.into())))
        } else {
            Err(CliError::new(format!("{repo} is no group."), "Write for example team/* or team/sub/*."))
        };
    }
    let name = repo.strip_suffix(".git").unwrap_or(&repo);
    match repositories::find_by_name(database, name).await? {
        Some(found) => Ok(Some(Scope::Aggregate(found.repository_id.to_string()))),
        None => Err(unknown_repository(database, name).await?),
    }
}

/// Says which repository was perhaps meant.
pub(super) async fn unknown_repository(database: &Database, name: &str) -> Result<CliError, CliError> {
    let names: Vec<String> = lookup::repository_names(database).await?.into_iter().map(|(_, name)| name).collect();
    let mut error = CliError::unknown_name("repository", name, &names, "surehook repo list");
    if names.is_empty() {
        error.advice = format!("Make it with: surehook repo create {name}");
    }
    Ok(error)
}

async fn list(database: &Database, removed: bool, out: Out) -> Result<(), CliError> {
    let endpoints = endpoints::list(database, removed).await?;
    let repositories = lookup::repository_names(database).await?;
    let now = database_time(database).await?;
    let shown: Vec<Shown> = endpoints
        .into_iter()
        .map(|endpoint| Shown {
            repository: repository_of(&endpoint, &repositories),
            endpoint,
            windows: None,
            secret: None,
            backfill: None,
            now: None,
        })
        .collect();
    let nothing = "There are no endpoints. Add one with: surehook endpoint add NAME --repo REPO --url URL";
    out.list(&shown, nothing, || {
        let mut table = table(&["NAME", "STATE", "RECEIVES", "URL", "FORMAT", "LAST SUCCESS"]);
        for Shown { endpoint, repository, .. } in &shown {
            table.add_row([
                endpoint.name.clone(),
                endpoint.state.to_string(),
                receives(endpoint, repository.as_deref()),
                cell(&endpoint.url, 60),
                endpoint.format.clone(),
                when_or(endpoint.last_success_at, now, "never"),
            ]);
        }
        table
    })
}

fn repository_of(endpoint: &Endpoint, repositories: &[(uuid::Uuid, String)]) -> Option<String> {
    let id = endpoint.aggregate_id.as_deref()?;
    repositories.iter().find(|(known, _)| known.to_string() == id).map(|(_, name)| name.clone())
}

fn receives(endpoint: &Endpoint, repository: Option<&str>) -> String {
    match (&endpoint.aggregate_id, &endpoint.aggregate_group) {
        (Some(id), _) => repository.unwrap_or(id).to_owned(),
        (None, Some(group)) => format!("{group}/*"),
        (None, None) => "*".into(),
    }
}

/// What is shown of an endpoint only when it was just added.
#[derive(Default)]
pub(super) struct Made {
    /// The secret, if nobody chose it.
    pub(super) secret: Option<SecretString>,
    /// The job that tells it of earlier events.
    pub(super) job: Option<Job>,
}

pub(super) async fn show(database: &Database, endpoint: Endpoint, made: Made, out: Out) -> Result<(), CliError> {
    let repository = repository_of(&endpoint, &lookup::repository_names(database).await?);
    let now = database_time(database).await?;
    let secret = made.secret.map(|secret| secret.expose_secret().to_owned());
    let job_words = match &made.job {
        Some(job) => Some(detached_words(database, job).await?),
        None => None,
    };
    let windows = windows::of_endpoint(&database.session().await?, endpoint.endpoint_id).await?;
    let standing = standing::read(database, endpoint.endpoint_id).await?;
    let shown = Shown { endpoint, repository, windows: Some(windows), secret, backfill: made.job, now: Some(standing) };
    out.one(&shown, || {
        let Shown { endpoint, repository, windows, secret, now: standing, .. } = &shown;
        let mut rows = endpoint_rows(endpoint, repository.as_deref(), now);
        rows.extend(windows.iter().flatten().map(|window| ("window", window_words(window, now))));
        rows.extend(standing.iter().flat_map(|standing| standing.rows(now)));
        rows.splice(0..0, secret.iter().map(|secret| ("secret", secret.clone())));
        let mut text = properties(&rows);
        if secret.is_some() {
            text.push_str("\n\nThis is the only time that the secret is shown. Give it to the receiver.");
        }
        if let Some(words) = job_words {
            text.push_str(&format!("\n\nIt is told of what happened before. {words}"));
        }
        text
    })
}

/// One worker's window, for a person who wonders why nothing goes out.
fn window_words(window: &WindowShown, now: jiff::Timestamp) -> String {
    let WindowShown { node, in_flight, in_flight_limit, silences_in_a_row, opened_at, next_probe_at, .. } = window;
    match opened_at {
        None => format!("{node}: {in_flight} of {in_flight_limit} requests under way"),
        Some(opened_at) => format!(
            "{node}: circuit open since {}, {silences_in_a_row} requests in a row without an answer; next probe {}",
            when(*opened_at, now),
            when_or(*next_probe_at, now, "at once")
        ),
    }
}

fn endpoint_rows(endpoint: &Endpoint, repository: Option<&str>, now: jiff::Timestamp) -> Vec<(&'static str, String)> {
    let ms = |ms: i32| match ms {
        ms if ms % 1_000 == 0 => span_words(u64::from(ms.unsigned_abs()) / 1_000),
        ms => format!("{ms} ms"),
    };
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        ("name", endpoint.name.clone()),
        ("id", endpoint.endpoint_id.to_string()),
        ("state", endpoint.state.to_string()),
        ("receives", receives(endpoint, repository)),
        ("url", endpoint.url.clone()),
        ("format", endpoint.format.clone()),
        ("event types", endpoint.event_types.as_ref().map_or("all".into(), |types| types.join(", "))),
        ("order is kept", yes(endpoint.ordered)),
        ("private address", yes(endpoint.allow_private)),
        ("deadline of an attempt", ms(endpoint.timeout_ms)),
        ("longest wait", ms(endpoint.retry_max_delay_ms)),
        ("refusals until dead", endpoint.max_attempts.to_string()),
        ("silences until dead", endpoint.max_unanswered.to_string()),
        ("every silence counts", yes(endpoint.count_every_silence)),
        ("tried for at most", span_words(u64::from(endpoint.max_age_s.unsigned_abs()))),
        ("requests at once", format!("at most {}", endpoint.in_flight_max)),
        ("requests per second", endpoint.rate_max_per_s.map_or("no limit".into(), |rate| format!("at most {rate}"))),
        ("when one dies", endpoint.on_dead.to_string()),
        ("409 means", endpoint.conflict.to_string()),
        ("second secret", yes(endpoint.secret_next.is_some())),
        ("last success", when_or(endpoint.last_success_at, now, "never")),
        ("added", when(endpoint.created_at, now)),
    ];
    if endpoint.state == EndpointState::Paused {
        rows.insert(3, ("why", endpoint.state_reason.clone().unwrap_or_default()));
    }
    for (name, value) in &endpoint.headers {
        rows.push(("header", format!("{name}: {value}")));
    }
    rows
}
