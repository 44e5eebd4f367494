//! Joint commits over two simulated file systems: whatever is stopped where, and in whatever order
//! the two are recovered, the transaction is in both or in neither.
//!
//! A run is recorded as a list of instants, each with both file systems. At every call the process
//! may die, at every sync the power may fail, with any mixture of what reached the two disks.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use systx_base::{Time, TxnId};
use systx_sim::crash::Profile;
use systx_sim::intercept::{Action, Op as Call};
use systx_sim::model::{Draft, Model, Op};
use systx_sim::suite::{STATE, config, hidden, leftovers};
use systx_sim::tree::{self, Tree};
use systx_sim::{Intercept, Plan, Point, Rng, SimFs, workload};
use systx_store::io::{Io, Tree as _};
use systx_store::writeset::WriteSet;
use systx_store::{
    CommitMeta, Joiner, Joint, OpenError, Outcome, Outcomes, Part, Slot, Store, TxnKind,
    is_undecided, outcome,
};

const SIDES: usize = 2;
/// The one that decides.
const DECIDER: usize = 0;

type Pair = [SimFs; SIDES];

/// An instant of a run.
struct Instant {
    disks: [Point; SIDES],
    label: String,
    sync: bool,
    acknowledged: bool,
}

#[derive(Clone, Default)]
struct Recorder {
    instants: Arc<Mutex<Vec<Instant>>>,
    acknowledged: Arc<Mutex<bool>>,
}

impl Recorder {
    /// Both file systems as seen by a process that is recorded; `lie` may change what a call does.
    fn wrap(&self, pair: &Pair, lie: fn(usize, Call) -> Action) -> [Arc<dyn Io>; SIDES] {
        std::array::from_fn(|side| {
            let (this, both) = (self.clone(), pair.clone());
            let rule = move |call: &systx_sim::intercept::Call<'_>| {
                if call.op.mutates() {
                    this.note(&both, format!("{:?} {} on {side}", call.op, call.path()), call.op);
                }
                lie(side, call.op)
            };
            Arc::new(Intercept::new(&pair[side], rule)) as Arc<dyn Io>
        })
    }

    fn note(&self, pair: &Pair, label: String, op: Call) {
        let sync = matches!(op, Call::SyncData | Call::SyncAll | Call::SyncFs | Call::WriteDurable);
        let disks = [pair[0].here(), pair[1].here()];
        let acknowledged = *self.acknowledged.lock().unwrap();
        self.instants.lock().unwrap().push(Instant { disks, label, sync, acknowledged });
    }
}

fn honest(_: usize, _: Call) -> Action {
    Action::Pass
}

fn meta(txn: u64) -> CommitMeta {
    CommitMeta {
        txn: TxnId(txn),
        kind: TxnKind::Run,
        argv: vec![b"test".to_vec()],
        cwd: b"/".to_vec(),
        uid: 0,
        started: Time::default(),
        finished: Time::default(),
        told: None,
        order: None,
    }
}

/// What a store may ask: the file systems that are mounted.
struct Mounted<'a>([Option<&'a SimFs>; SIDES]);

impl Mounted<'_> {
    fn of(&self, path: &[u8]) -> Option<&SimFs> {
        self.0[usize::from(path[0] - b'0')]
    }
}

impl Outcomes for Mounted<'_> {
    fn outcome(&self, joint: &Joint) -> Outcome {
        let member = joint.decider().unwrap();
        match self.of(&member.path) {
            Some(sim) => outcome(sim, STATE.as_bytes(), None, joint),
            None => Outcome::Unknown,
        }
    }
}

/// The trees before and after, and what is done.
struct Case {
    start: Pair,
    /// What is committed on each by itself before, and installed, but still in its journal.
    earlier: Option<[Draft; SIDES]>,
    drafts: [Draft; SIDES],
    before: [Tree; SIDES],
    after: [Tree; SIDES],
}

const WORK: [&[Op]; SIDES] = [
    &[
        Op::Write("A/a", 4000, 6000),
        Op::Rename("B/b", "A/c"),
        Op::Create("A/n", 20_000),
        Op::Symlink("A/s", "../B/b"),
        Op::Chmod("B", 0o700),
    ],
    &[
        Op::Unlink("B/l"),
        Op::Rewrite("A/a", 20_000),
        Op::SetXattr("A/a", "user.n", 30),
        Op::Mkdir("C"),
        Op::Create("C/x", 50),
    ],
];

