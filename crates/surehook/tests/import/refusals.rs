//! What cannot be followed is refused with words that help, and nothing is left of the try.

use std::path::Path;

use super::support::{Elsewhere, everything};

impl Elsewhere {
    /// An import that must be refused: nothing is changed on disk or in the database. Gives what is said.
    async fn refused(&self, path: &Path, more: &[&str]) -> String {
        let rows = "SELECT count(*) FROM repositories";
        let (files, known) = (everything(&self.path("")), self.world.count(rows).await);
        let (problem, advice) = self.fails(&[&["repo", "import", path.to_str().unwrap()], more].concat());
        assert!(everything(&self.path("")) == files, "{problem} left something");
        assert_eq!(self.world.count(rows).await, known, "{problem}");
        format!("{problem} {advice}")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_bare_repository_of_files() {
    let there = Elsewhere::new().await;
    let (bare, _, _) = there.with_a_commit("app.git").await;
    let with_tree = there.path("tree");
    there.world.git.ok(["clone", "--quiet", bare.path().to_str().unwrap(), with_tree.to_str().unwrap()]).await;
    let linked = there.path("linked");
    bare.ok(["worktree", "add", "--quiet", linked.to_str().unwrap(), "main"]).await;
    let table = there.bare("table.git").await;
    table.ok(["config", "core.repositoryFormatVersion", "1"]).await;
    table.ok(["config", "extensions.refStorage", "reftable"]).await;
    std::fs::create_dir(there.path("empty")).unwrap();
    for (path, words) in [
        (there.path("none"), "No such file"),
        (there.path("empty"), "is no bare repository: it has no HEAD"),
        (with_tree.clone(), "is no bare repository: it has a work tree"),
        (with_tree.join(".git"), "is no bare repository: it has a work tree"),
        (linked, "is no bare repository: it has a work tree"),
        (bare.path().join("worktrees/linked"), "the private folder of a linked worktree"),
        (bare.path().join("config"), "is no bare repository"),
        (table.path().to_owned(), "refs migrate --ref-format=files"),
    ] {
        let said = there.refused(&path, &[]).await;
        assert!(said.contains(words), "{path:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_registration() {
    let there = Elsewhere::new().await;
    let (bare, _, _) = there.with_a_commit("app.git").await;
    let (other, _) = (there.bare("other.git").await, there.world.run(&["repo", "create", "taken"]));
    let said = there.refused(other.path(), &["--name", "taken"]).await;
    assert!(said.contains("there is a repository taken already") && said.contains("--name"), "{said}");
    let said = there.refused(other.path(), &["--name", "no good"]).await;
    assert!(said.contains("is no name for a repository"), "{said}");
    there.import(&bare, &[]);
    let link = there.path("link.git");
    std::os::unix::fs::symlink(bare.path(), &link).unwrap();
    let again = there.path("sub/../app.git");
    std::fs::create_dir(there.path("sub")).unwrap();
    for (path, more) in
        [(bare.path(), &[][..]), (bare.path(), &["--name", "b"]), (&link, &[]), (&again, &["--name", "c"])]
    {
        let said = there.refused(path, more).await;
        assert!(said.contains("is imported already, as app"), "{path:?}: {said}");
    }
    let copy = there.path("copy.git");
    let copied = std::process::Command::new("cp").arg("-a").args([bare.path(), &copy]).status().unwrap();
    assert!(copied.success());
    let said = there.refused(&copy, &["--name", "d"]).await;
    assert!(said.contains("carries the id of app") && said.contains("--unset surehook.repositoryId"), "{said}");
    there.world.git.at(&copy).ok(["config", "--unset", "surehook.repositoryId"]).await;
    there.import(&there.world.git.at(&copy), &["--name", "d"]);
    other.ok(["config", "surehook.repositoryId", "6f9619ff-8b86-d011-b42d-00c04fc964ff"]).await;
    let said = there.refused(other.path(), &[]).await;
    assert!(said.contains("of another surehook"), "{said}");
    let hosted = there.world.data().join("repositories/taken.git");
    let said = there.refused(&hosted, &["--name", "e"]).await;
    assert!(said.contains("hosts itself"), "{said}");
    let (problem, _) = there.fails(&["repo", "detach", "taken"]);
    assert!(problem.contains("was not imported"), "{problem}");
    let (problem, advice) = there.fails(&["repo", "delete", "app", "--yes"]);
    assert!(problem.contains("was imported") && advice.contains("repo detach app"), "{problem} {advice}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_halfway_is_undone() {
    let there = Elsewhere::new().await;
    let (bare, _, _) = there.with_a_commit("app.git").await;
    // A ref that cannot be read: what it is is unknown, and so is where to begin.
    std::fs::write(bare.path().join("refs/heads/broken"), "nothing good\n").unwrap();
    let said = there.refused(bare.path(), &[]).await;
    assert!(said.contains("refs/heads/broken"), "{said}");
    std::fs::remove_file(bare.path().join("refs/heads/broken")).unwrap();
    there.import(&bare, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_interrupted_can_be_repeated_or_undone() {
    let there = Elsewhere::new().await;
    let (bare, _, _) = there.with_a_commit("app.git").await;
    let before = there.import(&bare, &[]);
    for state in ["creating", "deleting"] {
        let half = there.world.sql.execute("UPDATE repositories SET state = $1", &[&state]).await.unwrap();
        assert_eq!(half, 1);
        let said = there.refused(bare.path(), &["--name", "other"]).await;
        assert!(said.contains("half imported or half detached") && said.contains("repo detach app"), "{said}");
        // A start leaves it alone: what lies elsewhere is not its to finish.
        drop(there.world.serve());
        assert_eq!(there.world.json(&["repo", "show", "app"])["state"], state);
        if state == "creating" {
            assert_eq!(there.import(&bare, &[])["repository_id"], before["repository_id"]);
        } else {
            there.world.run(&["repo", "detach", "app"]);
            assert!(!bare.path().join("hooks/post-receive").exists());
        }
    }
}
