//! Transactions together with futexes, mutexes, pipes and lock files: the eight cases of TxOS+
//! (EuroSys'12, Table 1), by the helper `systx-e2e-together`, which checks each case where it
//! happens.

use systx_e2e::cases::Guarded;
use systx_e2e::{Lab, lab};

fn guarded(lab: &Lab) -> Guarded<'_> {
    Guarded::new(lab, env!("CARGO_BIN_EXE_systx-e2e-together"))
}

#[test]
fn who_sleeps_defers_to_who_may_wake_it() {
    let lab = lab!();
    guarded(&lab).cases(&["goodfutex", "pipe", "at-work"]);
}

#[test]
fn locks_that_are_nested_well_compose() {
    let lab = lab!();
    guarded(&lab).case("mutex", 20);
}

#[test]
fn orders_coordinate_producers_and_consumers() {
    let lab = lab!();
    guarded(&lab).case("ordered-p/c", 12);
}

#[test]
fn orders_and_a_pipe_coordinate_producers_and_consumers() {
    let lab = lab!();
    guarded(&lab).case("pipe-p/c", 20);
}

#[test]
fn who_polls_for_a_lock_file_hears_that_it_has_lost() {
    let lab = lab!();
    guarded(&lab).cases(&["lockfile"]);
}

#[test]
fn a_lock_that_is_nested_both_ways_is_reported() {
    let lab = lab!();
    guarded(&lab).cases(&["badfutex"]);
}

#[test]
fn an_order_that_waits_for_its_own_lock_is_reported() {
    let lab = lab!();
    guarded(&lab).cases(&["orderedfutex"]);
}
