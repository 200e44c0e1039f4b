//! One thing that the watchdog watches: since when it is wrong, what the receiver knows of it, and what it must be told.
//! Pure: time comes in as a value.

use std::time::{Duration, Instant};

use uuid::Uuid;

/// The longest wait between two attempts to tell.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What a look showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// All is well.
    Fine,
    /// It is wrong, in words.
    Wrong(String),
    /// It cannot be seen at the moment: what holds, holds on.
    Unknown,
}

/// What the receiver is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// It begins, with the newest words.
    Trigger(String),
    /// It has ended.
    Resolve,
}

/// A message that is due: the same id at every attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) say: Say,
    pub(super) message_id: Uuid,
    pub(super) began: Instant,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was accepted.
    Yes,
    /// It was not, and the receiver may have seen it or not.
    No {
        /// Whether it may have arrived all the same.
        perhaps: bool,
        /// The receiver asks for so much time.
        wait: Option<Duration>,
    },
}

/// What the receiver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    Nothing,
    Trigger,
    /// A trigger was sent, and no answer came.
    Perhaps,
}

#[derive(Debug)]
pub(super) struct Incident {
    /// For how long it must be wrong.
    hold: Duration,
    wrong_since: Option<Instant>,
    /// Since when it counts as wrong, and in which words.
    open: Option<(Instant, String)>,
    knows: Knows,
    message_id: Uuid,
    failures: u32,
    next_try: Option<Instant>,
}

impl Incident {
    /// `may_be_open`: the receiver may have been told of one by a process before this one, so that the first good look
    /// resolves it.
    pub(super) fn new(hold: Duration, may_be_open: bool) -> Self {
        Self {
            hold,
            wrong_since: None,
            open: None,
            knows: if may_be_open { Knows::Perhaps } else { Knows::Nothing },
            message_id: Uuid::new_v4(),
            failures: 0,
            next_try: None,
        }
    }

    /// Whether it counts as wrong.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes a look in, which began at `began` and took until `now`: a database that does not answer makes it long.
    pub(super) fn see(&mut self, seen: Seen, began: Instant, now: Instant) {
        match seen {
            Seen::Unknown => {}
            Seen::Fine => {
                self.wrong_since = None;
                if self.open.take().is_some() {
                    self.anew();
                }
            }
            Seen::Wrong(words) => {
                let since = *self.wrong_since.get_or_insert(began);
                match &mut self.open {
                    Some((_, old)) => *old = words,
                    None if now.saturating_duration_since(since) >= self.hold => {
                        self.open = Some((since, words));
                        self.anew();
                    }
                    None => {}
                }
            }
        }
    }

    /// What is to be told now.
    pub(super) fn due(&self, now: Instant) -> Option<Due> {
        if self.next_try.is_some_and(|at| now < at) {
            return None;
        }
        let (say, began) = match (&self.open, self.knows) {
            (Some((began, words)), Knows::Nothing | Knows::Perhaps) => (Say::Trigger(words.clone()), *began),
            // A look that shows that it is well comes first.
            (None, Knows::Trigger | Knows::Perhaps) if self.wrong_since.is_none() => (Say::Resolve, now),
            _ => return None,
        };
        Some(Due { say, message_id: self.message_id, began })
    }

    /// Notes what came of telling it.
    pub(super) fn told(&mut self, say: &Say, told: Told, now: Instant) {
        match (told, say) {
            (Told::Yes, Say::Trigger(_)) => self.knows = Knows::Trigger,
            (Told::Yes, Say::Resolve) => self.knows = Knows::Nothing,
            (Told::No { perhaps: true, .. }, Say::Trigger(_)) => self.knows = Knows::Perhaps,
            (Told::No { .. }, _) => {}
        }
        self.next_try = match told {
            Told::Yes => {
                self.failures = 0;
                None
            }
            Told::No { wait, .. } => {
                self.failures += 1;
                let pause = Duration::from_secs(1 << self.failures.saturating_sub(1).min(6)).min(RETRY_MAX);
                Some(now + pause.max(wait.unwrap_or_default().min(RETRY_MAX)))
            }
        };
    }

