//! What a person is told when a command fails: one line what went wrong, one line what to do.

use std::error::Error;
use std::fmt::Display;
use std::process::ExitCode;

use surehook_outbox::DatabaseError;
use surehook_outbox::store::endpoints::EndpointError;

use crate::store::tokens::TokenError;

/// A failed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// What went wrong.
    pub problem: String,
    /// What to do about it.
    pub advice: String,
}

impl CliError {
    /// A problem and what to do about it, a sentence each.
    pub fn new(problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { problem: problem.into(), advice: advice.into() }
    }

    /// A name that nobody has, with the one that was perhaps meant, or those that there are.
    pub fn unknown_name(noun: &str, name: &str, names: &[String], list_command: &str) -> Self {
        let nearest = names.iter().map(|known| (distance(name, known), known)).min();
        let advice = match nearest {
            Some((changes, known)) if changes <= 1 + name.chars().count() / 3 => format!("Did you mean {known}?"),
            _ if names.is_empty() => format!("There is no {noun} yet."),
            _ if names.len() <= 10 => format!("There are: {}.", names.join(", ")),
            _ => format!("List them with: {list_command}"),
        };
        Self::new(format!("There is no {noun} named {name}."), advice)
    }

    /// Prints both lines to standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {}\n{}", one_line(&self.problem), one_line(&self.advice));
        ExitCode::FAILURE
    }
}

impl From<DatabaseError> for CliError {
    fn from(error: DatabaseError) -> Self {
        let advice = match &error {
            DatabaseError::Url(_) => "Correct --database-url or SUREHOOK_DATABASE_URL.",
            DatabaseError::MigrationChanged { .. } => "Use the program that made this database, or another database.",
            DatabaseError::Unsuitable(_) => "Correct that, and try again.",
            error if error.is_of_an_unknown_pooler() => {
                "Say so with --pooler transaction (or SUREHOOK_POOLER=transaction, or pooler = \"transaction\" under [database] in \
                 the settings), or give the address of PostgreSQL itself."
            }
            error if error.is_away() => "Is PostgreSQL running, and is the URL right? `surehook doctor` looks closer.",
            _ => "Try again; if it stays, please report it together with what PostgreSQL's log says.",
        };
        Self::new(chain(&error), advice)
    }
}

impl From<EndpointError> for CliError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Database(error) => error.into(),
            EndpointError::Invalid(_) => Self::new(
                format!("The endpoint was not saved: {error}."),
                "Correct that setting; `surehook endpoint add --help` lists them all.",
            ),
            EndpointError::NameTaken(_) => Self::new(
                format!("The endpoint was not added: {error}."),
                "Choose another name, or change the existing one with `surehook endpoint set`.",
            ),
            EndpointError::NotFound(_) => Self::new(format!("{error}."), "List them with: surehook endpoint list"),
        }
    }
}

impl From<TokenError> for CliError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Database(error) => error.into(),
            error => Self::new(
                format!("The token was not made: {error}."),
                "For example: surehook token create --push team/app --note \"CI of team\"",
            ),
        }
    }
}

/// An error with its causes, on one line, no cause said twice.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}

fn one_line(text: &dyn Display) -> String {
    text.to_string().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// How many characters must be changed, added or taken away to make one word of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, left) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, right) in other.iter().enumerate() {
            let changed = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_suggested() {
        for (one, other, changes) in
            [("", "", 0), ("ci", "ci", 0), ("ci", "", 2), ("jenkins", "jenkin", 1), ("ab", "ba", 2)]
        {
            assert_eq!(distance(one, other), changes, "{one} {other}");
        }
        let names = ["jenkins".to_owned(), "buildkite".to_owned()];
        let near = CliError::unknown_name("endpoint", "jenkisn", &names, "surehook endpoint list");
        assert_eq!(near.advice, "Did you mean jenkins?");
        let far = CliError::unknown_name("endpoint", "zzz", &names, "surehook endpoint list");
        assert_eq!(far.advice, "There are: jenkins, buildkite.");
    }
}
