//! PostgreSQL for tests: one cluster per test process, a fresh database per test, copied from a template that is
//! prepared once. Starts the cluster at first use; it goes away with the process, however that ends.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL, and the removal of databases has a thread of its own")]

mod cluster;
mod pooler;

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use tokio::{sync::OnceCell, task::JoinHandle};
use tokio_postgres::NoTls;

pub use cluster::{Cluster, Settings};
pub use pooler::Pgbouncer;

use crate::try_eventually;

static SHARED: OnceCell<Cluster> = OnceCell::const_new();
static TEMPLATES: Mutex<Option<HashMap<String, Arc<OnceCell<()>>>>> = Mutex::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// How long connections of `prepare` may take to be gone after it has returned.
const TEMPLATE_QUIET_WITHIN: Duration = Duration::from_secs(10);

/// The cluster that the tests of this process share.
pub async fn shared() -> &'static Cluster {
    SHARED.get_or_init(|| Cluster::start(Settings::default())).await
}

/// A fresh database, copied from the template database named `template`.
///
/// `prepare` fills the template: it runs once per process and name, with the template's URL, and must have closed its
/// connections when it returns (PostgreSQL does not copy a database that somebody uses).
///
/// ```no_run
/// # async fn test() {
/// let database = surehook_testkit::postgres::database("numbers", async |url| {
///     let client = surehook_testkit::postgres::connect(url).await;
///     client.batch_execute("CREATE TABLE numbers (n bigint)").await.unwrap();
/// })
/// .await;
/// let client = database.client().await;
/// client.execute("INSERT INTO numbers VALUES (1)", &[]).await.unwrap();
/// # }
/// ```
pub async fn database(template: &str, prepare: impl AsyncFnOnce(&str)) -> TestDatabase {
    let cluster = shared().await;
    let cell = {
        let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(templates.get_or_insert_default().entry(template.to_owned()).or_default())
    };
    let template = quoted(&format!("template_{template}"));
    let admin = connect(&cluster.url("postgres")).await;
    cell.get_or_init(|| make_template(cluster, &admin, &template, prepare)).await;
    let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    run(&admin, &format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
    TestDatabase { url: cluster.url(&name), name }
}

/// A fresh empty database.
pub async fn empty_database() -> TestDatabase {
    database("empty", async |_| ()).await
}

async fn make_template(cluster: &Cluster, admin: &Client, template: &str, prepare: impl AsyncFnOnce(&str)) {
    // A preparation that panicked has left a half-made template.
    run(admin, &format!("DROP DATABASE IF EXISTS {template} WITH (FORCE)")).await;
    run(admin, &format!("CREATE DATABASE {template} TEMPLATE template0 ENCODING 'UTF8'")).await;
    let name = template.trim_matches('"');
    prepare(&cluster.url(name)).await;
    // From here on nobody comes back to it; those who are just leaving are waited for.
    run(admin, &format!("ALTER DATABASE {template} WITH ALLOW_CONNECTIONS false")).await;
    let quiet = try_eventually(TEMPLATE_QUIET_WITHIN, async || {
        let users = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'";
        let users: i64 = admin.query_one(users, &[&name]).await.expect("who uses the template").get(0);
        (users == 0).then_some(())
    })
    .await;
    assert!(quiet.is_some(), "the preparation of {template} left connections open; close its clients and pools");
}

/// Opens a connection to `url` and owns the task that drives it.
pub async fn connect(url: &str) -> Client {
    match try_connect(url).await {
        Ok(client) => client,
        Err(error) => panic!("no connection to {url}: {error:?}"),
    }
}

/// Like [`connect`], but gives the error: for tests in which PostgreSQL may be away.
pub async fn try_connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let task = tokio::spawn(async move {
        // What ends the connection also fails the statement that waits for it: there it is reported.
        let _ = connection.await;
    });
    Ok(Client { client, task })
}

/// A connected client of tokio-postgres; the connection ends when it is dropped.
#[derive(Debug)]
pub struct Client {
    client: tokio_postgres::Client,
    task: JoinHandle<()>,
}

impl Client {
    /// Closes the connection and waits until it is closed on our side.
    pub async fn close(self) {
        let Self { client, task } = self;
        drop(client);
        let _ = task.await;
    }
}

impl Deref for Client {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        &self.client
    }
}

impl std::ops::DerefMut for Client {
    fn deref_mut(&mut self) -> &mut tokio_postgres::Client {
        &mut self.client
    }
}

/// A database that belongs to one test. Removed some time after it is dropped, with whoever is still connected.
#[derive(Debug)]
pub struct TestDatabase {
    url: String,
    name: String,
}

impl TestDatabase {
    /// How to connect to it: `host=… user=… dbname=…`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A connected client.
    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Best effort: whatever is left goes away with the cluster.
        let _ = remover().send(std::mem::take(&mut self.name));
    }
}

/// Removes databases on a thread of its own: a test's runtime may be gone by the time that its database is dropped.
fn remover() -> &'static mpsc::Sender<String> {
    static REMOVER: OnceLock<mpsc::Sender<String>> = OnceLock::new();
    REMOVER.get_or_init(|| {
        let (names, queue) = mpsc::channel::<String>();
        std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                for name in queue {
                    let Some(cluster) = SHARED.get() else { return };
                    let Ok(admin) = try_connect(&cluster.url("postgres")).await else { return };
                    let _ = admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
                    admin.close().await;
                }
            });
        });
        names
    })
}

async fn run(admin: &Client, statement: &str) {
    if let Err(error) = admin.batch_execute(statement).await {
        panic!("{statement}: {error:?}");
    }
}

fn quoted(name: &str) -> String {
    assert!(
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
        "name a template with a-z, 0-9 and _ only, not {name:?}"
    );
    format!("\"{name}\"")
}
