//! How an endpoint is reached: what of its requests is the same each time, made once from its settings. Pure.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::Full;
use surehook_webhook::envelope;
use surehook_webhook::secret::Secrets;

use super::{PAGERDUTY, with_routing_key};
use crate::store::claim::{Delivery, parse_headers};
use crate::target::Target;

/// Sent with every delivery.
const USER_AGENT: &str = concat!("surehook/", env!("CARGO_PKG_VERSION"));

/// Where connections lead, and who may share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    /// Scheme and authority.
    pub(super) uri: Uri,
    /// Loopback and private addresses are wanted.
    pub(super) allow_private: bool,
}

/// An endpoint, ready to be sent to.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(super) origin: Origin,
    path: Uri,
    headers: HeaderMap,
    secrets: Secrets,
    is_pagerduty: bool,
}

impl Route {
    /// Err: what is wrong with the settings, in words for a person.
    pub(crate) fn new(target: &Target) -> Result<Self, String> {
        let uri: Uri = target.url.parse().map_err(|error| format!("the URL cannot be used: {error}"))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err("the URL names no host".into());
        };
        let host = host_header(scheme.as_str(), &authority)?;
        let path = parts.path_and_query.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let origin = Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        for (name, value) in &target.headers {
            insert(&mut headers, name, value)?;
        }
        Ok(Self {
            origin: Origin {
                uri: origin.map_err(|error| format!("the URL cannot be used: {error}"))?,
                allow_private: target.allow_private,
            },
            path: Uri::from(path),
            headers,
            secrets: secrets(target)?,
            is_pagerduty: target.format == PAGERDUTY,
        })
    }

    /// One request. Later headers replace earlier ones of the same name: the administrator's, then the format's, then the
    /// webhook's own. `now_s` is database time in seconds since 1970.
    pub(super) fn request(&self, delivery: &Delivery, body: Bytes, now_s: i64) -> Result<Request<Full<Bytes>>, String> {
        let body = if self.is_pagerduty { with_routing_key(&body, &self.secrets.primary)? } else { body };
        let own = envelope::headers(delivery.delivery_id, now_s, &body, &self.secrets);
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        *headers = self.headers.clone();
        if delivery.headers != "{}" {
            for (name, value) in parse_headers(&delivery.headers) {
                insert(headers, &name, &value)?;
            }
        }
        for (name, value) in &own {
            insert(headers, name, value)?;
        }
        Ok(request)
    }
}

/// The port is left out where it goes without saying.
fn host_header(scheme: &str, authority: &http::uri::Authority) -> Result<HeaderValue, String> {
    let usual = matches!((scheme, authority.port_u16()), ("http", Some(80)) | ("https", Some(443)) | (_, None));
    let host = if usual {
        authority.host().to_owned()
    } else {
        format!("{}:{}", authority.host(), authority.port_u16().unwrap_or_default())
    };
    host.parse().map_err(|error| format!("the URL cannot be used: {error}"))
}

fn secrets(target: &Target) -> Result<Secrets, String> {
    match &target.secrets {
        Err(error) => Err(format!("the secret of the endpoint cannot be used: {error}")),
        Ok(secrets) => {
            let mut secrets = secrets.iter().cloned();
            let primary = secrets.next().ok_or("the endpoint has no secret")?;
            Ok(Secrets { primary, next: secrets.next() })
        }
    }
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
    let header: HeaderName = name.parse().map_err(|_| format!("the header name {name:?} is not allowed by HTTP"))?;
    let value: HeaderValue = value.parse().map_err(|_| format!("the value of header {name} is not allowed by HTTP"))?;
    headers.insert(header, value);
    Ok(())
}
