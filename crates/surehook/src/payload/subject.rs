//! What a payload is about. Pure.

/// What a push is about, so that an older one is not delivered after a newer one: its ref. Where its name is not UTF-8,
/// two names may look alike; then the exact one stands beside it. None: no other message can outdate it.
pub fn subject_of(payload: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Push {
        r#ref: Option<String>,
        ref_base64: Option<String>,
    }
    let push: Push = serde_json::from_slice(payload).ok()?;
    push.ref_base64.map(|exact| format!("base64:{exact}")).or(push.r#ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_is_about_its_ref() {
        assert_eq!(subject_of(br#"{"ref":"refs/heads/main","after":"1"}"#).as_deref(), Some("refs/heads/main"));
        assert_eq!(subject_of(br#"{"ref":"caf\ufffd","ref_base64":"Y2Fm6Q=="}"#).as_deref(), Some("base64:Y2Fm6Q=="));
        assert_eq!(subject_of(br#"{"answer":42}"#), None);
        assert_eq!(subject_of(b"\xff\xfe"), None);
    }
}
