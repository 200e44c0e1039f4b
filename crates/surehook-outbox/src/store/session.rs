//! Sessions and transactions as the SQL of all crates sees them: statements by their text, prepared once where that may be.
//! Holds no SQL of its own.

use std::future::Future;

use deadpool_postgres::StatementCache;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, SimpleQueryMessage, Statement};

use super::DatabaseError;
use super::pooler::ParameterTypes;

/// The values of a statement's parameters `$1`, `$2`, ….
pub type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Texts that a session keeps prepared. The texts of this program are fewer; should somebody build them without end, all are
/// forgotten here and begin anew.
const PREPARED_MAX: usize = 256;

/// A session taken from the pool; given back when dropped. Every method: Err leaves nothing changed, or, where the answer
/// was lost, the change is made or not as a whole.
#[derive(Debug)]
pub struct Session {
    object: deadpool_postgres::Object,
    types: Option<ParameterTypes>,
}

/// A transaction of a [`Session`]; rolled back when dropped. Every method: Err aborts it.
#[derive(Debug)]
pub struct Transaction<'a> {
    driver: deadpool_postgres::Transaction<'a>,
    types: Option<&'a ParameterTypes>,
}

/// Where statements can be said: a [`Session`], a [`Transaction`], or a session or transaction of the driver that a
/// service brings along. What is said there means the same everywhere.
pub trait Sql: sealed::Spoken + Sync {
    /// All rows of a statement.
    fn query(&self, sql: &str, params: Params<'_>) -> impl Future<Output = Result<Vec<Row>, DatabaseError>> + Send {
        async move { self.line().query(sql, params).await }
    }

    /// The one row of a statement; Err if there is none or more.
    fn query_one(&self, sql: &str, params: Params<'_>) -> impl Future<Output = Result<Row, DatabaseError>> + Send {
        async move { self.line().query_one(sql, params).await }
    }

    /// The row of a statement, if there is one; Err if there are more.
    fn query_opt(
        &self,
        sql: &str,
        params: Params<'_>,
    ) -> impl Future<Output = Result<Option<Row>, DatabaseError>> + Send {
        async move { self.line().query_opt(sql, params).await }
    }

    /// Says a statement; returns how many rows it touched.
    fn execute(&self, sql: &str, params: Params<'_>) -> impl Future<Output = Result<u64, DatabaseError>> + Send {
        async move { self.line().execute(sql, params).await }
    }
}

impl<Speaker: sealed::Spoken + Sync> Sql for Speaker {}

mod sealed {
    use super::Line;

    pub trait Spoken {
        fn line(&self) -> Line<'_>;
    }
}

impl Session {
    pub(super) fn new(object: deadpool_postgres::Object, types: Option<ParameterTypes>) -> Self {
        Self { object, types }
    }

    /// Whether a pooler may give each of its transactions to another server process.
    pub fn is_pooled(&self) -> bool {
        self.types.is_some()
    }

    /// Begins a transaction.
    pub async fn transaction(&mut self) -> Result<Transaction<'_>, DatabaseError> {
        Ok(Transaction { driver: self.object.transaction().await?, types: self.types.as_ref() })
    }
}

impl Transaction<'_> {
    /// Ok: everything that was said in it holds. Err: nothing does, or, where the answer was lost, everything.
    pub async fn commit(self) -> Result<(), DatabaseError> {
        Ok(self.driver.commit().await?)
    }

    /// Nothing that was said in it holds.
    pub async fn rollback(self) -> Result<(), DatabaseError> {
        Ok(self.driver.rollback().await?)
    }
}

impl sealed::Spoken for Session {
    fn line(&self) -> Line<'_> {
        Line { client: &self.object, how: How::of(self.types.as_ref(), &self.object.statement_cache) }
    }
}

impl sealed::Spoken for Transaction<'_> {
    fn line(&self) -> Line<'_> {
        Line { client: self.driver.client(), how: How::of(self.types, &self.driver.statement_cache) }
    }
}

impl sealed::Spoken for Client {
    fn line(&self) -> Line<'_> {
        Line { client: self, how: How::PreparedEachTime }
    }
}

impl sealed::Spoken for tokio_postgres::Transaction<'_> {
    fn line(&self) -> Line<'_> {
        Line { client: self.client(), how: How::PreparedEachTime }
    }
}

impl sealed::Spoken for deadpool_postgres::Transaction<'_> {
    fn line(&self) -> Line<'_> {
        Line { client: self.client(), how: How::PreparedOnce(&self.statement_cache) }
    }
}

