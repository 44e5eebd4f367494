//! The numbers that orders of transactions are at.
//!
//! The table is what a store has made durable: it changes with the record of a commit, and never
//! before. Whoever decides about turns reads it and keeps no number of their own, so the two cannot
//! come apart.

use crate::Time;
use crate::sync::{Mutex, rank};
use std::collections::BTreeMap;

/// Longest name of an order, in bytes.
pub const ORDER_NAME: usize = 64;

/// Most orders of one owner.
pub const ORDERS: usize = 1024;

/// A name for an order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OrderName {
    /// Whose it is: owners do not meet each other's orders.
    pub owner: u32,
    /// Its name among theirs.
    pub name: Box<[u8]>,
}

/// What a commit says of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OrderStep {
    /// Which order.
    pub order: OrderName,
    /// The number that comes next; 0: nothing of the order is remembered.
    pub next: u64,
}

/// An order of which there is something to remember.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remembered {
    /// What comes next in it, never 0.
    pub step: OrderStep,
    /// When the last step was.
    pub at: Time,
}

#[derive(Default)]
struct Table {
    orders: BTreeMap<OrderName, (u64, Time)>,
    changes: u64,
}

/// The orders of one store; shared by reference between threads.
pub struct Orders(Mutex<Table>);

impl Default for Orders {
    fn default() -> Orders {
        Orders(Mutex::new(rank::LEAF, Table::default()))
    }
}

impl Orders {
    /// Those that a store remembers.
    #[must_use]
    pub fn remembered(all: impl IntoIterator<Item = Remembered>) -> Orders {
        let this = Orders::default();
        for Remembered { step, at } in all {
            this.take(&step, at);
        }
        this
    }

    /// A commit that is durable says this.
    pub fn take(&self, step: &OrderStep, at: Time) {
        let mut table = self.0.lock();
        table.changes += 1;
        if step.next == 0 {
            table.orders.remove(&step.order);
        } else {
            table.orders.insert(step.order.clone(), (step.next, at));
        }
    }

    /// The number that comes next in an order; one that is not remembered is at 0.
    #[must_use]
    pub fn next(&self, order: &OrderName) -> u64 {
        self.0.lock().orders.get(order).map_or(0, |(next, _)| *next)
    }

    /// How many orders of an owner are remembered.
    #[must_use]
    pub fn count(&self, owner: u32) -> usize {
        let table = self.0.lock();
        table.orders.range(all_of(owner)).take_while(|(order, _)| order.owner == owner).count()
    }

    /// The order of an owner that has not been used for the longest time, and when it was.
    #[must_use]
    pub fn oldest(&self, owner: u32) -> Option<(OrderName, Time)> {
        let table = self.0.lock();
        let own = table.orders.range(all_of(owner)).take_while(|(order, _)| order.owner == owner);
        own.min_by_key(|(_, (_, at))| *at).map(|(order, (_, at))| (order.clone(), *at))
    }

    /// All, sorted, and a number that is another one whenever something has changed.
    #[must_use]
    pub fn all(&self) -> (u64, Vec<Remembered>) {
        let table = self.0.lock();
        let remembered = |(order, (next, at)): (&OrderName, &(u64, Time))| Remembered {
            step: OrderStep { order: order.clone(), next: *next },
            at: *at,
        };
        (table.changes, table.orders.iter().map(remembered).collect())
    }
}

fn all_of(owner: u32) -> std::ops::RangeFrom<OrderName> {
    OrderName { owner, name: Box::default() }..
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(owner: u32, name: &str, next: u64) -> OrderStep {
        OrderStep { order: OrderName { owner, name: name.as_bytes().into() }, next }
    }

    fn time(secs: i64) -> Time {
        Time { secs, ..Time::default() }
    }

    #[test]
    fn an_order_is_remembered_until_it_is_at_0() {
        let orders = Orders::default();
        let a = step(1, "a", 3);
        assert_eq!(orders.next(&a.order), 0);
        orders.take(&a, time(9));
        orders.take(&step(1, "b", 1), time(5));
        orders.take(&step(2, "a", 7), time(1));
        assert_eq!((orders.next(&a.order), orders.count(1), orders.count(3)), (3, 2, 0));
        assert_eq!(orders.oldest(1), Some((step(1, "b", 0).order, time(5))));
        let (changes, all) = orders.all();
        let again = Orders::remembered(all.clone());
        assert_eq!(again.all().1, all);
        orders.take(&step(1, "a", 0), time(10));
        assert_eq!((orders.next(&a.order), orders.count(1)), (0, 1));
        assert_ne!(orders.all().0, changes);
    }
}