/// Changes files in place that the joint commit changes, too.
const EARLIER: [&[Op]; SIDES] =
    [&[Op::Write("A/a", 100, 200)], &[Op::Write("B/b", 10, 20), Op::Write("A/a", 5000, 100)]];

impl Case {
    fn new(profiles: [Profile; SIDES]) -> Case {
        Case::after(profiles, false)
    }

    /// `earlier`: the journals have something from before.
    fn after(profiles: [Profile; SIDES], earlier: bool) -> Case {
        let start = profiles.map(|profile| {
            let sim = SimFs::new(profile);
            workload::base(&sim).unwrap();
            drop(systx_store::open(config(sim.instance()), Arc::new(sim.clone())).unwrap());
            sim.sync_fs().unwrap();
            sim
        });
        let mut models = [0, 1].map(|side: usize| Model::read(&start[side], &hidden).unwrap());
        let draft = |models: &[Model; SIDES], seq: u32, work: &[&[Op]; SIDES]| {
            [0, 1].map(|side: usize| {
                let mut draft = Draft::new(&models[side], seq);
                work[side].iter().for_each(|op| draft.run(op).unwrap());
                draft
            })
        };
        let earlier = earlier.then(|| draft(&models, 70, &EARLIER));
        if let Some(earlier) = &earlier {
            models = earlier.each_ref().map(|draft| draft.after().clone());
        }
        let drafts = draft(&models, 0, &WORK);
        let before = [models[0].tree(), models[1].tree()];
        let after = [drafts[0].after().tree(), drafts[1].after().tree()];
        Case { start, earlier, drafts, before, after }
    }

    fn fork(&self) -> Pair {
        [self.start[0].here().process_death(), self.start[1].here().process_death()]
    }

    /// What a process does from opening the stores to forgetting the decision.
    fn live(&self, pair: &Pair, lie: fn(usize, Call) -> Action) -> Vec<Instant> {
        let recorder = Recorder::default();
        let ios = recorder.wrap(pair, lie);
        let stores = [0, 1].map(|side: usize| {
            systx_store::open(config(pair[side].instance()), Arc::clone(&ios[side])).unwrap().0
        });
        let mut slots = Vec::new();
        for (side, draft) in self.earlier.iter().flatten().enumerate() {
            let set = write_set(&*stores[side], &*ios[side], draft, &mut slots);
            let reservation = stores[side].reserve(&set).unwrap();
            let done = stores[side].commit(reservation, set, meta(1)).unwrap();
            stores[side].apply(done.lsn).unwrap();
            recorder.instants.lock().unwrap().clear();
        }
        let sets = [0, 1].map(|side: usize| {
            write_set(&*stores[side], &*ios[side], &self.drafts[side], &mut slots)
        });
        let lsns = join(&stores, sets, 7, 2).unwrap();
        drop(slots);
        *recorder.acknowledged.lock().unwrap() = true;
        // Either may be first.
        for side in [1, 0] {
            stores[side].apply(lsns[side]).unwrap();
        }
        for side in [0, 1] {
            stores[side].checkpoint().unwrap();
        }
        stores[DECIDER].forget_decision(7).unwrap();
        recorder.note(pair, "end".into(), Call::SyncFs);
        drop(stores);
        std::mem::take(&mut recorder.instants.lock().unwrap())
    }
}

fn write_set(store: &dyn Store, io: &dyn Io, draft: &Draft, slots: &mut Vec<Slot>) -> WriteSet {
    let mut stage = |data: &[u8]| {
        let slot = store.stage()?;
        slot.write_at(data, 0)?;
        let id = slot.id();
        slots.push(slot);
        Ok(id)
    };
    draft.write_set(io, 8192, &mut stage).unwrap()
}

