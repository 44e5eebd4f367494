//! Groups of commits: several transactions whose records share one durable write. Power cuts,
//! process deaths, crashes inside recovery, failing disks, and outsiders: each member is there as a
//! whole or not at all, what was acknowledged is there, and what one member meets does the others
//! no harm.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, seed};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use systx_base::Time;
use systx_sim::intercept::{Action, Call, Op as On};
use systx_sim::model::{Draft, Model, Op};
use systx_sim::suite::{self, Bench, How, Session, Stats};
use systx_sim::tree::{self, Tree};
use systx_sim::workload::{self, Workload};
use systx_sim::{Intercept, Plan, Profile, SimFs};
use systx_store::io::{Io, Tree as _};
use systx_store::{CommitError, Instance};

/// No two of them touch the same thing, so the order in which they are made means nothing: content
/// in place, by a new inode and through a slot, new names, a name that goes, a new directory with
/// something in it, attributes.
fn members() -> Vec<Vec<Op>> {
    vec![
        vec![Op::Write("A/a", 4000, 6000), Op::SetXattr("A/a", "user.k", 9)],
        vec![Op::Create("A/n", 300), Op::Create("B/n", 20_000)],
        vec![Op::Rewrite("B/b", 150), Op::Unlink("B/l")],
        vec![Op::Mkdir("C"), Op::Create("C/x", 50), Op::Symlink("A/s", "../C/x")],
    ]
}

/// What may be in one group, one after the other, several times.
fn workloads(bench: &Bench<'_>) -> Vec<Workload> {
    let again = vec![
        vec![Op::Rename("A/n", "A/m")],
        vec![Op::Unlink("B/n")],
        vec![Op::Truncate("A/a", 100)],
        vec![Op::Rewrite("C/x", 20_000)],
    ];
    let random =
        (0..3 * budget()).map(|n| workload::random(bench.base(), 10, 2, seed() * 1000 + n));
    [members(), [members(), again].concat()].into_iter().chain(random).collect()
}

fn run(profile: Profile, how: How) -> Stats {
    let bench = Bench::new(profile, &suite::plain).unwrap();
    let mut stats = Stats::default();
    for workload in workloads(&bench) {
        match bench.case(&workload, &how) {
            Ok(one) => stats.add(one),
            Err(e) => panic!("{:?}, seed {}\n{e}", profile.class, seed()),
        }
    }
    println!("{:?}: {stats:?}", profile.class);
    assert!(stats.groups >= 3, "{stats:?}");
    stats
}

#[test]
fn groups_survive_power_cuts() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        for (checkpoint, inline, group) in [(false, 8192, 4), (true, 2000, 4), (false, 100_000, 3)]
        {
            let how = How { checkpoint, inline, group, ..How::power_cuts(40, seed()) };
            run(profile, how);
        }
    }
}

#[test]
fn groups_survive_crashes_inside_recovery() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let again = Some(Plan { exhaustive: 8, budget: 20, seed: seed() });
        let how = How { group: 4, again, ..How::power_cuts(30, seed()) };
        let stats = run(profile, how);
        assert!(stats.nested > 200, "{stats:?}");
    }
}

#[test]
fn groups_survive_the_death_of_the_process_at_every_call() {
    for profile in [Profile::MEMORY, Profile::STRONG, Profile::WEAK] {
        for checkpoint in [false, true] {
            run(profile, How { checkpoint, group: 4, ..How::deaths() });
        }
    }
}

#[test]
fn each_member_of_a_group_can_be_taken_back() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        run(profile, How { group: 4, undo: true, ..How::power_cuts(10, seed()) });
    }
}

/// One group over the tree of the suite.
struct Case {
    start: SimFs,
    base: Model,
    drafts: Vec<Draft>,
    /// The tree after each subset of the members, by bits.
    trees: Vec<Tree>,
}

impl Case {
    fn new(profile: Profile) -> Case {
        let start = SimFs::new(profile);
        workload::base(&start).unwrap();
        drop(Session::open(suite::plain(&start), start.instance()).unwrap());
        start.sync_fs().unwrap();
        let base = Model::read(&start, &suite::hidden).unwrap();
        let members = members();
        let draft = |model: &Model, n: usize| {
            let mut draft = Draft::new(model, n as u32 * 50);
            members[n].iter().for_each(|op| draft.run(op).unwrap());
            draft
        };
        let tree = |subset: usize| {
            let chosen = (0..members.len()).filter(|n| subset >> n & 1 == 1);
            chosen.fold(base.clone(), |model, n| draft(&model, n).after().clone()).tree()
        };
        let trees = (0..1 << members.len()).map(tree).collect();
        let drafts = (0..members.len()).map(|n| draft(&base, n)).collect();
        Case { start, base, drafts, trees }
    }

