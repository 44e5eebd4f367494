//! Durable versions.  A transaction arrives as a [`WriteSet`] of absolute outcomes; the store makes
//! it durable in one step and then installs it, so that a crash at any instant leaves the state
//! before or after.  The store knows bytes, names and attributes; isolation is the job of the layers
//! above it.  All disk access goes through [`io::Io`], so that the same code runs on a real file
//! system, in the crash simulator, and under fault injection.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod class;
pub mod host_locks;
mod host_locks_unsafe;
pub mod io;
pub mod real;
mod real_unsafe;
pub mod writeset;
