//! The `dir` store on disks that fail, fill up, or change what is in the journal.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, sample, seed};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use systx_sim::intercept::{Action, Intercept, Op as On};
use systx_sim::model::{Model, Op};
use systx_sim::suite::{self, Bench, How, Session};
use systx_sim::workload::{self, Workload};
use systx_sim::{Plan, Profile, SimFs, tree};
use systx_store::Outside;
use systx_store::io::{Io, Tree as _};

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

/// A store on a file system of which a file may have extended attributes of 1000 bytes.
fn little_room_for_xattrs() -> (SimFs, Model) {
    let sim = SimFs::new(Profile::STRONG);
    workload::base(&sim).unwrap();
    sim.set_xattr_room(1000);
    let base = Model::read(&sim, &suite::hidden).unwrap();
    (sim, base)
}

#[test]
fn what_a_file_has_no_room_for_is_refused_before_the_commit() {
    let (sim, base) = little_room_for_xattrs();
    let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    // To a new file, one that is there, a directory; of several.
    let new = vec![Op::Create("A/n", 10), Op::SetXattr("A/n", "user.k", 2000)];
    let several = vec![Op::SetXattr("A/a", "user.a", 600), Op::SetXattr("A/a", "user.b", 600)];
    let dir = vec![Op::Chmod("A", 0o700), Op::SetXattr("A", "user.k", 1001)];
    for work in [new, several, vec![Op::SetXattr("A/a", "user.k", 2000)], dir] {
        let draft = &workload::drafts(&base, std::slice::from_ref(&work)).unwrap()[0];
        let said = session.commit(draft, 0, 8192).unwrap_err();
        assert!(said.contains("reserve") && said.contains("user.") && said.contains("A"), "{said}");
        assert_eq!(tree::read(&sim, &suite::hidden).unwrap(), base.tree(), "{work:?}");
        let state = sim.open_dir(&sim.root(), suite::STATE.as_bytes()).unwrap();
        let temp = sim.open_dir(&state, b"t").unwrap();
        sim.list(&temp, &mut |item| panic!("left over: {item:?}")).unwrap();
    }
    // What fits beside what is there, or in its place.
    let fits = [
        vec![Op::Create("A/n", 10), Op::SetXattr("A/n", "user.k", 1000)],
        vec![Op::RemoveXattr("A/n", "user.k"), Op::SetXattr("A/n", "user.a", 900)],
        vec![Op::SetXattr("A/n", "user.a", 100), Op::SetXattr("A/n", "user.0", 900)],
    ];
    for (n, draft) in workload::drafts(&base, &fits).unwrap().iter().enumerate() {
        let lsn = session.commit(draft, n as u64, 8192).unwrap();
        session.apply(lsn).unwrap();
        assert_eq!(tree::read(&sim, &suite::hidden).unwrap(), draft.after().tree());
    }
}

/// One that was committed by who did not ask.
#[test]
fn a_store_opens_whose_journal_has_what_a_file_has_no_room_for() {
    let (sim, base) = little_room_for_xattrs();
    sim.set_xattr_room(usize::MAX);
    let work = vec![
        Op::SetXattr("A/a", "user.big", 2000),
        Op::SetXattr("A/a", "user.small", 20),
        Op::Write("A/a", 0, 100),
    ];
    let drafts = workload::drafts(&base, &[work]).unwrap();
    let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    session.commit(&drafts[0], 0, 8192).unwrap();
    let sim = sim.here().process_death();
    sim.set_xattr_room(1000);
    let session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    let [met] = session.outside() else { panic!("{:?}", session.outside()) };
    assert_eq!(met.path, b"A/a");
    assert!(
        matches!(&met.what, Outside::NoXattr { key, errno } if key == b"user.big" && *errno == Errno::NOSPC.raw_os_error())
    );
    // The rest is there, and the value where it is said to be.
    let there = |key: &[u8]| {
        let dir = sim.open_dir(&sim.root(), b"A").unwrap();
        sim.get_xattr(&dir, b"a", key)
    };
    assert_eq!(there(b"user.small").unwrap().len(), 20);
    there(b"user.big").unwrap_err();
    let wanted = drafts[0].after().tree();
    let found = tree::read(&sim, &suite::hidden).unwrap();
    let differs = tree::diff(&found, &wanted);
    assert_eq!(differs.lines().count(), 3, "nothing but that file: {differs}");
    let kept = met.kept_as.clone().unwrap();
    let mut dir = sim.root();
    let mut parts: Vec<&[u8]> = kept.split(|b| *b == b'/').collect();
    let name = parts.pop().unwrap();
    parts.iter().for_each(|part| dir = sim.open_dir(&dir, part).unwrap());
    let file = sim.open_file(&dir, name, systx_store::io::Open::Read).unwrap();
    let mut value = vec![0; 4000];
    assert_eq!(sim.read_at(&file, &mut value, 0).unwrap(), 2000);
    assert!(value[..2000].iter().all(|b| *b == value[0]) && value[0] != 0);
    // And the next opening has nothing to do.
    drop(session);
    let session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    assert_eq!((session.finished(), session.outside()), (0, &[][..]));
}

