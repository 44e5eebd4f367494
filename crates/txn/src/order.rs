//! Ordered transactions: those of one *group* have numbers and commit in the order of these,
//! whenever and by whomever they are begun (TxOS+, EuroSys'12 §5.4).
//!
//! They run side by side. In a conflict within the group the lower number wins, and a commit is
//! only decided once all lower numbers are used up, from the one that the group is at. So the
//! result is that of running them one after another. A number is used up by a commit, also an empty
//! one; a transaction that ends without effect leaves its number to the next attempt.
//!
//! Towards everybody else the members of a group contend as the first of them does, or a circle of
//! three could arise in which each beats the next: the policy stays a total order.
//!
//! Who waits for a turn waits for active transactions, or for some that do not exist yet, so it
//! must not wait without a limit: see [`Engine::wait_turn`].

use crate::engine::Engine;
use crate::index::Slab;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use systx_base::TxnId;

/// Most groups of one owner.
const GROUPS: usize = 1024;

/// A name for an order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupName {
    /// Whose it is: owners do not meet each other's groups.
    pub owner: u32,
    /// Its name among theirs.
    pub name: Box<[u8]>,
}

/// A place in an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// The group.
    pub group: GroupName,
    /// The number; a new group is at 0.
    pub number: u64,
}

/// Why a transaction did not get its place, or a group not its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderError {
    /// The number is used up: the group is at this one.
    Over(u64),
    /// Another transaction has it (a reset: is in the group).
    Taken(TxnId),
    /// It has a place already, or is not active.
    NotFree,
    /// The owner has too many groups.
    Full,
}

/// Whether a transaction may be committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is in no order, or everything before it is over.
    Now,
    /// This number comes first.
    After {
        /// It is the one that the group is at.
        number: u64,
        /// Who has it; `None`: nobody has begun it, or tries again.
        by: Option<TxnId>,
    },
    /// It has lost, or ended.
    Lost,
}

/// One group that has members, or has used up numbers.
pub(crate) struct Group {
    name: GroupName,
    /// The number whose turn it is.
    pub(crate) next: u64,
    /// Transactions by number.
    pub(crate) members: BTreeMap<u64, TxnId>,
}

/// The groups of a volume.
#[derive(Default)]
pub(crate) struct Orders {
    groups: Slab<Option<Group>>,
    names: HashMap<GroupName, u32>,
}

impl Orders {
    pub(crate) fn group(&self, at: u32) -> &Group {
        self.groups[at].as_ref().expect("a member keeps its group")
    }

    fn group_mut(&mut self, at: u32) -> &mut Group {
        self.groups[at].as_mut().expect("a member keeps its group")
    }

    fn find_or_make(&mut self, name: &GroupName) -> Result<u32, OrderError> {
        if let Some(at) = self.names.get(name) {
            return Ok(*at);
        }
        if self.names.keys().filter(|n| n.owner == name.owner).count() >= GROUPS {
            return Err(OrderError::Full);
        }
        let group = Group { name: name.clone(), next: 0, members: BTreeMap::new() };
        let at = self.groups.insert(Some(group));
        self.names.insert(name.clone(), at);
        Ok(at)
    }

    /// A group of which there is nothing to remember is none.
    fn tidy(&mut self, at: u32) {
        let group = self.group(at);
        if group.next == 0 && group.members.is_empty() {
            self.names.remove(&group.name.clone());
            self.groups.remove(at);
        }
    }

    pub(crate) fn enter(&mut self, id: TxnId, order: &Order) -> Result<u32, OrderError> {
        let at = self.find_or_make(&order.group)?;
        let group = self.group_mut(at);
        if order.number < group.next {
            return Err(OrderError::Over(group.next));
        }
        if let Some(other) = group.members.get(&order.number) {
            return Err(OrderError::Taken(*other));
        }
        group.members.insert(order.number, id);
        Ok(at)
    }

    /// A member has ended.
    pub(crate) fn leave(&mut self, at: u32, number: u64, used_up: bool) {
        let group = self.group_mut(at);
        group.members.remove(&number);
        if used_up && number == group.next {
            group.next = number.saturating_add(1);
        }
        self.tidy(at);
    }

    pub(crate) fn reset(&mut self, name: &GroupName, next: u64) -> Result<(), OrderError> {
        let at = self.find_or_make(name)?;
        let group = self.group_mut(at);
        if let Some(member) = group.members.values().next() {
            return Err(OrderError::Taken(*member));
        }
        group.next = next;
        self.tidy(at);
        Ok(())
    }
}

impl Engine {
    /// Gives a transaction that has just begun its place in an order.
    ///
    /// # Errors
    /// See [`OrderError`]; the transaction stays as it was.
    pub fn enlist(&self, t: TxnId, order: &Order) -> Result<(), OrderError> {
        let ended = self.ended.clone();
        let wake = Box::new(move |_, _: &_| ended.notify_all());
        self.state.lock().enlist(t, order, wake)
    }

    /// Whether it may be decided.  Once it may, it may until it ends.
    pub fn turn(&self, t: TxnId) -> Turn {
        self.state.lock().turn(t)
    }

    /// As [`Engine::turn`], after waiting for it at most `limit` long.
    ///
    /// Others wait for who waits here if it is a member with a lower number, and for their numbers
    /// only; the caller must hold no lock that the others need.
    pub fn wait_turn(&self, t: TxnId, limit: Duration) -> Turn {
        self.wait_while(limit, |state| matches!(state.turn(t), Turn::After { .. }));
        self.turn(t)
    }

    /// The end of a transaction that commits nothing and whose turn it is: its number is used up.
    /// Of one that is in no order, and of one that lost, an abort.
    pub fn pass(&self, t: TxnId) {
        self.state.lock().pass(t);
        self.end(t, false);
    }

    /// From now on it is the turn of `next`.
    ///
    /// # Errors
    /// `Taken`: there are members; `Full`.
    pub fn reset_order(&self, group: &GroupName, next: u64) -> Result<(), OrderError> {
        self.state.lock().reset_order(group, next)
    }
}
