//! PostgreSQL goes away under several workers: nobody is declared dead, nothing sticks, nobody has to do anything.

use std::time::Duration;

use surehook_testkit::postgres::{self, Cluster};
use surehook_testkit::receiver::{Answer, Receiver};

use super::yard::{Yard, arrivals, in_order, lasts};

const LANES: i32 = 50;
const EACH: i32 = 40;

/// Three workers amid a backlog, the fault, and everything is done afterwards.
async fn survive(fault: impl AsyncFnOnce(&Cluster)) {
    let (mut yard, cluster) = Yard::with_cluster().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(30))).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    let _workers = [yard.worker(), yard.worker(), yard.worker()];
    yard.alive(3).await;
    yard.backlog(LANES, EACH).await;
    receiver.wait_for(300).await;
    let before = receiver.requests().len();
    fault(&cluster).await;
    yard.sql = postgres::connect(&yard.url).await;
    yard.drained().await;
    yard.all_published(i64::from(LANES * EACH)).await;
    yard.nobody_was_declared_dead().await;
    let requests = receiver.requests();
    in_order(&requests);
    let arrivals = arrivals(&requests);
    assert_eq!(arrivals.len(), usize::try_from(LANES * EACH).unwrap());
    println!("{before} before the fault, {} came twice", requests.len() - arrivals.len());
}

async fn stopped_for(duration: Duration) {
    survive(async |cluster| {
        cluster.stop().await;
        lasts(duration).await;
        cluster.resume().await;
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_stopped_for_ten_seconds_makes_nobody_dead() {
    stopped_for(Duration::from_secs(10)).await;
}

#[tokio::test]
#[ignore = "takes over a minute; `./test --long` runs it"]
async fn a_database_that_is_stopped_for_a_minute_makes_nobody_dead() {
    stopped_for(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn a_database_that_stands_still_for_ten_seconds_makes_nobody_dead() {
    survive(async |cluster| {
        cluster.pause();
        lasts(Duration::from_secs(10)).await;
        cluster.go_on().await;
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_killed_again_and_again_makes_nobody_dead() {
    survive(async |cluster| {
        for _ in 0..3 {
            cluster.kill().await;
            cluster.resume().await;
        }
    })
    .await;
}
