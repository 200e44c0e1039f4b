//! `surehook demo`: a server, a receiver and a fresh repository; one push by the real git, followed to the finished build
//! and told as a timeline. Everything is real: the same server, receiver and git as in use.

mod client;
mod timeline;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use secrecy::{ExposeSecret, SecretString};
use surehook_outbox::Database;
use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::store::endpoints::{self, NewEndpoint};
use surehook_outbox::store::operate::database_time;
use surehook_webhook::secret::Secret;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::connect::{connect_receive, connect_with};
use super::services::Signals;
use super::{CliError, Connected, Globals};
use crate::config::file::Config;
use crate::embedded::Role;
use crate::git::backend::ObjectFormat;
use crate::git::name::RepoName;
use crate::hosting::{HostingError, Storage};
use crate::receive::runner::RunnerCommand;
use crate::receive::{BODY_BYTES_MAX, LOG_BYTES_MAX, Receiver, ReceiverSettings};
use crate::serve::{ServeSettings, Server};
use crate::store::tokens::{self, NewToken};

/// Where the server of the demo listens if nobody else does.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8080);
/// A build that is not there after this time is not coming.
const BUILD_WITHIN: Duration = Duration::from_secs(60);

/// Runs the demo; with `once` it ends after the build, with exit code 0 only if the build really ran.
pub(super) async fn run(globals: &Globals, once: bool, mut signals: Signals) -> Result<ExitCode, CliError> {
    let mut globals = globals.clone();
    let data = globals.data.take().unwrap_or_else(|| crate::config::default_data_dir().join("demo"));
    globals.data = Some(data.clone());
    println!("surehook demo: git push, and the webhook arrives.\n");
    step("PostgreSQL", &where_database_is(&globals, &data));
    let begun = Instant::now();
    let connected = connect_with(&globals, Role::Surehook, &Config::default().database).await?;
    let receiving = connect_receive(&globals).await?;
    step("", &format!("ready after {:.1} s", begun.elapsed().as_secs_f64()));
    let outcome = tokio::select! {
        outcome = Demo::play(&connected, &receiving, &data, once) => outcome,
        () = signals.next() => Ok((ExitCode::FAILURE, None)),
    };
    let (code, mut demo) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            receiving.close().await;
            connected.close().await;
            return Err(error);
        }
    };
    if !once && demo.is_some() {
        signals.next().await;
        println!("\nStopping …");
    }
    if let Some(demo) = &mut demo {
        demo.stop(&connected.database).await;
    }
    receiving.close().await;
    connected.close().await;
    Ok(code)
}

fn where_database_is(globals: &Globals, data: &Path) -> String {
    match &globals.database_url {
        Some(_) => "the one of --database-url".into(),
        None => format!("starting its own in {}", data.display()),
    }
}

/// A running demo.
struct Demo {
    server: Server,
    receiver: Option<Receiver>,
    receiver_stop: CancellationToken,
    endpoint: String,
    token_id: Uuid,
}

impl Demo {
    /// Sets everything up, pushes, and follows the push.
    async fn play(
        connected: &Connected,
        receiving: &Connected,
        data: &Path,
        once: bool,
    ) -> Result<(ExitCode, Option<Self>), CliError> {
        let database = &connected.database;
        let server = start_server(database, data, once).await?;
        step("server", &format!("http://{}", server.address));
        let storage = Storage::open(data, database).await?;
        let (name, repository_id) = create_repository(&storage).await?;
        let note = Some("demo".to_owned());
        let (token, password) =
            tokens::create(database, NewToken { note, push: vec![name.to_string()], ..NewToken::default() }).await?;
        step("repository", &format!("http://{}/{name}.git", server.address));
        let (secret, secret_text) = new_secret()?;
        let url = client::url_with_password(server.address, name.as_str(), &password.into());
        let receiver_stop = CancellationToken::new();
        let receiver = start_receiver(&receiving.database, data, secret, &url, receiver_stop.clone()).await?;
        step("receiver", &format!("http://{}", receiver.address()));
        add_endpoint(database, name.as_str(), repository_id, receiver.address(), secret_text).await?;
        step("endpoint", &format!("{name}: every push to {name} goes to the receiver\n"));
        let demo = Self {
            server,
            receiver: Some(receiver),
            receiver_stop,
            endpoint: name.to_string(),
            token_id: token.token_id,
        };

        let work = data.join("work").join(name.as_str());
        let commit = client::commit(&work, &url).await?;
        let pushed_at = database_time(database).await?;
        client::push(&work).await?;
        let accepted_at = database_time(database).await?;
        let story = timeline::follow(database, &receiving.database, repository_id, BUILD_WITHIN).await?;
        print!("{}", story.tell(pushed_at, accepted_at, &commit));
        let built = story.is_built();
        if built {
            println!("\nThe push was built: exactly one build, because of one webhook, because of one transaction.");
        } else {
            println!("\nThe build did not run to its end. `surehook doctor` and `surehook delivery list` say more.");
        }
        if !once {
            println!("\n{}", what_to_type(&work, data));
        }
        Ok((if built { ExitCode::SUCCESS } else { ExitCode::FAILURE }, Some(demo)))
    }

