//! The primitives of the protocol: those of `std`, or those that `loom` explores.
//!
//! Statistics and profiles use `std` in both cases: no promise rests on them.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
    thread_local,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
    thread_local,
};

use std::sync::PoisonError;

/// Locks; a panic elsewhere leaves nothing half done in what these locks protect.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until somebody notifies; may come back early.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

static TOKENS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

thread_local! {
    static TOKEN: u64 = TOKENS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

/// A number that no other thread of this process has or had; never 0.
pub(crate) fn token() -> u64 {
    TOKEN.with(|token| *token)
}

/// A value on cache lines of its own, so that its neighbours' writes abort no transaction.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);
