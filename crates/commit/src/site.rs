//! Where a part of a commit takes effect.

use crate::Checkpoints;
use std::sync::Arc;
use systx_guard::shared::SharedVolume;
use systx_store::OnDemand;
use systx_store::io::{Class, Stamp};

/// A file system with its store.
pub struct Site {
    /// What views share; it has the engine.
    pub vol: Arc<SharedVolume>,
    /// The durable side; a commit has a lease of it.
    pub store: Arc<OnDemand>,
    /// The crash behaviour of the file system.
    pub class: Class,
    /// Lets the store's journal forget.
    pub checkpoints: Checkpoints,
    /// The store's directory, absolute, on the host: what a joint record calls the store by.
    pub store_path: Vec<u8>,
    /// Whether it is the file system mounted at `/`, which is there whenever another one is.
    pub is_root: bool,
    /// It is a volume in an image, which is mounted when somebody mounts it.
    pub is_image: bool,
}

impl Site {
    /// The absolute host path of a path below the root of the file system.
    #[must_use]
    pub fn absolute(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.vol.mount_path.clone();
        path.push(b'/');
        path.extend_from_slice(relative);
        path
    }

    /// Which store of a joint commit decides, lowest first: the one that is mounted whenever
    /// another is; the one in memory last, since a power cut takes it away.
    pub(crate) fn rank(&self) -> u8 {
        match (self.class, self.is_root) {
            (Class::Memory, _) => 3,
            _ if self.is_image => 2,
            (_, true) => 0,
            (_, false) => 1,
        }
    }

    /// What versions have become by own installations.
    pub(crate) fn current(&self, origins: &[Option<Stamp>]) -> Vec<Option<Stamp>> {
        origins.iter().map(|stamp| stamp.map(|stamp| self.vol.current(stamp))).collect()
    }
}
