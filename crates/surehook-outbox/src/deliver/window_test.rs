//! The window: it finds the concurrency that a receiver bears, and opens the circuit of one that is gone.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);
const MAX: usize = 256;

/// A receiver in a simulated time: each request takes `latency`, as many at once as the window allows.
fn rounds(window: &mut Window, now: &mut Instant, count: usize, latency: impl Fn(usize) -> Duration) {
    for _ in 0..count {
        let under_way = window.limit(MAX);
        let took = latency(under_way);
        *now += took;
        for _ in 0..under_way {
            window.heard(Heard::Success(took), under_way, *now);
        }
    }
}

#[test]
fn it_finds_the_concurrency_that_a_slow_receiver_bears() {
    let (mut window, mut now) = (Window::new(8, Instant::now()), Instant::now());
    rounds(&mut window, &mut now, 5, |_| Duration::from_millis(50));
    assert_eq!(window.limit(MAX), 256, "five round trips of 50 ms are enough");
    // This one works on 20 at once; what is more waits.
    let mut window = Window::new(8, now);
    rounds(&mut window, &mut now, 40, |under_way| {
        Duration::from_millis(50) * u32::try_from(under_way.div_ceil(20)).unwrap()
    });
    assert!((20..=80).contains(&window.limit(MAX)), "{}", window.limit(MAX));
}

#[test]
fn room_that_is_not_used_does_not_grow() {
    let now = Instant::now();
    let mut window = Window::new(8, now);
    for _ in 0..100 {
        window.heard(Heard::Success(Duration::from_millis(1)), 2, now);
    }
    assert_eq!(window.limit(MAX), 8);
}

#[test]
fn silence_halves_it_once_in_a_while_and_not_below_its_beginning_while_others_are_answered() {
    let mut now = Instant::now();
    let mut window = Window::new(8, now);
    rounds(&mut window, &mut now, 5, |_| Duration::from_millis(50));
    assert_eq!(window.limit(MAX), 256);
    for _ in 0..4 {
        window.heard(Heard::Silence(TIMEOUT), 256, now);
    }
    let halved = window.limit(MAX);
    assert!(halved < 256 && halved * 2 + 1 >= 256, "{halved}");
    for _ in 0..100 {
        now += TIMEOUT;
        window.heard(Heard::Silence(TIMEOUT), 1, now);
        window.heard(Heard::Success(Duration::from_millis(5)), 1, now);
    }
    assert_eq!(window.limit(MAX), 8, "a way that loses half of the requests still carries the others");
    assert_eq!(window.circuit(), Circuit::Closed);
}

#[test]
fn the_circuit_opens_after_silence_probes_and_ramps_up() {
    let mut now = Instant::now();
    let mut window = Window::new(8, now);
    for _ in 0..7 {
        now += TIMEOUT;
        window.heard(Heard::Silence(TIMEOUT), 8, now);
        assert_eq!(window.circuit(), Circuit::Closed, "a restart of the receiver is not the end");
    }
    now += TIMEOUT;
    window.heard(Heard::Silence(TIMEOUT), 8, now);
    assert!(matches!(window.circuit(), Circuit::Open { .. }));
    // Those that were under way change nothing; nothing goes out before the probe is due, and then one alone.
    for _ in 0..7 {
        window.heard(Heard::Silence(TIMEOUT), 8, now);
    }
    assert_eq!(window.free(0, MAX, now), 0);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let Circuit::Open { probe_at, .. } = window.circuit() else { panic!("it stays open") };
        waits.push(probe_at.duration_since(now).as_secs());
        now = probe_at;
        assert_eq!((window.free(0, MAX, now), window.free(1, MAX, now)), (1, 0));
        window.heard(Heard::Silence(TIMEOUT), 1, now);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    window.heard(Heard::Success(Duration::from_millis(3)), 1, now);
    assert_eq!((window.circuit(), window.limit(MAX)), (Circuit::Closed, 1));
    let mut limits = Vec::new();
    for _ in 0..4 {
        rounds(&mut window, &mut now, 1, |_| Duration::from_millis(3));
        limits.push(window.limit(MAX));
    }
    assert_eq!(limits, [2, 4, 8, 16]);
}

#[test]
fn a_flood_of_refused_connections_opens_it_at_once() {
    let now = Instant::now();
    let mut window = Window::new(8, now);
    for _ in 0..50 {
        window.heard(Heard::Silence(TIMEOUT), 8, now);
    }
    assert!(matches!(window.circuit(), Circuit::Open { .. }));
    // One that answers that it is busy is there: it is asked less, and has its 15 seconds.
    let mut busy = Window::new(8, now);
    for n in 0..100 {
        let now = now + Duration::from_millis(10) * n;
        busy.heard(Heard::Busy(Duration::from_millis(10)), 8, now);
        assert_eq!(busy.circuit(), Circuit::Closed);
    }
    assert_eq!(busy.limit(MAX), 1);
    busy.heard(Heard::Busy(Duration::from_millis(10)), 1, now + DEAD_FOR);
    assert!(matches!(busy.circuit(), Circuit::Open { .. }));
    // Refusing is an answer: somebody is there.
    window.heard(Heard::Answer, 1, now);
    assert_eq!(window.circuit(), Circuit::Closed);
}
