//! A private stack: two PostgreSQL, surehook as in use (or what it is compared with), the receiver behind its front door and the
//! fault proxy, repositories. Everything is in one temporary folder and ends with the run.

pub mod gate;
pub mod process;
pub mod toxiproxy;
pub mod volume;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use surehook_testkit::dice::Dice;
use surehook_testkit::git::Sandbox;
use surehook_testkit::postgres::{Cluster, Settings, connect};
use surehook_testkit::pusher::Target;
use surehook_testkit::sshd::{self, SshServer};
use tokio::sync::Mutex as AsyncMutex;

use crate::against::Against;
use crate::scenario::{Scenario, Shape};
use gate::Gate;
use process::{Launcher, Running};
use toxiproxy::Proxy;
use volume::SmallVolume;

/// Stands between single quotes in the hooks of those that surehook is compared with.
const SECRET: &str = "the drill_s secret, long enough for everybody";
/// What cannot be started again within this time stays away.
const BACK_WITHIN: Duration = Duration::from_secs(120);
const BETWEEN_STARTS: Duration = Duration::from_millis(200);
/// Scans are often enough to be seen within a run, the grace short enough for many restarts.
const CONFIG: &str = "[stop]\ngrace_s = 2\n[scan]\nevery_s = 5\n";
const REFUSING_HOOK: &str = "#!/bin/sh\ncase $1 in refs/heads/refused-*) exit 1 ;; esac\n";

/// A repository that is pushed to.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name at surehook.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it is pushed to through surehook.
    pub is_hosted: bool,
}

/// All that runs.
pub struct Stack {
    /// What sends webhooks here.
    pub against: Against,
    /// Git clients.
    pub git: Sandbox,
    /// The sender's PostgreSQL.
    pub sender: Cluster,
    /// The receiver's PostgreSQL.
    pub receiving: Cluster,
    /// The receiver's front door.
    pub gate: Gate,
    /// The fault proxy.
    pub proxy: Proxy,
    /// The repositories.
    pub places: Vec<Place>,
    /// Lines of the builds.
    pub results: PathBuf,
    /// The sender's PostgreSQL lies there, if that could be had.
    pub volume: Option<SmallVolume>,
    /// How programs are started.
    pub launcher: Launcher,
    /// Where the server is at present.
    address: Mutex<String>,
    token: String,
    ssh: Option<SshServer>,
    server: AsyncMutex<Option<Running>>,
    workers: AsyncMutex<Vec<Running>>,
    receiver: AsyncMutex<Option<Running>>,
    // Removed last.
    folder: Option<tempfile::TempDir>,
}

/// What a stack is made for.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// What sends.
    pub against: Against,
    /// The program `surehook`.
    pub surehook: PathBuf,
    /// Which faults are to come.
    pub scenario: Scenario,
    /// How much of everything.
    pub shape: &'a Shape,
    /// Take the testkit's fault proxy.
    pub builtin_proxy: bool,
}

impl Stack {
    /// Starts everything.
    pub async fn start(wanted: Wanted<'_>, dice: Dice, say: impl Fn(&str)) -> anyhow::Result<Self> {
        let Wanted { against, surehook, scenario, shape, builtin_proxy } = wanted;
        let folder = tempfile::Builder::new().prefix("surehook-drill-").tempdir_in("/var/tmp");
        let folder = folder.context("no folder can be made in /var/tmp")?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let path = folder.path().to_owned();
        for name in ["data", "receive", "elsewhere"] {
            std::fs::create_dir(path.join(name))?;
        }
        let volume = if scenario == Scenario::KillPostgres { SmallVolume::mount(&path.join("volume")) } else { None };
        let place = volume.as_ref().map(|volume| volume.path().to_owned());
        say("starting two PostgreSQL, the receiver and its front door …");
        let (sender, receiving) = tokio::join!(
            Cluster::start(Settings { durable: true, place, ..Settings::default() }),
            Cluster::start(Settings { durable: true, ..Settings::default() })
        );
        for (cluster, name) in [(&sender, "surehook"), (&receiving, "receiver")] {
            let admin = connect(&cluster.url("postgres")).await;
            crate::store::create_database(&admin, name).await?;
        }
        let gate = Gate::open(dice).await.context("the front door cannot be opened")?;
        let proxy = Proxy::start(&gate.address().to_string(), builtin_proxy, &say).await?;
        let ssh = (shape.imported > 0 && sshd::is_installed()).then(|| SshServer::start(&path.join("ssh")));
        ssh.iter().for_each(SshServer::allow_git_shell);
        let mut stack = Self {
            against,
            git: Sandbox::new(),
            sender,
            receiving,
            gate,
            proxy,
            places: Vec::new(),
            results: path.join("results"),
            volume,
            launcher: Launcher { surehook, folder: path },
            address: Mutex::default(),
            token: String::new(),
            ssh,
            server: AsyncMutex::default(),
            workers: AsyncMutex::default(),
            receiver: AsyncMutex::default(),
            folder: Some(folder),
        };
        stack.start_receiver().await?;
        match against {
            Against::Surehook => stack.set_up_surehook(shape).await?,
            Against::Naive | Against::Textbook => stack.set_up_other(shape).await?,
        }
        Ok(stack)
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        &self.launcher.folder
    }

