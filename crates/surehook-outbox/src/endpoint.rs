//! Endpoints: who is told, and what a setting must look like to be saved. Pure; the rows are written by `store::endpoints`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use surehook_webhook::envelope::check_custom_header;
use surehook_webhook::secret::Secret;
use url::{Host, Url};
use uuid::Uuid;

use crate::address::is_public;
use crate::subscriber;
use crate::target::NATIVE;
use crate::text_enum::text_enum;

text_enum! {
    /// Whether deliveries go out to an endpoint.
    EndpointState {
        /// Deliveries go out.
        Active = "active",
        /// Deliveries are kept and held.
        Paused = "paused",
        /// Nothing more is sent; the row stays so that history can name it.
        Removed = "removed",
    }
}

text_enum! {
    /// What happens to a lane whose head dies.
    OnDead {
        /// The lane goes on with the next delivery.
        Skip = "skip",
        /// The lane stops until an operator acts.
        Block = "block",
    }
}

text_enum! {
    /// What an answer of 409 means.
    Conflict {
        /// Success for the native format; elsewhere only if an earlier try may have arrived.
        Auto = "auto",
        /// The receiver has seen this id.
        Success = "success",
        /// A refusal.
        Strike = "strike",
    }
}

/// Whose events an endpoint receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Events of one aggregate, by its id.
    Aggregate(String),
    /// Events of aggregates whose name lies below this group.
    Group(String),
    /// Every event.
    All,
}

/// One endpoint as it is stored. Serialised with the names of the columns, without its secrets.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct Endpoint {
    pub endpoint_id: Uuid,
    pub name: String,
    pub url: String,
    pub aggregate_id: Option<String>,
    pub aggregate_group: Option<String>,
    pub event_types: Option<Vec<String>>,
    pub format: String,
    pub headers: BTreeMap<String, String>,
    #[serde(skip)]
    pub secret: SecretString,
    #[serde(skip)]
    pub secret_next: Option<SecretString>,
    pub state: EndpointState,
    pub state_reason: Option<String>,
    pub ordered: bool,
    pub on_dead: OnDead,
    pub conflict: Conflict,
    pub allow_private: bool,
    pub timeout_ms: i32,
    pub retry_max_delay_ms: i32,
    pub max_attempts: i32,
    pub max_unanswered: i32,
    pub count_every_silence: bool,
    pub max_age_s: i32,
    pub in_flight_max: i32,
    pub rate_max_per_s: Option<i32>,
    pub last_success_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// What may be chosen when an endpoint is added and changed later. `None` keeps the stored value, or the default at the
/// addition. The format is not here: pending deliveries have been rendered in it, so it is fixed when an endpoint is added.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct EndpointChange {
    pub url: Option<String>,
    pub scope: Option<Scope>,
    /// `Some(None)`: every type.
    pub event_types: Option<Option<Vec<String>>>,
    pub headers: Option<BTreeMap<String, String>>,
    pub secret: Option<SecretString>,
    /// `Some(None)`: the rotation is over.
    pub secret_next: Option<Option<SecretString>>,
    pub ordered: Option<bool>,
    pub on_dead: Option<OnDead>,
    pub conflict: Option<Conflict>,
    pub allow_private: Option<bool>,
    pub timeout_ms: Option<i32>,
    pub retry_max_delay_ms: Option<i32>,
    pub max_attempts: Option<i32>,
    pub max_unanswered: Option<i32>,
    pub count_every_silence: Option<bool>,
    pub max_age_s: Option<i32>,
    pub in_flight_max: Option<i32>,
    /// `Some(None)`: no limit.
    pub rate_max_per_s: Option<Option<i32>>,
}

impl EndpointChange {
    /// Puts the chosen values into `endpoint`; checks nothing.
    pub fn apply(self, endpoint: &mut Endpoint) {
        fn set<T>(place: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *place = value;
            }
        }
        if let Some(scope) = self.scope {
            (endpoint.aggregate_id, endpoint.aggregate_group) = match scope {
                Scope::Aggregate(id) => (Some(id), None),
                Scope::Group(group) => (None, Some(group)),
                Scope::All => (None, None),
            };
        }
        set(&mut endpoint.url, self.url);
        set(&mut endpoint.event_types, self.event_types);
        set(&mut endpoint.headers, self.headers);
        set(&mut endpoint.secret, self.secret);
        set(&mut endpoint.secret_next, self.secret_next);
        set(&mut endpoint.ordered, self.ordered);
        set(&mut endpoint.on_dead, self.on_dead);
        set(&mut endpoint.conflict, self.conflict);
        set(&mut endpoint.allow_private, self.allow_private);
        set(&mut endpoint.timeout_ms, self.timeout_ms);
        set(&mut endpoint.retry_max_delay_ms, self.retry_max_delay_ms);
        set(&mut endpoint.max_attempts, self.max_attempts);
        set(&mut endpoint.max_unanswered, self.max_unanswered);
        set(&mut endpoint.count_every_silence, self.count_every_silence);
        set(&mut endpoint.max_age_s, self.max_age_s);
        set(&mut endpoint.in_flight_max, self.in_flight_max);
        set(&mut endpoint.rate_max_per_s, self.rate_max_per_s);
    }
}

