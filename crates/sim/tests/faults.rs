//! The `dir` store on disks that fail, fill up, or change what is in the journal.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, sample, seed};
use rustix::io::Errno;
use std::sync::Arc;
use systx_sim::intercept::{Action, Intercept};
use systx_sim::model::Op;
use systx_sim::suite::{self, Bench, How, Session};
use systx_sim::workload::{self, Workload};
use systx_sim::{Plan, Profile, SimFs, tree};
use systx_store::io::Io;

fn how() -> How {
    let plan = Plan { exhaustive: 8, budget: 6, seed: seed() };
    How { inline: 4096, checkpoint: true, plan, ..How::power_cuts(0, 0) }
}

/// A mixed bag: in place, replaced, new, moved, removed.
fn workloads(bench: &Bench<'_>) -> Vec<Workload> {
    let mixed = vec![
        vec![Op::Write("A/a", 4000, 6000), Op::Create("B/a", 20_000)],
        vec![Op::Rename("A", "C"), Op::Unlink("B/b"), Op::SetXattr("C/a", "user.k", 9)],
    ];
    let pairs = workload::bounded(bench.base(), 2);
    [vec![mixed], sample(&pairs, 2 * budget() as usize, seed())].concat()
}

#[test]
fn any_call_may_fail_once() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let bench = Bench::new(profile, &suite::plain).unwrap();
        for workload in workloads(&bench) {
            let faults =
                [Action::Fail(Errno::IO), Action::Short(Errno::IO), Action::Fail(Errno::NOSPC)];
            for fault in faults {
                let mut met = 0;
                for n in 0.. {
                    let faulty = |sim: &SimFs| {
                        Arc::new(Intercept::failing_once(sim, n, fault)) as Arc<dyn Io>
                    };
                    match bench.with_faults(&workload, &how(), &faulty) {
                        Ok(errors) => met += errors.len(),
                        Err(e) => panic!("{:?}: {fault:?} at call {n}: {e}", profile.class),
                    }
                    // Beyond the last call of the run nothing fails any more.
                    if n > 400 {
                        break;
                    }
                }
                assert!(met > 5, "{fault:?}: only {met} errors were met");
            }
        }
    }
}

#[test]
fn a_process_may_die_inside_any_call() {
    for profile in [Profile::MEMORY, Profile::WEAK] {
        let bench = Bench::new(profile, &suite::plain).unwrap();
        for workload in workloads(&bench) {
            for n in 0..200 {
                let dying = |sim: &SimFs| Arc::new(Intercept::dying(sim, n)) as Arc<dyn Io>;
                if let Err(e) = bench.with_faults(&workload, &how(), &dying) {
                    panic!("{:?}: dying at call {n}: {e}", profile.class);
                }
            }
        }
    }
}

#[test]
fn a_full_disk_is_met_before_the_commit_and_never_after() {
    let bench = Bench::new(Profile::STRONG, &suite::plain).unwrap();
    for workload in workloads(&bench) {
        let mut refused = 0;
        // The store leaves 4 MiB alone; below that it refuses at once.
        for free in 1010..1110 {
            let filling = |sim: &SimFs| {
                sim.set_free_blocks(free);
                Arc::new(sim.clone()) as Arc<dyn Io>
            };
            match bench.with_faults(&workload, &how(), &filling) {
                Err(e) => panic!("{free} blocks free: {e}"),
                Ok(errors) => {
                    refused += errors.len();
                    let late =
                        errors.iter().find(|e| e.starts_with("commit") || e.starts_with("apply"));
                    assert!(late.is_none(), "{free} blocks free: {late:?}");
                }
            }
        }
        assert!(refused > 0, "there was always room for {workload:?}");
    }
}

/// Two transactions acknowledged, none installed; as the process died then.
fn two_in_the_journal() -> (SimFs, Vec<tree::Tree>) {
    let sim = SimFs::new(Profile::STRONG);
    workload::base(&sim).unwrap();
    let base = systx_sim::model::Model::read(&sim, &suite::hidden).unwrap();
    let work = [vec![Op::Create("A/b", 100)], vec![Op::Unlink("B/l")]];
    let drafts = workload::drafts(&base, &work).unwrap();
    let mut session = Session::open(Arc::new(sim.clone()), sim.boot()).unwrap();
    for (n, draft) in drafts.iter().enumerate() {
        session.commit(draft, n as u64, 8192).unwrap();
    }
    let after = sim.here().process_death();
    let trees = [base.tree()].into_iter().chain(drafts.iter().map(|d| d.after().tree()));
    (after, trees.collect())
}

#[test]
fn no_flipped_bit_of_the_journal_gets_into_the_tree() {
    let (start, trees) = two_in_the_journal();
    let start = start.here();
    let segment = format!("{}/j/00", suite::STATE);
    let (mut refused, mut recovered) = (0, [0; 3]);
    for at in (0..16 * 1024).step_by(if budget() > 9 { 1 } else { 13 }) {
        let sim = start.process_death();
        assert!(sim.flip_bit(&segment, at, (at % 8) as u8));
        if Session::open(Arc::new(sim.clone()), sim.boot()).is_err() {
            refused += 1;
            // Refused means: nothing was touched.
            let found = tree::read(&sim, &suite::hidden).unwrap();
            assert!(found == trees[0], "byte {at}: {}", tree::diff(&found, &trees[0]));
            continue;
        }
        let found = tree::read(&sim, &suite::hidden).unwrap();
        let k = trees.iter().position(|t| *t == found);
        let k = k.unwrap_or_else(|| panic!("byte {at}: {}", tree::diff(&found, &trees[2])));
        recovered[k] += 1;
    }
    // The first record damaged with a good second one behind it is refused, never cut off.
    assert!(refused > 10, "{refused} {recovered:?}");
    assert!(recovered[2] > 10, "{refused} {recovered:?}");
}

#[test]
fn one_super_block_is_enough_and_none_is_not() {
    let (start, trees) = two_in_the_journal();
    let start = start.here();
    let paths = [0, 1].map(|n| format!("{}/super.{n}", suite::STATE));
    for both in [false, true] {
        for path in &paths {
            let sim = start.process_death();
            for p in paths.iter().filter(|p| both || *p == path) {
                // A copy that was never written has nothing to damage.
                sim.flip_bit(p, 20, 3);
            }
            let opened = Session::open(Arc::new(sim.clone()), sim.boot());
            let found = tree::read(&sim, &suite::hidden).unwrap();
            if both {
                assert!(opened.is_err(), "a store without a super block was opened");
                assert!(found == trees[0]);
            } else if opened.is_ok() {
                assert!(found == trees[2], "{}", tree::diff(&found, &trees[2]));
            }
        }
    }
}
