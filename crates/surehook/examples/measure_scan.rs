//! Measures the scan of a repository with many refs in which nothing has changed, and a mirror push of many refs.
//!
//!     cargo run --release -p surehook --example measure_scan
//!
//! Starts its own PostgreSQL (server programs 15 or later) and git, and prints the tables of docs/measurements.md.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints, and ends where it cannot go on")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surehook::capture::announce::{Announcer, Hints};
use surehook::config::file::{Config, ScanConfig};
use surehook::git::backend::ObjectFormat;
use surehook::git::name::RepoName;
use surehook::hosting::Storage;
use surehook::payload::facts::Limits;
use surehook::serve::{ServeSettings, Server};
use surehook::store::tokens::{self, NewToken};
use surehook_outbox::Database;
use surehook_testkit::git::{Checkout, Sandbox};

const SCAN_REFS: usize = 10_000;
const MIRROR_REFS: usize = 3_000;
const ROUNDS: usize = 7;
/// Each push syncs thousands of files.
const PUSH_ROUNDS: usize = 3;

#[tokio::main]
async fn main() {
    let test = surehook_testkit::postgres::database("measure_scan", async |url| {
        let database = Database::connect(url, "prepare", 1).unwrap();
        surehook::store::prepare(&database).await.unwrap();
        database.close().await;
    })
    .await;
    let database = Database::connect(test.url(), "measure", 8).unwrap();
    let data = tempfile::tempdir().unwrap();
    let storage = Storage::open(data.path(), &database).await.unwrap();
    let git = Sandbox::new();
    let work = git.init("work").await;
    work.commit("file", "text").await;
    scans(&database, &storage, &git, &work).await;
    pushes(&database, &storage, data.path(), &work).await;
}

async fn create(storage: &Storage, name: &str) -> uuid::Uuid {
    storage.create(&RepoName::parse(name).unwrap(), ObjectFormat::Sha1).await.unwrap()
}

/// Many refs at one commit, made by one transaction of git.
async fn make_refs(repository: &Checkout<'_>, commit: &str, count: usize) {
    use tokio::io::AsyncWriteExt;
    let text: String = (0..count).map(|n| format!("create refs/heads/team{}/b{n} {commit}\n", n % 20)).collect();
    let mut child = repository.command(["update-ref", "--stdin"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    assert!(child.wait().await.unwrap().success());
}

/// What was changed just now is looked at again; here it shall count as old.
fn settle() -> impl Future<Output = ()> {
    tokio::time::sleep(Duration::from_millis(2500))
}

async fn scans(database: &Database, storage: &Storage, git: &Sandbox, work: &Checkout<'_>) {
    create(storage, "many").await;
    let bare = storage.root.join("many.git");
    work.ok(["push", "--quiet", &format!("file://{}", bare.display()), "HEAD:main"]).await;
    let commit = work.ok(["rev-parse", "HEAD"]).await;
    let repository = git.at(&bare);
    make_refs(&repository, &commit, SCAN_REFS).await;
    let announcer = Announcer::new(database.clone(), storage.root.clone(), Arc::new(|| ()), Limits::default());
    announcer.scan(storage.storage_id).await.unwrap();
    println!("| {SCAN_REFS} refs, nothing changed | full look, ms | spared look, ms |\n|---|---|---|");
    for form in ["loose", "packed, logs kept"] {
        if form != "loose" {
            repository.ok(["pack-refs", "--all"]).await;
        }
        settle().await;
        let mut full = Vec::new();
        for _ in 0..ROUNDS {
            let fresh = Announcer::new(database.clone(), storage.root.clone(), Arc::new(|| ()), Limits::default());
            full.push(timed(&fresh, storage).await);
        }
        announcer.scan(storage.storage_id).await.unwrap();
        let mut spared = Vec::new();
        for _ in 0..ROUNDS {
            spared.push(timed(&announcer, storage).await);
        }
        println!("| {form} | {} | {} |", shown(&mut full), shown(&mut spared));
    }
}

async fn timed(announcer: &Announcer, storage: &Storage) -> Duration {
    let begun = Instant::now();
    for (_, outcome) in announcer.scan(storage.storage_id).await.unwrap() {
        assert_eq!(outcome.unwrap().events, 0);
    }
    begun.elapsed()
}

fn shown(times: &mut [Duration]) -> String {
    times.sort();
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1000.0);
    format!("{} ({} to {})", ms(times[times.len() / 2]), ms(times[0]), ms(times[times.len() - 1]))
}

/// In turn: a mirror push to a plain git without surehook, the announcement of what it did, and the same push over HTTP.
async fn pushes(database: &Database, storage: &Storage, data: &Path, work: &Checkout<'_>) {
    let commit = work.ok(["rev-parse", "HEAD"]).await;
    make_refs(work, &commit, MIRROR_REFS - 1).await;
    let announcer = Announcer::new(database.clone(), storage.root.clone(), Arc::new(|| ()), Limits::default());
    let mut server = Server::start(ServeSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        database: database.clone(),
        data: data.to_owned(),
        watchdog: None,
        // The scan would come first.
        config: Config { scan: ScanConfig { every_s: 3600 }, ..Config::default() },
    })
    .await
    .unwrap();
    let note = Some("measure".to_owned());
    let new = NewToken { note, push: vec!["*".into()], ..NewToken::default() };
    let token = tokens::create(database, new).await.unwrap().1;
    let (mut plain, mut announce, mut http) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..PUSH_ROUNDS {
        // git with the settings of a hosted repository, and nobody who listens.
        let id = create(storage, &format!("plain{round}")).await;
        let bare = storage.root.join(format!("plain{round}.git"));
        plain.push(push(work, &format!("file://{}", bare.display())).await);
        let begun = Instant::now();
        let announced = announcer.announce(id, Hints::default()).await.unwrap();
        announce.push(begun.elapsed());
        assert_eq!(announced.events, MIRROR_REFS);
        let name = format!("http{round}");
        let id = create(storage, &name).await;
        let url = format!("http://x:{}@{}/{name}.git", token, server.address);
        http.push(push(work, &url).await);
        let again = announcer.announce(id, Hints::default()).await.unwrap();
        assert_eq!(again.events, 0, "the push had not told of everything when it ended");
    }
    server.stop().await;
    println!("\n| mirror push of {MIRROR_REFS} refs | ms |\n|---|---|");
    println!("| git receive-pack alone, over file:// | {} |", shown(&mut plain));
    println!("| announcing what that push did | {} |", shown(&mut announce));
    println!("| the same push over HTTP to surehook, announced when it ends | {} |", shown(&mut http));
}

async fn push(work: &Checkout<'_>, url: &str) -> Duration {
    let begun = Instant::now();
    work.ok(["push", "--quiet", "--mirror", url]).await;
    begun.elapsed()
}
