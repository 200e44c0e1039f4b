//! Applies migrations: once each, in order, in one transaction, by whoever comes first.

use super::{Database, DatabaseError};

/// One step of a schema. An applied one never changes: its text is compared.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Dated name, in the order of application.
    pub name: &'static str,
    /// The statements.
    pub sql: &'static str,
}

/// The outbox's own schema.
pub const OUTBOX: &[Migration] = &[
    Migration { name: "20261202_outbox", sql: include_str!("../../migrations/20261202_outbox.sql") },
    Migration { name: "20261202_windows", sql: include_str!("../../migrations/20261202_windows.sql") },
    Migration { name: "20261202_retention", sql: include_str!("../../migrations/20261202_retention.sql") },
    Migration { name: "20261202_workers_lost", sql: include_str!("../../migrations/20261202_workers_lost.sql") },
    Migration { name: "20261202_jobs", sql: include_str!("../../migrations/20261202_jobs.sql") },
    Migration { name: "20261202_subscribers", sql: include_str!("../../migrations/20261202_subscribers.sql") },
    Migration { name: "20261203_backfill", sql: include_str!("../../migrations/20261203_backfill.sql") },
    Migration { name: "20261203_enqueue", sql: include_str!("../../migrations/20261203_enqueue.sql") },
];

/// What [`migrate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrated {
    /// This many migrations were applied now.
    Applied(usize),
    /// Nothing was due.
    UpToDate,
}

/// Brings the schema of `component` up to date. Ok: every migration is applied and committed. Err: nothing was changed.
/// May be repeated and run from several processes at once: an advisory lock lets one go first. Err also where a pooler stands
/// before the database of which nobody said anything ([`Database::refuse_unknown_pooler`]).
pub async fn migrate(
    database: &Database,
    component: &str,
    migrations: &[Migration],
) -> Result<Migrated, DatabaseError> {
    database.refuse_unknown_pooler().await?;
    let mut session = database.session().await?;
    let encoding: String = session.query_one("SHOW server_encoding", &[]).await?.get(0);
    if encoding != "UTF8" {
        return Err(DatabaseError::Unsuitable(format!(
            "the database's encoding is {encoding}, but UTF8 is needed; create it with: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )));
    }
    let transaction = session.transaction().await?;
    transaction
        .batch_execute(
            "SET LOCAL client_min_messages = warning;
             SELECT pg_advisory_xact_lock(hashtextextended('surehook migrations', 0));
             CREATE TABLE IF NOT EXISTS surehook_migrations (
                 component  text NOT NULL,
                 name       text NOT NULL,
                 text_hash  text NOT NULL,
                 applied_at timestamptz NOT NULL DEFAULT now(),
                 PRIMARY KEY (component, name)
             );
             COMMENT ON TABLE surehook_migrations IS 'Which steps of the schema were applied, and the hash of their text.';
             COMMENT ON COLUMN surehook_migrations.component IS 'Which set of steps: outbox, repositories or inbox.';
             COMMENT ON COLUMN surehook_migrations.name IS 'The step.';
             COMMENT ON COLUMN surehook_migrations.text_hash IS 'SHA-256 of its text, so that a changed step is noticed.';
             COMMENT ON COLUMN surehook_migrations.applied_at IS 'When it was applied.'",
        )
        .await?;
    let mut applied = 0;
    for migration in migrations {
        let row = transaction
            .query_opt(
                "SELECT text_hash, encode(sha256(convert_to($3, 'UTF8')), 'hex') FROM surehook_migrations WHERE component = $1 AND name = $2",
                &[&component, &migration.name, &migration.sql],
            )
            .await?;
        match row {
            Some(row) if row.get::<_, String>(0) == row.get::<_, String>(1) => {}
            Some(_) => {
                return Err(DatabaseError::MigrationChanged {
                    component: component.into(),
                    name: migration.name.into(),
                });
            }
            None => {
                transaction.batch_execute(migration.sql).await?;
                transaction
                    .execute(
                        "INSERT INTO surehook_migrations (component, name, text_hash) VALUES ($1, $2, encode(sha256(convert_to($3, 'UTF8')), 'hex'))",
                        &[&component, &migration.name, &migration.sql],
                    )
                    .await?;
                applied += 1;
            }
        }
    }
    transaction.commit().await?;
    Ok(if applied == 0 { Migrated::UpToDate } else { Migrated::Applied(applied) })
}

/// Whether any migration was ever applied to this database.
pub async fn was_applied(database: &Database) -> Result<bool, DatabaseError> {
    let session = database.session().await?;
    Ok(session.query_one("SELECT to_regclass('surehook_migrations') IS NOT NULL", &[]).await?.get(0))
}
