//! The database's machine is lost and its replica takes over: what was committed is delivered, and nobody has to tell the workers
//! anything but both addresses beforehand.

use std::time::Duration;

use surehook_testkit::postgres;
use surehook_testkit::receiver::{Answer, Receiver};

use super::world::SOON;
use super::yard::{Yard, arrivals, in_order};

const LANES: i32 = 50;
const EACH: i32 = 10;

#[tokio::test]
async fn a_promoted_replica_has_lost_nothing_that_was_committed() {
    let (mut yard, primary) = Yard::with_cluster().await;
    let replica = primary.replica().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(30))).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    // Whichever of the two takes changes.
    let folder = |url: &str| url.split_once(' ').unwrap().0.trim_start_matches("host=").to_owned();
    let (first, second) = (folder(&primary.url("surehook")), folder(&replica.url("surehook")));
    yard.url = format!("host={first},{second} user=postgres dbname=surehook target_session_attrs=read-write");
    let _workers = [yard.worker(), yard.worker(), yard.worker()];
    yard.alive(3).await;
    yard.backlog(LANES, EACH).await;
    receiver.wait_for(100).await;

    // Somebody enqueues all the while, one after the other, and notes what was acknowledged.
    let stranger = postgres::connect(&primary.url("surehook")).await;
    let (note, mut acknowledged) = tokio::sync::watch::channel(0);
    let enqueuing = tokio::spawn(async move {
        let enqueue = "SELECT outbox_enqueue('Happened', 'key-0', convert_to('0/' || $1::integer, 'UTF8'))";
        for n in 1.. {
            if stranger.execute(enqueue, &[&n]).await.is_err() {
                return;
            }
            note.send(n).unwrap();
        }
    });
    tokio::time::timeout(SOON, acknowledged.wait_for(|n| *n >= 30)).await.unwrap().unwrap();
    primary.kill().await;
    enqueuing.await.unwrap();
    let acknowledged: i32 = *acknowledged.borrow();
    replica.promote().await;

    yard.sql = postgres::connect(&replica.url("surehook")).await;
    yard.drained().await;
    let requests = receiver.requests();
    in_order(&requests);
    let arrived = arrivals(&requests);
    for lane in 1..=LANES {
        (1..=EACH).for_each(|n| assert!(arrived.contains_key(&format!("{lane}/{n}")), "{lane}/{n} is lost"));
    }
    (1..=acknowledged).for_each(|n| assert!(arrived.contains_key(&format!("0/{n}")), "0/{n} is lost"));
    // The last one may have been committed without an answer.
    let deliveries = i64::try_from(arrived.len()).unwrap();
    assert!((0..=1).contains(&(deliveries - i64::from(LANES * EACH) - i64::from(acknowledged))));
    yard.all_published(deliveries).await;
    yard.nobody_was_declared_dead().await;
    println!("{acknowledged} acknowledged meanwhile, {} came twice", requests.len() - arrived.len());
}
