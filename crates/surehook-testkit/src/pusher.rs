//! Git clients that push whatever people push, for as long as they may, and write down what they tried and were told. Starts
//! git; where it pushes to, and when it ends, is its [`Host`]'s.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::RwLockReadGuard;

use crate::dice::Dice;
use crate::git::{Checkout, Sandbox};
use crate::ledger::{Tries, ZEROS};

/// Where clients push to, and what they and their host must know of each other.
pub trait Host: Sync {
    /// Whether clients are to end after the push that they are at.
    fn is_over(&self) -> bool;

    /// Where client `number` pushes to at present.
    fn target(&self, number: usize) -> Target;

    /// What clients do, each as likely as it is often in the list.
    fn habits(&self) -> &[Habit];

    /// Whether branches may be deleted at any moment, also in pushes that do other things.
    fn deletes_freely(&self) -> bool {
        true
    }

    /// Whether the branch that all share may be deleted too, where [`Host::deletes_freely`].
    fn deletes_shared(&self) -> bool {
        true
    }

    /// A push begins; what is given is held until it has ended.
    fn entered(&self) -> impl Future<Output = Option<RwLockReadGuard<'_, ()>>> {
        async { None }
    }

    /// A push has ended, well or not; `target` is where it went.
    fn ended(&self, target: &Target, succeeded: bool) -> impl Future<Output = ()>;

    /// Asked before a branch is deleted by itself, where not [`Host::deletes_freely`].
    fn may_delete(&self, _branch: &str) -> impl Future<Output = bool> {
        async { true }
    }
}

/// Where a push goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// What `git push` is given.
    pub url: String,
    /// Settings of git for it, as `name=value`.
    pub settings: Vec<String>,
}

/// What a client does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// Add a commit to one of its branches.
    StepForward,
    /// Force one of its branches to an older value or to something new.
    Rewrite,
    /// Delete one of its branches.
    Delete,
    /// Delete one and make it again, in two pushes.
    DeleteAndMakeAgain,
    /// Make, move or delete a tag of either kind.
    Tag,
    /// Push that many refs at once.
    Many(usize),
    /// Push a ref beside one that a hook refuses, with `--atomic`.
    RefusedAtomic,
    /// The same without.
    Refused,
    /// Force the branch that all clients share.
    MoveShared,
}

/// What people do, more or less; for a [`Host`] whose hook refuses `refs/heads/refused-*`.
pub const HABITS_OF_PEOPLE: [Habit; 12] = [
    Habit::StepForward,
    Habit::StepForward,
    Habit::StepForward,
    Habit::Rewrite,
    Habit::Delete,
    Habit::DeleteAndMakeAgain,
    Habit::Tag,
    Habit::Many(12),
    Habit::RefusedAtomic,
    Habit::Refused,
    Habit::MoveShared,
    Habit::MoveShared,
];

/// One client of one repository. Most branches are its own, one it shares with the others.
#[derive(Debug)]
pub struct Pusher<'a, H> {
    host: &'a H,
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

impl<'a, H: Host> Pusher<'a, H> {
    /// A client with a work tree of its own in the sandbox.
    pub async fn new(git: &'a Sandbox, host: &'a H, number: usize, dice: Dice, tries: &'a Mutex<Tries>) -> Self {
        let work = git.init(&format!("client-{number}")).await;
        let tree = work.ok(["write-tree"]).await;
        Self { host, number, dice, tries, work, tree, commits: 0, tips: BTreeMap::new() }
    }

    /// Pushes again and again.
    pub async fn push_until_it_is_over(mut self) {
        while !self.host.is_over() {
            match *self.dice.pick(self.host.habits()) {
                Habit::StepForward => self.step_forward().await,
                Habit::Rewrite => self.rewrite().await,
                Habit::Delete => self.delete().await,
                Habit::DeleteAndMakeAgain => self.delete_and_make_again().await,
                Habit::Tag => self.tag().await,
                Habit::Many(refs) => self.many(refs).await,
                Habit::RefusedAtomic => self.with_a_refused_one(&["--atomic"]).await,
                Habit::Refused => self.with_a_refused_one(&[]).await,
                Habit::MoveShared => self.move_the_shared_one().await,
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
        let free = self.host.deletes_freely();
        if !free && (self.tips.get(&branch).is_none_or(Vec::is_empty) || !self.host.may_delete(&branch).await) {
            return;
        }
        if free || !self.host.is_over() {
            self.push(&[(branch, None, true)], &[]).await;
        }
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
        let gone = self.host.deletes_freely() && self.dice.one_in(4);
        self.push(&[(format!("refs/tags/{name}"), (!gone).then_some(value), true)], &[]).await;
    }

    async fn many(&mut self, refs: usize) {
        let commit = self.commit(None).await;
        let mut changes = Vec::new();
        for n in 0..refs {
            let name = format!("refs/heads/many-{}/{n}", self.number);
            // Where one ref is not there to be deleted, git does not push the others either.
            let is_there = self.tips.get(&name).is_some_and(|tips| !tips.is_empty());
            let gone = self.host.deletes_freely() && self.dice.one_in(4) && is_there;
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
        let gone = self.host.deletes_freely() && self.host.deletes_shared() && self.dice.one_in(8);
        self.push(&[("refs/heads/shared".into(), (!gone).then_some(commit), true)], &[]).await;
    }

    async fn push(&mut self, changes: &[Change], options: &[&str]) {
        let host = self.host;
        let _pushing = host.entered().await;
        let target = host.target(self.number);
        let mut arguments: Vec<String> = Vec::new();
        for setting in &target.settings {
            arguments.extend(["-c".to_owned(), setting.clone()]);
        }
        arguments.extend(["push", "--porcelain"].map(Into::into));
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        arguments.push(target.url.clone());
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
            self.tries.lock().expect("the list of tries").attempt(&wanted);
        }
        let output = self.work.run(&arguments).await;
        let succeeded = output.status.success();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!nothing_may_move || !succeeded, "{arguments:?}: {said}");
        if !nothing_may_move {
            self.tries.lock().expect("the list of tries").note(&wanted, &output);
        }
        host.ended(&target, succeeded).await;
        if succeeded {
            for (name, value) in wanted {
                let tips = self.tips.entry(name).or_default();
                if value == ZEROS { tips.clear() } else { tips.push(value) }
            }
        }
    }
}
