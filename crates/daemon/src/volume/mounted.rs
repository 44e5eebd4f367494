//! A log-structured volume that is mounted, as transactions know it: its store is open as long as
//! it is mounted, and there is no file system below.

use super::{Location, Memory, OpenVolume, STALLS, Standing, failed, without_slash};
use crate::hall::Hall;
use crate::ledger::Ledger;
use crate::mounts::Mount;
use crate::protocol::Failure;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use systx_base::sync::{Mutex, rank};
use systx_commit::{Checkpoints, Relaxed, Site};
use systx_guard::shared::SharedVolume;
use systx_lfs_store::VolumeStore;
use systx_protocol::stores::STORE_DIR;
use systx_store::host_locks::LockFiles;
use systx_store::{OnDemand, Store};
use systx_vfs::volume::Volume;

/// The mount of a volume.
pub(super) struct AsMounted {
    /// Its id.
    mount: u64,
    /// Where threads have transactions in it, if that is wanted.
    hall: Mutex<Option<Arc<Hall>>>,
}

impl AsMounted {
    fn new(mount: u64) -> AsMounted {
        AsMounted { mount, hall: Mutex::new(rank::LEAF, None) }
    }

    pub(super) fn hall(&self) -> Option<Arc<Hall>> {
        self.hall.lock().clone()
    }
}

impl OpenVolume {
    /// A volume that is about to be mounted on a directory; `dev`: the device number of what is
    /// seen there, `mount`: its mount. `lock_files`: what is locked in it, where the mount tells of
    /// locks.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn mounted(
        dir: &Path,
        (dev, mount): (u64, u64),
        (store, lock_files): (&Arc<VolumeStore>, Option<Arc<LockFiles>>),
        ledger: &Arc<Ledger>,
    ) -> Result<OpenVolume, Failure> {
        let location = Location { mount: dir.to_owned(), dev, store: dir.join(STORE_DIR) };
        let tree = store.tree();
        let vol = Volume::alone(tree.clone(), without_slash(dir), HashSet::new())
            .map_err(|e| failed("look at", dir, e.into()))?
            .sharing(&STALLS);
        let vol = match lock_files {
            Some(files) => vol.with_lock_files(files),
            None => vol,
        };
        vol.hide_store(store.own_object());
        let vol = Arc::new(SharedVolume::over(vol).with_moments(tree.clone()));
        let programs = Arc::downgrade(&vol);
        tree.ask_first(move |file| programs.upgrade()?.openers(file));
        let class = store.class();
        let store = OnDemand::always(Arc::clone(store) as Arc<dyn Store>);
        let site = Site {
            vol: Arc::clone(&vol),
            store: Arc::clone(&store),
            class,
            checkpoints: Checkpoints::new(),
            store_path: location.store.as_os_str().as_bytes().to_vec(),
            is_root: false,
            is_image: true,
        };
        let standing =
            Standing { trusted: AtomicBool::new(false), memory: Arc::new(Memory::default()) };
        Ok(OpenVolume {
            location,
            own_references: Arc::strong_count(&vol),
            vol,
            store,
            site: Arc::new(site),
            standing: Arc::new(standing),
            _always: None,
            image: Some(AsMounted::new(mount)),
            ledger: Arc::clone(ledger),
            relaxed: Relaxed::new(),
            guarded: Mutex::new(rank::LEAF, Vec::new()),
            looked: Mutex::new(rank::LEAF, None),
        })
    }

    /// Whether it is a log-structured volume.
    pub(crate) fn is_image(&self) -> bool {
        self.image.is_some()
    }

    /// Whether it is a log-structured volume, and this mount of a table shows it; see
    /// [`crate::served::ServedMount::is`].
    pub(crate) fn is_mounted_as(&self, mount: &Mount) -> bool {
        let image = self.image.as_ref();
        image.is_some_and(|image| (mount.dev, mount.id) == (self.location.dev, image.mount))
    }

    /// Threads have transactions in it from now on.
    pub(crate) fn set_hall(&self, hall: Arc<Hall>) {
        if let Some(image) = &self.image {
            *image.hall.lock() = Some(hall);
        }
    }

    /// They have not any more; where they had.
    pub(crate) fn take_hall(&self) -> Option<Arc<Hall>> {
        self.image.as_ref()?.hall.lock().take()
    }

    /// It is not served any more, and no transaction works in it: waits for whoever is tidying its
    /// store.
    pub(crate) fn is_gone(&self) {
        self.vol.wait_durable();
        self.store.wait_unused();
    }
}
