//! The engine beside a naive model on random schedules, compared after every step.
//!
//! The model follows docs/SEMANTICS.md and not the code: objects are single names, lists,
//! attributes, sizes and pages; a transaction is four sets of them; every question is answered by
//! going through all transactions.

use super::super::*;
use super::Nices;
use crate::{Caller, Isolation, Mutation, Plain, Stall, Stalled};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use systx_base::Oid;

/// An object that cannot be divided.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Atom {
    Entry(u64, u8),
    List(u64),
    Attr(u64),
    Size(u64),
    Page(u64, u64),
}

type Atoms = BTreeSet<Atom>;

#[derive(Clone, PartialEq, Debug)]
enum Thing {
    Entry(u64, u8),
    List(u64),
    Attr(u64),
    Size(u64),
    Pages(u64, u64, u64),
}

impl Thing {
    fn with<T>(&self, f: impl FnOnce(ObjectRef<'_>) -> T) -> T {
        f(self.borrowed(&self.name()))
    }

    fn name(&self) -> [u8; 1] {
        [if let Thing::Entry(_, n) = self { *n } else { 0 }]
    }

    fn borrowed<'a>(&self, name: &'a [u8; 1]) -> ObjectRef<'a> {
        match self {
            Thing::Entry(d, _) => ObjectRef::Entry { dir: Oid(*d), name },
            Thing::List(o) => ObjectRef::List(Oid(*o)),
            Thing::Attr(o) => ObjectRef::Attr(Oid(*o)),
            Thing::Size(o) => ObjectRef::Size(Oid(*o)),
            Thing::Pages(o, a, b) => ObjectRef::Pages { oid: Oid(*o), first: *a, last: *b },
        }
    }

    fn atoms(&self) -> Atoms {
        match self {
            Thing::Entry(d, n) => [Atom::Entry(*d, *n)].into(),
            Thing::List(o) => [Atom::List(*o)].into(),
            Thing::Attr(o) => [Atom::Attr(*o)].into(),
            Thing::Size(o) => [Atom::Size(*o)].into(),
            Thing::Pages(o, a, b) => (*a..=*b).map(|p| Atom::Page(*o, p)).collect(),
        }
    }

    /// What a write of it writes: of a name, the list as well.
    fn written(&self) -> Atoms {
        let mut atoms = self.atoms();
        if let Thing::Entry(d, _) = self {
            atoms.insert(Atom::List(*d));
        }
        atoms
    }
}

