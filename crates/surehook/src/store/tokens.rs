//! The tables `tokens` and `token_grants`: passwords of machines and people, and what each may do.

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use surehook_outbox::store::{Database, DatabaseError};
use uuid::Uuid;

/// What somebody wants to do with a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Clone and fetch.
    Read,
    /// Push; includes read.
    Push,
}

impl Access {
    /// The word in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Push => "push",
        }
    }
}

/// Whether a token opens a door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Granted {
        /// The token's name in logs.
        token_id: Uuid,
        /// What it is for; shown as the pusher.
        note: Option<String>,
        /// Whether it may do everything.
        is_admin: bool,
    },
    /// There is no such token, or it was revoked: ask for a password (401).
    Unknown,
    /// The token is good, but not for this (403).
    Forbidden,
}

/// A token as it is listed: never the token itself, of which only the hash is kept.
#[derive(Clone, Debug, serde::Serialize)]
#[expect(missing_docs, reason = "each field is the column of the same name, which the schema comments")]
pub struct Token {
    pub token_id: Uuid,
    pub note: Option<String>,
    pub is_admin: bool,
    /// Repositories (or patterns) that it may push to, and read.
    pub push: Vec<String>,
    /// Repositories (or patterns) that it may read.
    pub read: Vec<String>,
    pub created_at: Timestamp,
    pub last_used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// What a new token may do.
#[derive(Clone, Debug, Default)]
pub struct NewToken {
    /// What it is for.
    pub note: Option<String>,
    /// Whether it may do everything.
    pub is_admin: bool,
    /// Repository names, `GROUP/*` or `*`.
    pub push: Vec<String>,
    /// The same, to read only.
    pub read: Vec<String>,
}

/// Why a token was not made.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A grant names no repository.
    #[error("{0:?} is no repository name, no GROUP/* and not *")]
    Pattern(String),
    /// The token would open nothing.
    #[error("a token needs at least one of --push, --read and --admin")]
    NoGrant,
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    /// The database refused or was away.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<tokio_postgres::Error> for TokenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What [`revoke`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// It opens nothing from now on.
    Now,
    /// It had been revoked before.
    Before,
    /// There is no such token.
    Unknown,
}

/// Makes a token. Ok: it is stored, and its text is returned this once. Err: nothing was stored.
pub async fn create(database: &Database, new: NewToken) -> Result<(Token, String), TokenError> {
    if !new.is_admin && new.push.is_empty() && new.read.is_empty() {
        return Err(TokenError::NoGrant);
    }
    let (push, read) = (normal_patterns(&new.push)?, normal_patterns(&new.read)?);
    let text = new_text()?;
    let mut session = database.session().await?;
    let transaction = session.transaction().await?;
    let row = transaction
        .query_one(
            "INSERT INTO tokens (token_hash, note, is_admin) VALUES ($1, $2, $3) RETURNING token_id, created_at",
            &[&hash(&text), &new.note, &new.is_admin],
        )
        .await?;
    let (token_id, created_at): (Uuid, Timestamp) = (row.try_get(0)?, row.try_get(1)?);
    for (access, patterns) in [("push", &push), ("read", &read)] {
        transaction
            .execute(
                "INSERT INTO token_grants (token_id, access, repository) SELECT $1, $2, unnest($3::text[]) ON CONFLICT DO NOTHING",
                &[&token_id, &access, patterns],
            )
            .await?;
    }
    transaction.commit().await?;
    let (note, is_admin) = (new.note, new.is_admin);
    let token = Token { token_id, note, is_admin, push, read, created_at, last_used_at: None, revoked_at: None };
    Ok((token, text))
}

/// Tokens, the newest first; revoked ones only if asked for.
pub async fn list(database: &Database, with_revoked: bool) -> Result<Vec<Token>, DatabaseError> {
    let session = database.session().await?;
    let rows = session
        .query(
            "SELECT t.token_id, t.note, t.is_admin, t.created_at, t.last_used_at, t.revoked_at,
                    ARRAY(SELECT g.repository FROM token_grants AS g WHERE g.token_id = t.token_id AND g.access = 'push' ORDER BY 1) AS push,
                    ARRAY(SELECT g.repository FROM token_grants AS g WHERE g.token_id = t.token_id AND g.access = 'read' ORDER BY 1) AS read
               FROM tokens AS t WHERE $1 OR t.revoked_at IS NULL ORDER BY t.created_at DESC, t.token_id LIMIT 10000",
            &[&with_revoked],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Token {
                token_id: row.try_get("token_id")?,
                note: row.try_get("note")?,
                is_admin: row.try_get("is_admin")?,
                push: row.try_get("push")?,
                read: row.try_get("read")?,
                created_at: row.try_get("created_at")?,
                last_used_at: row.try_get("last_used_at")?,
                revoked_at: row.try_get("revoked_at")?,
            })
        })
        .collect()
}

