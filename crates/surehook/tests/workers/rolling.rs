//! Three workers under load are replaced one after another, as a new version is brought out.

use std::time::Duration;

use surehook_testkit::receiver::{Answer, Receiver};

use super::world::SOON;
use super::yard::{Yard, arrivals, in_order};

const LANES: i32 = 40;
const A_TURN: i32 = 5;
const TURNS: i32 = 6;

#[tokio::test]
async fn a_rolling_restart_of_three_workers_loses_and_doubles_nothing() {
    let yard = Yard::new().await;
    let receiver = Receiver::start(|_| Answer::status(200).after(Duration::from_millis(30))).await;
    yard.endpoint(&receiver.url("/"), Duration::from_secs(30)).await;
    let mut workers = [yard.worker(), yard.worker(), yard.worker()];
    yard.alive(3).await;
    // Twice around. Each is replaced while there is work for all, and more comes.
    for turn in 0..TURNS {
        let more = "SELECT count(*) FROM (SELECT outbox_enqueue('Happened', 'key-' || lane, convert_to(lane || '/' || n, 'UTF8'))
                      FROM generate_series($2::integer, $3::integer) AS n, generate_series(1, $1::integer) AS lane) AS all_of_them";
        yard.sql.execute(more, &[&LANES, &(turn * A_TURN + 1), &((turn + 1) * A_TURN)]).await.unwrap();
        receiver.wait_for(usize::try_from(turn * LANES * A_TURN + LANES).unwrap()).await;
        let worker = &mut workers[usize::try_from(turn).unwrap() % 3];
        worker.signal("TERM");
        assert_eq!(worker.ended().await, Some(0));
        *worker = yard.worker();
        yard.until("SELECT count(*) FROM outbox_workers", 3).await;
    }
    yard.drained().await;
    let total = LANES * A_TURN * TURNS;
    yard.all_published(i64::from(total)).await;
    yard.nobody_was_declared_dead().await;
    let requests = receiver.requests();
    in_order(&requests);
    assert_eq!(arrivals(&requests).len(), usize::try_from(total).unwrap());
    assert_eq!(requests.len(), usize::try_from(total).unwrap(), "each arrived once, within {SOON:?}");
}
