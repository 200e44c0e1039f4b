//! git's answer to a push, on its way to the client: progress passes at once, the verdict waits. Pure.
//!
//! The client believes that its push is done when it has read the report. Until then the events can be recorded, so the
//! report (all of band 1, and the end) is held back. An answer that git did not finish must never look finished: a
//! client that is given half a packet and then a proper end waits for ever.

use bytes::{Bytes, BytesMut};

use super::pktline::{Band, Decoder, Packet, encode};
use super::push_request::Framing;

/// Takes git's bytes in and says what may go out now.
#[derive(Debug)]
pub struct AnswerFilter {
    framing: Framing,
    decoder: Decoder,
    held: BytesMut,
    held_bytes_max: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Flushed,
    Broken,
}

/// How git's answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is complete with these held bytes.
    Whole(Bytes),
    /// It is not. With side-bands, what went out so far ends between two packets, so that a last word can follow.
    Broken,
}

impl AnswerFilter {
    /// For an answer framed like this, of whose verdict at most `held_bytes_max` are held.
    #[must_use]
    pub fn new(framing: Framing, held_bytes_max: usize) -> Self {
        Self { framing, decoder: Decoder::default(), held: BytesMut::new(), held_bytes_max, state: State::Open }
    }

    /// Takes what git wrote next, and gives what may pass at once: whole packets only.
    pub fn push(&mut self, bytes: &[u8]) -> Bytes {
        if self.state == State::Broken {
            return Bytes::new();
        }
        if self.framing == Framing::Plain {
            self.hold(bytes);
        }
        self.decoder.push(bytes);
        let mut pass = BytesMut::new();
        loop {
            match self.decoder.next() {
                Ok(Some(packet)) => self.take(packet, &mut pass),
                Ok(None) => return pass.freeze(),
                Err(_) => {
                    self.state = State::Broken;
                    return pass.freeze();
                }
            }
        }
    }

    /// git has ended: `Exit` says how, and decides where the bytes cannot.
    #[must_use]
    pub fn finish(self, exit: Exit) -> Ending {
        let is_whole = match (self.state, self.framing) {
            (State::Broken, _) => false,
            (State::Flushed, _) => self.decoder.is_at_boundary(),
            // Without a report asked for, nothing at all is a complete answer.
            (State::Open, Framing::Plain) => exit == Exit::Success && self.held.is_empty(),
            (State::Open, Framing::SideBand) => false,
        };
        if is_whole { Ending::Whole(self.held.freeze()) } else { Ending::Broken }
    }

    fn take(&mut self, packet: Packet, pass: &mut BytesMut) {
        let flushed = packet == Packet::Flush;
        if self.framing == Framing::SideBand && self.state != State::Broken {
            match &packet {
                Packet::Data(payload) => match Band::of(payload.clone()) {
                    // git's own sign of life while it unpacks: no part of the verdict.
                    Band::Data(data) if data.is_empty() => pass.extend_from_slice(&encode(&packet)),
                    Band::Data(_) => self.hold(&encode(&packet)),
                    Band::Progress(_) | Band::Error(_) => pass.extend_from_slice(&encode(&packet)),
                    Band::Unknown => self.state = State::Broken,
                },
                Packet::Flush => self.hold(&encode(&packet)),
                Packet::Delimiter | Packet::ResponseEnd => self.state = State::Broken,
            }
        }
        if self.state != State::Broken {
            self.state = if flushed { State::Flushed } else { State::Open };
        }
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.held.len() + bytes.len() > self.held_bytes_max {
            self.state = State::Broken;
            self.held.clear();
        } else {
            self.held.extend_from_slice(bytes);
        }
    }
}

/// How the git process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With 0.
    Success,
    /// With another code, or by a signal.
    Failure,
}

#[cfg(test)]
mod tests {
    use super::super::pktline::{EMPTY_PROGRESS, FLUSH, packet, progress};
    use super::*;
    use proptest::prelude::*;

    fn run(framing: Framing, bytes: &[u8], cut: usize, exit: Exit) -> (Vec<u8>, Ending) {
        let mut filter = AnswerFilter::new(framing, 1000);
        let mut passed = Vec::new();
        for piece in bytes.chunks(cut) {
            passed.extend_from_slice(&filter.push(piece));
        }
        (passed, filter.finish(exit))
    }

    #[test]
    fn progress_passes_and_the_verdict_waits() {
        let (work, alive) = (progress("unpacking"), packet(b"\x01"));
        let (report, late) = (packet(b"\x01000eunpack ok\n0000"), progress("post-receive says"));
        let answer = [&work[..], &alive, &report, &late, FLUSH].concat();
        for cut in [1, 3, 1000] {
            let (passed, ending) = run(Framing::SideBand, &answer, cut, Exit::Failure);
            assert_eq!(passed, [&work[..], &alive, &late].concat());
            assert_eq!(ending, Ending::Whole([&report[..], FLUSH].concat().into()));
        }
    }

    #[test]
    fn what_git_did_not_finish_is_broken() {
        let answer = [&progress("a")[..], &packet(b"\x01000eunpack ok\n0000"), FLUSH].concat();
        for end in 0..answer.len() {
            let (passed, ending) = run(Framing::SideBand, &answer[..end], 7, Exit::Success);
            assert_eq!(ending, Ending::Broken, "{end}");
            assert!(passed.is_empty() || passed == progress("a"));
        }
        assert_eq!(
            run(Framing::SideBand, &[&packet(b"\x07x")[..], FLUSH].concat(), 9, Exit::Success).1,
            Ending::Broken
        );
    }

    #[test]
    fn plain_answers_wait_whole() {
        let answer = b"000eunpack ok\n0000";
        assert_eq!(run(Framing::Plain, answer, 3, Exit::Failure), (vec![], Ending::Whole(Bytes::from_static(answer))));
        assert_eq!(run(Framing::Plain, &answer[..14], 3, Exit::Success).1, Ending::Broken);
        assert_eq!(run(Framing::Plain, b"", 3, Exit::Success).1, Ending::Whole(Bytes::new()));
        assert_eq!(run(Framing::Plain, b"", 3, Exit::Failure).1, Ending::Broken);
        let long = [packet(&[b'a'; 1200]), FLUSH.into()].concat();
        assert_eq!(run(Framing::Plain, &long, 100, Exit::Success).1, Ending::Broken);
    }

    proptest! {
        #[test]
        fn never_panics_and_passes_whole_packets(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1_usize..20) {
            let answer = [EMPTY_PROGRESS, &bytes].concat();
            let (passed, _) = run(Framing::SideBand, &answer, cut, Exit::Success);
            let mut decoder = Decoder::default();
            decoder.push(&passed);
            while decoder.next().unwrap().is_some() {}
            prop_assert!(decoder.is_at_boundary());
        }
    }
}
