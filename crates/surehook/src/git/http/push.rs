//! Pushes: the body goes to git, git's verdict waits for the announcement, and both outlive the client.
//!
//! Once git was given a command, `pushed` is called whatever happens: neither git's exit code nor the client's presence
//! says whether refs moved. git is not killed because its client left; it ends by itself when its input does.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use rustix::process::Signal;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use surehook_outbox::crash::point;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::body::{BodyFault, Feed, Opening, Passage, RequestBody};
use super::client::{self, Client};
use super::reply::{self, Refused};
use super::request::Caller;
use super::{GitService, Service, Turn};
use crate::git::backend::{Granted, PushHints, PushOutcome};
use crate::git::pktline::{self, EMPTY_PROGRESS, FLUSH};
use crate::git::process::{GitProcess, ProcessGroup};
use crate::git::push_answer::{AnswerFilter, Ending, Exit};
use crate::git::push_request::{Framing, HeadError, HeadLimits, HeadParser, Progress, PushHead};

const PIECE_BYTES: usize = 32 * 1024;
/// The verdict of a push with all refs that the default limit allows, with long names.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What may stand before the packfile: a command for each ref, with the longest usual names.
const HEAD_BYTES_PER_REF: u64 = 512;
/// git asks with this, before it sends a large body, whether it may.
const PROBE: &[u8] = FLUSH;

const LATE: &str = "surehook: the push is stored; its webhooks will follow";
const BROKEN: &str = "surehook: git ended before it could report; fetch to see what was stored";

/// `git-receive-pack`.
pub(super) async fn receive_pack(
    service: &GitService,
    granted: Result<Granted, Refused>,
    caller: &Caller,
    request: Request,
) -> Result<Response, Refused> {
    let granted = match granted {
        Err(refused) if refused.for_now().is_none() => return Err(refused),
        granted => granted,
    };
    let inner = &service.inner;
    let settings = &inner.settings;
    let (parts, body) = request.into_parts();
    let head_bytes_max = settings.refs_per_push_max as u64 * HEAD_BYTES_PER_REF + 1024 * 1024;
    let bytes_max = settings.pack_bytes_max.saturating_add(head_bytes_max);
    let mut body = RequestBody::new(&parts.headers, body, bytes_max, settings.body_idle_max)?;
    let content_type = reply::result_type(Service::ReceivePack);
    let first = match body.opening(PROBE.len()).await? {
        Opening::All(bytes) if bytes == PROBE => return Ok(reply::from_git(&content_type, Body::empty())),
        Opening::All(bytes) if bytes.is_empty() => return Err(BodyFault::Refused("it is empty").into()),
        Opening::All(bytes) | Opening::More(bytes) => bytes,
    };
    let limits = HeadLimits { refs_max: settings.refs_per_push_max, option_bytes_max: settings.push_option_bytes_max };
    let ready = async {
        let granted = granted?;
        let slot = service.slot(Service::ReceivePack).await?;
        inner.backend.prepare_push(&granted).await?;
        let process = service.start(Service::ReceivePack, Turn::Answer, &granted, caller).await?;
        Ok((granted, slot, process))
    };
    let (granted, slot, process) = match ready.await {
        Ok(ready) => ready,
        Err(refused) => {
            let framing = timeout(settings.drain_max, framing_of(first, body, HeadParser::new(limits))).await;
            return refuse(refused, framing.unwrap_or_default());
        }
    };
    let (client, answer) = client::pair(settings.client_stall_max);
    let push = Push {
        service: service.clone(),
        granted,
        remote: caller.remote.clone(),
        head: Mutex::new(HeadParser::new(limits)),
        fault: Mutex::new(None),
    };
    point("push.git_started");
    inner.tasks.spawn(push.run(process, slot, body, first, client));
    answer.response(&content_type).await
}

/// Reads the whole body, so that the client comes to read the answer, and finds out how it may be framed.
async fn framing_of(first: Bytes, mut body: RequestBody, mut head: HeadParser) -> Framing {
    let mut piece = Some(Ok(first));
    let mut is_head = true;
    while let Some(Ok(bytes)) = piece {
        is_head = is_head && matches!(head.push(&bytes), Ok(Progress::Reading));
        piece = body.next().await;
    }
    head.head().framing
}

