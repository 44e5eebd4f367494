//! The bytes of backing files: recorded as read, taken from the version that was met, and verified
//! to be of that.

use super::{Reach, whole};
use crate::api::Reply;
use crate::content::{Base as BaseBytes, Content};
use crate::node::Base;
use crate::state::State;
use crate::volume::errno;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use systx_base::NodeId;
use systx_base::sync::Mutex;
use systx_store::io::{Handle, Tree};
use systx_txn::{Isolation, ObjectRef};

/// The backing file of a node.
pub(crate) struct Backing {
    io: Arc<dyn Tree>,
    handle: Handle,
    base: Base,
}

impl BaseBytes for Backing {
    fn len(&self) -> u64 {
        self.base.stamp.length()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // What an outsider appended is not part of the version that was met.
        let end = self.len().saturating_sub(offset);
        let n = usize::try_from(end).map_or(buf.len(), |end| end.min(buf.len()));
        self.io.read_at(&self.handle, &mut buf[..n], offset)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.io.next_data(&self.handle, offset)
    }
}

/// The backing file for a change, which must not take over bytes of another moment: a loser would
/// read its own bytes in a page of them.
pub(crate) struct StillOneMoment<'a> {
    pub reach: &'a Reach,
    pub backing: &'a Backing,
}

impl BaseBytes for StillOneMoment<'_> {
    fn len(&self) -> u64 {
        self.backing.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.backing.read_at(buf, offset)?;
        self.reach.still_one_moment()?;
        Ok(n)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.backing.next_data(offset)
    }
}

/// A file's content, ready for a transfer.
pub(crate) struct Opened {
    pub content: Arc<Mutex<Content>>,
    pub backing: Option<Backing>,
}

impl Opened {
    pub fn base(&self) -> Option<&dyn BaseBytes> {
        self.backing.as_ref().map(|b| b as &dyn BaseBytes)
    }

    /// Whether the backing file is the very version that was met, if bytes of it were needed.
    pub fn is_as_met(&self) -> Reply<bool> {
        let Some(backing) = &self.backing else { return Ok(true) };
        let stat = backing.io.stat(&backing.handle).map_err(errno)?;
        Ok(stat.stamp() == backing.base.stamp)
    }
}

impl Reach {
    /// Records pages of the backing file as read. The one place where content is read from there:
    /// an aged transaction keeps plain writers out first, since a write that came before the record
    /// is nothing to it, and one that is held after it is in the kernel's pages already.
    pub fn record_pages(&self, st: &State, node: NodeId, needed: &[Range<u64>]) -> Reply<()> {
        let Some(base) = &st.node(node)?.base else { return Ok(()) };
        let shared = !self.work.is_frozen(base.oid());
        let first_read = shared && !needed.is_empty() && self.files.get(node).is_none();
        if first_read {
            self.others.keep_writers_out(self.work.txn, base.stamp.id());
        }
        for pages in needed {
            let (first, last) = (pages.start, pages.end.saturating_sub(1));
            self.work.read_of(ObjectRef::Pages { oid: base.oid(), first, last })?;
        }
        if first_read {
            self.others.recorded(self.work.txn, base.stamp.id());
        }
        Ok(())
    }

    /// Opens the backing file if pages of it are needed.
    pub fn open_backing(
        &self,
        st: &State,
        node: NodeId,
        content: Arc<Mutex<Content>>,
        needed: &[Range<u64>],
    ) -> Reply<Opened> {
        let (Some(base), false) = (st.node(node)?.base.clone(), needed.is_empty()) else {
            return Ok(Opened { content, backing: None });
        };
        let handle = self.file_handle(st, node)?;
        Ok(Opened { content, backing: Some(Backing { io: Arc::clone(self.tree()), handle, base }) })
    }

    /// After a transfer: what was read was the version that was met.
    pub fn verify(&self, opened: &Opened) -> Reply<()> {
        let Some(backing) = &opened.backing else { return Ok(()) };
        let stat = self.tree().stat(&backing.handle).map_err(errno)?;
        // What was recorded is the inode that was met: one that has replaced it is another object,
        // of which this transaction does not hear if it changes.
        let recorded =
            self.work.isolation == Isolation::Snapshot || stat.id == backing.base.stamp.id();
        let again = || self.tree().stat(&backing.handle);
        if recorded && self.is_current(&backing.base, &stat, again) {
            return Ok(());
        }
        match self.work.outsider(whole(&backing.base)) {
            Errno::CANCELED => Err(Errno::CANCELED),
            // Snapshot isolation goes on with what is there; the stale read is reported by name.
            _ => Ok(()),
        }
    }
}