/// Revokes a token. Ok: what was done, committed. May be repeated.
pub async fn revoke(database: &Database, token_id: Uuid) -> Result<Revoked, DatabaseError> {
    let session = database.session().await?;
    let row = session
        .query_opt(
            "UPDATE tokens AS t SET revoked_at = coalesce(t.revoked_at, clock_timestamp())
               FROM (SELECT token_id, revoked_at FROM tokens WHERE token_id = $1 FOR UPDATE) AS before
              WHERE t.token_id = before.token_id RETURNING before.revoked_at IS NULL",
            &[&token_id],
        )
        .await?;
    match row {
        None => Ok(Revoked::Unknown),
        Some(row) if row.try_get(0)? => Ok(Revoked::Now),
        Some(_) => Ok(Revoked::Before),
    }
}

/// Whether the token with this text may do this with the repository of this name (without `.git`). Notes that it was
/// used, at most once a minute. Err: the database is away; nobody can be let in.
///
/// The token is looked up by its SHA-256: how long that takes says nothing about the 256 random bits behind it.
pub async fn authorize(
    database: &Database,
    text: &str,
    repository: &str,
    access: Access,
) -> Result<Verdict, DatabaseError> {
    // Anything else is not looked up: a token has one length and one beginning.
    if text.len() != TEXT_BYTES || !text.starts_with(PREFIX) {
        return Ok(Verdict::Unknown);
    }
    let session = database.session().await?;
    let row = session
        .query_opt(
            "SELECT t.token_id, t.note, t.is_admin,
                    t.is_admin OR EXISTS (
                        SELECT 1 FROM token_grants AS g
                         WHERE g.token_id = t.token_id AND (g.access = $3 OR g.access = 'push')
                           AND (g.repository = '*' OR g.repository = $2
                                OR (right(g.repository, 2) = '/*' AND starts_with($2, left(g.repository, -1))))) AS granted,
                    t.last_used_at IS NULL OR t.last_used_at < clock_timestamp() - interval '1 minute' AS note_use
               FROM tokens AS t WHERE t.token_hash = $1 AND t.revoked_at IS NULL",
            &[&hash(text), &repository, &access.as_str()],
        )
        .await?;
    let Some(row) = row else { return Ok(Verdict::Unknown) };
    let token_id: Uuid = row.try_get("token_id")?;
    if !row.try_get::<_, bool>("granted")? {
        return Ok(Verdict::Forbidden);
    }
    if row.try_get("note_use")? {
        session.execute("UPDATE tokens SET last_used_at = clock_timestamp() WHERE token_id = $1", &[&token_id]).await?;
    }
    Ok(Verdict::Granted { token_id, note: row.try_get("note")?, is_admin: row.try_get("is_admin")? })
}

/// What every token begins with, so that secret scanners can find one that was published by mistake.
const PREFIX: &str = "sh_";
/// The prefix and 32 bytes in base64 without padding.
const TEXT_BYTES: usize = PREFIX.len() + 43;

