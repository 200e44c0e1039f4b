//! Where a row of the matrix happens: a server, a receiver and a PostgreSQL as processes, repositories, and points to arm.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

use surehook_testkit::git::Checkout;
use surehook_testkit::ledger::{self, Tries};
use surehook_testkit::postgres::{self, Client, Cluster, Settings};
use surehook_testkit::{eventually, try_eventually};

use super::world::{Running, SECRET, SOON, World, script};

/// The repository whose pushes arrive.
pub(crate) const APP: &str = "app";
/// The repository whose pushes die at first, and are replayed.
pub(crate) const LATE: &str = "late";
/// Steps of git that its hooks let us stop at, with the names that they have in the matrix.
const HOOKS: [(&str, &str); 4] = [
    ("pre-receive", "git.pack_stored"),
    ("reference-transaction prepared", "git.refs_locked"),
    ("reference-transaction committed", "git.refs_moved"),
    ("post-receive", "git.refs_settled"),
];
const WRONG_SECRET: &str = "not the secret";

pub(crate) struct Ground {
    pub(crate) world: World,
    pub(crate) cluster: Cluster,
    server: Option<Running>,
    receiver: Option<Running>,
    token: String,
    points: PathBuf,
    pushes: u32,
    /// What pushes have asked to delete.
    deletions: BTreeSet<(&'static str, String)>,
    tries: BTreeMap<&'static str, Tries>,
    /// How often a command may have been started for a second time.
    pub(crate) repeats_allowed: usize,
}

impl Ground {
    pub(crate) async fn new() -> Self {
        let mut world = World::new().await;
        let cluster = Cluster::start(Settings::default()).await;
        let admin = postgres::connect(&cluster.url("postgres")).await;
        admin.batch_execute("CREATE DATABASE surehook").await.unwrap();
        admin.batch_execute("CREATE DATABASE receiver").await.unwrap();
        world.database_url = cluster.url("surehook");
        let points = world.data().join("points");
        std::fs::create_dir(&points).unwrap();
        world.environment.push(("CRASH_POINTS", points.clone()));
        let tries = BTreeMap::from([(APP, Tries::default()), (LATE, Tries::default())]);
        let (server, receiver, token) = (None, None, String::new());
        let deletions = BTreeSet::new();
        let mut ground =
            Self { world, cluster, server, receiver, token, points, pushes: 0, deletions, tries, repeats_allowed: 0 };
        ground.start_missing();
        for repository in [APP, LATE] {
            ground.world.run(&["repo", "create", repository]);
            ground.install_hooks(repository);
        }
        ground.token = ground.world.json(&["token", "create", "--admin"])["token"].as_str().unwrap().to_owned();
        let url = ground.receiver_url();
        let patient = ["--retry-max-delay", "200ms", "--max-attempts", "1000", "--max-unanswered", "1000"];
        ground.world.endpoint(APP, APP, &url, &patient);
        ground.world.endpoint(LATE, LATE, &url, &["--retry-max-delay", "200ms", "--max-unanswered", "1000"]);
        ground
    }

    fn receiver_url(&self) -> String {
        format!("http://{}/", self.receiver.as_ref().unwrap().address)
    }

    fn bare(&self, repository: &str) -> PathBuf {
        self.world.data().join(format!("repositories/{repository}.git"))
    }

    /// An update hook that refuses some refs, and hooks that stop where a test says so, as the points of the product do.
    fn install_hooks(&self, repository: &str) {
        let hooks = self.bare(repository).join("hooks");
        std::fs::create_dir_all(&hooks).unwrap();
        script(&hooks, "update", "#!/bin/sh\ncase $1 in refs/heads/refused-*) exit 1 ;; esac\n");
        let mut texts: BTreeMap<&str, String> = BTreeMap::new();
        for (when, point) in HOOKS {
            let (hook, phase) = when.split_once(' ').unwrap_or((when, ""));
            let point = self.points.join(point).display().to_string();
            let stop = format!(
                "if [ \"$1\" = '{phase}' ] && mv {point} {point}.reached 2>/dev/null; then\n\
                 echo $PPID >{point}.reached; while [ -e {point}.reached ]; do sleep 0.01; done; fi\n"
            );
            texts.entry(hook).or_insert_with(|| "#!/bin/sh\ncat >/dev/null\n".into()).push_str(&stop);
        }
        for (hook, text) in texts {
            script(&hooks, hook, &text);
        }
    }

