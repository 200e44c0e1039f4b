//! The head of a push as the client sends it: commands, capabilities and push options, up to the packfile. Pure.
//!
//! The head is read while it is on its way to git, and git alone decides on it: what is learnt here is how git's
//! answer will be framed, and what the push's event wants to know. Source: gitprotocol-pack(5), "Pushing Data To a
//! Server".

use super::pktline::{Decoder, Packet};

/// Limits on the head of a push.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Most ref updates in one push.
    pub refs_max: usize,
    /// Most bytes of push options, all together.
    pub option_bytes_max: usize,
}

/// Why a push is refused by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// More commands than [`HeadLimits::refs_max`].
    #[error("too many refs in one push")]
    TooManyRefs,
    /// More than [`HeadLimits::option_bytes_max`].
    #[error("the push options are too long")]
    OptionsTooLong,
    /// A ref is to be deleted whatever it is by then: the client names no value, since it has seen none. git would compare
    /// nothing, and delete with the ref what others push at that moment, and its log.
    #[error("a ref is to be deleted without its value")]
    BlindDeletion,
    /// The body does not begin with pkt-lines.
    #[error("the request is not a push")]
    NotAPush,
}

/// What the head said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushHead {
    /// Whether the answer will be in side-bands.
    pub framing: Framing,
    /// How many ref updates the client asked for.
    pub commands: usize,
    /// The refs that they delete, as bytes.
    pub deletions: Vec<Vec<u8>>,
    /// The push options in their order, as bytes.
    pub options: Vec<Vec<u8>>,
}

/// How git frames its answer to a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// The report stands there bare, and there is no way to say anything beside it.
    #[default]
    Plain,
    /// Packets with a band in their first byte.
    SideBand,
}

/// Reads the head of a push, whatever way its bytes are cut; holds one packet and the options at most.
#[derive(Debug)]
pub struct HeadParser {
    decoder: Decoder,
    section: Section,
    head: PushHead,
    option_bytes: usize,
    has_options: bool,
    limits: HeadLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Commands,
    Certificate,
    Options,
    Pack,
}

/// Where the parser is after a piece of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The head goes on.
    Reading,
    /// The head is complete: all that follows is the packfile.
    Complete,
}

