//! The table in docs/reliability.md, the matrix of these tests and the points in the code are the same list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::matrix::{Victim, rows};

const PAGE: &str = include_str!("../../../../docs/reliability.md");

/// Point and victims of each row of the table.
fn documented() -> BTreeMap<String, String> {
    let rows = PAGE.lines().filter_map(|line| {
        let (point, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        // Names of points have a dot; the tables of drills have none.
        let is_point = point.contains('.') && !point.contains([' ', '`']);
        is_point.then_some((point.to_owned(), rest.split('|').nth(1)?.trim().to_owned()))
    });
    rows.collect()
}

/// The names given to `crash::point` in the sources below `folder`.
fn points_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            points_in(&path, found);
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.split("point(\"").skip(1).filter_map(|rest| rest.split_once("\")"));
            found.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn every_point_in_the_code_is_a_row_of_the_matrix() {
    let mut code = BTreeSet::new();
    for source in ["src", "../surehook-outbox/src"] {
        points_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(source), &mut code);
    }
    // The steps of git are named by its hooks, not by our code.
    let tested: BTreeSet<String> =
        rows().map(|row| row.point.to_owned()).filter(|point| !point.starts_with("git.")).collect();
    assert_eq!(tested, code);
}

#[test]
fn the_table_in_the_documents_is_the_matrix() {
    let word = |victim: &Victim| match victim {
        Victim::Surehook => "surehook",
        Victim::GitChild => "git",
        Victim::Postgres => "PostgreSQL",
    };
    let tested: BTreeMap<String, String> =
        rows().map(|row| (row.point.to_owned(), row.victims.iter().map(word).collect::<Vec<_>>().join(", "))).collect();
    assert_eq!(documented(), tested);
}
