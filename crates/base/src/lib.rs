//! Ground of every other crate: identifiers, time stamps, the binary codec of the on-disk formats,
//! ranked locks, names as persons may read them, texts of /proc, and the count of how far long work
//! is.  No I/O and no threads of its own.

#![forbid(unsafe_code)]

pub mod codec;
pub mod id;
mod mix;
mod orders;
pub mod proc;
pub mod progress;
mod shown;
pub mod sync;

pub use id::{BUILT, FIRST_OPEN, Gid, Kind, NodeId, Oid, Time, TxnId, Uid};
pub use mix::mix;
pub use orders::{ORDER_NAME, ORDERS, OrderName, OrderStep, Orders, Remembered};
pub use shown::{shown, shown_lines};
