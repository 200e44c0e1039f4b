//! The table `endpoints`: add, find, list, set, pause, resume, remove. Every write is checked by [`crate::endpoint`] first.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use surehook_webhook::secret::Secret;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{Database, DatabaseError, Sql, upkeep};
use crate::endpoint::{Conflict, Endpoint, EndpointChange, EndpointState, InvalidSetting, OnDead, Scope, check};
use crate::target::NATIVE;

/// An endpoint to be added. Settings that are not chosen take the defaults of the schema.
#[derive(Clone, Debug)]
pub struct NewEndpoint {
    /// What people call it.
    pub name: String,
    /// Where webhooks are POSTed.
    pub url: String,
    /// Whose events it receives.
    pub scope: Scope,
    /// The rendering it is sent.
    pub format: String,
    /// The primary secret; None: 256 random bits.
    pub secret: Option<SecretString>,
    /// Further settings. Its `url`, `scope` and `secret` are those above.
    pub settings: EndpointChange,
}

impl NewEndpoint {
    /// An endpoint of the native format with every default.
    pub fn new(name: impl Into<String>, url: impl Into<String>, scope: Scope) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            scope,
            format: NATIVE.into(),
            secret: None,
            settings: EndpointChange::default(),
        }
    }
}

/// Why an endpoint could not be added or changed. Nothing was.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// A setting cannot be saved as it is.
    #[error(transparent)]
    Invalid(#[from] InvalidSetting),
    /// Another endpoint that is not removed has the name.
    #[error("there is an endpoint named {0} already")]
    NameTaken(String),
    /// No endpoint that is not removed has this name or id.
    #[error("there is no endpoint {0}")]
    NotFound(String),
    /// The database refused or was away.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<tokio_postgres::Error> for EndpointError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What a removal did.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Removed {
    /// The endpoint, now `removed`.
    pub endpoint: Endpoint,
    /// How many deliveries had not ended and now show as `cancelled`.
    pub cancelled: i64,
}

const COLUMNS: &str = "endpoint_id, name, url, aggregate_id, aggregate_group, event_types, format, headers::text AS headers, \
     secret, secret_next, state, state_reason, ordered, on_dead, conflict, allow_private, timeout_ms, retry_max_delay_ms, \
     max_attempts, max_unanswered, count_every_silence, max_age_s, in_flight_max, rate_max_per_s, last_success_at, created_at, updated_at";

/// Adds an endpoint. Ok: it is stored and receives events from now on; the returned row holds its secret, which may have
/// been generated. Err: nothing was stored. Repeating it after an unclear end gives `NameTaken` if it had been stored.
pub async fn add(database: &Database, new: NewEndpoint) -> Result<Endpoint, EndpointError> {
    add_in(&database.session().await?, new).await
}

/// The same within a transaction, which the caller commits.
pub(super) async fn add_in(client: &impl Sql, new: NewEndpoint) -> Result<Endpoint, EndpointError> {
    let secret = new.secret.map_or_else(generate_secret, Ok)?;
    let now = client.query_one("SELECT clock_timestamp()", &[]).await?.get(0);
    let mut endpoint = Endpoint {
        endpoint_id: Uuid::new_v4(),
        name: new.name,
        url: String::new(),
        aggregate_id: None,
        aggregate_group: None,
        event_types: None,
        format: new.format,
        headers: BTreeMap::new(),
        secret: secret.clone(),
        secret_next: None,
        state: EndpointState::Active,
        state_reason: None,
        ordered: true,
        on_dead: OnDead::Skip,
        conflict: Conflict::Auto,
        allow_private: false,
        timeout_ms: 10_000,
        retry_max_delay_ms: 300_000,
        max_attempts: 5,
        max_unanswered: 20,
        count_every_silence: false,
        max_age_s: 259_200,
        in_flight_max: 256,
        rate_max_per_s: None,
        last_success_at: None,
        created_at: now,
        updated_at: now,
    };
    EndpointChange { url: Some(new.url), scope: Some(new.scope), secret: Some(secret), ..new.settings }
        .apply(&mut endpoint);
    check(&mut endpoint)?;
    save(client, &endpoint).await
}

/// Makes the endpoint of a subscriber within the process, unless it is there. Ok: events go to it from now on, and are kept until a
/// worker with that handler runs; the settings of one that was there are left as they are. May be repeated, as at every start.
pub async fn subscribe(
    database: &Database,
    name: &str,
    scope: Scope,
    settings: EndpointChange,
) -> Result<Endpoint, EndpointError> {
    let url = format!("{}{name}", crate::subscriber::SCHEME);
    match add(database, NewEndpoint { settings, ..NewEndpoint::new(name, &*url, scope) }).await {
        Err(EndpointError::NameTaken(taken)) => {
            let found = find(database, name).await?;
            if found.url == url { Ok(found) } else { Err(EndpointError::NameTaken(taken)) }
        }
        added => added,
    }
}

/// One endpoint by its name or id. A removed one is found by its id only.
pub async fn find(database: &Database, name_or_id: &str) -> Result<Endpoint, EndpointError> {
    find_in(&database.session().await?, name_or_id, false).await
}

