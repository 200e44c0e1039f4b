//! Which commits a step brought: reachable from `after`, and from none of the hidden tips.
//!
//! A walk in the order of dates from both sides, as git does it: it ends when only hidden commits are left to visit, so that
//! two new commits on a long history cost a few reads. Clocks may be wrong, so it goes on for a while after that, and a commit
//! that turns out to be hidden hides what was visited below it.

use std::collections::{BinaryHeap, HashMap};
use std::rc::Rc;

use gix::ObjectId;

use super::objects::{Link, Objects, Unreadable};

/// Hidden commits that are visited beyond the point where all dates say that the walk is over.
const SLACK_COMMITS: usize = 256;

/// What [`range`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The newest commits, newest first; each stands before its parents.
    pub newest: Vec<ObjectId>,
    /// How many there are in all.
    pub total: u64,
    /// Whether the wanted ancestor was met on the way from the tip.
    pub ancestor_reached: bool,
    /// Commits that could not be read, so that what lies below them is left out.
    pub unreadable: Vec<(ObjectId, Unreadable)>,
    /// Whether the walk was given up because it became too long; `total` is what was found until then.
    pub cut: bool,
}

/// The commits from `tip` that no commit of `hidden` reaches. `ancestor` is looked for on the way; `commits_max` bounds the
/// list, `visits_max` the work.
pub fn range(
    objects: &mut Objects<'_>,
    tip: ObjectId,
    hidden: &[ObjectId],
    ancestor: Option<ObjectId>,
    commits_max: usize,
    visits_max: usize,
) -> Range {
    let mut walk = Walk { objects, nodes: HashMap::new(), queue: BinaryHeap::new(), open: 0, found: Range::default() };
    walk.found.ancestor_reached = ancestor == Some(tip);
    for id in hidden {
        walk.reach(*id, true);
    }
    walk.reach(tip, false);
    walk.run(ancestor, visits_max);
    walk.list(tip, commits_max)
}

struct Node {
    link: Rc<Link>,
    hidden: bool,
    queued: bool,
}

struct Walk<'walk, 'repo> {
    objects: &'walk mut Objects<'repo>,
    nodes: HashMap<ObjectId, Node>,
    queue: BinaryHeap<(i64, ObjectId)>,
    /// How many in the queue are not hidden.
    open: usize,
    found: Range,
}

impl Walk<'_, '_> {
    fn run(&mut self, ancestor: Option<ObjectId>, visits_max: usize) {
        let mut slack = SLACK_COMMITS;
        let mut visits = 0;
        while let Some((_, id)) = self.queue.pop() {
            if self.open == 0 {
                if slack == 0 {
                    break;
                }
                slack -= 1;
            }
            visits += 1;
            if visits > visits_max {
                self.found.cut = true;
                break;
            }
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            node.queued = false;
            let (hidden, link) = (node.hidden, Rc::clone(&node.link));
            if !hidden {
                self.open -= 1;
            }
            for parent in &link.parents {
                self.found.ancestor_reached |= !hidden && ancestor == Some(*parent);
                self.reach(*parent, hidden);
            }
        }
    }

    fn reach(&mut self, id: ObjectId, hidden: bool) {
        if self.nodes.contains_key(&id) {
            if hidden {
                self.hide(id);
            }
            return;
        }
        match self.objects.link(id) {
            Ok(link) => {
                self.queue.push((link.seconds, id));
                self.open += usize::from(!hidden);
                self.nodes.insert(id, Node { link, hidden, queued: true });
            }
            // What is hidden needs no reading to stay hidden.
            Err(_) if hidden => {}
            Err(reason) => {
                if !self.found.unreadable.iter().any(|(known, _)| *known == id) {
                    self.found.unreadable.push((id, reason));
                }
            }
        }
    }

    /// Hides a commit that was taken for a new one, and whatever was visited below it.
    fn hide(&mut self, id: ObjectId) {
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.hidden) else { continue };
            node.hidden = true;
            if node.queued {
                self.open -= 1;
            } else {
                stack.extend_from_slice(&node.link.parents);
            }
        }
    }

    /// Puts children before parents and, where that leaves a choice, newer before older.
    fn list(mut self, tip: ObjectId, commits_max: usize) -> Range {
        let mut children: HashMap<ObjectId, usize> = HashMap::new();
        for node in self.nodes.values().filter(|node| !node.hidden) {
            self.found.total += 1;
            for parent in &node.link.parents {
                *children.entry(*parent).or_default() += 1;
            }
        }
        let is_new = |id: &ObjectId| self.nodes.get(id).filter(|node| !node.hidden);
        let mut ready: BinaryHeap<(i64, ObjectId)> =
            is_new(&tip).map(|node| (node.link.seconds, tip)).into_iter().collect();
        while self.found.newest.len() < commits_max {
            let Some((_, id)) = ready.pop() else { break };
            self.found.newest.push(id);
            for parent in is_new(&id).iter().flat_map(|node| &node.link.parents) {
                if let Some(count) = children.get_mut(parent) {
                    *count -= 1;
                    if *count == 0
                        && let Some(node) = is_new(parent)
                    {
                        ready.push((node.link.seconds, *parent));
                    }
                }
            }
        }
        self.found
    }
}