impl HeadParser {
    /// A parser at the first byte of the body.
    #[must_use]
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            decoder: Decoder::default(),
            section: Section::Commands,
            head: PushHead::default(),
            option_bytes: 0,
            has_options: false,
            limits,
        }
    }

    /// Reads the next piece of the body. After [`Progress::Complete`] further pieces are ignored.
    ///
    /// # Errors
    /// The push must be refused; nothing of this piece may reach git.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Progress, HeadError> {
        if self.section == Section::Pack {
            return Ok(Progress::Complete);
        }
        self.decoder.push(bytes);
        while self.section != Section::Pack {
            match self.decoder.next().map_err(|_| HeadError::NotAPush)? {
                Some(packet) => self.take(&packet)?,
                None => return Ok(Progress::Reading),
            }
        }
        // The rest is the beginning of the pack, which this parser has no use for.
        let _ = self.decoder.take_rest();
        Ok(Progress::Complete)
    }

    /// What is known so far.
    #[must_use]
    pub fn head(&self) -> &PushHead {
        &self.head
    }

    fn take(&mut self, packet: &Packet) -> Result<(), HeadError> {
        let line = match packet {
            Packet::Data(line) => line,
            Packet::Flush => {
                self.section = match self.section {
                    Section::Commands | Section::Certificate if self.has_options => Section::Options,
                    _ => Section::Pack,
                };
                return Ok(());
            }
            Packet::Delimiter | Packet::ResponseEnd => return Err(HeadError::NotAPush),
        };
        match self.section {
            Section::Commands => self.take_command(line),
            Section::Certificate => self.take_certificate_line(line),
            Section::Options => self.take_option(line),
            Section::Pack => Ok(()),
        }
    }

    fn take_command(&mut self, line: &[u8]) -> Result<(), HeadError> {
        if line.starts_with(b"shallow ") {
            return Ok(());
        }
        if let Some(at) = line.iter().position(|byte| *byte == 0) {
            self.take_capabilities(&line[at + 1..]);
        }
        if line.starts_with(b"push-cert\0") {
            self.section = Section::Certificate;
            return Ok(());
        }
        self.note_command(line)
    }

    /// Inside a signed push the commands stand between the certificate's empty line and its signature; counting every
    /// line that has their shape is enough for a limit.
    fn take_certificate_line(&mut self, line: &[u8]) -> Result<(), HeadError> {
        if line.trim_ascii_end() == b"push-cert-end" {
            self.section = Section::Commands;
            return Ok(());
        }
        let is_command = line.len() > 82 && line[..40].iter().all(u8::is_ascii_hexdigit);
        if is_command { self.note_command(line) } else { Ok(()) }
    }

    fn note_command(&mut self, line: &[u8]) -> Result<(), HeadError> {
        self.head.commands += 1;
        let command = line.trim_ascii_end().split(|byte| *byte == 0).next().unwrap_or_default();
        let mut words = command.splitn(3, |byte| *byte == b' ');
        if let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next())
            && is_nothing(new)
        {
            if is_nothing(old) {
                return Err(HeadError::BlindDeletion);
            }
            self.head.deletions.push(name.to_vec());
        }
        if self.head.commands > self.limits.refs_max { Err(HeadError::TooManyRefs) } else { Ok(()) }
    }

    fn take_capabilities(&mut self, list: &[u8]) {
        for capability in list.split(u8::is_ascii_whitespace) {
            match capability {
                b"side-band-64k" => self.head.framing = Framing::SideBand,
                b"push-options" => self.has_options = true,
                _ => {}
            }
        }
    }

    fn take_option(&mut self, line: &[u8]) -> Result<(), HeadError> {
        let option = line.strip_suffix(b"\n").unwrap_or(line);
        // An empty option costs memory too.
        self.option_bytes += option.len() + 1;
        if self.option_bytes > self.limits.option_bytes_max {
            return Err(HeadError::OptionsTooLong);
        }
        self.head.options.push(option.to_vec());
        Ok(())
    }
}

/// Whether an id stands for "no object": zeros alone, in either hash.
fn is_nothing(id: &[u8]) -> bool {
    !id.is_empty() && id.iter().all(|byte| *byte == b'0')
}

#[cfg(test)]
mod tests {
    use super::super::pktline::{FLUSH, packet};
    use super::*;
    use proptest::prelude::*;

    const LIMITS: HeadLimits = HeadLimits { refs_max: 3, option_bytes_max: 20 };
    const OLD_NEW: &str = "0000000000000000000000000000000000000000 1111111111111111111111111111111111111111";

    fn command(name: &str, capabilities: &str) -> Vec<u8> {
        packet(format!("{OLD_NEW} {name}\0{capabilities}").as_bytes()).to_vec()
    }

    fn read(body: &[u8], cut: usize) -> Result<(Progress, PushHead), HeadError> {
        let mut parser = HeadParser::new(LIMITS);
        let mut progress = Progress::Reading;
        for piece in body.chunks(cut) {
            progress = parser.push(piece)?;
        }
        Ok((progress, parser.head().clone()))
    }

