//! How owners of the host appear in a view.

use crate::api::{Attr, Caller, Reply};
use rustix::io::Errno;
use systx_base::{Gid, Kind, Uid};

const S_ISVTX: u32 = 0o1000;

/// How owners of the host appear in the view.
#[derive(Clone, Debug)]
pub enum Ids {
    /// As they are.
    Faithful,
    /// The view lives in a user namespace that has only this user and group: everything else would
    /// be an unmapped id, on which the kernel refuses every write.  What the user may write because
    /// of other permissions (a sticky /tmp, a directory of a supplementary group) is shown as the
    /// user's own.
    Single {
        /// The user.
        uid: Uid,
        /// The primary group.
        gid: Gid,
        /// Supplementary groups.
        groups: Vec<Gid>,
    },
}

impl Ids {
    /// The user whose files the view is of.
    pub(crate) fn own(&self) -> Uid {
        match self {
            Ids::Faithful => 0,
            Ids::Single { uid, .. } => *uid,
        }
    }

    /// Attributes as the view's processes may see them.
    pub(crate) fn shown(&self, attr: &Attr) -> Attr {
        let Ids::Single { uid, gid, groups } = self else { return *attr };
        let mut shown = *attr;
        let mine = attr.uid == *uid;
        let in_group = attr.gid == *gid || groups.contains(&attr.gid);
        if in_group {
            shown.gid = *gid;
        }
        let class = if in_group { attr.mode >> 3 } else { attr.mode };
        if !mine && class & 0o2 != 0 && attr.kind != Kind::Symlink {
            shown.uid = *uid;
        }
        if shown.uid == *uid {
            // The kernel refuses to write an inode with any unmapped id.
            shown.gid = *gid;
        }
        shown
    }

    /// Whether something is another user's, in the view of an ordinary one.
    pub(crate) fn are_of_another(&self, attr: &Attr) -> bool {
        matches!(self, Ids::Single { uid, .. } if *uid != attr.uid)
    }

    /// The kernel checks the sticky bit itself, except where it was shown other owners than the
    /// real ones: those of a directory, and of what is in it.
    pub(crate) fn check_sticky(&self, caller: Caller, dir: &Attr, there: &Attr) -> Reply<()> {
        let Ids::Single { .. } = self else { return Ok(()) };
        let sticky = dir.mode & S_ISVTX != 0;
        let mine = [dir.uid, there.uid].contains(&caller.uid);
        if sticky && !mine { Err(Errno::PERM) } else { Ok(()) }
    }
}
