#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod base;
mod cause;
mod cell;
mod condvar;
mod hardware;
mod lock;
mod model;
mod native;
mod policy;
mod raw;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod rtm_unsafe;
mod rwlock;
mod seqlock;
mod site;
mod stats;
mod sync;
mod tx;

pub mod table;

pub use cause::Cause;
pub use cell::{TxCell, Word};
pub use condvar::CxCondvar;
pub use hardware::{Hardware, Place};
pub use lock::{CxLock, Look};
pub use model::{Model, Settings};
pub use native::Native;
pub use policy::{
    Contest, ExclusiveFirst, Failed, Fair, Next, OptimisticFirst, Policy, Verdict, retry,
};
pub use rwlock::CxRwLock;
pub use seqlock::CxSeqLock;
pub use site::Averages;
pub use stats::Stats;
pub use tx::{Mode, Reader, Tx};