    /// The sender's database.
    pub fn sender_url(&self) -> String {
        self.sender.url("surehook")
    }

    /// The receiver's database.
    pub fn receiver_url(&self) -> String {
        self.receiving.url("receiver")
    }

    /// Where webhooks go.
    pub fn webhook_url(&self) -> String {
        format!("http://{}/", self.proxy.address)
    }

    /// The secret of sender and receiver.
    pub fn secret(&self) -> &'static str {
        SECRET
    }

    /// Where a client pushes to.
    pub fn target(&self, place: &Place, number: usize) -> Target {
        if place.is_hosted {
            let address = self.address.lock().unwrap_or_else(PoisonError::into_inner);
            let url = format!("http://drill:{}@{address}/{}.git", self.token, place.name);
            return Target { url, settings: Vec::new() };
        }
        match &self.ssh {
            Some(ssh) if number.is_multiple_of(2) => {
                Target { url: ssh.url(&place.path.display().to_string()), settings: vec![ssh.client_setting()] }
            }
            _ => Target { url: format!("file://{}", place.path.display()), settings: Vec::new() },
        }
    }

    /// What tells a process of a pushing client from all others of this machine.
    pub fn mark_of_clients(&self) -> &str {
        if self.token.is_empty() { "elsewhere" } else { &self.token }
    }

    async fn set_up_surehook(&mut self, shape: &Shape) -> anyhow::Result<()> {
        std::fs::write(self.folder().join("surehook.toml"), CONFIG)?;
        self.start_server().await?;
        let token = self.surehook(&["token", "create", "--admin", "--json"]).await?;
        let token: serde_json::Value = serde_json::from_str(&token).context("surehook token create --json")?;
        token["token"].as_str().context("a token")?.clone_into(&mut self.token);
        let webhooks = self.webhook_url();
        let endpoint =
            ["endpoint", "add", "ci", "--repo", "*", "--url", &webhooks, "--secret", SECRET, "--allow-private"];
        self.surehook(&[&endpoint[..], &shape.endpoint].concat()).await?;
        for number in 1..=shape.hosted {
            let name = format!("hosted-{number}");
            self.surehook(&["repo", "create", &name]).await?;
            let path = self.data().join(format!("repositories/{name}.git"));
            self.places.push(Place { name, path, is_hosted: true });
        }
        for number in 1..=shape.imported {
            let place = self.bare(&format!("imported-{number}")).await?;
            self.surehook(&["repo", "import", &place.path.display().to_string(), "--name", &place.name]).await?;
            self.places.push(place);
        }
        for place in self.places.iter().filter(|place| place.is_hosted) {
            install(&place.path, "update", REFUSING_HOOK)?;
        }
        for _ in 0..shape.workers {
            self.start_worker().await?;
        }
        Ok(())
    }

    async fn set_up_other(&mut self, shape: &Shape) -> anyhow::Result<()> {
        for number in 1..=shape.hosted + shape.imported {
            let place = self.bare(&format!("plain-{number}")).await?;
            install(&place.path, "update", REFUSING_HOOK)?;
            install(&place.path, "post-receive", &self.against.hook(self, &place)?)?;
            self.places.push(place);
        }
        if self.against == Against::Textbook {
            self.start_worker().await?;
        }
        Ok(())
    }

    async fn bare(&self, name: &str) -> anyhow::Result<Place> {
        let path = self.folder().join(format!("elsewhere/{name}.git"));
        self.git.ok(["init", "--quiet", "--bare", "--", &path.display().to_string()]).await;
        // The log of every ref, so that the disk can say what happened.
        self.git.at(&path).ok(["config", "core.logAllRefUpdates", "always"]).await;
        Ok(Place { name: name.to_owned(), path, is_hosted: false })
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    /// Runs a command of surehook on the sender's database.
    pub async fn surehook(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.launcher.run(&self.sender_url(), &self.data(), arguments).await
    }

    /// Starts `serve` where none runs.
    pub async fn start_server(&self) -> anyhow::Result<()> {
        let config = self.folder().join("surehook.toml").display().to_string();
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--config", &config];
        let mut server = self.server.lock().await;
        let (url, data) = (self.sender_url(), self.data());
        let running = again(async || self.launcher.start(&url, &data, "serve", &arguments, &[]).await).await?;
        running.address.clone_into(&mut *self.address.lock().unwrap_or_else(PoisonError::into_inner));
        *server = Some(running);
        Ok(())
    }

    /// Takes the server out, so that its end is known to be wanted.
    pub async fn take_server(&self) -> Option<Running> {
        self.server.lock().await.take()
    }

    /// Starts one worker more.
    pub async fn start_worker(&self) -> anyhow::Result<()> {
        let (url, data) = (self.sender_url(), self.data());
        let running = match self.against {
            Against::Surehook => {
                again(async || self.launcher.start(&url, &data, "worker", &["worker"], &[]).await).await?
            }
            Against::Naive => bail!("there are no workers"),
            Against::Textbook => {
                let itself = Launcher { surehook: std::env::current_exe()?, ..self.launcher.clone() };
                let webhooks = self.webhook_url();
                let arguments = ["textbook-worker", "--url", &webhooks, "--secret", SECRET, "--database", url.as_str()];
                again(async || itself.start(&url, &data, "textbook", &arguments, &[]).await).await?
            }
        };
        self.workers.lock().await.push(running);
        Ok(())
    }

    /// Takes the oldest worker out.
    pub async fn take_worker(&self) -> Option<Running> {
        let mut workers = self.workers.lock().await;
        (!workers.is_empty()).then(|| workers.remove(0))
    }

    /// Puts a worker back that was taken out and goes on.
    pub async fn return_worker(&self, worker: Running) {
        self.workers.lock().await.push(worker);
    }

    /// Starts the receiver where none runs.
    pub async fn start_receiver(&self) -> anyhow::Result<()> {
        let build = self.folder().join("build.sh");
        if !build.exists() {
            std::fs::write(&build, build_script(&self.results, self.folder()))?;
        }
        let exec = format!("sh {}", build.display());
        let arguments = ["receive", "--listen", "127.0.0.1:0", "--jobs", "4", "--exec", &exec];
        let mut receiver = self.receiver.lock().await;
        let (url, data) = (self.receiver_url(), self.folder().join("receive"));
        let secret = [("SUREHOOK_SECRET", SECRET.into())];
        let running = again(async || self.launcher.start(&url, &data, "receive", &arguments, &secret).await).await?;
        self.gate.lead_to(&running.address);
        *receiver = Some(running);
        Ok(())
    }

    /// Takes the receiver out.
    pub async fn take_receiver(&self) -> Option<Running> {
        self.receiver.lock().await.take()
    }

    /// Programs that ended although nobody made them.
    pub async fn ended_by_themselves(&self) -> Vec<&'static str> {
        let mut ended = Vec::new();
        for (slot, name) in [(&self.server, "serve"), (&self.receiver, "receive")] {
            if slot.lock().await.as_mut().is_some_and(Running::has_ended) {
                ended.push(name);
            }
        }
        ended.extend(self.workers.lock().await.iter_mut().filter_map(|worker| worker.has_ended().then_some("worker")));
        ended
    }

    /// The address of the server at present.
    pub fn server_address(&self) -> String {
        self.address.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends everything; with `keep` the folder stays, and is named.
    pub async fn close(mut self, keep: bool) -> Option<PathBuf> {
        if let Some(server) = self.take_server().await {
            // It is of no use any more, whatever it says.
            let _ = server.stop(Duration::from_secs(10)).await;
        }
        while let Some(worker) = self.take_worker().await {
            worker.kill().await;
        }
        if let Some(receiver) = self.take_receiver().await {
            receiver.kill().await;
        }
        self.proxy.close().await;
        self.folder.take().and_then(|folder| keep.then(|| folder.keep()))
    }
}

