//! LISTEN and NOTIFY: the channel on which processes tell each other that there may be work. Nothing is said in it, and nothing
//! relies on it. Listening takes a session that lasts, so it has a connection of its own.

use std::sync::Arc;

use deadpool_postgres::{PoolError, TimeoutType};
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client};
use tokio_util::sync::CancellationToken;

use super::{Database, DatabaseError, Session};

const TELL: &str = "NOTIFY surehook_work";
/// What this connection tells is worth no wait for the disk: after a crash nobody would need it.
const LISTEN: &str = "SET synchronous_commit = off; LISTEN surehook_work";

/// Says that there may be work, in a transaction of its own. Ok: whoever listens at this moment hears it.
pub async fn tell(session: &Session) -> Result<(), DatabaseError> {
    session.batch_execute(TELL).await
}

/// A connection that listens: the half that speaks. When it is dropped the connection signs off.
#[derive(Debug)]
pub struct Speaking(Client);

/// The half that hears.
#[derive(Debug)]
pub struct Hearing {
    news: Arc<Notify>,
    ended: CancellationToken,
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Another process said that there may be work, once or more often.
    News,
    /// The connection has ended.
    End,
}

/// Begins to listen. Ok: what others say from now on is heard, until [`Heard::End`].
pub async fn listen(database: &Database) -> Result<(Speaking, Hearing), DatabaseError> {
    let opened = tokio::time::timeout(database.open_within(), open(database)).await;
    opened.unwrap_or(Err(DatabaseError::Session(PoolError::Timeout(TimeoutType::Create))))
}

async fn open(database: &Database) -> Result<(Speaking, Hearing), DatabaseError> {
    let news = Arc::new(Notify::new());
    let ended = CancellationToken::new();
    let (heard, at_the_end) = (Arc::clone(&news), ended.clone().drop_guard());
    // The first message comes after LISTEN, and that after the number of the process is known.
    let own = Arc::new(std::sync::OnceLock::new());
    let known = Arc::clone(&own);
    let client = database.connect_alone("news", move |message| {
        let _until_the_end = &at_the_end;
        if let AsyncMessage::Notification(note) = message
            && known.get() != Some(&note.process_id())
        {
            heard.notify_one();
        }
    });
    let client = client.await?;
    let process_id: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    let _ = own.set(process_id);
    client.batch_execute(LISTEN).await?;
    Ok((Speaking(client), Hearing { news, ended }))
}

impl Speaking {
    /// As [`tell`]; this connection's own words are not heard on it.
    pub async fn tell(&self) -> Result<(), DatabaseError> {
        Ok(self.0.batch_execute(TELL).await?)
    }
}

impl Hearing {
    /// Waits for the next thing. May be dropped at any moment.
    pub async fn next(&self) -> Heard {
        tokio::select! {
            () = self.news.notified() => Heard::News,
            () = self.ended.cancelled() => Heard::End,
        }
    }
}
