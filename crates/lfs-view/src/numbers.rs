//! Files by their numbers, for who serves the mount and may not open by handle.
//!
//! The root has one more directory, under a name that nobody else knows and no listing shows. In it
//! each file has its number for a name. So who serves the mount has a path to each file, whatever
//! became of its names, and of the right to search the directories on the way.
//!
//! - *Such a name is forgotten at once*: who has opened it has the kernel do that. It would keep
//!   the file in memory, and so its space, also when it has no other name any more.
//! - *Directories are not there.* The kernel has one place for each, and would move it here.
//! - *Nothing passes the gate.* A commit takes the locks of files by this way, and is not to wait
//!   for itself. Its answers are those of the moment, and so believed for no moment, too.

use crate::{VolumeView, ino_of};
use rustix::io::Errno;
use systx_base::{Gid, Kind, NodeId, Time, Uid};
use systx_lfs::format::INO_MAX;
use systx_vfs::api::{Attr, Entry, Reply, Valid};

/// The directory; no object of a volume has this number.
const DIRECTORY: NodeId = NodeId(INO_MAX + 1);

/// How its name begins.
const HIDDEN: &[u8] = b".systx\x01numbers-";

/// How who serves the mount gets at an object.
pub struct Way {
    /// Below the root of the mount.
    pub path: Vec<u8>,
    /// The name that the kernel is to forget, once it is open, and where that is.
    pub forget: Option<(NodeId, Vec<u8>)>,
}

/// See the module.
pub(crate) struct Numbers {
    name: Vec<u8>,
    owner: (Uid, Gid),
}

impl Numbers {
    /// `key`: what nobody else can guess; `owner`: who serves the mount.
    pub fn new(key: u64, owner: (Uid, Gid)) -> Numbers {
        Numbers { name: [HIDDEN, format!("{key:016x}").as_bytes()].concat(), owner }
    }

    /// The way to a file.
    pub fn way_to(&self, node: NodeId) -> Way {
        let name = node.0.to_string().into_bytes();
        Way { path: [&*self.name, b"/", &*name].concat(), forget: Some((DIRECTORY, name)) }
    }

    /// What a name in this directory means, or whether it is that of the directory; `None`: it is
    /// neither.
    pub fn find(
        &self,
        view: &VolumeView,
        parent: NodeId,
        name: &[u8],
    ) -> Option<Reply<Option<Entry>>> {
        if parent == NodeId::ROOT && name == self.name {
            return Some(Ok(Some(Entry { node: DIRECTORY, generation: 0, attr: self.attr() })));
        }
        (parent == DIRECTORY).then(|| match number(name) {
            Some(node) => hand_out(view, node).map(Some),
            None => Ok(None),
        })
    }

    /// The attributes of the directory, if this is it.
    pub fn attr_of(&self, node: NodeId) -> Option<Attr> {
        (node == DIRECTORY).then(|| self.attr())
    }

    /// How long its answers are believed.
    pub fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Option<Valid> {
        let zero = Some(std::time::Duration::ZERO);
        let never = Valid { name: zero, attr: zero, dir_attr: zero };
        (node == DIRECTORY).then(|| name.map_or(Valid::default(), |_| never))
    }

    fn attr(&self) -> Attr {
        let (uid, gid) = self.owner;
        Attr {
            ino: DIRECTORY.0,
            kind: Kind::Dir,
            mode: 0o500,
            nlink: 2,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: systx_lfs::format::BLOCK as u32,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
        }
    }
}

fn number(name: &[u8]) -> Option<NodeId> {
    std::str::from_utf8(name).ok()?.parse().ok().map(NodeId)
}

/// One more lookup of a node that is no directory.
fn hand_out(view: &VolumeView, node: NodeId) -> Reply<Entry> {
    let ino = ino_of(node);
    if view.attr(ino)?.kind == Kind::Dir {
        return Err(Errno::NOENT);
    }
    view.enter_by_number(ino)?;
    view.entry(ino, view.attr(ino))
}
