//! The transaction engine: which transaction read and wrote what, who wins when two collide, and
//! the one moment at which a commit is decided.
//!
//! Pure: no I/O, no clock, no threads of its own. The engine does not know what a read or a write
//! does; whoever performs one asks first ([`Engine::read`], [`Engine::write`]). The rules, for
//! users: docs/SEMANTICS.md, "Objects, conflicts, who wins".
//!
//! Conflicts are found at the first access, so at any time what the running transactions hold is
//! free of conflicts; a transaction keeps all it holds until it ends. That is strict two-phase
//! locking in which nobody waits for a lock: one of the two loses. Hence committed transactions are
//! serializable in the order of their decisions.
//!
//! | file | holds |
//! |---|---|
//! | `engine.rs` | the interface, the lock, waiting |
//! | `state.rs` | transactions; what an access does |
//! | `plain.rs`, `state/plain.rs`, `gate.rs` | requests from outside every transaction |
//! | `table.rs` | who holds which object |
//! | `hold.rs`, `pages.rs`, `index.rs` | its parts: holders in four bytes, sets of pages, containers |
//! | `policy.rs` | who wins |
//! | `stall.rs`, `state/waits.rs` | reads that wait for the winner |
//! | `order.rs`, `state/order.rs` | transactions that commit in an order given by their numbers |
//! | `scope.rs`, `state/scope.rs` | what transactions declare before they begin |
//! | `again.rs` | attempts after a loss, in line |
//! | `inject.rs`, `state/inject.rs` | aborts for tests |
//! | `state/waits.rs` | transactions that wait for what the engine does not see |
//! | `object.rs` | objects and conflicts |
#![forbid(unsafe_code)]

mod again;
mod engine;
mod gate;
mod hold;
mod index;
mod inject;
mod object;
mod order;
mod pages;
mod plain;
mod policy;
mod scope;
mod stall;
mod state;
mod table;

pub use again::{Attempt, Patience};
pub use engine::{
    Access, BeginOptions, Census, Engine, Isolation, Stalled, Stats, Status, Timestamp, Workset,
};
pub use inject::{Inject, NoInject};
pub use object::{Conflict, Object, ObjectRef, Opponent, PAGE, Side};
pub use order::{Order, OrderError, Seized, Turn};
pub use plain::{Caller, Mutation, Plain, Stall};
pub use policy::{Choice, Chosen, Contender, ContentionPolicy, Follows, Place, Urgency};
pub use scope::{Ahead, Claim, Claimant, InLine, Part};
pub use stall::Stalls;
