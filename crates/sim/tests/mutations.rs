//! Is the crash suite any good? Every barrier of the store, taken away by a kernel that lies about
//! it, must make the suite fail; so must every call whose effect users rely on. A suite that passes
//! with a barrier missing would prove nothing about the barrier.

#![allow(clippy::unwrap_used)]

mod common;

use common::{sample, seed};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use systx_sim::intercept::{Action, Call, Op, Rule};
use systx_sim::suite::{Bench, How, Wrap};
use systx_sim::workload::{self, Workload};
use systx_sim::{Intercept, Plan, Profile};
use systx_store::io::Io;

/// Makes the rule anew for each opening of the store.
type Make = fn() -> Box<Rule>;

fn lie(wrong: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static, how: Action) -> Box<Rule> {
    Box::new(move |call| if wrong(call) { how } else { Action::Pass })
}

/// Lies about the `n`-th call, counted from 0, for which `wrong` holds, of every opening.
fn lie_once(
    n: u64,
    wrong: impl Fn(&Call<'_>) -> bool + Send + Sync + 'static,
    how: Action,
) -> Box<Rule> {
    let seen = AtomicU64::new(0);
    lie(move |call| wrong(call) && seen.fetch_add(1, Ordering::Relaxed) == n, how)
}

fn on(call: &Call<'_>, op: Op, path: &str) -> bool {
    call.op == op && call.path().starts_with(path)
}

const JOURNAL: &str = "/.systx/j";
const SUPER: &str = "/.systx/super";

fn workloads(bench: &Bench<'_>) -> Vec<Workload> {
    let singles = workload::bounded(bench.base(), 1);
    let pairs = sample(&workload::bounded(bench.base(), 2), 200, seed());
    let long = (0..3).map(|s| workload::random(bench.base(), 12, 3, s));
    [singles, pairs, long.collect()].concat()
}

/// The first failure that the suite finds, if any.
fn failure(profile: Profile, how: How, make: Make) -> Option<String> {
    let wrap: Box<Wrap<'_>> = Box::new(move |sim| {
        let rule = make();
        Arc::new(Intercept::new(sim, move |call| rule(call))) as Arc<dyn Io>
    });
    let bench = match Bench::new(profile, &*wrap) {
        Ok(bench) => bench,
        Err(e) => return Some(e),
    };
    workloads(&bench).iter().find_map(|w| bench.case(w, &how).err())
}

#[track_caller]
fn noticed(what: &str, profile: Profile, how: How, make: Make) {
    match failure(profile, how, make) {
        None => panic!("{:?}: the suite passes although {what}", profile.class),
        Some(e) => {
            let brief: Vec<&str> = e.lines().take(3).collect();
            println!("{:?}, {what}: noticed: {}", profile.class, brief.join(" | "));
        }
    }
}

fn cuts() -> How {
    How { checkpoint: true, ..How::power_cuts(60, seed()) }
}

fn nested() -> How {
    How { again: Some(Plan { exhaustive: 16, budget: 10, seed: seed() }), ..cuts() }
}

#[test]
fn without_a_lie_the_suite_passes() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        assert_eq!(
            failure(profile, How { plan: Plan::new(5, 1), ..cuts() }, || lie(
                |_| false,
                Action::Pass
            )),
            None
        );
    }
}

#[test]
fn a_journal_write_that_is_not_durable_is_noticed() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        noticed("journal writes are not durable", profile, cuts(), || {
            lie(|c| on(c, Op::WriteDurable, JOURNAL), Action::Weaken)
        });
    }
}

#[test]
fn a_super_block_that_is_not_durable_is_noticed() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        noticed("the super block is not durable", profile, cuts(), || {
            lie(|c| on(c, Op::WriteDurable, SUPER), Action::Weaken)
        });
        noticed("the super block of an opening is not written", profile, cuts(), || {
            lie_once(0, |c| on(c, Op::WriteDurable, SUPER), Action::Skip)
        });
    }
}

#[test]
fn a_sync_of_the_file_system_that_lies_is_noticed() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        noticed("syncfs lies", profile, nested(), || lie(|c| c.op == Op::SyncFs, Action::Skip));
    }
}

