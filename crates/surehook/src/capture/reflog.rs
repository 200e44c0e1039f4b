//! Reads reflogs: bytes to lines, and the place up to which a log has been told. Pure but for the byte source it is given.
//!
//! A line is `<old> <new> <name> <email> <seconds> <zone>\t<message>\n`. Everything in it but the ids is bytes of unknown
//! encoding. A last line without its end is not there yet. A line that cannot be read joins nothing, and ends nothing.

use std::io;

use gix::ObjectId;
use sha2::{Digest, Sha256};

/// How many bytes are read at once.
const BLOCK_BYTES: usize = 256 * 1024;

/// Where a line ends, and what it says: the boundary between what of a log was told and what was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the first byte after the line, its end included. 0: before the first line.
    pub offset: u64,
    /// SHA-256 of the line without its end; `None` before the first line.
    pub line_hash: Option<[u8; 32]>,
    /// SHA-256 of the line that the log began with: it tells a log that was thinned out from that of a ref's second life.
    pub birth_hash: Option<[u8; 32]>,
}

impl Place {
    /// Before the first line: the log was empty or absent, so whatever it holds came later.
    pub const START: Self = Self { offset: 0, line_hash: None, birth_hash: None };
}

/// Who a line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name, as bytes.
    pub name: Vec<u8>,
    /// E-mail address, as bytes.
    pub email: Vec<u8>,
}

/// What a readable line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The value before; zeros for a creation.
    pub old: ObjectId,
    /// The value after.
    pub new: ObjectId,
    /// Seconds since 1970, by whatever clock wrote the line.
    pub seconds: i64,
    /// Who did it, if the line says so.
    pub identity: Option<Identity>,
}

/// One complete line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it ends.
    pub place: Place,
    /// What it says; `None` if it cannot be read.
    pub update: Option<Update>,
}

/// From where on a [`Log`] holds the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// After this place, which was found (perhaps at another offset than before).
    AfterPlace(Place),
    /// At the first line: the place was not found, or none was given.
    AtFirstLine,
}

/// The lines of a log that matter, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// From where on.
    pub begins: Begins,
    /// The complete lines.
    pub lines: Vec<Line>,
}

/// Bytes that can be read at any offset.
pub trait Source {
    /// Fills `buffer` from `offset` on as far as there are bytes; returns how many.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let from = self.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let count = buffer.len().min(self.len() - from);
        buffer[..count].copy_from_slice(&self[from..from + count]);
        Ok(count)
    }
}

impl Source for std::fs::File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match std::os::unix::fs::FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl Log {
    /// A log without lines, as an absent file is.
    pub const EMPTY: Self = Self { begins: Begins::AfterPlace(Place::START), lines: Vec::new() };

    /// Reads the lines after `place`; where that is not found, all of them.
    ///
    /// Reading begins at the place if the line that ends there is still the same. Otherwise the log was rewritten, and the
    /// line is searched: the newest equal one that does not end later than before, since rewriting only takes lines away. A
    /// line of the very second of a creation that the log did not begin with before does not count: where a script is fast, a
    /// ref that is deleted and made again has equal lines in both of its lives.
    pub fn read<S: Source + ?Sized>(source: &S, place: Option<Place>, kind: gix::hash::Kind) -> io::Result<Self> {
        let mut log = Self { begins: Begins::AtFirstLine, lines: Vec::new() };
        let first = first_line(source)?;
        let birth_hash = first.as_deref().map(hash);
        let mut from = 0;
        let mut wanted = None;
        match place {
            Some(found) if is_there(source, first.as_deref(), &found, kind)? => {
                log.begins = Begins::AfterPlace(if found.offset == 0 { found } else { Place { birth_hash, ..found } });
                from = found.offset;
            }
            other => wanted = other,
        }
        each_line(source, from, |end, text| {
            let place = Place { offset: end, line_hash: Some(hash(text)), birth_hash };
            if let Some(wanted) = wanted
                && place.line_hash == wanted.line_hash
                && (end <= wanted.offset || log.begins == Begins::AtFirstLine)
                && !is_another_life(first.as_deref(), &wanted, text, kind)
            {
                log.begins = Begins::AfterPlace(place);
                log.lines.clear();
            } else {
                log.lines.push(Line { place, update: parse(text, kind) });
            }
        })?;
        Ok(log)
    }
}

/// Whether a log of this length ends at this place and is the one that the place was taken in.
pub fn is_all_told<S: Source + ?Sized>(
    source: &S,
    bytes: u64,
    place: &Place,
    kind: gix::hash::Kind,
) -> io::Result<bool> {
    Ok(bytes == place.offset && is_there(source, first_line(source)?.as_deref(), place, kind)?)
}

