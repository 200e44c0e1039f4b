//! Pushes over SSH, with git-shell and with gitolite, to repositories that surehook follows.

use std::process::Command;

use surehook_testkit::sshd::{self, SshServer};

use super::support::{Elsewhere, zeros};

#[tokio::test(flavor = "multi_thread")]
async fn pushes_over_ssh_with_git_shell() {
    if !sshd::is_installed() {
        return;
    }
    let there = Elsewhere::new().await;
    let (bare, work, first) = there.with_a_commit("app.git").await;
    let ssh = SshServer::start(&there.path("ssh"));
    ssh.allow_git_shell();
    let setting = ssh.client_setting();
    work.ok(["remote", "add", "ssh", &ssh.url(bare.path().to_str().unwrap())]).await;
    there.import(&bare, &[]);
    let server = there.serve_without_scan();
    let push = async |refs: &[&str]| {
        let arguments = [&["-c", setting.as_str(), "push", "--quiet", "ssh"][..], refs].concat();
        let pushed = work.run(&arguments).await;
        let said = String::from_utf8_lossy(&pushed.stderr).into_owned();
        assert!(pushed.status.success() && said.is_empty(), "{said}\n{}", ssh.log());
    };
    let second = work.commit("a", "2").await;
    push(&["main"]).await;
    let mut expected = vec![("refs/heads/main".to_owned(), first.clone(), second.clone())];
    assert_eq!(there.told_in_time("app", 1).await, expected);
    push(&[&format!("+{first}:refs/heads/main")]).await;
    expected.push(("refs/heads/main".into(), second.clone(), first.clone()));
    assert_eq!(there.told_in_time("app", 2).await, expected);
    push(&["main:refs/heads/topic"]).await;
    expected.push(("refs/heads/topic".into(), zeros(), second.clone()));
    assert_eq!(there.told_in_time("app", 3).await, expected);
    push(&[":topic"]).await;
    expected.push(("refs/heads/topic".into(), second.clone(), zeros()));
    assert_eq!(there.told_in_time("app", 4).await, expected);
    // The server is away: the push is as fast and as quiet, and is told at the next start.
    drop(server);
    push(&["main:refs/heads/again", "main:refs/tags/v1"]).await;
    let _server = there.serve_without_scan();
    let told = there.told_in_time("app", 6).await;
    assert_eq!(told[..4], expected);
    let mut last = told[4..].to_vec();
    last.sort();
    assert_eq!(last, ["refs/heads/again", "refs/tags/v1"].map(|name| (name.into(), zeros(), second.clone())));
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_to_gitolite() {
    if !sshd::is_installed() || !sshd::are_installed(&["gitolite"]) {
        return;
    }
    let there = Elsewhere::new().await;
    let ssh = SshServer::start(&there.path("ssh"));
    let gitolite = |arguments: &[&str]| {
        let mut command = Command::new("gitolite");
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", ssh.home());
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("USER", "git").current_dir(ssh.home());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    gitolite(&["setup", "-pk", ssh.public_key().to_str().unwrap()]);
    let bare = there.world.git.at(ssh.home().join("repositories/testing.git"));
    let update = std::fs::read_link(bare.path().join("hooks/update")).unwrap();
    assert_eq!(there.import(&bare, &["--name", "lite/testing"])["hook"], "installed");
    // What gitolite does to its hooks whenever its settings change leaves ours alone.
    gitolite(&["setup"]);
    assert_eq!(std::fs::read_link(bare.path().join("hooks/update")).unwrap(), update);
    let _server = there.serve_without_scan();
    let work = there.world.checkout(&ssh.url("testing")).await;
    let setting = ssh.client_setting();
    let mut before = zeros();
    for n in 1..4 {
        let next = work.commit("a", &n.to_string()).await;
        let pushed = work.run(["-c", &setting, "push", "--quiet", "origin", "main"]).await;
        assert!(pushed.status.success(), "{}\n{}", String::from_utf8_lossy(&pushed.stderr), ssh.log());
        let told = there.told_in_time("lite/testing", n).await;
        assert_eq!(told[n - 1], ("refs/heads/main".into(), before, next.clone()));
        before = next;
    }
    there.world.run(&["repo", "detach", "lite/testing"]);
    assert!(!bare.path().join("hooks/post-receive").exists());
    assert!(bare.path().join("hooks/update").exists());
}
