//! Transactions in which others take part, threads and processes that were made inside, by the
//! helper `systx-e2e-members`, which checks each case where it happens.

use systx_e2e::cases::Guarded;
use systx_e2e::{Lab, lab};

fn guarded(lab: &Lab) -> Guarded<'_> {
    Guarded::new(lab, env!("CARGO_BIN_EXE_systx-e2e-members"))
}

#[test]
fn the_end_waits_for_processes_that_were_made_inside() {
    let lab = lab!();
    guarded(&lab).cases(&["children", "orphans"]);
}

#[test]
fn an_end_that_must_not_wait_longer_names_who_is_inside() {
    let lab = lab!();
    guarded(&lab).cases(&["impatient"]);
}

#[test]
fn a_killed_process_has_the_transaction_dropped() {
    let lab = lab!();
    guarded(&lab).cases(&["killed", "killed-late"]);
}

#[test]
fn threads_that_were_made_inside_take_part_and_step_out_by_themselves() {
    let lab = lab!();
    guarded(&lab).cases(&["threads", "paused"]);
}

#[test]
fn who_is_left_inside_is_not_in_the_next_transaction() {
    let lab = lab!();
    guarded(&lab).cases(&["aborted", "left"]);
}