/// Whether the line that ends at this place is still the one it names.
fn is_there<S: Source + ?Sized>(
    source: &S,
    first: Option<&[u8]>,
    place: &Place,
    kind: gix::hash::Kind,
) -> io::Result<bool> {
    let Some(expected) = place.line_hash else { return Ok(place.offset == 0) };
    let line = line_before(source, place.offset)?;
    Ok(line.is_some_and(|line| hash(&line) == expected && !is_another_life(first, place, &line, kind)))
}

/// Whether the log begins with a creation that it did not begin with when the place was taken, in the second of this line.
fn is_another_life(first: Option<&[u8]>, place: &Place, line: &[u8], kind: gix::hash::Kind) -> bool {
    let (Some(first), Some(birth)) = (first, place.birth_hash) else { return false };
    first != line
        && hash(first) != birth
        && match (parse(first, kind), parse(line, kind)) {
            (Some(first), Some(line)) => first.old.is_null() && first.seconds >= line.seconds,
            _ => false,
        }
}

/// The text of the first line, if it is complete.
fn first_line<S: Source + ?Sized>(source: &S) -> io::Result<Option<Vec<u8>>> {
    let mut text = vec![0; 512];
    loop {
        let count = source.read_at(0, &mut text)?;
        if let Some(end) = text[..count].iter().position(|byte| *byte == b'\n') {
            text.truncate(end);
            return Ok(Some(text));
        }
        if count < text.len() {
            return Ok(None);
        }
        text.resize(text.len() * 4, 0);
    }
}

/// The text of the line that ends at this offset, if one does.
fn line_before<S: Source + ?Sized>(source: &S, offset: u64) -> io::Result<Option<Vec<u8>>> {
    let mut window = 1024;
    loop {
        let from = offset.saturating_sub(window);
        let Ok(length) = usize::try_from(offset - from) else { return Ok(None) };
        let mut text = vec![0; length];
        if length == 0 || source.read_at(from, &mut text)? < length || text.pop() != Some(b'\n') {
            return Ok(None);
        }
        match text.iter().rposition(|byte| *byte == b'\n') {
            Some(before) => return Ok(Some(text.split_off(before + 1))),
            None if from == 0 => return Ok(Some(text)),
            None => window *= 4,
        }
    }
}

/// Calls `visit` with the end and the text of each complete line from `from` on, which must be where a line begins.
fn each_line<S: Source + ?Sized>(source: &S, from: u64, mut visit: impl FnMut(u64, &[u8])) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut pending: Vec<u8> = Vec::new();
    let mut offset = from;
    loop {
        let count = source.read_at(offset, &mut block)?;
        let mut rest = &block[..count];
        let mut consumed = offset;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            consumed += at as u64 + 1;
            if pending.is_empty() {
                visit(consumed, &rest[..at]);
            } else {
                pending.extend_from_slice(&rest[..at]);
                visit(consumed, &pending);
                pending.clear();
            }
            rest = &rest[at + 1..];
        }
        pending.extend_from_slice(rest);
        offset += count as u64;
        if count < block.len() {
            return Ok(());
        }
    }
}

