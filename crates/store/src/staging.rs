//! Staging slots: files in `s/` that hold what a transaction wrote and has no room for in memory.
//! At commit a slot can become the file itself.
//!
//! A slot is *free* (empty, in the pool), *held* (a [`Slot`] value exists), or *committed* (a
//! record in the journal refers to it, until the checkpoint after its installation; or until its
//! file has its place in the tree). Dropping a held slot empties it and puts it back; a committed
//! one is left alone. A crash leaves slots that nothing refers to: opening the store removes them.
//!
//! A held slot outlives the opening of the store in which it was taken: its file is locked for as
//! long, and whoever opens the store, this process or another, leaves it alone.  To be committed it
//! is adopted by the opening that commits.  A slot that a record refers to is not locked: it may
//! become a file of the tree, where locks are programs'.

use crate::io::{Handle, Io};
use crate::layout::{Layout, ensure_file, names};
use crate::writeset::{SlotId, Staging};
use std::collections::HashMap;
use std::io::Result;
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};

/// Free slots that are kept for the next transaction; more are removed.
const KEEP: usize = 64;

/// Name of a slot's file.
pub(crate) fn slot_name(id: SlotId) -> Vec<u8> {
    format!("{:x}", id.0).into_bytes()
}

/// A staging slot that belongs to its holder until it is committed.
pub struct Slot {
    id: SlotId,
    handle: Handle,
    io: Arc<dyn Io>,
    /// Of the opening that knows it.
    pool: Mutex<Arc<Pool>>,
}

impl Slot {
    /// How write sets refer to it.
    pub fn id(&self) -> SlotId {
        self.id
    }
    /// The file, open for reading and writing; empty at first.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Staging for Slot {
    fn id(&self) -> SlotId {
        self.id
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.io.read_at(&self.handle, buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.io.write_at(&self.handle, data, offset)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.io.set_len(&self.handle, len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.io.punch_hole(&self.handle, offset, len)
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({:x})", self.id.0)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let pool = Arc::clone(&self.pool.lock());
        pool.give_back(self.id);
    }
}

#[derive(Default)]
struct Slots {
    next: u64,
    free: Vec<(SlotId, Handle)>,
    /// Held or committed.
    used: HashMap<SlotId, Used>,
}

struct Used {
    handle: Handle,
    held: bool,
    committed: bool,
}

/// All slots of a store.
pub(crate) struct Pool {
    io: Arc<dyn Io>,
    dir: Handle,
    slots: Mutex<Slots>,
}

impl Pool {
    /// Opens the pool: what is in a slot that is not in `keep` is dropped.
    pub fn open(io: Arc<dyn Io>, layout: &Layout, keep: &[SlotId]) -> Result<Arc<Pool>> {
        let mut slots = Slots { next: 1, ..Slots::default() };
        for name in names(&*io, &layout.slots)? {
            let id = std::str::from_utf8(&name).ok().and_then(|s| u64::from_str_radix(s, 16).ok());
            let Some(id) = id.map(SlotId) else { continue };
            slots.next = slots.next.max(id.0.saturating_add(1));
            let handle = ensure_file(&*io, &layout.slots, &name)?;
            if keep.contains(&id) {
                slots.used.insert(id, Used { handle, held: false, committed: true });
                continue;
            }
            if io.is_locked(&handle)? {
                continue;
            }
            let stat = io.stat(&handle)?;
            if slots.free.len() < KEEP && stat.nlink == 1 && stat.size == 0 && stat.blocks == 0 {
                slots.free.push((id, handle));
            } else {
                io.unlink(&layout.slots, &name)?;
            }
        }
        let dir = layout.slots.clone();
        Ok(Arc::new(Pool { io, dir, slots: Mutex::new(rank::LEAF, slots) }))
    }

    /// A free slot.
    pub fn take(self: &Arc<Pool>) -> Result<Slot> {
        let free = {
            let mut slots = self.slots.lock();
            let free = slots.free.pop();
            if free.is_none() {
                slots.next += 1;
            }
            free.ok_or(SlotId(slots.next - 1))
        };
        let (id, handle) = match free {
            Ok(free) => free,
            Err(id) => (id, self.io.create_file(&self.dir, &slot_name(id), 0o600)?),
        };
        self.io.hold(&handle, true)?;
        let used = Used { handle: handle.clone(), held: true, committed: false };
        self.slots.lock().used.insert(id, used);
        let pool = Mutex::new(rank::LEAF, Arc::clone(self));
        Ok(Slot { id, handle, io: Arc::clone(&self.io), pool })
    }

    /// A slot that was taken in an earlier opening is one of this one from now on; unless it is not
    /// the holder's any more.
    pub fn adopt(self: &Arc<Pool>, slot: &Slot) {
        let of = Arc::clone(&slot.pool.lock());
        if Arc::ptr_eq(&of, self) {
            return;
        }
        let Some(used) = of.slots.lock().used.remove(&slot.id) else { return };
        self.slots.lock().used.insert(slot.id, used);
        *slot.pool.lock() = Arc::clone(self);
    }

    /// The file of a held or committed slot.
    pub fn handle(&self, id: SlotId) -> Option<Handle> {
        self.slots.lock().used.get(&id).map(|used| used.handle.clone())
    }

    /// From now on a record refers to these slots.
    pub fn commit(&self, ids: &[SlotId]) {
        let mut slots = self.slots.lock();
        for id in ids {
            if let Some(used) = slots.used.get_mut(id) {
                used.committed = true;
                self.hold(&used.handle, false);
            }
        }
    }

    /// Never fails for a file that nobody else has.
    fn hold(&self, handle: &Handle, hold: bool) {
        if let Err(error) = self.io.hold(handle, hold) {
            tracing::warn!(%error, hold, "a staging slot");
        }
    }

    /// No record refers to these slots any more.  `gone`: the file now has its place in the tree.
    pub fn release(&self, id: SlotId, gone: bool) {
        let removed = {
            let mut slots = self.slots.lock();
            let Some(used) = slots.used.get_mut(&id) else { return };
            used.committed = false;
            // A holder that still has it gives it back itself, unless the file is no longer ours.
            if used.held && !gone {
                self.hold(&used.handle, true);
                None
            } else {
                slots.used.remove(&id)
            }
        };
        if let Some(used) = removed.filter(|_| !gone) {
            self.recycle(id, used.handle);
        }
    }

    fn give_back(&self, id: SlotId) {
        let removed = {
            let mut slots = self.slots.lock();
            let Some(used) = slots.used.get_mut(&id) else { return };
            used.held = false;
            if used.committed { None } else { slots.used.remove(&id) }
        };
        if let Some(used) = removed {
            self.recycle(id, used.handle);
        }
    }

    /// Empties a slot for its next use.  A failure costs the slot, which the next opening finds.
    fn recycle(&self, id: SlotId, handle: Handle) {
        let room = self.slots.lock().free.len() < KEEP;
        if room && self.io.set_len(&handle, 0).is_ok() {
            self.hold(&handle, false);
            self.slots.lock().free.push((id, handle));
        } else if let Err(error) = self.io.unlink(&self.dir, &slot_name(id)) {
            tracing::warn!(slot = id.0, %error, "a staging slot could not be removed");
        }
    }
}
