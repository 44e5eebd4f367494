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
use systx_sim::model::Op;
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

/// What an outsider meets.
#[derive(Clone, Copy, Debug)]
enum What {
    /// The last transaction of the workload; those before it are installed.
    Commit,
    /// Its undo.
    Undo,
}

/// Commits and installs with an outsider at call `n`; whether he came to act.
fn meet(
    bench: &Bench<'_>,
    workload: &[Txn],
    what: What,
    (dir, name): (&'static str, &'static str),
    n: u64,
) -> bool {
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
    let mut drafts = workload::drafts(bench.base(), workload).unwrap();
    let last = drafts.len() as u64 - 1;
    let met = drafts.split_off(if let What::Undo = what { drafts.len() } else { drafts.len() - 1 });
    for (n, draft) in drafts.iter().enumerate() {
        let set = session.write_set(draft, 8192).unwrap();
        let lsn = session.commit_set(set, n as u64, TxnKind::Run).unwrap();
        session.apply(lsn).unwrap();
    }
    let decided = match met.first() {
        // What he did before the transaction looked is no conflict.
        Some(draft) => {
            let set = session.write_set(draft, 8192).unwrap();
            begun.store(io.calls(), Ordering::Relaxed);
            session.commit_set(set, last, TxnKind::Run)
        }
        None => {
            begun.store(io.calls(), Ordering::Relaxed);
            session.undo(last, last + 1)
        }
    };
    let outcome = decided.and_then(|lsn| session.apply(lsn));
    drop(session);
    if !acted.load(Ordering::Relaxed) {
        return false;
    }
    let (in_tree, kept) = where_is_it(&sim.state());
    let case = || format!("{what:?} {workload:?}, {dir}/{name} at call {n}: {outcome:?}");
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
        for workload in singles.iter().chain(&pairs) {
            for place in [("A", "a"), ("A", "b"), ("B", "a"), ("B", "b")] {
                met += meet_everywhere(&bench, workload, What::Commit, place);
            }
        }
        assert!(met > 5000, "{met}");
    }
}

/// Has an outsider act at each call in turn; how often he did.
fn meet_everywhere(
    bench: &Bench<'_>,
    workload: &[Txn],
    what: What,
    place: (&'static str, &'static str),
) -> u64 {
    let acted = |n: &u64| meet(bench, workload, what, place, *n) || *n <= 150;
    (0..400).take_while(acted).count() as u64
}

#[test]
fn what_outsiders_make_in_directories_that_go_is_kept_and_reported() {
    use Op::{Create, Mkdir, Rename, Rmdir, Unlink};
    let made = vec![Mkdir("A/d"), Create("A/d/f", 100), Mkdir("A/d/e")];
    let gone = [Unlink("A/a"), Rmdir("A/d/e"), Rmdir("A/d"), Rmdir("A")];
    let with = |first: Op| [&[first][..], &gone].concat();
    let removals = [
        with(Unlink("A/d/f")),
        with(Rename("A/d/f", "B/f")),
        // Another directory takes its place.
        [&with(Unlink("A/d/f"))[..], &[Mkdir("A"), Create("A/a", 100)]].concat(),
        // What is in it is moved out, and comes to stand where it was.
        vec![Unlink("A/a"), Rename("A/d", "C"), Rmdir("A"), Rename("C", "A")],
    ];
    for profile in [Profile::STRONG, Profile::WEAK] {
        let bench = Bench::new(profile, &suite::plain).unwrap();
        let mut met = 0;
        for place in [("A/d", "f"), ("A/d", "g"), ("A/d/e", "f"), ("A", "a"), ("A", "g")] {
            for removal in &removals {
                let workload = [made.clone(), removal.clone()];
                met += meet_everywhere(&bench, &workload, What::Commit, place);
            }
            met += meet_everywhere(&bench, std::slice::from_ref(&made), What::Undo, place);
        }
        assert!(met > 2000, "{met}");
    }
}
