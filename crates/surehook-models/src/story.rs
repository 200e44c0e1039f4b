//! Runs the checker over a model and tells what it found: how many states there are, and the shortest way to what is wrong.
//! May use all cores and print.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::num::NonZero;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// A model that can be walked through on several cores, and whose steps can be told.
pub trait Walkable: Model<State: Part + Hash, Action: Part> + Clone + Send + Sync + 'static {}

impl<M: Model<State: Part + Hash, Action: Part> + Clone + Send + Sync + 'static> Walkable for M {}

/// What a model is made of.
pub trait Part: Clone + Debug + PartialEq + Send + Sync + 'static {}

impl<P: Clone + Debug + PartialEq + Send + Sync + 'static> Part for P {}

/// What a complete walk found.
#[derive(Debug)]
pub struct Checked {
    /// Different states visited.
    pub states: usize,
    /// Broken properties, each with the shortest story that breaks it.
    pub broken: Vec<(&'static str, String)>,
    /// What a `sometimes` property was seen to reach.
    pub reached: BTreeSet<&'static str>,
}

/// Visits every state. Prints what it took under the name of the run.
pub fn check(run: &str, model: impl Walkable) -> Checked {
    walk(run, model, HasDiscoveries::AllFailures, std::thread::available_parallelism().map_or(1, NonZero::get))
}

/// Visits states, those nearest to the beginning first, until this property is broken; returns the shortest story that does it.
pub fn find(run: &str, model: impl Walkable, property: &'static str) -> Option<String> {
    let checked = walk(run, model, HasDiscoveries::AnyOf(BTreeSet::from([property])), 1);
    let story = checked.broken.into_iter().find(|(name, _)| *name == property).map(|(_, story)| story);
    if let Some(story) = &story {
        println!("{run}: \"{property}\" is broken by\n{story}");
    }
    story
}

fn walk(run: &str, model: impl Walkable, until: HasDiscoveries, threads: usize) -> Checked {
    let began = Instant::now();
    let checker = model.clone().checker().threads(threads).finish_when(until).spawn_bfs().join();
    let mut checked = Checked { states: checker.unique_state_count(), broken: Vec::new(), reached: BTreeSet::new() };
    for (name, path) in checker.discoveries() {
        if model.property(name).expectation.discovery_is_failure() {
            let steps = path.into_actions();
            let lines = steps
                .iter()
                .enumerate()
                .map(|(index, step)| format!("  {}. {}\n", index + 1, model.format_action(step)));
            checked.broken.push((name, lines.collect()));
        } else {
            checked.reached.insert(name);
        }
    }
    println!("{run}: {} states, {:.1} s", checked.states, began.elapsed().as_secs_f64());
    checked
}