fn join(
    stores: &[Arc<dyn Store>; SIDES],
    sets: [WriteSet; SIDES],
    id: u64,
    txn: u64,
) -> Result<Vec<u64>, String> {
    let mut parts = Vec::new();
    for (side, (store, set)) in stores.iter().zip(sets).enumerate() {
        let reservation = store.reserve(&set).unwrap();
        parts.push(Part { store: &**store, path: side.to_string().into_bytes(), reservation, set });
    }
    let done = Joiner::new().commit(id, parts, &meta(txn)).map_err(|e| e.to_string())?;
    Ok(done.into_iter().map(|c| c.lsn).collect())
}

fn open(pair: &Pair, side: usize, mounted: &Mounted<'_>) -> Result<Arc<dyn Store>, OpenError> {
    let io: Arc<dyn Io> = Arc::new(pair[side].clone());
    let (store, report) = systx_store::open_among(config(pair[side].instance()), io, mounted)?;
    assert!(report.outside.is_empty(), "outsiders where there are none: {:?}", report.outside);
    Ok(store)
}

/// Forgets decisions that nobody will ask for; the number that stay.
fn settle(store: &dyn Store, mounted: &Mounted<'_>) -> usize {
    let mut left = 0;
    for decision in store.decisions().unwrap() {
        let waiting = |m: &systx_store::Member| match mounted.of(&m.path) {
            Some(sim) => is_undecided(sim, STATE.as_bytes(), None, m.store, decision.id),
            None => true,
        };
        if decision.others.iter().any(waiting) {
            left += 1;
        } else {
            store.forget_decision(decision.id).unwrap();
        }
    }
    left
}

/// How recovery goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    DeciderFirst,
    PartFirst,
    /// The decider's file system is not there at first.
    DeciderAbsent,
    /// The part's is not there at first, and the decider goes on alone.
    PartAbsent,
}

const ORDERS: [Order; 4] =
    [Order::DeciderFirst, Order::PartFirst, Order::DeciderAbsent, Order::PartAbsent];

impl Case {
    fn tree(&self, pair: &Pair, side: usize) -> Tree {
        tree::read(&pair[side], &hidden).unwrap()
    }

    /// Recovers and says whether the transaction is there; panics if it is in one file system only.
    fn recover(&self, pair: &Pair, order: Order, what: &str) -> Result<bool, String> {
        let both = Mounted([Some(&pair[0]), Some(&pair[1])]);
        let fail = |e: OpenError| format!("{what}: {e}");
        match order {
            Order::DeciderFirst => {
                drop(open(pair, 0, &both).map_err(fail)?);
                drop(open(pair, 1, &both).map_err(fail)?);
            }
            Order::PartFirst => {
                drop(open(pair, 1, &both).map_err(fail)?);
                drop(open(pair, 0, &both).map_err(fail)?);
            }
            Order::DeciderAbsent => {
                let was = pair[1].here();
                match open(pair, 1, &Mounted([None, Some(&pair[1])])) {
                    Ok(store) => drop(store),
                    Err(OpenError::Waits { .. }) => {
                        let found = tree::read(&was.process_death(), &hidden).unwrap();
                        let diff = tree::diff(&self.tree(pair, 1), &found);
                        assert_eq!(diff, "", "{what}: touched while it waits");
                    }
                    Err(e) => return Err(fail(e)),
                }
                drop(open(pair, 0, &both).map_err(fail)?);
                drop(open(pair, 1, &both).map_err(fail)?);
            }
            Order::PartAbsent => {
                let alone = Mounted([Some(&pair[0]), None]);
                let store = open(pair, 0, &alone).map_err(fail)?;
                // Its journal goes once round meanwhile.
                let model = Model::read(&pair[0], &hidden).unwrap();
                for n in 0..3 {
                    let mut draft = Draft::new(&model, 900 + n);
                    draft.run(&Op::Create("A/z", 30_000)).unwrap();
                    let mut slots = Vec::new();
                    let set = write_set(&*store, &pair[0], &draft, &mut slots);
                    let reservation = store.reserve(&set).unwrap();
                    let done = store.commit(reservation, set, meta(50 + 2 * u64::from(n))).unwrap();
                    store.apply(done.lsn).unwrap();
                    let dir = pair[0].open_dir(&pair[0].root(), b"A").unwrap();
                    pair[0].unlink(&dir, b"z").unwrap();
                    store.checkpoint().unwrap();
                }
                settle(&*store, &alone);
                drop(store);
                drop(open(pair, 1, &both).map_err(fail)?);
            }
        }
        let decider = open(pair, 0, &both).map_err(fail)?;
        let part = open(pair, 1, &both).map_err(fail)?;
        if settle(&*decider, &both) != 0 {
            return Err(format!("{what}: a decision stays for ever"));
        }
        let there = [0, 1].map(|side: usize| {
            let now = self.tree(pair, side);
            if tree::diff(&now, &self.before[side]).is_empty() {
                return Ok(false);
            }
            match tree::diff(&now, &self.after[side]) {
                diff if diff.is_empty() => Ok(true),
                diff => {
                    Err(format!("{what}: file system {side} is neither before nor after\n{diff}"))
                }
            }
        });
        for (side, sim) in pair.iter().enumerate() {
            leftovers(sim).map_err(|e| format!("{what}: file system {side}: {e}"))?;
        }
        let [decider_has, part_has] = [there[0].clone()?, there[1].clone()?];
        if decider_has != part_has {
            return Err(format!("{what}: only one of the two has it (decider: {decider_has})"));
        }
        // Life goes on.
        let stores = [decider, part];
        let mut slots = Vec::new();
        let sets = [0, 1].map(|side: usize| {
            let mut draft = Draft::new(&Model::read(&pair[side], &hidden).unwrap(), 500);
            draft.run(&Op::Create("A/later", 10)).unwrap();
            write_set(&*stores[side], &pair[side], &draft, &mut slots)
        });
        let lsns = join(&stores, sets, 8, 90).map_err(|e| format!("{what}: {e}"))?;
        for side in [0, 1] {
            stores[side].apply(lsns[side]).map_err(|e| format!("{what}: {e}"))?;
        }
        Ok(decider_has)
    }