/// Endpoints by name; removed ones only if asked for, at the end.
pub async fn list(database: &Database, with_removed: bool) -> Result<Vec<Endpoint>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            &format!(
                "SELECT {COLUMNS} FROM endpoints WHERE $1 OR state <> 'removed' ORDER BY state = 'removed', name, created_at, endpoint_id"
            ),
            &[&with_removed],
        )
        .await?;
    rows.iter().map(from_row).collect()
}

/// Changes settings. Ok: the row as it is now; workers take it over at their next claim, deliveries that are under way end
/// under the old settings. Err: nothing was changed. May be repeated.
///
/// Changing `ordered` sends further events through other lanes than those that wait now: between the two there is no order.
pub async fn set(database: &Database, name_or_id: &str, change: EndpointChange) -> Result<Endpoint, EndpointError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let mut endpoint = find_in(&transaction, name_or_id, true).await?;
    change.apply(&mut endpoint);
    check(&mut endpoint)?;
    let endpoint = save(&transaction, &endpoint).await?;
    transaction.commit().await?;
    Ok(endpoint)
}

/// Holds every delivery to an endpoint. One row is written, however much waits. May be repeated.
pub async fn pause(database: &Database, name_or_id: &str, reason: &str) -> Result<Endpoint, EndpointError> {
    set_state(database, name_or_id, EndpointState::Paused, Some(reason)).await
}

/// Lets deliveries go out again. One row is written. May be repeated.
pub async fn resume(database: &Database, name_or_id: &str) -> Result<Endpoint, EndpointError> {
    set_state(database, name_or_id, EndpointState::Active, None).await
}

async fn set_state(
    database: &Database,
    name_or_id: &str,
    state: EndpointState,
    reason: Option<&str>,
) -> Result<Endpoint, EndpointError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let endpoint = find_in(&transaction, name_or_id, true).await?;
    if endpoint.state == EndpointState::Removed {
        return Err(EndpointError::NotFound(name_or_id.into()));
    }
    let sql = format!(
        "UPDATE endpoints SET state = $2, state_reason = $3, updated_at = clock_timestamp() WHERE endpoint_id = $1 RETURNING {COLUMNS}"
    );
    let row = transaction.query_one(&sql, &[&endpoint.endpoint_id, &state.as_str(), &reason]).await?;
    transaction.commit().await?;
    Ok(from_row(&row)?)
}

/// Removes an endpoint. Ok: it receives nothing more; what had not ended shows as `cancelled`, also what a worker is just
/// sending, whose answer will be discarded. Its row, deliveries and dead letters stay readable. Err: nothing was changed,
/// except that `Database` may hide a commit; it may be repeated by the id.
pub async fn remove(database: &Database, name_or_id: &str) -> Result<Removed, EndpointError> {
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let found = find_in(&transaction, name_or_id, false).await?;
    // Lanes are locked before the endpoint, as by a worker that records: the other way round the two could wait for each other.
    let cancelled: i64 = transaction.query_one(CANCEL, &[&found.endpoint_id]).await?.get(0);
    // A replay that is cancelled leaves its dead letter as it was before.
    transaction.execute(LETTERS_BACK, &[&found.endpoint_id]).await?;
    let sql = format!(
        "UPDATE endpoints SET state = 'removed', state_reason = NULL, updated_at = clock_timestamp() WHERE endpoint_id = $1 RETURNING {COLUMNS}"
    );
    let row = transaction.query_one(&sql, &[&found.endpoint_id]).await?;
    transaction.commit().await?;
    // What an enqueue added in between; should this fail, the sweep does it.
    let late = upkeep::cancel_removed(&session).await.unwrap_or(0);
    Ok(Removed { endpoint: from_row(&row)?, cancelled: cancelled + late })
}

/// Lanes are locked in the order of their ids, as everywhere. The epoch moves on, so a worker that holds one of them is
/// not heard any more.
const CANCEL: &str = "
    WITH mine AS (
        SELECT l.lane_id, l.last_seq - l.done_seq AS waiting FROM outbox_lanes AS l
         WHERE l.ready_at IS NOT NULL
           AND l.endpoint_id = $1
         ORDER BY l.lane_id FOR UPDATE OF l
    ), cancelled AS (
        UPDATE outbox_lanes AS l
           SET done_seq = l.last_seq, ready_at = NULL, leased_until = NULL, owner = NULL, epoch = l.epoch + 1,
               attempts = 0, strikes = 0, unanswered = 0, crashes = 0, may_have_arrived = false,
               first_tried_at = NULL, last_error = NULL, updated_at = clock_timestamp()
          FROM mine WHERE l.lane_id = mine.lane_id
        RETURNING mine.waiting
    )
    SELECT coalesce(sum(waiting), 0)::bigint FROM cancelled";

const LETTERS_BACK: &str = "
    UPDATE outbox_dlq SET state = 'dead', updated_at = clock_timestamp() WHERE endpoint_id = $1 AND state = 'replaying'";

