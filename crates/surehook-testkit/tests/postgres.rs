//! The test databases themselves, on a real PostgreSQL.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL")]

use std::sync::atomic::{AtomicUsize, Ordering};

use surehook_testkit::postgres::{self, Cluster, Settings};

async fn numbers(prepared: &AtomicUsize) -> postgres::TestDatabase {
    postgres::database("numbers", async |url| {
        prepared.fetch_add(1, Ordering::SeqCst);
        let client = postgres::connect(url).await;
        client.batch_execute("CREATE TABLE numbers (n bigint)").await.expect("a table");
    })
    .await
}

#[tokio::test]
async fn each_test_has_a_database_of_its_own_from_one_template() {
    let prepared = AtomicUsize::new(0);
    let (one, two) = tokio::join!(numbers(&prepared), numbers(&prepared));
    let (one, two) = (one.client().await, two.client().await);
    one.execute("INSERT INTO numbers VALUES (1)", &[]).await.unwrap();
    let seen: i64 = two.query_one("SELECT count(*) FROM numbers", &[]).await.unwrap().get(0);
    assert_eq!(seen, 0);
    assert_eq!(prepared.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_cluster_can_be_killed_and_comes_back_with_its_data() {
    let cluster = Cluster::start(Settings { durable: true, ..Settings::default() }).await;
    let url = cluster.url("postgres");
    let client = postgres::connect(&url).await;
    client.batch_execute("CREATE TABLE kept (n bigint); INSERT INTO kept VALUES (7)").await.unwrap();
    cluster.kill().await;
    assert!(postgres::try_connect(&url).await.is_err());
    cluster.resume().await;
    cluster.restart().await;
    let client = postgres::connect(&url).await;
    assert_eq!(client.query_one("SELECT n FROM kept", &[]).await.unwrap().get::<_, i64>(0), 7);
    let folder = cluster.data();
    drop(cluster);
    assert!(!folder.exists());
}