    fn check(
        &self,
        make: &dyn Fn() -> Pair,
        acknowledged: bool,
        orders: &[Order],
        what: &str,
    ) -> Result<bool, String> {
        let mut seen = BTreeSet::new();
        for order in orders {
            let there = self.recover(&make(), *order, &format!("{what}, {order:?}"))?;
            if acknowledged && !there {
                return Err(format!("{what}, {order:?}: an acknowledged commit is lost"));
            }
            seen.insert(there);
        }
        if seen.len() > 1 {
            return Err(format!("{what}: the outcome depends on the order of recovery"));
        }
        Ok(seen.contains(&true))
    }
}

/// Power cuts at one instant: so many mixtures of what the two disks may have.
fn cuts(instant: &Instant, budget: usize, seed: u64) -> Vec<[systx_sim::Choice; SIDES]> {
    let plan = Plan { exhaustive: 16, budget: 60, seed };
    let all = [0, 1].map(|side: usize| instant.disks[side].choices(&plan));
    let total = all[0].len() * all[1].len();
    let pick = |n: usize| [all[0][n % all[0].len()].clone(), all[1][n / all[0].len()].clone()];
    if total <= budget {
        return (0..total).map(pick).collect();
    }
    let mut rng = Rng::new(seed);
    // The corners first: nothing or everything of each.
    let last = [all[0].len() - 1, all[1].len() - 1];
    let mut out: Vec<_> = [[0, 0], [last[0], 0], [0, last[1]], last]
        .iter()
        .map(|at| [all[0][at[0]].clone(), all[1][at[1]].clone()])
        .collect();
    out.extend((4..budget).map(|_| pick(rng.below(total))));
    out
}

