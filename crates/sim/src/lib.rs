//! A deterministic file system in memory, [`SimFs`], below the same store code that runs on real
//! ones: it knows what a power cut may leave ([`crash`]), can fail or lie at any call
//! ([`intercept`]), and reads back whole trees for comparison ([`tree`]).
//!
//! Everything is a function of the calls made and of seeds: no clock, no threads, no hash order.

#![forbid(unsafe_code)]

mod calls;
pub mod crash;
pub mod image;
pub mod in_flight;
pub mod intercept;
pub mod model;
pub mod publication;
pub mod simfs;
pub mod state;
pub mod suite;
pub mod tree;
pub mod workload;
pub mod world;

pub use crash::{Choice, Plan, Profile, Rng};
pub use intercept::{Action, Intercept};
pub use simfs::SimFs;
pub use world::{Point, Record};