fn hash(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// What a line says, without its end; `None` if it is not a line of a reflog of this kind of repository.
pub fn parse(text: &[u8], kind: gix::hash::Kind) -> Option<Update> {
    let digits = kind.len_in_hex();
    if text.len() < 2 * digits + 2 || text[digits] != b' ' || text[2 * digits + 1] != b' ' {
        return None;
    }
    let old = ObjectId::from_hex(&text[..digits]).ok()?;
    let new = ObjectId::from_hex(&text[digits + 1..2 * digits + 1]).ok()?;
    let rest = &text[2 * digits + 2..];
    let who = &rest[..rest.iter().position(|byte| *byte == b'\t').unwrap_or(rest.len())];
    let (identity, seconds) = signature(who);
    Some(Update { old, new, seconds: seconds.unwrap_or(0), identity })
}

/// `Name <email> seconds zone`, taken apart from the right: names may hold anything but `<`, `>` and line ends.
fn signature(who: &[u8]) -> (Option<Identity>, Option<i64>) {
    let Some(close) = who.iter().rposition(|byte| *byte == b'>') else { return (None, None) };
    let seconds = std::str::from_utf8(&who[close + 1..])
        .ok()
        .and_then(|tail| tail.split_ascii_whitespace().next())
        .and_then(|digits| digits.parse().ok());
    let identity = who[..close].iter().rposition(|byte| *byte == b'<').map(|open| Identity {
        name: who[..open].trim_ascii().to_vec(),
        email: who[open + 1..close].trim_ascii().to_vec(),
    });
    (identity, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const KIND: gix::hash::Kind = gix::hash::Kind::Sha1;

    fn line(old: &str, new: &str, seconds: u32) -> Vec<u8> {
        format!("{old} {new} Ann <ann@example.org> {seconds} +0100\tpush\n").into_bytes()
    }

    #[test]
    fn a_line_is_taken_apart() {
        let update = parse(format!("{A} {B} J\u{e9} D <a b> 12 -0330\tx\ty").as_bytes(), KIND).unwrap();
        assert_eq!(update.seconds, 12);
        let identity = update.identity.unwrap();
        assert_eq!((identity.name.as_slice(), identity.email.as_slice()), ("J\u{e9} D".as_bytes(), b"a b".as_slice()));
        let mut latin = format!("{A} {B} ").into_bytes();
        latin.extend_from_slice(b"\xe9ric <e@x> 5 +0000\tm\xff");
        assert_eq!(parse(&latin, KIND).unwrap().identity.unwrap().name, b"\xe9ric");
        assert!(parse(format!("{A} {B} nobody").as_bytes(), KIND).unwrap().identity.is_none());
    }

    #[test]
    fn what_is_no_line_is_skipped() {
        for text in ["", "x", A, &format!("{A} {B}"), &format!("{A}  {B} x"), &format!("{}g {B} x", &A[1..])] {
            assert_eq!(parse(text.as_bytes(), KIND), None, "{text:?}");
        }
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        assert!(parse(format!("{a} {b} n <e> 1 +0000\t").as_bytes(), gix::hash::Kind::Sha256).is_some());
        assert_eq!(parse(format!("{a} {b} n <e> 1 +0000\t").as_bytes(), KIND), None);
    }

    #[test]
    fn a_line_without_its_end_is_not_there_yet() {
        let mut bytes = line(A, B, 1);
        bytes.extend_from_slice(&line(B, A, 2));
        bytes.pop();
        let log = Log::read(bytes.as_slice(), Some(Place::START), KIND).unwrap();
        assert_eq!(log.lines.len(), 1);
        assert_eq!(log.begins, Begins::AfterPlace(Place::START));
    }

    #[test]
    fn the_place_is_found_where_it_was_or_where_it_moved_to() {
        let (one, two, three) = (line(A, B, 1), line(B, A, 2), line(A, B, 3));
        let bytes = [one.clone(), two.clone(), three.clone()].concat();
        let all = Log::read(bytes.as_slice(), None, KIND).unwrap();
        assert_eq!((all.begins, all.lines.len()), (Begins::AtFirstLine, 3));
        let place = all.lines[1].place;
        let after = Log::read(bytes.as_slice(), Some(place), KIND).unwrap();
        assert_eq!((after.begins, after.lines.len()), (Begins::AfterPlace(place), 1));
        let trimmed = [two.clone(), three.clone()].concat();
        let moved = Log::read(trimmed.as_slice(), Some(place), KIND).unwrap();
        let there = Place { offset: two.len() as u64, birth_hash: place.line_hash, ..place };
        assert_eq!((moved.begins, moved.lines.len()), (Begins::AfterPlace(there), 1));
        let gone = Log::read(three.as_slice(), Some(place), KIND).unwrap();
        assert_eq!((gone.begins, gone.lines.len()), (Begins::AtFirstLine, 1));
    }

    #[test]
    fn an_equal_line_of_a_second_life_is_not_the_place() {
        let zeros = "0".repeat(40);
        let first_life = [line(&zeros, A, 5), line(A, B, 5), line(B, A, 5)].concat();
        let place = Log::read(first_life.as_slice(), None, KIND).unwrap().lines[2].place;
        let second_life = [line(&zeros, B, 5), line(B, A, 5)].concat();
        let log = Log::read(second_life.as_slice(), Some(place), KIND).unwrap();
        assert_eq!((log.begins, log.lines.len()), (Begins::AtFirstLine, 2));
        // gc has taken a line out of the middle of an old log.
        let thinned = [line(&zeros, A, 5), line(B, A, 5), line(A, B, 6)].concat();
        let log = Log::read(thinned.as_slice(), Some(place), KIND).unwrap();
        assert_eq!(log.lines.len(), 1);
    }

    #[test]
    fn long_lines_and_long_logs_cross_the_blocks() {
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        for number in 0..40_u32 {
            bytes.extend_from_slice(
                format!("{A} {B} n <e> {number} +0000\t{}\n", "m".repeat(number as usize * 1500)).as_bytes(),
            );
            ends.push(bytes.len() as u64);
        }
        let log = Log::read(bytes.as_slice(), None, KIND).unwrap();
        assert_eq!(log.lines.iter().map(|line| line.place.offset).collect::<Vec<_>>(), ends);
        for line in &log.lines {
            let there = line_before(bytes.as_slice(), line.place.offset).unwrap().unwrap();
            assert_eq!(line.place.line_hash, Some(hash(&there)));
        }
    }
}
