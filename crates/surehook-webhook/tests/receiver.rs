//! What a receiver believes and what it refuses.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use proptest::prelude::*;
use surehook_webhook::envelope::{self, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, X_SIGNATURE, X_WEBHOOK_ID};
use surehook_webhook::{Refused, Secret, Secrets, Verified, Verifier};
use uuid::Uuid;

const NOW_S: i64 = 1_800_000_000;
type Headers = Vec<(String, Vec<u8>)>;

fn secret(text: &str) -> Secret {
    Secret::parse(text).unwrap()
}

fn sent(body: &[u8], secrets: &Secrets) -> Headers {
    let headers = envelope::headers(Uuid::from_u128(9), NOW_S, body, secrets);
    headers.map(|(name, value)| (name.to_owned(), value.into_bytes())).to_vec()
}

fn verify_with(verifier: &Verifier, headers: &Headers, body: &[u8], now_s: i64) -> Result<Verified, Refused> {
    verifier.verify(headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())), body, now_s)
}

fn verify(headers: &Headers, body: &[u8]) -> Result<Verified, Refused> {
    verify_with(&Verifier::new(secret("shared").into()), headers, body, NOW_S)
}

fn set(headers: &Headers, name: &str, value: &[u8]) -> Headers {
    let mut headers = headers.clone();
    headers.iter_mut().find(|(known, _)| known == name).unwrap().1 = value.to_vec();
    headers
}

fn without(headers: &Headers, name: &str) -> Headers {
    headers.iter().filter(|(known, _)| known != name).cloned().collect()
}

#[test]
fn odd_but_honest_bodies_are_believed() {
    for body in [
        "{\"message\":\"ship it \u{1f680} é\"}".as_bytes(),
        b"{}\n",
        b"\xef\xbb\xbf{}",
        b"{\r\n}\r\n",
        b"",
        b"\xff\xfe\x00",
        &[b'x'; 100_000],
    ] {
        let verified = verify(&sent(body, &secret("shared").into()), body).unwrap();
        assert_eq!(verified.webhook_id, Uuid::from_u128(9).to_string());
        assert_eq!(verified.timestamp_s, Some(NOW_S));
    }
}

#[test]
fn a_content_type_with_charset_and_other_spellings_of_names_do_not_matter() {
    let body = b"{}";
    let mut headers = sent(body, &secret("shared").into());
    headers = set(&headers, "content-type", b"application/json; charset=utf-8");
    for (name, _) in &mut headers {
        *name = name.to_uppercase();
    }
    assert!(verify(&headers, body).is_ok());
}

#[test]
fn each_header_is_demanded_once() {
    let body = b"{}";
    let headers = sent(body, &secret("shared").into());
    for name in [X_SIGNATURE, X_WEBHOOK_ID, WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE] {
        assert_eq!(verify(&without(&headers, name), body), Err(Refused::MissingHeader(name)));
        let mut twice = headers.clone();
        let again = twice.iter().find(|(known, _)| known == name).unwrap().1.clone();
        twice.push((name.to_uppercase(), again));
        assert_eq!(verify(&twice, body), Err(Refused::DuplicatedHeader(name)));
    }
}

#[test]
fn wrong_signatures_ids_and_times_are_refused() {
    let body = b"{\"a\":1}";
    let headers = sent(body, &secret("shared").into());
    assert_eq!(verify(&headers, b"{\"a\":2}"), Err(Refused::BadSignature(X_SIGNATURE)));
    assert_eq!(verify(&headers, b"{\"a\":1}\n"), Err(Refused::BadSignature(X_SIGNATURE)));
    assert_eq!(verify(&sent(body, &secret("other").into()), body), Err(Refused::BadSignature(X_SIGNATURE)));

    let x_signature = String::from_utf8(headers[1].1.clone()).unwrap();
    for bad in ["", "sha256=", &format!("sha256={x_signature}"), &x_signature.to_uppercase(), &x_signature[2..]] {
        let refused = verify(&set(&headers, X_SIGNATURE, bad.as_bytes()), body);
        assert_eq!(refused, Err(Refused::BadSignature(X_SIGNATURE)), "{bad:?}");
    }
    for bad in [&b""[..], b"v1,", b"v1,\xff\xff", b"tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="] {
        let refused = verify(&set(&headers, WEBHOOK_SIGNATURE, bad), body);
        assert_eq!(refused, Err(Refused::BadSignature(WEBHOOK_SIGNATURE)));
    }
    for bad in
        [&b""[..], b"+1800000000", b"01800000000", b"1800000000 ", b"-1", b"1e9", b"99999999999999999999", b"\xff"]
    {
        let refused = verify(&set(&headers, WEBHOOK_TIMESTAMP, bad), body);
        assert_eq!(refused, Err(Refused::MalformedHeader(WEBHOOK_TIMESTAMP)));
    }
    let later = verify(&set(&headers, WEBHOOK_TIMESTAMP, b"1800000001"), body);
    assert_eq!(later, Err(Refused::BadSignature(WEBHOOK_SIGNATURE)));
    assert_eq!(verify(&set(&headers, X_WEBHOOK_ID, b"another"), body), Err(Refused::IdsDiffer));
    let renamed = set(&set(&headers, X_WEBHOOK_ID, b"another"), WEBHOOK_ID, b"another");
    assert_eq!(verify(&renamed, body), Err(Refused::BadSignature(WEBHOOK_SIGNATURE)));
    for bad in [&b""[..], b"a b", b"a.b", b"nul\0", "é".as_bytes(), &[b'x'; 201]] {
        assert_eq!(verify(&set(&headers, X_WEBHOOK_ID, bad), body), Err(Refused::MalformedHeader(X_WEBHOOK_ID)));
    }
}