/// The methods of [`Sql`] where it need not be in scope.
macro_rules! say_statements {
    ($speaker:ty) => {
        impl $speaker {
            /// All rows of a statement.
            pub async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, DatabaseError> {
                sealed::Spoken::line(self).query(sql, params).await
            }

            /// The one row of a statement; Err if there is none or more.
            pub async fn query_one(&self, sql: &str, params: Params<'_>) -> Result<Row, DatabaseError> {
                sealed::Spoken::line(self).query_one(sql, params).await
            }

            /// The row of a statement, if there is one; Err if there are more.
            pub async fn query_opt(&self, sql: &str, params: Params<'_>) -> Result<Option<Row>, DatabaseError> {
                sealed::Spoken::line(self).query_opt(sql, params).await
            }

            /// Says a statement; returns how many rows it touched.
            pub async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64, DatabaseError> {
                sealed::Spoken::line(self).execute(sql, params).await
            }

            /// Which of the server's processes answers, and since when that server runs. Said without preparing anything.
            pub(super) async fn server_process(&self) -> Result<Option<String>, DatabaseError> {
                let question = "SELECT pg_backend_pid()::text || ' ' || pg_postmaster_start_time()::text";
                let answer = sealed::Spoken::line(self).client.simple_query(question).await?;
                Ok(answer.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                }))
            }

            /// Says several statements without parameters, as one.
            pub async fn batch_execute(&self, sql: &str) -> Result<(), DatabaseError> {
                Ok(sealed::Spoken::line(self).client.batch_execute(sql).await?)
            }
        }
    };
}

say_statements!(Session);
say_statements!(Transaction<'_>);

/// One session with the way in which it says statements.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    client: &'a Client,
    how: How<'a>,
}

#[derive(Clone, Copy)]
enum How<'a> {
    /// Prepared at the first time, and kept.
    PreparedOnce(&'a StatementCache),
    /// Prepared, said, and closed: a session of whose other statements we know nothing.
    PreparedEachTime,
    /// Without a name, with types that are known: behind a pooler that gives each transaction to another server process.
    Unnamed(&'a ParameterTypes),
}

impl<'a> How<'a> {
    fn of(types: Option<&'a ParameterTypes>, cache: &'a StatementCache) -> Self {
        types.map_or(Self::PreparedOnce(cache), Self::Unnamed)
    }
}

macro_rules! in_each_way {
    ($line:ident, $sql:ident, $params:ident, $named:ident, $unnamed:ident) => {
        match $line.how {
            How::PreparedOnce(cache) => {
                let statement = prepared($line.client, cache, $sql).await?;
                checked(cache, $sql, $line.client.$named(&statement, $params).await)
            }
            How::PreparedEachTime => Ok($line.client.$named($sql, $params).await?),
            How::Unnamed(types) => {
                let typed = types.add_to($line.client, $sql, $params).await?;
                Ok($line.client.$unnamed($sql, &typed).await?)
            }
        }
    };
}

impl Line<'_> {
    async fn query(self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, DatabaseError> {
        in_each_way!(self, sql, params, query, query_typed)
    }

    async fn query_one(self, sql: &str, params: Params<'_>) -> Result<Row, DatabaseError> {
        in_each_way!(self, sql, params, query_one, query_typed_one)
    }

    async fn query_opt(self, sql: &str, params: Params<'_>) -> Result<Option<Row>, DatabaseError> {
        in_each_way!(self, sql, params, query_opt, query_typed_opt)
    }

    async fn execute(self, sql: &str, params: Params<'_>) -> Result<u64, DatabaseError> {
        in_each_way!(self, sql, params, execute, execute_typed)
    }
}

async fn prepared(client: &Client, cache: &StatementCache, sql: &str) -> Result<Statement, DatabaseError> {
    if cache.size() >= PREPARED_MAX {
        cache.clear();
    }
    Ok(cache.prepare(client, sql).await?)
}

/// A statement that the server no longer has, or whose result has changed its shape (a migration), is prepared anew at the
/// next time.
fn checked<T>(cache: &StatementCache, sql: &str, result: Result<T, tokio_postgres::Error>) -> Result<T, DatabaseError> {
    let again = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    if result.as_ref().is_err_and(|error| error.code().is_some_and(|code| again.contains(code))) {
        cache.remove(sql, &[]);
    }
    Ok(result?)
}
