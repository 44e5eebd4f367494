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
//! | `engine.rs`, `engine/` | the interface, the lock, waiting |
//! | `state.rs` | who begins, wins, loses and ends; what an access does |
//! | `state/plain.rs`, `engine/plain.rs`, `gate.rs` | requests from outside every transaction |
//! | `state/waits.rs`, `stall.rs` | who waits: for what is not seen here, or for a winner |
//! | `again.rs`, `state/again.rs` | attempts after a loss, in line |
//! | `units.rs`, `units/` | who there is, what each holds, who is in the way of whom |
//! | `table.rs` | who holds which object |
//! | `hold.rs`, `pages.rs`, `index.rs` | its parts: holders in four bytes, page sets, containers |
//! | `policy.rs` | who wins |
//! | `order.rs` | transactions that commit in an order given by their numbers |
//! | `scope.rs` | what transactions declare before they begin |
//! | `inject.rs` | aborts for tests |
//! | `terms.rs` | what the engine is asked, and what it answers |
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
mod policy;
mod scope;
mod stall;
mod state;
mod table;
mod terms;
mod units;

pub use engine::{Attempt, Engine, Mutation, Patience, Plain, Seized, Stalled};
pub use inject::{Inject, NoInject};
pub use object::{Caller, Conflict, Object, ObjectRef, Opponent, PAGE, Side};
pub use order::{Order, OrderError, Turn};
pub use policy::{Choice, Chosen, Contender, ContentionPolicy, Follows, Place, Urgency};
pub use scope::{Ahead, Claim, Claimant, InLine, Part};
pub use stall::Stalls;
pub use terms::{
    Access, BeginOptions, Census, Isolation, Stall, Stats, Status, Timestamp, Workset,
};