fn seed() -> u64 {
    std::env::var("SYSTX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn deaths(profiles: [Profile; SIDES], earlier: bool) -> Result<(), String> {
    let case = Case::after(profiles, earlier);
    let instants = case.live(&case.fork(), honest);
    let mut seen = [0; 2];
    for (n, instant) in instants.iter().enumerate() {
        let make = || [instant.disks[0].process_death(), instant.disks[1].process_death()];
        let what = format!("death at call {n}, {}", instant.label);
        let there = case.check(&make, instant.acknowledged, &ORDERS, &what)?;
        seen[usize::from(there)] += 1;
    }
    assert!(seen[0] > 10 && seen[1] > 20, "{seen:?}");
    Ok(())
}

fn power(
    (profiles, earlier): ([Profile; SIDES], bool),
    lie: fn(usize, Call) -> Action,
    budget: usize,
) -> Result<u64, String> {
    let case = Case::after(profiles, earlier);
    let instants = case.live(&case.fork(), lie);
    let (mut seen, mut states) = ([0; 2], 0);
    for (n, instant) in instants.iter().enumerate().filter(|(_, i)| i.sync) {
        for (k, choice) in cuts(instant, budget, seed() + n as u64).iter().enumerate() {
            // All orders at the corners, one of them for each of the others.
            let orders = if k < 4 { &ORDERS[..] } else { &ORDERS[k % 4..=k % 4] };
            for lost in if k < 4 { &LOST[..] } else { &LOST[k % 3..=k % 3] } {
                let make = || {
                    [0, 1].map(|side: usize| match lost[side] {
                        true => instant.disks[side].power_cut(&choice[side]),
                        false => instant.disks[side].process_death(),
                    })
                };
                let what = || {
                    let one = |side: usize| instant.disks[side].describe(&choice[side]);
                    let at = format!("at call {n}, {}", instant.label);
                    format!("power cut {k} of {lost:?} {at}\n{}\n{}", one(0), one(1))
                };
                let there = case
                    .check(&make, instant.acknowledged, orders, "")
                    .map_err(|e| format!("{}{e}", what()))?;
                seen[usize::from(there)] += 1;
                states += orders.len() as u64;
            }
        }
    }
    assert!(seen[0] > 20 && seen[1] > 20, "{seen:?}");
    Ok(states)
}

/// Which of the disks loses what it has not been told to keep: both, or one, while the other is
/// mounted all the time.
const LOST: [[bool; SIDES]; 3] = [[true, true], [true, false], [false, true]];

const STRONG: Profile = Profile::STRONG;
const WEAK: Profile = Profile::WEAK;

/// With journals that are empty, and that are not.
const CASES: [([Profile; SIDES], bool); 5] = [
    ([STRONG, STRONG], false),
    ([STRONG, STRONG], true),
    ([STRONG, WEAK], false),
    ([WEAK, STRONG], false),
    ([WEAK, STRONG], true),
];

#[test]
fn a_process_that_dies_at_any_call_leaves_both_before_or_both_after() {
    for (profiles, earlier) in CASES.into_iter().chain([([STRONG, Profile::MEMORY], false)]) {
        let classes = profiles.map(|p| p.class);
        deaths(profiles, earlier).unwrap_or_else(|e| panic!("{classes:?}, {earlier}: {e}"));
    }
}

#[test]
fn a_power_cut_of_one_disk_or_both_at_any_sync_leaves_both_before_or_both_after() {
    for case @ (profiles, earlier) in CASES {
        let classes = profiles.map(|p| p.class);
        let states =
            power(case, honest, 80).unwrap_or_else(|e| panic!("{classes:?}, {earlier}: {e}"));
        assert!(states > 200, "{classes:?}, {earlier}: {states}");
    }
}

#[test]
fn a_recovery_that_is_stopped_anywhere_is_finished_by_the_next() {
    for earlier in [false, true] {
        recovery_is_stopped(&Case::after([STRONG; SIDES], earlier));
    }
}

fn recovery_is_stopped(case: &Case) {
    let instants = case.live(&case.fork(), honest);
    // Around the decision, and while it is installed.
    let decision = instants.iter().position(|i| i.acknowledged).unwrap();
    for at in [decision - 2, decision - 1, decision, decision + 8] {
        let instant = &instants[at];
        for order in [[0, 1], [1, 0]] {
            let pair = [instant.disks[0].process_death(), instant.disks[1].process_death()];
            let recorder = Recorder::default();
            *recorder.acknowledged.lock().unwrap() = instant.acknowledged;
            let ios = recorder.wrap(&pair, honest);
            for side in order {
                struct Through([Arc<dyn Io>; SIDES]);
                impl Outcomes for Through {
                    fn outcome(&self, joint: &Joint) -> Outcome {
                        let io = &*self.0[DECIDER];
                        outcome(io, STATE.as_bytes(), None, joint)
                    }
                }
                let (io, others) = (Arc::clone(&ios[side]), Through(ios.clone()));
                drop(systx_store::open_among(config(pair[side].instance()), io, &others).unwrap());
            }
            let stops = std::mem::take(&mut *recorder.instants.lock().unwrap());
            for (n, stop) in stops.iter().enumerate() {
                let what = format!("call {at}, then {order:?} to {n}, {}", stop.label);
                let make = || [stop.disks[0].process_death(), stop.disks[1].process_death()];
                case.check(&make, stop.acknowledged, &ORDERS[..2], &what).unwrap();
                if !stop.sync {
                    continue;
                }
                for choice in cuts(stop, 12, seed()) {
                    let make =
                        || [0, 1].map(|side: usize| stop.disks[side].power_cut(&choice[side]));
                    case.check(&make, stop.acknowledged, &ORDERS[..2], &what).unwrap();
                }
            }
        }
    }
}

/// The protocol without its barrier: the part's record is written, but not made durable, before the
/// decider's.
#[test]
fn a_part_that_is_not_synced_before_the_decision_is_found_out() {
    let lie = |side: usize, op: Call| match op {
        Call::WriteDurable if side != DECIDER => Action::Weaken,
        _ => Action::Pass,
    };
    let found = power(([STRONG; SIDES], false), lie, 24);
    assert!(found.is_err(), "{found:?}");
}

/// The decider's process dies between the write of its record and the sync: the part must not
/// believe what a power cut can still take back.
#[test]
fn what_the_decider_has_only_in_memory_is_made_durable_before_it_is_believed() {
    let case = Case::new([Profile::STRONG; SIDES]);
    let instants = case.live(&case.fork(), |side, op| match op {
        Call::WriteDurable if side == DECIDER => Action::Weaken,
        _ => Action::Pass,
    });
    let written = instants.iter().position(|i| i.acknowledged).unwrap();
    let instant = &instants[written];
    let pair = [instant.disks[0].process_death(), instant.disks[1].process_death()];
    let both = Mounted([Some(&pair[0]), Some(&pair[1])]);
    let installed = match open(&pair, 1, &both) {
        Ok(store) => store.history().unwrap().len() == 1,
        Err(e) => panic!("{e}"),
    };
    assert!(installed, "the record is there to be read");
    pair[1].sync_fs().unwrap();
    for choice in pair[DECIDER].here().choices(&Plan::new(100, seed())) {
        let last = pair[1].here().choices(&Plan::new(1, 1)).remove(0);
        let make = || [pair[DECIDER].here().power_cut(&choice), pair[1].here().power_cut(&last)];
        assert!(case.check(&make, true, &ORDERS[..2], "power cut after the answer").unwrap());
    }
}

#[test]
fn what_is_aborted_leaves_nothing_and_its_number_may_be_used_again() {
    let case = Case::new([Profile::STRONG; SIDES]);
    let pair = case.fork();
    // The decider's disk fails before its record is written.
    let failing = Intercept::new(&pair[0], |call| match call.op {
        Call::SyncAll | Call::SyncFs if call.path().contains(STATE) => {
            Action::Fail(rustix::io::Errno::IO)
        }
        _ => Action::Pass,
    });
    let ios: [Arc<dyn Io>; SIDES] = [Arc::new(failing), Arc::new(pair[1].clone())];
    let stores = [0, 1].map(|side: usize| {
        systx_store::open(config(pair[side].instance()), Arc::clone(&ios[side])).unwrap().0
    });
    let mut slots = Vec::new();
    let sets = [0, 1]
        .map(|side: usize| write_set(&*stores[side], &*ios[side], &case.drafts[side], &mut slots));
    let error = join(&stores, sets, 7, 1).unwrap_err();
    drop(slots);
    // The part is not stuck.
    stores[1].checkpoint().unwrap();
    drop(stores);
    assert!(error.contains("stopped after an error"), "{error}");
    assert!(!case.recover(&pair, Order::PartFirst, "aborted").unwrap());
}
