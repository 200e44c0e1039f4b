//! Reads what a delivery says of a push, and turns it into environment variables for the command. Pure.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A longer value is cut: Linux starts no program with a variable over 128 KiB. The standard input has it whole.
const VALUE_BYTES_MAX: usize = 32 * 1024;
/// A longer text is cut in the database's columns, which are for people.
const COLUMN_BYTES_MAX: usize = 1024;

/// Why a body cannot start a build.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushError {
    /// The body is not UTF-8.
    #[error("the body is not UTF-8")]
    NotUtf8(#[source] std::str::Utf8Error),
    /// The body is no JSON object with the fields of a push.
    #[error("the body is not the JSON of a push: {0}")]
    NotAPush(#[source] serde_json::Error),
    /// `before` or `after` is no object id.
    #[error("{0} is not an object id (40 or 64 lower-case hex digits)")]
    NotAnObjectId(&'static str),
}

/// What the receiver reads of the body. `ref`, `before` and `after` must be there; the native format has the others too,
/// and the formats of forges have some of them.
#[derive(Debug, Deserialize)]
pub(super) struct Push {
    /// The ref that moved, rendered as UTF-8.
    #[serde(rename = "ref")]
    pub(super) ref_name: String,
    /// Object id before; zeros if the ref is new.
    pub(super) before: String,
    /// Object id after; zeros if the ref was deleted.
    pub(super) after: String,
    ref_base64: Option<String>,
    event_id: Option<String>,
    sequence: Option<i64>,
    sequence_epoch: Option<String>,
    created: Option<bool>,
    deleted: Option<bool>,
    forced: Option<bool>,
    repository: Option<Repository>,
    pusher: Option<Pusher>,
    head_commit: Option<HeadCommit>,
}

#[derive(Debug, Deserialize)]
struct Repository {
    id: Option<RepositoryId>,
    name: Option<String>,
    full_name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RepositoryId {
    Text(String),
    Number(u64),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pusher {
    Named { name: String },
    Text(String),
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
struct HeadCommit {
    id: String,
}

impl Push {
    /// Parses a body. A byte-order mark before the JSON is passed over.
    pub(super) fn parse(body: &[u8]) -> Result<Self, PushError> {
        let text = std::str::from_utf8(body).map_err(PushError::NotUtf8)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let push: Self = serde_json::from_str(text).map_err(PushError::NotAPush)?;
        for (name, id) in [("before", &push.before), ("after", &push.after)] {
            if !is_object_id(id) {
                return Err(PushError::NotAnObjectId(name));
            }
        }
        Ok(push)
    }

    /// The event, as a column.
    pub(super) fn event_id(&self) -> Option<&str> {
        self.event_id.as_deref().filter(|id| id.len() <= 200 && !id.contains('\0'))
    }

    /// The name of the repository, as a column.
    pub(super) fn repository(&self) -> Option<Cow<'_, str>> {
        self.repository_name().map(column)
    }

    /// The ref, as a column.
    pub(super) fn ref_column(&self) -> Cow<'_, str> {
        column(&self.ref_name)
    }

    /// The head commit, if it is an object id.
    pub(super) fn commit(&self) -> Option<&str> {
        self.head_commit.as_ref().map(|commit| commit.id.as_str()).filter(|id| is_object_id(id))
    }

    /// What builds of one repository have in common.
    pub(super) fn repository_key(&self) -> String {
        let key = self.repository_id().or_else(|| self.repository_name().map(Into::into)).unwrap_or_default();
        column(&key).into_owned()
    }

    /// The variables by which the command learns of the push. What is not known is not set.
    ///
    /// Control characters, NUL and line breaks among them, become U+FFFD, so each value is one line. `SUREHOOK_REF`,
    /// `SUREHOOK_BRANCH` and `SUREHOOK_TAG` are the exact bytes of the name, which need not be UTF-8.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let yes_no = |flag: bool| if flag { "true" } else { "false" }.to_owned();
        let ref_bytes = self.ref_bytes();
        let below = |prefix: &[u8]| ref_bytes.strip_prefix(prefix).map(|name| OsString::from_vec(name.to_vec()));
        let text = |value: Option<String>| value.map(|value| OsString::from(one_line(&value)));
        let variables = [
            ("SUREHOOK_REF", Some(OsString::from_vec(ref_bytes.clone()))),
            ("SUREHOOK_BRANCH", below(b"refs/heads/")),
            ("SUREHOOK_TAG", below(b"refs/tags/")),
            ("SUREHOOK_BEFORE", text(Some(self.before.clone()))),
            ("SUREHOOK_AFTER", text(Some(self.after.clone()))),
            ("SUREHOOK_COMMIT", text(self.commit().map(Into::into))),
            ("SUREHOOK_CREATED", text(Some(yes_no(self.created.unwrap_or(is_zeros(&self.before)))))),
            ("SUREHOOK_DELETED", text(Some(yes_no(self.deleted.unwrap_or(is_zeros(&self.after)))))),
            ("SUREHOOK_FORCED", text(self.forced.map(yes_no))),
            ("SUREHOOK_EVENT_ID", text(self.event_id.clone())),
            ("SUREHOOK_REPOSITORY", text(self.repository_name().map(Into::into))),
            ("SUREHOOK_REPOSITORY_ID", text(self.repository_id())),
            ("SUREHOOK_PUSHER", text(self.pusher_name())),
            ("SUREHOOK_SEQUENCE", text(self.sequence.map(|number| number.to_string()))),
            ("SUREHOOK_SEQUENCE_EPOCH", text(self.sequence_epoch.clone())),
        ];
        variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn repository_name(&self) -> Option<&str> {
        let repository = self.repository.as_ref()?;
        repository.full_name.as_deref().or(repository.name.as_deref())
    }

    fn repository_id(&self) -> Option<String> {
        Some(match self.repository.as_ref()?.id.as_ref()? {
            RepositoryId::Text(text) => text.clone(),
            RepositoryId::Number(number) => number.to_string(),
        })
    }

    fn pusher_name(&self) -> Option<String> {
        match self.pusher.as_ref()? {
            Pusher::Named { name } | Pusher::Text(name) => Some(name.clone()),
            Pusher::Other(_) => None,
        }
    }

    /// git allows no control characters in the name of a ref, so bytes that contain some are not believed.
    fn ref_bytes(&self) -> Vec<u8> {
        self.ref_base64
            .as_ref()
            .and_then(|text| STANDARD.decode(text).ok())
            .filter(|bytes| bytes.len() <= VALUE_BYTES_MAX && !bytes.iter().any(u8::is_ascii_control))
            .unwrap_or_else(|| one_line(&self.ref_name).into_bytes())
    }
}

fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_zeros(id: &str) -> bool {
    id.bytes().all(|byte| byte == b'0')
}

fn one_line(text: &str) -> String {
    cut(text, VALUE_BYTES_MAX).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// PostgreSQL's text holds no NUL.
fn column(text: &str) -> Cow<'_, str> {
    let text = cut(text, COLUMN_BYTES_MAX);
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZEROS: &str = "0000000000000000000000000000000000000000";
    const ONES: &str = "1111111111111111111111111111111111111111";

    fn body(more: &str) -> String {
        format!(r#"{{"ref":"refs/heads/main","before":"{ZEROS}","after":"{ONES}"{more}}}"#)
    }

    fn variable(push: &Push, name: &str) -> Option<OsString> {
        push.environment().into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    #[test]
    fn what_is_no_push_is_refused() {
        for bad in [
            &b""[..],
            b"null",
            b"[]",
            b"{}",
            b"{\"ref\":\"refs/heads/main\"}",
            b"\xff\xfe",
            body(r#","ref":"twice""#).as_bytes(),
            body("").replace(ONES, "abc").as_bytes(),
            body("").replace(ZEROS, &"A".repeat(40)).as_bytes(),
            body("").replace(ZEROS, "12\u{660}").as_bytes(),
            body(" trailing").as_bytes(),
            format!("{}{}", body(""), body("")).as_bytes(),
            "[".repeat(100_000).as_bytes(),
        ] {
            assert!(Push::parse(bad).is_err(), "{:?}", String::from_utf8_lossy(&bad[..bad.len().min(99)]));
        }
    }

    #[test]
    fn formats_of_forges_are_understood_as_far_as_they_go() {
        let push = Push::parse(
            body(r#","repository":{"id":42,"name":"app","full_name":"team/app"},"pusher":{"name":"eve","email":"e@x"},"commits":[{"id":"x"}]"#)
                .as_bytes(),
        )
        .unwrap();
        assert_eq!(push.repository_key(), "42");
        assert_eq!(variable(&push, "SUREHOOK_REPOSITORY").unwrap(), "team/app");
        assert_eq!(variable(&push, "SUREHOOK_PUSHER").unwrap(), "eve");
        assert_eq!(variable(&push, "SUREHOOK_CREATED").unwrap(), "true");
        assert_eq!(variable(&push, "SUREHOOK_COMMIT"), None);
        assert_eq!(Push::parse(body("").as_bytes()).unwrap().repository_key(), "");
    }

    #[test]
    fn a_value_is_one_line_without_nul_and_not_endless() {
        let long = "x".repeat(200_000);
        let more =
            format!(r#","pusher":{{"name":"a\u0000b\nc"}},"event_id":"{long}","repository":{{"name":"n\u0000"}}"#);
        let push = Push::parse(body(&more).as_bytes()).unwrap();
        assert_eq!(variable(&push, "SUREHOOK_PUSHER").unwrap(), "a\u{fffd}b\u{fffd}c");
        assert_eq!(variable(&push, "SUREHOOK_EVENT_ID").unwrap().len(), VALUE_BYTES_MAX);
        assert_eq!(push.event_id(), None);
        assert_eq!(push.repository().unwrap(), "n\u{fffd}");
    }

    #[test]
    fn a_ref_that_is_not_utf_8_is_passed_on_byte_for_byte() {
        let bytes = b"refs/heads/caf\xe9";
        let more = format!(r#","ref_base64":"{}""#, STANDARD.encode(bytes));
        let push = Push::parse(body(&more).replace("main", "caf\u{fffd}").as_bytes()).unwrap();
        assert_eq!(variable(&push, "SUREHOOK_REF").unwrap().into_vec(), bytes);
        assert_eq!(variable(&push, "SUREHOOK_BRANCH").unwrap().into_vec(), b"caf\xe9");
        assert_eq!(variable(&push, "SUREHOOK_TAG"), None);
        assert_eq!(push.ref_column(), "refs/heads/caf\u{fffd}");
    }
}
