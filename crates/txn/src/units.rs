//! Who there is, transactions and plain mutations, and what each of them holds: to be asked. Who
//! loses, and who begins and ends, is decided above (`state.rs`).

use crate::hold::{Flags, Hold, Slot};
use crate::index::{Index, Slab};
use crate::inject::Inject;
use crate::object::{Caller, Conflict, Object, ObjectRef, Opponent, Side};
use crate::order::{Groups, Order, Turn};
use crate::policy::{Choice, Contender, Follows};
use crate::scope::Scopes;
use crate::table::{Place, Record, Table};
use crate::terms::{Census, Status, Workset};
use std::sync::Arc;
use systx_base::{Oid, TxnId};

mod contest;
mod plain;
pub(crate) use contest::{Ask, Intent, covering};
pub(crate) use plain::Rival;

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

/// Where in its life a transaction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
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
    pub(crate) fn decided(self) -> bool {
        matches!(self, Phase::Committing | Phase::Installing)
    }
}

/// What happens when a transaction loses.
#[derive(Default)]
pub(crate) struct OnDoom {
    pub(crate) calls: Vec<DoomFn>,
    /// One of them wakes those that wait for it, and its own reads that wait.
    pub(crate) wakes: bool,
}

/// A transaction's place.
#[derive(Clone, Copy)]
pub(crate) struct Seated {
    pub(crate) group: u32,
    pub(crate) number: u64,
}

/// A transaction, or a plain mutation that is being performed.
pub(crate) struct Txn {
    pub(crate) phase: Phase,
    /// As what it began; what changes is looked up when it counts ([`Txn::contends`]).
    pub(crate) contender: Contender,
    pub(crate) follows: Follows,
    /// Reads are soft.
    pub(crate) soft: bool,
    /// Writes are private for ever and are not recorded.
    pub(crate) read_only: bool,
    /// May hold soft reads: its own or merged ones.
    pub(crate) notes_stale: bool,
    /// Transactions split from one another have the same family and do not conflict.
    pub(crate) family: TxnId,
    pub(crate) conflict: Option<Conflict>,
    pub(crate) stale: Vec<(Object, Opponent)>,
    pub(crate) records: Vec<Record>,
    pub(crate) workset: Workset,
    pub(crate) on_doom: OnDoom,
    /// Of a plain mutation: whose it is.
    pub(crate) caller: Option<Caller>,
    /// What it asked plain mutations to wait for.
    pub(crate) reserved: bool,
    /// Its place in an order.
    pub(crate) place: Option<Seated>,
    /// Who tells whether it waits for something that is not seen here.
    pub(crate) look: Option<Look>,
    /// Where it loses for a test.
    pub(crate) inject: Option<Inject>,
    /// Objects that it added, while that matters.
    pub(crate) added: u32,
}

impl Txn {
    pub(crate) fn new(phase: Phase, contender: Contender) -> Txn {
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
    pub(crate) fn contends(&self) -> Contender {
        let now = self.follows.as_ref().and_then(|who| who.now());
        let priority = now.unwrap_or(self.contender.priority);
        let size = self.workset.reads + self.workset.writes;
        Contender { priority, size, ..self.contender }
    }
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Units {
    pub(crate) table: Table,
    pub(crate) txns: Slab<Option<Txn>>,
    ids: Index,
    pub(crate) orders: Groups,
    pub(crate) scopes: Scopes,
}

fn id_hash(id: TxnId) -> u32 {
    (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

pub(crate) fn side(flags: Flags) -> Side {
    if flags.any(Flags::WRITE) { Side::Write } else { Side::Read }
}

impl Units {
    pub(crate) fn find(&self, id: TxnId) -> Option<Slot> {
        self.ids.find(id_hash(id), |slot| self.txn(slot).contender.id == id)
    }

    pub(crate) fn txn(&self, slot: Slot) -> &Txn {
        self.txns[slot].as_ref().expect("slots in the index and in holds are in use")
    }

    pub(crate) fn txn_mut(&mut self, slot: Slot) -> &mut Txn {
        self.txns[slot].as_mut().expect("slots in the index and in holds are in use")
    }

    pub(crate) fn phase(&self, id: TxnId) -> Option<Phase> {
        self.find(id).map(|slot| self.txn(slot).phase)
    }

    /// A new one.
    pub(crate) fn add(&mut self, txn: Txn) -> Slot {
        let id = txn.contender.id;
        let slot = self.txns.insert(Some(txn));
        assert!(slot < Hold::SLOTS, "memory ends before a hundred million transactions");
        self.ids.insert(id_hash(id), slot);
        slot
    }

    /// It has ended.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let Txn { contender: Contender { id, .. }, place, .. } = *self.txn(slot);
        if let Some(place) = place {
            self.orders.leave(place.group, place.number);
        }
        self.scopes.remove(id);
        self.ids.remove(id_hash(id), slot);
        self.txns.remove(slot);
    }

    /// Records that it holds an object.
    pub(crate) fn record(&mut self, slot: Slot, o: ObjectRef<'_>, place: Place, want: Flags) {
        let added = self.table.record(slot, o, place, want);
        let txn = self.txn_mut(slot);
        txn.records.extend(added.records.iter().flatten());
        txn.workset.reads += added.reads;
        txn.workset.writes += added.writes;
    }

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

    /// Whether a mutation that is held for a transaction has to go on waiting.
    pub(crate) fn stands(&self, id: TxnId) -> bool {
        self.phase(id).is_some_and(|p| p == Phase::Active || p.decided())
    }

    /// What a transaction's rivals are told that they lost to.
    pub(crate) fn opponent(&self, slot: Slot) -> Opponent {
        let txn = self.txn(slot);
        txn.caller.map_or(Opponent::Txn(txn.contender.id), Opponent::Plain)
    }

    /// See [`crate::Engine::turn`].
    pub(crate) fn turn(&self, id: TxnId) -> Turn {
        let Some(txn) = self.find(id).map(|slot| self.txn(slot)) else { return Turn::Lost };
        match (txn.phase, txn.place) {
            (Phase::Doomed | Phase::Ending, _) => Turn::Lost,
            (Phase::Active, Some(place)) => self.orders.group(place.group).turn(place.number),
            (Phase::Active, None) | (Phase::Committing | Phase::Installing, _) => Turn::Now,
        }
    }

    /// See [`crate::Engine::place_in_order`].
    pub(crate) fn place_in_order(&self, id: TxnId) -> Option<Order> {
        let place = self.txn(self.find(id)?).place?;
        let group = self.orders.group(place.group).name.clone();
        Some(Order { group, number: place.number })
    }

    /// See [`crate::Engine::lost_asleep`].
    pub(crate) fn lost_asleep(&self, id: TxnId) -> bool {
        let lost =
            |slot: Slot| self.txn(slot).phase == Phase::Doomed && self.txn(slot).contender.asleep;
        self.find(id).is_some_and(lost)
    }

    /// The rule that a transaction has asked for.
    pub(crate) fn chose(&self, id: TxnId) -> Option<Choice> {
        self.find(id).map(|slot| self.txn(slot).contender.choice)
    }

    /// Whether one that waits for another has to go on waiting.
    pub(crate) fn stalls(&self, waiter: TxnId, winner: TxnId) -> bool {
        self.phase(waiter) == Some(Phase::Active) && self.stands(winner)
    }
}
