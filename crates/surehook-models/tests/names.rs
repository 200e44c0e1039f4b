//! A step of a model bears the name of a function of the product: if that is renamed or goes away, the model must be looked at.

use std::path::Path;

use surehook_models::announce::Action;
use surehook_models::delivery::{Answer, Step};

/// What follows the name of a step in its debug text is left away; the rest is written like the name of a function.
fn function_name(step: &impl std::fmt::Debug) -> String {
    let text = format!("{step:?}");
    let name = text.split(['(', ' ', '{']).next().unwrap_or_default();
    let mut function = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !function.is_empty() {
            function.push('_');
        }
        function.extend(letter.to_lowercase());
    }
    function
}

fn assert_is_there(function: &str, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let begins = [format!("fn {function}("), format!("fn {function}<")];
    assert!(begins.iter().any(|begin| text.contains(begin)), "there is no function {function} in {file}");
}

#[test]
fn the_steps_of_announce_are_functions() {
    let steps = [
        (Action::ReadRefs(0), "surehook/src/store/announce.rs"),
        (Action::ReadLog(0), "surehook/src/capture/snapshot.rs"),
        (Action::ReadLoose(0), "surehook/src/capture/refs.rs"),
        (Action::LogStamp(0), "surehook/src/capture/snapshot.rs"),
        (Action::Confirm(0), "surehook/src/capture/snapshot.rs"),
        (Action::AcceptPush(0), "surehook/src/store/announce.rs"),
        (Action::WriteHighWater(0), "surehook/src/capture/folder.rs"),
        (Action::Trim, "surehook/src/capture/trim.rs"),
    ];
    for (step, file) in steps {
        assert_is_there(&function_name(&step), file);
    }
    for name in ["prepare_push", "prepare_deletion", "pushed"] {
        assert_is_there(name, "surehook/src/serve/backend.rs");
    }
    for (name, file) in [
        ("settle", "surehook/src/capture/snapshot.rs"),
        ("round", "surehook/src/capture/run.rs"),
        ("take", "surehook/src/capture/turns.rs"),
        ("advance_refs", "surehook/src/store/announce.rs"),
        ("move_places", "surehook/src/store/announce.rs"),
    ] {
        assert_is_there(name, file);
    }
}

#[test]
fn the_steps_of_delivery_are_functions() {
    let steps = [
        (Step::Watch(0, true), "surehook-outbox/src/deliver/heartbeat.rs"),
        (Step::DeclareDead(0), "surehook-outbox/src/store/workers.rs"),
        (Step::Look(0), "surehook-outbox/src/deliver/claims.rs"),
        (Step::Claim(0, true), "surehook-outbox/src/store/claim.rs"),
        (Step::GiveBackUnknown(0), "surehook-outbox/src/store/workers.rs"),
        (Step::IsClearToSend(0, 0), "surehook-outbox/src/deliver/lane.rs"),
        (Step::Send(0, 0, Answer::Ok), "surehook-outbox/src/deliver/lane.rs"),
        (Step::Record(0, 0, true), "surehook-outbox/src/store/record.rs"),
    ];
    for (step, file) in steps {
        assert_is_there(&function_name(&step), file);
    }
    for (name, file) in [
        ("beaten", "surehook-outbox/src/deliver/fence.rs"),
        ("life", "surehook-outbox/src/deliver/fence.rs"),
        ("beat", "surehook-outbox/src/store/workers.rs"),
        ("others", "surehook-outbox/src/store/workers.rs"),
        ("add", "surehook-outbox/src/deliver/recorder.rs"),
        ("note", "surehook-outbox/src/deliver/recorder.rs"),
    ] {
        assert_is_there(name, file);
    }
}
