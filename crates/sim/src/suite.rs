//! The crash suite of the `dir` store: runs workloads on a [`SimFs`], stops them at every instant,
//! and holds what recovery makes of it against the [`Model`].
//!
//! One case, in steps:
//! 1. Fork a prepared file system with a tree and an empty store.
//! 2. Run the workload's transactions: reserve, commit, install; note which are acknowledged.
//! 3. For every recorded instant, for every state that a power cut (or the death of the process)
//!    may leave: open the store, so that it recovers.
//! 4. The tree must be the model after k transactions, with acknowledged ≤ k ≤ submitted, in names,
//!    bytes, modes, owners, attributes, times and link counts; nothing may be left over.
//! 5. Recovery is stopped in the same way, to the given depth; k must stay what it was.
//! 6. Opening again changes nothing; a further transaction commits and survives.
//!
//! A failure is a text that says which workload, which instant, and what persisted.

use crate::crash::{Plan, Profile};
use crate::model::{Draft, Model, Op};
use crate::simfs::SimFs;
use crate::tree::{self, Tree};
use crate::workload::{self, Txn};
use crate::world::{CLOCK, Point, Record};
use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use systx_base::{OrderName, OrderStep, Time, TxnId};
use systx_store::io::{Class, Io};
use systx_store::writeset::WriteSet;
use systx_store::{
    CommitError, CommitMeta, Config, Instance, Keep, OutsideChange, Ready, Slot, Store, TxnKind,
    UndoError,
};

/// Where the store is, below the root.
pub const STATE: &str = ".systx";

/// What a case found wrong.
pub type Failure = String;

/// How workloads are run and stopped.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Content longer than this goes to slots.
    pub inline: usize,
    /// Checkpoint after each installation.
    pub checkpoint: bool,
    /// Which crash states of each instant are looked at.
    pub plan: Plan,
    /// The same for crashes inside recovery; `None` leaves them out.
    pub again: Option<Plan>,
    /// Processes die instead of the power failing.
    pub process_death: bool,
    /// At the end the last transaction is taken back, and then that.
    pub undo: bool,
    /// After each checkpoint all but the newest transaction are forgotten.
    pub gc: bool,
    /// Up to so many transactions are committed as one group: neighbours that touch nothing
    /// together.
    pub group: usize,
    /// A lie: the store is told that the file system has been mounted all the time.
    pub never_unmounted: bool,
}

impl How {
    /// Everything that fits into 4096 states for each instant, otherwise `budget` of them.
    pub fn power_cuts(budget: usize, seed: u64) -> How {
        How {
            inline: 8192,
            checkpoint: false,
            plan: Plan::new(budget, seed),
            again: None,
            process_death: false,
            undo: false,
            gc: false,
            group: 1,
            never_unmounted: false,
        }
    }
    /// Process death at every call.
    pub fn deaths() -> How {
        How { process_death: true, ..How::power_cuts(0, 0) }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Workloads.
    pub cases: u64,
    /// Instants.
    pub points: u64,
    /// Different states recovered from.
    pub states: u64,
    /// Of these, inside a recovery.
    pub nested: u64,
    /// Groups of more than one transaction.
    pub groups: u64,
}

impl Stats {
    /// Sums up.
    pub fn add(&mut self, other: Stats) {
        self.cases += other.cases;
        self.points += other.points;
        self.states += other.states;
        self.nested += other.nested;
        self.groups += other.groups;
    }
}

/// Puts a wrapper between the store and the file system.
pub type Wrap<'a> = dyn Fn(&SimFs) -> Arc<dyn Io> + Sync + 'a;

/// No wrapper.
pub fn plain(sim: &SimFs) -> Arc<dyn Io> {
    Arc::new(sim.clone())
}

/// Whether a path is the store's own or fsck's.
pub fn hidden(path: &[u8]) -> bool {
    path == STATE.as_bytes() || path == crate::state::LOST_FOUND
}

/// A file system with a tree and a store, ready to be forked.
pub struct Bench<'a> {
    start: Point,
    base: Model,
    wrap: &'a Wrap<'a>,
}

