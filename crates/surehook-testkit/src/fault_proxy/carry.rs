//! One connection through the fault proxy: two streams of bytes, each with what has befallen it.

use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::wait::be_slow;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// From the client.
    Upstream,
    /// To the client.
    Downstream,
}

/// What befalls a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// No byte gets through; after this time (0: never) the connection is closed.
    Timeout { after_ms: u64 },
    /// Each piece is late.
    Latency { ms: u64 },
    /// The connection is reset, this long after the first byte.
    ResetPeer { after_ms: u64 },
    /// The connection is closed after so many bytes.
    LimitData { bytes: u64 },
}

/// How a stream ended.
enum End {
    /// Its source had no more.
    Source,
    /// Both sides are to be closed.
    Close,
    /// Both sides are to be reset.
    Reset,
}

/// Carries bytes both ways until both are done or an effect ends it.
pub(super) async fn carry(mut client: TcpStream, upstream: &str, effects: &[(Side, Effect)]) {
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    let on = |side| effects.iter().filter(|(found, _)| *found == side).map(|(_, effect)| *effect).collect::<Vec<_>>();
    let (up, down) = (on(Side::Upstream), on(Side::Downstream));
    let end = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let (mut up, mut down) =
            (std::pin::pin!(pump(from_client, to_server, &up)), std::pin::pin!(pump(from_server, to_client, &down)));
        // A stream that has ended leaves the other one be, unless it is to take it along.
        tokio::select! {
            end = &mut up => match end { End::Source => down.await, end => end },
            end = &mut down => match end { End::Source => up.await, end => end },
        }
    };
    if let End::Reset = end {
        // With nothing to linger for, closing is a reset.
        let _ = set_socket_linger(&client, Some(Duration::ZERO));
        let _ = set_socket_linger(&server, Some(Duration::ZERO));
    }
}

async fn pump(mut source: ReadHalf<'_>, mut target: WriteHalf<'_>, effects: &[Effect]) -> End {
    let mut buffer = vec![0; 16 * 1024];
    let mut carried = 0_u64;
    loop {
        let mut length = match silence(effects) {
            Some(Some(rest)) => match tokio::time::timeout(rest, source.read(&mut buffer)).await {
                Err(_) => return End::Close,
                Ok(read) => read.unwrap_or(0),
            },
            _ => source.read(&mut buffer).await.unwrap_or(0),
        };
        if length == 0 {
            // The other side may have gone already.
            let _ = target.shutdown().await;
            return End::Source;
        }
        if silence(effects).is_some() {
            continue;
        }
        for effect in effects {
            match *effect {
                Effect::Latency { ms } => be_slow(Duration::from_millis(ms)).await,
                Effect::ResetPeer { after_ms } => {
                    be_slow(Duration::from_millis(after_ms)).await;
                    return End::Reset;
                }
                Effect::LimitData { bytes } => {
                    let room = usize::try_from(bytes.saturating_sub(carried)).unwrap_or(usize::MAX);
                    length = length.min(room);
                }
                Effect::Timeout { .. } => {}
            }
        }
        if target.write_all(&buffer[..length]).await.is_err() {
            return End::Close;
        }
        carried += length as u64;
        if effects.iter().any(|effect| matches!(effect, Effect::LimitData { bytes } if carried >= *bytes)) {
            return End::Close;
        }
    }
}

/// Whether a stream is silenced, and after which time without a byte it is closed.
fn silence(effects: &[Effect]) -> Option<Option<Duration>> {
    effects.iter().find_map(|effect| match *effect {
        Effect::Timeout { after_ms: 0 } => Some(None),
        Effect::Timeout { after_ms } => Some(Some(Duration::from_millis(after_ms))),
        _ => None,
    })
}
