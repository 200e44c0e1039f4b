//! Walks through the model of announce, through its twins that have one protection less, and through what is known not to hold,
//! with and without what would mend it. Prints what each walk took, and each story that breaks a property, with `--nocapture`.

mod common;

use surehook_models::announce::truth::{
    ALL_TOLD, GUESSED, INVENTED, LOST, MADE_GOOD, NUMBERS, TOLD_AGAIN, VERDICT, nothing_is_lost,
};
use surehook_models::announce::{Announce, Bounds};
use surehook_models::story::find;

fn with(change: impl Fn(&mut Announce)) -> Announce {
    let mut model = Announce::new(Bounds::CALM);
    change(&mut model);
    model
}

fn holds(run: &str, states_min: usize, reached: &[&str], change: impl Fn(&mut Announce)) {
    common::holds(run, with(change), states_min, reached);
}

fn breaks(run: &str, property: &'static str, change: impl Fn(&mut Announce)) {
    common::breaks(run, with(change), property);
}

#[test]
fn it_holds_when_nothing_fails() {
    holds("calm", 13_000, &[ALL_TOLD], |m| m.bounds.at_once = 3);
}

#[test]
fn it_holds_while_servers_gits_and_the_database_die() {
    holds("faults", 320_000, &[ALL_TOLD, MADE_GOOD], |m| {
        (m.bounds.at_once, m.bounds.kills_of_server, m.bounds.kills_of_git, m.bounds.outages) = (3, 1, 1, 1);
    });
}

#[test]
fn it_holds_while_servers_die_twice() {
    holds("two kills", 97_000, &[ALL_TOLD, MADE_GOOD], |m| m.bounds.kills_of_server = 2);
}

#[test]
fn it_holds_for_four_pushes_three_at_once() {
    holds("four pushes", 390_000, &[ALL_TOLD, MADE_GOOD], |m| {
        (m.bounds.pushes, m.bounds.at_once, m.bounds.values) = (4, 3, 0);
        (m.bounds.kills_of_server, m.bounds.kills_of_git) = (1, 1);
    });
}

#[test]
fn it_holds_while_two_processes_announce() {
    holds("two announcers", 240_000, &[ALL_TOLD], |m| m.bounds.announcers = 2);
    holds("two announcers, faults", 200_000, &[ALL_TOLD, MADE_GOOD], |m| {
        (m.bounds.pushes, m.bounds.announcers, m.bounds.kills_of_server, m.bounds.outages) = (2, 2, 1, 1);
    });
}

#[test]
fn it_holds_while_told_lines_are_taken_off_the_log() {
    holds("trims", 36_000, &[ALL_TOLD], |m| {
        (m.bounds.pushes, m.bounds.values, m.bounds.trims, m.bounds.kills_of_git) = (4, 0, 1, 1);
    });
}

#[test]
fn it_holds_when_the_database_is_put_back_and_nobody_deletes() {
    holds("restore", 13_000, &[ALL_TOLD, TOLD_AGAIN], |m| (m.bounds.restores, m.bounds.deletions) = (1, false));
    holds("restore, faults", 94_000, &[ALL_TOLD, TOLD_AGAIN, MADE_GOOD], |m| {
        (m.bounds.restores, m.bounds.deletions, m.bounds.kills_of_server) = (1, false, 1);
    });
}

#[test]
fn without_the_cursor_check_two_announcers_tell_a_step_twice() {
    breaks("no cursor check", INVENTED, |m| (m.bounds.announcers, m.guards.cursor_check) = (2, false));
}

/// Its step is told all the same, as a bridge over a gap, without who and when.
#[test]
fn if_the_place_moves_over_skipped_lines_a_push_at_work_loses_its_line() {
    breaks("the place moves", GUESSED, |m| m.guards.place_stays = false);
}

#[test]
fn without_a_second_look_at_the_log_a_ref_is_taken_for_older_than_its_log() {
    breaks("one look", INVENTED, |m| m.guards.log_looked_at_again = false);
    breaks("one look", LOST, |m| m.guards.log_looked_at_again = false);
}