    fn fork(&self) -> SimFs {
        self.start.here().process_death()
    }

    /// Commits the group and installs what was committed, by a process for which `io` stands.
    fn live(&self, io: Arc<dyn Io>, instance: Instance) -> Met {
        let mut met = Met::default();
        let Ok(mut session) = Session::open(io, instance) else { return met };
        let sets = self.drafts.iter().map(|draft| session.write_set(draft, 4096));
        let Ok(sets) = sets.collect::<Result<Vec<_>, _>>() else { return met };
        met.maybe = (0..sets.len()).collect();
        let Ok(done) = session.commit_group(sets, 0) else {
            return Met::default();
        };
        for (n, one) in done.iter().enumerate() {
            match one {
                Ok(lsn) => {
                    met.acknowledged.insert(n);
                    let _ = session.apply(*lsn);
                }
                Err(CommitError::InDoubt(_)) => {}
                // Nothing was committed, it says.
                Err(_) => drop(met.maybe.remove(&n)),
            }
        }
        let _ = session.checkpoint();
        met
    }

    /// Opens the store again.
    fn recovered(&self, sim: &SimFs, met: &Met) -> Result<BTreeSet<usize>, String> {
        drop(Session::open(suite::plain(sim), sim.instance())?);
        let found = tree::read(sim, &suite::hidden).unwrap();
        let Some(subset) = self.trees.iter().position(|tree| *tree == found) else {
            let whole = self.trees.last().unwrap();
            return Err(format!("half a member: {}", tree::diff(&found, whole)));
        };
        let there: BTreeSet<usize> =
            (0..self.drafts.len()).filter(|n| subset >> n & 1 == 1).collect();
        if there.is_superset(&met.acknowledged) && there.is_subset(&met.maybe) {
            Ok(there)
        } else {
            Err(format!("{there:?} are there, of {met:?}"))
        }
    }

    /// What the process left, and what a power cut may leave of that.
    fn check(&self, sim: &SimFs, met: &Met) -> Result<(), String> {
        let after = sim.here();
        self.recovered(&after.process_death(), met)?;
        if after.disk.profile == Profile::MEMORY {
            return Ok(());
        }
        for cut in after.crash_states(&Plan { exhaustive: 8, budget: 8, seed: seed() }) {
            self.recovered(&cut, met).map_err(|e| format!("and the power fails: {e}"))?;
        }
        Ok(())
    }
}

/// What a process was told.
#[derive(Default, Debug)]
struct Met {
    acknowledged: BTreeSet<usize>,
    /// Those of which nobody said that nothing was committed.
    maybe: BTreeSet<usize>,
}

#[test]
fn any_call_of_a_group_may_fail_once() {
    for profile in [Profile::STRONG, Profile::WEAK] {
        let case = Case::new(profile);
        for fault in [Action::Fail(Errno::IO), Action::Short(Errno::IO), Action::Fail(Errno::NOSPC)]
        {
            let (mut some, mut none) = (0, 0);
            for n in 0..300 {
                let sim = case.fork();
                let met =
                    case.live(Arc::new(Intercept::failing_once(&sim, n, fault)), sim.instance());
                some += u32::from((1..case.drafts.len()).contains(&met.acknowledged.len()));
                none += u32::from(met.acknowledged.is_empty());
                if let Err(e) = case.check(&sim, &met) {
                    panic!("{:?}: {fault:?} at call {n}: {e}", profile.class);
                }
            }
            // A failure of one member's calls leaves the others; one of the journal does not.
            assert!(some > 0 && none > 0, "{fault:?}: {some} left some, {none} none");
        }
    }
}

#[test]
fn a_process_may_die_inside_any_call_of_a_group() {
    for profile in [Profile::MEMORY, Profile::STRONG, Profile::WEAK] {
        let case = Case::new(profile);
        for n in 0..300 {
            let sim = case.fork();
            let met = case.live(Arc::new(Intercept::dying(&sim, n)), sim.instance());
            if let Err(e) = case.check(&sim, &met) {
                panic!("{:?}: dying at call {n}: {e}", profile.class);
            }
        }
    }
}

