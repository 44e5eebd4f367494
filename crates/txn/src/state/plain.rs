//! Plain units in the state: what a request from outside every transaction does.
//!
//! A mutation is entered as a transaction that is decided from the start: the accesses of others,
//! their waiting and what goes stale at its end are then those of any commit that installs. It is
//! entered with all its objects at once or not at all, so one that has to wait holds nothing.

use super::{Fallout, Phase, State, Txn, id_hash, side};
use crate::hold::{Flags, Hold, Slot};
use crate::object::{Conflict, ObjectRef, Opponent, Side};
use crate::plain::{Caller, Stall};
use crate::policy::{Choice, Contender, ContentionPolicy};
use crate::state::DoomFn;
use std::cell::OnceCell;
use systx_base::{Oid, TxnId};

/// Ids of plain mutations: in the half that is never given to a transaction.
const PLAIN: u64 = 1 << 63;

pub(super) fn is_plain(id: TxnId) -> bool {
    id.0 & PLAIN != 0
}

/// An active transaction that a mutation is in the way of.
struct Rival<'a> {
    slot: Slot,
    object: ObjectRef<'a>,
    side: Side,
    /// Its read only goes stale.
    soft: bool,
}

/// What becomes of a mutation.
pub(crate) enum Entered {
    /// It is decided.
    Decided(TxnId, Vec<TxnId>),
    Wait(TxnId),
    Hold(TxnId),
}

impl State {
    pub(crate) fn plain_mutation(
        &mut self,
        objects: &[ObjectRef<'_>],
        by: Caller,
        stall: Stall,
        (policy, fallout): (&dyn ContentionPolicy, &mut Fallout),
    ) -> Entered {
        let mut winner = None;
        let mut rivals: Vec<Rival<'_>> = Vec::new();
        for o in objects {
            self.table.holders(*o, self.table.locate(*o, true), true, |slot, flags| {
                let txn = self.txn(slot);
                // Also what it only read: who sees this mutation must not miss that commit
                // afterwards.
                if txn.phase.decided() && flags.any(Flags::READ.and(Flags::WRITE)) {
                    winner = Some(txn.contender.id);
                } else if txn.phase == Phase::Active {
                    let soft = !flags.any(Flags::READ.and(Flags::WRITE));
                    rivals.push(Rival { slot, object: *o, side: side(flags), soft });
                }
                winner.is_none()
            });
        }
        if let Some(winner) = winner {
            self.waits += 1;
            return Entered::Wait(winner);
        }
        if let (Stall::Bounded, Some(slot)) = (stall, self.held_for(&rivals, by, policy)) {
            self.waits += 1;
            return Entered::Hold(self.txn(slot).contender.id);
        }
        let mut doomed = Vec::new();
        for Rival { slot, object, side: mine, .. } in rivals.into_iter().filter(|r| !r.soft) {
            let (object, opponent, theirs) = (object.to_object(), Opponent::Plain(by), Side::Write);
            if self.lose(slot, Conflict { object, opponent, mine, theirs }, fallout) {
                doomed.push(self.txn(slot).contender.id);
            }
        }
        Entered::Decided(self.enter_plain(objects, by), doomed)
    }

    /// The plain unit that these lost to was made by `by`.
    pub(crate) fn name_opponent(&mut self, doomed: &[TxnId], by: Caller) {
        for id in doomed {
            let Some(slot) = self.find(*id) else { continue };
            if let Some(Conflict { opponent: Opponent::Plain(known), .. }) =
                &mut self.txn_mut(slot).conflict
            {
                *known = by;
            }
        }
    }

    /// See [`crate::Engine::is_held`].
    pub(crate) fn is_held(&self, o: ObjectRef<'_>) -> bool {
        let mut held = false;
        self.table.holders(o, self.table.locate(o, false), false, |slot, _| {
            held = self.txn(slot).caller.is_none();
            !held
        });
        held
    }

    /// See [`crate::Engine::is_changing`].
    pub(crate) fn is_changing(&self, oid: Oid) -> bool {
        let pages = ObjectRef::Pages { oid, first: 0, last: u64::MAX };
        let parts = [ObjectRef::Attr(oid), ObjectRef::Size(oid), pages];
        parts.into_iter().any(|part| {
            let mut plain = false;
            self.table.holders(part, self.table.locate(part, false), false, |slot, _| {
                plain = self.txn(slot).caller.is_some();
                !plain
            });
            plain
        })
    }

    /// See [`crate::Engine::holds`].
    pub(crate) fn holds(&self, id: TxnId, o: ObjectRef<'_>) -> bool {
        let kinds = Flags::READ.and(Flags::WRITE).and(Flags::SOFT);
        let place = self.table.locate(o, false);
        self.find(id).is_some_and(|slot| self.table.holds_any(slot, kinds, o, place))
    }

    /// See [`crate::Engine::reserved_for`].
    pub(crate) fn reserved_for(&self, file: Oid) -> Option<TxnId> {
        let pages = ObjectRef::Pages { oid: file, first: 0, last: u64::MAX };
        let place = self.table.locate(pages, false);
        let mut found = None;
        self.table.holders(pages, place, false, |slot, flags| {
            let txn = self.txn(slot);
            let stands = txn.reserved && txn.phase == Phase::Active && txn.stale.is_empty();
            let wrote = self.table.holds_any(slot, Flags::WRITE, pages, place);
            if stands && !wrote && !flags.any(Flags::WRITE) {
                found = Some(txn.contender.id);
            }
            found.is_none()
        });
        found
    }

    /// See [`crate::Engine::is_reserved`].
    pub(crate) fn is_reserved(&self, id: TxnId) -> bool {
        self.find(id)
            .map(|slot| self.txn(slot))
            .is_some_and(|t| t.reserved && t.phase == Phase::Active)
    }

    /// Who is worth holding a mutation for: nobody that loses to it anyway by another object.
    fn held_for(
        &self,
        rivals: &[Rival<'_>],
        by: Caller,
        policy: &dyn ContentionPolicy,
    ) -> Option<Slot> {
        // What it wrote it will publish, which has to wait for locks that a held mutation keeps.
        let wrote = |slot: Slot, o: ObjectRef<'_>| {
            self.table.held(slot, o, self.table.locate(o, false)).any(Flags::WRITE)
        };
        let holds = |r: &Rival<'_>| {
            let wrote = match r.object {
                ObjectRef::Entry { dir, .. } | ObjectRef::List(dir) => {
                    wrote(r.slot, ObjectRef::List(dir))
                }
                _ => r.side == Side::Write,
            };
            // Whose reads are stale already has nothing left to be spared.
            let txn = self.txn(r.slot);
            txn.reserved && txn.stale.is_empty() && !wrote
        };
        // Both are system calls: of the plain thread once, of each transaction once.
        let plain = OnceCell::new();
        let outranks = |txn: &Txn| {
            let ask = || txn.follows.as_ref().and_then(|who| who.of(by.pid)).unwrap_or(0);
            policy.holds_up(&txn.contends(), *plain.get_or_init(ask))
        };
        let mut asked = Vec::new();
        rivals.iter().map(|r| r.slot).find(|slot| {
            if asked.contains(slot) {
                return false;
            }
            asked.push(*slot);
            let all = rivals.iter().filter(|r| r.slot == *slot).all(holds);
            all && outranks(self.txn(*slot))
        })
    }

