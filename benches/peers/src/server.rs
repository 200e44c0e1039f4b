//! The PostgreSQL of a measurement: a server of its own with default durability, a fresh database for each run, and a
//! look at its sessions several times a second.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use surehook_testkit::postgres::{self, Client, Cluster, Settings};
use tokio::task::JoinHandle;

use crate::contender::PRODUCER;

/// How often its sessions are looked at.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Server {
    cluster: Cluster,
    admin: Client,
    made: u32,
}

/// What was seen of the sessions with one database, besides those of a producer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) most: i64,
    /// The longest that a transaction was seen open.
    pub(crate) transaction_longest: Duration,
}

impl Server {
    /// With one more setting, if it is needed.
    pub(crate) async fn start(setting: Option<&str>) -> Result<Self> {
        let more = setting.map(String::from).into_iter().collect();
        let cluster = Cluster::start(Settings { durable: true, more, ..Settings::default() }).await;
        let admin = postgres::connect(&cluster.url("postgres")).await;
        Ok(Self { cluster, admin, made: 0 })
    }

    /// The folder of its socket.
    pub(crate) fn socket(&self) -> Result<PathBuf> {
        Ok(self.cluster.data().parent().context("the data has no folder")?.to_owned())
    }

    pub(crate) fn id(&self) -> u32 {
        self.cluster.pid().unwrap_or(0)
    }

    pub(crate) async fn version(&self) -> Result<String> {
        Ok(self.admin.query_one("SHOW server_version", &[]).await?.get(0))
    }

    /// A connection of the one who measures.
    pub(crate) async fn connect(&self, database: &str) -> Client {
        postgres::connect(&format!("{} application_name={PRODUCER}", self.cluster.url(database))).await
    }

    /// Makes an empty database.
    pub(crate) async fn create(&mut self) -> Result<String> {
        self.made += 1;
        let name = format!("run_{}", self.made);
        self.admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        Ok(name)
    }

    /// What autovacuum and the checkpointer would do before long; done before the clock runs, for everyone alike.
    pub(crate) async fn rest(&self, database: &str) -> Result<()> {
        let client = self.connect(database).await;
        client.batch_execute("VACUUM ANALYZE").await?;
        client.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    pub(crate) async fn remove(&self, database: &str) -> Result<()> {
        Ok(self.admin.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await?)
    }

    /// Watches the sessions with a database until it is asked.
    pub(crate) async fn watch(&self, database: &str) -> Watch {
        let client = postgres::connect(&self.cluster.url("postgres")).await;
        let database = database.to_owned();
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let sql = "SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
                         FROM pg_stat_activity
                        WHERE datname = $1 AND backend_type = 'client backend' AND application_name <> $2";
            let sql = client.prepare(sql).await?;
            let mut seen = Sessions::default();
            loop {
                let row = client.query_one(&sql, &[&database, &PRODUCER]).await?;
                seen.most = seen.most.max(row.get(0));
                let open = Duration::from_secs_f64(row.get::<_, f64>(1).max(0.0));
                seen.transaction_longest = seen.transaction_longest.max(open);
                if tokio::time::timeout(LOOK, &mut stopped).await.is_ok() {
                    return Ok(seen);
                }
            }
        });
        Watch { task, stop }
    }
}

pub(crate) struct Watch {
    task: JoinHandle<Result<Sessions>>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Watch {
    pub(crate) async fn seen(self) -> Result<Sessions> {
        // It may have ended with an error, which is what is given then.
        let _ = self.stop.send(());
        self.task.await?
    }
}
