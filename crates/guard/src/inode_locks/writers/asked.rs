//! Where opens make no messages: the kernel is asked, by a lease on a descriptor of the mount
//! ([`Caches::keep_unwritten`]).  It is refused while anybody has the file open for writing, and as
//! long as it is held who opens the file for that waits.  So a lease is as good as the file's lock:
//! no write is in flight, and none begins.  What the kernel does not know nobody has open, as long
//! as it is not looked up again ([`Absent`]); the answer to a look-up may be on its way for a
//! moment, so of what was looked up just now the kernel is asked again until it knows it, or has
//! said that it has forgotten it.

use super::{Absent, FileAt, KeptOut, Relied, Writers, Writing};
use crate::publication::{Caches, ViewZero};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use systx_base::{NodeId, Oid};
use systx_store::io::{HostId, Openers};
use systx_vfs::api::Reply;
use systx_vfs::neighbours::NotQuiet;

/// So many files are asked about at once where nobody is to be kept out.
const AT_ONCE: usize = 128;

/// Longer than an answer takes to arrive on the busiest machine.
const ARRIVED: Duration = Duration::from_secs(2);

/// How long it takes until the kernel is asked again.
const AGAIN: Duration = Duration::from_millis(1);

impl FileAt {
    /// The kernel may not have had the answer yet by which it learns of it.
    fn may_be_on_its_way(&self) -> bool {
        self.at.elapsed() < ARRIVED
    }
}

/// See the module.
pub(super) struct Asked {
    pub plain: Arc<dyn ViewZero>,
    pub caches: Arc<dyn Caches>,
}

impl Asked {
    /// What the kernel says of files; what cannot be found out counts as open.
    fn ask(&self, files: &[NodeId]) -> Vec<Writing> {
        let said = self.caches.keep_unwritten(files).unwrap_or_else(|errno| {
            tracing::warn!(%errno, "who has files open for writing");
            Vec::new()
        });
        let unknown = files.len().saturating_sub(said.len());
        said.into_iter().chain((0..unknown).map(|_| Writing::Open)).collect()
    }
}

impl Writers for Asked {
    fn written_to(&self, id: HostId) -> Option<NodeId> {
        let node = self.plain.file_at(id)?.node;
        matches!(self.ask(&[node]).first(), Some(Writing::Open)).then_some(node)
    }

    fn open_for_writing(&self) -> Vec<(NodeId, HostId)> {
        let known = self.plain.files();
        let asked = known.chunks(AT_ONCE).flat_map(|some| {
            let nodes: Vec<NodeId> = some.iter().map(|(node, _)| *node).collect();
            let said = self.ask(&nodes);
            let open = some.iter().zip(said).filter(|(_, w)| matches!(w, Writing::Open));
            open.map(|(file, _)| *file).collect::<Vec<_>>()
        });
        asked.collect()
    }

    /// Readers are not known: somebody may be one.
    fn openers(&self, id: HostId) -> Option<Openers> {
        let node = self.plain.file_at(id)?.node;
        match self.ask(&[node]).first() {
            Some(Writing::Open) => Some(Openers::Writers),
            Some(Writing::Kept(_)) => Some(Openers::Readers),
            Some(Writing::Unknown) | None => None,
        }
    }

    /// Nobody who opens the file is held, so it is locked in any case.
    fn to_lock(&self, id: HostId) -> Option<NodeId> {
        self.plain.node_of(id)
    }

    fn keep_out(&self, id: HostId) -> Option<KeptOut> {
        let mut kept = KeptOut::default();
        loop {
            // Before it is asked for: what is looked up afterwards is seen.
            let file = self.plain.file_at(id);
            let absent = Absent::of(&self.plain, id.oid(), file);
            let Some(file) = file else {
                kept.absent.push(absent);
                return Some(kept);
            };
            match self.ask(&[file.node]).pop() {
                Some(Writing::Kept(lease)) => kept.lease(id, lease),
                Some(Writing::Unknown) if file.may_be_on_its_way() => {
                    std::thread::sleep(AGAIN);
                    continue;
                }
                Some(Writing::Unknown) => kept.absent.push(absent),
                Some(Writing::Open) | None => return None,
            }
            return Some(kept);
        }
    }

    fn keep_all_out(
        &self,
        relied: &Relied<'_>,
        kept: &mut KeptOut,
    ) -> Result<Vec<(NodeId, HostId)>, NotQuiet> {
        let mut files = Vec::new();
        for oid in relied.files() {
            match self.plain.file_of(oid) {
                Some(file) => files.push((oid, file)),
                None => kept.absent.push(Absent::of(&self.plain, oid, None)),
            }
        }
        // Nodes and snapshots have their shares of the descriptors, too.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        if files.len() as u64 > limit {
            return Err(NotQuiet::Unwatched(files.len()));
        }
        let nodes: Vec<NodeId> = files.iter().map(|(_, file)| file.node).collect();
        let mut written = Vec::new();
        for ((oid, file), said) in files.into_iter().zip(self.ask(&nodes)) {
            match said {
                Writing::Open => written.push((file.node, file.id)),
                Writing::Kept(lease) => kept.lease(file.id, lease),
                Writing::Unknown if file.may_be_on_its_way() => {
                    std::thread::sleep(AGAIN);
                    return Err(NotQuiet::Busy);
                }
                Writing::Unknown => kept.absent.push(Absent::of(&self.plain, oid, Some(file))),
            }
        }
        Ok(written)
    }

    fn are_kept_out(&self, relied: &Relied<'_>, locked: &HashSet<HostId>, kept: &KeptOut) -> bool {
        let absent: HashSet<Oid> =
            kept.absent.iter().filter(|a| a.is_still()).map(|a| a.oid).collect();
        relied.files().into_iter().all(|oid| match self.plain.file_of(oid) {
            Some(file) => locked.contains(&file.id) || kept.has(file.id) || absent.contains(&oid),
            None => true,
        })
    }

    fn shown(&self, id: HostId, path: &[u8]) -> Reply<Option<OwnedFd>> {
        match self.caches.find(path) {
            Ok(shown) if rustix::fs::fstat(&shown)?.st_ino == id.number() => Ok(Some(shown)),
            // It is in another one, or has gone from there.
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn keeps_locks(&self) -> bool {
        true
    }
}