/// The store's configuration in the suite: the smallest ring there is.
pub fn config(instance: Instance) -> Config {
    let mut config = Config::new(STATE);
    config.instance = instance;
    config.segments = 2;
    config.segment_bytes = 64 * 1024;
    config.inline_before = 8192;
    config
}

/// The order that all transactions are in.
fn order() -> OrderName {
    OrderName { owner: 1000, name: b"all"[..].into() }
}

/// An open store that commits drafts.
pub struct Session {
    io: Arc<dyn Io>,
    store: Arc<dyn Store>,
    slots: Vec<Slot>,
    finished: usize,
    outside: Vec<OutsideChange>,
}

impl Session {
    /// Opens the store, on that mount instance; recovers.
    pub fn open(io: Arc<dyn Io>, instance: Instance) -> Result<Session, Failure> {
        let (store, report) =
            systx_store::open(config(instance), io.clone()).map_err(|e| format!("open: {e}"))?;
        let finished = report.finished.len();
        Ok(Session { io, store, slots: Vec::new(), finished, outside: report.outside })
    }

    /// What opening reported beside.
    pub fn outside(&self) -> &[OutsideChange] {
        &self.outside
    }

    /// How many transactions opening had to finish.
    pub fn finished(&self) -> usize {
        self.finished
    }

    /// Reserves and commits; the position in the log.
    pub fn commit(&mut self, draft: &Draft, n: u64, inline: usize) -> Result<u64, Failure> {
        let set = self.write_set(draft, inline)?;
        self.commit_set(set, n, TxnKind::Run)
    }

    /// A draft's write set, on the tree as it is now; long content is staged.
    pub fn write_set(&mut self, draft: &Draft, inline: usize) -> Result<WriteSet, Failure> {
        let (io, store, slots) = (&self.io, &self.store, &mut self.slots);
        let mut stage = |data: &[u8]| {
            let slot = store.stage()?;
            slot.write_at(data, 0)?;
            let id = slot.id();
            slots.push(slot);
            Ok(id)
        };
        draft.write_set(&**io, inline, &mut stage).map_err(|e| format!("staging: {e}"))
    }

    /// Takes transaction `of` back, as transaction `n`; the position in the log.
    pub fn undo(&mut self, of: u64, n: u64) -> Result<u64, Failure> {
        let of = TxnId(of + 1);
        let undo = self.store.undo_set(of).map_err(|e| format!("undo: {e}"))?;
        self.slots.extend(undo.slots);
        self.commit_set(undo.set, n, TxnKind::Undo { of })
    }

    /// Reserves and commits a write set as transaction `n`; the position in the log.
    pub fn commit_set(&mut self, set: WriteSet, n: u64, kind: TxnKind) -> Result<u64, Failure> {
        let Ready { reservation, set, meta } = self.ready(set, (n, 1), kind)?;
        let committed = self.store.commit(reservation, set, meta);
        Ok(committed.map_err(|e| format!("commit: {e}"))?.lsn)
    }

    /// The number that comes next in the order that all transactions are in.
    pub fn next(&self) -> u64 {
        self.store.orders().next(&order())
    }

    /// Transaction `n`, the `ahead`th from here on.
    fn ready(
        &self,
        set: WriteSet,
        (n, ahead): (u64, u64),
        kind: TxnKind,
    ) -> Result<Ready, Failure> {
        let reservation = self.store.reserve(&set).map_err(|e| format!("reserve: {e}"))?;
        let meta = CommitMeta {
            txn: TxnId(n + 1),
            kind,
            argv: vec![b"test".to_vec()],
            cwd: b"/".to_vec(),
            uid: 0,
            started: Time::default(),
            finished: Time::default(),
            told: None,
            order: Some(OrderStep { order: order(), next: self.next() + ahead }),
        };
        Ok(Ready { reservation, set, meta })
    }

