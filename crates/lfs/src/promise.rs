//! Room that is kept for commits that are yet to come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All of it.
#[derive(Clone, Default, Debug)]
pub struct Promises(Arc<AtomicU64>);

/// Room for one commit, until it is dropped.
#[derive(Debug)]
pub struct Promise {
    blocks: u64,
    of: Promises,
}

impl Promises {
    /// One more.
    pub fn give(&self, blocks: u64) -> Promise {
        self.0.fetch_add(blocks, Ordering::Relaxed);
        Promise { blocks, of: self.clone() }
    }

    /// Blocks that are promised.
    pub fn blocks(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Promise {
    /// Blocks of this one.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.blocks, Ordering::Relaxed);
    }
}