#[test]
fn what_an_outsider_changed_fails_alone() {
    let case = Case::new(Profile::STRONG);
    let sim = case.fork();
    let mut session = Session::open(suite::plain(&sim), sim.instance()).unwrap();
    let sets = session.disjoint(&case.drafts, 4096).unwrap();
    // Of the third one's file.
    let dir = sim.open_dir(&sim.root(), b"B").unwrap();
    sim.set_times(&dir, b"b", None, Some(Time { secs: 9, nanos: 9 })).unwrap();
    let done = session.commit_group(sets, 0).unwrap();
    let lost = done.iter().position(|one| one.is_err());
    assert!(matches!(done[2], Err(CommitError::Changed { .. })) && lost == Some(2), "{done:?}");
    for lsn in done.into_iter().flatten() {
        session.apply(lsn).unwrap();
    }
    drop(session);
    let without: Vec<_> = [0, 1, 3].into_iter().map(|n| members()[n].clone()).collect();
    let mut wanted = case.base.clone();
    for (op, n) in without.iter().zip([0, 1, 3]) {
        let mut draft = Draft::new(&wanted, n * 50);
        op.iter().for_each(|op| draft.run(op).unwrap());
        wanted = draft.after().clone();
    }
    let mut draft = Draft::new(&wanted, 0);
    // What the outsider did is still there.
    draft.run(&Op::Utimens("B/b", 9)).unwrap();
    let found = tree::read(&sim, &suite::hidden).unwrap();
    let differs = tree::diff(&found, &draft.after().tree());
    assert!(differs.lines().all(|line| line.contains("B/b") || line.contains("B/l")), "{differs}");
}

#[test]
fn a_group_waits_for_the_disk_as_often_as_one_transaction() {
    let count = |members: usize| {
        let case = Case::new(Profile::STRONG);
        let sim = case.fork();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&calls);
        let note = move |call: &Call<'_>| {
            let waits =
                matches!(call.op, On::WriteDurable | On::SyncAll | On::SyncData | On::SyncFs);
            if waits {
                seen.lock().unwrap().push(format!("{:?} {}", call.op, call.path()));
            }
            Action::Pass
        };
        let mut session =
            Session::open(Arc::new(Intercept::new(&sim, note)), sim.instance()).unwrap();
        // The first one makes the journal.
        let mut first = Draft::new(&case.base, 0);
        first.run(&Op::Mkdir("D")).unwrap();
        let lsn = session.commit(&first, 90, 100_000).unwrap();
        session.apply(lsn).unwrap();
        let small = |n: usize| {
            let mut draft = Draft::new(&case.base, n as u32);
            draft.run(&Op::Create(["A/n", "A/m", "B/n", "B/m"][n], 300)).unwrap();
            draft
        };
        let drafts: Vec<Draft> = (0..members).map(small).collect();
        let sets = session.disjoint(&drafts, 8192).unwrap();
        calls.lock().unwrap().clear();
        let done = session.commit_group(sets, 0).unwrap();
        assert!(done.len() == members && done.iter().all(Result::is_ok), "{done:?}");
        let calls = calls.lock().unwrap();
        calls.clone()
    };
    let (one, four) = (count(1), count(4));
    assert_eq!(one.len(), 1, "{one:?}");
    assert_eq!(four, one);
}

#[test]
fn who_touches_what_another_one_touches_is_not_in_its_group() {
    let case = Case::new(Profile::STRONG);
    let draft = |ops: &[Op]| {
        let mut draft = Draft::new(&case.base, 0);
        ops.iter().for_each(|op| draft.run(op).unwrap());
        draft
    };
    let pairs: [[&[Op]; 2]; 5] = [
        [&[Op::Write("A/a", 0, 10)], &[Op::Chmod("A/a", 0o600)]],
        [&[Op::Create("A/n", 10)], &[Op::Mkdir("A/n")]],
        [&[Op::Rename("A", "C")], &[Op::Create("A/n", 10)]],
        [&[Op::Unlink("B/b")], &[Op::Rewrite("B/b", 10)]],
        [&[Op::Link("B/b", "A/n")], &[Op::Unlink("B/l")]],
    ];
    for pair in pairs {
        for pair in [pair, [pair[1], pair[0]]] {
            let sim = case.fork();
            let mut session = Session::open(suite::plain(&sim), sim.instance()).unwrap();
            let drafts = pair.map(draft);
            assert_eq!(session.disjoint(&drafts, 4096).unwrap().len(), 1, "{pair:?}");
            let sets = drafts.iter().map(|d| session.write_set(d, 4096).unwrap()).collect();
            let done = session.commit_group(sets, 0).unwrap();
            assert!(done[0].is_ok() && matches!(done[1], Err(CommitError::Overlaps)), "{done:?}");
        }
    }
}
