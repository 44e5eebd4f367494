//! Transactions that commit in the order of their numbers, by the helper `systx-e2e-together`,
//! which checks each case where it happens.

use systx_e2e::cases::Guarded;
use systx_e2e::{Lab, lab};

fn guarded(lab: &Lab) -> Guarded<'_> {
    Guarded::new(lab, env!("CARGO_BIN_EXE_systx-e2e-together"))
}

#[test]
fn numbers_are_used_up_by_commits() {
    let lab = lab!();
    guarded(&lab).cases(&["numbers"]);
}

#[test]
fn a_number_that_does_not_come_is_named() {
    let lab = lab!();
    guarded(&lab).cases(&["missing"]);
}

#[test]
fn threads_in_an_order_end_as_one_after_another() {
    let lab = lab!();
    let numbers = if std::env::var_os("SYSTX_LONG").is_some() { 1000 } else { 100 };
    guarded(&lab).case("replay", numbers);
}

#[test]
fn what_is_done_side_by_side_is_committed_in_order() {
    let lab = lab!();
    guarded(&lab).case("pipeline", 8);
}
