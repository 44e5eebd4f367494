//! Outsiders who act at the worst moment: at every call that a commit and its installation make, in
//! turn, somebody puts a file of his own in the way.  What he wrote must still be somewhere, and if
//! it is not in the tree any more, it must be reported.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, sample, seed};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use systx_sim::intercept::{Action, Intercept};
use systx_sim::state::{Body, ROOT, State};
use systx_sim::suite::{self, Bench, STATE, Session};
use systx_sim::workload::{self, Txn};
use systx_sim::{Profile, SimFs};
use systx_store::TxnKind;
use systx_store::io::{Io, Rename, Tree};

const MARKER: &[u8] = b"written by an outsider";

/// Puts a new file at a path, over whatever file is there; whether that worked.
fn put(sim: &SimFs, dir: &str, name: &str) -> bool {
    let root = sim.root();
    let Ok(at) = sim.open_dir(&root, dir.as_bytes()) else { return false };
    let Ok(file) = sim.create_file(&root, b".outsider", 0o640) else { return false };
    sim.write_at(&file, MARKER, 0).unwrap();
    let moved = sim.rename(&root, b".outsider", &at, name.as_bytes(), Rename::Replace);
    if moved.is_err() {
        sim.unlink(&root, b".outsider").unwrap();
    }
    moved.is_ok()
}

/// Whether the marker is in the tree, and whether it is in the store's directory.
fn where_is_it(state: &State) -> (bool, bool) {
    let mut found = (false, false);
    let mut queue = vec![(ROOT, false)];
    let mut seen = BTreeSet::new();
    while let Some((ino, inside)) = queue.pop() {
        if !seen.insert((ino, inside)) {
            continue;
        }
        match &state.get(ino).unwrap().body {
            Body::Dir { entries, .. } => {
                for (name, child) in entries {
                    let store = ino == ROOT && name == STATE.as_bytes();
                    queue.push((*child, inside || store));
                }
            }
            Body::File { pages, .. }
                if pages.get(&0).is_some_and(|p| p.bytes().starts_with(MARKER)) =>
            {
                *if inside { &mut found.1 } else { &mut found.0 } = true;
            }
            _ => {}
        }
    }
    found
}

/// Commits and installs with an outsider at call `n`; whether he came to act.
fn meet(bench: &Bench<'_>, txn: &Txn, dir: &'static str, name: &'static str, n: u64) -> bool {
    let sim = bench.fork();
    let (acted, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(u64::MAX)));
    let (done, begin) = (acted.clone(), begun.clone());
    let io = Arc::new(Intercept::new(&sim, move |call| {
        let now = call.n.checked_sub(begin.load(Ordering::Relaxed));
        if now == Some(n) && put(call.sim(), dir, name) {
            done.store(true, Ordering::Relaxed);
        }
        Action::Pass
    }));
    let mut session = Session::open(io.clone(), sim.instance()).unwrap();
    let draft = workload::drafts(bench.base(), std::slice::from_ref(txn)).unwrap().remove(0);
    // What he did before the transaction looked is no conflict.
    let set = session.write_set(&draft, 8192).unwrap();
    begun.store(io.calls(), Ordering::Relaxed);
    let outcome = session.commit_set(set, 0, TxnKind::Run).and_then(|lsn| session.apply(lsn));
    drop(session);
    if !acted.load(Ordering::Relaxed) {
        return false;
    }
    let (in_tree, kept) = where_is_it(&sim.state());
    let case = || format!("{txn:?}, {dir}/{name} at call {n}: {outcome:?}");
    assert!(in_tree || kept, "an outsider's file is lost: {}", case());
    assert!(in_tree || outcome.is_err(), "kept, but not reported: {}", case());
    true
}

#[test]
fn what_outsiders_put_in_the_way_is_kept_and_reported() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let bench = Bench::new(profile, &suite::plain).unwrap();
        let singles = workload::bounded(bench.base(), 1);
        let pairs: Vec<_> =
            workload::bounded(bench.base(), 2).into_iter().filter(|w| w.len() == 1).collect();
        let pairs = sample(&pairs, 40 * budget() as usize, seed());
        let mut met = 0;
        for txn in singles.iter().chain(&pairs).map(|w| &w[0]) {
            for (dir, name) in [("A", "a"), ("A", "b"), ("B", "a"), ("B", "b")] {
                for n in 0..400 {
                    if !meet(&bench, txn, dir, name, n) && n > 150 {
                        break;
                    }
                    met += 1;
                }
            }
        }
        assert!(met > 5000, "{met}");
    }
}