    /// The endpoint goes with its receiver: a later push to this repository must not wait for one that is gone.
    async fn stop(&mut self, database: &Database) {
        let removed = endpoints::remove(database, &self.endpoint).await;
        let revoked = tokens::revoke(database, self.token_id).await;
        if let (Err(error), _) = (&removed, &revoked) {
            tracing::warn!(%error, "the endpoint of the demo stays behind");
        }
        self.receiver_stop.cancel();
        if let Some(receiver) = self.receiver.take()
            && let Err(error) = receiver.join().await
        {
            tracing::warn!(%error, "the receiver did not end as it should");
        }
        self.server.stop().await;
    }
}

/// On the usual port if it is free and somebody will look at it, else on any.
async fn start_server(database: &Database, data: &Path, once: bool) -> Result<Server, CliError> {
    let any = SocketAddr::from((LISTEN.ip(), 0));
    let is_free = || std::net::TcpListener::bind(LISTEN).is_ok();
    let listen = if !once && is_free() { LISTEN } else { any };
    let settings = ServeSettings {
        listen,
        database: database.clone(),
        data: data.to_owned(),
        watchdog: None,
        config: Config::default(),
    };
    Ok(Server::start(settings).await?)
}

async fn create_repository(storage: &Storage) -> Result<(RepoName, Uuid), CliError> {
    for number in 1u32.. {
        let text = if number == 1 { "demo".to_owned() } else { format!("demo-{number}") };
        let name = RepoName::parse(&text).map_err(|error| CliError::new(error.to_string(), "Please report this."))?;
        match storage.create(&name, ObjectFormat::Sha1).await {
            Ok(id) => return Ok((name, id)),
            Err(HostingError::NameTaken(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CliError::new("There are too many demo repositories.", "Delete some with: surehook repo delete NAME"))
}

fn new_secret() -> Result<(Secret, SecretString), CliError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| {
        CliError::new(format!("No random numbers are to be had: {error}."), "Look at /dev/urandom.")
    })?;
    let secret = Secret::generate(random);
    let text = SecretString::from(secret.expose_text().to_owned());
    Ok((secret, text))
}

async fn start_receiver(
    database: &Database,
    data: &Path,
    secret: Secret,
    url: &SecretString,
    stop: CancellationToken,
) -> Result<Receiver, CliError> {
    let broken =
        |error: String| CliError::new(format!("The receiver cannot start: {error}."), "Is another demo running?");
    let listener = TcpListener::bind((LISTEN.ip(), 0)).await.map_err(|error| broken(error.to_string()))?;
    let settings = ReceiverSettings {
        listener,
        database: database.clone(),
        data_dir: data.to_owned(),
        secrets: secret.into(),
        exec: client::build_command(url).into(),
        jobs: 2,
        accept_untimed: false,
        body_bytes_max: BODY_BYTES_MAX,
        timeout: Some(BUILD_WITHIN),
        log_bytes_max: LOG_BYTES_MAX,
        runner: RunnerCommand::current_exe().map_err(|error| broken(error.to_string()))?,
    };
    Receiver::start(settings, stop).await.map_err(|error| broken(error.to_string()))
}

async fn add_endpoint(
    database: &Database,
    name: &str,
    repository_id: Uuid,
    receiver: SocketAddr,
    secret: SecretString,
) -> Result<(), CliError> {
    let scope = Scope::Aggregate(repository_id.to_string());
    let mut new = NewEndpoint::new(name, format!("http://{receiver}/"), scope);
    new.secret = Some(SecretString::from(secret.expose_secret().to_owned()));
    new.settings = EndpointChange { allow_private: Some(true), ..EndpointChange::default() };
    endpoints::add(database, new).await?;
    Ok(())
}

fn step(what: &str, words: &str) {
    println!("  {what:<12}{words}");
}

fn what_to_type(work: &Path, data: &Path) -> String {
    let (work, data) = (client::quoted(work), client::quoted(data));
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("surehook"));
    let program = client::quoted(&program);
    format!(
        "Now push yourself, in another terminal:\n\n    cd {work}\n    git commit --allow-empty -m 'my own push' && git push\n\n\
         and look:\n\n    {program} --data {data} delivery list\n    {program} --data {data} receive list\n\n\
         Ctrl-C ends the demo."
    )
}