/// On a full disk there may be room later: nothing is given up.
#[test]
fn an_attribute_waits_for_a_disk_that_is_full() {
    let (sim, base) = little_room_for_xattrs();
    sim.set_xattr_room(usize::MAX);
    let drafts = workload::drafts(&base, &[vec![Op::SetXattr("A/a", "user.big", 2000)]]).unwrap();
    let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    session.commit(&drafts[0], 0, 8192).unwrap();
    let sim = sim.here().process_death();
    sim.set_xattr_room(1000);
    sim.set_free_blocks(20);
    let said = Session::open(Arc::new(sim.clone()), sim.instance()).map(|_| ()).unwrap_err();
    assert!(said.contains("goes on at the next start, once there is room"), "{said}");
    sim.set_xattr_room(usize::MAX);
    let session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    assert_eq!((session.finished(), session.outside()), (1, &[][..]));
    assert_eq!(tree::read(&sim, &suite::hidden).unwrap(), drafts[0].after().tree());
}

#[test]
fn too_many_new_files_are_refused_before_the_commit_and_never_after() {
    let bench = Bench::new(Profile::STRONG, &suite::plain).unwrap();
    for workload in workloads(&bench) {
        let (mut refused, mut done) = (0, 0);
        for free in 0..40 {
            let few = |sim: &SimFs| {
                sim.set_free_inodes(free);
                Arc::new(sim.clone()) as Arc<dyn Io>
            };
            match bench.with_faults(&workload, &how(), &few) {
                Err(e) => panic!("{free} inodes free: {e}"),
                Ok(errors) => {
                    refused += errors.len();
                    done += u32::from(errors.is_empty());
                    let late =
                        errors.iter().find(|e| e.starts_with("commit") || e.starts_with("apply"));
                    assert!(late.is_none(), "{free} inodes free: {late:?}");
                }
            }
        }
        assert!(refused > 0 && done > 0, "{refused} {done} {workload:?}");
    }
}

#[test]
fn who_has_to_wait_for_an_installation_that_fails_is_told_whose() {
    let sim = SimFs::new(Profile::STRONG);
    workload::base(&sim).unwrap();
    let base = Model::read(&sim, &suite::hidden).unwrap();
    let work = [vec![Op::Create("A/new", 100)]];
    let drafts = workload::drafts(&base, &work).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&broken);
    let io = Intercept::new(&sim, move |call| {
        let hit = failing.load(Relaxed) && call.op == On::SetTimes;
        if hit { Action::Fail(Errno::IO) } else { Action::Pass }
    });
    let mut session = Session::open(Arc::new(io), sim.instance()).unwrap();
    session.commit(&drafts[0], 0x41, 8192).unwrap();
    // Somebody else needs what it made, say the same name.
    broken.store(true, Relaxed);
    let said = session.commit(&drafts[0], 0x50, 8192).unwrap_err();
    assert!(said.contains("transaction 00000042 has to be installed first"), "{said}");
}

/// Two transactions acknowledged, none installed; as the process died then.
fn two_in_the_journal() -> (SimFs, Vec<tree::Tree>) {
    let sim = SimFs::new(Profile::STRONG);
    workload::base(&sim).unwrap();
    let base = systx_sim::model::Model::read(&sim, &suite::hidden).unwrap();
    let work = [vec![Op::Create("A/b", 100)], vec![Op::Unlink("B/l")]];
    let drafts = workload::drafts(&base, &work).unwrap();
    let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
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
        if Session::open(Arc::new(sim.clone()), sim.instance()).is_err() {
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
            let opened = Session::open(Arc::new(sim.clone()), sim.instance());
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
