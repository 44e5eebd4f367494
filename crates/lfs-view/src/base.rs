//! What a view shows: the live tree of a volume, or that of a snapshot.

use rustix::io::Errno;
use std::sync::Arc;
use systx_base::Time;
use systx_lfs::format::{BLOCK, INO_MAX, Ino};
use systx_lfs::{Error, Ops, Result, View as Snapshot, Volume};
use systx_lfs_store::VolumeStore;
use systx_store::io::Tree as _;
use systx_vfs::api::{Reply, StatFs};

/// See the module.
pub(crate) enum Base {
    Live(Arc<VolumeStore>),
    /// With the volume that it is of.
    Past(Arc<Volume>, Box<Snapshot>),
}

/// What is answered to an error of the volume.  What nobody could have caused is logged.
pub(crate) fn answer(error: Error) -> Errno {
    let errno = error.errno();
    match error {
        Error::Corrupt { .. } | Error::Unread { .. } => {
            tracing::error!(%error, "a volume is damaged");
        }
        Error::Io(ref source) if errno == Errno::IO => {
            tracing::error!(%source, "the device of a volume failed");
        }
        _ => {}
    }
    errno
}

/// An operation refuses, with this answer.
pub(crate) fn refusal(errno: Errno) -> Error {
    Error::Io(errno.into())
}

impl Base {
    fn volume(&self) -> &Arc<Volume> {
        match self {
            Base::Live(store) => store.volume(),
            Base::Past(volume, _) => volume,
        }
    }

    /// Looks at the tree.
    pub fn look<T>(&self, look: impl FnOnce(&mut Ops<'_>) -> Result<T>) -> Reply<T> {
        match self {
            Base::Live(store) => store.volume().look(look),
            Base::Past(_, snapshot) => snapshot.look(look),
        }
        .map_err(answer)
    }

    /// See [`Volume::plain`]. What takes room and is needed by nobody is not in the way.
    pub fn change<T>(&self, mut act: impl FnMut(&mut Ops<'_>) -> Result<T>) -> Reply<T> {
        let Base::Live(store) = self else { return Err(Errno::ROFS) };
        store.with_room(|| store.volume().plain(&mut act)).map_err(answer)
    }

    /// Whether so many blocks may still be used.
    pub fn has_room(&self, blocks: u64) -> bool {
        let look = || if blocks > self.free() { Err(Error::NoSpace) } else { Ok(()) };
        match self {
            Base::Live(store) => store.with_room(look),
            Base::Past(..) => look(),
        }
        .is_ok()
    }

    /// An object stays, also without a name.
    pub fn hold(&self, ino: Ino) -> Reply<()> {
        match self {
            Base::Live(store) => store.volume().hold(ino).map_err(answer),
            // Nothing goes away.
            Base::Past(..) => Ok(()),
        }
    }

    /// The opposite.
    pub fn release(&self, ino: Ino) -> Reply<()> {
        match self {
            Base::Live(store) => store.volume().release(ino).map_err(answer),
            Base::Past(..) => Ok(()),
        }
    }

    /// All that was changed is durable when this returns.
    pub fn sync(&self) -> Reply<()> {
        match self {
            Base::Live(store) => store.volume().sync().map_err(answer),
            Base::Past(..) => Ok(()),
        }
    }

    /// The time of a change.
    pub fn now(&self) -> Time {
        match self {
            Base::Live(store) => store.tree().now(),
            Base::Past(_, snapshot) => snapshot.info().time,
        }
    }

    /// Blocks that may still be used.
    pub fn free(&self) -> u64 {
        self.volume().space().free()
    }

    /// What statfs(2) tells.
    pub fn statfs(&self) -> StatFs {
        let space = match self {
            Base::Live(store) => store.space(),
            Base::Past(..) => self.volume().space(),
        };
        let free = space.free();
        StatFs {
            blocks: space.total,
            bfree: free,
            bavail: free,
            files: INO_MAX,
            ffree: INO_MAX,
            bsize: BLOCK as u32,
            namelen: 255,
            frsize: BLOCK as u32,
        }
    }
}
