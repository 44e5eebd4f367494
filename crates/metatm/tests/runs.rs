//! Whole runs: what holds in each of them, and that it is seen if it does not.

use cxlock::table::TABLE;
use systx_metatm::settings::{Contention, Fault, Kernel, Scheduler, Settings};
use systx_metatm::stats::Spent;
use systx_metatm::workload::{Workload, micro, mix};
use systx_metatm::{Outcome, run};

const KERNELS: [Kernel; 3] = [Kernel::Linux, Kernel::Subsystem, Kernel::Cooperative];

fn workloads(processors: usize, seed: u64) -> Vec<Workload> {
    let mut all = vec![micro::counter(processors, seed), micro::pipeline(processors, seed)];
    all.extend(mix::PROFILES.iter().map(|profile| mix::mix(profile, processors, seed)));
    all
}

fn profile(name: &str, processors: usize, seed: u64) -> Workload {
    let found = mix::PROFILES.iter().find(|profile| profile.name == name);
    mix::mix(found.expect("a benchmark of that name"), processors, seed)
}

fn sound(name: &str, outcome: &Outcome) {
    assert!(outcome.broken.is_empty(), "{name}:\n{}", outcome.broken.join("\n"));
    assert!(outcome.units > 0, "{name}: nothing was checked");
}

#[test]
fn every_kernel_runs_every_workload_and_all_invariants_hold() {
    for kernel in KERNELS {
        for workload in workloads(8, 1) {
            let name = format!("{} {}", kernel.name(), workload.name);
            sound(&name, &run(&Settings::new(8, kernel, 1), workload));
        }
    }
}

#[test]
fn every_policy_and_scheduler_ends_every_workload() {
    for contention in Contention::ALL {
        for scheduler in [Scheduler::default(), Scheduler::AWARE] {
            for workload in workloads(4, 2) {
                let name = format!("{} {} {}", contention.name(), scheduler.name(), workload.name);
                let settings = Settings::new(4, Kernel::Cooperative, 2);
                sound(&name, &run(&Settings { contention, scheduler, ..settings }, workload));
            }
        }
    }
}

#[test]
fn a_seed_gives_one_run_and_another_seed_another() {
    let of = |seed| {
        let settings = Settings::new(4, Kernel::Cooperative, seed);
        format!("{:?}", run(&settings, profile("mab", 4, seed)).stats)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

/// What a run with a fault is said to have broken.
fn broken_by(fault: Fault, kernel: Kernel, contention: Contention, workload: Workload) -> String {
    let settings = Settings::new(16, kernel, 3);
    run(&Settings { fault, contention, ..settings }, workload).broken.join("\n")
}

#[test]
fn each_fault_is_found_by_the_invariant_that_it_breaks() {
    let size = Contention::SizeMatters;
    let counter = || micro::counter(16, 3);
    for (fault, kernel, contention, workload, text) in [
        (Fault::NoConflicts, Kernel::Cooperative, size, counter(), "had been left"),
        (Fault::NoUndo, Kernel::Cooperative, size, micro::pipeline(16, 3), "had been left"),
        (Fault::NoAsymmetric, Kernel::Cooperative, size, profile("mab", 16, 3), "inside"),
        (Fault::NoLook, Kernel::Linux, size, counter(), "held by threads"),
        (Fault::LostCycles, Kernel::Linux, size, counter(), "accounted for"),
        (
            Fault::WrongWinner,
            Kernel::Cooperative,
            Contention::OsPrio,
            profile("mab", 16, 3),
            "os_prio lets",
        ),
    ] {
        let found = broken_by(fault, kernel, contention, workload);
        assert!(found.contains(text), "{fault:?}: {found:?}");
    }
}

#[test]
fn a_run_without_progress_is_no_result() {
    let settings = Settings { limit: 10_000, ..Settings::new(8, Kernel::Cooperative, 1) };
    let outcome = run(&settings, micro::counter(8, 1));
    assert!(outcome.broken[0].contains("8 threads have not ended"), "{:?}", outcome.broken);
}

#[test]
fn the_runs_drive_every_cell_of_the_table_of_cxspinlocks() {
    let mut seen = Vec::new();
    for name in ["mab", "config", "pmake", "dpunish"] {
        let settings = Settings::new(16, Kernel::Cooperative, 1);
        seen.extend(run(&settings, profile(name, 16, 1)).transitions);
    }
    let missing: Vec<_> =
        TABLE.iter().filter(|cell| !seen.iter().any(|(s, _)| s == *cell)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn os_prio_never_inverts_and_the_others_do() {
    let inverted = |contention| {
        let settings = Settings { contention, ..Settings::new(16, Kernel::Cooperative, 1) };
        let outcome = run(&settings, profile("mab", 16, 1));
        sound(contention.name(), &outcome);
        let conflicts = outcome.stats.conflicts;
        assert!(conflicts.all > 50, "{contention:?}: {conflicts:?}");
        conflicts.inverted
    };
    assert_eq!(inverted(Contention::OsPrio), 0);
    for contention in [Contention::SizeMatters, Contention::Timestamp, Contention::Polka] {
        assert!(inverted(contention) > 0, "{contention:?}");
    }
}

#[test]
fn transactions_let_threads_into_a_section_together_that_a_lock_keeps_apart() {
    let most = |kernel| {
        let outcome = run(&Settings::new(8, kernel, 1), micro::pipeline(8, 1));
        let inside = outcome.stats.sites.iter().map(|site| site.most).max();
        (inside, outcome.stats.end)
    };
    let (lock, transactions) = (most(Kernel::Linux), most(Kernel::Cooperative));
    assert_eq!(lock.0, Some(0));
    assert!(transactions.0 > Some(1) && transactions.1 < lock.1, "{lock:?} {transactions:?}");
}

#[test]
fn a_scheduler_that_knows_transactions_loses_less_to_restarts_where_they_are_many() {
    let lost = |scheduler| -> u64 {
        (1..=4)
            .map(|seed| {
                let settings = Settings::new(8, Kernel::Subsystem, seed);
                let outcome = run(&Settings { scheduler, ..settings }, micro::pipeline(8, seed));
                sound(scheduler.name(), &outcome);
                outcome.stats.spent[Spent::Restart.index()]
            })
            .sum()
    };
    let (without, with) = (lost(Scheduler::default()), lost(Scheduler::AWARE));
    assert!(with < without, "{with} with it, {without} without");
}