    /// The write sets of as many of these drafts, from the first on, as may be committed as one
    /// group.
    pub fn disjoint<'d>(
        &mut self,
        drafts: impl IntoIterator<Item = &'d Draft>,
        inline: usize,
    ) -> Result<Vec<WriteSet>, Failure> {
        let (mut disjoint, mut sets) = (self.store.disjoint(), Vec::new());
        for draft in drafts {
            match self.write_set(draft, inline) {
                Ok(set) if disjoint.add(&set) => sets.push(set),
                // It builds on what one before it makes.
                Ok(_) | Err(_) if !sets.is_empty() => break,
                Ok(_) => return Err("a write set meets nothing".to_owned()),
                Err(e) => return Err(e),
            }
        }
        Ok(sets)
    }

    /// Reserves and commits write sets as one group, the first as transaction `n`; the position of
    /// each in the log.
    pub fn commit_group(
        &mut self,
        sets: Vec<WriteSet>,
        n: u64,
    ) -> Result<Vec<Result<u64, CommitError>>, Failure> {
        let numbered = sets.into_iter().zip((n..).zip(1..));
        let ready: Result<Vec<Ready>, Failure> =
            numbered.map(|(set, n)| self.ready(set, n, TxnKind::Run)).collect();
        let done = self.store.commit_group(ready?);
        Ok(done.into_iter().map(|one| one.map(|committed| committed.lsn)).collect())
    }

    /// Makes everything durable that was installed.
    pub fn checkpoint(&mut self) -> Result<(), Failure> {
        self.store.checkpoint().map(|_| ()).map_err(|e| format!("checkpoint: {e}"))
    }

    /// Forgets all but the newest `least` transactions, of which `log` stay in the log.
    pub fn gc(&mut self, least: usize, log: usize) -> Result<(), Failure> {
        let keep = Keep { count: 0, least, log, ..Keep::default() };
        self.store.gc(keep).map(drop).map_err(|e| format!("gc: {e}"))
    }

    /// Every history is one that can be undone, is forgotten, or has lost what was displaced to a
    /// collection.
    fn look_back(&mut self) -> Result<(), Failure> {
        let history = self.store.history().map_err(|e| format!("the history: {e}"))?;
        let mut seen = HashSet::new();
        for entry in history {
            let txn = entry.meta.txn;
            if !seen.insert(txn) {
                return Err(format!("transaction {txn} is in the history twice"));
            }
            match self.store.undo_set(txn) {
                Err(UndoError::Forgotten(_)) if entry.forgotten => {}
                Ok(_) | Err(UndoError::Overlap(_) | UndoError::Gone { .. }) if !entry.forgotten => {
                }
                other => return Err(format!("the undo of {txn}: {other:?}")),
            }
        }
        Ok(())
    }

    /// Installs.
    pub fn apply(&mut self, lsn: u64) -> Result<(), Failure> {
        let report = self.store.apply(lsn).map_err(|e| format!("apply: {e}"))?;
        self.slots.clear();
        if report.outside.is_empty() {
            Ok(())
        } else {
            Err(format!("changes by outsiders where there are none: {:?}", report.outside))
        }
    }
}