    /// Starts what is not running.
    pub(crate) fn start_missing(&mut self) {
        if self.server.is_none() {
            self.server = Some(self.world.serve());
        }
        if self.receiver.is_none() {
            let exec = format!("echo $SUREHOOK_WEBHOOK_ID >>{}", self.starts().display());
            let arguments = ["receive", "--listen", "127.0.0.1:0", "--secret", SECRET, "--exec", &exec];
            self.receiver = Some(self.world.start_with(&self.cluster.url("receiver"), &arguments));
            if !self.token.is_empty() {
                for endpoint in [APP, LATE] {
                    self.world.run(&["endpoint", "set", endpoint, "--url", &self.receiver_url()]);
                }
            }
        }
    }

    fn starts(&self) -> PathBuf {
        self.world.data().join("starts")
    }

    pub(crate) fn arm(&self, point: &str) {
        std::fs::write(self.points.join(point), "").unwrap();
    }

    /// Waits until a process stands at the point, and says which.
    pub(crate) async fn reached(&self, point: &str) -> u32 {
        let path = self.points.join(format!("{point}.reached"));
        let look = async || std::fs::read_to_string(&path).ok()?.trim().parse().ok();
        match try_eventually(SOON, look).await {
            Some(process) => process,
            None => panic!("nobody came to {point}:\n{}", self.log()),
        }
    }

    /// Lets whoever stands at the point go on.
    pub(crate) fn release(&self, point: &str) {
        for name in [format!("{point}.reached"), point.to_owned()] {
            // The point may not be armed any more.
            let _ = std::fs::remove_file(self.points.join(name));
        }
    }

    pub(crate) fn server_id(&self) -> u32 {
        self.server.as_ref().unwrap().id()
    }

    /// Ends a process by SIGKILL, whichever it is.
    pub(crate) async fn kill(&mut self, process: u32) {
        for slot in [&mut self.server, &mut self.receiver] {
            if slot.as_ref().is_some_and(|running| running.id() == process) {
                let mut running = slot.take().unwrap();
                running.signal("KILL");
                running.ended().await;
                return;
            }
        }
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(process.cast_signed()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
    }

    pub(crate) async fn restart_all(&mut self) {
        self.kill(self.server_id()).await;
        self.kill(self.receiver.as_ref().unwrap().id()).await;
        self.start_missing();
    }

    /// The git that the server has started for a push.
    pub(crate) fn git_child(&self) -> u32 {
        let parent = self.server_id().to_string();
        let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (head, rest) = stat.rsplit_once(") ")?;
            (head.ends_with("(git") && rest.split(' ').nth(1) == Some(&parent))
                .then(|| head.split(' ').next()?.parse().ok())?
        });
        children.max().expect("a git child lives")
    }

