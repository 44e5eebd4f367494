//! Who may be writing to a file of a guarded directory.
//!
//! Mostly that is known: each open makes a message ([`Plain`](crate::plain::Plain)).  Where opens
//! make none (decision 0019) the kernel is asked, by a lease on a descriptor of the mount
//! ([`Caches::keep_unwritten`](crate::publication::Caches::keep_unwritten)): it is refused while
//! anybody has the file open for writing, and as long as it is held who opens the file for that
//! waits.  So a lease is as good as the file's lock: no write is in flight, and none begins.  What
//! the kernel does not know nobody has open, as long as it is not looked up again ([`Absent`]); the
//! answer to a look-up may be on its way for a moment, so of what was looked up just now the kernel
//! is asked again until it knows it, or has said that it has forgotten it.

use crate::inode_locks::Locked;
use crate::publication::Guarded;
use crate::shared::SharedVolume;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::{NodeId, Oid, TxnId};
use systx_store::io::{HostId, Openers};
use systx_store::lease::ReadLease;
use systx_txn::ObjectRef;
use systx_vfs::api::Reply;
use systx_vfs::neighbours::NotQuiet;
use systx_vfs::volume;

/// What the kernel says of a file in a mount where opens make no messages.
#[derive(Debug)]
pub enum Writing {
    /// Somebody has it open for writing.
    Open,
    /// Nobody has, and nobody will as long as this lives.
    Kept(ReadLease),
    /// The kernel has no such inode.
    Unknown,
}

impl Writing {
    /// Of a regular file that is open for reading.
    ///
    /// # Errors
    /// `EINVAL`: the kernel gives no leases on it.
    pub fn of(file: OwnedFd) -> Result<Writing, Errno> {
        let lease = ReadLease::take(file).map_err(volume::errno)?;
        Ok(lease.map_or(Writing::Open, Writing::Kept))
    }
}

/// So many files are asked about at once where nobody is to be kept out.
const AT_ONCE: usize = 128;

/// Longer than an answer takes to arrive on the busiest machine.
const ARRIVED: Duration = Duration::from_secs(2);

/// How long it takes until the kernel is asked again.
const AGAIN: Duration = Duration::from_millis(1);

/// A file that the kernel did not have: the same is true as long as it was not looked up again.
pub(crate) struct Absent {
    guarded: Arc<Guarded>,
    oid: Oid,
    /// How often it had been looked up; `None`: view 0 did not know it either.
    looked_up: Option<u64>,
}

impl Absent {
    fn of(guarded: &Arc<Guarded>, oid: Oid, file: Option<FileAt>) -> Absent {
        Absent { guarded: Arc::clone(guarded), oid, looked_up: file.map(|file| file.looked_up) }
    }

    /// Whether nobody can have it open.
    pub fn is_still(&self) -> bool {
        self.guarded.plain.file_of(self.oid).map(|file| file.looked_up) == self.looked_up
    }
}

/// A file of view 0.
#[derive(Clone, Copy, Debug)]
pub struct FileAt {
    /// Its node.
    pub node: NodeId,
    /// Which object it is.
    pub id: HostId,
    /// How often the kernel was told of it.
    pub looked_up: u64,
    /// And when it was the last time.
    pub at: Instant,
}

impl FileAt {
    /// The kernel may not have had the answer yet by which it learns of it.
    fn may_be_on_its_way(&self) -> bool {
        self.at.elapsed() < ARRIVED
    }
}

impl Guarded {
    /// What the kernel says of files; what cannot be found out counts as open.
    fn ask(&self, files: &[NodeId]) -> Vec<Writing> {
        let said = self.caches.keep_unwritten(files).unwrap_or_else(|errno| {
            tracing::warn!(%errno, "who has files open for writing");
            Vec::new()
        });
        let unknown = files.len().saturating_sub(said.len());
        said.into_iter().chain((0..unknown).map(|_| Writing::Open)).collect()
    }

    /// The node of a file, if somebody has it open for writing.
    pub(crate) fn written_to(&self, id: HostId) -> Option<NodeId> {
        if let Some(opens) = self.plain.opens() {
            return opens.written_to(id);
        }
        let node = self.plain.file_at(id)?.node;
        matches!(self.ask(&[node]).first(), Some(Writing::Open)).then_some(node)
    }

    /// All files that somebody has open for writing.
    pub(crate) fn open_for_writing(&self) -> Vec<(NodeId, HostId)> {
        if let Some(opens) = self.plain.opens() {
            return opens.open_for_writing();
        }
        let known = self.plain.files();
        let asked = known.chunks(AT_ONCE).flat_map(|some| {
            let nodes: Vec<NodeId> = some.iter().map(|(node, _)| *node).collect();
            let said = self.ask(&nodes);
            let open = some.iter().zip(said).filter(|(_, w)| matches!(w, Writing::Open));
            open.map(|(file, _)| *file).collect::<Vec<_>>()
        });
        asked.collect()
    }

    /// Who has a file open; `None`: nobody. Who reads is not known where opens are not told:
    /// somebody may.
    pub(crate) fn openers(&self, id: HostId) -> Option<Openers> {
        if let Some(opens) = self.plain.opens() {
            return opens.openers(id);
        }
        let node = self.plain.file_at(id)?.node;
        match self.ask(&[node]).first() {
            Some(Writing::Open) => Some(Openers::Writers),
            Some(Writing::Kept(_)) => Some(Openers::Readers),
            Some(Writing::Unknown) | None => None,
        }
    }
}

/// Nobody opens a file for writing as long as this lives and [is still](KeptOut::is_still) so.
#[derive(Default)]
pub(crate) struct KeptOut {
    leases: Vec<ReadLease>,
    absent: Vec<Absent>,
}