impl<'a> Bench<'a> {
    /// Prepares: the tree of [`workload::base`] and an empty store.
    pub fn new(profile: Profile, wrap: &'a Wrap<'a>) -> Result<Bench<'a>, Failure> {
        Bench::over(profile, wrap, workload::base)
    }

    /// Prepares: the tree that `build` makes, and an empty store.
    pub fn over(
        profile: Profile,
        wrap: &'a Wrap<'a>,
        build: impl FnOnce(&dyn Io) -> io::Result<()>,
    ) -> Result<Bench<'a>, Failure> {
        let sim = SimFs::new(profile);
        let prepare = |e: io::Error| format!("prepare: {e}");
        build(&sim).map_err(prepare)?;
        let base = Model::read(&sim, &hidden).map_err(prepare)?;
        drop(Session::open(plain(&sim), sim.instance())?);
        sim.sync_fs().map_err(prepare)?;
        Ok(Bench { start: sim.here(), base, wrap })
    }

    /// The tree that workloads begin with.
    pub fn base(&self) -> &Model {
        &self.base
    }

    /// A file system of its own, as prepared.
    pub fn fork(&self) -> SimFs {
        self.start.process_death()
    }

    /// Runs one workload and every crash of it.
    pub fn case(&self, workload: &[Txn], how: &How) -> Result<Stats, Failure> {
        let run = self.run(workload, how)?;
        run.all().map_err(|e| format!("workload {workload:?}\n{e}"))
    }

    /// Runs a transaction and every crash of it.
    pub fn draft(&self, draft: Draft, how: &How) -> Result<Stats, Failure> {
        self.steps(vec![draft], how).all()
    }

    /// Runs a transaction without a crash.
    pub fn undisturbed(&self, draft: Draft, how: &How) -> Result<Stats, Failure> {
        let sim = self.fork();
        self.steps(vec![draft], how).forward(&sim)?;
        leftovers(&sim)?;
        Ok(Stats { cases: 1, ..Stats::default() })
    }

    fn run<'r>(&'r self, workload: &[Txn], how: &'r How) -> Result<Run<'r>, Failure> {
        let drafts = workload::drafts(&self.base, workload)
            .map_err(|_| format!("illegal workload {workload:?}"))?;
        Ok(self.steps(drafts, how))
    }

    fn steps<'r>(&'r self, drafts: Vec<Draft>, how: &'r How) -> Run<'r> {
        let mut models = vec![self.base.clone()];
        let mut steps = Vec::new();
        for draft in drafts {
            models.push(draft.after().clone());
            steps.push(Step::Draft(Box::new(draft)));
        }
        // What changes nothing only uses its number up: it is not in the history.
        let last = steps.len().checked_sub(1);
        let last = last.filter(|n| models[*n].tree() != models[*n + 1].tree());
        if let (true, Some(last)) = (how.undo, last) {
            for of in [last, last + 1] {
                models.push(models[of].clone());
                steps.push(Step::Undo(of as u64));
            }
        }
        let trees = models.iter().map(Model::tree).collect();
        Run { bench: self, how, steps, models, trees, seen: RefCell::default() }
    }
}

/// A workload with one fault in it.
impl Bench<'_> {
    /// Runs a workload through `faulty`, which fails now and then; what fails is tried once more.
    /// Whatever the store says to that: a new opening must find what was acknowledged.  Returns the
    /// errors that were met.
    pub fn with_faults(
        &self,
        workload: &[Txn],
        how: &How,
        faulty: &Wrap<'_>,
    ) -> Result<Vec<Failure>, Failure> {
        let run = self.run(workload, how)?;
        let sim = self.fork();
        let mut errors = Vec::new();
        let bounds = run.stumble(&faulty(&sim), sim.instance(), &mut errors);
        let mut stats = Stats::default();
        let context = |e| format!("workload {workload:?}, after {errors:?}:\n{e}");
        let after = sim.here();
        run.check(&after.process_death(), bounds, false, &mut stats).map_err(context)?;
        // A file system in memory knows no power cuts.
        let plan = Some(&how.plan).filter(|_| after.disk.profile.class != Class::Memory);
        for cut in plan.into_iter().flat_map(|plan| after.crash_states(plan)) {
            run.check(&cut, bounds, false, &mut stats).map_err(context)?;
        }
        Ok(errors)
    }
}

/// One transaction of a run.
enum Step {
    Draft(Box<Draft>),
    /// Takes back the step with this number.
    Undo(u64),
}

