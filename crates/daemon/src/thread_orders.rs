//! Orders of threads' transactions (`systx_txn`, `order.rs`): joining one, resetting one, and what
//! is awaited in words.

use crate::blocked;
use crate::protocol::Failure;
use crate::stopped::errno_of;
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use crate::volume::OpenVolume;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use systx_abi as abi;
use systx_base::{OrderName, OrderStep, Orders, shown};
use systx_store::{CommitMeta, TxnKind};
use systx_txn::{Order, OrderError, Turn};
use systx_vfs::api::Reply;

/// How long one request to commit waits for its turn, or for others that take part. Short, since
/// the thread that waits cannot be killed meanwhile; it asks again.
pub const WAIT: Duration = Duration::from_millis(250);

/// An order as a user names it.
pub fn order(arg: &abi::Order, owner: u32) -> Reply<OrderName> {
    let name = arg.name.get(..arg.name_len as usize).filter(|name| !name.is_empty());
    Ok(OrderName { owner, name: name.ok_or(Errno::INVAL)?.into() })
}

/// The numbers of a file system. A guarded directory has its store open.
fn numbers(volume: &OpenVolume) -> Result<Arc<Orders>, Failure> {
    Ok(volume.lease()?.orders())
}

/// A transaction takes its place; else an errno, and the reason in words.
pub fn join(txn: &Transaction, order: OrderName, number: u64) -> Result<(), (Errno, String)> {
    let numbers =
        numbers(&txn.volume).map_err(|failure| (errno_of(&failure), failure.to_string()))?;
    let owner = order.owner;
    let order = Order { group: order, number };
    let joined = txn.volume.vol.engine.enlist(txn.id, &order, &numbers);
    joined.map_err(|why| match why {
        OrderError::Over(next) => {
            (Errno::EXIST, format!("number {number} of the order is used up: {next} comes next"))
        }
        OrderError::Taken(by) => {
            (Errno::BUSY, format!("transaction {by} has number {number} of the order"))
        }
        OrderError::NotFree => (Errno::INVAL, "it is not new, or is in an order already".into()),
        OrderError::Full => {
            let mut words =
                "its user has too many orders: end those that are over by a reset to 0".to_owned();
            if let Some((order, _)) = numbers.oldest(owner) {
                words += &format!(", as {:?}, which was not used for longest", shown(&order.name));
            }
            (Errno::DQUOT, words)
        }
    })
}

/// Which number comes next.
pub fn next(volume: &OpenVolume, order: &OrderName) -> Reply<u64> {
    Ok(numbers(volume).map_err(told)?.next(order))
}

/// Another number comes next, also after a crash.
pub fn reset(
    (table, volume): (&Transactions, &Arc<OpenVolume>),
    order: OrderName,
    next: u64,
) -> Reply<()> {
    let numbers = numbers(volume).map_err(told)?;
    let txn = table.new_id(volume).map_err(told)?;
    let seized = volume.vol.engine.seize_order(txn, &order, &numbers);
    let _seized = seized.map_err(|why| match why {
        OrderError::Full => Errno::DQUOT,
        _ => Errno::BUSY,
    })?;
    if numbers.next(&order) == next {
        return Ok(());
    }
    let now = volume.vol.tree.now();
    let meta = CommitMeta {
        txn,
        kind: TxnKind::Run,
        argv: Vec::new(),
        cwd: Vec::new(),
        uid: order.owner,
        started: now,
        finished: now,
        told: None,
        order: Some(OrderStep { order, next }),
    };
    let set = systx_commit::set_order(&volume.site, meta);
    set.map_err(|stopped| told(crate::stopped::failure(stopped)))
}

fn told(failure: Failure) -> Errno {
    tracing::error!(%failure, "the number of an order");
    errno_of(&failure)
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