    /// Something new is to be told: under an id of its own, and at once.
    fn anew(&mut self) {
        self.message_id = Uuid::new_v4();
        self.failures = 0;
        self.next_try = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn wrong() -> Seen {
        Seen::Wrong("it is away".into())
    }

    fn say(incident: &Incident, now: Instant) -> Option<Say> {
        incident.due(now).map(|due| due.say)
    }

    #[test]
    fn it_is_told_after_its_hold_once_and_resolved_once() {
        let start = Instant::now();
        let mut incident = Incident::new(10 * S, false);
        incident.see(wrong(), start, start);
        incident.see(wrong(), start + 9 * S, start + 9 * S);
        assert_eq!(say(&incident, start + 9 * S), None);
        incident.see(wrong(), start + 10 * S, start + 10 * S);
        let due = incident.due(start + 10 * S).unwrap();
        assert_eq!((due.say.clone(), due.began), (Say::Trigger("it is away".into()), start));
        incident.told(&due.say, Told::Yes, start + 10 * S);
        incident.see(wrong(), start + 20 * S, start + 20 * S);
        assert_eq!(say(&incident, start + 20 * S), None, "once");
        incident.see(Seen::Unknown, start + 21 * S, start + 21 * S);
        assert!(incident.is_open());
        incident.see(Seen::Fine, start + 22 * S, start + 22 * S);
        let resolve = incident.due(start + 22 * S).unwrap();
        assert_eq!(resolve.say, Say::Resolve);
        assert_ne!(resolve.message_id, due.message_id);
        incident.told(&resolve.say, Told::Yes, start + 22 * S);
        assert_eq!(say(&incident, start + 99 * S), None);
    }

    #[test]
    fn what_is_short_is_not_told() {
        let start = Instant::now();
        let mut incident = Incident::new(10 * S, false);
        incident.see(wrong(), start, start);
        incident.see(Seen::Fine, start + 9 * S, start + 9 * S);
        incident.see(wrong(), start + 11 * S, start + 11 * S);
        incident.see(wrong(), start + 20 * S, start + 20 * S);
        assert_eq!(say(&incident, start + 20 * S), None);
    }

    #[test]
    fn it_is_told_again_until_it_is_accepted_and_what_never_arrived_needs_no_end() {
        let start = Instant::now();
        let mut incident = Incident::new(Duration::ZERO, false);
        incident.see(wrong(), start, start);
        let first = incident.due(start).unwrap();
        let not_arrived = Told::No { perhaps: false, wait: None };
        incident.told(&first.say, not_arrived, start);
        assert_eq!(incident.due(start), None);
        assert_eq!(incident.due(start + S).unwrap().message_id, first.message_id);
        incident.told(&first.say, Told::No { perhaps: false, wait: Some(20 * S) }, start + S);
        assert_eq!(incident.due(start + 20 * S), None, "it asked for time");
        incident.see(Seen::Fine, start + 5 * S, start + 5 * S);
        assert_eq!(incident.due(start + 30 * S), None, "nobody heard of it");

        // One that may have arrived is ended.
        incident.see(wrong(), start + 40 * S, start + 40 * S);
        let due = incident.due(start + 40 * S).unwrap();
        incident.told(&due.say, Told::No { perhaps: true, wait: None }, start + 40 * S);
        incident.see(Seen::Fine, start + 41 * S, start + 41 * S);
        assert_eq!(say(&incident, start + 41 * S), Some(Say::Resolve));
    }

    #[test]
    fn what_an_earlier_process_left_open_ends_at_the_first_good_look() {
        let start = Instant::now();
        let mut incident = Incident::new(5 * S, true);
        incident.see(wrong(), start, start);
        assert_eq!(say(&incident, start), None);
        incident.see(Seen::Fine, start + S, start + S);
        assert_eq!(say(&incident, start + S), Some(Say::Resolve));
    }
}
