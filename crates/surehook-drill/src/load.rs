//! The pushes: real git clients, all at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use surehook_testkit::dice::Dice;
use surehook_testkit::ledger::Tries;
use surehook_testkit::postgres::try_connect;
use surehook_testkit::pusher::{Habit, Host, Pusher, Target};
use surehook_testkit::try_eventually;
use tokio::sync::RwLockReadGuard;

use crate::scenario::Shape;
use crate::stack::{Place, Stack};
use crate::store;

/// How long a deletion in a repository of others waits until what it takes along was told.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// What clients have done so far, and whether they are to end.
#[derive(Debug, Default)]
pub struct Load {
    /// Pushes that were begun.
    pub pushes: AtomicUsize,
    /// Pushes that git called successful.
    pub succeeded: AtomicUsize,
    /// Set when it is enough.
    pub over: AtomicBool,
    /// End after so many pushes; 0: never.
    pub pushes_max: usize,
}

impl Load {
    /// Whether clients are to end.
    pub fn is_over(&self) -> bool {
        let enough = self.pushes_max > 0 && self.pushes.load(Ordering::SeqCst) >= self.pushes_max;
        enough || self.over.load(Ordering::SeqCst)
    }
}

/// One repository and its clients.
struct There<'a> {
    stack: &'a Stack,
    place: &'a Place,
    load: &'a Load,
    habits: Vec<Habit>,
    follows: bool,
    deletes_shared: bool,
}

impl Host for There<'_> {
    fn is_over(&self) -> bool {
        self.load.is_over()
    }

    fn target(&self, number: usize) -> Target {
        self.stack.target(self.place, number)
    }

    fn habits(&self) -> &[Habit] {
        &self.habits
    }

    fn deletes_freely(&self) -> bool {
        !self.follows
    }

    fn deletes_shared(&self) -> bool {
        self.deletes_shared
    }

    async fn entered(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.load.pushes.fetch_add(1, Ordering::SeqCst);
        None
    }

    async fn ended(&self, target: &Target, succeeded: bool) {
        self.load.succeeded.fetch_add(usize::from(succeeded), Ordering::SeqCst);
        if !succeeded {
            // Most likely the server is gone: the next one is elsewhere.
            let moved = async || (self.target(0).url != target.url).then_some(());
            let _ = try_eventually(Duration::from_millis(100), moved).await;
        }
    }

    /// In a repository that is only followed, a deletion takes its log along. As the manual says, what nobody has looked at by
    /// then is told by nobody: so this client waits.
    async fn may_delete(&self, branch: &str) -> bool {
        let bare = self.stack.git.at(&self.place.path);
        let log = bare.path().join("logs").join(branch);
        let Ok(sender) = try_connect(&self.stack.sender_url()).await else { return false };
        let told = try_eventually(TOLD_WITHIN, async || {
            let output = bare.run(["rev-parse", "--verify", "--quiet", branch]).await;
            let value = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let bytes = std::fs::metadata(&log).map_or(0, |log| log.len().cast_signed());
            (self.is_over() || store::is_told(&sender, branch, &value, bytes).await).then_some(())
        })
        .await;
        told.is_some() && !self.is_over()
    }
}

/// Clients that push until it is over, some for each repository; gives what they tried and heard, by repository.
pub async fn many(stack: &Stack, load: &Load, shape: &Shape, mut dice: Dice) -> Vec<Tries> {
    let follows = |place: &Place| stack.against == crate::against::Against::Surehook && !place.is_hosted;
    let theirs: Vec<There<'_>> = stack
        .places
        .iter()
        .map(|place| {
            let follows = follows(place);
            let without = [Habit::DeleteAndMakeAgain, Habit::RefusedAtomic, Habit::Refused];
            let habits = shape.habits.iter().copied().filter(|habit| !follows || !without.contains(habit)).collect();
            There { stack, place, load, habits, follows, deletes_shared: shape.deletes_shared }
        })
        .collect();
    let tries: Vec<Mutex<Tries>> = theirs.iter().map(|_| Mutex::default()).collect();
    let mut clients = Vec::new();
    for (at, host) in theirs.iter().enumerate() {
        for n in 0..shape.clients_each {
            let (dice, tries, number) = (dice.split(), &tries[at], at * shape.clients_each + n);
            clients.push(async move {
                Pusher::new(&stack.git, host, number, dice, tries).await.push_until_it_is_over().await;
            });
        }
    }
    join_all(clients).await;
    drop(theirs);
    tries.into_iter().map(|tries| tries.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// One push each, all at the same moment: one into each repository, or into as many branches where there is only one.
/// `begin` is called when all is prepared.
pub async fn once(stack: &Stack, load: &Load, pushes: usize, begin: impl FnOnce()) -> Vec<Tries> {
    let work = stack.git.init("once").await;
    let tree = work.ok(["write-tree"]).await;
    let mut wanted = Vec::new();
    for number in 1..=pushes {
        let commit = work.ok(["commit-tree", &tree, "-m", &format!("push {number}")]).await;
        let at = (number - 1) % stack.places.len();
        let branch = if stack.places.len() == 1 { format!("branch-{number}") } else { "main".to_owned() };
        wanted.push((at, format!("refs/heads/{branch}"), commit));
    }
    let tries: Vec<Mutex<Tries>> = stack.places.iter().map(|_| Mutex::default()).collect();
    begin();
    let clients = wanted.into_iter().enumerate().map(|(number, (at, name, commit))| {
        let (work, place, tries) = (work.clone(), &stack.places[at], &tries[at]);
        async move {
            let target = stack.target(place, number);
            let change = [(name.clone(), commit.clone())];
            tries.lock().unwrap_or_else(PoisonError::into_inner).attempt(&change);
            load.pushes.fetch_add(1, Ordering::SeqCst);
            let mut arguments: Vec<String> = Vec::new();
            for setting in target.settings {
                arguments.extend(["-c".to_owned(), setting]);
            }
            arguments.extend(["push".to_owned(), "--porcelain".into(), target.url, format!("{commit}:{name}")]);
            let output = work.run(&arguments).await;
            tries.lock().unwrap_or_else(PoisonError::into_inner).note(&change, &output);
            load.succeeded.fetch_add(usize::from(output.status.success()), Ordering::SeqCst);
        }
    });
    join_all(clients).await;
    tries.into_iter().map(|tries| tries.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}
