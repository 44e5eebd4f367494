//! The transaction engine.
#![forbid(unsafe_code)]

mod engine;
mod object;
mod policy;

pub use engine::{
    Access, BeginOptions, Engine, Isolation, Stats, Status, Timestamp, Workset,
};
pub use object::{Conflict, Object, ObjectRef, Opponent, PAGE, Side};
pub use policy::{Contender, ContentionPolicy, OsPrio};
