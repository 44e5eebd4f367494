//! The nodes that the kernel knows, and the listings of directories among them.

use std::collections::HashMap;
use systx_base::sync::{Mutex, rank};
use systx_lfs::format::{Ino, ROOT};
use systx_vfs::api::Reply;
use systx_vfs::listing::Listing;

#[derive(Default)]
struct Known {
    lookups: u64,
    /// Only the store names it.
    is_unnamed: bool,
    /// Of a directory that somebody has listed: as long as the kernel knows it, somebody may go on
    /// with a cookie of it.
    listing: Option<Box<Listing>>,
}

/// See the module.
pub(crate) struct Table(Mutex<HashMap<Ino, Known>>);

impl Table {
    /// With the root, whose lookup nobody takes back.
    pub fn new() -> Table {
        let root = Known { lookups: 1, ..Known::default() };
        Table(Mutex::new(rank::VOLUME, HashMap::from([(ROOT, root)])))
    }

    /// One more lookup; of a new one after `hold`.
    ///
    /// # Errors
    /// That of `hold`.
    pub fn enter(&self, ino: Ino, hold: impl FnOnce() -> Reply<()>) -> Reply<()> {
        let mut known = self.0.lock();
        if let Some(known) = known.get_mut(&ino) {
            known.lookups = known.lookups.saturating_add(1);
            return Ok(());
        }
        hold()?;
        known.insert(ino, Known { lookups: 1, ..Known::default() });
        Ok(())
    }

    /// Takes lookups back; the object, if the kernel does not know it any longer, and whether only
    /// the store names it.
    pub fn forget(&self, ino: Ino, count: u64) -> Option<(Ino, bool)> {
        let mut all = self.0.lock();
        let known = all.get_mut(&ino).filter(|_| ino != ROOT)?;
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return None;
        }
        let is_unnamed = known.is_unnamed;
        all.remove(&ino);
        Some((ino, is_unnamed))
    }

    /// Forgets everything; what was there, but for the root.
    pub fn clear(&self) -> Vec<(Ino, bool)> {
        let mut all = self.0.lock();
        let others = all.extract_if(|ino, _| *ino != ROOT);
        others.map(|(ino, known)| (ino, known.is_unnamed)).collect()
    }

    /// Whether only the store names it.
    pub fn is_unnamed(&self, ino: Ino) -> bool {
        self.0.lock().get(&ino).is_some_and(|known| known.is_unnamed)
    }

    /// Whether only the store names it, from now on.
    pub fn set_unnamed(&self, ino: Ino, is_unnamed: bool) {
        if let Some(known) = self.0.lock().get_mut(&ino) {
            known.is_unnamed = is_unnamed;
        }
    }

    /// A directory has this name now, or not any longer.
    pub fn renamed(&self, dir: Ino, name: &[u8], is_there: bool) {
        let mut all = self.0.lock();
        let Some(listing) = all.get_mut(&dir).and_then(|known| known.listing.as_mut()) else {
            return;
        };
        if is_there { listing.insert(name) } else { listing.remove(name) }
    }

    /// Names from a cookie on, at most `most`, each with the cookie after it; `None` if the
    /// directory was not listed yet.
    pub fn names(&self, dir: Ino, from: u64, most: usize) -> Option<Vec<(Vec<u8>, u64)>> {
        let all = self.0.lock();
        let listing = all.get(&dir)?.listing.as_ref()?;
        let mut at = from;
        let next = || {
            let (next, name) = listing.next(at)?;
            at = next;
            Some((name.to_vec(), next))
        };
        Some(std::iter::from_fn(next).take(most).collect())
    }

    /// A directory is listed with these names, unless it is already.
    pub fn list(&self, dir: Ino, names: Vec<Box<[u8]>>) {
        if let Some(known) = self.0.lock().get_mut(&dir) {
            known.listing.get_or_insert_with(|| Box::new(Listing::new(names)));
        }
    }
}