pub(super) async fn find_in(client: &impl Sql, name_or_id: &str, for_update: bool) -> Result<Endpoint, EndpointError> {
    let id = Uuid::parse_str(name_or_id).ok();
    let lock = if for_update { "FOR UPDATE" } else { "" };
    // A name may look like an id, so the name goes first; a removed endpoint is found by its id only.
    let sql = format!(
        "SELECT {COLUMNS} FROM endpoints WHERE (name = $1 AND state <> 'removed') OR endpoint_id = $2
         ORDER BY (name = $1 AND state <> 'removed') DESC LIMIT 1 {lock}"
    );
    let row = client.query_opt(&sql, &[&name_or_id, &id]).await?;
    Ok(from_row(&row.ok_or_else(|| EndpointError::NotFound(name_or_id.into()))?)?)
}

async fn save(client: &impl Sql, endpoint: &Endpoint) -> Result<Endpoint, EndpointError> {
    let sql = format!(
        "INSERT INTO endpoints (endpoint_id, name, url, aggregate_id, aggregate_group, event_types, format, headers, secret, secret_next,
                ordered, on_dead, conflict, allow_private, timeout_ms, retry_max_delay_ms, max_attempts, max_unanswered,
                count_every_silence, max_age_s, in_flight_max, rate_max_per_s)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
         ON CONFLICT (endpoint_id) DO UPDATE
            SET (url, aggregate_id, aggregate_group, event_types, headers, secret, secret_next, ordered, on_dead, conflict, allow_private,
                 timeout_ms, retry_max_delay_ms, max_attempts, max_unanswered, count_every_silence, max_age_s, in_flight_max, rate_max_per_s, updated_at)
              = ($3, $4, $5, $6, $8::text::jsonb, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, clock_timestamp())
         RETURNING {COLUMNS}"
    );
    let headers = serde_json::to_string(&endpoint.headers)
        .unwrap_or_else(|error| unreachable!("a map of text to text is always JSON: {error}"));
    let row = client
        .query_one(
            &sql,
            &[
                &endpoint.endpoint_id,
                &endpoint.name,
                &endpoint.url,
                &endpoint.aggregate_id,
                &endpoint.aggregate_group,
                &endpoint.event_types,
                &endpoint.format,
                &headers,
                &endpoint.secret.expose_secret(),
                &endpoint.secret_next.as_ref().map(ExposeSecret::expose_secret),
                &endpoint.ordered,
                &endpoint.on_dead.as_str(),
                &endpoint.conflict.as_str(),
                &endpoint.allow_private,
                &endpoint.timeout_ms,
                &endpoint.retry_max_delay_ms,
                &endpoint.max_attempts,
                &endpoint.max_unanswered,
                &endpoint.count_every_silence,
                &endpoint.max_age_s,
                &endpoint.in_flight_max,
                &endpoint.rate_max_per_s,
            ],
        )
        .await;
    match row {
        Ok(row) => Ok(from_row(&row)?),
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            Err(EndpointError::NameTaken(endpoint.name.clone()))
        }
        Err(error) => Err(error.into()),
    }
}

fn from_row(row: &Row) -> Result<Endpoint, DatabaseError> {
    let secret = |column: &str| -> Result<Option<SecretString>, DatabaseError> {
        Ok(row.try_get::<_, Option<String>>(column)?.map(SecretString::from))
    };
    Ok(Endpoint {
        endpoint_id: row.try_get("endpoint_id")?,
        name: row.try_get("name")?,
        url: row.try_get("url")?,
        aggregate_id: row.try_get("aggregate_id")?,
        aggregate_group: row.try_get("aggregate_group")?,
        event_types: row.try_get("event_types")?,
        format: row.try_get("format")?,
        headers: serde_json::from_str(row.try_get("headers")?).map_err(|error| {
            DatabaseError::Unsuitable(format!("the headers of an endpoint cannot be read: {error}"))
        })?,
        secret: secret("secret")?.unwrap_or_default(),
        secret_next: secret("secret_next")?,
        state: row.try_get("state")?,
        state_reason: row.try_get("state_reason")?,
        ordered: row.try_get("ordered")?,
        on_dead: row.try_get("on_dead")?,
        conflict: row.try_get("conflict")?,
        allow_private: row.try_get("allow_private")?,
        timeout_ms: row.try_get("timeout_ms")?,
        retry_max_delay_ms: row.try_get("retry_max_delay_ms")?,
        max_attempts: row.try_get("max_attempts")?,
        max_unanswered: row.try_get("max_unanswered")?,
        count_every_silence: row.try_get("count_every_silence")?,
        max_age_s: row.try_get("max_age_s")?,
        in_flight_max: row.try_get("in_flight_max")?,
        rate_max_per_s: row.try_get("rate_max_per_s")?,
        last_success_at: row.try_get("last_success_at")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
    })
}

fn generate_secret() -> Result<SecretString, DatabaseError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| DatabaseError::Unsuitable(format!("the system gives no random numbers: {error}")))?;
    Ok(Secret::generate(bytes).expose_text().into())
}