fn atoms_of(o: &Object) -> Atoms {
    match o {
        Object::Entry { dir, name } => [Atom::Entry(dir.0, name[0])].into(),
        Object::List(o) => [Atom::List(o.0)].into(),
        Object::Attr(o) => [Atom::Attr(o.0)].into(),
        Object::Size(o) => [Atom::Size(o.0)].into(),
        Object::Pages { oid, first, last } => {
            (*first..=*last).map(|p| Atom::Page(oid.0, p)).collect()
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Begin {
        t: u64,
        snapshot: bool,
        read_only: bool,
        priority: i32,
        age: u32,
        retry: bool,
    },
    Read(u64, Thing),
    Depend(u64, Thing),
    Write(u64, Thing),
    Outside(Thing),
    Doom(u64),
    Decide(u64),
    Installed(u64),
    Abort(u64),
    Merge(u64, u64),
    Priority(u64, i32),
    Reserve(u64),
    Plain {
        p: u64,
        things: Vec<Thing>,
        stall: Stall,
    },
    PlainEnd {
        p: u64,
        failed: bool,
    },
    /// A read waits, if it would lose and may.
    Stall(u64, Thing),
    StallEnd(u64),
}

/// Some are.
fn is_guest(t: u64) -> bool {
    t % 4 == 3
}

#[derive(Clone, Debug)]
struct Txn {
    status: Status,
    soft: bool,
    read_only: bool,
    priority: i32,
    /// The one whose thread tells that.
    follows: u64,
    age: u32,
    timestamp: u64,
    family: u64,
    /// It was given the reads of another.
    inherited: bool,
    reads: Atoms,
    softs: Atoms,
    writes: Atoms,
    /// Atom to first opponent.
    stale: BTreeMap<Atom, Opponent>,
    /// Plain mutations of what it only reads are held.
    reserved: bool,
}

/// A plain mutation that is being performed.
struct PlainUnit {
    /// None if it passed the gate.
    id: Option<TxnId>,
    writes: Atoms,
}

#[derive(Default)]
struct Model {
    txns: BTreeMap<u64, Txn>,
    plains: BTreeMap<u64, PlainUnit>,
    clock: u64,
    nices: Arc<Nices>,
    /// Which transaction waits for which; one at a time each.
    stalls: BTreeMap<u64, u64>,
}

/// What the model allows as an answer.
#[derive(Debug, PartialEq)]
enum Expected {
    Granted,
    /// Lost to one of these, if the model has an opinion.
    Doomed(BTreeSet<Opponent>),
    WaitForOneOf(BTreeSet<TxnId>),
}

/// What the model allows as an answer to a plain mutation.
#[derive(Debug)]
enum ExpectedPlain {
    Gate,
    WaitForOneOf(BTreeSet<TxnId>),
    HoldForOneOf(BTreeSet<TxnId>),
    /// These lose.
    Decided(BTreeSet<TxnId>),
}

fn caller(p: u64) -> Caller {
    Caller::new(u32::try_from(p).unwrap(), 0, b"plain")
}

/// Writers of a list do not disturb each other.
fn disturbs(mine_writes: bool, theirs_written: bool, atom: &Atom) -> bool {
    (mine_writes || theirs_written)
        && !(mine_writes && theirs_written && matches!(atom, Atom::List(_)))
}

impl Model {
    fn stronger(&self, a: u64, b: u64) -> bool {
        let key = |t: u64| {
            let x = &self.txns[&t];
            let (class, priority) = if x.age >= 3 { (0, 0) } else { (1, x.priority) };
            (is_guest(t), class, priority, x.timestamp, t)
        };
        key(a) < key(b)
    }

    /// For whom a read may wait: for one of those that it would lose to, which nobody is who waits
    /// itself, and if nobody waits for the reader.
    fn stall(&self, t: u64, thing: &Thing) -> BTreeSet<u64> {
        let nobody = BTreeSet::new();
        // As it would be, had it asked; on a copy.
        let mut copy = Model { txns: self.txns.clone(), clock: self.clock, ..Model::default() };
        for (p, unit) in &self.plains {
            copy.plains.insert(*p, PlainUnit { id: unit.id, writes: unit.writes.clone() });
        }
        let active = |id: u64| self.txns.get(&id).is_some_and(|x| x.status == Status::Active);
        if !active(t) || self.stalls.values().any(|whom| *whom == t) {
            return nobody;
        }
        let Expected::Doomed(by) = copy.access(t, thing, Intent::Read) else { return nobody };
        let rival = |by: &Opponent| match by {
            Opponent::Txn(TxnId(id)) if active(*id) => Some(*id),
            _ => None,
        };
        by.iter().filter_map(rival).collect()
    }

    fn access(&mut self, t: u64, thing: &Thing, intent: Intent) -> Expected {
        let Some(me) = self.txns.get(&t).cloned() else { return Expected::Doomed([].into()) };
        let write = intent == Intent::Write;
        let atoms = if write { thing.written() } else { thing.atoms() };
        match me.status {
            Status::Doomed => return Expected::Doomed([].into()),
            Status::Committing if !write || atoms.is_subset(&me.writes) => {
                return Expected::Granted;
            }
            Status::Committing => return Expected::Doomed([].into()),
            Status::Active => {}
        }
        let soft = me.read_only || (me.soft && intent == Intent::Read);
        let known = |set: &Atoms| thing.atoms().is_subset(set);
        let list = matches!(thing, Thing::List(_));
        if !(write && me.read_only)
            && (known(&me.writes) && (write || !list) || known(&me.reads) && !write)
        {
            return Expected::Granted;
        }
        let others = || self.txns.iter().filter(|(id, _)| **id != t);
        let winners = self.installing(&atoms, write);
        if !winners.is_empty() {
            return Expected::WaitForOneOf(winners);
        }
        if soft || (write && me.read_only) {
            if !write {
                self.txns.get_mut(&t).unwrap().softs.extend(atoms);
            }
            return Expected::Granted;
        }
        let stale: BTreeSet<Opponent> =
            thing.atoms().iter().filter_map(|a| me.stale.get(a).copied()).collect();
        if !stale.is_empty() {
            self.txns.get_mut(&t).unwrap().status = Status::Doomed;
            return Expected::Doomed(stale);
        }
        let rivals: Vec<u64> = others()
            .filter(|(_, x)| x.status == Status::Active && x.family != me.family)
            .filter(|(_, x)| {
                let read = x.reads.intersection(&atoms).any(|a| disturbs(write, false, a));
                read || x.writes.intersection(&atoms).any(|a| disturbs(write, true, a))
            })
            .map(|(id, _)| *id)
            .collect();
        let stronger: BTreeSet<Opponent> = rivals
            .iter()
            .filter(|r| self.stronger(**r, t))
            .map(|r| Opponent::Txn(TxnId(*r)))
            .collect();
        if !stronger.is_empty() {
            self.txns.get_mut(&t).unwrap().status = Status::Doomed;
            return Expected::Doomed(stronger);
        }
        for rival in rivals {
            self.txns.get_mut(&rival).unwrap().status = Status::Doomed;
        }
        let me = self.txns.get_mut(&t).unwrap();
        if write {
            me.writes.extend(atoms)
        } else {
            me.reads.extend(atoms)
        }
        Expected::Granted
    }

    /// Decided units that wrote one of these and are not over.  An active transaction asks, or a
    /// plain request.
    fn installing(&self, atoms: &Atoms, write: bool) -> BTreeSet<TxnId> {
        let met = |writes: &Atoms| writes.intersection(atoms).any(|a| disturbs(write, true, a));
        let decided = self.txns.iter().filter(|(_, x)| x.status == Status::Committing);
        let decided = decided.filter(|(_, x)| met(&x.writes)).map(|(id, _)| TxnId(*id));
        let plains = self.plains.values().filter(|p| met(&p.writes)).filter_map(|p| p.id);
        decided.chain(plains).collect()
    }

    fn plain(&mut self, things: &[Thing], stall: Stall) -> ExpectedPlain {
        if self.txns.is_empty() {
            return ExpectedPlain::Gate;
        }
        let mut winners: BTreeSet<TxnId> =
            things.iter().flat_map(|o| self.installing(&o.written(), true)).collect();
        for (id, x) in self.txns.iter().filter(|(_, x)| x.status == Status::Committing) {
            let read =
                |o: &Thing| x.reads.intersection(&o.written()).any(|a| disturbs(true, false, a));
            if things.iter().any(read) {
                winners.insert(TxnId(*id));
            }
        }
        if !winners.is_empty() {
            return ExpectedPlain::WaitForOneOf(winners);
        }
        let (mut rivals, mut held) = (BTreeSet::new(), BTreeSet::new());
        for (id, x) in self.txns.iter().filter(|(_, x)| x.status == Status::Active) {
            let met = |o: &&Thing| {
                let atoms = o.written();
                x.reads.intersection(&atoms).any(|a| disturbs(true, false, a))
                    || x.writes.intersection(&atoms).any(|a| disturbs(true, true, a))
            };
            let soft =
                |o: &&Thing| x.softs.intersection(&o.written()).any(|a| disturbs(true, false, a));
            let may_be_held = |o: &Thing| match o {
                Thing::Entry(d, _) => !x.writes.contains(&Atom::List(*d)),
                other => x.writes.is_disjoint(&other.atoms()),
            };
            if things.iter().any(|o| met(&o)) {
                rivals.insert(TxnId(*id));
            }
            let mut touched = things.iter().filter(|o| met(o) || soft(o)).peekable();
            // Plain threads have the priority 0.
            let urgent = x.age >= 3 || x.priority < 0;
            let spared = x.reserved && urgent && x.stale.is_empty();
            if spared && touched.peek().is_some() && touched.all(may_be_held) {
                held.insert(TxnId(*id));
            }
        }
        if stall == Stall::Bounded && !held.is_empty() {
            return ExpectedPlain::HoldForOneOf(held);
        }
        for id in &rivals {
            self.txns.get_mut(&id.0).unwrap().status = Status::Doomed;
        }
        ExpectedPlain::Decided(rivals)
    }

    fn plain_end(&mut self, p: u64, failed: bool) {
        let Some(unit) = self.plains.remove(&p) else { return };
        if unit.id.is_some() && !failed {
            self.went_stale(unit.writes, Opponent::Plain(caller(p)), None);
        }
    }

    fn went_stale(&mut self, writes: Atoms, by: Opponent, family: Option<u64>) {
        for atom in writes {
            let thing = match atom {
                Atom::Entry(d, n) => Thing::Entry(d, n),
                Atom::List(d) => Thing::List(d),
                Atom::Attr(o) => Thing::Attr(o),
                Atom::Size(o) => Thing::Size(o),
                Atom::Page(o, p) => Thing::Pages(o, p, p),
            };
            self.outside(&thing, by, family);
        }
    }

    fn outside(&mut self, thing: &Thing, by: Opponent, family: Option<u64>) -> BTreeSet<TxnId> {
        let written = thing.written();
        let mut doomed = BTreeSet::new();
        for (id, x) in &mut self.txns {
            if x.status != Status::Active || family == Some(x.family) {
                continue;
            }
            if by == Opponent::Outside
                && (x.reads.intersection(&written).next().is_some()
                    || x.writes.intersection(&written).any(|a| disturbs(true, true, a)))
            {
                x.status = Status::Doomed;
                doomed.insert(TxnId(*id));
                continue;
            }
            for atom in x.softs.intersection(&written) {
                x.stale.entry(atom.clone()).or_insert(by);
            }
        }
        doomed
    }

    fn installed(&mut self, t: u64) {
        if self.txns.get(&t).is_some_and(|x| x.status == Status::Committing) {
            let x = self.txns.remove(&t).unwrap();
            self.went_stale(x.writes, Opponent::Txn(TxnId(t)), Some(x.family));
        }
    }

    fn merge(&mut self, from: u64, into: u64) -> bool {
        let (Some(source), Some(target)) =
            (self.txns.get(&from).cloned(), self.txns.get_mut(&into))
        else {
            return false;
        };
        if target.status != Status::Active {
            return false;
        }
        if source.status == Status::Doomed {
            target.status = Status::Doomed;
        }
        if source.status != Status::Active {
            return false;
        }
        target.reads.extend(source.reads);
        target.softs.extend(source.softs);
        for (atom, by) in source.stale {
            target.stale.entry(atom).or_insert(by);
        }
        target.family = source.family;
        target.inherited = true;
        (target.priority, target.follows, target.age) =
            (source.priority, source.follows, source.age);
        true
    }

    /// The thread of a transaction has this nice value from now on.
    fn renice(&mut self, t: u64, nice: i32) {
        self.nices.set(t, nice);
        self.txns.values_mut().filter(|x| x.follows == t).for_each(|x| x.priority = nice);
    }
}

const TXNS: u64 = 5;
const PLAINS: u64 = 3;

type Guards<'e> = BTreeMap<u64, Mutation<'e>>;
type Stalls<'e> = BTreeMap<u64, Stalled<'e>>;

fn thing() -> impl Strategy<Value = Thing> {
    prop_oneof![
        3 => (0u64..2, 0u8..3).prop_map(|(d, n)| Thing::Entry(d, n)),
        2 => (0u64..2).prop_map(Thing::List),
        1 => (0u64..3).prop_map(Thing::Attr),
        1 => (0u64..3).prop_map(Thing::Size),
        3 => (0u64..2, 0u64..9, 0u64..4).prop_map(|(o, a, more)| Thing::Pages(o, a, a + more)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let t = || 1..=TXNS;
    let begin = (t(), any::<(bool, bool)>(), 0..8u32, -1..2i32, 0..5u32);
    prop_oneof![
        5 => begin.prop_map(|(t, (snapshot, retry), odd, priority, age)| {
            Step::Begin { t, snapshot, read_only: odd == 0, priority, age, retry }
        }),
        8 => (t(), thing()).prop_map(|(t, o)| Step::Read(t, o)),
        2 => (t(), thing()).prop_map(|(t, o)| Step::Depend(t, o)),
        8 => (t(), thing()).prop_map(|(t, o)| Step::Write(t, o)),
        2 => thing().prop_map(Step::Outside),
        1 => t().prop_map(Step::Doom),
        3 => t().prop_map(Step::Decide),
        2 => t().prop_map(Step::Installed),
        2 => t().prop_map(Step::Abort),
        1 => (t(), t()).prop_map(|(a, b)| Step::Merge(a, b)),
        1 => (t(), -1..2i32).prop_map(|(t, p)| Step::Priority(t, p)),
        2 => t().prop_map(Step::Reserve),
        6 => (1..=PLAINS, prop::collection::vec(thing(), 1..4), any::<bool>()).prop_map(
            |(p, things, stall)| {
                Step::Plain { p, things, stall: if stall { Stall::Bounded } else { Stall::Never } }
            }
        ),
        4 => (1..=PLAINS, any::<bool>()).prop_map(|(p, failed)| Step::PlainEnd { p, failed }),
        5 => (t(), thing()).prop_map(|(t, o)| Step::Stall(t, o)),
        2 => t().prop_map(Step::StallEnd),
    ]
}

fn begin<'e>(
    e: &'e Engine,
    m: &mut Model,
    guards: &mut Guards<'e>,
    step: &Step,
) -> Result<(), TestCaseError> {
    let Step::Begin { t, snapshot, read_only, priority, age, retry } = *step else {
        unreachable!("called for begin only")
    };
    if m.txns.contains_key(&t) {
        return Ok(());
    }
    // There is one thread, and it would wait for itself.
    guards.retain(|_, guard| guard.id().is_some());
    m.plains.retain(|_, unit| unit.id.is_some());
    m.renice(t, priority);
    // Retries keep an old timestamp; two may then be equal, and the id decides.
    let timestamp = (retry && m.clock > 0).then(|| 1 + m.clock / 2);
    let isolation = if snapshot { Isolation::Snapshot } else { Isolation::Serializable };
    let began = e.begin(
        TxnId(t),
        BeginOptions {
            isolation,
            age,
            read_only,
            timestamp,
            guest: is_guest(t),
            follows: Some(m.nices.clone().of_transaction(t)),
            ..BeginOptions::default()
        },
    );
    m.clock = m.clock.max(timestamp.unwrap_or(m.clock + 1));
    let expected = timestamp.unwrap_or(m.clock);
    prop_assert_eq!(began, Timestamp(expected));
    let empty = Txn {
        status: Status::Active,
        soft: snapshot || read_only,
        read_only,
        priority,
        follows: t,
        age,
        timestamp: expected,
        family: t,
        inherited: false,
        reads: Atoms::new(),
        softs: Atoms::new(),
        writes: Atoms::new(),
        stale: BTreeMap::new(),
        reserved: false,
    };
    m.txns.insert(t, empty);
    Ok(())
}

fn access(
    e: &Engine,
    m: &mut Model,
    t: u64,
    thing: &Thing,
    intent: Intent,
) -> Result<(), TestCaseError> {
    let answer = thing.with(|o| e.access(TxnId(t), o, intent));
    match m.access(t, thing, intent) {
        Expected::Granted => prop_assert_eq!(answer, Access::Granted),
        Expected::WaitForOneOf(winners) => {
            let Access::Wait(id) = answer else {
                return Err(TestCaseError::fail(format!("{answer:?}, not a wait for {winners:?}")));
            };
            prop_assert!(winners.contains(&id));
        }
        Expected::Doomed(opponents) => {
            prop_assert_eq!(answer, Access::Doomed);
            if !opponents.is_empty() {
                let why = e.conflict(TxnId(t)).expect("a loser has a conflict");
                prop_assert!(opponents.contains(&why.opponent), "{why:?}, not {opponents:?}");
                prop_assert_eq!(atoms_of(&why.object), thing.atoms());
                let mine = if intent == Intent::Write { Side::Write } else { Side::Read };
                prop_assert_eq!(why.mine, mine);
            }
        }
    }
    Ok(())
}

fn stall<'e>(
    e: &'e Engine,
    m: &mut Model,
    stalls: &mut Stalls<'e>,
    (t, thing): (u64, &Thing),
) -> Result<(), TestCaseError> {
    if stalls.contains_key(&t) {
        return Ok(());
    }
    let expected = m.stall(t, thing);
    let Some(stall) = thing.with(|o| e.stall(TxnId(t), o)) else {
        // The one that it met first may be one that waits.
        let waits = expected.iter().any(|winner| m.stalls.contains_key(winner));
        prop_assert!(expected.is_empty() || waits, "{t} could wait for {expected:?}");
        return Ok(());
    };
    let TxnId(winner) = stall.winner();
    prop_assert!(expected.contains(&winner), "{t} waits for {winner}, not {expected:?}");
    prop_assert!(!m.stalls.contains_key(&winner), "a chain of waits");
    m.stalls.insert(t, winner);
    stalls.insert(t, stall);
    Ok(())
}

/// Reads go on waiting as long as both are there.  One ends as the step says, others by themselves.
fn end_stalls(m: &mut Model, stalls: &mut Stalls<'_>, step: &Step) -> Result<(), TestCaseError> {
    let stands = |m: &Model, t: u64, decided: bool| {
        let status = m.txns.get(&t).map(|x| x.status);
        status == Some(Status::Active) || decided && status == Some(Status::Committing)
    };
    for (t, stall) in &*stalls {
        let waits = stands(m, *t, false) && stands(m, stall.winner().0, true);
        prop_assert_eq!(stall.is_over(), !waits, "{} waits for {}", t, stall.winner());
    }
    let ends = |t: &u64| matches!(step, Step::StallEnd(ended) if ended == t);
    stalls.retain(|t, stall| !ends(t) && !stall.is_over());
    m.stalls.retain(|t, _| stalls.contains_key(t));
    Ok(())
}

fn plain<'e>(
    e: &'e Engine,
    m: &mut Model,
    guards: &mut Guards<'e>,
    (p, things, stall): (u64, &[Thing], Stall),
) -> Result<(), TestCaseError> {
    if guards.contains_key(&p) {
        return Ok(());
    }
    let names: Vec<[u8; 1]> = things.iter().map(Thing::name).collect();
    let objects: Vec<ObjectRef<'_>> =
        things.iter().zip(&names).map(|(o, name)| o.borrowed(name)).collect();
    let answer = e.plain_mutation(&objects, caller(p), stall);
    let expected = m.plain(things, stall);
    let writes = things.iter().flat_map(Thing::written).collect();
    match (answer, expected) {
        (Plain::Decided(guard), ExpectedPlain::Gate) => {
            prop_assert_eq!((guard.id(), guard.doomed()), (None, &[][..]));
            m.plains.insert(p, PlainUnit { id: None, writes });
            guards.insert(p, guard);
        }
        (Plain::Decided(guard), ExpectedPlain::Decided(losers)) => {
            prop_assert_eq!(guard.doomed().iter().copied().collect::<BTreeSet<_>>(), losers);
            for loser in guard.doomed() {
                let why = e.conflict(*loser).expect("a loser has a conflict");
                prop_assert_eq!(why.opponent, Opponent::Plain(caller(p)));
                prop_assert!(things.iter().any(|o| o.atoms() == atoms_of(&why.object)));
            }
            prop_assert!(guard.id().is_some());
            m.plains.insert(p, PlainUnit { id: guard.id(), writes });
            guards.insert(p, guard);
        }
        (Plain::Wait(id), ExpectedPlain::WaitForOneOf(ids)) => prop_assert!(ids.contains(&id)),
        (Plain::Hold(id), ExpectedPlain::HoldForOneOf(ids)) => prop_assert!(ids.contains(&id)),
        (answer, expected) => {
            return Err(TestCaseError::fail(format!("{answer:?}, not {expected:?}")));
        }
    }
    Ok(())
}

fn perform<'e>(
    e: &'e Engine,
    m: &mut Model,
    (guards, stalls): (&mut Guards<'e>, &mut Stalls<'e>),
    step: &Step,
) -> Result<(), TestCaseError> {
    let nothing = || Conflict {
        object: Object::Attr(Oid(99)),
        opponent: Opponent::Outside,
        mine: Side::Read,
        theirs: Side::Write,
    };
    match step {
        Step::Begin { .. } => begin(e, m, guards, step)?,
        Step::Plain { p, things, stall } => plain(e, m, guards, (*p, things, *stall))?,
        Step::PlainEnd { p, failed } => {
            match guards.remove(p) {
                Some(guard) if *failed => guard.failed(),
                guard => drop(guard),
            }
            m.plain_end(*p, *failed);
        }
        Step::Stall(t, o) => stall(e, m, stalls, (*t, o))?,
        Step::StallEnd(_) => {}
        Step::Reserve(t) => {
            let urgent = |x: &Txn| x.age >= 3 || x.priority < 0;
            let may = |x: &&mut Txn| x.status == Status::Active && urgent(x) && !is_guest(*t);
            let aged = m.txns.get_mut(t).filter(may);
            prop_assert_eq!(e.reserve(TxnId(*t)), aged.is_some());
            if let Some(x) = aged {
                x.reserved = true;
            }
        }
        Step::Read(t, o) => access(e, m, *t, o, Intent::Read)?,
        Step::Depend(t, o) => access(e, m, *t, o, Intent::Depend)?,
        Step::Write(t, o) => access(e, m, *t, o, Intent::Write)?,
        Step::Outside(o) => {
            let doomed: BTreeSet<TxnId> = o.with(|o| e.outside_change(o)).into_iter().collect();
            prop_assert_eq!(doomed, m.outside(o, Opponent::Outside, None));
        }
        Step::Doom(t) => {
            let hit = m.txns.get_mut(t).filter(|x| x.status == Status::Active);
            prop_assert_eq!(e.doom(TxnId(*t), nothing()), hit.is_some());
            if let Some(x) = hit {
                x.status = Status::Doomed;
            }
        }
        Step::Decide(t) => {
            if let Some(x) = m.txns.get_mut(t) {
                prop_assert_eq!(e.decide(TxnId(*t)).is_ok(), x.status != Status::Doomed);
                if x.status == Status::Active {
                    x.status = Status::Committing;
                }
            }
        }
        Step::Installed(t) => {
            e.installed(TxnId(*t));
            m.installed(*t);
        }
        Step::Abort(t) => {
            e.abort(TxnId(*t));
            m.txns.remove(t);
        }
        Step::Merge(a, b) => {
            if a != b {
                let merged = e.merge_reads(TxnId(*a), TxnId(*b)) == Access::Granted;
                prop_assert_eq!(merged, m.merge(*a, *b));
            }
        }
        Step::Priority(t, p) => {
            if m.txns.contains_key(t) {
                m.renice(*t, *p);
            }
        }
    }
    Ok(())
}

