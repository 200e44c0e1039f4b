//! The headers of a delivery, and which headers a person may add to them. Pure.

use uuid::Uuid;

use crate::secret::Secrets;
use crate::signature::{standard_signatures, x_signature};

/// Names in lower case, as HTTP/2 writes them; HTTP/1 does not tell cases apart.
pub const CONTENT_TYPE: &str = "content-type";
/// Lower-case hex of HMAC-SHA256 over the body, by the primary secret.
pub const X_SIGNATURE: &str = "x-signature";
/// The idempotency key: the same at each retry and replay of a delivery.
pub const X_WEBHOOK_ID: &str = "x-webhook-id";
/// The same id, under the name of the Standard Webhooks specification.
pub const WEBHOOK_ID: &str = "webhook-id";
/// When this attempt was made, in seconds since 1970.
pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
/// Signatures over id, timestamp and body, one per secret.
pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";
/// The value of [`CONTENT_TYPE`].
pub const APPLICATION_JSON: &str = "application/json";

/// The longest name of a custom header.
pub const HEADER_NAME_BYTES_MAX: usize = 100;
/// The longest value of a custom header.
pub const HEADER_VALUE_BYTES_MAX: usize = 4096;

/// Headers that belong to HTTP itself or to the delivery, and so cannot be set by a person.
const RESERVED: &[&str] = &[
    CONTENT_TYPE,
    X_SIGNATURE,
    X_WEBHOOK_ID,
    WEBHOOK_ID,
    WEBHOOK_TIMESTAMP,
    WEBHOOK_SIGNATURE,
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Families whose headers follow from the format of an endpoint.
const RESERVED_PREFIXES: &[&str] =
    &["webhook-", "x-gitea-", "x-github-", "x-gitlab-", "x-gogs-", "x-hub-", "x-surehook-"];

/// All headers that every delivery carries. `timestamp_s` is the time of this attempt, so the last two change from
/// attempt to attempt, and the others never.
pub fn headers(id: Uuid, timestamp_s: i64, body: &[u8], secrets: &Secrets) -> [(&'static str, String); 6] {
    let id = id.to_string();
    let signatures = standard_signatures(secrets.iter(), &id, timestamp_s, body);
    [
        (CONTENT_TYPE, APPLICATION_JSON.into()),
        (X_SIGNATURE, x_signature(&secrets.primary, body)),
        (X_WEBHOOK_ID, id.clone()),
        (WEBHOOK_ID, id),
        (WEBHOOK_TIMESTAMP, timestamp_s.to_string()),
        (WEBHOOK_SIGNATURE, signatures),
    ]
}

/// Why a custom header is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a name that HTTP allows, or longer than [`HEADER_NAME_BYTES_MAX`].
    #[error(
        "the name of a header has 1 to {HEADER_NAME_BYTES_MAX} characters out of letters, digits and !#$%&'*+-.^_`|~"
    )]
    Name,
    /// The delivery sets this header itself.
    #[error("the header {0} is set by the delivery itself and cannot be overridden")]
    Reserved(String),
    /// A control character or one outside ASCII.
    #[error("the value of the header {0} must consist of printable ASCII characters (no line breaks)")]
    ValueCharacters(String),
    /// Longer than [`HEADER_VALUE_BYTES_MAX`].
    #[error("the value of the header {0} has more than {HEADER_VALUE_BYTES_MAX} bytes")]
    ValueTooLong(String),
    /// HTTP strips spaces at the ends.
    #[error("the value of the header {0} begins or ends with a space")]
    ValueOuterSpace(String),
}

/// Whether a header of this name (in any case) cannot be set by a person.
pub fn is_reserved_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RESERVED.contains(&name.as_str()) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Checks a header that a person wants to add to each delivery of an endpoint. Ok: it can be sent as it stands.
/// Err: it should be refused when it is saved; sending it would fail each time.
///
/// ```
/// use surehook_webhook::envelope::check_custom_header;
/// assert!(check_custom_header("Authorization", "Bearer 6f2c").is_ok());
/// assert!(check_custom_header("Host", "elsewhere.example").is_err());
/// assert!(check_custom_header("X-Team", "a\r\nX-Signature: b").is_err());
/// ```
pub fn check_custom_header(name: &str, value: &str) -> Result<(), HeaderError> {
    if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX || !name.bytes().all(is_token_character) {
        return Err(HeaderError::Name);
    }
    if is_reserved_header(name) {
        return Err(HeaderError::Reserved(name.into()));
    }
    if value.len() > HEADER_VALUE_BYTES_MAX {
        return Err(HeaderError::ValueTooLong(name.into()));
    }
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(HeaderError::ValueCharacters(name.into()));
    }
    if value.starts_with(' ') || value.ends_with(' ') {
        return Err(HeaderError::ValueOuterSpace(name.into()));
    }
    Ok(())
}

/// `tchar` of RFC 9110, section 5.6.2.
fn is_token_character(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_or_override_a_delivery_is_refused() {
        let name = || "X-Team".to_owned();
        for value in ["a\rb", "a\nb", "a\r\nX-Evil: 1", "nul\0", "del\x7f", "caf\u{e9}", "tab\t"] {
            assert_eq!(check_custom_header("X-Team", value), Err(HeaderError::ValueCharacters(name())), "{value:?}");
        }
        let huge = "x".repeat(64 * 1024);
        assert_eq!(check_custom_header("X-Team", &huge), Err(HeaderError::ValueTooLong(name())));
        assert_eq!(check_custom_header("X-Team", " x"), Err(HeaderError::ValueOuterSpace(name())));
        for bad in ["", "X Team", "X-Team:", "X\r\nTeam", "Tëam", "X\0", "(x)", &huge] {
            assert_eq!(check_custom_header(bad, "v"), Err(HeaderError::Name), "{bad:?}");
        }
        for reserved in RESERVED.iter().copied().chain(["X-Hub-Signature-256", "X-GitHub-Event", "Webhook-Anything"]) {
            for case in [reserved.to_owned(), reserved.to_uppercase()] {
                assert_eq!(check_custom_header(&case, "evil"), Err(HeaderError::Reserved(case.clone())));
            }
        }
        assert_eq!(check_custom_header("X-Team", ""), Ok(()));
        assert_eq!(check_custom_header("Authorization", "Basic dTpw"), Ok(()));
    }
}
