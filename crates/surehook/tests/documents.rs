//! What the documents say is tried: the checks for receivers run, and the settings shown are the defaults.
//! Needs sh, curl and openssl, and python3 for one of them; a check whose tools are missing says so and passes.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests may panic and start programs")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use surehook::alerting::runbook;
use surehook::config::file::{self, Config};
use surehook::store::alerts::KINDS;
use surehook_testkit::receiver::{Answer, Receiver};
use surehook_webhook::{Secret, Secrets, Verifier};

const OPERATING: &str = include_str!("../../../docs/operating.md");
const RECEIVING: &str = include_str!("../../../docs/receiving-webhooks.md");

/// A secret of each form.
const SECRETS: [&str; 2] = ["correct horse battery staple", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"];

/// The fenced block that begins like this, without its fences.
fn block(page: &'static str, begin: &str) -> &'static str {
    let (_, rest) = page.split_once(begin).expect("the page has this block");
    rest.split_once("\n```").expect("the block ends").0
}

fn is_there(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$1\" > /dev/null", "sh", tool]).status().unwrap();
    if !found.success() {
        eprintln!("{tool} is not installed: this check was not run");
    }
    found.success()
}

/// Runs the check with openssl and curl, and returns the status that it prints.
fn send_by_hand(folder: &Path, url: &str, secret: &str, id: &str) -> String {
    let script = block(RECEIVING, "```sh\n# check: openssl\n");
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", script]).current_dir(folder);
    let output = command.env("url", url).env("secret", secret).env("id", id).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_made_by_hand_is_one_of_ours() {
    if !is_there("openssl") || !is_there("curl") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for secret in SECRETS {
        let receiver = Receiver::start(|_| Answer::status(202)).await;
        assert_eq!(send_by_hand(folder.path(), &receiver.url("/"), secret, "some-id"), "202");
        let request = receiver.requests().pop().unwrap();
        assert_eq!(request.header("content-type"), Some("application/json"));
        let headers = request.headers.iter().map(|(name, value)| (std::str::from_utf8(name).unwrap(), &value[..]));
        let sent_at: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
        let verifier = Verifier::new(Secrets::from(Secret::parse(secret).unwrap()));
        let verified = verifier.verify(headers, &request.body, sent_at).expect("it is signed as surehook signs");
        assert_eq!(verified.webhook_id, "some-id");
    }
}

/// Ends the program with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_receiver_in_python_takes_each_delivery_once() {
    if !is_there("openssl") || !is_there("curl") || !is_there("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("receiver.py");
    std::fs::write(&program, block(RECEIVING, "```python\n# check: python\n")).unwrap();
    let mut command = Command::new("python3");
    command.arg(&program).arg("0").arg(folder.path().join("seen.db")).args(SECRETS);
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let url = format!("http://127.0.0.1:{}/", line.trim().strip_prefix("listening on port ").unwrap());
    for (secret, id) in SECRETS.iter().zip(["one", "two"]) {
        assert_eq!(send_by_hand(folder.path(), &url, secret, id), "202", "{secret}");
        assert_eq!(send_by_hand(folder.path(), &url, secret, id), "409", "{secret}");
    }
    assert_eq!(send_by_hand(folder.path(), &url, "another secret", "three"), "401");
}

#[test]
fn the_settings_shown_are_the_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("surehook.toml");
    let shown = block(OPERATING, "```toml\n");
    std::fs::write(&path, shown).unwrap();
    assert_eq!(file::read(Some(&path)).unwrap(), Config::default());
    // And all of them are shown.
    for line in file::reference().lines().filter(|line| !line.is_empty()) {
        let key = line.split('=').next().unwrap().trim();
        assert!(shown.lines().any(|shown| shown.trim_start().starts_with(key)), "{key} is not shown");
    }
}

#[test]
fn each_kind_of_alert_has_a_section_of_the_runbook_and_its_commands_are_there() {
    let (_, runbook) = OPERATING.split_once("\n## Runbook\n").unwrap();
    let runbook = runbook.split("\n## ").next().unwrap();
    let mut sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut kinds: Vec<&str> = KINDS.iter().map(|(_, name)| *name).collect();
    kinds.extend([runbook::DATABASE_AWAY, "The database gets slow", "A loop that died"]);
    sections.sort_unstable();
    kinds.sort_unstable();
    assert_eq!(sections, kinds);
    for (kind, name) in KINDS {
        assert!(runbook::link("", kind).ends_with(&format!("docs/operating.md#{name}")));
        let row = OPERATING.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{name}`")));
        let severity = runbook::severity(kind).as_str();
        assert!(row.is_some_and(|row| row.contains(&format!("| {severity} |"))), "{name} is {severity}: {row:?}");
    }
    // What is to be pressed at night must exist.
    let advised = KINDS.iter().flat_map(|(kind, _)| runbook::advice(*kind, "NAME")).chain(runbook::database_away());
    let written = runbook.split('`').skip(1).step_by(2).map(str::to_owned);
    for text in advised.chain(written) {
        for command in text.split("surehook ").skip(1) {
            let is_word = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
            let words: Vec<&str> = command.split([' ', ':', '.', ',']).take(2).take_while(is_word).collect();
            let output = Command::new(env!("CARGO_BIN_EXE_surehook")).args(&words).arg("--help").output().unwrap();
            let help = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}: surehook {words:?}");
            for option in command.split_whitespace().filter(|word| word.starts_with("--")) {
                let option = option.trim_end_matches([',', '.', ')']);
                assert!(help.contains(option), "{text}: {words:?} has no {option}");
            }
        }
    }
}
