//! One of several workers is killed or paused: the others take over, and what it still says is discarded.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use surehook_testkit::eventually;
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::SOON;
use super::yard::{Yard, arrivals, in_order};

const HELD: &str = "SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL";

#[tokio::test]
async fn a_killed_workers_256_deliveries_are_done_by_the_other_two() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::Hang).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(60)).await;
    yard.backlog(256, 1).await;
    let mut victim = yard.worker();
    receiver.wait_for(256).await;
    let _others = [yard.worker(), yard.worker()];
    yard.alive(3).await;
    assert_eq!(yard.count(HELD).await, 256);

    receiver.answer_all(Answer::status(200).after(Duration::from_millis(500)));
    victim.signal("KILL");
    let killed = Instant::now();
    victim.ended().await;
    yard.until("SELECT count(*) FROM outbox_workers", 2).await;
    let noticed = Instant::now();
    yard.drained().await;
    println!("noticed after {:?}, all done {:?} later", noticed - killed, noticed.elapsed());
    yard.all_published(256).await;
    let arrivals = arrivals(&receiver.requests());
    assert!(arrivals.len() == 256 && arrivals.values().all(|times| *times == 2), "each once more, and none more often");
    assert_eq!(yard.count("SELECT count(*) FROM charges WHERE crashes = 1").await, 256);
    assert_eq!(yard.count("SELECT count(*) FROM charges").await, 256);
    assert!(noticed - killed < Duration::from_secs(30), "long before the lease of 70 s ends");
}

#[tokio::test]
async fn a_paused_workers_late_words_are_discarded_and_it_sends_nothing_old() {
    let yard = Yard::new().await;
    // The answer to a first try waits for a worker that is paused; whoever comes second is answered at once.
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let receiver = Receiver::start(move |request| {
        let first = seen.lock().unwrap().insert(request.text().to_owned());
        if first && request.text().ends_with("/1") {
            Answer::status(200).after(Duration::from_secs(2))
        } else {
            Answer::status(200)
        }
    })
    .await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(60)).await;
    yard.backlog(40, 5).await;
    let paused = yard.worker();
    receiver.wait_for(40).await;
    paused.signal("STOP");
    let mut other = yard.worker();
    yard.drained().await;
    yard.all_published(200).await;
    let before = receiver.requests().len();
    paused.signal("CONT");
    // It is alive again when it has beaten, and has said what it had to say when it holds nothing and takes new work.
    yard.alive(2).await;
    other.signal("TERM");
    other.ended().await;
    yard.backlog(40, 1).await;
    receiver.wait_for(before + 40).await;
    yard.drained().await;
    yard.all_published(240).await;
    assert!(yard.log().contains("others took over what it held"), "{}", yard.log());

    let requests = receiver.requests();
    for (body, times) in arrivals(&requests[..before]) {
        let expected = if body.ends_with("/1") { 2 } else { 1 };
        assert_eq!(times, expected, "{body}: only what was in flight comes twice");
    }
    assert_eq!(requests.len(), before + 40, "the paused worker sent nothing of what it had held");
    in_order(&requests[..before]);
}

#[tokio::test]
async fn kills_and_pauses_of_three_workers_lose_and_double_nothing() {
    const LANES: i32 = 60;
    const EACH: i32 = 30;
    let yard = Yard::new().await;
    // So slow that there is work until the last kill.
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(700))).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    yard.backlog(LANES, EACH).await;
    let mut workers = [yard.worker(), yard.worker(), yard.worker()];
    for round in 0..4usize {
        receiver.wait_for((round + 1) * 200).await;
        workers[round % 3].signal("KILL");
        workers[round % 3].ended().await;
        workers[(round + 1) % 3].signal("STOP");
        workers[round % 3] = yard.worker();
        // Lasts until the others have noticed.
        let noticed = "a worker's heartbeat stands still";
        eventually(SOON, async || (yard.log().matches(noticed).count() >= 2 * (round + 1)).then_some(())).await;
        workers[(round + 1) % 3].signal("CONT");
        // It is the next to be killed, and who is killed before it has beaten again is nobody's loss to notice.
        yard.alive(3).await;
    }
    yard.drained().await;
    yard.all_published(i64::from(LANES * EACH)).await;
    let requests = receiver.requests();
    in_order(&requests);
    let doubles = requests.len() - usize::try_from(LANES * EACH).unwrap();
    println!("{doubles} of {} came twice", LANES * EACH);
    assert!(doubles <= 8 * 60, "at each kill or pause at most what was in flight");
}

#[tokio::test]
async fn a_delivery_that_kills_its_workers_is_given_up_and_harms_no_neighbour() {
    let yard = Yard::new().await;
    let (told, mut poisoned) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::start(move |request| {
        if request.text() == "7/1" {
            told.send(()).unwrap();
            return Answer::Hang;
        }
        Answer::status(200).after(Duration::from_millis(300))
    })
    .await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(60)).await;
    yard.backlog(12, 2).await;
    for _ in 0..3 {
        let mut worker = yard.worker();
        tokio::time::timeout(SOON, poisoned.recv()).await.unwrap();
        worker.signal("KILL");
        worker.ended().await;
    }
    let _last = yard.worker();
    yard.drained().await;
    let dead = yard.sql.query("SELECT convert_from(body, 'UTF8'), reason FROM outbox_dlq", &[]).await.unwrap();
    let dead: Vec<(&str, &str)> = dead.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(dead, [("7/1", "crashed_worker")]);
    assert_eq!(yard.count("SELECT count(*) FROM outbox_attempts WHERE ends = 'published'").await, 23);
    let third = yard.sql.query("SELECT lane_id FROM charges WHERE crashes = 3", &[]).await.unwrap();
    assert_eq!(third.len(), 1, "nobody else was in hand at the third crash");
}

#[tokio::test]
async fn restarts_in_a_row_charge_nobody_and_lose_nothing() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(30))).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    yard.backlog(40, 20).await;
    for round in 0..8 {
        let mut worker = yard.worker();
        receiver.wait_for((round + 1) * 40).await;
        worker.signal("TERM");
        assert_eq!(worker.ended().await, Some(0));
        assert_eq!(yard.count(HELD).await, 0, "all is given back");
        assert_eq!(yard.count("SELECT count(*) FROM outbox_workers").await, 0);
    }
    let _last = yard.worker();
    yard.drained().await;
    yard.all_published(800).await;
    yard.nobody_was_declared_dead().await;
    assert_eq!(receiver.requests().len(), 800, "each arrived once");
    in_order(&receiver.requests());
}
