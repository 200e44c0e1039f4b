//! surehook's own PostgreSQL, with the real programs: started, shared, handed on, killed, found again.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL and start processes")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    io::{BufRead as _, BufReader},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use surehook::embedded::{self, EmbeddedError, Role};
use surehook_testkit::{
    eventually,
    postgres::{connect, try_connect},
};

const SOON: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;

/// A folder that the account which runs PostgreSQL for root may pass, and a data directory in it that is not there yet.
fn place(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let data = folder.path().join(name);
    (folder, data)
}

fn postmaster(data: &Path) -> Pid {
    let text = std::fs::read_to_string(data.join("postgres/postmaster.pid")).unwrap();
    Pid::from_raw(text.lines().next().unwrap().parse().unwrap()).unwrap()
}

async fn one(url: &str, question: &str) -> String {
    connect(url).await.query_one(question, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn two_share_one_server_and_the_last_one_out_ends_it() {
    let (_folder, data) = place(&format!("it's a \"data\" folder/{}", "long ".repeat(30).trim()));
    let (serve, receive) = tokio::join!(embedded::open(&data, Role::Surehook), embedded::open(&data, Role::Receive));
    let (serve, receive) = (serve.unwrap(), receive.unwrap());
    assert_eq!(one(serve.url(), "SELECT current_database()::text").await, "surehook");
    assert_eq!(one(serve.url(), "SHOW server_encoding").await, "UTF8");
    assert_eq!(one(serve.url(), "SHOW lc_collate").await, "C");
    assert_eq!(one(serve.url(), "SHOW listen_addresses").await, "");
    assert_eq!(one(serve.url(), "SHOW fsync").await, "on");
    let mode = if geteuid().is_root() { 0o710 } else { 0o700 };
    assert_eq!(std::fs::metadata(&data).unwrap().mode() & 0o777, mode);

    let session = connect(receive.url()).await;
    session.batch_execute("CREATE TABLE kept (n bigint); INSERT INTO kept VALUES (7)").await.unwrap();
    let third = embedded::open(&data, Role::Receive).await.unwrap();
    third.stop().await.unwrap();
    serve.stop().await.unwrap();
    serve.stop().await.unwrap();
    assert_eq!(session.query_one("SELECT n FROM kept", &[]).await.unwrap().get::<_, i64>(0), 7, "no session broke");
    // Whoever of the two supervised before, the one who is left does so now.
    kill_process(postmaster(&data), Signal::KILL).unwrap();
    eventually(SOON, async || try_connect(receive.url()).await.ok()).await;

    receive.stop().await.unwrap();
    assert!(try_connect(receive.url()).await.is_err());
    assert!(!data.join("postgres/postmaster.pid").exists());
    assert!(!data.join("postgres.socket").exists());

    let again = embedded::open(&data, Role::Receive).await.unwrap();
    assert_eq!(one(again.url(), "SELECT n::text FROM kept").await, "7");
    drop(again);
    eventually(SOON, async || (!data.join("postgres/postmaster.pid").exists()).then_some(())).await;
    embedded::open(&data, Role::Receive).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_postmaster_comes_back_at_the_same_url() {
    let (_folder, data) = place("data");
    let embedded = embedded::open(&data, Role::Surehook).await.unwrap();
    let busy = connect(embedded.url()).await;
    let long = busy.query_one("SELECT 1 FROM pg_sleep(600)", &[]);
    for _ in 0..2 {
        kill_process(postmaster(&data), Signal::KILL).unwrap();
        eventually(SOON, async || try_connect(embedded.url()).await.ok()).await;
    }
    assert!(long.await.is_err());
    embedded.stop().await.unwrap();
}

#[tokio::test]
async fn short_commands_that_come_and_go_at_once_all_get_their_answer() {
    let (_folder, data) = place("data");
    let commands = (0..6).map(|_| {
        let data = data.clone();
        tokio::spawn(async move {
            for _ in 0..4 {
                let embedded = embedded::open(&data, Role::Surehook).await.unwrap();
                let session = connect(embedded.url()).await;
                for _ in 0..5 {
                    assert_eq!(session.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
                }
                session.close().await;
                embedded.stop().await.unwrap();
            }
        })
    });
    for command in commands.collect::<Vec<_>>() {
        command.await.unwrap();
    }
    assert!(!data.join("postgres/postmaster.pid").exists(), "the last one out has ended the server");
}

#[tokio::test]
async fn after_a_kill_of_the_supervisor_its_server_is_adopted() {
    let (_folder, data) = place("data");
    let question = "SELECT pg_postmaster_start_time()::text";

    // By the next one who comes.
    let mut other = Helper::start(&data, None);
    let url = other.url.clone().unwrap();
    let started = one(&url, question).await;
    other.kill();
    let next = embedded::open(&data, Role::Surehook).await.unwrap();
    assert_eq!(next.url(), url);
    assert_eq!(one(next.url(), question).await, started);
    next.stop().await.unwrap();
    assert!(try_connect(&url).await.is_err(), "an adopted server is ended like one's own");

    // By one who had joined.
    let mut other = Helper::start(&data, None);
    let joined = embedded::open(&data, Role::Surehook).await.unwrap();
    other.kill();
    kill_process(postmaster(&data), Signal::KILL).unwrap();
    eventually(SOON, async || try_connect(joined.url()).await.ok()).await;
    joined.stop().await.unwrap();
}

#[tokio::test]
async fn orphans_and_stale_traces_are_overcome() {
    let (_folder, data) = place("data");
    let mut other = Helper::start(&data, None);
    let session = connect(other.url.as_ref().unwrap()).await;
    let backend: i32 = session.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    // A stopped process does not notice that its postmaster is gone, and keeps the shared memory.
    kill_process(Pid::from_raw(backend).unwrap(), Signal::STOP).unwrap();
    other.kill();
    kill_process(postmaster(&data), Signal::KILL).unwrap();
    let next = embedded::open(&data, Role::Surehook).await.unwrap();
    next.stop().await.unwrap();

    // After a power cut the process id may belong to anything of the same user.
    let owner = std::fs::metadata(data.join("postgres")).unwrap();
    let mut foreign = Command::new("cat").uid(owner.uid()).gid(owner.gid()).stdin(Stdio::piped()).spawn().unwrap();
    let trace = data.join("postgres/postmaster.pid");
    std::fs::write(&trace, format!("{}\n/nowhere\n", foreign.id())).unwrap();
    chown(&trace, Some(owner.uid()), Some(owner.gid())).unwrap();
    let next = embedded::open(&data, Role::Surehook).await.unwrap();
    assert!(foreign.try_wait().unwrap().is_none(), "a foreign process is left alone");
    next.stop().await.unwrap();
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let (folder, data) = place("closed/data");
    std::fs::create_dir_all(&data).unwrap();
    let cluster = data.join("postgres");
    std::fs::create_dir(&cluster).unwrap();
    let account = if geteuid().is_root() { NOBODY } else { geteuid().as_raw() };
    chown(&cluster, Some(account), None).unwrap();
    std::fs::write(cluster.join("PG_VERSION"), "9.6\n").unwrap();
    let error = embedded::open(&data, Role::Surehook).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::NoCluster { .. }), "{error}");
    std::fs::write(cluster.join("PG_VERSION"), "99\n").unwrap();
    let error = embedded::open(&data, Role::Surehook).await.unwrap_err();
    assert!(error.to_string().contains("apt-get install postgresql-99"), "{error}");
    if !geteuid().is_root() {
        return;
    }
    let closed = folder.path().join("closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = embedded::open(&data, Role::Surehook).await.unwrap_err();
    let hint = format!("chmod o+x {}", closed.canonicalize().unwrap().display());
    assert!(error.to_string().contains(&hint), "{error}");
    // An ordinary user is not let into root's data directory, and is told so.
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o711)).unwrap();
    let refused = Helper::start(&data, Some(2000));
    assert!(refused.said.contains("belongs to another user"), "{}", refused.said);
}

#[tokio::test]
async fn an_ordinary_user_runs_it_as_himself() {
    if !geteuid().is_root() {
        return; // Then all the other tests have shown it.
    }
    let (folder, _) = place("");
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    let data = home.join("data");
    let mut user = Helper::start(&data, Some(NOBODY));
    assert_eq!(std::fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
    assert_eq!(std::fs::metadata(data.join("postgres")).unwrap().uid(), NOBODY);
    // Root may join, and what root does in a user's directory stays the user's.
    let root = embedded::open(&data, Role::Receive).await.unwrap();
    assert_eq!(root.url().replace("surehook_receive", "surehook"), user.url.clone().unwrap());
    user.end();
    eventually(SOON, async || try_connect(root.url()).await.ok()).await;
    root.stop().await.unwrap();
    let root = embedded::open(&data, Role::Receive).await.unwrap();
    root.stop().await.unwrap();
    for entry in std::fs::read_dir(&data).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().uid(), NOBODY);
    }
    let mut user = Helper::start(&data, Some(NOBODY));
    assert!(user.url.is_some(), "{}", user.said);
    user.end();
}

