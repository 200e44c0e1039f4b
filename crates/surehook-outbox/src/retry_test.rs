//! The retry rule as a table, and its general laws.

use super::*;
use proptest::prelude::*;

const POLICY: Policy = Policy {
    max_attempts: 5,
    max_unanswered: 20,
    count_every_silence: false,
    max_age: Duration::from_secs(3 * 86400),
    retry_max_delay: Duration::from_secs(300),
    conflict: Conflict::Success,
};
const SILENCE: Answer = Answer::Silence { sent: true };

fn status(code: u16) -> Answer {
    Answer::Status(code, None)
}

fn head(strikes: u32, unanswered: u32, others_got_through: bool) -> Head {
    Head { attempts: strikes + unanswered, strikes, unanswered, others_got_through, ..Head::default() }
}

fn retry_s(seconds: f64) -> Next {
    Next::Retry(Duration::from_secs_f64(seconds))
}

#[test]
fn the_table() {
    let textbook = Policy { count_every_silence: true, max_unanswered: 5, ..POLICY };
    let foreign = Policy { conflict: Conflict::SuccessIfMayHaveArrived, ..POLICY };
    let strict = Policy { conflict: Conflict::Strike, ..POLICY };
    let arrived = Head { may_have_arrived: true, ..head(0, 1, false) };
    let old = Head { age: Duration::from_secs(4 * 86400), ..head(0, 1, true) };
    let old_in_outage = Head { others_got_through: false, ..old };
    let dead = Next::Dead;
    // (what it shows, policy, head, answer, outcome, next at jitter 0)
    let table = [
        ("2xx is delivered", POLICY, head(0, 0, false), status(204), Outcome::Success, Next::Published),
        (
            "409 from a native receiver is delivered",
            POLICY,
            head(0, 0, false),
            status(409),
            Outcome::Conflict,
            Next::Published,
        ),
        (
            "409 from a stranger at the first try",
            foreign,
            head(0, 0, false),
            status(409),
            Outcome::Strike,
            retry_s(3.75),
        ),
        ("409 from a stranger after silence", foreign, arrived, status(409), Outcome::Conflict, Next::Published),
        ("409 where it is a strike", strict, arrived, status(409), Outcome::Strike, retry_s(3.75)),
        ("410 pauses", POLICY, head(0, 0, false), status(410), Outcome::Gone, Next::PauseEndpoint),
        ("first refusal", POLICY, head(0, 0, false), status(500), Outcome::Strike, retry_s(3.75)),
        ("second refusal", POLICY, head(1, 0, false), status(404), Outcome::Strike, retry_s(22.5)),
        ("third refusal", POLICY, head(2, 0, false), status(400), Outcome::Strike, retry_s(90.0)),
        ("fourth refusal", POLICY, head(3, 0, false), status(401), Outcome::Strike, retry_s(225.0)),
        ("fifth refusal", POLICY, head(4, 0, false), status(500), Outcome::Strike, dead(DeathReason::MaxAttempts)),
        (
            "a redirect is a refusal",
            POLICY,
            head(4, 0, false),
            status(301),
            Outcome::Strike,
            dead(DeathReason::MaxAttempts),
        ),
        ("413 is a refusal", POLICY, head(4, 0, false), status(413), Outcome::Strike, dead(DeathReason::MaxAttempts)),
        ("busy is no strike", POLICY, head(4, 0, false), status(503), Outcome::Busy, retry_s(0.75)),
        ("429 is no strike", POLICY, head(4, 0, false), status(429), Outcome::Busy, retry_s(0.75)),
        ("first silence", POLICY, head(0, 0, false), SILENCE, Outcome::Unanswered, retry_s(0.75)),
        ("silence waits longer each time", POLICY, head(0, 5, false), SILENCE, Outcome::Unanswered, retry_s(24.0)),
        ("silence waits a minute at most", POLICY, head(0, 15, false), SILENCE, Outcome::Unanswered, retry_s(45.0)),
        (
            "twentieth silence while others get through",
            POLICY,
            head(0, 19, true),
            SILENCE,
            Outcome::Unanswered,
            dead(DeathReason::MaxUnanswered),
        ),
        (
            "textbook: fifth silence kills",
            textbook,
            head(0, 4, false),
            SILENCE,
            Outcome::Unanswered,
            dead(DeathReason::MaxUnanswered),
        ),
        (
            "textbook: busy counts too",
            textbook,
            head(0, 4, false),
            status(502),
            Outcome::Busy,
            dead(DeathReason::MaxUnanswered),
        ),
        ("too old while others get through", POLICY, old, SILENCE, Outcome::Unanswered, dead(DeathReason::MaxAge)),
        ("old, in an outage", POLICY, old_in_outage, SILENCE, Outcome::Unanswered, retry_s(1.5)),
    ];
    for (what, policy, head, answer, outcome, next) in table {
        let verdict = judge(&policy, head, answer, 0.0);
        assert_eq!((verdict.outcome, verdict.next), (outcome, next), "{what}");
        assert_eq!(verdict.head.attempts, head.attempts + 1, "{what}: every request counts as an attempt");
    }
}

