//! What the person in the demo does: a commit and a push with the git of this machine; and what their CI runs.
#![expect(clippy::disallowed_methods, reason = "here git acts for the person at the terminal, as they would type it")]

use std::net::SocketAddr;
use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use crate::cli::CliError;

/// The script that the demo's commit brings, and that its CI runs.
const BUILD_SCRIPT: &str = "#!/bin/sh\nset -eu\necho \"building commit $(git rev-parse --short HEAD) of $SUREHOOK_REPOSITORY ($SUREHOOK_REF)\"\n\
     test -f hello.txt\necho \"tests passed: $(cat hello.txt)\"\n";

/// The repository's URL with the token in it.
pub(super) fn url_with_password(server: SocketAddr, name: &str, password: &SecretString) -> SecretString {
    SecretString::from(format!("http://demo:{}@{server}/{name}.git", password.expose_secret()))
}

/// What the receiver runs: a clean clone, the pushed commit, its own build script.
pub(super) fn build_command(url: &SecretString) -> String {
    format!(
        "set -eu\ncd \"$SUREHOOK_BUILD_FOLDER\"\nrm -rf checkout\ngit clone --quiet '{}' checkout\ncd checkout\n\
         git checkout --quiet \"$SUREHOOK_COMMIT\"\nsh ./build.sh\n",
        url.expose_secret()
    )
}

/// Makes a working copy with one commit, ready to be pushed; returns the commit.
pub(super) async fn commit(work: &Path, url: &SecretString) -> Result<String, CliError> {
    let failed = |error: std::io::Error| {
        CliError::new(
            format!("The working copy {} cannot be made: {error}.", work.display()),
            "Name another place with --data.",
        )
    };
    // Left over from a repository of the same name that was deleted since.
    if work.exists() {
        std::fs::remove_dir_all(work).map_err(failed)?;
    }
    std::fs::create_dir_all(work).map_err(failed)?;
    git(work, &["init", "--quiet", "--initial-branch=main"]).await?;
    for (key, value) in [("user.name", "Demo"), ("user.email", "demo@example.com"), ("commit.gpgsign", "false")] {
        git(work, &["config", key, value]).await?;
    }
    git(work, &["remote", "add", "origin", url.expose_secret()]).await?;
    std::fs::write(work.join("hello.txt"), "hello, surehook\n").map_err(failed)?;
    std::fs::write(work.join("build.sh"), BUILD_SCRIPT).map_err(failed)?;
    git(work, &["add", "hello.txt", "build.sh"]).await?;
    git(work, &["commit", "--quiet", "--message=Say hello, and how to build it"]).await?;
    git(work, &["rev-parse", "HEAD"]).await
}

/// Pushes the working copy's branch. Ok: git said that the push was accepted.
pub(super) async fn push(work: &Path) -> Result<(), CliError> {
    git(work, &["push", "--quiet", "--set-upstream", "origin", "main"]).await?;
    Ok(())
}

async fn git(work: &Path, arguments: &[&str]) -> Result<String, CliError> {
    let output = tokio::process::Command::new("git")
        .current_dir(work)
        .args(arguments)
        .env("GIT_TERMINAL_PROMPT", "0")
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| {
            CliError::new(format!("git cannot be run: {error}."), "Install git (Debian, Ubuntu: apt-get install git).")
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let problem = format!("git {} failed: {}", arguments[0], said.trim().replace('\n', "; "));
        return Err(CliError::new(problem, "`surehook doctor` looks closer."));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A path as it can be typed.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(plain) { text.into_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
