//! Clients that push whatever people push, for as long as they may, and write down what they tried and were told.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use surehook_testkit::git::{Checkout, Sandbox};
use surehook_testkit::try_eventually;

use super::dice::Dice;
use super::ledger::{Tries, ZEROS};

/// Where the server is at present, and what became of the pushes.
pub(crate) struct Shop {
    pub(crate) address: Mutex<String>,
    pub(crate) token: String,
    pub(crate) over: AtomicBool,
    pub(crate) pushes: AtomicUsize,
    pub(crate) succeeded: AtomicUsize,
}

/// One client of one repository. Most branches are its own, one it shares with the others.
pub(crate) struct GitClient<'a> {
    shop: &'a Shop,
    repository: String,
    number: usize,
    dice: Dice,
    tries: &'a Mutex<Tries>,
    work: Checkout<'a>,
    tree: String,
    commits: usize,
    /// What it believes of its branches; wrong where a push was cut off, and then git says so.
    tips: BTreeMap<String, Vec<String>>,
}

/// A ref, the object that it is to get (None: to be deleted), and whether by force.
type Change = (String, Option<String>, bool);

impl<'a> GitClient<'a> {
    pub(crate) async fn new(
        git: &'a Sandbox,
        shop: &'a Shop,
        repository: &str,
        number: usize,
        dice: Dice,
        tries: &'a Mutex<Tries>,
    ) -> Self {
        let work = git.init(&format!("client-{number}")).await;
        let tree = work.ok(["write-tree"]).await;
        let (repository, tips) = (repository.to_owned(), BTreeMap::new());
        Self { shop, repository, number, dice, tries, work, tree, commits: 0, tips }
    }

    pub(crate) async fn push_until_it_is_over(mut self) {
        while !self.shop.over.load(Ordering::SeqCst) {
            match self.dice.below(12) {
                0..=2 => self.step_forward().await,
                3 => self.rewrite().await,
                4 => self.delete().await,
                5 => self.delete_and_make_again().await,
                6 => self.tag().await,
                7 => self.many().await,
                8 => self.with_a_refused_one(&["--atomic"]).await,
                9 => self.with_a_refused_one(&[]).await,
                _ => self.move_the_shared_one().await,
            }
        }
    }

    fn branch(&mut self) -> String {
        format!("refs/heads/client-{}/{}", self.number, self.dice.below(3))
    }

    /// A commit that nobody else has.
    async fn commit(&mut self, parent: Option<&String>) -> String {
        self.commits += 1;
        let message = format!("{}.{}", self.number, self.commits);
        let mut arguments = vec!["commit-tree", &self.tree, "-m", &message];
        if let Some(parent) = parent {
            arguments.extend(["-p", parent]);
        }
        self.work.ok(arguments).await
    }

    async fn step_forward(&mut self) {
        let branch = self.branch();
        let tip = self.tips.get(&branch).and_then(|tips| tips.last()).cloned();
        let commit = self.commit(tip.as_ref()).await;
        // A push that was cut off may have got through: then this is no fast-forward, and is refused until a rewrite.
        self.push(&[(branch, Some(commit), false)], &[]).await;
    }

    async fn rewrite(&mut self) {
        let branch = self.branch();
        // Back to an older value, or to something new beside it.
        let older = self.tips.get(&branch).and_then(|tips| tips.first()).cloned();
        let value = match older {
            Some(older) if self.dice.one_in(2) => older,
            older => self.commit(older.as_ref()).await,
        };
        self.push(&[(branch, Some(value), true)], &[]).await;
    }

    async fn delete(&mut self) {
        let branch = self.branch();
        self.push(&[(branch, None, true)], &[]).await;
    }

    async fn delete_and_make_again(&mut self) {
        let branch = self.branch();
        self.push(&[(branch.clone(), None, true)], &[]).await;
        let commit = self.commit(None).await;
        self.push(&[(branch, Some(commit), true)], &[]).await;
    }

    async fn tag(&mut self) {
        let name = format!("client-{}-{}", self.number, self.dice.below(4));
        let commit = self.commit(None).await;
        let mut value = commit.clone();
        if self.dice.one_in(2) {
            self.work.ok(["tag", "--force", "--annotate", "--message", "a tag", &name, &commit]).await;
            value = self.work.ok(["rev-parse", &format!("refs/tags/{name}")]).await;
        }
        let gone = self.dice.one_in(4);
        self.push(&[(format!("refs/tags/{name}"), (!gone).then_some(value), true)], &[]).await;
    }

    async fn many(&mut self) {
        let commit = self.commit(None).await;
        let mut changes = Vec::new();
        for n in 0..12 {
            let name = format!("refs/heads/many-{}/{n}", self.number);
            // Where one ref is not there to be deleted, git does not push the others either.
            let gone = self.dice.one_in(4) && self.tips.get(&name).is_some_and(|tips| !tips.is_empty());
            changes.push((name, (!gone).then(|| commit.clone()), true));
        }
        self.push(&changes, &[]).await;
    }

    /// The hook of the repository refuses one of them. With `--atomic` the other must not move either.
    async fn with_a_refused_one(&mut self, options: &[&str]) {
        let commit = self.commit(None).await;
        let refused = (format!("refs/heads/refused-{}", self.number), Some(commit.clone()), true);
        let branch = self.branch();
        self.push(&[(branch, Some(commit), true), refused], options).await;
    }

    /// Everybody moves it at once: the old value is another's, and some are refused for it.
    async fn move_the_shared_one(&mut self) {
        let commit = self.commit(None).await;
        let value = (!self.dice.one_in(8)).then_some(commit);
        self.push(&[("refs/heads/shared".into(), value, true)], &[]).await;
    }

    async fn push(&mut self, changes: &[Change], options: &[&str]) {
        let address = self.shop.address.lock().unwrap().clone();
        let url = format!("http://ci:{}@{address}/{}.git", self.shop.token, self.repository);
        let mut arguments: Vec<String> = ["push", "--porcelain"].map(Into::into).to_vec();
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        arguments.push(url);
        let mut wanted = Vec::new();
        for (name, value, forced) in changes {
            let force = if *forced && value.is_some() { "+" } else { "" };
            arguments.push(format!("{force}{}:{name}", value.as_deref().unwrap_or_default()));
            wanted.push((name.clone(), value.clone().unwrap_or_else(|| ZEROS.into())));
        }
        // Of a push that must not move anything nothing may be told.
        let refused = |name: &str| name.contains("/refused-");
        let nothing_may_move = options.contains(&"--atomic") && wanted.iter().any(|(name, _)| refused(name));
        if !nothing_may_move {
            wanted.retain(|(name, _)| !refused(name));
            self.tries.lock().unwrap().attempt(&wanted);
        }
        self.shop.pushes.fetch_add(1, Ordering::SeqCst);
        let output = self.work.run(&arguments).await;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!nothing_may_move || !output.status.success(), "{arguments:?}: {said}");
        if nothing_may_move {
            return;
        }
        self.tries.lock().unwrap().note(&wanted, &output);
        if !output.status.success() {
            // Most likely the server is gone: the next one is elsewhere.
            let moved = async || (*self.shop.address.lock().unwrap() != address).then_some(());
            let _ = try_eventually(Duration::from_millis(100), moved).await;
            return;
        }
        self.shop.succeeded.fetch_add(1, Ordering::SeqCst);
        for (name, value) in wanted {
            let tips = self.tips.entry(name).or_default();
            if value == ZEROS { tips.clear() } else { tips.push(value) }
        }
    }
}