/// Everything that can be asked, compared.
fn compare(e: &Engine, m: &Model) -> Result<(), TestCaseError> {
    for t in 1..=TXNS {
        let model = m.txns.get(&t);
        prop_assert_eq!(e.status(TxnId(t)), model.map(|x| x.status), "status of {}", t);
        let Some(x) = model else { continue };
        prop_assert_eq!(e.conflict(TxnId(t)).is_some(), x.status == Status::Doomed);
        let mut touched = Atoms::new();
        let mut written = Atoms::new();
        for (object, side) in e.workset_objects(TxnId(t)) {
            touched.extend(atoms_of(&object));
            if side == Side::Write {
                written.extend(atoms_of(&object));
            }
        }
        prop_assert_eq!(&written, &x.writes, "written by {}", t);
        let all = x.reads.union(&x.softs).cloned().collect::<Atoms>();
        prop_assert_eq!(touched, all.union(&x.writes).cloned().collect::<Atoms>(), "of {}", t);
        compare_stale(e, t, x)?;
    }
    Ok(())
}

fn compare_stale(e: &Engine, t: u64, x: &Txn) -> Result<(), TestCaseError> {
    let mut listed = BTreeMap::new();
    for (object, by) in e.stale_reads(TxnId(t)) {
        for atom in atoms_of(&object) {
            let twice = listed.insert(atom, by);
            // A part of a transaction inherits what it may have noted itself.
            prop_assert!(twice.is_none() || x.inherited, "{object:?} is listed twice");
        }
    }
    let (listed, stale): (Vec<_>, Vec<_>) = (listed.keys().collect(), x.stale.keys().collect());
    prop_assert_eq!(listed, stale);
    Ok(())
}

/// `SYSTX_CASES` for longer runs.
fn cases() -> u32 {
    std::env::var("SYSTX_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn the_engine_does_what_the_model_does(steps in prop::collection::vec(step(), 0..100)) {
        let (e, mut m) = (Engine::new(), Model::default());
        let (mut guards, mut stalls) = (Guards::new(), Stalls::new());
        for step in &steps {
            perform(&e, &mut m, (&mut guards, &mut stalls), step)?;
            end_stalls(&mut m, &mut stalls, step)?;
            compare(&e, &m)?;
            e.state.lock().units.check();
        }
        drop(guards);
        for t in 1..=TXNS {
            e.abort(TxnId(t));
        }
        prop_assert_eq!((e.stats().inodes, e.stats().entries), (0, 0));
    }
}
