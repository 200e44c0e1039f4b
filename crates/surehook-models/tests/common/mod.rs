//! What the walks through both models demand.

use surehook_models::story::{Walkable, check, find};

/// All of it holds, in at least so many states, and this is reached.
pub(crate) fn holds(run: &str, model: impl Walkable, states_min: usize, reached: &[&str]) {
    let checked = check(run, model);
    let broken: String = checked.broken.iter().map(|(name, story)| format!("\n{name}\n{story}")).collect();
    assert!(broken.is_empty(), "{run}: {broken}");
    assert!(checked.states >= states_min, "{run}: {} states only", checked.states);
    for name in reached {
        assert!(checked.reached.contains(name), "{run}: never reached: {name}");
    }
}

/// The property is broken.
pub(crate) fn breaks(run: &str, model: impl Walkable, property: &'static str) {
    assert!(find(run, model, property).is_some(), "{run}: \"{property}\" holds all the same");
}
