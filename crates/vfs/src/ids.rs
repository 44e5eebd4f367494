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
    /// be an unmapped id, on which the kernel refuses every write, and every change of a name.
    /// What the user may write because of other permissions (a sticky /tmp, a directory of a
    /// supplementary group) is shown as the user's own, and so is what the user may remove.
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

    /// Attributes as the view's processes may see them; of something in `dir`.
    pub(crate) fn shown(&self, attr: &Attr, dir: Option<&Attr>) -> Attr {
        let Ids::Single { uid, gid, groups } = self else { return *attr };
        let mut shown = *attr;
        if attr.gid == *gid || groups.contains(&attr.gid) {
            shown.gid = *gid;
        }
        if self.may_write(attr) {
            shown.uid = *uid;
        } else if dir.is_some_and(|dir| self.may_name(attr, dir)) {
            shown.uid = *uid;
            // It is still not to be written.  Whether it can be read is found out by reading it:
            // an access control list, too, shows in the group's bits.
            let readable = (attr.mode | attr.mode >> 3) & 0o5;
            shown.mode = attr.mode & !0o700 | readable << 6;
        }
        if shown.uid == *uid {
            // The kernel refuses to write an inode with any unmapped id.
            shown.gid = *gid;
        }
        shown
    }

    /// Whether something is another's, and its mode allows the user to write it.
    pub(crate) fn may_write(&self, attr: &Attr) -> bool {
        let Ids::Single { uid, gid, groups } = self else { return false };
        let in_group = attr.gid == *gid || groups.contains(&attr.gid);
        let class = if in_group { attr.mode >> 3 } else { attr.mode };
        attr.uid != *uid && class & 0o2 != 0 && attr.kind != Kind::Symlink
    }

    /// Whether something is another's, and the user may remove and rename it in its directory.  A
    /// directory of another moves to no other place, the graveyard among them.
    fn may_name(&self, attr: &Attr, dir: &Attr) -> bool {
        let owns = |attr: &Attr| matches!(self, Ids::Single { uid, .. } if *uid == attr.uid);
        let open = owns(dir) || self.may_write(dir);
        !owns(attr) && attr.kind != Kind::Dir && dir.mode & S_ISVTX == 0 && open
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
