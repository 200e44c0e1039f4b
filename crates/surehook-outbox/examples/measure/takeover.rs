//! How soon a second worker sends what a first one had in hand when it was killed, or when it stood still with all its
//! connections open, as after a power cut or behind a broken network.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::{Database, Wake};
use surehook_testkit::postgres::{self, Client};
use surehook_testkit::receiver::{Answer, Receiver};

use super::{Result, WORKER, add_endpoint, enqueue, plain, start};

/// Long, so that neither the end of the attempt nor that of a lease is what brings the second try.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const WAIT_AT_MOST: Duration = Duration::from_secs(30);

pub(crate) async fn measure(plain_url: &str, surehook_url: &str) -> Result<()> {
    println!("\nA worker goes while its request is under way; until another one sends it again (three runs):\n");
    println!("| worker | SIGKILL | SIGSTOP: the connections stay open |");
    println!("|---|---|---|");
    plain::create(&postgres::connect(plain_url).await).await?;
    let (killed, stopped) = (three(plain_url, false, "-KILL").await?, three(plain_url, false, "-STOP").await?);
    println!("| POST inside the claiming transaction | {killed} | {stopped} |");
    migrate(&Database::connect(surehook_url, "migration", 1)?, "outbox", OUTBOX).await?;
    let (killed, stopped) = (three(surehook_url, true, "-KILL").await?, three(surehook_url, true, "-STOP").await?);
    println!("| surehook | {killed} | {stopped} |");
    Ok(())
}

async fn three(url: &str, surehook: bool, signal: &str) -> Result<String> {
    let mut times = Vec::new();
    for run in 0..3 {
        // At another moment between two looks of the second worker each time: the worst case is to be among them.
        let head_start = Duration::from_millis(300 + 1200 * run);
        match once(url, surehook, signal, &format!("run{signal}-{run}"), head_start).await? {
            Some(time) => times.push(format!("{:.1} s", time.as_secs_f64())),
            // Three times the same wait would teach nothing.
            None => return Ok(format!("not within {} s", WAIT_AT_MOST.as_secs())),
        }
    }
    Ok(times.join(", "))
}

/// The worker process; ended for good with the value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn once(url: &str, surehook: bool, signal: &str, name: &str, head_start: Duration) -> Result<Option<Duration>> {
    let receiver = Receiver::with_answers([Answer::Hang], Answer::status(200)).await;
    let client = postgres::connect(url).await;
    if surehook {
        add_endpoint(&client, name, &receiver, DEADLINE).await?;
        enqueue(&client, name, "key", "{}").await?;
    } else {
        plain::enqueue(&client, &receiver.url("/"), "{}").await?;
    }
    let word = if surehook { "surehook-worker" } else { "plain-worker" };
    let first = Process(Command::new(std::env::current_exe()?).args([word, url]).spawn()?);
    receiver.wait_for(1).await;
    let second = if surehook {
        let worker = start(&Database::connect(url, WORKER, 8)?, Wake::default());
        // It has seen the first one alive before that one goes.
        wait_for_two_workers(&client).await;
        Second::Surehook(Box::new(worker))
    } else {
        let url = url.to_owned();
        Second::Plain(tokio::spawn(async move { plain::work(&url, DEADLINE).await }))
    };
    tokio::time::sleep(head_start).await;
    let gone = Instant::now();
    Command::new("kill").args([signal, &first.0.id().to_string()]).status()?;
    let again =
        surehook_testkit::try_eventually(WAIT_AT_MOST, async || receiver.requests().get(1).map(|r| r.arrived)).await;
    // The next run begins with nothing to do and nobody at work.
    drop(first);
    match second {
        Second::Surehook(worker) => {
            drained(&client, "SELECT count(*) FROM outbox_lanes WHERE ready_at IS NOT NULL").await;
            worker.stop().await;
            client.execute("DELETE FROM outbox_workers", &[]).await?;
        }
        Second::Plain(task) => {
            drained(&client, "SELECT count(*) FROM queue WHERE status = 'pending'").await;
            task.abort();
        }
    }
    Ok(again.map(|at| at.saturating_duration_since(gone)))
}

enum Second {
    Plain(tokio::task::JoinHandle<Result<()>>),
    Surehook(Box<surehook_outbox::Worker>),
}

async fn wait_for_two_workers(client: &Client) {
    surehook_testkit::eventually(WAIT_AT_MOST, async || {
        let row = client.query_one("SELECT count(*) FROM outbox_workers", &[]).await.ok()?;
        (row.get::<_, i64>(0) == 2).then_some(())
    })
    .await;
}

async fn drained(client: &Client, count: &str) {
    surehook_testkit::eventually(WAIT_AT_MOST, async || {
        let row = client.query_one(count, &[]).await.ok()?;
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
}
