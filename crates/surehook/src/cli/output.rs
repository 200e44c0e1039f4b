//! Prints results: tables for people, JSON for programs. The only place of the command line that writes to standard output.

use std::io::{self, Write};

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use jiff::Timestamp;
use serde::Serialize;

use super::CliError;

/// How results are printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    json: bool,
}

impl Out {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the reader is a program.
    pub(super) fn is_json(self) -> bool {
        self.json
    }

    /// A list: one JSON array, or a table, or the sentence that says that there is nothing.
    pub(super) fn list<T: Serialize>(
        self,
        items: &[T],
        nothing: &str,
        table: impl FnOnce() -> Table,
    ) -> Result<(), CliError> {
        if self.json {
            self.json_value(&items)
        } else if items.is_empty() {
            print(nothing)
        } else {
            print(&trimmed(&table()))
        }
    }

    /// Anything that is not a list: one JSON object, or words.
    pub(super) fn one<T: Serialize>(self, item: &T, words: impl FnOnce() -> String) -> Result<(), CliError> {
        if self.json { self.json_value(item) } else { print(&words()) }
    }

    /// A file as it is.
    pub(super) fn copy(self, file: &mut std::fs::File) -> io::Result<()> {
        match io::copy(file, &mut io::stdout().lock()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }

    fn json_value<T: Serialize>(self, value: &T) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|error| CliError::new(format!("The result is no JSON: {error}."), "Please report this."))?;
        print(&text)
    }
}

/// Writes to standard output. A reader that has gone away (`| head`) has what it wanted: that is no error.
fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("Standard output cannot be written: {error}."), "Is the disk full?"))
        }
        _ => Ok(()),
    }
}

/// A table without lines, as wide as the terminal.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    table
}

/// A table of names and values.
pub(super) fn properties(rows: &[(&str, String)]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (name, value) in rows {
        table.add_row([*name, value.as_str()]);
    }
    trimmed(&table)
}

/// A table as text, without the blanks at the ends of its lines.
pub(super) fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A time as people say it: relative for a day, then the date.
pub(super) fn when(time: Timestamp, now: Timestamp) -> String {
    let seconds = time.as_second() - now.as_second();
    if seconds.unsigned_abs() >= 86_400 {
        return time.strftime("%Y-%m-%d %H:%M UTC").to_string();
    }
    let length = span_words(seconds.unsigned_abs());
    match seconds {
        0 => "now".into(),
        1.. => format!("in {length}"),
        _ => format!("{length} ago"),
    }
}

/// The same for a time that may not be.
pub(super) fn when_or(time: Option<Timestamp>, now: Timestamp, otherwise: &str) -> String {
    time.map_or_else(|| otherwise.into(), |time| when(time, now))
}

/// A length of time in its two largest units.
pub(super) fn span_words(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..600 if !seconds.is_multiple_of(60) => format!("{} min {} s", seconds / 60, seconds % 60),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 if seconds % 3_600 >= 60 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        3_600..86_400 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Text from elsewhere on one line of a table: no control characters (they could move the cursor), at most `max` characters.
pub(super) fn cell(text: &str, max: usize) -> String {
    let mut clean: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(max + 1).collect::<String>().trim().to_owned();
    if clean.chars().count() > max {
        clean = clean.chars().take(max.saturating_sub(1)).chain(['…']).collect();
    }
    clean
}

/// "1 delivery", "2 deliveries".
pub(super) fn count(number: i64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_as_people_say_them() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        for (seconds, words) in [
            (0, "now"),
            (-12, "12 s ago"),
            (75, "in 1 min 15 s"),
            (-1_900, "31 min ago"),
            (7_260, "in 2 h 1 min"),
            (-90_000, "2027-01-14 07:00 UTC"),
        ] {
            assert_eq!(when(Timestamp::from_second(1_800_000_000 + seconds).unwrap(), now), words);
        }
    }

    #[test]
    fn a_cell_is_one_clean_line() {
        assert_eq!(cell("a\nb\u{1b}[2Jc", 20), "a b [2Jc");
        assert_eq!(cell("abcdef", 4), "abc…");
    }
}