struct Run<'a> {
    bench: &'a Bench<'a>,
    how: &'a How,
    steps: Vec<Step>,
    /// Before the first step, and after each.
    models: Vec<Model>,
    trees: Vec<Tree>,
    /// States that were looked at, and how: whether as a crash of recovery.
    seen: RefCell<HashSet<(u64, Bounds, bool)>>,
}

/// Acknowledged and submitted transactions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Bounds {
    acked: usize,
    submitted: usize,
}

impl Bounds {
    fn mark(self) -> u64 {
        (self.acked as u64) << 32 | self.submitted as u64
    }
    fn of(mark: u64) -> Bounds {
        Bounds { acked: (mark >> 32) as usize, submitted: mark as u32 as usize }
    }
}

impl Run<'_> {
    fn open(&self, sim: &SimFs) -> Result<Session, Failure> {
        let instance = match self.how.never_unmounted {
            true => self.bench.start.instance(),
            false => sim.instance(),
        };
        Session::open((self.bench.wrap)(sim), instance)
    }

    fn record(&self) -> Record {
        if self.how.process_death { Record::Calls } else { Record::Syncs }
    }

    fn all(&self) -> Result<Stats, Failure> {
        let sim = self.bench.fork();
        sim.record(self.record());
        let groups = self.forward(&sim)?;
        sim.record(Record::Off);
        let mut points = sim.take_points();
        points.push(sim.here());
        let points_seen = points.len() as u64;
        let mut stats = Stats { cases: 1, points: points_seen, groups, ..Stats::default() };
        for point in &points {
            self.crashes(point, &self.how.plan, &mut stats, true)?;
        }
        Ok(stats)
    }

    fn commit(&self, session: &mut Session, step: &Step, n: u64) -> Result<u64, Failure> {
        match step {
            Step::Draft(draft) => session.commit(draft, n, self.how.inline),
            Step::Undo(of) => session.undo(*of, n),
        }
    }

    /// The workload without a crash; how many groups there were.
    fn forward(&self, sim: &SimFs) -> Result<u64, Failure> {
        let mut session = self.open(sim)?;
        let (mut n, mut groups) = (0, 0);
        while n < self.steps.len() {
            let lsns = self.commit_some(&mut session, sim, n)?;
            groups += u64::from(lsns.len() > 1);
            sim.mark(Bounds { acked: n + lsns.len(), submitted: n + lsns.len() }.mark());
            for lsn in lsns {
                session.apply(lsn)?;
                if self.how.checkpoint {
                    session.checkpoint()?;
                }
                if self.how.gc {
                    session.gc(1, 1)?;
                }
                n += 1;
                self.compare(sim, Bounds { acked: n, submitted: n })
                    .map_err(|e| format!("after installing transaction {}: {e}", n - 1))?;
            }
        }
        Ok(groups)
    }

    /// Commits the step `n`, and those after it that may be in one group with it.
    fn commit_some(
        &self,
        session: &mut Session,
        sim: &SimFs,
        n: usize,
    ) -> Result<Vec<u64>, Failure> {
        let drafts = self.steps[n..].iter().map_while(|step| match step {
            Step::Draft(draft) => Some(&**draft),
            Step::Undo(_) => None,
        });
        let drafts: Vec<&Draft> = drafts.take(self.how.group).collect();
        if self.how.group < 2 || drafts.is_empty() {
            sim.mark(Bounds { acked: n, submitted: n + 1 }.mark());
            return Ok(vec![self.commit(session, &self.steps[n], n as u64)?]);
        }
        sim.mark(Bounds { acked: n, submitted: n }.mark());
        let sets = session.disjoint(drafts, self.how.inline)?;
        sim.mark(Bounds { acked: n, submitted: n + sets.len() }.mark());
        let done = session.commit_group(sets, n as u64)?.into_iter();
        done.map(|lsn| lsn.map_err(|e| format!("commit: {e}"))).collect()
    }

    /// The workload on a file system that fails; how far it came.
    fn stumble(&self, io: &Arc<dyn Io>, instance: Instance, errors: &mut Vec<Failure>) -> Bounds {
        let mut twice = |f: &mut dyn FnMut() -> Result<u64, Failure>| {
            f().or_else(|e| {
                errors.push(e);
                f()
            })
            .map_err(|e| errors.push(e))
        };
        let mut bounds = Bounds { acked: 0, submitted: 0 };
        let mut session = None;
        let mut open = || {
            session = Some(Session::open(io.clone(), instance)?);
            Ok(0)
        };
        if twice(&mut open).is_err() {
            return bounds;
        }
        let Some(mut session) = session else { return bounds };
        for (n, step) in self.steps.iter().enumerate() {
            bounds.submitted = n + 1;
            // A transaction that failed and is tried again is another one to the store.
            let mut id = n as u64 * 2;
            let mut commit = || {
                id += 1;
                self.commit(&mut session, step, id)
            };
            let Ok(lsn) = twice(&mut commit) else { return bounds };
            bounds.acked = n + 1;
            if twice(&mut || session.apply(lsn).map(|()| 0)).is_err() {
                return bounds;
            }
            if self.how.checkpoint && twice(&mut || session.checkpoint().map(|()| 0)).is_err() {
                return bounds;
            }
        }
        bounds
    }

    /// Which model the tree is.
    fn compare(&self, sim: &SimFs, bounds: Bounds) -> Result<usize, Failure> {
        let found = tree::read(sim, &hidden).map_err(|e| format!("reading back: {e}"))?;
        let legal = bounds.acked..=bounds.submitted;
        if let Some(k) = legal.clone().find(|k| self.trees[*k] == found) {
            return Ok(k);
        }
        let diffs: Vec<String> =
            legal.map(|k| format!("not {k}:\n{}", tree::diff(&found, &self.trees[k]))).collect();
        Err(format!("the tree is none of the legal ones\n{}", diffs.join("\n")))
    }

    /// Everything that a crash at `point` may leave.
    fn crashes(
        &self,
        point: &Point,
        plan: &Plan,
        stats: &mut Stats,
        outer: bool,
    ) -> Result<(), Failure> {
        let bounds = Bounds::of(point.mark);
        let check = |sim: SimFs, what: &dyn Fn() -> String, stats: &mut Stats| {
            let key = (sim.state().fingerprint(CLOCK), bounds, outer);
            if !self.seen.borrow_mut().insert(key) {
                return Ok(());
            }
            *if outer { &mut stats.states } else { &mut stats.nested } += 1;
            self.check(&sim, bounds, outer, stats).map_err(|e| format!("{}\n{e}", what()))
        };
        if self.how.process_death || point.disk.profile.class == Class::Memory {
            let what = || format!("process death after call {} ({})", point.call, point.label);
            return check(point.process_death(), &what, stats);
        }
        for choice in point.choices(plan) {
            let what = || format!("power cut {}", point.describe(&choice));
            check(point.power_cut(&choice), &what, stats)?;
        }
        Ok(())
    }

    /// Recovery from one crash.
    fn check(
        &self,
        sim: &SimFs,
        bounds: Bounds,
        outer: bool,
        stats: &mut Stats,
    ) -> Result<(), Failure> {
        let nested = if outer { self.how.again } else { None };
        if nested.is_some() {
            sim.record(self.record());
        }
        let session = self.open(sim).map_err(|e| format!("recovery: {e}"))?;
        sim.record(Record::Off);
        let k = self.compare(sim, bounds)?;
        // The order has come as far as the tree.
        let next = usize::try_from(session.next()).unwrap_or(usize::MAX);
        let legal = bounds.acked..=bounds.submitted;
        if !legal.contains(&next) || self.trees[next] != self.trees[k] {
            return Err(format!("the tree is number {k}, and {next} comes next in the order"));
        }
        let (k, exact) = (next, Bounds { acked: next, submitted: next });
        leftovers(sim)?;
        drop(session);
        if let Some(plan) = nested {
            for mut point in sim.take_points() {
                point.mark = exact.mark();
                self.crashes(&point, &plan, stats, false)
                    .map_err(|e| format!("and, recovering to {k}, {e}"))?;
            }
        }
        self.use_again(sim, k)
    }

    /// A second opening changes nothing, and the store goes on working.
    fn use_again(&self, sim: &SimFs, k: usize) -> Result<(), Failure> {
        let exact = Bounds { acked: k, submitted: k };
        let mut session = self.open(sim).map_err(|e| format!("second opening: {e}"))?;
        self.compare(sim, exact).map_err(|e| format!("second opening: {e}"))?;
        let mut draft = Draft::new(&self.models[k], 9000);
        draft.run(&Op::Create("probe", 300)).map_err(|_| "probe exists".to_owned())?;
        let failed = |e| format!("a commit after recovery: {e}");
        let lsn = session.commit(&draft, 9000, self.how.inline).map_err(failed)?;
        let acked = sim.here();
        session.apply(lsn).map_err(failed)?;
        drop(session);
        let probe = draft.after().tree();
        self.same(sim, &probe).map_err(failed)?;
        if self.how.gc {
            self.collect_all(sim).map_err(|e| format!("a collection after recovery: {e}"))?;
            self.same(sim, &probe).map_err(|e| format!("a collection after recovery: {e}"))?;
        }
        // The worst that can become of what was just acknowledged.
        let bare = Plan { exhaustive: 0, budget: 1, seed: 0 };
        let lasting = self.how.process_death || acked.disk.profile.class == Class::Memory;
        let worst = acked.crash_states(&bare).next().filter(|_| !lasting);
        let cut = worst.unwrap_or_else(|| acked.process_death());
        drop(Session::open((self.bench.wrap)(&cut), cut.instance()).map_err(failed)?);
        self.same(&cut, &probe).map_err(|e| format!("a commit after recovery was lost: {e}"))
    }

    /// Whatever a collection that was cut off has left goes with the next.
    fn collect_all(&self, sim: &SimFs) -> Result<(), Failure> {
        let mut session = self.open(sim)?;
        session.look_back()?;
        session.checkpoint()?;
        session.gc(0, 0)?;
        for dir in ["g", "h"] {
            let dir = sim.inode(&format!("{STATE}/{dir}"));
            if let Some((name, _)) = dir.iter().filter_map(|d| d.entries()).flatten().next() {
                return Err(format!("left over: {}", String::from_utf8_lossy(name)));
            }
        }
        Ok(())
    }

    fn same(&self, sim: &SimFs, tree: &Tree) -> Result<(), Failure> {
        let found = tree::read(sim, &hidden).map_err(|e| format!("reading back: {e}"))?;
        if found == *tree { Ok(()) } else { Err(tree::diff(&found, tree)) }
    }
}

/// Nothing may be left in the places of passage.
///
/// # Errors
/// What is.
pub fn leftovers(sim: &SimFs) -> Result<(), Failure> {
    let temp = sim.inode(&format!("{STATE}/t"));
    let names = temp.iter().filter_map(|d| d.entries()).flat_map(|e| e.keys());
    let names: Vec<_> = names.map(|n| String::from_utf8_lossy(n)).collect();
    if !names.is_empty() {
        return Err(format!("left over in {STATE}/t: {names:?}"));
    }
    if let Some(kept) = sim.inode(&format!("{STATE}/conflict"))
        && kept.entries().is_some_and(|e| !e.is_empty())
    {
        return Err("something of ours was kept as an outsider's work".to_owned());
    }
    let slots = sim.inode(&format!("{STATE}/s"));
    for (name, ino) in slots.iter().filter_map(|d| d.entries()).flatten() {
        let state = sim.state();
        let slot = state.get(*ino);
        if slot.is_some_and(|s| s.meta.size > 0 || s.blocks() > 0) {
            return Err(format!("slot {} is not empty", String::from_utf8_lossy(name)));
        }
    }
    Ok(())
}
