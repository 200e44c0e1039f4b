//! One announce of one repository: rounds of looking and accepting until nothing is left to tell.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use surehook_outbox::crash::point;
use surehook_outbox::store::Transaction;
use surehook_outbox::store::enqueue::FORMAT_NOT_RENDERED;

use super::announce::{AnnounceError, Announced, Announcer, Hints};
use super::folder;
use super::prepare::{FactsCache, Prepared, PreparedStep, Question, prepare};
use super::reflog::Place;
use super::transitions::{Cursor, Evidence};
use crate::owner::Owner;
use crate::payload::facts::Person;
use crate::payload::native::Push;
use crate::payload::text::{Encoding, text};
use crate::store::announce::{self as store, Accepted, RefRow, Step};
use crate::store::repositories::{self, Origin, Repository, RepositoryState, StateChange};

/// Ids named in the log line of one commit at most.
const LOGGED_EVENTS_MAX: usize = 20;

/// Announces that came first so often make this one take the lock before it looks.
const RACES_MAX: usize = 3;
/// Transactions of one call; what is left then waits for the next.
const ROUNDS_MAX: usize = 10_000;
/// How often refs that change while they are read are looked at again.
const UNSETTLED_ROUNDS_MAX: usize = 5;

/// Whether an operator has confirmed a mass disappearance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmed {
    Yes,
    No,
}

/// What one transaction did.
enum Round {
    Committed { events: usize, sequence: i64 },
    Raced,
    Nothing,
}

/// Which refs a round is about.
#[derive(Clone, Copy)]
enum Scope<'a> {
    /// All that were not set aside.
    Healthy,
    /// One alone.
    Only(&'a [u8]),
}

/// One announce of one repository.
pub(super) struct Run<'a> {
    pub(super) announcer: &'a Announcer,
    pub(super) repository: Repository,
    pub(super) git_dir: PathBuf,
    pub(super) hints: Vec<Hints>,
    pub(super) confirmed: Confirmed,
    pub(super) cache: FactsCache,
}

/// What a round leaves beside its events.
#[derive(Default)]
struct Remarks {
    more: bool,
    unsettled: usize,
    unknown: Vec<String>,
    names: Vec<Vec<u8>>,
    aside: Vec<Vec<u8>>,
}

