//! Runs the checker over a model and tells what it found: how many states there are, and the shortest way to what is wrong.
//! May use all cores and print.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

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
pub fn check<M>(run: &str, model: M) -> Checked
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
{
    walk(run, model, HasDiscoveries::AllFailures, std::thread::available_parallelism().map_or(1, NonZero::get))
}

/// Visits states, those nearest to the beginning first, until this property is broken; returns the shortest story that does it.
pub fn find<M>(run: &str, model: M, property: &'static str) -> Option<String>
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
{
    let checked = walk(run, model, HasDiscoveries::AnyOf(BTreeSet::from([property])), 1);
    let story = checked.broken.into_iter().find(|(name, _)| *name == property).map(|(_, story)| story);
    if let Some(story) = &story {
        println!("{run}: \"{property}\" is broken by\n{story}");
    }
    story
}

fn walk<M>(run: &str, model: M, until: HasDiscoveries, threads: usize) -> Checked
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + std::fmt::Debug + PartialEq + std::hash::Hash + Send + Sync + 'static,
    M::Action: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static,
{
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