    #[test]
    fn a_push_with_options_in_any_pieces() {
        let body = [
            packet(b"shallow 1111111111111111111111111111111111111111").to_vec(),
            command("refs/heads/a", " report-status side-band-64k push-options agent=git/2"),
            packet(format!("{OLD_NEW} refs/heads/b").as_bytes()).to_vec(),
            FLUSH.to_vec(),
            packet(b"ci.skip").to_vec(),
            packet(b"x=\xff").to_vec(),
            FLUSH.to_vec(),
            b"PACK and so on".to_vec(),
        ]
        .concat();
        for cut in [1, 2, 3, 7, 64, 4096] {
            let (progress, head) = read(&body, cut).unwrap();
            assert_eq!(progress, Progress::Complete);
            assert_eq!(head.framing, Framing::SideBand);
            assert_eq!(head.commands, 2);
            assert_eq!(head.options, [b"ci.skip".to_vec(), b"x=\xff".to_vec()]);
        }
    }

    #[test]
    fn plain_and_unfinished() {
        let body = [command("refs/heads/a", "report-status"), FLUSH.to_vec(), b"PACK".to_vec()].concat();
        assert_eq!(read(&body, 5).unwrap().1, PushHead { commands: 1, ..PushHead::default() });
        assert_eq!(read(&body[..20], 5).unwrap().0, Progress::Reading);
    }

    #[test]
    fn a_deletion_is_seen_wherever_it_stands() {
        let delete = OLD_NEW.split(' ').rev().collect::<Vec<_>>().join(" ");
        let plain =
            [command("refs/heads/a", ""), packet(format!("{delete} refs/heads/b").as_bytes()).to_vec()].concat();
        let signed = [
            packet(b"push-cert\0side-band-64k").to_vec(),
            packet(b"certificate version 0.1\n").to_vec(),
            packet(format!("{delete} refs/heads/b\n").as_bytes()).to_vec(),
            packet(b"push-cert-end\n").to_vec(),
        ]
        .concat();
        for commands in [plain, signed] {
            let head = read(&[commands, FLUSH.to_vec()].concat(), 11).unwrap().1;
            assert_eq!(head.deletions, [b"refs/heads/b".to_vec()]);
        }
        assert!(read(&[command("refs/heads/a", ""), FLUSH.to_vec()].concat(), 11).unwrap().1.deletions.is_empty());
    }

    #[test]
    fn a_deletion_without_a_value_is_refused() {
        for nothing in ["0".repeat(40), "0".repeat(64)] {
            let blind = packet(format!("{nothing} {nothing} refs/heads/b").as_bytes()).to_vec();
            let body = [command("refs/heads/a", " side-band-64k"), blind, FLUSH.to_vec()].concat();
            for cut in [1, 7, 4096] {
                assert_eq!(read(&body, cut), Err(HeadError::BlindDeletion));
            }
        }
    }

    #[test]
    fn limits() {
        let many = [command("refs/heads/a", ""), packet(OLD_NEW.as_bytes()).repeat(3), FLUSH.to_vec()].concat();
        assert_eq!(read(&many, 4096), Err(HeadError::TooManyRefs));
        let options = [command("r", "push-options"), FLUSH.to_vec(), packet(&[b'o'; 30]).to_vec()].concat();
        assert_eq!(read(&options, 4096), Err(HeadError::OptionsTooLong));
        assert_eq!(read(b"GET / HTTP", 4096), Err(HeadError::NotAPush));
    }

    #[test]
    fn a_signed_push() {
        let body = [
            packet(b"push-cert\0side-band-64k push-options").to_vec(),
            packet(b"certificate version 0.1\n").to_vec(),
            packet(b"\n").to_vec(),
            packet(format!("{OLD_NEW} refs/heads/a\n").as_bytes()).to_vec(),
            packet(b"push-cert-end\n").to_vec(),
            FLUSH.to_vec(),
            packet(b"o").to_vec(),
            FLUSH.to_vec(),
        ]
        .concat();
        let (progress, head) = read(&body, 9).unwrap();
        assert_eq!((progress, head.commands, head.options.len()), (Progress::Complete, 1, 1));
    }

    proptest! {
        #[test]
        fn never_panics(body in prop::collection::vec(any::<u8>(), 0..400), cut in 1_usize..40) {
            let _ = read(&body, cut);
        }
    }
}
