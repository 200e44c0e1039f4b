//! Works with a library of the Standard Webhooks specification that is not ours, in both directions.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![expect(clippy::disallowed_methods, reason = "the other library reads the system's clock, so the test must too")]

use surehook_webhook::{Secret, Secrets, Verifier, envelope, signature};
use uuid::Uuid;

fn now_s() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

fn secrets() -> [Secret; 3] {
    [
        Secret::generate([7; 32]),
        Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap(),
        Secret::parse("a plain text that somebody chose").unwrap(),
    ]
}

#[test]
fn their_library_believes_what_we_send() {
    let body = "{\"message\":\"é \u{1f680}\"}\n".as_bytes();
    for secret in secrets() {
        let theirs = standardwebhooks::Webhook::new(&secret.standard_form()).unwrap();
        let rotating = Secrets { primary: Secret::parse("the old one").unwrap(), next: Some(secret.clone()) };
        for secrets in [Secrets::from(secret), rotating] {
            let mut headers = http::HeaderMap::new();
            for (name, value) in envelope::headers(Uuid::from_u128(1), now_s(), body, &secrets) {
                headers.insert(http::HeaderName::from_static(name), value.parse().unwrap());
            }
            theirs.verify(body, &headers).unwrap();
            assert!(theirs.verify(b"{}", &headers).is_err());
        }
    }
}

#[test]
fn we_believe_what_their_library_signs() {
    let body = b"{\"a\": 1}";
    for secret in secrets() {
        let theirs = standardwebhooks::Webhook::new(&secret.standard_form()).unwrap();
        let signed = theirs.sign("an-id", 1_800_000_000, body).unwrap();
        assert_eq!(signature::standard_signature(&secret, "an-id", 1_800_000_000, body), signed);
        let x_signature = signature::x_signature(&secret, body);
        let headers = [
            (envelope::X_SIGNATURE, x_signature.as_bytes()),
            (envelope::X_WEBHOOK_ID, b"an-id"),
            (envelope::WEBHOOK_ID, b"an-id"),
            (envelope::WEBHOOK_TIMESTAMP, b"1800000000"),
            (envelope::WEBHOOK_SIGNATURE, signed.as_bytes()),
        ];
        let verified = Verifier::new(secret.into()).verify(headers, body, 1_800_000_010).unwrap();
        assert_eq!(verified.webhook_id, "an-id");
    }
}
