//! A stand-in for PagerDuty: refuses what its Events API v2 refuses by its public documentation, and keeps a book of what
//! was triggered and resolved, by key.

use serde_json::Value;
use surehook_testkit::receiver::{Answer, Receiver, Request};
use surehook_testkit::try_eventually;

use super::world::{SOON, World};

pub(crate) const ROUTING_KEY: &str = "0123456789abcdef0123456789abcdef";

pub(crate) struct Pager {
    pub(crate) receiver: Receiver,
}

/// What was accepted for one key.
#[derive(Debug, Default)]
pub(crate) struct Incident {
    pub(crate) triggers: Vec<Value>,
    pub(crate) resolves: usize,
}

impl Pager {
    pub(crate) async fn start() -> Self {
        let answer = |request: &Request| Answer::status(if objections(request).is_empty() { 202 } else { 400 });
        Self { receiver: Receiver::start(answer).await }
    }

    pub(crate) fn url(&self) -> String {
        self.receiver.url("/v2/enqueue")
    }

    /// Registers it as an endpoint for alerts.
    pub(crate) fn register(&self, world: &World) {
        let url = self.url();
        let arguments = ["endpoint", "add", "pager", "--alerts", "--format", "pagerduty", "--secret", ROUTING_KEY];
        world.run(&[&arguments[..], &["--url", &url, "--allow-private"]].concat());
    }

    /// What was said under keys that begin like this. A repetition of a trigger that is open is counted as one more.
    pub(crate) fn incident(&self, key: &str) -> Incident {
        let mut incident = Incident::default();
        for request in self.receiver.requests() {
            let objections = objections(&request);
            assert!(objections.is_empty(), "{objections:?}: {}", request.text());
            let body: Value = serde_json::from_str(request.text()).unwrap();
            if !body["dedup_key"].as_str().unwrap().starts_with(key) {
                continue;
            }
            match body["event_action"].as_str() {
                Some("trigger") => incident.triggers.push(body),
                _ => incident.resolves += 1,
            }
        }
        incident
    }

    /// Waits until it was triggered, and resolved, this often; not more often either. Returns the last trigger.
    pub(crate) async fn until(&self, world: &World, key: &str, triggers: usize, resolves: usize) -> Value {
        let met = try_eventually(SOON, async || {
            let now = self.incident(key);
            (now.triggers.len() >= triggers && now.resolves >= resolves).then_some(())
        })
        .await;
        let log = || std::fs::read_to_string(world.data().join("log")).unwrap_or_default();
        let now = self.incident(key);
        assert!(met.is_some(), "{key}: {now:?}\n{}", log());
        assert_eq!((now.triggers.len(), now.resolves), (triggers, resolves), "{key}: {now:?}\n{}", log());
        now.triggers.last().cloned().unwrap_or_default()
    }
}

/// What PagerDuty would not accept.
pub(crate) fn objections(request: &Request) -> Vec<String> {
    let mut found = Vec::new();
    let mut unless = |good: bool, what: &str| {
        if !good {
            found.push(what.to_owned());
        }
    };
    unless(request.path == "/v2/enqueue", "path");
    unless(request.body.len() <= 512 * 1024, "size");
    unless(request.header("content-type") == Some("application/json"), "content type");
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let length = |value: &Value| value.as_str().map(|text| text.chars().count());
    unless(length(&body["routing_key"]) == Some(32), "routing_key");
    unless(length(&body["dedup_key"]).is_some_and(|length| (1..=255).contains(&length)), "dedup_key");
    let known = ["routing_key", "event_action", "dedup_key", "payload", "images", "links", "client", "client_url"];
    let all_known = |value: &Value, known: &[&str]| {
        value.as_object().is_none_or(|fields| fields.keys().all(|name| known.contains(&name.as_str())))
    };
    unless(all_known(&body, &known), "unknown field");
    if body["event_action"] == "trigger" {
        let payload = &body["payload"];
        unless(length(&payload["summary"]).is_some_and(|length| (1..=1024).contains(&length)), "summary");
        unless(length(&payload["source"]).is_some_and(|length| length > 0), "source");
        let severities = ["critical", "error", "warning", "info"];
        unless(payload["severity"].as_str().is_some_and(|severity| severities.contains(&severity)), "severity");
        let time = payload["timestamp"].as_str().is_none_or(|time| time.parse::<jiff::Timestamp>().is_ok());
        unless(time, "timestamp");
        let known = ["summary", "source", "severity", "timestamp", "component", "group", "class", "custom_details"];
        unless(all_known(payload, &known), "unknown field of payload");
        for link in body["links"].as_array().into_iter().flatten() {
            unless(link["href"].as_str().is_some_and(|href| href.starts_with("http")), "link");
        }
    } else {
        unless(body["event_action"] == "resolve", "event_action");
    }
    found
}