#[test]
fn each_single_sync_that_lies_is_noticed() {
    // Of the first commit, of installing, of checkpoints, of recovery: none is there for nothing.
    let makes: [Make; 5] = [
        || lie_once(0, |c| c.op == Op::SyncFs, Action::Skip),
        || lie_once(1, |c| c.op == Op::SyncFs, Action::Skip),
        || lie_once(2, |c| c.op == Op::SyncFs, Action::Skip),
        || lie_once(3, |c| c.op == Op::SyncFs, Action::Skip),
        || lie_once(4, |c| c.op == Op::SyncFs, Action::Skip),
    ];
    for (n, make) in makes.into_iter().enumerate() {
        noticed(&format!("syncfs number {n} lies"), Profile::WEAK, nested(), make);
        if n < 3 {
            noticed(&format!("syncfs number {n} lies"), Profile::STRONG, nested(), make);
        }
    }
}

#[test]
fn a_sync_of_a_file_that_lies_is_noticed() {
    noticed("fdatasync and fsync lie", Profile::STRONG, cuts(), || {
        lie(|c| matches!(c.op, Op::SyncData | Op::SyncAll), Action::Skip)
    });
    noticed("fsync of slots lies", Profile::STRONG, cuts(), || {
        lie(|c| on(c, Op::SyncAll, "/.systx/s/"), Action::Skip)
    });
    noticed("fsync of the directory of slots lies", Profile::STRONG, cuts(), || {
        lie(|c| c.op == Op::SyncAll && c.path() == "/.systx/s", Action::Skip)
    });
    noticed("fsync of before-images lies", Profile::STRONG, How { undo: true, ..cuts() }, || {
        lie(|c| on(c, Op::SyncAll, "/.systx/g"), Action::Skip)
    });
    let much = How { inline: 100_000, checkpoint: false, ..cuts() };
    noticed("fsync of new segments lies", Profile::STRONG, much, || {
        lie(|c| on(c, Op::SyncAll, JOURNAL), Action::Skip)
    });
}

#[test]
fn a_mark_that_is_believed_after_the_disk_was_lost_is_noticed() {
    let blind = How { never_unmounted: true, ..How::power_cuts(60, seed()) };
    for profile in [Profile::STRONG, Profile::WEAK] {
        noticed("every mount is taken for the same", profile, blind, || {
            lie(|_| false, Action::Pass)
        });
    }
}

#[test]
fn a_journal_that_was_never_filled_with_zeros_is_noticed() {
    noticed("the journal has no blocks of its own", Profile::WEAK, cuts(), || {
        lie(|c| on(c, Op::WriteAt, JOURNAL), Action::Skip)
    });
}

#[test]
fn moving_instead_of_linking_is_noticed() {
    noticed("links move", Profile::WEAK, cuts(), || lie(|c| c.op == Op::Link, Action::Weaken));
}

#[test]
fn a_call_without_effect_is_noticed() {
    // Not about crashes: that the oracle looks at everything.
    let calls = [
        Op::WriteAt,
        Op::SetLen,
        Op::SetMode,
        Op::SetOwner,
        Op::SetTimes,
        Op::SetXattr,
        Op::RemoveXattr,
        Op::Link,
        Op::Unlink,
        Op::Rename,
        Op::Mkdir,
        Op::Symlink,
        Op::Mknod,
    ];
    for op in calls {
        let in_tree = move |call: &Call<'_>| call.op == op;
        let wrap: Box<Wrap<'_>> = Box::new(move |sim| {
            let rule =
                move |call: &Call<'_>| if in_tree(call) { Action::Skip } else { Action::Pass };
            Arc::new(Intercept::new(sim, rule)) as Arc<dyn Io>
        });
        let how = How { plan: Plan { exhaustive: 0, budget: 1, seed: 1 }, ..cuts() };
        let failed = match Bench::new(Profile::MEMORY, &*wrap) {
            Ok(bench) => workloads(&bench).iter().find_map(|w| bench.case(w, &how).err()),
            Err(e) => Some(e),
        };
        assert!(failed.is_some(), "the suite passes although {op:?} does nothing");
    }
}
