//! The engine's state behind its lock: transactions, and what an access to an object does.
//!
//! An access, in steps: 1 find the transaction; one that lost gets no further. 2 if it already
//! holds the object in this way, done. 3 look at the other holders: one that is decided and wrote
//! the object makes the caller wait for its installation; those that are active and in the way are
//! rivals. 4 a snapshot read that has gone stale may not be built upon: the caller loses to whoever
//! made it stale. Before all that, what is in the scope of another transaction makes the caller
//! lose. 5 the policy compares the caller with each rival (in a scope, its owner is the stronger
//! one); if one of them is stronger the caller loses *and nobody else does*, else all rivals lose.
//! 6 the hold is recorded.
//!
//! Invariants:
//! - S1 two transactions that are active or decided never hold one object in conflicting ways,
//!   except that what a decided one has only read may be written by others, and within one family.
//! - S2 a phase only moves forward: Active → Doomed → Ending, or Active → Committing → Installing
//!   or Ending.
//! - S3 only an active transaction is ever told to wait, and only for a decided one; or a plain
//!   request that holds nothing. A read may wait for an active one, see `stall.rs`.
//! - S4 a plain mutation is decided as it is entered, with all its objects.
//! - S5 of a group, only the member is decided whose number is up, and the next number is up when
//!   that one's changes are in place.

use crate::again::Again;
use crate::engine::{Access, BeginOptions, Census, Isolation, Stats, Status, Workset};
use crate::hold::{Flags, Hold, Slot};
use crate::index::{Index, Slab};
use crate::inject::Inject;
use crate::object::{Conflict, Object, ObjectRef, Opponent, Side};
use crate::order::{Groups, Turn};
use crate::plain::Caller;
use crate::policy::{Choice, Contender, ContentionPolicy, Follows};
use crate::scope::Scopes;
use crate::table::{Place, Record, Table};
use std::sync::Arc;
use systx_base::{Oid, TxnId};

mod inject;
mod order;
mod plain;
mod scope;
mod waits;
pub(crate) use plain::Entered;

/// What is called when a transaction loses.
pub(crate) type DoomFn = Box<dyn FnOnce(TxnId, &Conflict) + Send>;

/// Calls to make once the lock is released.
pub(crate) type Fallout = Vec<(DoomFn, TxnId, Conflict)>;

/// Who tells whether a transaction waits for something that the engine does not see.
pub(crate) type Look = Arc<dyn Fn() -> bool + Send + Sync>;

/// A rival would win, if it does not wait: somebody has to look.
pub(crate) struct Stronger {
    pub(crate) id: TxnId,
    pub(crate) look: Look,
}

/// What an access is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    Read,
    /// A read that writers may not make stale, even under snapshot isolation.
    Depend,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Active,
    Doomed,
    /// Decided.
    Committing,
    /// Installed; its holds are being released, and what it made stale noted.
    Installing,
    /// Ended without effect; its holds are being released and count for nothing.
    Ending,
}

impl Phase {
    fn decided(self) -> bool {
        matches!(self, Phase::Committing | Phase::Installing)
    }
}

/// What happens when a transaction loses.
#[derive(Default)]
struct OnDoom {
    calls: Vec<DoomFn>,
    /// One of them wakes those that wait for it, and its own reads that wait.
    wakes: bool,
}

struct Txn {
    phase: Phase,
    /// As what it began; what changes is looked up when it counts ([`Txn::contends`]).
    contender: Contender,
    follows: Follows,
    /// Reads are soft.
    soft: bool,
    /// Writes are private for ever and are not recorded.
    read_only: bool,
    /// May hold soft reads: its own or merged ones.
    notes_stale: bool,
    /// Transactions split from one another have the same family and do not conflict.
    family: TxnId,
    conflict: Option<Conflict>,
    stale: Vec<(Object, Opponent)>,
    records: Vec<Record>,
    workset: Workset,
    on_doom: OnDoom,
    /// Of a plain mutation: whose it is.
    caller: Option<Caller>,
    /// What it asked plain mutations to wait for.
    reserved: bool,
    /// Its place in an order.
    place: Option<order::Seated>,
    /// Who tells whether it waits for something that is not seen here.
    look: Option<Look>,
    /// Where it loses for a test.
    inject: Option<Inject>,
    /// Objects that it added, while that matters.
    added: u32,
}

