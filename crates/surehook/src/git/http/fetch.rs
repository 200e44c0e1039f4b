//! Answers that read: the list of refs for either half of the protocol, clones and fetches.
//!
//! Nothing is lost when such a process is killed, so it is as soon as nobody reads its answer.

use axum::extract::Request;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{BodyFault, Feed, Opening, Passage, RequestBody};
use super::client::{self, Client, Presence};
use super::reply::{self, Refused};
use super::request::{Caller, Version};
use super::{GitService, Service, Turn};
use crate::git::backend::Granted;
use crate::git::pktline::{self, Decoder, FLUSH};
use crate::git::process::GitProcess;

const PIECE_BYTES: usize = 64 * 1024;
/// A failed answer that is no longer than this is looked through: it may be git's own, complete, word of refusal.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// `info/refs`: what there is, and what the server can do.
pub(super) async fn advertise(
    service: &GitService,
    half: Service,
    granted: Granted,
    caller: &Caller,
) -> Result<Response, Refused> {
    let slot = service.slot(half).await?;
    let process = service.start(half, Turn::Advertise, &granted, caller).await?;
    let prefix = if half == Service::UploadPack && caller.version() == Version::Two {
        Bytes::new()
    } else {
        [&pktline::packet(format!("# service={}\n", half.as_str()).as_bytes())[..], FLUSH].concat().into()
    };
    answer(service, Reading { granted, process, slot, prefix }, None, &reply::advertisement_type(half)).await
}

/// `git-upload-pack`: one step of a clone or fetch.
pub(super) async fn upload_pack(
    service: &GitService,
    granted: Granted,
    caller: &Caller,
    request: Request,
) -> Result<Response, Refused> {
    let settings = &service.inner.settings;
    let (parts, body) = request.into_parts();
    let mut body = RequestBody::new(&parts.headers, body, settings.fetch_request_bytes_max, settings.body_idle_max)?;
    let first = match body.opening(0).await? {
        Opening::More(first) => first,
        Opening::All(_) => return Err(BodyFault::Refused("it is empty").into()),
    };
    let slot = service.slot(Service::UploadPack).await?;
    let process = service.start(Service::UploadPack, Turn::Answer, &granted, caller).await?;
    let reading = Reading { granted, process, slot, prefix: Bytes::new() };
    answer(service, reading, Some((body, first)), &reply::result_type(Service::UploadPack)).await
}

/// A git process that only reads, and what goes before its answer.
struct Reading {
    granted: Granted,
    process: GitProcess,
    slot: OwnedSemaphorePermit,
    prefix: Bytes,
}

async fn answer(
    service: &GitService,
    reading: Reading,
    body: Option<(RequestBody, Bytes)>,
    content_type: &str,
) -> Result<Response, Refused> {
    let (client, answer) = client::pair(service.inner.settings.client_stall_max);
    let task = run(service.clone(), reading, body, client);
    service.inner.tasks.spawn(task);
    answer.response(content_type).await
}

async fn run(service: GitService, reading: Reading, body: Option<(RequestBody, Bytes)>, mut client: Client) {
    let Reading { granted, mut process, slot, prefix } = reading;
    let mut stderr = process.stderr.take();
    let group = process.group();
    let feed = async {
        let (Some((body, first)), Some(stdin)) = (body, process.stdin.take()) else { return Ok(()) };
        let drain_max = service.inner.settings.drain_max;
        let feed = Feed {
            body,
            first,
            stdin,
            inspect: |_: &[u8]| Ok(Passage::Free),
            tell: None,
            ending: &service.inner.ending,
            drain_max,
        };
        // A fetch that was cut or damaged must not get half an answer.
        feed.run(|_| group.signal(Signal::KILL)).await.map(drop)
    };
    let stdout = process.stdout.take();
    let output = async {
        let sent = pass(stdout, prefix, &mut client).await;
        if sent.presence == Presence::Gone {
            group.signal(Signal::KILL);
        }
        sent
    };
    let drain = async {
        match &mut stderr {
            Some(stderr) => stderr.drain().await,
            None => std::future::pending().await,
        }
    };
    let (fed, sent) = tokio::select! {
        both = async { tokio::join!(feed, output) } => both,
        never = drain => match never {},
        () = service.inner.ending.cancelled() => {
            group.signal(Signal::KILL);
            return client.refuse(BodyFault::Stopping.into());
        }
    };
    let status = process.wait().await;
    drop(slot);
    if let Err(fault) = fed {
        return client.refuse(fault.into());
    }
    if status.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return client.end();
    }
    let stderr = match &mut stderr {
        Some(stderr) => {
            stderr.settle().await;
            stderr.text()
        }
        None => String::new(),
    };
    if sent.presence == Presence::Here {
        tracing::warn!(repository = %granted.repository.name, ?status, stderr, "git could not answer a fetch");
    }
    if client.has_begun() && sent.is_whole_refusal() {
        client.end();
    } else {
        client.refuse(Refused::internal("git could not read this repository"));
    }
}

/// What went to the client.
struct Sent {
    presence: Presence,
    /// All of it, or nothing if it was more than [`REFUSAL_BYTES_MAX`].
    copy: Option<BytesMut>,
}

impl Sent {
    fn is_whole_refusal(&self) -> bool {
        let Some(copy) = &self.copy else { return false };
        let mut decoder = Decoder::default();
        decoder.push(copy);
        while let Ok(Some(_)) = decoder.next() {}
        decoder.is_at_boundary()
    }
}

async fn pass(stdout: Option<tokio::process::ChildStdout>, prefix: Bytes, client: &mut Client) -> Sent {
    let mut sent = Sent { presence: Presence::Here, copy: Some(BytesMut::new()) };
    let Some(mut stdout) = stdout else { return sent };
    let mut prefix = Some(prefix);
    loop {
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        let read = tokio::select! {
            read = stdout.read_buf(&mut piece) => read,
            () = client.gone() => {
                sent.presence = Presence::Gone;
                return sent;
            }
        };
        if !matches!(read, Ok(1..)) {
            return sent;
        }
        if let Some(copy) = &mut sent.copy {
            copy.extend_from_slice(&piece);
            if copy.len() > REFUSAL_BYTES_MAX {
                sent.copy = None;
            }
        }
        if let Some(prefix) = prefix.take() {
            client.send(prefix).await;
        }
        sent.presence = client.send(piece.freeze()).await;
        if sent.presence == Presence::Gone {
            return sent;
        }
    }
}
