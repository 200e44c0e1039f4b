//! Walks through the model of delivery, through its twins that have one protection less, and through what is known not to hold,
//! with and without what would mend it. Prints what each walk took, and each story that breaks a property, with `--nocapture`.

mod common;

use surehook_models::delivery::truth::{
    CHANGED_MIND, DISCARDED, FINISHED, IN_HAND, INNOCENT, NO_LOSS, ONE, ORDER, RECOVERS, REPEAT, TAKEOVER,
};
use surehook_models::delivery::{Bounds, Delivery, Guards, Mends};

fn with(change: impl Fn(&mut Bounds)) -> Bounds {
    let mut bounds = Bounds::CALM;
    change(&mut bounds);
    bounds
}

fn holds(run: &str, bounds: Bounds, states_min: usize, reached: &[&str]) {
    common::holds(run, Delivery::new(bounds), states_min, reached);
}

/// Without one protection the property is broken.
fn breaks(run: &str, property: &'static str, bounds: Bounds, without: impl Fn(&mut Guards)) {
    let mut guards = Guards::ALL;
    without(&mut guards);
    common::breaks(run, Delivery { guards, ..Delivery::new(bounds) }, property);
}

const ALL: [&str; 4] = [TAKEOVER, DISCARDED, REPEAT, FINISHED];

#[test]
fn it_holds_when_nothing_fails() {
    holds("calm", Bounds::CALM, 68_000, &ALL);
}

#[test]
fn it_holds_when_a_lane_is_claimed_three_times() {
    holds("three claims", with(|b| (b.deliveries, b.claims, b.kills) = (1, 3, 1)), 110_000, &ALL);
}

#[test]
fn it_holds_when_something_is_put_in_meanwhile() {
    holds("later", with(|b| (b.deliveries, b.later) = (1, 1)), 100_000, &ALL);
}

#[test]
fn it_holds_when_a_worker_is_killed() {
    holds("kill", with(|b| b.kills = 1), 100_000, &ALL);
}

#[test]
fn it_holds_when_a_worker_is_stopped() {
    holds("stop", with(|b| (b.deliveries, b.stops) = (1, 1)), 290_000, &ALL);
}

#[test]
fn it_holds_when_a_worker_is_stopped_within_its_lease() {
    holds("stop, long lease", with(|b| (b.deliveries, b.stops, b.lease) = (1, 1, 7)), 410_000, &ALL);
}

#[test]
fn it_holds_when_one_worker_is_stopped_and_one_killed() {
    holds("stop and kill", with(|b| (b.deliveries, b.stops, b.kills) = (1, 1, 1)), 380_000, &ALL);
}

#[test]
fn it_holds_when_the_database_is_away() {
    holds("outage", with(|b| b.outages = 1), 720_000, &ALL);
}

#[test]
fn it_holds_when_the_database_is_away_and_a_worker_is_killed() {
    holds("outage and kill", with(|b| (b.deliveries, b.outages, b.kills) = (1, 1, 1)), 230_000, &ALL);
}

#[test]
fn it_holds_when_an_answer_of_the_database_is_lost() {
    holds("lost answer", with(|b| b.lost_answers = 1), 330_000, &ALL);
    // What was claimed unheard is given back, which counts as a claim.
    holds("lost answer, three claims", with(|b| (b.deliveries, b.lost_answers, b.claims) = (1, 1, 3)), 370_000, &ALL);
}

#[test]
fn it_holds_when_the_database_is_away_and_an_answer_is_lost() {
    holds("outage and lost answer", with(|b| (b.deliveries, b.outages, b.lost_answers) = (1, 1, 1)), 740_000, &ALL);
}

#[test]
fn it_holds_when_the_receiver_fails() {
    let reached = [ALL.as_slice(), &[CHANGED_MIND]].concat();
    holds("bad answer", with(|b| b.bad_answers = 1), 270_000, &reached);
}

#[test]
fn it_holds_with_two_lanes() {
    holds("two lanes", with(|b| (b.lanes, b.deliveries, b.kills) = (2, 1, 1)), 1_000_000, &ALL);
}

#[test]
fn without_the_epoch_a_stale_record_frees_a_lane() {
    breaks("no epoch", ONE, with(|b| (b.deliveries, b.claims) = (1, 3)), |g| g.epoch = false);
}

#[test]
fn without_the_counter_the_living_are_declared_dead() {
    breaks("no counter", INNOCENT, Bounds::CALM, |g| g.counter = false);
    breaks("no counter", ONE, Bounds::CALM, |g| g.counter = false);
}

#[test]
fn without_a_second_look_at_the_counter_one_that_came_back_loses_what_it_claimed() {
    breaks("no second look", ONE, with(|b| (b.deliveries, b.stops) = (1, 1)), |g| g.still_stands = false);
}

#[test]
fn without_heed_of_its_own_lateness_an_outage_kills() {
    breaks("never late", INNOCENT, with(|b| (b.deliveries, b.outages) = (1, 1)), |g| g.late = false);
}

#[test]
fn without_the_fence_one_that_was_stopped_goes_on() {
    breaks("no fence", ONE, with(|b| (b.deliveries, b.stops, b.lease) = (1, 1, 7)), |g| g.fence = false);
}

#[test]
fn without_lives_one_that_beats_again_goes_on() {
    breaks("no lives", ONE, with(|b| (b.deliveries, b.stops, b.lease) = (1, 1, 7)), |g| g.life = false);
}

#[test]
fn without_a_look_at_the_lease_two_send() {
    breaks("no lease", ONE, Bounds::CALM, |g| g.lease = false);
}

#[test]
fn without_turns_the_order_is_lost() {
    breaks("no turns", ORDER, Bounds::CALM, |g| g.in_turn = false);
}

#[test]
fn if_silence_is_success_something_is_lost() {
    breaks("silence", NO_LOSS, with(|b| b.bad_answers = 1), |g| g.silence = false);
}

#[test]
fn without_doubt_a_lane_lies_about() {
    breaks("no doubt", IN_HAND, with(|b| b.lost_answers = 1), |g| g.doubt = false);
}

#[test]
fn if_what_bears_a_name_is_left_alone_a_lane_is_stuck() {
    breaks("orphans", RECOVERS, with(|b| b.kills = 1), |g| g.orphans = false);
}

#[test]
fn if_the_later_report_counts_an_older_claim_drives_out_what_a_newer_has_said() {
    breaks("later report", IN_HAND, Bounds::CALM, |g| g.newer_report = false);
    breaks("later report", NO_LOSS, with(|b| b.bad_answers = 1), |g| g.newer_report = false);
}

/// A worker that is declared dead after its first beat, and whose next answer is lost, takes the second count of its new row for
/// one more beat of the old.
#[test]
fn gap_the_counter_alone_can_hide_a_death() {
    let bounds = with(|b| (b.deliveries, b.stops, b.lost_answers, b.lease) = (1, 1, 1, 5));
    breaks("deaths by the counter alone", ONE, bounds, |_| ());
    let mended = Delivery { mends: Mends { deaths_told: true }, ..Delivery::new(bounds) };
    common::holds("deaths are told", mended, 1_500_000, &[TAKEOVER, FINISHED]);
}
