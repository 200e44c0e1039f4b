//! Statements through a pooler that gives each transaction to another server process: what their parameters are is learnt
//! once, and then they are said without a name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::DatabaseError;
use super::session::Params;

/// Whether something stands between this program and PostgreSQL that hands out sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or something that keeps a session as it is: statements are prepared once for each session.
    #[default]
    None,
    /// A pooler in transaction mode (pgbouncer, pgcat, Supavisor): no statement outlives its transaction.
    Transaction,
}

/// Texts whose types are kept; more than the program has. Should somebody build texts without end, all are learnt anew.
const TEXTS_MAX: usize = 512;

type Learnt = HashMap<Box<str>, Arc<[Type]>>;

/// The types of the parameters of each statement, shared by the sessions of a pool.
#[derive(Clone, Debug, Default)]
pub(super) struct ParameterTypes(Arc<Mutex<Learnt>>);

impl ParameterTypes {
    /// The parameters of a statement, each with its type. Asks the server at the first time that it meets the text.
    pub(super) async fn add_to<'p>(
        &self,
        client: &Client,
        sql: &str,
        params: Params<'p>,
    ) -> Result<Vec<(&'p (dyn ToSql + Sync), Type)>, DatabaseError> {
        if params.is_empty() {
            return Ok(Vec::new());
        }
        let known = self.lock().get(sql).cloned();
        let types = match known {
            Some(types) => types,
            None => {
                let types = learn(client, sql).await?;
                let mut learnt = self.lock();
                if learnt.len() >= TEXTS_MAX {
                    learnt.clear();
                }
                learnt.insert(sql.into(), Arc::clone(&types));
                types
            }
        };
        if types.len() != params.len() {
            let (wanted, given) = (types.len(), params.len());
            return Err(unsuitable(&format!("a statement wants {wanted} parameters and was given {given}"), sql));
        }
        Ok(params.iter().copied().zip(types.iter().cloned()).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Learnt> {
        // What is in the map is whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the server in one message, which a pooler gives to one server process and PostgreSQL takes as one transaction. The
/// name is gone at its end, and should it ever stay behind, it is nobody else's.
async fn learn(client: &Client, sql: &str) -> Result<Arc<[Type]>, DatabaseError> {
    let name = format!("surehook_{}", uuid::Uuid::new_v4().simple());
    let question = format!(
        "PREPARE {name} AS {sql};
         SELECT array_to_string(parameter_types::oid[], ' ') FROM pg_catalog.pg_prepared_statements WHERE name = '{name}';
         DEALLOCATE {name}"
    );
    let answer = client.simple_query(&question).await?;
    let oids = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let oids = oids.ok_or_else(|| unsuitable("the server did not tell the types of a statement", sql))?;
    let type_of = |oid: &str| oid.parse().ok().and_then(Type::from_oid);
    let types: Option<Vec<Type>> = oids.split_whitespace().map(type_of).collect();
    types
        .map(Arc::from)
        .ok_or_else(|| unsuitable(&format!("a statement has parameters of unknown types ({oids})"), sql))
}

fn unsuitable(what: &str, sql: &str) -> DatabaseError {
    DatabaseError::Unsuitable(format!("{what}: {sql}"))
}
