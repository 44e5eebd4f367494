//! Ordered transactions: those of one *group* have numbers and commit in the order of these,
//! whenever and by whomever they are begun (TxOS+, EuroSys'12 §5.4).
//!
//! They run side by side. In a conflict within the group the lower number wins, and a commit is
//! only decided once all lower numbers are used up, from the one that the group is at. So the
//! result is that of running them one after another. A number is used up by a commit, also an empty
//! one; a transaction that is not committed leaves its number to the next attempt.
//!
//! Towards everybody else the members of a group contend as the first of them does, or a circle of
//! three could arise in which each beats the next: the policy stays a total order.
//!
//! Which number comes next says the table of the store ([`Orders`]): a number is used up once its
//! commit is durable, and it is the next one's turn when that commit is in its place, too.
//!
//! Who waits for a turn waits for active transactions, or for some that do not exist yet, so it
//! must not wait without a limit: see [`crate::Engine::wait_turn`].

use crate::index::Slab;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use systx_base::{ORDERS, OrderName, OrderStep, Orders, TxnId};

/// A place in an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// The group.
    pub group: OrderName,
    /// The number; a new order is at 0.
    pub number: u64,
}

impl Order {
    /// What the commit at this place says of the order.
    #[must_use]
    pub fn step(self) -> OrderStep {
        OrderStep { order: self.group, next: self.number.saturating_add(1) }
    }
}

/// Why a transaction did not get its place, or a group not its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderError {
    /// The number is used up: the group is at this one.
    Over(u64),
    /// Another transaction has it, or is in the group that is to be reset, or resets it.
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

/// One group that has members, or is being reset.
pub(crate) struct Group {
    pub(crate) name: OrderName,
    /// What is durable of it.
    numbers: Arc<Orders>,
    /// Transactions by number.
    pub(crate) members: BTreeMap<u64, TxnId>,
    reset: Option<TxnId>,
}

impl Group {
    /// Whether it is the turn of a member, or whose it is.
    pub(crate) fn turn(&self, number: u64) -> Turn {
        let next = self.numbers.next(&self.name);
        // One whose commit is durable and not in its place comes first, too.
        match self.members.range(..number.min(next)).next() {
            Some((number, by)) => Turn::After { number: *number, by: Some(*by) },
            None if next == number => Turn::Now,
            None => Turn::After { number: next, by: self.members.get(&next).copied() },
        }
    }
}

/// The groups of a volume that are in use.
#[derive(Default)]
pub(crate) struct Groups {
    groups: Slab<Option<Group>>,
    names: HashMap<OrderName, u32>,
}

impl Groups {
    pub(crate) fn group(&self, at: u32) -> &Group {
        self.groups[at].as_ref().expect("a member keeps its group")
    }

    fn group_mut(&mut self, at: u32) -> &mut Group {
        self.groups[at].as_mut().expect("a member keeps its group")
    }

    fn find_or_make(&mut self, name: &OrderName, numbers: &Arc<Orders>) -> Result<u32, OrderError> {
        if let Some(at) = self.names.get(name) {
            return Ok(*at);
        }
        if numbers.next(name) == 0 {
            let owner = name.owner;
            let new = |n: &&OrderName| n.owner == owner && numbers.next(n) == 0;
            if numbers.count(owner) + self.names.keys().filter(new).count() >= ORDERS {
                return Err(OrderError::Full);
            }
        }
        let (numbers, members) = (Arc::clone(numbers), BTreeMap::new());
        let group = Group { name: name.clone(), numbers, members, reset: None };
        let at = self.groups.insert(Some(group));
        self.names.insert(name.clone(), at);
        Ok(at)
    }

    /// A group that nobody uses is none.
    fn tidy(&mut self, at: u32) {
        let group = self.group(at);
        if group.reset.is_none() && group.members.is_empty() {
            self.names.remove(&group.name.clone());
            self.groups.remove(at);
        }
    }

    pub(crate) fn enter(
        &mut self,
        id: TxnId,
        order: &Order,
        numbers: &Arc<Orders>,
    ) -> Result<u32, OrderError> {
        let at = self.find_or_make(&order.group, numbers)?;
        let group = self.group_mut(at);
        let next = group.numbers.next(&group.name);
        let other = group.reset.or(group.members.get(&order.number).copied());
        let refused = if order.number < next {
            Some(OrderError::Over(next))
        } else {
            other.map(OrderError::Taken)
        };
        if let Some(why) = refused {
            self.tidy(at);
            return Err(why);
        }
        group.members.insert(order.number, id);
        Ok(at)
    }

    /// A member has ended.
    pub(crate) fn leave(&mut self, at: u32, number: u64) {
        self.group_mut(at).members.remove(&number);
        self.tidy(at);
    }

    pub(crate) fn seize(
        &mut self,
        id: TxnId,
        name: &OrderName,
        numbers: &Arc<Orders>,
    ) -> Result<u32, OrderError> {
        let at = self.find_or_make(name, numbers)?;
        let group = self.group_mut(at);
        if let Some(other) = group.reset.or(group.members.values().next().copied()) {
            return Err(OrderError::Taken(other));
        }
        group.reset = Some(id);
        Ok(at)
    }

    pub(crate) fn give_back(&mut self, at: u32) {
        self.group_mut(at).reset = None;
        self.tidy(at);
    }
}
