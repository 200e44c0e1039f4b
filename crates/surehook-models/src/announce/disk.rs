//! What git and surehook keep on disk for one ref: its value, its log, its lock, and the high-water mark. Steps of git are here.
//! Touches the model's state alone.

/// What a ref points to; 0: it is not there.
pub type Value = u8;

/// A line of a reflog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// The value before.
    pub old: Value,
    /// The value after.
    pub new: Value,
    /// Tells the lines of two pushes apart, as their times do; the same for all where everything happens in one second.
    pub second: u8,
}

/// Where a cursor stands in a log; mirrors `capture::reflog::Place`, with lines in the place of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// How many lines lie before it.
    pub lines: u8,
    /// The line that ends here.
    pub line: Option<Line>,
    /// The line that the log began with.
    pub birth: Option<Line>,
}

/// A log, as a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogFile {
    /// Which file it is. Where numbers of inodes are used again at once, all have the same.
    pub inode: u8,
    /// Its lines.
    pub lines: Vec<Line>,
}

impl LogFile {
    /// What `snapshot::Stamp` compares.
    pub fn stamp(log: Option<&Self>) -> Option<(u8, usize)> {
        log.map(|log| (log.inode, log.lines.len()))
    }
}

/// The newest number that was announced; `capture::folder::HighWater`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HighWater {
    /// The number.
    pub sequence: u8,
    /// Its epoch.
    pub epoch: u8,
}

/// The disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Disk {
    /// The ref.
    pub value: Value,
    /// Its log.
    pub log: Option<LogFile>,
    /// The push whose git holds the lock of the ref.
    pub lock: Option<u8>,
    /// The file beside the refs.
    pub mark: Option<HighWater>,
    /// How many log files there were.
    pub inodes: u8,
}

impl Disk {
    /// git appends to the log before it moves the ref.
    pub fn append(&mut self, line: Line, inodes_are_reused: bool) {
        let inodes = &mut self.inodes;
        let log = self.log.get_or_insert_with(|| {
            if !inodes_are_reused {
                *inodes += 1;
            }
            LogFile { inode: *inodes, lines: Vec::new() }
        });
        log.lines.push(line);
    }

    /// `capture::folder::write_high_water`: an older one never replaces a newer one of the same epoch.
    pub fn write_high_water(&mut self, mark: HighWater) {
        if !self.mark.is_some_and(|there| there.epoch == mark.epoch && there.sequence >= mark.sequence) {
            self.mark = Some(mark);
        }
    }
}
