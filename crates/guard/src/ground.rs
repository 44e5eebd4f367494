//! What a plain view that is no mount of its own works on: that which a view becomes after its
//! commit ([`crate::retired`]).
//!
//! - On a file system: descriptors of what lies below the guarded directories. Such a view orders
//!   its requests among all others by itself, and has view 0 forget what it changes.
//! - On a log-structured volume there is nothing below. It works on descriptors of the volume's own
//!   mount, so each of its requests is a system call there, which view 0 orders and the kernel
//!   knows of. An object is reached by its number ([`Caches::reach`]), whatever its name is.
//!
//! **Who asks the mount must not be waited for by it.** A commit holds requests about what it
//! changes; so its own thread reaches nothing before they are let go: until then an object is only
//! held, by a handle of the tree.
//!
//! [`Caches::reach`]: crate::publication::Caches::reach

use crate::plain::{Echo, Gate, NoGate, STALL};
use crate::publication::Guarded;
use crate::shared::SharedVolume;
use crate::sys;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use systx_base::{Kind, NodeId};
use systx_store::io::{Handle, HostId};
use systx_vfs::api::Reply;
use systx_vfs::volume::errno;

/// See the module.
pub(crate) struct Ground<'v>(pub &'v Arc<SharedVolume>);

/// An object that stays what it is, whatever happens to its name.
pub(crate) enum Object {
    /// It can be worked on.
    Reached(OwnedFd),
    /// See [`Ground::reach`].
    Held(Handle),
}

impl Ground<'_> {
    /// Who orders the requests of such a view: the one place where that is decided.
    pub fn gate(&self) -> Arc<dyn Gate> {
        if self.is_mount() {
            return Arc::new(NoGate);
        }
        Arc::new(Echo::new(Arc::clone(self.0), STALL))
    }

    /// Whether it works by way of the mount.
    pub fn is_mount(&self) -> bool {
        self.0.on_host().is_none()
    }

    /// The root, as a descriptor (`O_PATH`).
    ///
    /// # Errors
    /// It is gone.
    pub fn root(&self) -> Reply<OwnedFd> {
        match self.0.on_host() {
            Some(io) => io.duplicate(&self.0.tree.root()).map_err(errno),
            None => self.mount()?.caches.reach(NodeId::ROOT),
        }
    }

    /// Holds what a handle of the tree is for.
    ///
    /// # Errors
    /// No descriptor can be had.
    pub fn hold(&self, bare: &Handle) -> Reply<Object> {
        match self.0.on_host() {
            Some(io) => Ok(Object::Reached(io.duplicate(bare).map_err(errno)?)),
            None => Ok(Object::Held(bare.clone())),
        }
    }

    /// A descriptor of it (`O_PATH`).
    ///
    /// # Errors
    /// The volume is not mounted any more; a directory that has no path.
    pub fn reach(&self, object: Object, id: HostId, kind: Kind) -> Reply<OwnedFd> {
        match object {
            Object::Reached(fd) => Ok(fd),
            Object::Held(handle) => self.find(&handle, id, kind),
        }
    }

    fn mount(&self) -> Reply<Arc<Guarded>> {
        let has_number = |g: &Arc<Guarded>| {
            g.plain.root_id().is_some_and(|root| g.plain.number_of(root).is_some())
        };
        self.0.guarded_now().into_iter().find(has_number).ok_or(Errno::NOTCONN)
    }

    fn find(&self, handle: &Handle, id: HostId, kind: Kind) -> Reply<OwnedFd> {
        let mount = self.mount()?;
        let is_it = |fd: &OwnedFd| sys::stat(fd).is_ok_and(|seen| seen.id == id);
        let node = mount.plain.number_of(id).ok_or(Errno::STALE)?;
        // A directory that the kernel does not know it would have to find a way to, by requests.
        if (kind != Kind::Dir || mount.plain.node_of(id).is_some())
            && let Ok(fd) = mount.caches.reach(node)
            && is_it(&fd)
        {
            return Ok(fd);
        }
        let below = self.0.tree.path_of(handle).map_err(|_| Errno::STALE)?;
        let path = [&*self.0.mount_path, b"/", &*below].concat();
        mount.caches.find(&path).ok().filter(is_it).ok_or(Errno::STALE)
    }
}