fn new_text() -> Result<String, TokenError> {
    use base64::Engine;
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(TokenError::Random)?;
    Ok(format!("{PREFIX}{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)))
}

fn hash(text: &str) -> Vec<u8> {
    Sha256::digest(text.as_bytes()).to_vec()
}

fn normal_patterns(patterns: &[String]) -> Result<Vec<String>, TokenError> {
    let mut normal = patterns.iter().map(|pattern| normal_pattern(pattern)).collect::<Result<Vec<_>, _>>()?;
    normal.sort();
    normal.dedup();
    Ok(normal)
}

/// A repository name without `.git`, `GROUP/*` or `*`.
fn normal_pattern(pattern: &str) -> Result<String, TokenError> {
    if pattern == "*" {
        return Ok(pattern.into());
    }
    let name = pattern.strip_suffix("/*").or(pattern.strip_suffix(".git")).unwrap_or(pattern);
    let good_part = |part: &str| {
        !matches!(part, "" | "." | "..")
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    };
    if name.len() > 200 || !name.split('/').all(good_part) {
        return Err(TokenError::Pattern(pattern.into()));
    }
    Ok(if pattern.ends_with("/*") { pattern.into() } else { name.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn database() -> (Database, surehook_testkit::postgres::TestDatabase) {
        let test_database = surehook_testkit::postgres::database("tokens", async |url| {
            let database = Database::connect(url, "test", 1).unwrap();
            let steps = crate::store::REPOSITORIES;
            surehook_outbox::store::migrate::migrate(&database, "repositories", steps).await.unwrap();
            database.close().await;
        })
        .await;
        (Database::connect(test_database.url(), "test", 4).unwrap(), test_database)
    }

    #[tokio::test]
    async fn a_token_opens_what_it_was_granted_and_nothing_else() {
        let (database, _kept) = database().await;
        let new = NewToken {
            note: Some("laptop".into()),
            push: vec!["app.git".into(), "team/*".into()],
            read: vec!["docs".into()],
            ..NewToken::default()
        };
        let (token, text) = create(&database, new).await.unwrap();
        assert_eq!(token.push, ["app", "team/*"]);
        assert_eq!(text.len(), TEXT_BYTES);
        let (_, admin) = create(&database, NewToken { is_admin: true, ..NewToken::default() }).await.unwrap();
        let all = NewToken { read: vec!["*".into()], ..NewToken::default() };
        let (_, reader) = create(&database, all).await.unwrap();
        for (text, repository, access, granted) in [
            (&text, "app", Access::Push, true),
            (&text, "app", Access::Read, true),
            (&text, "app2", Access::Read, false),
            (&text, "team/x", Access::Push, true),
            (&text, "team/sub/x", Access::Push, true),
            (&text, "team", Access::Push, false),
            (&text, "teams/x", Access::Push, false),
            (&text, "docs", Access::Read, true),
            (&text, "docs", Access::Push, false),
            (&admin, "anything", Access::Push, true),
            (&reader, "anything/at/all", Access::Read, true),
            (&reader, "anything", Access::Push, false),
        ] {
            let verdict = authorize(&database, text, repository, access).await.unwrap();
            assert_eq!(matches!(verdict, Verdict::Granted { .. }), granted, "{repository} {access:?}: {verdict:?}");
            assert_eq!(verdict == Verdict::Forbidden, !granted);
        }
        let wrong = format!("{}x", &text[..TEXT_BYTES - 1]);
        for unknown in ["", "sh_", "password", &text[1..], &wrong, &text.to_uppercase()] {
            assert_eq!(
                authorize(&database, unknown, "app", Access::Read).await.unwrap(),
                Verdict::Unknown,
                "{unknown}"
            );
        }
        let first = list(&database, false).await.unwrap().into_iter().find(|found| found.token_id == token.token_id);
        assert!(first.unwrap().last_used_at.is_some());
        assert_eq!(revoke(&database, token.token_id).await.unwrap(), Revoked::Now);
        assert_eq!(revoke(&database, token.token_id).await.unwrap(), Revoked::Before);
        assert_eq!(revoke(&database, Uuid::new_v4()).await.unwrap(), Revoked::Unknown);
        assert_eq!(authorize(&database, &text, "app", Access::Read).await.unwrap(), Verdict::Unknown);
        assert_eq!(list(&database, false).await.unwrap().len(), 2);
        assert_eq!(list(&database, true).await.unwrap().len(), 3);
    }

    #[tokio::test]
    async fn grants_that_name_no_repository_are_refused() {
        let (database, _kept) = database().await;
        for bad in ["", "/", "a//b", "../x", "a/../b", "/*", "te*m", "a b", "*/x", "é"] {
            let new = NewToken { push: vec![bad.into()], ..NewToken::default() };
            assert!(matches!(create(&database, new).await, Err(TokenError::Pattern(_))), "{bad:?}");
        }
        assert!(matches!(create(&database, NewToken::default()).await, Err(TokenError::NoGrant)));
        assert!(list(&database, true).await.unwrap().is_empty());
    }
}
