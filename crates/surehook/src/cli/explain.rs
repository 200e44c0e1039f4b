//! Puts an explanation into words: where a delivery is, what it waits for, what to type next. Pure.

use comfy_table::Table;
use jiff::Timestamp;
use serde::Serialize;
use surehook_outbox::endpoint::EndpointState;
use surehook_outbox::store::operate::{Attempt, DeliveryStatus, Explanation, LaneStanding};

use super::output::{cell, count, table, trimmed, when};

/// An explanation with its words.
#[derive(Serialize)]
pub(super) struct Explained {
    #[serde(flatten)]
    facts: Explanation,
    /// Sentences.
    explanation: Vec<String>,
    /// Commands.
    next: Vec<String>,
}

impl Explained {
    pub(super) fn new(facts: Explanation) -> Self {
        let mut explanation = vec![state_words(&facts)];
        let mut next = Vec::new();
        let id = facts.delivery.delivery_id;
        match facts.delivery.status {
            DeliveryStatus::Pending => {
                waiting_words(&facts, &mut explanation, &mut next);
            }
            DeliveryStatus::Failed => {
                if facts.lane == LaneStanding::Blocked && facts.delivery.is_head {
                    explanation.push("Its lane has stopped at it and waits for you.".into());
                    next.push(format!("surehook delivery retry {id}"));
                    next.push(format!("surehook delivery skip {id}"));
                }
                next.push(format!("surehook dlq show {id}"));
                next.push(format!("surehook dlq replay {id}"));
            }
            DeliveryStatus::Published | DeliveryStatus::Skipped | DeliveryStatus::Cancelled => {}
        }
        Self { facts, explanation, next }
    }

    /// All of it for a person.
    pub(super) fn text(&self) -> String {
        let delivery = &self.facts.delivery;
        let mut text = format!(
            "Delivery {}: {} of {} to endpoint {} ({})\n\n{}",
            delivery.delivery_id,
            cell(&delivery.webhook_name, 60),
            cell(delivery.aggregate_name.as_deref().unwrap_or(&delivery.aggregate_id), 100),
            delivery.endpoint_name,
            delivery.webhook_url,
            self.explanation.join("\n"),
        );
        if !self.facts.attempts.is_empty() {
            text.push_str("\n\n");
            text.push_str(&trimmed(&attempts_table(&self.facts.attempts, self.facts.as_of)));
        }
        if !self.next.is_empty() {
            text.push_str("\n\nWhat to type next:\n  ");
            text.push_str(&self.next.join("\n  "));
        }
        text
    }
}

fn state_words(facts: &Explanation) -> String {
    let delivery = &facts.delivery;
    let tries = count(i64::from(delivery.attempts), "attempt", "attempts");
    let created = when(delivery.created_at, facts.as_of);
    match delivery.status {
        DeliveryStatus::Pending if delivery.attempts == 0 => {
            format!("It was enqueued {created} and has not been sent yet.")
        }
        DeliveryStatus::Pending => format!("It was enqueued {created}; {tries} did not get it through yet."),
        DeliveryStatus::Published => {
            let at = delivery.published_at.map_or_else(String::new, |at| format!(" {}", when(at, facts.as_of)));
            format!("It arrived{at}, after {tries}.")
        }
        DeliveryStatus::Failed => format!("It is a dead letter: {tries} did not get it through."),
        DeliveryStatus::Skipped => "An operator skipped it; it is not sent any more.".into(),
        DeliveryStatus::Cancelled => {
            "Its endpoint was removed before it was delivered; it is not sent any more.".into()
        }
    }
}

fn waiting_words(facts: &Explanation, explanation: &mut Vec<String>, next: &mut Vec<String>) {
    let delivery = &facts.delivery;
    let first = facts.head_delivery_id.unwrap_or(delivery.delivery_id);
    if facts.ahead > 0 {
        explanation.push(format!(
            "{} out before it in its lane; the first of them is {first}.",
            count(facts.ahead, "delivery goes", "deliveries go"),
        ));
    } else {
        explanation.push("It is the first of its lane.".into());
    }
    let it = if facts.ahead > 0 { "that one" } else { "it" };
    if facts.endpoint_state == EndpointState::Paused {
        let why = facts.endpoint_state_reason.as_deref().unwrap_or("no reason was given");
        explanation.push(format!("Its endpoint is paused, so nothing goes out: {}", cell(why, 200)));
        next.push(format!("surehook endpoint resume {}", delivery.endpoint_name));
        return;
    }
    if facts.endpoint_state == EndpointState::Removed {
        explanation.push("Its endpoint was removed; it will be cancelled in a moment.".into());
        return;
    }
    let error =
        facts.head_last_error.as_deref().map_or_else(String::new, |error| format!(" Last error: {}", cell(error, 300)));
    let refused = format!(
        "{it} was tried {} and refused {} of {} times.{error}",
        count(i64::from(facts.head_attempts), "time", "times"),
        facts.head_strikes,
        facts.max_attempts
    );
    match &facts.lane {
        LaneStanding::Leased { owner, node, until } => {
            let worker = node.clone().unwrap_or_else(|| owner.to_string());
            explanation.push(format!(
                "Worker {worker} holds the lane and is sending {it}; its lease ends {}.",
                when(*until, facts.as_of)
            ));
        }
        LaneStanding::LeaseExpired { owner, since } => explanation.push(format!(
            "Worker {owner} has not given the lane back since {}; the next worker takes it over.",
            when(*since, facts.as_of)
        )),
        LaneStanding::Due { since } => {
            explanation.push(format!("Any worker may send {it} now; due since {}.", when(*since, facts.as_of)));
            explanation.push("If that was long ago, no worker is running, or the endpoint has no free slot.".into());
            next.push("surehook doctor".into());
        }
        LaneStanding::BackingOff { until } => {
            explanation.push(format!("The next attempt at {it} is due {}.", when(*until, facts.as_of)));
            explanation.push(capital(&refused));
            next.push(format!("surehook delivery retry {first}"));
            next.push(format!("surehook delivery skip {first}"));
        }
        LaneStanding::Blocked => {
            explanation
                .push("Its lane has stopped, because a delivery died and the endpoint is set to stop then.".into());
            next.push(format!("surehook delivery retry {first}"));
            next.push(format!("surehook delivery skip {first}"));
        }
        LaneStanding::Idle => explanation.push("Its lane has just ended its work; look again.".into()),
    }
    if facts.ahead > 0 {
        next.push(format!("surehook delivery explain {first}"));
    }
}

fn capital(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// The attempts at a delivery, for people.
pub(super) fn attempts_table(attempts: &[Attempt], now: Timestamp) -> Table {
    let mut table = table(&["ATTEMPT", "WHEN", "TOOK", "ANSWER", "OUTCOME", "ENDED AS", "ERROR", "BODY"]);
    for attempt in attempts {
        table.add_row([
            attempt.attempt.to_string(),
            when(attempt.started_at, now),
            format!("{} ms", attempt.duration_ms),
            attempt.status_code.map_or("-".into(), |code| code.to_string()),
            attempt.outcome.clone(),
            attempt.ends.clone().unwrap_or_else(|| "-".into()),
            cell(attempt.error.as_deref().unwrap_or("-"), 60),
            cell(attempt.response_body.as_deref().unwrap_or("-"), 40),
        ]);
    }
    table
}
