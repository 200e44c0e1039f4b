//! How the rate of a job is kept: a pure rule over times of the database. It is kept in the job's row, so that it holds
//! whoever does the next step.

use jiff::{SignedDuration, Timestamp};

/// What was not used is kept for so long, so that a step that comes a little late does not slow the job down.
const SAVED_MAX: SignedDuration = SignedDuration::from_secs(1);

/// When the next step is due, if this one was due at `due`, is done `now` and has enqueued `items`, at most `rate` a second.
/// Over any stretch of time no more than `rate` × (its seconds + 1) items go, and those of one step.
pub fn next(due: Timestamp, now: Timestamp, items: i64, rate: i32) -> Timestamp {
    let from = due.max(now.checked_sub(SAVED_MAX).unwrap_or(now));
    let takes_us = items.saturating_mul(1_000_000) / i64::from(rate.max(1));
    from.checked_add(SignedDuration::from_micros(takes_us)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at_us(us: i64) -> Timestamp {
        Timestamp::from_microsecond(1_800_000_000_000_000 + us).unwrap()
    }

    #[test]
    fn each_item_takes_its_share_of_a_second() {
        assert_eq!(next(at_us(0), at_us(0), 1, 10), at_us(100_000));
        assert_eq!(next(at_us(0), at_us(0), 50, 10), at_us(5_000_000));
        assert_eq!(next(at_us(0), at_us(300), 0, 10), at_us(0), "what is passed over takes no time");
        assert_eq!(
            next(at_us(0), at_us(60_000_000), 1, 10),
            at_us(59_100_000),
            "an hour of rest is no right to a flood"
        );
    }

    proptest! {
        #[test]
        fn no_stretch_of_time_sees_more_than_the_rate(
            rate in 1..1000_i32,
            steps in prop::collection::vec((0..2_000_000_i64, 0..5_i64), 1..200),
        ) {
            let (mut due, mut now) = (at_us(0), 0_i64);
            let mut done: Vec<(i64, i64)> = Vec::new();
            for (idle_us, items) in steps {
                // Whoever does the step comes when it is due, or later.
                now = now.max(due.duration_since(at_us(0)).as_micros() as i64) + idle_us;
                done.push((now, items));
                due = next(due, at_us(now), items, rate);
            }
            for from in 0..done.len() {
                let mut sum = 0;
                for (at, items) in &done[from..] {
                    let seconds = (at - done[from].0) as f64 / 1e6;
                    prop_assert!(sum as f64 <= f64::from(rate) * (seconds + 1.0) + 1.0, "{sum} items within {seconds} s");
                    sum += items;
                }
            }
        }
    }
}
