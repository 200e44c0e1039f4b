//! Subscribers within the process: the rules of every delivery, without HTTP.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests speak SQL directly, and panic where they cannot go on"
)]

mod common;

use std::sync::{Arc, Mutex};

use common::{Outbox, settings};
use surehook_outbox::endpoint::{EndpointChange, Scope};
use surehook_outbox::store::endpoints::{self, EndpointError, NewEndpoint};
use surehook_outbox::subscriber::{Subscriber, Told};
use surehook_outbox::{Subscribers, Worker, WorkerSettings};

/// What handlers were told, in the order in which that was.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Told>>>);

impl Heard {
    fn note(&self, told: Told) -> String {
        let text = String::from_utf8(told.payload.to_vec()).unwrap();
        self.0.lock().unwrap().push(told);
        text
    }

    fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|told| String::from_utf8(told.payload.to_vec()).unwrap()).collect()
    }
}

async fn subscribe(outbox: &Outbox, name: &str) {
    let quickly = EndpointChange {
        timeout_ms: Some(300),
        retry_max_delay_ms: Some(20),
        max_attempts: Some(3),
        ..EndpointChange::default()
    };
    endpoints::subscribe(&outbox.database, name, Scope::All, quickly).await.unwrap();
}

fn worker_with(outbox: &Outbox, name: &str, subscriber: impl Subscriber) -> Worker {
    let subscribers = Subscribers::default().with(name, subscriber);
    outbox.worker_with(WorkerSettings { subscribers, ..settings() })
}

#[tokio::test]
async fn a_handler_is_told_in_order_again_after_a_failure_and_not_for_ever() {
    let outbox = Outbox::new().await;
    subscribe(&outbox, "cache").await;
    for text in ["one", "fails once", "panics", "fails", "hangs once", "last"] {
        outbox.tell_quietly("a", text.as_bytes()).await;
    }
    let heard = Heard::default();
    let noting = heard.clone();
    let worker = worker_with(&outbox, "cache", move |told: Told| {
        let tried = told.tried;
        let text = noting.note(told);
        async move {
            match (text.as_str(), tried) {
                ("panics", _) => panic!("a handler that panics"),
                ("fails", _) | ("fails once", 0) => Err("no such cache".into()),
                ("hangs once", 0) => std::future::pending().await,
                _ => Ok(()),
            }
        }
    });
    outbox.drained().await;
    worker.stop().await;
    let expected = [
        "one",
        "fails once",
        "fails once",
        "panics",
        "panics",
        "panics",
        "fails",
        "fails",
        "fails",
        "hangs once",
        "hangs once",
        "last",
    ];
    assert_eq!(heard.texts(), expected);
    assert_eq!(outbox.states().await, [("failed".to_owned(), 2), ("published".to_owned(), 4)]);
    let errors = outbox.sql.query("SELECT last_error FROM outbox_dlq ORDER BY seq", &[]).await.unwrap();
    let errors: Vec<&str> = errors.iter().map(|row| row.get(0)).collect();
    assert_eq!(errors, ["subscriber cache panicked", "subscriber cache: no such cache"]);
    let told = heard.0.lock().unwrap();
    assert_eq!(told[1].delivery_id, told[2].delivery_id, "a retry is told under its id");
    assert!(!told[9].may_be_repeat && told[10].may_be_repeat, "a handler that took too long may have done it");
}

#[tokio::test]
async fn what_no_worker_here_can_handle_waits_for_one_that_can() {
    let outbox = Outbox::new().await;
    subscribe(&outbox, "cache").await;
    outbox.tell("a", "for the cache").await;
    let heard = Heard::default();
    let noting = heard.clone();
    let other = worker_with(&outbox, "search", |_: Told| async { panic!("nothing was told to this one") });
    // It has looked.
    outbox.until("SELECT coalesce(sum(heartbeat), 0) >= 2 FROM outbox_workers").await;
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_lanes WHERE epoch > 0").await, 0, "nobody touched it");
    let worker = worker_with(&outbox, "cache", move |told: Told| {
        noting.note(told);
        async { Ok(()) }
    });
    outbox.drained().await;
    worker.stop().await;
    other.stop().await;
    assert_eq!(heard.texts(), ["for the cache"]);
}

#[tokio::test]
async fn what_a_stopped_worker_had_in_hand_is_handled_by_the_next() {
    let outbox = Outbox::new().await;
    subscribe(&outbox, "cache").await;
    outbox.sql.execute("UPDATE endpoints SET timeout_ms = 60000, updated_at = now()", &[]).await.unwrap();
    outbox.tell("a", "x").await;
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let first = worker_with(&outbox, "cache", move |_: Told| {
        begun.send(()).unwrap();
        std::future::pending()
    });
    tokio::time::timeout(common::SOON, has_begun.recv()).await.unwrap().unwrap();
    first.stop_now().await;
    let heard = Heard::default();
    let noting = heard.clone();
    let second = worker_with(&outbox, "cache", move |told: Told| {
        noting.note(told);
        async { Ok(()) }
    });
    outbox.drained().await;
    second.stop().await;
    assert_eq!(heard.texts(), ["x"]);
    assert_eq!(outbox.count("SELECT count(*) FROM outbox_attempts").await, 1, "the abandoned try is charged to nobody");
}

#[tokio::test]
async fn subscribing_again_is_harmless_and_a_name_means_one_thing() {
    let outbox = Outbox::new().await;
    let add = |name: &'static str| endpoints::subscribe(&outbox.database, name, Scope::All, EndpointChange::default());
    let first = add("cache").await.unwrap();
    assert_eq!(add("cache").await.unwrap().endpoint_id, first.endpoint_id);
    endpoints::add(&outbox.database, NewEndpoint::new("ci", "https://ci.example.com/", Scope::All)).await.unwrap();
    assert!(matches!(add("ci").await, Err(EndpointError::NameTaken(_))));
    assert!(matches!(add("not a name").await, Err(EndpointError::Invalid(_))));
    let rendered = NewEndpoint { format: "github".into(), ..NewEndpoint::new("x", "subscriber:x", Scope::All) };
    assert!(matches!(endpoints::add(&outbox.database, rendered).await, Err(EndpointError::Invalid(_))));
}
