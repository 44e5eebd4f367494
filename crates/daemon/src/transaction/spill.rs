//! What one transaction may take of the daemon, and where its private data goes that is too much
//! for memory.

use super::Terms;
use super::several::Alarm;
use crate::volume::OpenVolume;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use systx_commit::Site;
use systx_store::OnDemand;
use systx_store::io::Tree;
use systx_store::writeset::SlotId;
use systx_vfs::content::{Budget, Elsewhere, Slot, Spill, Staging, Times};
use systx_vfs::limits::ViewLimits;

/// Memory for the private data of one transaction; beyond it data goes to staging slots.
const BUDGET_BYTES: u64 = 64 << 20;

/// Files of this length are possible wherever a store is.
const ALWAYS_FITS: u64 = (1 << 31) - 1;

/// What one transaction may take of the daemon.
pub(super) struct Limits {
    /// Bytes of private data in memory.
    pub(super) memory: u64,
    /// Bytes that go to staging slots in all.
    pub(super) staged: u64,
    pub(super) view: ViewLimits,
}

impl Limits {
    /// Whoever's daemon it is.
    pub(super) const NONE: Limits =
        Limits { memory: BUDGET_BYTES, staged: u64::MAX, view: ViewLimits::NONE };
    /// Another user's.
    pub(super) const GUEST: Limits = Limits {
        memory: 16 << 20,
        staged: 2 << 30,
        view: ViewLimits { objects: 200_000, names: 1_000_000, bytes: 16 << 20, locks: 256 },
    };
}

/// The room that one transaction has for its private data.
pub(super) struct Room {
    pub(super) limits: Limits,
    pub(super) budget: Budget,
    pub(super) spill: Arc<dyn Spill>,
    /// Set where there is none.
    pub(super) full: Arc<AtomicBool>,
}

impl Room {
    pub(super) fn new(volume: &OpenVolume, terms: &Terms, alarm: &Alarm) -> Room {
        let limits = if terms.whose.guest { Limits::GUEST } else { Limits::NONE };
        let most = terms.limit_bytes.unwrap_or(u64::MAX);
        // One for all parts.
        let budget = alarm.budget(|| Budget::with_most(limits.memory, most));
        let full = Arc::new(AtomicBool::new(false));
        let spill = Arc::new(StoreSpill {
            site: Arc::clone(&volume.site),
            left: Arc::new(AtomicU64::new(limits.staged)),
            budget: budget.clone(),
            full: Arc::clone(&full),
        });
        Room { limits, budget, spill, full }
    }
}

/// Private data that is too much for memory goes to the store's staging slots.
struct StoreSpill {
    site: Arc<Site>,
    /// Bytes that may still be written.
    left: Arc<AtomicU64>,
    budget: Budget,
    /// Set where there is no room.
    full: Arc<AtomicBool>,
}

impl Spill for StoreSpill {
    fn stage(&self) -> io::Result<Slot> {
        let lease = self.site.store.lease().map_err(io::Error::other)?;
        let slot = lease.stage()?;
        // Open for a while: more may come.
        self.site.checkpoints.linger(&lease);
        let store = Arc::clone(&self.site.store);
        let (tree, left) = (self.site.vol.tree.clone(), Arc::clone(&self.left));
        let taken = Elsewhere::new(&self.budget);
        let full = Arc::clone(&self.full);
        let after = Tidy(Arc::clone(&store));
        Ok(Arc::new(StoreSlotIo { slot, store, tree, left, taken, full, _after: after }))
    }
    fn max_len(&self, wanted: u64) -> u64 {
        if wanted <= ALWAYS_FITS {
            return ALWAYS_FITS;
        }
        self.site.store.lease().map_or(ALWAYS_FITS, |store| store.max_len())
    }
    fn times(&self) -> io::Result<Times> {
        let lease = self.site.store.lease().map_err(io::Error::other)?;
        // Where nothing is committed nothing is left.
        let _after = Tidy(Arc::clone(&self.site.store));
        let times = lease.times();
        drop(lease);
        times
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Where nothing was committed nothing is left.
struct Tidy(Arc<OnDemand>);

impl Drop for Tidy {
    fn drop(&mut self) {
        self.0.tidy();
    }
}

struct StoreSlotIo {
    slot: Slot,
    store: Arc<OnDemand>,
    tree: Arc<dyn Tree>,
    left: Arc<AtomicU64>,
    taken: Elsewhere,
    full: Arc<AtomicBool>,
    // After the slot.
    _after: Tidy,
}

impl StoreSlotIo {
    /// Whether history was given up for content of this length.
    fn forget_for(&self, len: u64) -> bool {
        self.store.lease().is_ok_and(|store| store.forget_for_content(len))
    }
}

impl Staging for StoreSlotIo {
    /// Asked by a commit, which has the store open.
    fn id(&self) -> SlotId {
        if let Some(store) = self.store.if_open() {
            store.adopt(&*self.slot);
        }
        self.slot.id()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.slot.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let len = data.len() as u64;
        let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(len) };
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| rustix::io::Errno::DQUOT)?;
        if before != u64::MAX {
            // The slot is root's, and its user must not use up what is kept for root.
            let too_full = || -> io::Result<bool> {
                let info = self.tree.fs_info()?;
                Ok(info.bavail.saturating_mul(info.bsize) < len)
            };
            if too_full()? && (!self.forget_for(len) || too_full()?) {
                self.full.store(true, Ordering::Relaxed);
                return Err(rustix::io::Errno::NOSPC.into());
            }
        }
        self.taken.write(offset, len)?;
        loop {
            match self.slot.write_at(data, offset) {
                Err(e) if is_full(&e) && self.forget_for(len) => {}
                done => {
                    self.full.fetch_or(done.as_ref().is_err_and(is_full), Ordering::Relaxed);
                    return done;
                }
            }
        }
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.slot.set_len(len)?;
        self.taken.set_len(len);
        Ok(())
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.slot.punch_hole(offset, len)
    }
}