#[test]
fn if_deletions_do_not_wait_the_log_goes_with_what_it_says() {
    breaks("deletions do not wait", LOST, |m| m.guards.deletion_told_first = false);
}

#[test]
fn if_a_deletion_need_not_name_a_value_it_takes_what_nobody_has_told() {
    breaks("blind deletions", LOST, |m| m.guards.deletion_names_value = false);
}

#[test]
fn if_lines_that_are_not_told_are_trimmed_they_are_lost() {
    breaks("trims too much", LOST, |m| (m.bounds.trims, m.guards.trim_only_told) = (1, false));
}

#[test]
fn if_a_run_counts_for_later_calls_a_verdict_comes_early() {
    breaks("joins a run", VERDICT, |m| m.guards.turn_begins_after_call = false);
    breaks("joins a run", LOST, |m| m.guards.turn_begins_after_call = false);
}

#[test]
fn without_the_high_water_mark_a_restored_database_gives_numbers_again() {
    breaks("no high-water mark", NUMBERS, |m| (m.bounds.restores, m.guards.high_water) = (1, false));
}

/// docs/adr/0010: between the announcement and git's deletion others move the ref away and back to that value.
#[test]
fn gap_a_ref_moves_away_and_back_before_its_deletion() {
    breaks("away and back", LOST, |m| m.bounds.pushes = 4);
    holds("away and back, deleted alone", 490_000, &[ALL_TOLD], |m| {
        (m.bounds.pushes, m.bounds.kills_of_server, m.bounds.kills_of_git) = (4, 1, 1);
        m.mends.deletion_is_alone = true;
    });
}

/// docs/adr/0009: a second life of the ref whose first line is that of the first.
#[test]
fn gap_two_lives_in_one_second() {
    breaks("two lives in one second", LOST, |m| m.world.one_second = true);
}

/// While the log is read it goes, and a new one comes with inode and length of the old one.
#[test]
fn gap_a_new_log_looks_like_the_old_one() {
    breaks("inodes are used again", INVENTED, |m| m.world.inodes_are_reused = true);
    holds("logs are held open", 6_800, &[ALL_TOLD], |m| {
        (m.world.inodes_are_reused, m.mends.log_is_held_open) = (true, true);
    });
}

/// An announce that gives up on a ref that changes all the time says Ok, and a deletion takes that for "all is told".
#[test]
fn gap_a_deletion_goes_on_though_its_ref_was_unsettled() {
    let busy = |m: &mut Announce| {
        (m.bounds.at_once, m.bounds.kills_of_git, m.world.looks_run_out) = (3, 1, true);
    };
    breaks("looks run out", LOST, busy);
    holds("looks run out, deletions wait", 27_000, &[ALL_TOLD], |m| {
        busy(m);
        m.mends.deletion_waits_for_settled = true;
    });
}

/// The log is gone with the ref, and the database that knew what it said is gone as well.
#[test]
fn gap_a_ref_is_deleted_between_copy_and_restore() {
    breaks("deleted before the restore", LOST, |m| m.bounds.restores = 1);
}

/// The server dies between the commit and the mark; then an older database is put back.
#[test]
fn gap_a_commit_without_its_mark_is_followed_by_a_restore() {
    let unmarked = |m: &mut Announce| {
        (m.bounds.at_once, m.bounds.restores, m.bounds.kills_of_server) = (1, 1, 1);
    };
    breaks("no mark yet", NUMBERS, unmarked);
    // That a restore and deletions do not go together is another matter: here only numbers are asked about.
    let mended = with(|m| {
        unmarked(m);
        m.mends.mark_before_commit = true;
    });
    assert!(find("the mark before the commit", mended, NUMBERS).is_none());
}

/// A state in which the line of a step is missing, which no way leads to.
#[test]
fn the_question_about_the_end_can_be_answered_with_no() {
    use stateright::Model as _;
    let model = with(|_| ());
    let mut state = model.init_states().remove(0);
    assert!(nothing_is_lost(&model, &state));
    state.history = vec![(0, 1), (1, 2)];
    state.disk.value = 2;
    assert!(!nothing_is_lost(&model, &state));
}
