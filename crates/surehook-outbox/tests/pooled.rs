//! The suites of enqueue, claim, deliver, replay and operate once more, through a pgbouncer in transaction mode that has several
//! server sessions and takes turns with them; and what is said to those who do not name theirs.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::duplicate_mod,
    reason = "tests panic where they cannot go on; each suite brings what it shares with the others"
)]

#[path = "claim.rs"]
mod claim;
#[path = "deliver.rs"]
mod deliver;
#[path = "enqueue.rs"]
mod enqueue;
#[path = "operate.rs"]
mod operate;
#[path = "replay.rs"]
mod replay;

use surehook_outbox::store::migrate::{OUTBOX, migrate};
use surehook_outbox::{Database, DatabaseError, Pooler};
use surehook_testkit::postgres::{self, Pgbouncer};

#[tokio::test]
async fn the_schema_is_made_through_a_pooler_and_an_unnamed_one_is_refused() {
    for servers in [1, 2, 5] {
        let empty = postgres::empty_database().await;
        let Some(pgbouncer) = Pgbouncer::start(postgres::shared().await, servers).await else { return };
        let url = pgbouncer.url(empty.name());
        let unnamed = Database::connect(&url, "test", 3).unwrap();
        for _ in 0..3 {
            let error = migrate(&unnamed, "outbox", OUTBOX).await.unwrap_err();
            assert!(matches!(error, DatabaseError::UnknownPooler), "{error}");
            assert!(error.is_of_an_unknown_pooler() && !error.is_away());
        }
        unnamed.close().await;
        let named = Database::connect_through(Pooler::Transaction, &url, "test", 3).unwrap();
        migrate(&named, "outbox", OUTBOX).await.unwrap();
        named.close().await;
        let direct = Database::connect(empty.url(), "test", 3).unwrap();
        migrate(&direct, "outbox", OUTBOX).await.unwrap();
        direct.close().await;
    }
}

/// A statement that was prepared in one server session is said in another; the error says why it is not there.
#[tokio::test]
async fn a_statement_that_goes_astray_says_what_stands_before_the_database() {
    let empty = postgres::empty_database().await;
    let Some(pgbouncer) = Pgbouncer::start(postgres::shared().await, 2).await else { return };
    let url = pgbouncer.url(empty.name());
    let database = Database::connect(&url, "test", 2).unwrap();
    let (one, mut two) = (database.session().await.unwrap(), database.session().await.unwrap());
    let sum = async || one.query_one("SELECT $1::bigint + 1", &[&1i64]).await;
    assert_eq!(sum().await.unwrap().get::<_, i64>(0), 2);
    // It takes the only server session that there is yet.
    let transaction = two.transaction().await.unwrap();
    let error = sum().await.unwrap_err();
    transaction.rollback().await.unwrap();
    assert!(error.is_of_an_unknown_pooler() && !error.is_away(), "{error}");
    assert!(error.to_string().contains("pooler"), "{error}");
}
