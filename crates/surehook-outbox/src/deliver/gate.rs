//! The gate: who may send where, over all endpoints of this worker. One [`Window`] each, the lanes in hand, and the pace
//! where an endpoint has a limit of requests per second. May read the monotonic clock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use uuid::Uuid;

use super::window::{Circuit, Heard, Window};
use crate::store::windows::WindowState;
use crate::target::Target;

/// An endpoint without lanes in hand is forgotten after this long, so that its window begins anew.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Every lane in hand makes one request at a time, so lanes are what is counted.
#[derive(Debug)]
pub(super) struct Gate {
    start: usize,
    doors: Mutex<HashMap<Uuid, Door>>,
    room: Notify,
}

#[derive(Debug)]
struct Door {
    window: Window,
    in_hand: usize,
    /// The most that the endpoint may ever have under way.
    max: usize,
    /// More lanes are due than were taken.
    crowded: bool,
    /// The next request is due then, where there is a limit per second.
    next_send: Instant,
    used_at: Instant,
    /// What was last written of it.
    written: Option<WindowState>,
}

impl Gate {
    pub(super) fn new(start: usize) -> Self {
        Self { start, doors: Mutex::default(), room: Notify::new() }
    }

    /// How many lanes of an endpoint may be taken now.
    pub(super) fn free(&self, target: &Target) -> usize {
        let now = Instant::now();
        let mut doors = self.doors();
        let door = door(&mut doors, self.start, target.endpoint_id, now);
        // Where the pace is set, more lanes would only wait for it.
        let pace = target.rate_max_per_s.map_or(usize::MAX, |rate| usize::try_from(rate).unwrap_or(usize::MAX));
        door.max = target.in_flight_max.min(pace);
        door.window.free(door.in_hand, door.max, now)
    }

    /// Notes whether more lanes of an endpoint are due than there was room for.
    pub(super) fn crowded(&self, endpoint_id: Uuid, crowded: bool) {
        if let Some(door) = self.doors().get_mut(&endpoint_id) {
            door.crowded = crowded;
        }
    }

    /// Whether other lanes of an endpoint wait for one in hand to make room.
    pub(super) fn is_crowded(&self, endpoint_id: Uuid) -> bool {
        self.doors().get(&endpoint_id).is_some_and(|door| door.crowded)
    }

    /// A lane is in hand.
    pub(super) fn enter(&self, endpoint_id: Uuid) {
        let now = Instant::now();
        let mut doors = self.doors();
        let door = door(&mut doors, self.start, endpoint_id, now);
        door.in_hand += 1;
        door.used_at = now;
    }

    /// A lane is in hand no longer.
    pub(super) fn leave(&self, endpoint_id: Uuid) {
        let crowded = {
            let mut doors = self.doors();
            let Some(door) = doors.get_mut(&endpoint_id) else { return };
            door.in_hand = door.in_hand.saturating_sub(1);
            door.used_at = Instant::now();
            door.crowded
        };
        if crowded {
            self.room.notify_one();
        }
    }

    /// Whether more lanes are in hand than the window allows by now: then this one goes back.
    pub(super) fn is_over(&self, target: &Target) -> bool {
        self.doors().get(&target.endpoint_id).is_some_and(|door| {
            door.window.circuit() == Circuit::Closed && door.in_hand > door.window.limit(target.in_flight_max)
        })
    }

    /// Learns from a request. Returns the change of the circuit, if it changed.
    pub(super) fn heard(&self, target: &Target, heard: Heard) -> Option<CircuitChange> {
        let now = Instant::now();
        let (grown, change) = {
            let mut doors = self.doors();
            let door = door(&mut doors, self.start, target.endpoint_id, now);
            let (before, limit) = (door.window.circuit(), door.window.limit(target.in_flight_max));
            door.window.heard(heard, door.in_hand, now);
            let change = match (before, door.window.circuit()) {
                (Circuit::Closed, Circuit::Open { .. }) => Some(CircuitChange::Opened),
                (Circuit::Open { since, .. }, Circuit::Closed) => {
                    Some(CircuitChange::Closed(now.duration_since(since)))
                }
                _ => None,
            };
            (door.crowded && door.window.limit(target.in_flight_max) > limit, change)
        };
        if grown || change.is_some() {
            self.room.notify_one();
        }
        change
    }

    /// When the next request may go out, where the endpoint has a limit per second; the time is taken by asking.
    pub(super) fn pace(&self, target: &Target) -> Option<Instant> {
        let every = Duration::from_secs(1).checked_div(target.rate_max_per_s?)?;
        let now = Instant::now();
        let mut doors = self.doors();
        let door = door(&mut doors, self.start, target.endpoint_id, now);
        let at = door.next_send.max(now);
        door.next_send = at + every;
        Some(at)
    }

    /// Resolves when there is room where lanes were waiting for it.
    pub(super) fn room(&self) -> Notified<'_> {
        self.room.notified()
    }

    /// The states that changed since they were last written, and the endpoints that are forgotten now.
    pub(super) fn changed(&self) -> (Vec<WindowState>, Vec<Uuid>) {
        let now = Instant::now();
        let mut doors = self.doors();
        let mut forgotten = Vec::new();
        doors.retain(|endpoint_id, door| {
            let idle = door.in_hand == 0 && now.duration_since(door.used_at) > FORGET_AFTER;
            if idle && door.window.circuit() == Circuit::Closed {
                forgotten.push(*endpoint_id);
                return false;
            }
            true
        });
        let changed = doors
            .iter()
            .map(|(endpoint_id, door)| (state(*endpoint_id, door, now), &door.written))
            .filter(|(state, written)| written.as_ref().is_none_or(|written| !written.looks_like(state)))
            .map(|(state, _)| state)
            .collect();
        (changed, forgotten)
    }

    /// These states stand in the database now.
    pub(super) fn written(&self, states: Vec<WindowState>) {
        let mut doors = self.doors();
        for state in states {
            if let Some(door) = doors.get_mut(&state.endpoint_id) {
                door.written = Some(state);
            }
        }
    }

    fn doors(&self) -> MutexGuard<'_, HashMap<Uuid, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happened to a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitChange {
    /// Nothing but probes from now on.
    Opened,
    /// It was open for this long.
    Closed(Duration),
}

fn door(doors: &mut HashMap<Uuid, Door>, start: usize, endpoint_id: Uuid, now: Instant) -> &mut Door {
    doors.entry(endpoint_id).or_insert_with(|| Door {
        window: Window::new(start, now),
        in_hand: 0,
        max: usize::MAX,
        crowded: false,
        next_send: now,
        used_at: now,
        written: None,
    })
}

fn state(endpoint_id: Uuid, door: &Door, now: Instant) -> WindowState {
    let (open_for, probe_in) = match door.window.circuit() {
        Circuit::Closed => (None, None),
        Circuit::Open { since, probe_at, .. } => {
            (Some(now.duration_since(since)), Some(probe_at.saturating_duration_since(now)))
        }
    };
    WindowState {
        endpoint_id,
        in_flight: door.in_hand,
        in_flight_limit: door.window.limit(door.max),
        silences_in_a_row: door.window.silences_in_a_row(),
        open_for,
        probe_in,
    }
}
