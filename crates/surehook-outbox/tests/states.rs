//! `docs/delivery-states.md`, the enums of the code and the CHECK constraints of the schema name the same states.
#![expect(clippy::disallowed_methods, reason = "tests speak SQL directly")]

mod common;

use std::collections::BTreeSet;

use common::Outbox;
use surehook_outbox::endpoint::EndpointState;
use surehook_outbox::retry::{DeathReason, Outcome};
use surehook_outbox::store::jobs::JobState;
use surehook_outbox::store::operate::{DeadLetterReason, DeadLetterState, DeliveryStatus};
use surehook_outbox::store::record::Ends;

const PAGE: &str = include_str!("../../../docs/delivery-states.md");

type Words = BTreeSet<String>;

fn words<'a>(from: impl IntoIterator<Item = &'a str>) -> Words {
    from.into_iter().map(str::to_owned).collect()
}

/// The words in the first column of the table that follows the marker.
fn documented(marker: &str) -> Words {
    let (_, rest) = PAGE.split_once(&format!("<!-- words: {marker} -->\n")).expect("the page has this marker");
    let rows = rest.lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.split('`').nth(1).expect("the first column is a word in backticks").to_owned()).collect()
}

/// What stands between single quotes. Words only: neither constraint nor view quotes anything else that is a word.
fn quoted(text: &str) -> Words {
    let is_word = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    words(text.split('\'').skip(1).step_by(2).filter(is_word))
}

/// The words that the CHECK constraints on this one column allow.
async fn allowed(outbox: &Outbox, table: &str, column: &str) -> Words {
    let rows = outbox
        .sql
        .query(
            "SELECT pg_get_constraintdef(c.oid) FROM pg_constraint AS c
               JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND ARRAY[a.attnum] = c.conkey
              WHERE c.contype = 'c' AND c.conrelid = $1::text::regclass AND a.attname = $2",
            &[&table, &column],
        )
        .await
        .expect("the catalogue answers");
    assert_eq!(rows.len(), 1, "{table}.{column} has one CHECK of its own");
    quoted(rows[0].get(0))
}

/// Every variant, so that a new one fails to compile here until it is added.
fn outcomes() -> Words {
    use Outcome::{Busy, Conflict, Gone, NotSent, Strike, Success, Unanswered};
    let all = [Success, Conflict, Strike, Unanswered, Busy, Gone, NotSent];
    words(all.map(|outcome| match outcome {
        Success | Conflict | Strike | Unanswered | Busy | Gone | NotSent => outcome.as_str(),
    }))
}

fn reasons() -> Words {
    use DeathReason::{CrashedWorker, MaxAge, MaxAttempts, MaxUnanswered, RowMissing};
    let all = [MaxAttempts, MaxUnanswered, MaxAge, RowMissing, CrashedWorker];
    words(all.map(|reason| match reason {
        MaxAttempts | MaxUnanswered | MaxAge | RowMissing | CrashedWorker => reason.as_str(),
    }))
}

fn ends() -> Words {
    use Ends::{Failed, Published, Skipped};
    words([Published, Failed, Skipped].map(|ends| match ends {
        Published | Failed | Skipped => ends.as_str(),
    }))
}

#[tokio::test]
async fn page_code_and_schema_name_the_same_states() {
    let outbox = Outbox::new().await;
    let known = |words_of: &[&'static str]| words(words_of.iter().copied());
    for (marker, code, table, column) in [
        ("outcome", outcomes(), "outbox_attempts", "outcome"),
        ("ends", ends(), "outbox_attempts", "ends"),
        ("reason", reasons(), "outbox_dlq", "reason"),
        ("reason", known(DeadLetterReason::WORDS), "outbox_dlq", "reason"),
        ("dlq-state", known(DeadLetterState::WORDS), "outbox_dlq", "state"),
        ("job-state", known(JobState::WORDS), "outbox_jobs", "state"),
        ("endpoint-state", known(EndpointState::WORDS), "endpoints", "state"),
    ] {
        let page = documented(marker);
        assert_eq!(page, code, "the page and the code disagree about {marker}");
        assert_eq!(page, allowed(&outbox, table, column).await, "the page and {table}.{column} disagree");
    }
}

#[tokio::test]
async fn page_code_and_view_name_the_same_statuses() {
    let outbox = Outbox::new().await;
    let page = documented("status");
    assert_eq!(page, words(DeliveryStatus::WORDS.iter().copied()), "the page and the code disagree about status");
    // What the view says is a word of its own CASE, or how an attempt ended.
    let view: String =
        outbox.sql.query_one("SELECT pg_get_viewdef('outbox_status'::regclass)", &[]).await.unwrap().get(0);
    let (before, _) = view.split_once(" AS status").expect("the view has the column status");
    let (_, case) = before.rsplit_once("CASE").expect("status is a CASE");
    let mut said: Words = case.split('\'').skip(1).step_by(2).map(str::to_owned).filter(|w| w != "infinity").collect();
    said.extend(ends());
    assert_eq!(page, said, "the page and the view disagree about status");
}

/// The lane's columns that the page explains are there.
#[tokio::test]
async fn the_lane_has_the_columns_that_the_page_explains() {
    let outbox = Outbox::new().await;
    let rows = outbox
        .sql
        .query("SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox_lanes'::regclass AND attnum > 0", &[])
        .await
        .unwrap();
    let there: Words = rows.iter().map(|row| row.get(0)).collect();
    let (_, rest) = PAGE.split_once("| column | what it says |\n").expect("the page has the table of columns");
    for row in rest.lines().take_while(|line| line.starts_with('|')).skip(1) {
        let first_cell = row.split('|').nth(1).expect("a table row has cells");
        for column in first_cell.split('`').skip(1).step_by(2) {
            assert!(there.contains(column), "outbox_lanes has no column {column}");
        }
    }
}
