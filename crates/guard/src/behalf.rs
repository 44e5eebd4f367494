//! Threads of this process that ask a mount of this process for somebody, and for whom.
//!
//! A retired view of a volume that is its own file system works by way of the volume's mount.  The
//! kernel tells the mount that a thread of this process asks; only that thread knows for whom.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use systx_base::sync::{RwLock, rank};
use systx_vfs::api::Caller;

/// By thread.
static BEHALF: LazyLock<RwLock<HashMap<u32, Caller>>> =
    LazyLock::new(|| RwLock::new(rank::LEAF, HashMap::new()));

/// How many there are, which spares the lock where there are none.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// This thread asks for a client as long as this lives.
pub(crate) struct Behalf(u32);

/// What this thread asks of a mount of this process is asked for `caller`.
pub(crate) fn ask_for(caller: Caller) -> Behalf {
    let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    ASKING.fetch_add(1, Ordering::AcqRel);
    BEHALF.write().insert(own, caller);
    Behalf(own)
}

impl Drop for Behalf {
    fn drop(&mut self) {
        BEHALF.write().remove(&self.0);
        ASKING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Who asks, if that thread asks for somebody else.
pub(crate) fn behind(caller: Caller) -> Caller {
    if ASKING.load(Ordering::Acquire) == 0 {
        return caller;
    }
    BEHALF.read().get(&caller.tid).copied().unwrap_or(caller)
}