/// Once git has begun to push it shows the number of a status and no word of the answer. What is refused for the moment is
/// therefore said beside the answer that it expects, where that has room for it.
fn refuse(refused: Refused, framing: Framing) -> Result<Response, Refused> {
    match refused.for_now() {
        Some(words) if framing == Framing::SideBand => {
            Ok(reply::from_git(&reply::result_type(Service::ReceivePack), Body::from(last_words(words))))
        }
        _ => Err(refused),
    }
}

/// A whole answer that makes git print the words and fail.
fn last_words(words: &str) -> Bytes {
    [&pktline::fatal(words)[..], FLUSH].concat().into()
}

/// One push, from its first command to its announcement.
struct Push {
    service: GitService,
    granted: Granted,
    remote: Option<String>,
    head: Mutex<HeadParser>,
    /// Set before git can notice it, so that what git says about it is not taken for its answer.
    fault: Mutex<Option<BodyFault>>,
}

impl Push {
    async fn run(
        self,
        mut process: GitProcess,
        slot: OwnedSemaphorePermit,
        body: RequestBody,
        first: Bytes,
        mut client: Client,
    ) {
        let settings = &self.service.inner.settings;
        let ending = &self.service.inner.ending;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let mut stderr = process.stderr.take();
        let group = process.group();
        let feed = async {
            let Some(stdin) = stdin else { return };
            let inspect = |piece: &[u8]| self.inspect(piece);
            let tell = Some(self.tell_earlier().boxed());
            let feed = Feed { body, first, stdin, inspect, tell, ending, drain_max: settings.drain_max };
            let _ = feed.run(|fault| *lock(&self.fault) = Some(fault)).await;
        };
        let work = async { tokio::join!(feed, self.see_through(&mut process, stdout, slot, &mut client)).1 };
        let drain = async {
            match &mut stderr {
                Some(stderr) => stderr.drain().await,
                None => std::future::pending().await,
            }
        };
        let ending = tokio::select! {
            ending = work => ending,
            never = drain => match never {},
            never = self.end_on_stop(group) => match never {},
        };
        if ending == Ending::Broken {
            let stderr = stderr.map(|stderr| stderr.text()).unwrap_or_default();
            let (repository, fault) = (&self.granted.repository.name, *lock(&self.fault));
            tracing::warn!(%repository, ?fault, stderr, "a push ended without a report from git");
        }
        self.conclude(ending, client).await;
    }

    fn inspect(&self, piece: &[u8]) -> Result<Passage, BodyFault> {
        let mut head = lock(&self.head);
        match head.push(piece) {
            // git does nothing before it has the last command.
            Ok(Progress::Complete) if !head.head().deletions.is_empty() => Ok(Passage::WhenTold),
            Ok(Progress::Reading | Progress::Complete) => Ok(Passage::Free),
            Err(HeadError::BlindDeletion) => Err(BodyFault::BlindDeletion),
            Err(HeadError::NotAPush) => Err(BodyFault::Refused("it does not begin with commands")),
            Err(HeadError::TooManyRefs) => Err(BodyFault::OverLimit("too many refs in one push")),
            Err(HeadError::OptionsTooLong) => Err(BodyFault::OverLimit("the push options are too long")),
        }
    }

    async fn tell_earlier(&self) -> Result<(), BodyFault> {
        let told = self.service.inner.backend.prepare_deletion(&self.granted).await;
        told.map_err(|refusal| {
            tracing::warn!(repository = %self.granted.repository.name, ?refusal, "a push that deletes refs was refused");
            BodyFault::Untold
        })
    }

    fn head(&self) -> PushHead {
        lock(&self.head).head().clone()
    }

    fn framing(&self) -> Framing {
        lock(&self.head).head().framing
    }

