//! The shared secret of a sender and a receiver. Pure; never shows a secret in `Debug`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};

/// The longest accepted secret text.
pub const TEXT_BYTES_MAX: usize = 512;
/// What a secret in the form of the Standard Webhooks specification begins with.
pub const STANDARD_PREFIX: &str = "whsec_";
/// How many bytes such a secret must stand for, by that specification.
pub const STANDARD_KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A shared secret, parsed. It yields two keys, one for each kind of signature:
///
/// | configured text | key of `X-Signature` | key of `webhook-signature` |
/// |---|---|---|
/// | `whsec_<base64>` | the whole text as it stands, `whsec_` included | the decoded bytes |
/// | anything else | the text | the text |
///
/// So `X-Signature` can always be checked with nothing but the text and an HMAC (`openssl dgst -sha256 -hmac TEXT`), and
/// a `whsec_` secret works as it stands in every library for Standard Webhooks. Such a library demands that form; a
/// receiver that was given another text configures it with [`Secret::standard_form`]: `whsec_` + base64 of the text.
///
/// ```
/// use surehook_webhook::Secret;
/// let secret = Secret::parse("a plain secret of some length")?;
/// assert_eq!(secret.standard_form(), "whsec_YSBwbGFpbiBzZWNyZXQgb2Ygc29tZSBsZW5ndGg=");
/// # Ok::<(), surehook_webhook::SecretError>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    text: SecretString,
    standard_key: SecretSlice<u8>,
}

/// Why a text is no secret. No variant repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// An empty secret would sign nothing.
    #[error("a secret must not be empty")]
    Empty,
    /// Longer than [`TEXT_BYTES_MAX`].
    #[error("a secret has at most {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// A control character or a character outside ASCII: two ends would hardly agree on its bytes.
    #[error("a secret consists of printable ASCII characters (no line breaks, no letters with accents)")]
    NotPrintableAscii,
    /// A space at an end is lost in files, shells and forms.
    #[error("a secret must not begin or end with a space")]
    OuterSpace,
    /// It begins with `whsec_`, but no strict base64 follows.
    #[error("a secret that begins with whsec_ goes on in base64")]
    NotBase64,
    /// It begins with `whsec_`, but stands for too few or too many bytes.
    #[error("a secret that begins with whsec_ stands for 24 to 64 bytes, this one for {bytes}")]
    StandardLength {
        /// How many bytes it decodes to.
        bytes: usize,
    },
}

impl Secret {
    /// Parses a configured text. Ok: both signatures can be made with it. Err: it should be refused when it is saved.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(SecretError::TooLong);
        }
        if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(SecretError::NotPrintableAscii);
        }
        if text.starts_with(' ') || text.ends_with(' ') {
            return Err(SecretError::OuterSpace);
        }
        let standard_key = match text.strip_prefix(STANDARD_PREFIX) {
            None => text.as_bytes().to_vec(),
            Some(encoded) => {
                let key = STANDARD.decode(encoded).map_err(|_| SecretError::NotBase64)?;
                if !STANDARD_KEY_BYTES.contains(&key.len()) {
                    return Err(SecretError::StandardLength { bytes: key.len() });
                }
                key
            }
        };
        Ok(Self { text: text.into(), standard_key: standard_key.into() })
    }

    /// A new `whsec_` secret from 32 bytes, which the caller draws from the system's random source.
    pub fn generate(random: [u8; 32]) -> Self {
        let text = format!("{STANDARD_PREFIX}{}", STANDARD.encode(random));
        Self { text: text.into(), standard_key: random.to_vec().into() }
    }

    /// The text as configured, to be stored or shown once to its owner.
    pub fn expose_text(&self) -> &str {
        self.text.expose_secret()
    }

    /// The form that libraries for Standard Webhooks take: the text itself if it begins with `whsec_`, else `whsec_` and
    /// the base64 of the text. (Some of them refuse fewer than 24 bytes.)
    pub fn standard_form(&self) -> String {
        format!("{STANDARD_PREFIX}{}", STANDARD.encode(self.standard_key.expose_secret()))
    }

    pub(crate) fn text_key(&self) -> &[u8] {
        self.expose_text().as_bytes()
    }

    pub(crate) fn standard_key(&self) -> &[u8] {
        self.standard_key.expose_secret()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl std::str::FromStr for Secret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        Self::parse(text)
    }
}

/// The secrets of one endpoint: the primary one and, during a rotation, the one that comes next.
///
/// A sender signs `X-Signature` with the primary and `webhook-signature` with both; a receiver believes either.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// The one in force.
    pub primary: Secret,
    /// The one that will replace it.
    pub next: Option<Secret>,
}

impl Secrets {
    /// Both, the primary first.
    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.primary).chain(&self.next)
    }
}

impl From<Secret> for Secrets {
    fn from(primary: Secret) -> Self {
        Self { primary, next: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_two_ends_would_read_differently() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let short_standard = format!("whsec_{}", STANDARD.encode([1; 23]));
        let long_standard = format!("whsec_{}", STANDARD.encode([1; 65]));
        for (text, error) in [
            ("", SecretError::Empty),
            (long.as_str(), SecretError::TooLong),
            ("line\nbreak", SecretError::NotPrintableAscii),
            ("carriage\rreturn", SecretError::NotPrintableAscii),
            ("nul\0", SecretError::NotPrintableAscii),
            ("del\x7f", SecretError::NotPrintableAscii),
            ("tab\t", SecretError::NotPrintableAscii),
            ("é", SecretError::NotPrintableAscii),
            ("trailing ", SecretError::OuterSpace),
            (" leading", SecretError::OuterSpace),
            ("whsec_", SecretError::StandardLength { bytes: 0 }),
            ("whsec_not base64", SecretError::NotBase64),
            ("whsec_C2FVsBQIhrscChlQIMV-b5sSYspob7oD", SecretError::NotBase64),
            (short_standard.as_str(), SecretError::StandardLength { bytes: 23 }),
            (long_standard.as_str(), SecretError::StandardLength { bytes: 65 }),
        ] {
            assert_eq!(Secret::parse(text).err(), Some(error), "{text:?}");
        }
    }

    #[test]
    fn debug_hides_the_text() {
        let secrets = Secrets::from(Secret::parse("tell nobody").unwrap());
        let shown = format!("{secrets:?} {secrets:#?}");
        assert!(!shown.contains("nobody"), "{shown}");
    }

    #[test]
    fn a_generated_secret_is_its_own_standard_form() {
        let secret = Secret::generate([0xa5; 32]);
        assert_eq!(secret.standard_form(), secret.expose_text());
        let parsed = Secret::parse(secret.expose_text()).unwrap();
        assert_eq!(parsed.standard_key(), [0xa5; 32]);
        assert_eq!(parsed.text_key(), secret.expose_text().as_bytes());
    }
}
