//! Listings, in the order and with the cookies of the backing file system.

use super::Plain;
use crate::publication::BARRIER;
use crate::sys;
use rustix::fs::{self, RawDir, SeekFrom};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use systx_base::{Kind, NodeId};
use systx_store::real::kind_of;
use systx_txn::ObjectRef;
use systx_vfs::api::{DirEntry, Entry, Reply};

/// What is read at once.  The kernel takes some 30 names with attributes in a request, and what it
/// does not take has to be read again.
const CHUNK: usize = 2048;

struct Item {
    name: Vec<u8>,
    ino: u64,
    kind: Option<Kind>,
    next: u64,
}

impl Plain {
    pub(super) fn list_dir(
        &self,
        id: NodeId,
        from: u64,
        attributes: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Reply<()> {
        let node = self.table.node(id)?;
        let dir = self.table.lister(&node)?;
        let path = self.table.path(&node)?;
        let mut at = from;
        loop {
            let items = self.reading(&[ObjectRef::List(node.oid())], || chunk(&dir.lock(), at))?;
            let Some(last) = items.last() else {
                self.table.listed_to_end(&node);
                return Ok(());
            };
            at = last.next;
            for item in items {
                let dots = item.name == b"." || item.name == b"..";
                let hidden =
                    item.name == BARRIER || self.hidden.iter().any(|id| id.number() == item.ino);
                if !dots && hidden {
                    continue;
                }
                // What the kernel has of them is good: to look at each name again would be most of
                // what it takes to list a directory in which one name has changed.
                let entry = if attributes && !dots && !self.table.has_told(item.ino) {
                    match self.listed(node.oid(), &path, &item) {
                        Listed::Entry(entry) => Some(entry),
                        // Gone since it was listed.
                        Listed::Gone => continue,
                        Listed::Unknown => None,
                    }
                } else {
                    None
                };
                let kind = match (entry, item.kind) {
                    (Some(entry), _) => entry.attr.kind,
                    (None, Some(kind)) => kind,
                    (None, None) => match sys::stat_at(&*path, &item.name) {
                        Ok(seen) => seen.kind,
                        Err(_) => continue,
                    },
                };
                let (name, next) = (&*item.name, item.next);
                if !sink(DirEntry { name, ino: item.ino, kind, next, entry }) {
                    if let Some(entry) = entry {
                        self.table.forget(entry.node, 1);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// The node of a listed name, with one lookup.
    fn listed(&self, dir: systx_base::Oid, path: &super::table::PathFd, item: &Item) -> Listed {
        let name = &*item.name;
        // Of what is known that saves the opening.
        let seen = self.reading(&[ObjectRef::Entry { dir, name }], || sys::stat_at(path, name));
        match seen {
            Ok(seen) if seen.dev != self.dev => return Listed::Unknown,
            Ok(seen) => {
                if let Some(node) = self.table.enter_known(seen.id) {
                    let oid = node.oid();
                    let reads = [ObjectRef::Attr(oid), ObjectRef::Size(oid)];
                    let attr = self.reading(&reads, || sys::attr(&*self.table.path(&node)?));
                    return match attr {
                        Ok(attr) => Listed::Entry(Entry { node: node.id, generation: 0, attr }),
                        Err(_) => {
                            self.table.forget(node.id, 1);
                            Listed::Unknown
                        }
                    };
                }
            }
            Err(Errno::NOENT) => return Listed::Gone,
            Err(_) => return Listed::Unknown,
        }
        match sys::child(path, name).and_then(|fd| self.hand_out(fd)) {
            Ok(Some(entry)) => Listed::Entry(entry),
            Ok(None) | Err(Errno::NOENT) => Listed::Gone,
            Err(_) => Listed::Unknown,
        }
    }
}

enum Listed {
    Entry(Entry),
    Gone,
    /// Without attributes: something is mounted there, or they cannot be read.
    Unknown,
}

/// Names from a cookie on; none at the end.
fn chunk(dir: &OwnedFd, from: u64) -> Reply<Vec<Item>> {
    let items = read_from(dir, from)?;
    // Of a descriptor that was first read at its end, ext4 (Linux 6.18, `ext4_dx_readdir`) goes on
    // from there when it is read from the start: it takes 0 for where it stopped. That read is
    // remembered, so the next one is right.
    if items.is_empty() && from == 0 { read_from(dir, from) } else { Ok(items) }
}

fn read_from(dir: &OwnedFd, from: u64) -> Reply<Vec<Item>> {
    fs::seek(dir, SeekFrom::Start(from))?;
    let mut buf = [MaybeUninit::uninit(); CHUNK];
    let mut raw = RawDir::new(dir, &mut buf);
    let mut items = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        items.push(Item {
            name: entry.file_name().to_bytes().to_vec(),
            ino: entry.ino(),
            kind: kind_of(entry.file_type()),
            next: entry.next_entry_cookie(),
        });
        if raw.is_buffer_empty() {
            break;
        }
    }
    Ok(items)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// As when a listing that another one has brought to its end asks once more, and the next one
    /// gets the descriptor that was opened for that.
    #[test]
    fn a_descriptor_that_was_first_read_at_its_end_shows_everything_from_the_start() {
        // Mostly ext4, while /tmp may be a tmpfs, which has no such fault.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(dir.path().join("name"), "").unwrap();
        let open = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        assert!(chunk(&open, i64::MAX as u64).unwrap().is_empty());
        assert!(chunk(&open, 0).unwrap().iter().any(|item| item.name == b"name"));
    }
}
