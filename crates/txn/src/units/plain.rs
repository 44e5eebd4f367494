//! What a request from outside every transaction meets.

use super::{Phase, Txn, Units};
use crate::hold::{Flags, Slot};
use crate::object::{Caller, ObjectRef, Side};
use crate::policy::ContentionPolicy;
use std::cell::OnceCell;
use systx_base::{Oid, TxnId};

/// An active transaction that a mutation is in the way of.
pub(crate) struct Rival<'a> {
    pub(crate) slot: Slot,
    pub(crate) object: ObjectRef<'a>,
    pub(crate) side: Side,
    /// Its read only goes stale.
    pub(crate) soft: bool,
}

impl Units {
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
    pub(crate) fn held_for(
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
}