    /// Pushes something new: a step of main, a branch that is born, the end of the one before, and a branch that the update
    /// hook refuses. Gives the running push and what it asks for.
    pub(crate) async fn push(&mut self, work: &Checkout<'_>, repository: &'static str) -> Push {
        self.pushes += 1;
        let n = self.pushes;
        let commit = work.commit("file", &n.to_string()).await;
        let url = format!("http://ci:{}@{}/{repository}.git", self.token, self.server.as_ref().unwrap().address);
        let names = ["refs/heads/main".to_owned(), format!("refs/heads/topic-{n}"), format!("refs/heads/refused-{n}")];
        let mut arguments: Vec<String> = ["push", "--porcelain", &url].map(Into::into).to_vec();
        arguments.extend(names.iter().map(|name| format!("+HEAD:{name}")));
        let mut wanted: Vec<(String, String)> = names[..2].iter().map(|name| (name.clone(), commit.clone())).collect();
        // Once per topic: the git of a dead server may still delete what its push asked for, and a client that finds the
        // ref gone would ask for a deletion without a value, which is refused with all that the push holds.
        let refs = ledger::refs(&self.world.git.at(self.bare(repository))).await;
        let mut topics = refs.into_keys().filter(|name| name.contains("topic"));
        if let Some(old) = topics.find(|name| self.deletions.insert((repository, name.clone()))) {
            arguments.push(format!(":{old}"));
            wanted.push((old, ledger::ZEROS.into()));
        }
        self.tries.get_mut(repository).unwrap().attempt(&wanted);
        let mut command = work.command(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let running = tokio::spawn(async move { command.output().await.unwrap() });
        Push { repository, wanted, running }
    }

    /// Waits for the end of a push; says what git said.
    pub(crate) async fn end(&mut self, push: Push) -> Output {
        let output = push.running.await.unwrap();
        self.tries.get_mut(push.repository).unwrap().note(&push.wanted, &output);
        output
    }

    /// A push to the repository whose deliveries die at first, until it is dead.
    pub(crate) async fn dead_letter(&mut self, work: &Checkout<'_>) {
        self.world.run(&["endpoint", "set", LATE, "--secret", WRONG_SECRET, "--max-attempts", "1"]);
        let push = self.push(work, LATE).await;
        let output = self.end(push).await;
        let dead = "SELECT count(*) FROM outbox_dlq WHERE state = 'dead'";
        let idle = "SELECT count(*) FROM outbox_lanes WHERE ready_at IS NOT NULL";
        let buried = async || (self.count(dead).await? > 0 && self.count(idle).await? == 0).then_some(());
        let buried = try_eventually(SOON, buried).await;
        assert!(buried.is_some(), "{}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        self.world.run(&["endpoint", "set", LATE, "--secret", SECRET, "--max-attempts", "1000"]);
    }

    /// `surehook dlq replay --all`, still running.
    pub(crate) fn replay(&self) -> Child {
        let mut command = self.world.command(&self.world.database_url, &["dlq", "replay", "--all"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// No git of ours works in the repository any more.
    async fn quiet(&self, repository: &str) {
        let bare = self.bare(repository);
        let lock = std::fs::File::open(bare.join("surehook.lock")).unwrap();
        eventually(SOON, async || rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok())
            .await;
    }

    pub(crate) async fn until_quiet(&self) {
        for repository in [APP, LATE] {
            self.quiet(repository).await;
        }
    }

    async fn sql(&self) -> Option<Client> {
        postgres::try_connect(&self.world.database_url).await.ok()
    }

    async fn count(&self, sql: &str) -> Option<i64> {
        Some(self.sql().await?.query_one(sql, &[]).await.ok()?.get(0))
    }

    /// Waits until everything that happened was told, arrived, and was built exactly once.
    pub(crate) async fn settle(&self, what: &str) {
        self.until_quiet().await;
        let mut reason = String::new();
        let settled = try_eventually(SOON, async || match self.unsettled().await {
            None => Some(()),
            Some(found) => {
                reason = found;
                None
            }
        })
        .await;
        assert!(settled.is_some(), "{what}: {reason}\n{}", self.log());
    }

    /// What is not as it must be, if anything.
    async fn unsettled(&self) -> Option<String> {
        let sql = postgres::connect(&self.world.database_url).await;
        let mut events = BTreeSet::new();
        for (repository, tries) in &self.tries {
            let bare = self.bare(repository);
            let refs = ledger::refs(&self.world.git.at(&bare)).await;
            let told = ledger::told(&sql, repository).await;
            if let Some(wrong) = ledger::disagreement(&bare, &refs, &told, tries) {
                return Some(format!("{repository}: {wrong}"));
            }
            events.extend(told.into_iter().map(|told| told.event_id));
        }
        let inbox = postgres::connect(&self.cluster.url("receiver")).await;
        let built = inbox.query("SELECT event_id FROM inbox_builds", &[]).await.unwrap();
        if built.iter().map(|row| row.get::<_, String>(0)).collect::<BTreeSet<_>>() != events {
            return Some(format!("{} builds are not those of {} events", built.len(), events.len()));
        }
        let events = i64::try_from(events.len()).unwrap();
        for (what, sql, query, expected) in [
            ("deliveries published", &sql, "SELECT count(*) FROM outbox_status WHERE status = 'published'", events),
            ("deliveries", &sql, "SELECT count(DISTINCT delivery_id) FROM outbox_deliveries", events),
            ("recorded successes", &sql, "SELECT count(*) FROM outbox_attempts WHERE ends = 'published'", events),
            ("open dead letters", &sql, "SELECT count(*) FROM outbox_dlq WHERE state <> 'delivered'", 0),
            (
                "lanes with work",
                &sql,
                "SELECT count(*) FROM outbox_lanes WHERE ready_at IS NOT NULL OR owner IS NOT NULL",
                0,
            ),
            ("builds", &inbox, "SELECT count(*) FROM inbox_builds", events),
            (
                "finished builds",
                &inbox,
                "SELECT count(*) FROM inbox_builds WHERE state = 'finished' AND exit_code = 0",
                events,
            ),
        ] {
            let found: i64 = sql.query_one(query, &[]).await.unwrap().get(0);
            if found != expected {
                return Some(format!("{found} {what}, not {expected}"));
            }
        }
        let starts = std::fs::read_to_string(self.starts()).unwrap_or_default();
        let (all, mut distinct) = (starts.lines().count(), starts.lines().collect::<Vec<_>>());
        distinct.sort_unstable();
        distinct.dedup();
        if i64::try_from(distinct.len()) != Ok(events) || all > distinct.len() + self.repeats_allowed {
            return Some(format!("{all} commands were started for {} of {events} events", distinct.len()));
        }
        None
    }

    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.world.data().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// A push under way.
pub(crate) struct Push {
    repository: &'static str,
    wanted: Vec<(String, String)>,
    running: tokio::task::JoinHandle<Output>,
}