    fn enter_plain(&mut self, objects: &[ObjectRef<'_>], by: Caller) -> TxnId {
        let id = TxnId(PLAIN | self.next_plain);
        self.next_plain += 1;
        let contender = Contender {
            id,
            priority: 0,
            size: 0,
            karma: 0,
            choice: Choice::default(),
            age: 0,
            timestamp: 0,
            guest: false,
            place: None,
            scoped: false,
            asleep: false,
        };
        let mut txn = Txn::new(Phase::Committing, contender);
        txn.caller = Some(by);
        let slot = self.txns.insert(Some(txn));
        assert!(slot < Hold::SLOTS, "memory ends before a hundred million transactions");
        self.ids.insert(id_hash(id), slot);
        self.plain += 1;
        for o in objects {
            let place = self.table.locate(*o, true);
            // The same object twice in one call: held once.
            if !self.table.held(slot, *o, place).any(Flags::WRITE) {
                let added = self.table.record(slot, *o, place, Flags::WRITE);
                self.add_to_workset(slot, &added);
            }
        }
        id
    }

    /// See [`crate::Engine::reserve`]; `wake` is called when the transaction loses.
    pub(crate) fn reserve(
        &mut self,
        id: TxnId,
        policy: &dyn ContentionPolicy,
        wake: DoomFn,
    ) -> bool {
        let Some(slot) = self.find(id) else { return false };
        let txn = self.txn_mut(slot);
        if txn.phase != Phase::Active || !policy.may_reserve(&txn.contends()) {
            return false;
        }
        if !std::mem::replace(&mut txn.reserved, true) {
            txn.on_doom.calls.push(wake);
        }
        true
    }

    /// Whether a mutation that is held for a transaction has to go on waiting.
    pub(crate) fn stands(&self, id: TxnId) -> bool {
        self.phase(id).is_some_and(|p| p == Phase::Active || p.decided())
    }

    /// What a transaction's rivals are told that they lost to.
    pub(crate) fn opponent(&self, slot: Slot) -> Opponent {
        let txn = self.txn(slot);
        txn.caller.map_or(Opponent::Txn(txn.contender.id), Opponent::Plain)
    }
}
