//! Orders of threads' transactions (`systx_txn`, `order.rs`): joining one, resetting one, and what
//! is awaited in words.

use crate::blocked;
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use rustix::io::Errno;
use std::time::Duration;
use systx_abi as abi;
use systx_txn::{Engine, GroupName, Order, OrderError, Turn};
use systx_vfs::api::Reply;

/// How long one request to commit waits for its turn, or for others that take part. Short, since
/// the thread that waits cannot be killed meanwhile; it asks again.
pub const WAIT: Duration = Duration::from_millis(250);

/// An order as a user names it.
pub fn group(arg: &abi::Order, owner: u32) -> Reply<GroupName> {
    let name = arg.name.get(..arg.name_len as usize).filter(|name| !name.is_empty());
    Ok(GroupName { owner, name: name.ok_or(Errno::INVAL)?.into() })
}

/// A transaction takes its place; else an errno, and the reason in words.
pub fn join(txn: &Transaction, group: GroupName, number: u64) -> Result<(), (Errno, String)> {
    let order = Order { group, number };
    let joined = txn.volume.vol.engine.enlist(txn.id, &order);
    joined.map_err(|why| match why {
        OrderError::Over(next) => {
            (Errno::EXIST, format!("number {number} of the order is used up: {next} comes next"))
        }
        OrderError::Taken(by) => {
            (Errno::BUSY, format!("transaction {by} has number {number} of the order"))
        }
        OrderError::NotFree => (Errno::INVAL, "it is not new, or is in an order already".into()),
        OrderError::Full => (Errno::DQUOT, "its user has too many orders".into()),
    })
}

/// Another number comes next.
pub fn reset(engine: &Engine, group: &GroupName, next: u64) -> Reply<()> {
    engine.reset_order(group, next).map_err(|why| match why {
        OrderError::Full => Errno::DQUOT,
        _ => Errno::BUSY,
    })
}

/// What a transaction waits for, in words, and the errno for who has waited long enough.
pub type Waits = (Errno, String);

/// Waits a while for the turn of a transaction; what it still waits for.
pub fn await_turn(txn: &Transaction, table: &Transactions, wait: bool) -> Option<Waits> {
    let limit = if wait { WAIT } else { Duration::ZERO };
    match txn.volume.vol.engine.wait_turn(txn.id, limit) {
        Turn::Now | Turn::Lost => None,
        Turn::After { number, by } => {
            let Some(id) = by else {
                let words = format!("waits for number {number}, which nobody has begun");
                return Some((Errno::TIMEDOUT, words));
            };
            let mut words = format!("waits for number {number}: transaction {id}");
            let Ok(other) = table.get(id) else { return Some((Errno::TIMEDOUT, words)) };
            let argv: Vec<_> = other.terms.argv.iter().map(ToString::to_string).collect();
            words += &format!(" ({})", argv.join(" "));
            // Perhaps for what the waiting one has.
            let Some(what) = blocked::all_keep_waiting_for(other.terms.whose.client) else {
                return Some((Errno::TIMEDOUT, words));
            };
            Some((Errno::DEADLK, format!("{words}, which waits for {what}")))
        }
    }
}
