//! The processes of a measurement, seen from the one that measures: started, spoken to line by line, ended with the value.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::clock::now_ns;
use crate::contender::{self, Setup};
use crate::sink::{self, Arrival, Mode};

/// A process that answers each line with a line.
struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("{name} does not start"))?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { name: name.into(), child, input, output })
    }

    async fn line(&mut self) -> Result<String> {
        self.output.next_line().await?.with_context(|| format!("{} has ended; its last words stand above", self.name))
    }

    async fn ask<A: DeserializeOwned>(&mut self, command: &impl Serialize) -> Result<A> {
        let mut line = serde_json::to_string(command)?;
        line.push('\n');
        self.input.write_all(line.as_bytes()).await.with_context(|| format!("{} takes no command", self.name))?;
        let answer = self.line().await?;
        serde_json::from_str(&answer).with_context(|| format!("{} said: {answer}", self.name))
    }

    fn id(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }
}

/// The receiver.
pub(crate) struct Sink {
    process: Process,
    folder: tempfile::TempDir,
    /// Where all its endpoints listen.
    pub(crate) port: u16,
    pub(crate) endpoints: u16,
}

impl Sink {
    pub(crate) async fn start(endpoints: u16) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["sink", &endpoints.to_string()]);
        let mut process = Process::start("the receiver", command)?;
        let port = process.line().await?.parse()?;
        Ok(Self { process, folder: tempfile::tempdir()?, port, endpoints })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) async fn ask(&mut self, command: &sink::Command) -> Result<sink::Answer> {
        self.process.ask(command).await
    }

    pub(crate) async fn mode(&mut self, endpoint: u16, mode: Mode) -> Result<()> {
        self.ask(&sink::Command::Mode(endpoint, mode)).await.map(drop)
    }

    pub(crate) async fn mode_of_all(&mut self, mode: Mode) -> Result<()> {
        for endpoint in 0..self.endpoints {
            self.mode(endpoint, mode).await?;
        }
        Ok(())
    }

    pub(crate) async fn reset(&mut self) -> Result<()> {
        self.ask(&sink::Command::Reset).await.map(drop)
    }

    /// Waits until so many different ids were accepted. Gives how many were when it was so, or the time was over.
    pub(crate) async fn wait(&mut self, accepted: u32, at_most: Duration) -> Result<u32> {
        let end_ns = now_ns() + u64::try_from(at_most.as_nanos())?;
        loop {
            let answer = self.ask(&sink::Command::Stats).await?;
            if answer.accepted >= accepted || now_ns() > end_ns {
                return Ok(answer.accepted);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// All that arrived since the last reset, in the order of arrival.
    pub(crate) async fn arrivals(&mut self) -> Result<Vec<Arrival>> {
        let path = self.folder.path().join("arrivals");
        self.ask(&sink::Command::Dump(path.to_str().context("a path that is not UTF-8")?.into())).await?;
        Ok(Arrival::read_all(&std::fs::read(path)?))
    }
}

/// A contender's process.
pub(crate) struct Contender {
    process: Process,
}

impl Contender {
    pub(crate) fn start(name: &str, setup: &Setup, river: Option<&Path>) -> Result<Self> {
        let mut command = match (name, river) {
            ("river", Some(program)) => Command::new(program),
            _ => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["contender", name]);
                command
            }
        };
        command.arg("--socket").arg(&setup.socket).arg("--database").arg(&setup.database);
        command.arg("--port").arg(setup.port.to_string()).arg("--endpoints").arg(setup.endpoints.to_string());
        command.arg("--timeout-ms").arg(setup.timeout_ms.to_string());
        Ok(Self { process: Process::start(name, command)? })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ok: it did what it was told.
    pub(crate) async fn tell(&mut self, command: &contender::Command) -> Result<contender::Answer> {
        let answer: contender::Answer = self.process.ask(command).await?;
        match &answer.error {
            Some(error) => bail!("{}: {error}", self.process.name),
            None => Ok(answer),
        }
    }

    /// Ends it by SIGKILL and waits until it is gone.
    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.process.child.kill().await?)
    }
}

/// Builds River's contender if Go is there. None: it is not.
pub(crate) async fn build_river() -> Result<Option<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("river");
    // Beside this program, so where everything that is built lies.
    let program = std::env::current_exe()?.with_file_name("peers-river");
    let build = Command::new("go").arg("build").arg("-o").arg(&program).arg(".").current_dir(folder).status().await;
    match build {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
        Ok(status) if status.success() => Ok(Some(program)),
        Ok(_) => bail!("River's contender does not build; what go said stands above"),
    }
}
