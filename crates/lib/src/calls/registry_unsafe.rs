//! The regions of all threads, found by thread pointer, without locks: the handler asks here.
//!
//! A region is its thread's alone: used by the thread itself while nothing is intercepted, and by
//! the handler, which runs on that thread and is not interrupted while it does. Regions are never
//! given back to the memory, since the kernel reads their selectors as long as the thread lives;
//! they are used again by later threads.

#![allow(unsafe_code)]

use super::region::Region;
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

struct Entry {
    /// Thread pointer of its thread; 0: nobody's.
    key: AtomicU64,
    next: *mut Entry,
    region: UnsafeCell<Region>,
}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());

fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: entries are made whole before they are in the list, and stay.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

fn find(key: u64) -> Option<&'static Entry> {
    entries().find(|entry| entry.key.load(Ordering::Acquire) == key)
}

/// Makes sure that this thread has a region.
pub fn take(key: u64) {
    let free = |entry: &&Entry| {
        entry.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if find(key).is_some() || entries().find(free).is_some() {
        return;
    }
    let entry = Box::into_raw(Box::new(Entry {
        key: AtomicU64::new(key),
        next: FIRST.load(Ordering::Acquire),
        region: UnsafeCell::new(Region::new()),
    }));
    loop {
        // SAFETY: it is not in the list yet, and so this thread's alone.
        let next = unsafe { (*entry).next };
        match FIRST.compare_exchange(next, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            // SAFETY: as above.
            Err(now) => unsafe { (*entry).next = now },
        }
    }
}

/// This thread has none any more.
pub fn give_back(key: u64) {
    if let Some(entry) = find(key) {
        entry.key.store(0, Ordering::Release);
    }
}

/// Works on the region of this thread; `None`: it has none.  `key` is its own.
pub fn with<T>(key: u64, work: impl FnOnce(&mut Region) -> T) -> Option<T> {
    let entry = find(key)?;
    // SAFETY: see the module; `work` does not come back here.
    Some(work(unsafe { &mut *entry.region.get() }))
}

/// The same, to look only.
pub fn look<T>(key: u64, work: impl FnOnce(&Region) -> T) -> Option<T> {
    let entry = find(key)?;
    // SAFETY: as above.
    Some(work(unsafe { &*entry.region.get() }))
}

// SAFETY: see the module.
unsafe impl Sync for Entry {}
