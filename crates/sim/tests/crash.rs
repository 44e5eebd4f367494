//! The `dir` store under power cuts and process death, at every instant of bounded and random
//! workloads.  See docs/TESTING.md for what is looked at and how to run more of it.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, sample, seed};
use std::sync::Arc;
use systx_sim::suite::{self, Bench, How, Session, Stats};
use systx_sim::workload::{self, Workload};
use systx_sim::{Plan, Profile, Record, SimFs, tree};

/// Crashes inside recovery: everything that is small, a few of the rest.
fn again() -> Option<Plan> {
    Some(Plan { exhaustive: 32, budget: 12, seed: seed() })
}

fn run(profile: Profile, how: How, workloads: &[Workload]) -> Stats {
    let bench = Bench::new(profile, &suite::plain).unwrap();
    let mut stats = Stats::default();
    for workload in workloads {
        match bench.case(workload, &how) {
            Ok(one) => stats.add(one),
            Err(e) => panic!("{:?}, seed {}\n{e}", profile.class, seed()),
        }
    }
    println!("{:?}: {stats:?}", profile.class);
    stats
}

fn bounded(profile: Profile, len: usize) -> Vec<Workload> {
    let bench = Bench::new(profile, &suite::plain).unwrap();
    workload::bounded(bench.base(), len)
}

fn random(profile: Profile, count: u64, txns: usize) -> Vec<Workload> {
    let bench = Bench::new(profile, &suite::plain).unwrap();
    let seeds = seed() * 1000..seed() * 1000 + count;
    seeds.map(|s| workload::random(bench.base(), txns, 4, s)).collect()
}

fn single_calls(profile: Profile) {
    for checkpoint in [false, true] {
        let how = How { checkpoint, again: again(), ..How::power_cuts(150, seed()) };
        let stats = run(profile, how, &bounded(profile, 1));
        assert!(stats.states > 200 && stats.nested > 200, "{stats:?}");
    }
}

#[test]
fn single_calls_survive_power_cuts_on_strong_file_systems() {
    single_calls(Profile::STRONG);
}

#[test]
fn single_calls_survive_power_cuts_on_weak_file_systems() {
    single_calls(Profile::WEAK);
}

fn pairs(profile: Profile) {
    let all = bounded(profile, 2);
    let how = How { checkpoint: true, again: None, ..How::power_cuts(40, seed()) };
    run(profile, how, &sample(&all, 150 * budget() as usize, seed()));
    let how = How { again: again(), ..How::power_cuts(40, seed() + 1) };
    run(profile, how, &sample(&all, 15 * budget() as usize, seed() + 1));
}

#[test]
fn pairs_of_calls_survive_power_cuts_on_strong_file_systems() {
    pairs(Profile::STRONG);
}

#[test]
fn pairs_of_calls_survive_power_cuts_on_weak_file_systems() {
    pairs(Profile::WEAK);
}

#[test]
fn long_workloads_survive_power_cuts() {
    for base in [Profile::STRONG, Profile::WEAK] {
        let profile = Profile { implicit_times: true, ..base };
        let how = How { inline: 2000, ..How::power_cuts(10, seed()) };
        run(profile, How { checkpoint: true, ..how }, &random(profile, budget(), 8));
        // The ring goes round several times.
        let how = How { inline: 100_000, ..how };
        run(profile, how, &random(profile, 1 + budget(), 14));
    }
}

#[test]
fn undo_and_redo_survive_power_cuts_and_process_death() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let singles = bounded(profile, 1);
        let pairs = sample(&bounded(profile, 2), 20 * budget() as usize, seed());
        let how = How { undo: true, ..How::power_cuts(20, seed()) };
        run(profile, how, &singles);
        run(profile, How { checkpoint: true, ..how }, &pairs);
        run(profile, How { undo: true, ..How::deaths() }, &singles);
    }
}

#[test]
fn collections_survive_power_cuts_and_process_death() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let singles = bounded(profile, 1);
        let pairs = sample(&bounded(profile, 2), 20 * budget() as usize, seed());
        let how = How { gc: true, checkpoint: true, undo: true, ..How::power_cuts(20, seed()) };
        run(profile, how, &pairs);
        run(profile, How { process_death: true, ..how }, &singles);
        run(profile, How { checkpoint: false, ..how }, &random(profile, budget(), 8));
    }
}

#[test]
fn friendlier_file_systems_are_no_harder() {
    let strong = Profile { fsync_persists_names: true, ..Profile::STRONG };
    let weak = Profile { fsync_persists_inode: true, ..Profile::WEAK };
    for profile in [strong, weak] {
        let how = How { checkpoint: true, ..How::power_cuts(30, seed()) };
        run(profile, how, &sample(&bounded(profile, 1), 20, seed()));
    }
}

#[test]
fn processes_may_die_at_every_call() {
    for profile in [Profile::MEMORY, Profile::STRONG, Profile::WEAK] {
        for checkpoint in [false, true] {
            let how = How { checkpoint, ..How::deaths() };
            let how = How { again: again().filter(|_| !checkpoint), ..how };
            let stats = run(profile, how, &bounded(profile, 1));
            assert!(stats.states > 200, "{stats:?}");
        }
        let how = How { checkpoint: true, inline: 2000, ..How::deaths() };
        let some = sample(&bounded(profile, 2), 40 * budget() as usize, seed());
        run(profile, how, &some);
        run(profile, how, &random(profile, budget(), 8));
    }
}

#[test]
fn the_making_of_a_store_may_be_cut_off() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let sim = SimFs::new(profile);
        workload::base(&sim).unwrap();
        let base = tree::read(&sim, &suite::hidden).unwrap();
        sim.record(Record::Calls);
        drop(Session::open(Arc::new(sim.clone()), sim.instance()).unwrap());
        sim.record(Record::Off);
        let mut count = 0;
        for point in sim.take_points() {
            let plan = Plan { exhaustive: 64, budget: 24, seed: seed() };
            let states = point.crash_states(&plan).chain([point.process_death()]);
            for state in states {
                count += 1;
                let label = &point.label;
                if let Err(e) = Session::open(Arc::new(state.clone()), state.instance()) {
                    panic!("{:?}: cut off at {label}: {e}", profile.class);
                }
                let found = tree::read(&state, &suite::hidden).unwrap();
                assert!(found == base, "{label}: {}", tree::diff(&found, &base));
            }
        }
        assert!(count > 20, "{count}");
    }
}
