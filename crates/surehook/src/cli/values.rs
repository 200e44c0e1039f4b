//! Values that are typed in more than one command: lengths of time, points in time, secrets, headers, ids.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use secrecy::SecretString;
use surehook_outbox::Database;
use surehook_outbox::store::operate::database_time;
use uuid::Uuid;

use super::CliError;

/// A length of time with its unit: `500ms`, `10s`, `5m`, `2h`, `3d`, `1w`; in milliseconds.
pub fn parse_duration_ms(text: &str) -> Result<i64, String> {
    let help = || format!("{text:?} is no length of time; write for example 500ms, 10s, 5m, 2h or 3d");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor: i64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        _ => return Err(help()),
    };
    number.parse::<i64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(help)
}

/// A length of time that a column of milliseconds holds.
pub(super) fn parse_ms(text: &str) -> Result<i32, String> {
    i32::try_from(parse_duration_ms(text)?).map_err(|_| format!("{text} is too long"))
}

/// A length of time that a column of seconds holds.
pub(super) fn parse_s(text: &str) -> Result<i32, String> {
    i32::try_from(parse_duration_ms(text)? / 1_000).map_err(|_| format!("{text} is too long"))
}

/// A point in time: so long ago, or a timestamp.
#[derive(Clone, Copy, Debug)]
pub enum Since {
    /// So many milliseconds ago.
    AgoMs(i64),
    /// Then.
    At(Timestamp),
}

/// `2h` (ago) or `2026-01-31T08:00:00Z`.
pub(super) fn parse_since(text: &str) -> Result<Since, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(Since::At(at));
    }
    parse_duration_ms(text)
        .map(Since::AgoMs)
        .map_err(|_| format!("{text:?} is no time; write how long ago (30m, 2h, 3d) or 2026-01-31T08:00:00Z"))
}

impl Since {
    /// The point in time, by the database's clock.
    pub(super) async fn resolve(since: Option<Self>, database: &Database) -> Result<Option<Timestamp>, CliError> {
        match since {
            None => Ok(None),
            Some(Self::At(at)) => Ok(Some(at)),
            Some(Self::AgoMs(ago_ms)) => {
                let now = database_time(database).await?;
                // Longer ago than times can say: since ever.
                Ok(now.checked_sub(jiff::SignedDuration::from_millis(ago_ms)).ok())
            }
        }
    }
}

/// `Name: value`.
pub(super) fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or_else(|| format!("{text:?} is no header; write \"Name: value\""))?;
    Ok((name.trim().into(), value.trim().into()))
}

/// Headers by name; one given twice counts as it was given last.
pub(super) fn header_map(headers: Vec<(String, String)>) -> BTreeMap<String, String> {
    headers.into_iter().collect()
}

/// A secret that need not stand in the list of processes.
#[derive(Clone, Default, Args)]
pub struct SecretArgs {
    /// The shared secret that signs each webhook; visible to others in the list of processes, so better in a file or in
    /// the environment
    #[arg(long, value_name = "SECRET", env = "SUREHOOK_SECRET", hide_env_values = true)]
    pub secret: Option<String>,
    /// Read the secret from this file (- is standard input); a line end at its end does not belong to it. Wins over
    /// SUREHOOK_SECRET
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
}

impl std::fmt::Debug for SecretArgs {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SecretArgs").field("secret_file", &self.secret_file).finish_non_exhaustive()
    }
}

impl SecretArgs {
    /// The secret, if one was given.
    pub fn read(self) -> Result<Option<SecretString>, CliError> {
        match self.secret_file {
            Some(file) => read_secret_file(&file).map(Some),
            None => Ok(self.secret.map(SecretString::from)),
        }
    }
}

/// Reads a secret from a file.
pub(super) fn read_secret_file(file: &std::path::Path) -> Result<SecretString, CliError> {
    let unreadable = |error: std::io::Error| {
        CliError::new(
            format!("The secret cannot be read from {}: {error}.", file.display()),
            "Name a file that holds nothing but the secret.",
        )
    };
    let mut text = String::new();
    // A secret has at most 512 bytes: a file that is much longer is another one.
    let mut limited: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin().take(4096))
    } else {
        Box::new(std::fs::File::open(file).map_err(unreadable)?.take(4096))
    };
    limited.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text.trim_end_matches(['\r', '\n']).into())
}

/// An id of the kind that lists show.
pub(super) fn parse_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text)
        .map_err(|_| format!("{text:?} is no id; lists show them, like 0d9bd7e6-2a53-4a4c-9d5e-6f0f9a3b8c11"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        for (text, ms) in
            [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("3d", 259_200_000), ("0s", 0)]
        {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1.5s", "10 s", "9999999999999999999s", "9223372036854775807w", "10x"] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn points_in_time() {
        assert!(matches!(parse_since("2h"), Ok(Since::AgoMs(7_200_000))));
        assert!(matches!(parse_since("2026-01-31T08:00:00Z"), Ok(Since::At(_))));
        assert!(parse_since("yesterday").is_err());
    }
}