impl Run<'_> {
    /// Tells everything that there is to tell.
    pub(super) async fn all(&self) -> Result<Announced, AnnounceError> {
        let mut announced = Announced::default();
        let remarks = match self.scope(Scope::Healthy, &mut announced).await {
            Ok(remarks) => remarks,
            Err((error, remarks)) if is_about_the_content(&error) => {
                self.one_by_one(&error, remarks, &mut announced).await?
            }
            Err((error, _)) => return Err(error),
        };
        for name in &remarks.aside {
            match self.scope(Scope::Only(name), &mut announced).await {
                Ok(_) => {}
                Err((error, _)) if is_about_the_content(&error) => announced.set_aside += 1,
                Err((error, _)) => return Err(error),
            }
        }
        announced.unsettled = remarks.unsettled;
        announced.unknown = remarks.unknown;
        for reason in &announced.unknown {
            tracing::error!(repository = %self.repository.name, reason, "A ref cannot be read; nothing is told of it");
        }
        Ok(announced)
    }

    /// The transaction with all refs was refused for what was in it: tells each ref by itself and sets aside what fails.
    async fn one_by_one(
        &self,
        error: &AnnounceError,
        remarks: Remarks,
        announced: &mut Announced,
    ) -> Result<Remarks, AnnounceError> {
        tracing::error!(repository = %self.repository.name, error = %chain(error), "An announcement was refused; its refs are told one by one");
        for name in &remarks.names {
            match self.scope(Scope::Only(name), announced).await {
                Ok(_) => {}
                Err((error, _)) if is_about_the_content(&error) => {
                    announced.set_aside += 1;
                    self.set_aside(name, &chain(&error)).await?;
                }
                Err((error, _)) => return Err(error),
            }
        }
        // What did not fit into the refused transaction is found by looking again; it ends, since each pass sets aside or tells.
        match Box::pin(self.scope(Scope::Healthy, announced)).await {
            Ok(left) => Ok(Remarks { aside: Vec::new(), ..left }),
            Err((error, left)) if is_about_the_content(&error) && left.names != remarks.names => {
                Box::pin(self.one_by_one(&error, left, announced)).await
            }
            Err((error, _)) => Err(error),
        }
    }

    async fn set_aside(&self, name: &[u8], reason: &str) -> Result<(), AnnounceError> {
        tracing::error!(repository = %self.repository.name, name = %text(name), reason, "A ref cannot be announced and is set aside; the others go on");
        let session = self.announcer.database.session().await?;
        let kind =
            if self.repository.object_format == "sha256" { gix::hash::Kind::Sha256 } else { gix::hash::Kind::Sha1 };
        Ok(store::set_aside(&session, self.repository.repository_id, name, kind.null(), reason).await?)
    }

    /// Rounds until nothing is left to tell.
    async fn scope(&self, scope: Scope<'_>, announced: &mut Announced) -> Result<Remarks, (AnnounceError, Remarks)> {
        let (mut races, mut unsettled_rounds) = (0, 0);
        let mut remarks = Remarks::default();
        for _ in 0..ROUNDS_MAX {
            remarks = Remarks::default();
            match self.round(scope, races >= RACES_MAX, &mut remarks).await {
                Ok(Round::Committed { events, sequence }) => {
                    announced.events += events;
                    announced.last_sequence = Some(sequence);
                    (self.announcer.wake)();
                    races = 0;
                }
                Ok(Round::Raced) => {
                    races += 1;
                    continue;
                }
                Ok(Round::Nothing) => {}
                Err(AnnounceError::Database(error)) if store::is_contention(&error) && races < RACES_MAX => {
                    races += 1;
                    continue;
                }
                Err(error) => return Err((error, remarks)),
            }
            if remarks.unsettled > 0 && unsettled_rounds < UNSETTLED_ROUNDS_MAX {
                unsettled_rounds += 1;
            } else if !remarks.more {
                break;
            }
        }
        Ok(remarks)
    }

    /// Reads, looks, and accepts in one transaction. The lock is taken at the end, or first where others always came first.
    async fn round(&self, scope: Scope<'_>, lock_first: bool, remarks: &mut Remarks) -> Result<Round, AnnounceError> {
        let id = self.repository.repository_id;
        let mut session = self.announcer.database.session().await?;
        if lock_first {
            let transaction = session.transaction().await?;
            store::bound_lock_waits(&transaction).await?;
            store::lock(&transaction, id).await?;
            let rows = store::read_refs(&transaction, id).await?;
            let prepared = self.look(scope, rows, remarks).await?;
            return self.accept(transaction, &prepared).await;
        }
        let rows = store::read_refs(&session, id).await?;
        // The slow part keeps no session from others.
        drop(session);
        point("announce.cursors_read");
        let prepared = self.look(scope, rows, remarks).await?;
        if prepared.steps.is_empty() {
            return Ok(Round::Nothing);
        }
        point("announce.disk_read");
        let mut session = self.announcer.database.session().await?;
        let transaction = session.transaction().await?;
        store::bound_lock_waits(&transaction).await?;
        self.accept(transaction, &prepared).await
    }

    async fn look(
        &self,
        scope: Scope<'_>,
        rows: BTreeMap<Vec<u8>, RefRow>,
        remarks: &mut Remarks,
    ) -> Result<Prepared, AnnounceError> {
        let aside: Vec<Vec<u8>> =
            rows.iter().filter(|(_, row)| row.set_aside.is_some()).map(|(name, _)| name.clone()).collect();
        remarks.aside.clone_from(&aside);
        let cursors: BTreeMap<Vec<u8>, Cursor> = rows.into_iter().map(|(name, row)| (name, row.cursor)).collect();
        let seqs: BTreeMap<Vec<u8>, i64> = cursors.iter().map(|(name, cursor)| (name.clone(), cursor.seq)).collect();
        let only = match scope {
            Scope::Healthy => None,
            Scope::Only(name) => Some(name.to_vec()),
        };
        let (git_dir, repository_id) = (self.git_dir.clone(), self.repository.repository_id);
        let object_format = self.repository.object_format.clone();
        let deletions: Vec<Vec<u8>> = self.hints.iter().flat_map(|hints| hints.deletions.iter().cloned()).collect();
        let (confirmed, limits, cache) = (self.confirmed, self.announcer.limits, Arc::clone(&self.cache));
        let read = move || {
            let question = Question {
                git_dir: &git_dir,
                repository_id,
                object_format: &object_format,
                cursors: &cursors,
                aside: &aside,
                only: only.as_deref(),
                deletions: &deletions,
                confirmed: confirmed == Confirmed::Yes,
            };
            prepare(&question, &limits, &cache)
        };
        let prepared = match self.repository.origin {
            Origin::Hosted => blocking(read).await??,
            Origin::Imported => {
                let git_dir = self.git_dir.clone();
                blocking(move || Owner::read(&git_dir, read)).await?.map_err(not_as_owner)??
            }
        };
        remarks.more = prepared.more;
        remarks.unsettled = prepared.found.unsettled;
        remarks.unknown.clone_from(&prepared.found.unknown);
        remarks.names = prepared.steps.iter().map(|prepared| prepared.step.name.clone()).collect();
        remarks.names.sort_unstable();
        remarks.names.dedup();
        let known = |name: &Vec<u8>| seqs.get(name).copied();
        let moved: Vec<(&[u8], i64, Place)> = prepared
            .found
            .moved
            .iter()
            .filter_map(|(name, place)| Some((name.as_slice(), known(name)?, *place)))
            .collect();
        if !moved.is_empty() {
            let session = self.announcer.database.session().await?;
            store::move_places(&session, repository_id, &moved).await?;
        }
        Ok(prepared)
    }

    async fn accept(&self, transaction: Transaction<'_>, prepared: &Prepared) -> Result<Round, AnnounceError> {
        if prepared.steps.is_empty() {
            return Ok(Round::Nothing);
        }
        let id = self.repository.repository_id;
        let pushers: Vec<Option<Person>> = prepared.steps.iter().map(|step| self.pusher(step)).collect();
        let steps: Vec<Step<'_>> = prepared
            .steps
            .iter()
            .zip(&pushers)
            .map(|(step, pusher)| self.step(step, pusher.as_ref(), prepared.default_branch.as_deref()))
            .collect();
        let accepted =
            store::accept_push(&transaction, id, &steps, prepared.high_water, &self.announcer.limits).await?;
        match accepted {
            Accepted::Raced => Ok(Round::Raced),
            Accepted::Refused(state) => Err(AnnounceError::NotFollowed(state)),
            Accepted::Written { high_water, event_ids } => {
                point("accept_push.written");
                transaction.commit().await?;
                point("accept_push.committed");
                let git_dir = self.git_dir.clone();
                let written = match self.repository.origin {
                    Origin::Hosted => blocking(move || folder::write_high_water(&git_dir, high_water)).await?,
                    Origin::Imported => {
                        // Let go meanwhile, it is not to be left with a mark.
                        let write = move || match folder::open(&git_dir, id) {
                            Ok(_) => Owner::of(&git_dir)?.act(|| folder::write_high_water(&git_dir, high_water)),
                            Err(_) => Ok(()),
                        };
                        blocking(write).await?
                    }
                };
                if let Err(error) = written {
                    // The events are committed; without the mark only a restored database would go unnoticed.
                    tracing::error!(repository = %self.repository.name, %error, "The high-water mark cannot be written beside the refs");
                }
                point("announce.marked");
                let sequence = high_water.sequence;
                // The event id is what a reader follows from here to the delivery and the receipt.
                let ids =
                    event_ids.iter().take(LOGGED_EVENTS_MAX).map(ToString::to_string).collect::<Vec<_>>().join(" ");
                tracing::info!(
                    repository = %self.repository.name, events = event_ids.len(), sequence, event_id = %ids, "push recorded"
                );
                Ok(Round::Committed { events: event_ids.len(), sequence })
            }
        }
    }

    fn step<'s>(
        &'s self,
        prepared: &'s PreparedStep,
        pusher: Option<&'s Person>,
        branch: Option<&'s [u8]>,
    ) -> Step<'s> {
        let transition = &prepared.step.transition;
        let reconstructed = match transition.evidence {
            Evidence::Exact => false,
            Evidence::Reconstructed => true,
            // Git keeps no log of a ref that is gone: this is how an ordinary deletion looks.
            Evidence::Unexplained => !transition.after.is_null(),
        };
        let push = Push {
            repository_id: self.repository.repository_id,
            default_branch: branch,
            name: &prepared.step.name,
            before: transition.before,
            after: transition.after,
            reconstructed,
            facts: &prepared.facts,
            pusher,
            push_options: self.hint(&prepared.step.name).map_or(&[], |hint| &hint.push_options),
        };
        Step { push, seq: prepared.seq, place: transition.place }
    }

    /// Who pushed: by the caller, else by the line of the log.
    fn pusher(&self, prepared: &PreparedStep) -> Option<Person> {
        if let Some(name) = self.hint(&prepared.step.name).and_then(|hint| hint.pusher.clone()) {
            return Some(Person { name, email: None });
        }
        let identity = prepared.step.transition.identity.as_ref()?;
        Some(Person::decode(Encoding::Utf8, &identity.name, &identity.email))
    }

    /// The hint that is about this ref: one that names it, else the only one that names none.
    fn hint(&self, name: &[u8]) -> Option<&Hints> {
        let names_it = |hint: &&Hints| hint.refs.iter().any(|named| named == name);
        let mut general = self
            .hints
            .iter()
            .filter(|hint| hint.refs.is_empty() && (hint.pusher.is_some() || !hint.push_options.is_empty()));
        self.hints.iter().find(names_it).or_else(|| general.next().filter(|_| general.next().is_none()))
    }

    /// Records the state that the announce found the repository in.
    pub(super) async fn set_state(&self, state: RepositoryState, reason: Option<&str>) -> Result<(), AnnounceError> {
        if self.repository.state == state && self.repository.state_reason.as_deref() == reason {
            return Ok(());
        }
        let (database, repository) = (&self.announcer.database, &self.repository);
        let change = repositories::set_followed_state(database, repository.repository_id, state, reason).await?;
        match (change, state) {
            (StateChange::Unchanged, _) => {}
            (StateChange::Changed, RepositoryState::Active) => {
                tracing::info!(repository = %repository.name, "The repository is active again");
            }
            (StateChange::Changed, _) => {
                tracing::error!(
                    repository = %repository.name,
                    state = state.as_str(),
                    reason = reason.unwrap_or_default(),
                    "Nothing is announced of a repository until this is put right"
                );
            }
        }
        Ok(())
    }
}

/// Runs what blocks away from the tasks that do not.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, AnnounceError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| AnnounceError::Broken(error.to_string()))
}

/// The rights of the owner of an imported repository could not be taken on.
pub(super) fn not_as_owner(error: std::io::Error) -> AnnounceError {
    AnnounceError::Unavailable(format!("it cannot be read as its owner: {error}"))
}

/// The error with what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Whether what was in the transaction made it fail, and not the state of the server: full, stopping, damaged, read-only.
fn is_about_the_content(error: &AnnounceError) -> bool {
    let of_the_server = |code: &str| ["25", "53", "57", "58", "XX"].iter().any(|class| code.starts_with(class));
    match error {
        AnnounceError::Database(error) => {
            !error.is_away()
                && !store::is_contention(error)
                && error.sqlstate() != Some(FORMAT_NOT_RENDERED)
                && !error.sqlstate().is_some_and(of_the_server)
        }
        _ => false,
    }
}
