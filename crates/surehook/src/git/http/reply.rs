//! Answers that no git process gives: refusals in words that git shows, and the headers of those that one does.

use axum::body::Body;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, EXPIRES, HeaderName, HeaderValue, PRAGMA, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::{Response, StatusCode};

use crate::git::backend::Refusal;
use crate::git::command::Service;

const RETRY_AFTER_S: &str = "5";

/// A request that gets a status and a sentence. git prints plain text after `remote: `.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    text: String,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), header: None }
    }

    pub(super) fn busy(text: impl Into<String>) -> Self {
        let refused = Self::new(StatusCode::SERVICE_UNAVAILABLE, text);
        refused.with(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S))
    }

    pub(super) fn internal(text: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "there is no such repository, or you may not see it")
    }

    pub(super) fn dumb() -> Self {
        Self::new(StatusCode::FORBIDDEN, "only the smart HTTP protocol is served; use git 1.6.6 or later")
    }

    pub(super) fn method(allowed: &'static str) -> Self {
        let refused = Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("only {allowed} is served here"));
        refused.with(ALLOW, HeaderValue::from_static(allowed))
    }

    pub(super) fn media_type(expected: &str) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("the content type must be {expected}"))
    }

    /// The sentence, if trying again later may help.
    pub(super) fn for_now(&self) -> Option<&str> {
        (self.status == StatusCode::SERVICE_UNAVAILABLE).then_some(&self.text)
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.text)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        response
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.header = Some((name, value));
        self
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unauthenticated => {
                Self::new(StatusCode::UNAUTHORIZED, "a valid token is needed; give it as the password")
                    .with(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"surehook\""))
            }
            Refusal::Forbidden => Self::new(StatusCode::FORBIDDEN, "this token does not allow that"),
            Refusal::NotFound => Self::not_found(),
            Refusal::Unavailable(text) => Self::busy(text),
        }
    }
}

/// 501 is what git-lfs takes for "not offered": it prints the message, and pushes without locks.
pub(super) fn no_lfs() -> Response<Body> {
    let text =
        r#"{"message":"Git LFS is not served here: keep large files elsewhere or use another LFS server (lfs.url)"}"#;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/vnd.git-lfs+json"));
    response
}

/// A 200 with the headers that git's own HTTP backend sends.
pub(super) fn from_git(content_type: &str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(content_type) {
        headers.insert(CONTENT_TYPE, value);
    }
    headers.insert(EXPIRES, HeaderValue::from_static("Fri, 01 Jan 1980 00:00:00 GMT"));
    headers.insert(PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, max-age=0, must-revalidate"));
    response
}

pub(super) fn advertisement_type(service: Service) -> String {
    format!("application/x-{}-advertisement", service.as_str())
}

pub(super) fn result_type(service: Service) -> String {
    format!("application/x-{}-result", service.as_str())
}
