//! The log-structured volumes that this process has open, as the stores of joint commits that look
//! for each other find them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use systx_base::sync::{Mutex, rank};
use systx_lfs_store::VolumeStore;

/// See the module.
pub struct Images(Mutex<Vec<(u64, PathBuf, Weak<VolumeStore>)>>);

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Images")
    }
}

impl Images {
    /// None.
    pub fn new() -> Images {
        Images(Mutex::new(rank::LEAF, Vec::new()))
    }

    /// A volume is open, and has this number; its store counts as being at this path.
    pub fn opened(&self, number: u64, at: &Path, store: &Arc<VolumeStore>) {
        let mut all = self.0.lock();
        all.retain(|(_, _, store)| store.strong_count() > 0);
        all.push((number, at.to_owned(), Arc::downgrade(store)));
    }

    /// The one with this number, and where it is.
    pub fn find(&self, number: u64) -> Option<(PathBuf, Arc<VolumeStore>)> {
        let all = self.0.lock();
        let found = all.iter().filter(|(is, ..)| *is == number);
        found.rev().find_map(|(_, at, store)| Some((at.clone(), store.upgrade()?)))
    }
}
