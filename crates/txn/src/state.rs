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
use crate::hold::{Flags, Slot};
use crate::object::{Conflict, Object, ObjectRef, Opponent, Side};
use crate::order::{Order, OrderError, Turn};
use crate::policy::{Choice, Contender, ContentionPolicy};
use crate::scope::{Claim, Claimant};
use crate::table::Record;
use crate::terms::{Access, BeginOptions, Isolation, Stats, Workset};
use crate::units::{
    Ask, DoomFn, Fallout, Intent, Phase, Seated, Stronger, Txn, Units, covering, side,
};
use std::sync::Arc;
use systx_base::{Orders, TxnId};

mod again;
mod plain;
mod waits;
pub(crate) use again::InTheWay;
pub(crate) use plain::Entered;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) units: Units,
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

impl State {
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
            scoped: self.units.scopes.runs(id),
            asleep: false,
        }
    }

    /// `None` if the id is in use, or one of a plain mutation.
    pub(crate) fn begin(&mut self, id: TxnId, o: &BeginOptions) -> Option<u64> {
        if plain::is_plain(id) || self.units.find(id).is_some() {
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
        self.units.add(txn);
        self.note_takers += usize::from(soft);
        Some(timestamp)
    }

    /// Active → Committing; `None` if there is no such transaction or it was aborted.
    pub(crate) fn decide(
        &mut self,
        id: TxnId,
        fallout: &mut Fallout,
    ) -> Option<Result<(), Conflict>> {
        let turn = self.units.turn(id);
        let slot = self.units.find(id)?;
        self.inject_at_end(slot, fallout);
        let txn = self.units.txn_mut(slot);
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
        let slot = self.units.find(id)?;
        let txn = self.units.txn_mut(slot);
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
        let by = self.units.opponent(slot);
        let txn = self.units.txn(slot);
        let family = txn.family;
        if txn.phase == Phase::Installing && self.note_takers > 0 {
            let mut report = Vec::new();
            let (table, txns) = (&mut self.units.table, &self.units.txns);
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
            self.units.table.release(slot, *record);
        }
    }

    /// Last step of an end; whether it was a plain mutation's.
    pub(crate) fn finish_end(&mut self, slot: Slot) -> bool {
        let txn = self.units.txn(slot);
        let plain = txn.caller.is_some();
        self.note_takers -= usize::from(txn.notes_stale);
        self.plain -= usize::from(plain);
        self.again.leave(txn.contender.id);
        self.units.remove(slot);
        plain
    }

    fn note_stale(&mut self, report: Vec<(Slot, Object)>, by: Opponent) {
        for (slot, object) in report {
            self.units.txn_mut(slot).stale.push((object, by));
        }
    }

    /// Makes an active transaction lose.
    fn lose(&mut self, slot: Slot, why: Conflict, fallout: &mut Fallout) -> bool {
        let txn = self.units.txn_mut(slot);
        if txn.phase != Phase::Active {
            return false;
        }
        txn.phase = Phase::Doomed;
        let id = txn.contender.id;
        for call in std::mem::take(&mut txn.on_doom.calls) {
            fallout.push((call, id, why.clone()));
        }
        txn.conflict = Some(why);
        self.units.scopes.remove(id);
        self.again.leave(id);
        true
    }

    pub(crate) fn doom(&mut self, id: TxnId, why: Conflict, fallout: &mut Fallout) -> bool {
        self.units.find(id).is_some_and(|slot| self.lose(slot, why, fallout))
    }

    /// Registers a call; gives it back with the conflict if the transaction has lost already.
    pub(crate) fn on_doom(&mut self, id: TxnId, call: DoomFn) -> Option<(DoomFn, Conflict)> {
        let slot = self.units.find(id)?;
        let txn = self.units.txn_mut(slot);
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
        let Some(slot) = self.units.find(id) else { return Ok(Access::Doomed) };
        let me = self.units.txn_mut(slot);
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
                let held = self.units.table.held(slot, o, self.units.table.locate(o, write));
                let held = held.any(Flags::WRITE);
                return Ok(if held { Access::Granted } else { Access::Doomed });
            }
        }
        let sure = self.units.in_scope(slot, o, write);
        let want = self.units.wants(slot, intent, sure);
        let place = self.units.table.locate(o, write);
        let held = self.units.table.held(slot, o, place);
        if held.any(covering(o, want)) {
            return Ok(Access::Granted);
        }
        let hard = want.any(Flags::READ.and(Flags::WRITE));
        if hard && self.trespasses(slot, (o, want, sure), fallout) {
            return Ok(Access::Doomed);
        }
        let ask = Ask { slot, o, place, write, want, sure };
        let mut rivals = Vec::new();
        if let Some(winner) = self.units.rivals(&ask, &mut rivals) {
            self.waits += 1;
            return Ok(Access::Wait(winner));
        }
        if let Some(why) = self.units.built_on_stale(&ask) {
            self.lose(slot, why, fallout);
            return Ok(Access::Doomed);
        }
        if !rivals.is_empty() && !self.arbitrate(&ask, &rivals, policy, (looked, fallout))? {
            return Ok(Access::Doomed);
        }
        // A soft read looks for commits that install every time, but is noted once.
        if want != Flags::NONE && !held.any(want) {
            self.units.record(slot, o, place, want);
            if self.inject_at(slot, (o, want), fallout) {
                return Ok(Access::Doomed);
            }
        }
        Ok(Access::Granted)
    }

    /// Whether a transaction loses by going for what is in the scope of another.
    fn trespasses(
        &mut self,
        slot: Slot,
        (o, want, sure): (ObjectRef<'_>, Flags, bool),
        fallout: &mut Fallout,
    ) -> bool {
        let Some((id, write)) = self.units.claimed(slot, (o, want, sure)) else { return false };
        let (mine, theirs) = (side(want), if write { Side::Write } else { Side::Read });
        self.conflicts += 1;
        let opponent = Opponent::Txn(id);
        self.lose(slot, Conflict { object: o.to_object(), opponent, mine, theirs }, fallout)
    }

    /// The transaction has just added an object; whether it loses by that for a test, see
    /// [`crate::Inject`]: as to an opponent, with all that it holds, this object included.
    fn inject_at(
        &mut self,
        slot: Slot,
        (o, want): (ObjectRef<'_>, Flags),
        fallout: &mut Fallout,
    ) -> bool {
        let txn = self.units.txn_mut(slot);
        let Some(inject) = txn.inject else { return false };
        txn.added = txn.added.saturating_add(1);
        let me = txn.contender;
        if !inject.strikes_at(me.id, me.age, txn.added) {
            return false;
        }
        let (opponent, mine) = (Opponent::Injected, side(want));
        let why = Conflict { object: o.to_object(), opponent, mine, theirs: mine };
        self.lose(slot, why, fallout)
    }

    /// The same, where it is about to be decided.
    fn inject_at_end(&mut self, slot: Slot, fallout: &mut Fallout) {
        let txn = self.units.txn(slot);
        let strikes = txn.inject.is_some_and(|i| i.strikes_at_end(txn.contender.age));
        if !strikes || txn.phase != Phase::Active {
            return;
        }
        // Who holds nothing cannot lose.
        let Some(last) = txn.records.last() else { return };
        let held = self.units.table.held_of(slot, *last);
        if let Some((object, flags)) = held.into_iter().next() {
            let (opponent, mine) = (Opponent::Injected, side(flags));
            self.lose(slot, Conflict { object, opponent, mine, theirs: mine }, fallout);
        }
    }

    /// Whether the challenger wins against all rivals; whoever loses is doomed.
    fn arbitrate(
        &mut self,
        ask: &Ask<'_>,
        rivals: &[(Slot, Side)],
        policy: &dyn ContentionPolicy,
        (looked, fallout): (&[TxnId], &mut Fallout),
    ) -> Result<bool, Stronger> {
        let me = self.units.contender(ask.slot);
        let mine = side(ask.want);
        if let Some(winner) = self.units.stronger(ask, &me, rivals, policy) {
            if let Some(stronger) = self.units.not_looked_at(&winner, looked) {
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
        self.units.table.holders(o, self.units.table.locate(o, true), true, |slot, flags| {
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
                doomed.push(self.units.txn(slot).contender.id);
            }
        }
        let mut report = Vec::new();
        let txns = &self.units.txns;
        let active = |s: Slot| txns[s].as_ref().is_some_and(|t| t.phase == Phase::Active);
        self.units.table.make_stale(o, &active, &mut report);
        self.note_stale(report, Opponent::Outside);
        doomed
    }

    pub(crate) fn merge_reads(
        &mut self,
        from: TxnId,
        into: TxnId,
        fallout: &mut Fallout,
    ) -> Access {
        let (Some(source), Some(target)) = (self.units.find(from), self.units.find(into)) else {
            return Access::Doomed;
        };
        if self.units.txn(target).phase != Phase::Active {
            return Access::Doomed;
        }
        if self.units.txn(source).phase != Phase::Active {
            if let Some(why) = self.units.txn(source).conflict.clone() {
                self.lose(target, why, fallout);
            }
            return Access::Doomed;
        }
        let reads = Flags::READ.and(Flags::SOFT).and(Flags::STALE);
        for record in self.units.txn(source).records.clone() {
            for (object, flags) in self.units.table.held_of(source, record) {
                let keep = Flags(flags.0 & reads.0);
                if !keep.is_none() {
                    let o = object.as_ref();
                    self.units.record(target, o, self.units.table.locate(o, false), keep);
                }
            }
        }
        let txn = self.units.txn(source);
        let (family, notes, stale) = (txn.family, txn.notes_stale, txn.stale.clone());
        let (follows, whole) = (txn.follows.clone(), txn.contender);
        let txn = self.units.txn_mut(target);
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

    // ---- what others than accesses bring -------------------------------------------------

    /// See [`crate::Engine::line_up`].
    pub(crate) fn line_up(&mut self, who: Claimant, claims: Vec<Claim>, since: Option<u64>) -> u64 {
        debug_assert!(self.units.find(who.id).is_none(), "a scope comes before its transaction");
        self.units.scopes.line_up(who, claims, since)
    }

    /// See [`crate::Engine::leave_line`].
    pub(crate) fn leave_line(&mut self, id: TxnId) -> bool {
        self.units.find(id).is_none() && self.units.scopes.remove(id)
    }

    /// See [`crate::Engine::enlist`]; `wake` is called when it loses.
    pub(crate) fn enlist(
        &mut self,
        id: TxnId,
        order: &Order,
        numbers: &Arc<Orders>,
        wake: DoomFn,
    ) -> Result<(), OrderError> {
        let slot = self.units.find(id).ok_or(OrderError::NotFree)?;
        let txn = self.units.txn(slot);
        if txn.phase != Phase::Active || txn.place.is_some() || txn.workset != Default::default() {
            return Err(OrderError::NotFree);
        }
        let group = self.units.orders.enter(id, order, numbers)?;
        let txn = self.units.txn_mut(slot);
        txn.place = Some(Seated { group, number: order.number });
        txn.on_doom.calls.push(wake);
        // It may have to wait for one that is weaker.
        self.again.leave(id);
        Ok(())
    }

    // ---- numbers -----------------------------------------------------------------------------

    pub(crate) fn stats(&self) -> Stats {
        let (inodes, entries) = self.units.table.len();
        Stats {
            transactions: (self.units.txns.len() - self.plain) as u64,
            inodes: inodes as u64,
            entries: entries as u64,
            scopes: self.units.scopes.len() as u64,
            again: self.again.len() as u64,
            conflicts: self.conflicts,
            waits: self.waits,
        }
    }
}
