//! The two signatures of a delivery: made and checked. Pure; checks take the same time wherever the bytes differ.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::secret::Secret;

/// The longest `webhook-signature` that is looked at; room for some forty signatures.
pub const STANDARD_HEADER_BYTES_MAX: usize = 2048;

/// Why a signature is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// Not the form that the sender writes.
    #[error("the signature is malformed")]
    Malformed,
    /// Well formed, but made with another secret or over other bytes.
    #[error("the signature does not match")]
    Mismatch,
}

/// `X-Signature`: lower-case hex of HMAC-SHA256(text of the secret, body).
pub fn x_signature(secret: &Secret, body: &[u8]) -> String {
    to_hex(&mac(secret.text_key(), &[body]).finalize().into_bytes())
}

/// Checks an `X-Signature`: exactly 64 lower-case hex digits. Ok: whoever sent `body` knows the secret.
pub fn verify_x_signature(secret: &Secret, body: &[u8], header: &[u8]) -> Result<(), SignatureError> {
    let claimed = from_hex(header).ok_or(SignatureError::Malformed)?;
    mac(secret.text_key(), &[body]).verify_slice(&claimed).map_err(|_| SignatureError::Mismatch)
}

/// One entry of `webhook-signature`: `v1,` and the base64 of HMAC-SHA256(key, "id.timestamp.body").
pub fn standard_signature(secret: &Secret, id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let timestamp = timestamp_s.to_string();
    let parts = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    format!("v1,{}", STANDARD.encode(mac(secret.standard_key(), &parts).finalize().into_bytes()))
}

/// The whole `webhook-signature`: one entry per secret, separated by spaces.
pub fn standard_signatures<'s>(
    secrets: impl IntoIterator<Item = &'s Secret>,
    id: &str,
    timestamp_s: i64,
    body: &[u8],
) -> String {
    let entries: Vec<_> = secrets.into_iter().map(|secret| standard_signature(secret, id, timestamp_s, body)).collect();
    entries.join(" ")
}

/// Checks a `webhook-signature`: one of its `v1` entries must be right for this secret. Entries of other versions are
/// passed over, as the specification wants it.
pub fn verify_standard_signature(
    secret: &Secret,
    id: &str,
    timestamp_s: i64,
    body: &[u8],
    header: &[u8],
) -> Result<(), SignatureError> {
    if header.len() > STANDARD_HEADER_BYTES_MAX {
        return Err(SignatureError::Malformed);
    }
    let timestamp = timestamp_s.to_string();
    let expected = mac(secret.standard_key(), &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
    let mut outcome = Err(SignatureError::Malformed);
    for entry in header.split(|byte| *byte == b' ') {
        let Some(claimed) = entry.strip_prefix(b"v1,").and_then(|text| STANDARD.decode(text).ok()) else { continue };
        if claimed.len() != 32 {
            continue;
        }
        match expected.clone().verify_slice(&claimed) {
            Ok(()) => return Ok(()),
            Err(_) => outcome = Err(SignatureError::Mismatch),
        }
    }
    outcome
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn from_hex(text: &[u8]) -> Option<[u8; 32]> {
    if text.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// One way to write a digest, so upper-case digits are refused.
fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test cases 1 to 4, 6 and 7: (key, data, HMAC-SHA-256). Some of the keys are no printable text, so the
    /// function below the secret is tested.
    #[test]
    fn hmac_is_that_of_rfc_4231() {
        let cases: [(Vec<u8>, &[u8], &str); 6] = [
            (vec![0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (vec![0xaa; 20], &[0xdd; 50], "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
            ((1..=25).collect(), &[0xcd; 50], "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"),
            (
                vec![0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
            (
                vec![0xaa; 131],
                b"This is a test using a larger than block-size key and a larger than block-size data. The key needs to be hashed before being used by the HMAC algorithm.",
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
            ),
        ];
        for (key, data, expected) in cases {
            assert_eq!(to_hex(&mac(&key, &[data]).finalize().into_bytes()), expected);
        }
    }

    #[test]
    fn x_signature_of_a_known_text() {
        let secret = Secret::parse("Jefe").unwrap();
        let body = b"what do ya want for nothing?";
        let header = x_signature(&secret, body);
        assert_eq!(header, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(verify_x_signature(&secret, body, header.as_bytes()), Ok(()));
    }

    /// The example of the specification's own reference implementations.
    #[test]
    fn standard_signature_of_the_published_example() {
        let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
        let body = br#"{"email":"test@example.com","username":"test_user"}"#;
        let header = standard_signature(&secret, "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk", 1_649_367_553, body);
        assert_eq!(header, "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=");
    }

    #[test]
    fn malformed_forms_are_refused() {
        let secret = Secret::parse("s").unwrap();
        let good = x_signature(&secret, b"body");
        for bad in [
            String::new(),
            "sha256=".into(),
            format!("sha256={good}"),
            good.to_uppercase(),
            good[1..].into(),
            format!("{good}0"),
            format!("{good}00"),
            format!(" {good}"),
            format!("{good}, {good}"),
            good.replacen(char::is_alphanumeric, "g", 1),
            "é".repeat(32),
        ] {
            assert_eq!(verify_x_signature(&secret, b"body", bad.as_bytes()), Err(SignatureError::Malformed), "{bad:?}");
        }
        let good = standard_signature(&secret, "id", 5, b"body");
        for bad in [
            String::new(),
            good[3..].into(),
            good.replace("v1", "V1"),
            good.replace("v1", "v1a"),
            good.replace('=', ""),
            format!("{good}="),
            good.replace(',', "="),
            "v1,".into(),
            "v1,AAAA".into(),
            " ".repeat(STANDARD_HEADER_BYTES_MAX) + &good,
        ] {
            let outcome = verify_standard_signature(&secret, "id", 5, b"body", bad.as_bytes());
            assert_eq!(outcome, Err(SignatureError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn either_entry_of_a_list_will_do() {
        let (old, new) = (Secret::parse("old").unwrap(), Secret::parse("new").unwrap());
        let header = format!("v2,x {} v1a,xyz", standard_signatures([&old, &new], "id", 5, b"body"));
        for secret in [&old, &new] {
            assert_eq!(verify_standard_signature(secret, "id", 5, b"body", header.as_bytes()), Ok(()));
        }
        let other = Secret::parse("other").unwrap();
        assert_eq!(
            verify_standard_signature(&other, "id", 5, b"body", header.as_bytes()),
            Err(SignatureError::Mismatch)
        );
    }
}
