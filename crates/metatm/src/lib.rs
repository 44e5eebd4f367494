//! A model of processors with transactional memory, and of a kernel whose locks use it: MetaTM and
//! TxLinux (SOSP 2007), as far as their evaluation needs them.
//!
//! Discrete events, in cycles; everything that is random comes from one seed.  docs/METATM.md says
//! what is run on it and what comes out.
//!
//! | file | holds |
//! |---|---|
//! | `settings.rs` | processors, costs, kernel, policy, scheduler |
//! | `workload.rs`, `workload/` | what threads do: micro-benchmarks, a mix, recorded traces |
//! | `cache.rs`, `memory.rs`, `tx.rs` | lines, words, read and write sets, the undo log |
//! | `arbiter.rs` | who wins: asks the code that decides in systx itself |
//! | `machine.rs` | the clock, processors, accesses to memory |
//! | `machine/sections.rs` | spinlocks, sequence locks, transactions, cxspinlocks |
//! | `machine/steps.rs` | the steps of threads, interrupts |
//! | `machine/sched.rs`, `thread.rs` | the scheduler |
//! | `checks.rs` | what holds in every run |
#![forbid(unsafe_code)]

mod arbiter;
mod cache;
mod checks;
mod machine;
mod memory;
pub mod settings;
pub mod stats;
mod thread;
pub mod tx;
pub mod workload;

pub use machine::{Outcome, run};
