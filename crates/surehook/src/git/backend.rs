//! What the Git server needs to be told by the rest of the product: who may do what, and what a push leads to.
//! Types and one trait; it touches nothing.

use futures_util::future::BoxFuture;
use secrecy::SecretString;
use std::path::PathBuf;
use uuid::Uuid;

use super::name::RepoName;

/// The side of the Git server that knows the database.
pub trait GitBackend: Send + Sync + 'static {
    /// Decides whether a request may go on. It may be asked several times for one clone or push, and must be cheap.
    fn authorize<'a>(
        &'a self,
        name: &'a RepoName,
        access: Access,
        credentials: Option<Credentials>,
    ) -> BoxFuture<'a, Result<Granted, Refusal>>;

    /// Called before git may move refs: what moved earlier must be announced first. It may be cancelled and repeated.
    fn prepare_push<'a>(&'a self, granted: &'a Granted) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Called when a push is about to delete refs, after its client has seen them: their logs will be gone with them, so
    /// what these say must be announced first. It may be cancelled and repeated.
    fn prepare_deletion<'a>(&'a self, granted: &'a Granted) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Called after every git process that might have moved refs, whatever its exit code and whether or not the client
    /// is still there. Idempotent; the client waits for it only for a limited time.
    fn pushed<'a>(&'a self, granted: &'a Granted, hints: PushHints) -> BoxFuture<'a, PushOutcome>;
}

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Clone or fetch.
    Read,
    /// Push, and what comes before a push.
    Push,
}

/// What stood in the `Authorization` header.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The user name of HTTP Basic; empty with a bearer token.
    pub user: String,
    /// The password, or the bearer token.
    pub password: SecretString,
}

/// A request that may go on.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The repository that is meant.
    pub repository: RepositoryOnDisk,
    /// Who asks, in words for the event and the reflog.
    pub pusher: Option<String>,
}

/// A repository, as the Git server needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryOnDisk {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: RepoName,
    /// The absolute path of the bare repository.
    pub path: PathBuf,
    /// The hash of its objects.
    pub object_format: ObjectFormat,
    /// Whose it is.
    pub origin: Origin,
}

/// Who made a repository, and so whether surehook may leave a lock file in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Surehook created it: its git processes run under the shared lock.
    Hosted,
    /// Somebody else's: nothing is written there but what git writes.
    Imported,
}

/// The hash of object ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectFormat {
    /// 20 bytes.
    #[default]
    Sha1,
    /// 32 bytes.
    Sha256,
}

impl ObjectFormat {
    /// As git and the database write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }
}

/// Why a request may not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody, or nobody known, asks: 401, and git asks for a password.
    Unauthenticated,
    /// Known, but not allowed: 403.
    Forbidden,
    /// There is no such repository, or this one must not learn of it: 404.
    NotFound,
    /// Cannot be decided or served just now: 503 with this message, which the person at the client sees.
    Unavailable(String),
}

/// What is known about a push beside the refs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushHints {
    /// Who pushed.
    pub pusher: Option<String>,
    /// `git push -o …`, in order, as bytes.
    pub push_options: Vec<Vec<u8>>,
    /// The refs that it asked to delete, as bytes.
    pub deletions: Vec<Vec<u8>>,
    /// The address that the push came from.
    pub remote: Option<String>,
}

/// What [`GitBackend::pushed`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PushOutcome {
    /// All that moved is recorded; so many events were new.
    Announced(usize),
    /// The refs moved, the events follow later; the message says why and is shown to the person at the client.
    Later(String),
}
