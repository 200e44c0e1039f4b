//! What the headers of a request say. Pure, but for the types of the HTTP library.

use axum::extract::{ConnectInfo, Request};
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use std::net::SocketAddr;

use super::reply::Refused;
use crate::git::backend::Credentials;
use crate::git::command::Service;

const PROTOCOL_BYTES_MAX: usize = 256;

/// Who asks, and how.
pub(super) struct Caller {
    pub(super) credentials: Option<Credentials>,
    pub(super) remote: Option<String>,
    protocol: Option<String>,
}

/// The protocol version that git will speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Old,
    Two,
}

impl Caller {
    pub(super) fn of(request: &Request) -> Self {
        let remote = request.extensions().get::<ConnectInfo<SocketAddr>>();
        Self {
            credentials: credentials(request.headers()),
            remote: remote.map(|ConnectInfo(address)| address.ip().to_string()),
            protocol: request.headers().get("git-protocol").and_then(|value| safe_protocol(value.to_str().ok()?)),
        }
    }

    /// The `Git-Protocol` to pass on. Version 2 has no push, so a push that asks for it speaks the old one.
    pub(super) fn protocol_for(&self, service: Service) -> Option<&str> {
        match (service, self.version()) {
            (Service::ReceivePack, Version::Two) => None,
            _ => self.protocol.as_deref(),
        }
    }

    /// As git decides it: the highest version asked for.
    pub(super) fn version(&self) -> Version {
        let asked = self.protocol.as_deref().unwrap_or_default();
        if asked.split(':').any(|part| part == "version=2") { Version::Two } else { Version::Old }
    }
}

/// The protocol's own content types keep HTML forms of strangers' pages out, which could send a user's password along.
pub(super) fn check_content_type(headers: &HeaderMap, service: Service) -> Result<(), Refused> {
    let expected = format!("application/x-{}-request", service.as_str());
    let given = headers.get(CONTENT_TYPE).map(axum::http::HeaderValue::as_bytes);
    if given == Some(expected.as_bytes()) { Ok(()) } else { Err(Refused::media_type(&expected)) }
}

fn safe_protocol(value: &str) -> Option<String> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'=' | b':' | b'-' | b'.' | b'_');
    (!value.is_empty() && value.len() <= PROTOCOL_BYTES_MAX && value.bytes().all(is_safe)).then(|| value.to_owned())
}

fn credentials(headers: &HeaderMap) -> Option<Credentials> {
    let (scheme, value) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Credentials { user: String::new(), password: SecretString::from(value) });
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Credentials { user: user.to_owned(), password: SecretString::from(password) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret as _;

    fn read(value: &str) -> Option<(String, String)> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        credentials(&headers).map(|found| (found.user, found.password.expose_secret().to_owned()))
    }

    #[test]
    fn authorization() {
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(read(&format!("Basic {}", STANDARD.encode("me:a:b"))), pair("me", "a:b"));
        assert_eq!(read(&format!("basic {}", STANDARD.encode(":t"))), pair("", "t"));
        assert_eq!(read("Bearer t"), pair("", "t"));
        for bad in
            ["Basic", "Basic !!!", "Digest x", &format!("Basic {}", STANDARD.encode("nocolon")), "Basic /////w=="]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn protocol() {
        let caller = |text: &str| Caller { credentials: None, remote: None, protocol: safe_protocol(text) };
        assert_eq!(caller("version=2").version(), Version::Two);
        assert_eq!(caller("version=2:version=1").version(), Version::Two);
        assert_eq!(caller("version=1").version(), Version::Old);
        assert_eq!(caller("version=2\nX").version(), Version::Old);
        assert_eq!(caller("version=2").protocol_for(Service::ReceivePack), None);
        assert_eq!(caller("version=1").protocol_for(Service::ReceivePack), Some("version=1"));
    }
}
