//! The memory of ids in PostgreSQL: once means once, and only what is committed counts.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests may panic and speak SQL")]

use surehook_testkit::postgres::{TestDatabase, database};
use surehook_webhook::store::postgres::{MIGRATION, PostgresSeen};
use surehook_webhook::{Recorded, SeenStore as _, body_hash};

async fn fresh() -> TestDatabase {
    database("seen", async |url| {
        let client = surehook_testkit::postgres::connect(url).await;
        client.batch_execute(MIGRATION).await.unwrap();
        client.batch_execute(MIGRATION).await.unwrap();
        client.close().await;
    })
    .await
}

async fn record(database: &TestDatabase, id: &str, body: &[u8], commit: bool) -> Recorded {
    let mut client = database.client().await;
    let transaction = client.transaction().await.unwrap();
    let recorded = PostgresSeen::new(&transaction).record(id, &body_hash(body)).await.unwrap();
    if commit {
        transaction.commit().await.unwrap();
    } else {
        transaction.rollback().await.unwrap();
    }
    recorded
}

#[tokio::test]
async fn an_id_is_new_until_its_transaction_has_committed() {
    let database = fresh().await;
    assert_eq!(record(&database, "1", b"a", false).await, Recorded::New);
    assert_eq!(record(&database, "1", b"a", true).await, Recorded::New);
    assert_eq!(record(&database, "1", b"a", true).await, Recorded::Seen { same_body: true });
    assert_eq!(record(&database, "1", b"b", true).await, Recorded::Seen { same_body: false });
    assert_eq!(record(&database, "2", b"a", true).await, Recorded::New);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_at_once_exactly_one_is_new() {
    let database = fresh().await;
    let tasks: Vec<_> = std::iter::repeat_with(|| record(&database, "1", b"a", true)).take(16).collect();
    let mut recorded = Vec::new();
    // Polled together, so that their transactions overlap.
    let mut tasks: Vec<_> = tasks.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        tasks.retain_mut(|task| match task.as_mut().poll(context) {
            std::task::Poll::Ready(one) => {
                recorded.push(one);
                false
            }
            std::task::Poll::Pending => true,
        });
        if tasks.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(recorded.iter().filter(|one| **one == Recorded::New).count(), 1, "{recorded:?}");
}
