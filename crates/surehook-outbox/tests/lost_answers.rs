//! The connection breaks after PostgreSQL has committed and before its answer arrives. A proxy between worker and database
//! does that to one kind of statement, of its choice.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Outbox, settings};
use surehook_outbox::{Database, Worker};
use surehook_testkit::receiver::{Answer, Receiver};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Passes everything on, but breaks the first `breaks` connections on which a statement with these words was executed:
/// PostgreSQL has it and has answered, and nobody hears of it.
struct Proxy {
    folder: tempfile::TempDir,
    broken: Arc<AtomicUsize>,
}

impl Proxy {
    fn start(server: PathBuf, words: &'static str, breaks: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let broken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&broken);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(pass(client, server, words, breaks, Arc::clone(&count)));
            }
        });
        Self { folder, broken }
    }

    fn url(&self, database: &str) -> String {
        format!("host={} user=postgres dbname={database}", self.folder.path().display())
    }
}

async fn pass(mut client: UnixStream, mut server: UnixStream, words: &str, breaks: usize, broken: Arc<AtomicUsize>) {
    let (mut asked, mut answered) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    // A statement is prepared first and executed by the next message; those without parameters are one message.
    let (mut prepared, mut executed) = (false, false);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                let asked = &asked[..length];
                let named = asked.windows(words.len()).any(|window| window == words.as_bytes());
                executed = (prepared && asked[0] == b'B') || (named && asked[0] == b'Q');
                prepared |= named;
                server.write_all(asked).await.unwrap();
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if executed && broken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n < breaks).then_some(n + 1)).is_ok() {
                    return;
                }
                if client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn socket(url: &str) -> PathBuf {
    let host = url.split(' ').find_map(|part| part.strip_prefix("host=")).unwrap();
    Path::new(host).join(".s.PGSQL.5432")
}

fn name(url: &str) -> &str {
    url.split(' ').find_map(|part| part.strip_prefix("dbname=")).unwrap()
}

const CHARGES: &str = "
    CREATE TABLE charges (lane_id bigint);
    CREATE FUNCTION charge() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO charges VALUES (NEW.lane_id); RETURN NEW; END $$;
    CREATE TRIGGER charge AFTER UPDATE ON outbox_lanes FOR EACH ROW WHEN (NEW.crashes > OLD.crashes) EXECUTE FUNCTION charge()";

/// Delivers 20 lanes of two with the answers to such statements lost; the receiver answers with `status`, and a refusal
/// is the end.
async fn deliver_without_answers_to(words: &'static str, breaks: usize, status: u16) {
    let outbox = Outbox::new().await;
    outbox.sql.batch_execute(CHARGES).await.unwrap();
    // Slower than the recorder gathers, so that it speaks of lanes which are still in hand, too.
    let receiver = Receiver::start(move |_| Answer::status(status).after(Duration::from_millis(15))).await;
    // A lease would hold the lanes for more than two minutes.
    outbox.endpoint("ci", &receiver.url("/"), "timeout_ms = 60000, max_attempts = 1").await;
    for n in 0..40 {
        outbox.tell_quietly(&format!("key-{}", n % 20), format!("{n}").as_bytes()).await;
    }
    let url = outbox.test_database.url();
    let proxy = Proxy::start(socket(url), words, breaks);
    let database = Database::connect(&proxy.url(name(url)), "proxied", 8).unwrap();
    let worker = Worker::start(database, settings(), outbox.wake.clone());
    outbox.drained().await;
    worker.stop().await;
    assert_eq!(proxy.broken.load(Ordering::SeqCst), breaks);
    let (state, dead) = if status == 200 { ("published", 0) } else { ("failed", 40) };
    assert_eq!(outbox.states().await, [(state.to_owned(), 40)]);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_dlq").await, dead);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_attempts").await, 40, "nothing is recorded twice");
    assert_eq!(outbox.count("SELECT count(*) FROM charges").await, 0, "nobody is charged");
    assert_eq!(receiver.requests().len(), 40, "nothing is sent twice");
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_given_back_at_once_and_charged_to_nobody() {
    deliver_without_answers_to("SET owner = $1, epoch = l.epoch + 1", 3, 200).await;
}

#[tokio::test]
async fn a_record_whose_answer_is_lost_is_said_again_and_written_once() {
    deliver_without_answers_to("WITH said AS", 3, 200).await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_said_again_and_written_once() {
    // What is plain is one statement; a dead letter is written in a transaction.
    deliver_without_answers_to("COMMIT", 3, 500).await;
}

#[tokio::test]
async fn a_stop_right_after_a_lost_claim_leaves_no_lane_behind() {
    let outbox = Outbox::new().await;
    outbox.endpoint("ci", "http://127.0.0.1:9/", "timeout_ms = 60000").await;
    for n in 0..20 {
        outbox.tell_quietly(&format!("key-{n}"), b"{}").await;
    }
    let url = outbox.test_database.url();
    let proxy = Proxy::start(socket(url), "SET owner = $1, epoch = l.epoch + 1", usize::MAX);
    let database = Database::connect(&proxy.url(name(url)), "proxied", 8).unwrap();
    let worker = Worker::start(database, settings(), outbox.wake.clone());
    outbox.until("SELECT count(*) >= 1 FROM outbox_lanes WHERE owner IS NOT NULL").await;
    worker.stop().await;
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL").await, 0);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_lanes WHERE ready_at <= now() AND crashes = 0").await, 20);
}