/// Another surehook process: this test program again, in the test below.
struct Helper {
    child: Child,
    url: Option<String>,
    said: String,
    _output: BufReader<ChildStdout>,
    _program: tempfile::TempDir,
}

impl Helper {
    /// Starts it and waits until it has opened `data`, or said why not.
    fn start(data: &Path, user: Option<u32>) -> Self {
        // A copy, because other users may not pass to where this program lies; made by another process, because a program
        // that somebody still has open for writing cannot be started, and that could be a child of this one.
        let (folder, program) = place("program");
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
        assert!(copied.success());
        let mut command = Command::new(&program);
        command.args(["--ignored", "--exact", "another_process", "--nocapture"]).env("SUREHOOK_TEST_DATA", data);
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("END OF OPEN") && output.read_line(&mut said).unwrap() > 0 {}
        let opened = said.split_once("URL ").and_then(|(_, rest)| rest.split_once(" END OF OPEN"));
        let url = opened.map(|(url, _)| url.to_owned());
        Self { child, url, said, _output: output, _program: folder }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it stop properly.
    fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "the other process of the tests above"]
async fn another_process() {
    let Some(data) = std::env::var_os("SUREHOOK_TEST_DATA") else { return };
    match embedded::open(Path::new(&data), Role::Surehook).await {
        Err(error) => println!("{error} END OF OPEN"),
        Ok(embedded) => {
            println!("URL {} END OF OPEN", embedded.url());
            let until_let_go = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            tokio::task::spawn_blocking(until_let_go).await.unwrap().unwrap();
            embedded.stop().await.unwrap();
        }
    }
}
