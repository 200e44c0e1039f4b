//! Names of repositories as they stand in URLs and in the database. Pure: it touches nothing.
//!
//! A name becomes a path below the storage root, so the type is the proof that it cannot leave it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest name in bytes; the database holds the same limit.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest segment in bytes, with room for `.git` and a suffix below the 255 that file systems allow.
pub const SEGMENT_BYTES_MAX: usize = 100;
/// Most segments: groups may be nested, but not without end.
pub const SEGMENTS_MAX: usize = 20;
/// First segments that the HTTP server needs for itself.
pub const RESERVED_FIRST_SEGMENTS: [&str; 4] = ["api", "healthz", "readyz", "metrics"];

/// The checked name of a repository: segments of `[A-Za-z0-9._-]`, groups separated by `/`, without `.git`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepoName(String);

/// Why a text is no name of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing is left, or a segment between two slashes is empty.
    #[error("a repository name must not be empty or have empty parts")]
    Empty,
    /// The name, a segment, or the number of segments is over its limit.
    #[error(
        "a repository name may have {NAME_BYTES_MAX} characters, {SEGMENT_BYTES_MAX} between slashes, and {SEGMENTS_MAX} parts"
    )]
    TooLong,
    /// A character outside of the allowed set.
    #[error("a repository name may contain only letters, digits, '.', '_', '-', and '/' between groups")]
    Character,
    /// A segment begins with `.` or `-`.
    #[error("no part of a repository name may begin with '.' or '-'")]
    Start,
    /// A segment ends with `.lock`, or with a dot, or a group ends with `.git`.
    #[error("no part of a repository name may end with '.' or '.lock', and no group with '.git'")]
    End,
    /// The first segment belongs to the server.
    #[error("this name is reserved: api, healthz, readyz and metrics belong to the server")]
    Reserved,
}

impl RepoName {
    /// Checks a name. `x` and `x.git` give the same name; a trailing slash is not forgiven.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = text.strip_suffix(".git").unwrap_or(text);
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > NAME_BYTES_MAX || name.split('/').count() > SEGMENTS_MAX {
            return Err(NameError::TooLong);
        }
        for segment in name.split('/') {
            check_segment(segment)?;
        }
        let mut segments = name.split('/');
        let first = segments.next().unwrap_or_default();
        if RESERVED_FIRST_SEGMENTS.contains(&first) {
            return Err(NameError::Reserved);
        }
        Ok(Self(name.to_owned()))
    }

    /// The name as text, without `.git`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where a hosted repository of this name lies, relative to the storage root: `group/name.git`.
    #[must_use]
    pub fn relative_path(&self) -> PathBuf {
        PathBuf::from(format!("{}.git", self.0))
    }

    /// [`Self::relative_path`] below `root`.
    #[must_use]
    pub fn path_below(&self, root: &Path) -> PathBuf {
        root.join(self.relative_path())
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl AsRef<str> for RepoName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for RepoName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

fn check_segment(segment: &str) -> Result<(), NameError> {
    if segment.is_empty() {
        return Err(NameError::Empty);
    }
    if segment.len() > SEGMENT_BYTES_MAX {
        return Err(NameError::TooLong);
    }
    if !segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) {
        return Err(NameError::Character);
    }
    if segment.starts_with(['.', '-']) {
        return Err(NameError::Start);
    }
    // A segment that still ends in `.git` would be the folder of another repository (a group), or `x.git.git`, which
    // a URL could not tell from `x.git`.
    if segment.ends_with('.') || has_suffix(segment, ".lock") || has_suffix(segment, ".git") {
        return Err(NameError::End);
    }
    Ok(())
}

/// Without regard to case, since a file system may have none.
fn has_suffix(segment: &str, suffix: &str) -> bool {
    segment.len() >= suffix.len()
        && segment.as_bytes()[segment.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_names() {
        for (text, name) in [
            ("a", "a"),
            ("a.git", "a"),
            ("group/sub/name.git", "group/sub/name"),
            ("A-b_c.9", "A-b_c.9"),
            ("a/api", "a/api"),
            ("apis", "apis"),
            ("a..b", "a..b"),
            ("gitty", "gitty"),
        ] {
            assert_eq!(RepoName::parse(text).map(|name| name.0), Ok(name.to_owned()), "{text}");
        }
        assert_eq!(RepoName::parse("g/a").unwrap().path_below(Path::new("/r")), Path::new("/r/g/a.git"));
    }

    #[test]
    fn bad_names() {
        for (text, error) in [
            ("", NameError::Empty),
            (".git", NameError::Empty),
            ("a//b", NameError::Empty),
            ("/a", NameError::Empty),
            ("a/", NameError::Empty),
            ("a/.git", NameError::Empty),
            ("..", NameError::Start),
            (".", NameError::Start),
            ("a/../b", NameError::Start),
            ("../../etc/passwd", NameError::Start),
            (".hidden", NameError::Start),
            ("-flag", NameError::Start),
            ("a/-upload-pack=x", NameError::Character),
            ("a/-u", NameError::Start),
            ("a.lock", NameError::End),
            ("a.LOCK/b", NameError::End),
            ("a.git/b", NameError::End),
            ("a.git.git", NameError::End),
            ("a.Git", NameError::End),
            ("a.", NameError::End),
            ("a%2e", NameError::Character),
            ("a\\b", NameError::Character),
            ("a\0", NameError::Character),
            ("é", NameError::Character),
            ("a b", NameError::Character),
            ("api", NameError::Reserved),
            ("api/x", NameError::Reserved),
            ("metrics.git", NameError::Reserved),
        ] {
            assert_eq!(RepoName::parse(text).map(|name| name.0), Err(error), "{text}");
        }
        assert_eq!(RepoName::parse(&"a".repeat(SEGMENT_BYTES_MAX + 1)), Err(NameError::TooLong));
        assert_eq!(RepoName::parse(&["a"; SEGMENTS_MAX + 1].join("/")), Err(NameError::TooLong));
        let long = ["a".repeat(90), "b".repeat(90), "c".repeat(90)].join("/");
        assert_eq!(RepoName::parse(&long), Err(NameError::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_accepted_stays_below_the_root(text in "[a./_\\-g\\\\%\0it ]{0,24}|.{0,40}") {
            if let Ok(name) = RepoName::parse(&text) {
                let relative = name.relative_path();
                prop_assert!(relative.is_relative());
                prop_assert!(relative.components().all(|part| matches!(part, std::path::Component::Normal(_))));
                prop_assert_eq!(RepoName::parse(name.as_str()), Ok(name.clone()));
                prop_assert_eq!(RepoName::parse(&format!("{name}.git")), Ok(name));
            }
        }
    }
}