    /// Passes on what may pass, waits for git's end, and has announced what moved.
    async fn see_through(
        &self,
        process: &mut GitProcess,
        stdout: Option<ChildStdout>,
        slot: OwnedSemaphorePermit,
        client: &mut Client,
    ) -> Ending {
        let filter = self.pass(stdout, client).await;
        let status = process.wait().await;
        drop(slot);
        let exit = if status.is_ok_and(|status| status.success()) { Exit::Success } else { Exit::Failure };
        let filter = filter.unwrap_or_else(|| AnswerFilter::new(self.framing(), HELD_BYTES_MAX));
        let ending = filter.finish(exit);
        point("push.git_ended");
        self.announce(client).await;
        point("push.announced");
        ending
    }

    async fn pass(&self, stdout: Option<ChildStdout>, client: &mut Client) -> Option<AnswerFilter> {
        let mut stdout = stdout?;
        let mut filter = None;
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        while let Ok(1..) = stdout.read_buf(&mut piece).await {
            // git answers only after it has read the commands, and so has the parser.
            let filter = filter.get_or_insert_with(|| AnswerFilter::new(self.framing(), HELD_BYTES_MAX));
            point("push.git_answers");
            let passed = filter.push(&piece);
            if lock(&self.fault).is_none() {
                client.send(passed).await;
            }
            piece.clear();
        }
        filter
    }

    /// Tells the backend, in a task of its own: it goes on when the client is let go, and its panic is not ours.
    async fn announce(&self, client: &mut Client) {
        let inner = &self.service.inner;
        let head = self.head();
        let (repository, commands) = (self.granted.repository.name.clone(), head.commands);
        let hints = PushHints {
            pusher: self.granted.pusher.clone(),
            push_options: head.options,
            deletions: head.deletions,
            remote: self.remote.clone(),
        };
        let (granted, backend) = (self.granted.clone(), std::sync::Arc::clone(&inner.backend));
        let mut pushed = inner.tasks.spawn(async move { backend.pushed(&granted, hints).await });
        let give_up = Instant::now() + inner.settings.hold_max;
        let outcome = loop {
            tokio::select! {
                outcome = &mut pushed => break Some(outcome),
                () = sleep_until(give_up) => break None,
                () = sleep(inner.settings.keepalive_every) => self.say(client, Bytes::from_static(EMPTY_PROGRESS)).await,
            }
        };
        let line = match outcome {
            Some(Ok(PushOutcome::Announced(events))) => {
                tracing::debug!(%repository, commands, events, "a push was announced");
                return;
            }
            Some(Ok(PushOutcome::Later(why))) => format!("{LATE}: {why}"),
            Some(Err(error)) => {
                tracing::error!(%repository, %error, "the announcement of a push died");
                LATE.to_owned()
            }
            None => LATE.to_owned(),
        };
        tracing::warn!(%repository, commands, line, "a push was accepted before it was announced");
        self.say(client, pktline::progress(&line)).await;
    }

    /// Says something beside the answer, where the framing has room for it and the answer is still wanted.
    async fn say(&self, client: &mut Client, packet: Bytes) {
        if self.framing() == Framing::SideBand && lock(&self.fault).is_none() {
            client.send(packet).await;
        }
    }

    async fn conclude(&self, ending: Ending, mut client: Client) {
        let fault = *lock(&self.fault);
        match (ending, fault) {
            (_, Some(fault)) => {
                let refused = Refused::from(fault);
                match refused.for_now() {
                    Some(words) if !client.has_begun() && self.framing() == Framing::SideBand => {
                        client.send(last_words(words)).await;
                        client.end();
                    }
                    _ => client.refuse(refused),
                }
            }
            (Ending::Whole(held), None) => {
                client.send(held).await;
                client.end();
            }
            (Ending::Broken, None) if self.framing() == Framing::SideBand => {
                client.send(last_words(BROKEN)).await;
                client.end();
            }
            (Ending::Broken, None) => client.refuse(Refused::internal(BROKEN)),
        }
    }

    /// Near the end of the grace time git is asked to end, which takes its locks away (not its quarantine, since git 2.37);
    /// then it must.
    async fn end_on_stop(&self, group: ProcessGroup) -> Infallible {
        self.service.inner.ending.cancelled().await;
        group.signal(Signal::TERM);
        self.service.inner.killing.cancelled().await;
        group.signal(Signal::KILL);
        std::future::pending().await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