impl Txn {
    fn new(phase: Phase, contender: Contender) -> Txn {
        Txn {
            phase,
            contender,
            follows: None,
            soft: false,
            read_only: false,
            notes_stale: false,
            family: contender.id,
            conflict: None,
            stale: Vec::new(),
            records: Vec::new(),
            workset: Workset::default(),
            on_doom: OnDoom::default(),
            caller: None,
            reserved: false,
            place: None,
            look: None,
            inject: None,
            added: 0,
        }
    }

    /// As what it contends at this moment.
    fn contends(&self) -> Contender {
        let now = self.follows.as_ref().and_then(|who| who.now());
        let priority = now.unwrap_or(self.contender.priority);
        let size = self.workset.reads + self.workset.writes;
        Contender { priority, size, ..self.contender }
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct State {
    table: Table,
    txns: Slab<Option<Txn>>,
    ids: Index,
    orders: Groups,
    pub(crate) scopes: Scopes,
    pub(crate) again: Again,
    /// Timestamp of the youngest transaction.
    clock: u64,
    /// Transactions that may hold soft reads: while there are none, a commit notes nothing.
    note_takers: usize,
    /// Plain mutations among the transactions.
    plain: usize,
    next_plain: u64,
    conflicts: u64,
    waits: u64,
}

fn id_hash(id: TxnId) -> u32 {
    (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl State {
    fn find(&self, id: TxnId) -> Option<Slot> {
        self.ids.find(id_hash(id), |slot| self.txn(slot).contender.id == id)
    }

    fn txn(&self, slot: Slot) -> &Txn {
        self.txns[slot].as_ref().expect("slots in the index and in holds are in use")
    }

    fn txn_mut(&mut self, slot: Slot) -> &mut Txn {
        self.txns[slot].as_mut().expect("slots in the index and in holds are in use")
    }

    fn phase(&self, id: TxnId) -> Option<Phase> {
        self.find(id).map(|slot| self.txn(slot).phase)
    }

    // ---- life cycle -------------------------------------------------------------------------

    /// As whom a transaction begins.
    pub(crate) fn contender_of(&self, id: TxnId, o: &BeginOptions) -> Contender {
        Contender {
            id,
            priority: o.follows.as_ref().and_then(|who| who.first()).unwrap_or(o.priority),
            size: 0,
            karma: self.again.karma(o.timestamp),
            choice: o.choice,
            age: o.age,
            timestamp: o.timestamp.unwrap_or(self.clock + 1),
            guest: o.guest,
            place: None,
            scoped: self.scopes.runs(id),
            asleep: false,
        }
    }

    /// `None` if the id is in use, or one of a plain mutation.
    pub(crate) fn begin(&mut self, id: TxnId, o: &BeginOptions) -> Option<u64> {
        if plain::is_plain(id) || self.find(id).is_some() {
            return None;
        }
        let contender = self.contender_of(id, o);
        let timestamp = contender.timestamp;
        self.clock = self.clock.max(timestamp);
        self.again.took_over(timestamp);
        let soft = o.isolation == Isolation::Snapshot || o.read_only;
        let mut txn = Txn::new(Phase::Active, contender);
        (txn.soft, txn.notes_stale, txn.read_only) = (soft, soft, o.read_only);
        txn.inject = o.inject.filter(|_| !o.read_only);
        txn.follows = o.follows.clone();
        let slot = self.txns.insert(Some(txn));
        assert!(slot < Hold::SLOTS, "memory ends before a hundred million transactions");
        self.note_takers += usize::from(soft);
        self.ids.insert(id_hash(id), slot);
        Some(timestamp)
    }

    /// Active → Committing; `None` if there is no such transaction or it was aborted.
    pub(crate) fn decide(
        &mut self,
        id: TxnId,
        fallout: &mut Fallout,
    ) -> Option<Result<(), Conflict>> {
        let turn = self.turn(id);
        let slot = self.find(id)?;
        self.inject_at_end(slot, fallout);
        let txn = self.txn_mut(slot);
        match txn.phase {
            Phase::Active => {
                debug_assert!(turn == Turn::Now, "a number that is not up yet");
                txn.phase = Phase::Committing;
                txn.on_doom.calls = Vec::new();
                // Whoever meets it from here on waits, and does not lose.
                self.again.leave(id);
                Some(Ok(()))
            }
            Phase::Doomed => txn.conflict.clone().map(Err),
            Phase::Committing | Phase::Installing => Some(Ok(())),
            Phase::Ending => None,
        }
    }

    /// First step of an end: the records whose holds [`State::sweep`] is to release.  `None` if
    /// there is nothing to end.
    pub(crate) fn start_end(&mut self, id: TxnId, installed: bool) -> Option<(Slot, Vec<Record>)> {
        let slot = self.find(id)?;
        let txn = self.txn_mut(slot);
        match (txn.phase, installed) {
            (Phase::Committing, true) => txn.phase = Phase::Installing,
            (Phase::Active | Phase::Doomed | Phase::Committing, false) => {
                txn.phase = Phase::Ending;
            }
            _ => return None,
        }
        txn.on_doom.calls = Vec::new();
        let records = std::mem::take(&mut txn.records);
        if txn.conflict.is_some() && txn.contender.choice == Choice::Karma {
            let (Contender { timestamp, karma, .. }, Workset { reads, writes }) =
                (txn.contender, txn.workset);
            self.again.lost(timestamp, karma + reads + writes);
        }
        Some((slot, records))
    }

    /// Releases the holds of some records of an ending transaction.
    pub(crate) fn sweep(&mut self, slot: Slot, records: &[Record]) {
        let by = self.opponent(slot);
        let txn = self.txn(slot);
        let family = txn.family;
        if txn.phase == Phase::Installing && self.note_takers > 0 {
            let mut report = Vec::new();
            let (table, txns) = (&mut self.table, &self.txns);
            let affects = |s: Slot| {
                txns[s].as_ref().is_some_and(|t| t.phase == Phase::Active && t.family != family)
            };
            for record in records {
                let written = table.held_of(slot, *record);
                for (object, _) in written.iter().filter(|(_, f)| f.any(Flags::WRITE)) {
                    table.make_stale(object.as_ref(), &affects, &mut report);
                }
            }
            self.note_stale(report, by);
        }
        for record in records {
            self.table.release(slot, *record);
        }
    }

    /// Last step of an end; whether it was a plain mutation's.
    pub(crate) fn finish_end(&mut self, slot: Slot) -> bool {
        let id = self.txn(slot).contender.id;
        let plain = self.txn(slot).caller.is_some();
        self.leave_order(slot);
        self.scopes.remove(id);
        self.again.leave(id);
        self.plain -= usize::from(plain);
        self.note_takers -= usize::from(self.txn(slot).notes_stale);
        self.ids.remove(id_hash(id), slot);
        self.txns.remove(slot);
        plain
    }

    fn note_stale(&mut self, report: Vec<(Slot, Object)>, by: Opponent) {
        for (slot, object) in report {
            self.txn_mut(slot).stale.push((object, by));
        }
    }

    /// Makes an active transaction lose.
    fn lose(&mut self, slot: Slot, why: Conflict, fallout: &mut Fallout) -> bool {
        let txn = self.txn_mut(slot);
        if txn.phase != Phase::Active {
            return false;
        }
        txn.phase = Phase::Doomed;
        let id = txn.contender.id;
        for call in std::mem::take(&mut txn.on_doom.calls) {
            fallout.push((call, id, why.clone()));
        }
        txn.conflict = Some(why);
        self.scopes.remove(id);
        self.again.leave(id);
        true
    }

    pub(crate) fn doom(&mut self, id: TxnId, why: Conflict, fallout: &mut Fallout) -> bool {
        self.find(id).is_some_and(|slot| self.lose(slot, why, fallout))
    }

    /// Registers a call; gives it back with the conflict if the transaction has lost already.
    pub(crate) fn on_doom(&mut self, id: TxnId, call: DoomFn) -> Option<(DoomFn, Conflict)> {
        let slot = self.find(id)?;
        let txn = self.txn_mut(slot);
        match txn.phase {
            Phase::Active => txn.on_doom.calls.push(call),
            Phase::Doomed => return txn.conflict.clone().map(|why| (call, why)),
            Phase::Committing | Phase::Installing | Phase::Ending => {}
        }
        None
    }

    // ---- accesses ---------------------------------------------------------------------------

    /// See the head of this file.
    pub(crate) fn access(
        &mut self,
        id: TxnId,
        o: ObjectRef<'_>,
        intent: Intent,
        policy: &dyn ContentionPolicy,
        (looked, fallout): (&[TxnId], &mut Fallout),
    ) -> Result<Access, Stronger> {
        let Some(slot) = self.find(id) else { return Ok(Access::Doomed) };
        let me = self.txn_mut(slot);
        // Who asks does not sleep.
        if me.phase == Phase::Active {
            me.contender.asleep = false;
        }
        let write = intent == Intent::Write;
        match me.phase {
            Phase::Active => {}
            Phase::Doomed | Phase::Ending => return Ok(Access::Doomed),
            // The outcome is fixed: a straggler may look, but not touch what it had not touched.
            Phase::Committing | Phase::Installing if !write => return Ok(Access::Granted),
            Phase::Committing | Phase::Installing => {
                let held = self.table.held(slot, o, self.table.locate(o, write));
                let held = held.any(Flags::WRITE);
                return Ok(if held { Access::Granted } else { Access::Doomed });
            }
        }
        let sure = self.in_scope(slot, o, write);
        let want = self.wants(slot, intent, sure);
        let place = self.table.locate(o, write);
        let held = self.table.held(slot, o, place);
        if held.any(covering(o, want)) {
            return Ok(Access::Granted);
        }
        let hard = want.any(Flags::READ.and(Flags::WRITE));
        if hard && self.trespasses(slot, (o, want, sure), fallout) {
            return Ok(Access::Doomed);
        }
        let ask = Ask { slot, o, place, write, want, sure };
        let mut rivals = Vec::new();
        if let Some(winner) = self.rivals(&ask, &mut rivals) {
            self.waits += 1;
            return Ok(Access::Wait(winner));
        }
        if let Some(why) = self.built_on_stale(&ask) {
            self.lose(slot, why, fallout);
            return Ok(Access::Doomed);
        }
        if !rivals.is_empty() && !self.arbitrate(&ask, &rivals, policy, (looked, fallout))? {
            return Ok(Access::Doomed);
        }
        // A soft read looks for commits that install every time, but is noted once.
        if want != Flags::NONE && !held.any(want) {
            let added = self.table.record(slot, o, place, want);
            self.add_to_workset(slot, &added);
            if self.inject_at(slot, (o, want), fallout) {
                return Ok(Access::Doomed);
            }
        }
        Ok(Access::Granted)
    }

    /// How an object is to be held for an access; `sure`: it is in the scope of the transaction.
    fn wants(&self, slot: Slot, intent: Intent, sure: bool) -> Flags {
        let me = self.txn(slot);
        match intent {
            Intent::Write if me.read_only => Flags::NONE,
            Intent::Write => Flags::WRITE,
            Intent::Depend if !me.read_only => Flags::READ,
            // What is in its scope is its own.
            Intent::Depend | Intent::Read if me.soft && !sure => Flags::SOFT,
            Intent::Depend | Intent::Read => Flags::READ,
        }
    }

    fn add_to_workset(&mut self, slot: Slot, added: &crate::table::Added) {
        let txn = self.txn_mut(slot);
        txn.records.extend(added.records.iter().flatten());
        txn.workset.reads += added.reads;
        txn.workset.writes += added.writes;
    }

    /// Collects the active transactions that are in the way, and what they did; or returns the
    /// decided one that has to be waited for.
    fn rivals(&self, ask: &Ask<'_>, rivals: &mut Vec<(Slot, Side)>) -> Option<TxnId> {
        let family = self.txn(ask.slot).family;
        let in_the_way = match ask.want {
            Flags::WRITE => Flags::READ.and(Flags::WRITE),
            Flags::READ => Flags::WRITE,
            _ => Flags::NONE,
        };
        let mut winner = None;
        self.table.holders(ask.o, ask.place, ask.write, |other, flags| {
            if other == ask.slot {
                return true;
            }
            let txn = self.txn(other);
            if txn.phase.decided() && flags.any(Flags::WRITE) {
                winner = Some(txn.contender.id);
            } else if txn.phase == Phase::Active && txn.family != family && flags.any(in_the_way) {
                rivals.push((other, side(flags)));
            }
            winner.is_none()
        });
        winner
    }

    /// First committer wins: whoever read a version that is no longer the last may not write the
    /// object, nor rely on it.
    fn built_on_stale(&self, ask: &Ask<'_>) -> Option<Conflict> {
        let txn = self.txn(ask.slot);
        let builds = ask.want.any(Flags::READ.and(Flags::WRITE));
        if !builds
            || txn.stale.is_empty()
            || !self.table.holds_any(ask.slot, Flags::STALE, ask.o, ask.place)
        {
            return None;
        }
        let by = txn.stale.iter().find(|(stale, _)| overlap(stale.as_ref(), ask.o));
        Some(Conflict {
            object: ask.o.to_object(),
            opponent: by.map_or(Opponent::Outside, |(_, by)| *by),
            mine: side(ask.want),
            theirs: Side::Write,
        })
    }

    /// The first of these rivals to whom the challenger loses.  Each is asked for its urgency once.
    fn stronger(
        &self,
        ask: &Ask<'_>,
        me: &Contender,
        rivals: &[(Slot, Side)],
        policy: &dyn ContentionPolicy,
    ) -> Option<Winner> {
        let mut asked: Vec<(Slot, Contender)> = Vec::new();
        rivals.iter().find_map(|(slot, side)| {
            let known = asked.iter().find(|(of, _)| of == slot).map(|(_, known)| *known);
            let other = known.unwrap_or_else(|| self.contender(*slot));
            if known.is_none() {
                asked.push((*slot, other));
            }
            // A scope is no matter between a guest and who is none.
            let outranks = other.outranks(me);
            let owns = self.in_scope(*slot, ask.o, *side == Side::Write);
            let lost = owns && !me.outranks(&other);
            let wins = ask.sure && !outranks || !lost && policy.challenger_wins(me, &other);
            // In its scope it does not defer, nor to a guest.
            let defers = !owns && !outranks;
            (!wins).then_some(Winner { slot: *slot, side: *side, id: other.id, defers })
        })
    }

    /// Whether the challenger wins against all rivals; whoever loses is doomed.
    fn arbitrate(
        &mut self,
        ask: &Ask<'_>,
        rivals: &[(Slot, Side)],
        policy: &dyn ContentionPolicy,
        (looked, fallout): (&[TxnId], &mut Fallout),
    ) -> Result<bool, Stronger> {
        let me = self.contender(ask.slot);
        let mine = side(ask.want);
        if let Some(winner) = self.stronger(ask, &me, rivals, policy) {
            if let Some(stronger) = self.not_looked_at(&winner, looked) {
                return Err(stronger);
            }
            self.conflicts += 1;
            let (opponent, theirs) = (Opponent::Txn(winner.id), winner.side);
            let why = Conflict { object: ask.o.to_object(), opponent, mine, theirs };
            self.lose(ask.slot, why, fallout);
            return Ok(false);
        }
        self.conflicts += 1;
        for (rival, theirs) in rivals.iter().copied() {
            let opponent = Opponent::Txn(me.id);
            let why = Conflict { object: ask.o.to_object(), opponent, mine: theirs, theirs: mine };
            self.lose(rival, why, fallout);
        }
        Ok(true)
    }

    pub(crate) fn outside_change(&mut self, o: ObjectRef<'_>, fallout: &mut Fallout) -> Vec<TxnId> {
        let hard = Flags::READ.and(Flags::WRITE);
        let mut losers = Vec::new();
        self.table.holders(o, self.table.locate(o, true), true, |slot, flags| {
            if flags.any(hard) {
                losers.push((slot, side(flags)));
            }
            true
        });
        let mut doomed = Vec::new();
        for (slot, mine) in losers {
            let (opponent, theirs) = (Opponent::Outside, Side::Write);
            if self.lose(slot, Conflict { object: o.to_object(), opponent, mine, theirs }, fallout)
            {
                doomed.push(self.txn(slot).contender.id);
            }
        }
        let mut report = Vec::new();
        let txns = &self.txns;
        let active = |s: Slot| txns[s].as_ref().is_some_and(|t| t.phase == Phase::Active);
        self.table.make_stale(o, &active, &mut report);
        self.note_stale(report, Opponent::Outside);
        doomed
    }

    pub(crate) fn merge_reads(
        &mut self,
        from: TxnId,
        into: TxnId,
        fallout: &mut Fallout,
    ) -> Access {
        let (Some(source), Some(target)) = (self.find(from), self.find(into)) else {
            return Access::Doomed;
        };
        if self.txn(target).phase != Phase::Active {
            return Access::Doomed;
        }
        if self.txn(source).phase != Phase::Active {
            if let Some(why) = self.txn(source).conflict.clone() {
                self.lose(target, why, fallout);
            }
            return Access::Doomed;
        }
        let reads = Flags::READ.and(Flags::SOFT).and(Flags::STALE);
        for record in self.txn(source).records.clone() {
            for (object, flags) in self.table.held_of(source, record) {
                let keep = Flags(flags.0 & reads.0);
                if !keep.is_none() {
                    let o = object.as_ref();
                    let added = self.table.record(target, o, self.table.locate(o, false), keep);
                    self.add_to_workset(target, &added);
                }
            }
        }
        let txn = self.txn(source);
        let (family, notes, stale) = (txn.family, txn.notes_stale, txn.stale.clone());
        let (follows, whole) = (txn.follows.clone(), txn.contender);
        let txn = self.txn_mut(target);
        txn.family = family;
        let Contender { priority, choice, age, .. } = whole;
        txn.contender = Contender { priority, choice, age, ..txn.contender };
        txn.follows = follows;
        txn.stale.extend(stale);
        if notes && !txn.notes_stale {
            txn.notes_stale = true;
            self.note_takers += 1;
        }
        Access::Granted
    }

    // ---- questions --------------------------------------------------------------------------

    pub(crate) fn decided(&self, id: TxnId) -> bool {
        self.phase(id).is_some_and(Phase::decided)
    }

    pub(crate) fn status(&self, id: TxnId) -> Option<Status> {
        match self.phase(id)? {
            Phase::Active => Some(Status::Active),
            Phase::Doomed => Some(Status::Doomed),
            Phase::Committing | Phase::Installing => Some(Status::Committing),
            Phase::Ending => None,
        }
    }

    pub(crate) fn conflict(&self, id: TxnId) -> Option<Conflict> {
        self.txn(self.find(id)?).conflict.clone()
    }

    pub(crate) fn stale_reads(&self, id: TxnId) -> Vec<(Object, Opponent)> {
        self.find(id).map_or_else(Vec::new, |slot| self.txn(slot).stale.clone())
    }

    pub(crate) fn workset(&self, id: TxnId) -> Option<Workset> {
        self.find(id).map(|slot| self.txn(slot).workset)
    }

    /// Adds some records of a workset to a census; whether there are more.
    pub(crate) fn census(
        &self,
        id: TxnId,
        which: std::ops::Range<usize>,
        census: &mut Census,
    ) -> bool {
        let Some(slot) = self.find(id) else { return false };
        let records = &self.txn(slot).records;
        let end = which.end.min(records.len());
        for record in records.get(which.start..end).unwrap_or_default() {
            for (object, flags) in self.table.held_of(slot, *record) {
                let sides = match object {
                    Object::Entry { .. } => &mut census.entries,
                    Object::List(_) => &mut census.lists,
                    Object::Attr(_) => &mut census.attributes,
                    Object::Size(_) => &mut census.sizes,
                    Object::Pages { .. } => &mut census.pages,
                };
                sides.0 += u64::from(flags.any(Flags::READ.and(Flags::SOFT)));
                sides.1 += u64::from(flags.any(Flags::WRITE));
            }
        }
        end < records.len()
    }

    pub(crate) fn workset_objects(&self, id: TxnId) -> Vec<(Object, Side)> {
        let Some(slot) = self.find(id) else { return Vec::new() };
        let mut all = Vec::new();
        for record in &self.txn(slot).records {
            for (object, flags) in self.table.held_of(slot, *record) {
                if flags.any(Flags::READ.and(Flags::SOFT)) {
                    all.push((object.clone(), Side::Read));
                }
                if flags.any(Flags::WRITE) {
                    all.push((object, Side::Write));
                }
            }
        }
        all
    }

    pub(crate) fn files_of(&self, id: TxnId) -> Vec<Oid> {
        let Some(slot) = self.find(id) else { return Vec::new() };
        let records = self.txn(slot).records.iter();
        records.filter_map(|record| self.table.file_of(slot, *record)).collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        let (inodes, entries) = self.table.len();
        Stats {
            transactions: (self.txns.len() - self.plain) as u64,
            inodes: inodes as u64,
            entries: entries as u64,
            scopes: self.scopes.len() as u64,
            again: self.again.len() as u64,
            conflicts: self.conflicts,
            waits: self.waits,
        }
    }

    /// Heap memory, about; goes through all records.
    pub(crate) fn bytes(&self) -> usize {
        let worksets = self.txns.iter().flatten().map(|t| {
            t.records.capacity() * size_of::<Record>()
                + t.stale.capacity() * size_of::<(Object, Opponent)>()
        });
        self.table.bytes() + self.txns.bytes() + self.ids.bytes() + worksets.sum::<usize>()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let txns = (0u32..).zip(self.txns.iter());
        let lists: Vec<(Slot, &[Record])> =
            txns.filter_map(|(slot, t)| Some((slot, &t.as_ref()?.records[..]))).collect();
        self.table.check(&lists);
    }
}

/// One access on its way through the engine.
struct Ask<'a> {
    slot: Slot,
    o: ObjectRef<'a>,
    place: Place,
    write: bool,
    /// How the object is to be held.
    want: Flags,
    /// It is in the scope of who asks.
    sure: bool,
}

/// A rival that does not lose.
struct Winner {
    slot: Slot,
    side: Side,
    id: TxnId,
    /// It would lose, if it waited for something that is not seen here.
    defers: bool,
}

/// The holds with which an access to an object needs no second look.
fn covering(o: ObjectRef<'_>, want: Flags) -> Flags {
    match want {
        Flags::WRITE => Flags::WRITE,
        // Whoever added names to a directory has not listed it by that.
        Flags::READ | Flags::SOFT if matches!(o, ObjectRef::List(_)) => Flags::READ,
        // What one wrote oneself is read back from one's own copy.
        Flags::READ | Flags::SOFT => Flags::READ.and(Flags::WRITE),
        _ => Flags::NONE,
    }
}

fn side(flags: Flags) -> Side {
    if flags.any(Flags::WRITE) { Side::Write } else { Side::Read }
}

fn overlap(a: ObjectRef<'_>, b: ObjectRef<'_>) -> bool {
    match (a, b) {
        (
            ObjectRef::Pages { oid: x, first: a, last: b },
            ObjectRef::Pages { oid: y, first: c, last: d },
        ) => x == y && a <= d && c <= b,
        _ => a == b,
    }
}