#[test]
fn the_window_is_300_seconds_to_either_side() {
    let headers = sent(b"{}", &secret("shared").into());
    let verifier = Verifier::new(secret("shared").into());
    let at = |now_s| verify_with(&verifier, &headers, b"{}", now_s);
    assert!(at(NOW_S + 300).is_ok() && at(NOW_S - 300).is_ok());
    assert_eq!(at(NOW_S + 301), Err(Refused::TooOld { age_s: 301 }));
    assert_eq!(at(NOW_S - 301), Err(Refused::TooNew { ahead_s: 301 }));
    assert!(matches!(at(i64::MAX), Err(Refused::TooOld { .. })));
    assert!(matches!(at(i64::MIN), Err(Refused::TooNew { .. })));
}

#[test]
fn untimed_deliveries_only_where_they_are_wanted_and_only_wholly_untimed() {
    let headers = sent(b"{}", &secret("shared").into());
    let mut untimed = headers.clone();
    for name in [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE] {
        untimed = without(&untimed, name);
    }
    assert_eq!(verify(&untimed, b"{}"), Err(Refused::MissingHeader(WEBHOOK_ID)));
    let lenient = Verifier::new(secret("shared").into()).accept_untimed(true);
    assert_eq!(verify_with(&lenient, &untimed, b"{}", NOW_S).unwrap().timestamp_s, None);
    assert_eq!(verify_with(&lenient, &headers, b"{}", NOW_S).unwrap().timestamp_s, Some(NOW_S));
    assert_eq!(verify_with(&lenient, &headers, b"{}", NOW_S + 400), Err(Refused::TooOld { age_s: 400 }));
    let half = without(&headers, WEBHOOK_SIGNATURE);
    assert_eq!(verify_with(&lenient, &half, b"{}", NOW_S), Err(Refused::MissingHeader(WEBHOOK_SIGNATURE)));
    assert!(verify_with(&lenient, &untimed, b"{} ", NOW_S).is_err());
}

#[test]
fn a_rotation_never_loses_a_delivery() {
    let (old, new) = (secret("old secret"), secret("new secret"));
    let both = |primary: &Secret, next: &Secret| Secrets { primary: primary.clone(), next: Some(next.clone()) };
    let body = b"{}";
    // The receiver learns the new secret first, then the sender moves over, then the receiver forgets the old one.
    let receiver = Verifier::new(both(&old, &new));
    for sender in [old.clone().into(), both(&old, &new), both(&new, &old), new.clone().into()] {
        assert!(verify_with(&receiver, &sent(body, &sender), body, NOW_S).is_ok());
    }
}

proptest! {
    #[test]
    fn what_was_sent_is_believed_and_any_changed_bit_is_not(
        body in proptest::collection::vec(any::<u8>(), 1..200),
        text in "[!-~]{1,60}",
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        prop_assume!(!text.starts_with("whsec_"));
        let verifier = Verifier::new(secret(&text).into());
        let headers = sent(&body, &secret(&text).into());
        prop_assert!(verify_with(&verifier, &headers, &body, NOW_S).is_ok());
        let mut changed = body.clone();
        let index = place.index(body.len());
        changed[index] ^= 1 << bit;
        prop_assert!(verify_with(&verifier, &headers, &changed, NOW_S).is_err());
        for name in [X_SIGNATURE, X_WEBHOOK_ID, WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE] {
            let mut value = headers.iter().find(|(known, _)| known == name).unwrap().1.clone();
            let index = place.index(value.len());
            value[index] ^= 1 << bit;
            prop_assert!(verify_with(&verifier, &set(&headers, name, &value), &body, NOW_S).is_err(), "{}", name);
        }
    }

    #[test]
    fn nothing_that_arrives_makes_it_panic(
        values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 5),
        body in proptest::collection::vec(any::<u8>(), 0..100),
        now_s in any::<i64>(),
    ) {
        let names = [X_SIGNATURE, X_WEBHOOK_ID, WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE];
        let headers = names.iter().map(|name| (*name).to_owned()).zip(values).collect();
        let verifier = Verifier::new(secret("shared").into());
        prop_assert!(verify_with(&verifier, &headers, &body, now_s).is_err());
    }
}