impl KeptOut {
    pub fn is_still(&self) -> bool {
        self.absent.iter().all(Absent::is_still)
    }
}

impl SharedVolume {
    /// Keeps everybody from opening a file for writing in the guarded directories where that is not
    /// told; `None`: somebody has it open.
    pub(crate) fn keep_out(&self, id: HostId) -> Option<KeptOut> {
        let mut kept = KeptOut::default();
        for guarded in self.untold() {
            loop {
                // Before it is asked for: what is looked up afterwards is seen.
                let file = guarded.plain.file_at(id);
                let absent = Absent::of(&guarded, self.oid(id), file);
                let Some(file) = file else {
                    kept.absent.push(absent);
                    break;
                };
                match guarded.ask(&[file.node]).pop() {
                    Some(Writing::Kept(lease)) => kept.leases.push(lease),
                    Some(Writing::Unknown) if file.may_be_on_its_way() => {
                        std::thread::sleep(AGAIN);
                        continue;
                    }
                    Some(Writing::Unknown) => kept.absent.push(absent),
                    Some(Writing::Open) | None => return None,
                }
                break;
            }
        }
        Some(kept)
    }

    /// A file as programs of a guarded directory see it where opens are not told: there the kernel
    /// itself keeps their locks. `dir`: the path below the volume's root of the directory where it
    /// has this name. `None`: it is in no such place, or not any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn shown(&self, id: HostId, dir: &[u8], name: &[u8]) -> Reply<Option<OwnedFd>> {
        let untold: Vec<_> = self.untold().collect();
        let mut path = self.mount_path.clone();
        for part in [dir, name].into_iter().filter(|part| !part.is_empty()) {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        for guarded in untold {
            match guarded.caches.find(&path) {
                Ok(shown) if rustix::fs::fstat(&shown)?.st_ino == id.ino => return Ok(Some(shown)),
                // It is in another one, or has gone from there.
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    pub(crate) fn untold(&self) -> impl Iterator<Item = Arc<Guarded>> + use<> {
        self.guarded_now().into_iter().filter(|guarded| guarded.plain.opens().is_none())
    }

    /// Keeps everybody from writing to what a transaction relies on, in the guarded directories
    /// where opens are not told: what nobody has open for writing by leases; the others are
    /// returned.
    ///
    /// # Errors
    /// The kernel does not know of a file yet that it was told of just now: to be tried again. More
    /// files than there may be descriptors.
    pub(crate) fn keep_all_out(
        &self,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<(Arc<Guarded>, FileAt)>, NotQuiet> {
        let mut written = Vec::new();
        for guarded in self.untold() {
            let mut files = Vec::new();
            for oid in self.relied_on(&guarded, locked.owner, locked.changed) {
                match guarded.plain.file_of(oid) {
                    Some(file) => files.push((oid, file)),
                    None => locked.absent.push(Absent::of(&guarded, oid, None)),
                }
            }
            // Nodes and snapshots have their shares of the descriptors, too.
            let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
            if files.len() as u64 > limit {
                return Err(NotQuiet::Unwatched(files.len()));
            }
            let nodes: Vec<NodeId> = files.iter().map(|(_, file)| file.node).collect();
            for ((oid, file), said) in files.into_iter().zip(guarded.ask(&nodes)) {
                match said {
                    Writing::Open => written.push((Arc::clone(&guarded), file)),
                    Writing::Kept(lease) => {
                        locked.leases.push(lease);
                        locked.files.insert(file.id);
                    }
                    Writing::Unknown if file.may_be_on_its_way() => {
                        std::thread::sleep(AGAIN);
                        return Err(NotQuiet::Busy);
                    }
                    Writing::Unknown => locked.absent.push(Absent::of(&guarded, oid, Some(file))),
                }
            }
        }
        Ok(written)
    }

    /// Whether nobody can be writing to what a transaction relies on in these directories.
    pub(crate) fn is_kept_out(&self, locked: &Locked<'_>) -> bool {
        let absent: HashSet<Oid> =
            locked.absent.iter().filter(|a| a.is_still()).map(|a| a.oid).collect();
        self.untold().all(|guarded| {
            let relied = self.relied_on(&guarded, locked.owner, locked.changed);
            relied.into_iter().all(|oid| match guarded.plain.file_of(oid) {
                Some(file) => locked.has(file.id) || absent.contains(&oid),
                None => true,
            })
        })
    }

    /// The files whose content a transaction has read or `changed`, and of those whose length it
    /// has seen the ones with a write that may not have landed.
    fn relied_on(
        &self,
        guarded: &Guarded,
        owner: TxnId,
        changed: Option<&HashSet<Oid>>,
    ) -> Vec<Oid> {
        let mut all: HashSet<Oid> = changed.into_iter().flatten().copied().collect();
        all.extend(self.engine.files_of(owner).into_iter().filter(|oid| {
            let node = guarded.plain.file_of(*oid).map(|file| file.node);
            self.relies(owner, *oid, (guarded, node))
        }));
        all.into_iter().collect()
    }

    /// Whether a transaction has read or written content of a file; or has seen its length, and a
    /// write that the daemon knows of may not have landed. `at`: where the file is guarded, and its
    /// node if the kernel knows it.
    pub(crate) fn relies(&self, owner: TxnId, oid: Oid, at: (&Guarded, Option<NodeId>)) -> bool {
        let (guarded, node) = at;
        let holds = |object| self.engine.holds(owner, object);
        holds(ObjectRef::Pages { oid, first: 0, last: u64::MAX })
            || holds(ObjectRef::Size(oid))
                && node.is_some_and(|node| guarded.caches.is_in_flight(node))
    }
}