/// Tries until it comes up: what it needs may just be away too.
async fn again(start: impl AsyncFn() -> anyhow::Result<Running>) -> anyhow::Result<Running> {
    let begun = tokio::time::Instant::now();
    loop {
        match start().await {
            Ok(running) => return Ok(running),
            Err(error) if begun.elapsed() > BACK_WITHIN => return Err(error),
            Err(_) => tokio::time::sleep(BETWEEN_STARTS).await,
        }
    }
}

fn install(repository: &Path, hook: &str, text: &str) -> anyhow::Result<()> {
    let hooks = repository.join("hooks");
    std::fs::create_dir_all(&hooks)?;
    let path = hooks.join(hook);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A build looks whether its commit is there, and leaves one line.
fn build_script(results: &Path, folder: &Path) -> String {
    format!(
        "set -eu\nrepository={0}/data/repositories/$SUREHOOK_REPOSITORY.git\n\
         [ -d \"$repository\" ] || repository={0}/elsewhere/$SUREHOOK_REPOSITORY.git\nthere=yes\n\
         case $SUREHOOK_AFTER in *[!0]*) git --git-dir=\"$repository\" cat-file -e \"$SUREHOOK_AFTER\" || there=no ;; esac\n\
         echo \"$SUREHOOK_WEBHOOK_ID $there\" >> {1}\n",
        folder.display(),
        results.display()
    )
}
