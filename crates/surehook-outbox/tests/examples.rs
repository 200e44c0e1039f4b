//! The examples run, and do what they say.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL directly")]

mod common;

#[expect(dead_code, reason = "its main is for people")]
#[path = "../examples/cache_invalidation.rs"]
mod cache_invalidation;

#[expect(dead_code, reason = "its main is for people")]
#[path = "../examples/order_service.rs"]
mod order_service;

#[cfg(feature = "sqlx")]
#[expect(dead_code, reason = "its main is for people")]
#[path = "../examples/order_service_sqlx.rs"]
mod order_service_sqlx;

use common::Outbox;
use surehook_testkit::receiver::Receiver;

#[tokio::test]
async fn the_order_service_tells_of_committed_orders_only() {
    let outbox = Outbox::new().await;
    let receiver = Receiver::accepting().await;
    assert_eq!(order_service::run(outbox.test_database.url(), &receiver.url("/")).await.unwrap(), 2);
    let told: Vec<String> = receiver.requests().iter().map(|r| r.text().to_owned()).collect();
    assert_eq!(told.len(), 2);
    assert!(
        told.contains(&r#"{"order":1,"euros":20}"#.to_owned())
            && told.contains(&r#"{"order":3,"euros":30}"#.to_owned())
    );
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_events").await, 2);
}

#[cfg(feature = "sqlx")]
#[tokio::test]
async fn the_order_service_with_sqlx_does_the_same() {
    use surehook_outbox::Enqueued;

    let outbox = Outbox::new().await;
    // sqlx reads URLs only; a socket folder goes into the query.
    let url = outbox.test_database.url();
    let part = |name: &str| url.split(' ').find_map(|pair| pair.strip_prefix(&format!("{name}="))).unwrap_or_default();
    let url = format!("postgres://{}@localhost/{}?host={}", part("user"), part("dbname"), part("host"));
    let outcomes = order_service_sqlx::run(&url).await.unwrap();
    assert!(matches!(outcomes[..], [Enqueued::New(_), Enqueued::New(a), Enqueued::Already(b)] if a == b));
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_events").await, 2);
}

#[tokio::test]
async fn the_cache_forgets_what_was_changed() {
    let outbox = Outbox::new().await;
    let seen = cache_invalidation::run(outbox.test_database.url()).await.unwrap();
    assert_eq!(seen, ["20 euros", "25 euros"], "the old price from the cache, and the new one after the change");
}