#[test]
fn an_outage_of_any_length_kills_nothing() {
    let mut head = Head::default();
    for _ in 0..10_000 {
        let verdict = judge(&POLICY, Head { age: Duration::from_secs(1 << 30), ..head }, SILENCE, 0.5);
        assert!(matches!(verdict.next, Next::Retry(_)), "{verdict:?}");
        head = verdict.head;
    }
    assert_eq!((head.attempts, head.unanswered, head.strikes), (10_000, 0, 0));
    assert!(head.may_have_arrived);
}

#[test]
fn a_gateways_answer_may_hide_an_arrival_and_a_refused_connection_does_not() {
    for (answer, arrived) in [
        (status(502), true),
        (status(504), true),
        (status(503), false),
        (status(429), false),
        (Answer::Silence { sent: false }, false),
    ] {
        assert_eq!(judge(&POLICY, Head::default(), answer, 0.0).head.may_have_arrived, arrived, "{answer:?}");
    }
}

#[test]
fn retry_after_is_read_or_ignored() {
    let now_s = 1_800_000_000;
    let seconds = |n| Some(Duration::from_secs(n));
    for (value, expected) in [
        ("120", seconds(120)),
        (" 7 ", seconds(7)),
        ("0", None),
        ("-1", None),
        ("banana", None),
        ("", None),
        ("1.5", None),
        ("999999999", Some(RETRY_AFTER_MAX)),
        ("99999999999999999999999999", Some(RETRY_AFTER_MAX)),
        ("Fri, 15 Jan 2027 08:01:00 GMT", seconds(60)),
        ("Fri, 15 Jan 2027 07:00:00 GMT", None),
        ("Thu, 15 Jan 2037 08:01:00 GMT", Some(RETRY_AFTER_MAX)),
    ] {
        assert_eq!(parse_retry_after(value.as_bytes(), now_s), expected, "{value:?}");
    }
    assert_eq!(parse_retry_after(b"\xff\xfe", now_s), None);
}

#[test]
fn a_crowd_that_failed_at_once_does_not_come_back_at_once() {
    for answer in [status(500), status(503), Answer::Status(429, Some(Duration::from_secs(120)))] {
        let delays =
            (0..1000u32).map(|i| match judge(&POLICY, head(1, 4, false), answer, f64::from(i) / 1000.0).next {
                Next::Retry(delay) => delay,
                other => panic!("{other:?}"),
            });
        let (least, most) = delays.fold((Duration::MAX, Duration::ZERO), |(a, b), d| (a.min(d), b.max(d)));
        assert!(most - least >= Duration::from_secs(1), "{answer:?}: all within {:?}", most - least);
    }
}

proptest! {
    #[test]
    fn never_earlier_than_asked_never_later_than_the_cap(
        strikes in 0u32..4, silences in 0u32..200, asked in 0u64..100_000, cap_ms in 10u64..1_000_000, code in 300u16..600, jitter in 0.0f64..1.0
    ) {
        let policy = Policy { retry_max_delay: Duration::from_millis(cap_ms), ..POLICY };
        let asked = Duration::from_secs(asked);
        let before = Head { attempts: strikes + silences, strikes, ..Head::default() };
        if let Next::Retry(delay) = judge(&policy, before, Answer::Status(code, Some(asked)), jitter).next {
            prop_assert!(delay >= asked.min(RETRY_AFTER_MAX));
            prop_assert!(delay <= policy.retry_max_delay.max(asked.min(RETRY_AFTER_MAX).mul_f64(1.1)));
        }
        if let Next::Retry(delay) = judge(&policy, before, Answer::Silence { sent: false }, jitter).next {
            prop_assert!(delay <= policy.retry_max_delay && delay > Duration::ZERO);
        }
    }

    #[test]
    fn reading_retry_after_never_panics(value in proptest::collection::vec(any::<u8>(), 0..40), now_s in any::<i64>()) {
        if let Some(wait) = parse_retry_after(&value, now_s) {
            prop_assert!(wait <= RETRY_AFTER_MAX && wait > Duration::ZERO);
        }
    }
}