/// A setting that cannot be saved: what is wrong with which one, in words for the person who typed it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct InvalidSetting {
    /// The column.
    pub setting: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

fn invalid(setting: &'static str, problem: impl Into<String>) -> InvalidSetting {
    InvalidSetting { setting, problem: problem.into() }
}

/// Checks everything that can be checked without the database, and writes the URL in its normal form.
pub fn check(endpoint: &mut Endpoint) -> Result<(), InvalidSetting> {
    check_name(&endpoint.name)?;
    endpoint.url = check_url(&endpoint.url, endpoint.allow_private)?.into();
    if subscriber::name_in(&endpoint.url).is_some() && endpoint.format != NATIVE {
        return Err(invalid("format", "a subscriber within the process is told in the native format"));
    }
    check_secret("secret", &endpoint.secret)?;
    if let Some(secret) = &endpoint.secret_next {
        check_secret("secret_next", secret)?;
    }
    if endpoint.headers.len() > HEADERS_MAX {
        return Err(invalid("headers", format!("more than {HEADERS_MAX} custom headers")));
    }
    for (name, value) in &endpoint.headers {
        check_custom_header(name, value).map_err(|error| invalid("headers", format!("{name:?}: {error}")))?;
    }
    if endpoint.event_types.as_ref().is_some_and(|types| types.is_empty() || types.iter().any(String::is_empty)) {
        return Err(invalid("event_types", "an event type is empty; leave the setting out to receive every type"));
    }
    for (setting, value, min, max) in [
        ("timeout_ms", endpoint.timeout_ms, 100, 120_000),
        ("retry_max_delay_ms", endpoint.retry_max_delay_ms, 10, 86_400_000),
        ("max_attempts", endpoint.max_attempts, 1, 1_000),
        ("max_unanswered", endpoint.max_unanswered, 1, 100_000),
        ("max_age_s", endpoint.max_age_s, 1, 31_536_000),
        ("in_flight_max", endpoint.in_flight_max, 1, 2_048),
    ] {
        if !(min..=max).contains(&value) {
            return Err(invalid(setting, format!("{value} is not between {min} and {max}")));
        }
    }
    if let Some(rate) = endpoint.rate_max_per_s.filter(|rate| !(1..=100_000).contains(rate)) {
        return Err(invalid("rate_max_per_s", format!("{rate} is not between 1 and 100000")));
    }
    Ok(())
}

/// Custom headers of one endpoint, at most.
pub const HEADERS_MAX: usize = 32;

fn check_name(name: &str) -> Result<(), InvalidSetting> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good = name.len() <= 100 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(allowed);
    if good {
        Ok(())
    } else {
        Err(invalid(
            "name",
            format!("{name:?} is no name: up to 100 of A-Z a-z 0-9 . _ -, the first a letter or digit"),
        ))
    }
}

/// Checks that webhooks may be sent to `url` and returns it in its normal form, in which numeric forms of an address
/// (`0x7f.1`, `127.1`, `2130706433`) have become what they mean. A name is only checked when it is resolved, at each connect.
pub fn check_url(url: &str, allow_private: bool) -> Result<Url, InvalidSetting> {
    let fault = |problem: String| invalid("url", problem);
    if url.contains(|c: char| c.is_ascii_control() || c.is_whitespace()) {
        return Err(fault("it contains white space or control characters".into()));
    }
    let parsed = Url::parse(url).map_err(|error| fault(format!("{url:?} cannot be read: {error}")))?;
    if let Some(name) = subscriber::name_in(url) {
        check_name(name).map_err(|error| fault(format!("the name of the subscriber: {}", error.problem)))?;
        return Ok(parsed);
    }
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(fault(format!(
            "{url:?} begins with {}://; only http:// and https:// are sent to",
            parsed.scheme()
        )));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(fault("it contains a user name or password; webhooks are signed, use the secret instead".into()));
    }
    if parsed.fragment().is_some() {
        return Err(fault("it contains a fragment (#…), which is never sent".into()));
    }
    if parsed.port() == Some(0) {
        return Err(fault("port 0 cannot be connected to".into()));
    }
    if parsed.as_str().len() > 2048 {
        return Err(fault("it is longer than 2048 bytes".into()));
    }
    let private = match parsed.host() {
        None => return Err(fault(format!("{url:?} names no host"))),
        Some(Host::Ipv4(address)) => (!is_public(address.into())).then(|| address.to_string()),
        Some(Host::Ipv6(address)) => (!is_public(address.into())).then(|| address.to_string()),
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            (name == "localhost" || name.ends_with(".localhost")).then_some(name)
        }
    };
    match private {
        Some(host) if !allow_private => Err(fault(format!(
            "{host} is not a public address; if this endpoint is meant to lead to a loopback or private address, allow it (--allow-private)"
        ))),
        _ => Ok(parsed),
    }
}

fn check_secret(setting: &'static str, secret: &SecretString) -> Result<(), InvalidSetting> {
    match Secret::parse(secret.expose_secret()) {
        Ok(_) => Ok(()),
        Err(error) => Err(invalid(setting, error.to_string())),
    }
}
