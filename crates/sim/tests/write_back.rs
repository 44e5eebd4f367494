//! Pages that the disk refuses: the kernel drops them, tells whoever syncs once, and the file
//! system stays mounted.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, sample, seed};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use systx_sim::intercept::{Action, Intercept, Op as On};
use systx_sim::model::Op;
use systx_sim::suite::{self, Bench, How, Session};
use systx_sim::workload::{self, Workload};
use systx_sim::{Plan, Profile, SimFs, tree};
use systx_store::io::Io;

/// Which of the pages are lost.
fn plan() -> Plan {
    Plan { exhaustive: 8, budget: 8, seed: seed() }
}

fn workloads(bench: &Bench<'_>) -> Vec<Workload> {
    let mixed = vec![
        vec![Op::Write("A/a", 4000, 6000), Op::Create("B/a", 20_000)],
        vec![Op::Write("A/a", 100, 300), Op::Rewrite("B/b", 9000)],
    ];
    let pairs = workload::bounded(bench.base(), 2);
    [vec![mixed], sample(&pairs, 4 * budget() as usize, seed())].concat()
}

/// Whoever installed it is told.
#[test]
fn what_a_failed_sync_may_have_lost_is_installed_again() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let bench = Bench::new(profile, &suite::plain).unwrap();
        let how = How { checkpoint: true, plan: plan(), ..How::power_cuts(0, 0) };
        let mut lost = 0;
        for workload in workloads(&bench) {
            // Syncs by their number, and for each some of the states that it may leave.
            for (n, k) in (0..6).flat_map(|n| (0..6).map(move |k| (n, k))) {
                let met = Arc::new(AtomicUsize::new(0));
                let count = Arc::clone(&met);
                let refusing = move |sim: &SimFs| {
                    let (syncs, count) = (AtomicUsize::new(0), Arc::clone(&count));
                    let io = Intercept::new(sim, move |call| {
                        if call.op != On::SyncFs || syncs.fetch_add(1, Relaxed) != n {
                            return Action::Pass;
                        }
                        let choices = call.sim().here().choices(&plan());
                        let Some(choice) = choices.get(k) else { return Action::Pass };
                        call.sim().lose_pages(choice);
                        count.fetch_add(1, Relaxed);
                        Action::Fail(Errno::IO)
                    });
                    Arc::new(io) as Arc<dyn Io>
                };
                if let Err(e) = bench.with_faults(&workload, &how, &refusing) {
                    panic!("{:?}, sync {n}, state {k}: {e}", profile.class);
                }
                lost += met.load(Relaxed);
            }
        }
        assert!(lost > 60, "{lost}");
    }
}

/// Whoever installed it has died before it could be told; so the next one is.
#[test]
fn an_error_that_nobody_was_told_of_is_asked_for_before_the_mark_is_believed() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let bench = Bench::new(profile, &suite::plain).unwrap();
        for workload in workloads(&bench) {
            let drafts = workload::drafts(bench.base(), &workload).unwrap();
            let start = bench.fork();
            let mut session = Session::open(Arc::new(start.clone()), start.instance()).unwrap();
            for (n, draft) in drafts.iter().enumerate() {
                let lsn = session.commit(draft, n as u64, 8192).unwrap();
                session.apply(lsn).unwrap();
            }
            let end = start.here();
            for choice in end.choices(&plan()) {
                let sim = end.process_death();
                sim.lose_pages(&choice);
                let told = AtomicBool::new(false);
                let io = Intercept::new(&sim, move |call| {
                    let tells = call.op == On::SyncFs && !told.swap(true, Relaxed);
                    if tells { Action::Fail(Errno::IO) } else { Action::Pass }
                });
                drop(Session::open(Arc::new(io), sim.instance()));
                // An opening may fail by it, and then the next one has to know.
                drop(Session::open(Arc::new(sim.clone()), sim.instance()).unwrap());
                let found = tree::read(&sim, &suite::hidden).unwrap();
                let wanted = drafts.last().unwrap().after().tree();
                let differs = tree::diff(&found, &wanted);
                assert!(differs.is_empty(), "{workload:?}\n{}\n{differs}", end.describe(&choice));
            }
        }
    }
}
