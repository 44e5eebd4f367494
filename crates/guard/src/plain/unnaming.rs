//! Names that go away: on whose behalf.
//!
//! In a directory with the sticky bit a name is taken away by the owner of what has it, by the
//! owner of the directory, and by who is privileged over it.  The kernel checks that for the inode
//! that it knows under the name, and tells the name alone: another inode may have it by the time of
//! the call.  So the call is made with the caller's user id and without the privilege, and the
//! backing file system checks what is there, in the same step in which it takes the name away.
//!
//! Who is privileged (`CAP_FOWNER`) over that inode, and over all, keeps the privilege.  Whose
//! privilege ends with a user namespace acts as the owner of what was found: if that has changed
//! again, the call fails.

use super::identity::Acting;
use crate::sys;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use systx_base::Uid;
use systx_vfs::api::{Caller, Reply};
use systx_vfs::client::{Privilege, privilege};

const S_ISVTX: u32 = 0o1000;

/// A name in a directory.
pub(super) type At<'a> = (BorrowedFd<'a>, &'a [u8]);

/// What takes names away.
pub(super) struct Unnaming<'a> {
    pub caller: Caller,
    /// The names of which what they stand for now is taken away.
    pub lost: &'a [At<'a>],
    /// It makes something, too, which is the caller's.
    pub makes: bool,
}

impl Unnaming<'_> {
    /// Makes the call.
    pub fn act(&self, call: impl Fn() -> Reply<()>) -> Reply<()> {
        let Unnaming { caller, lost, makes } = *self;
        let act = |by: Caller, privileged: bool| {
            let _acting = match makes {
                true => Acting::creating(by, 0)?.unprivileged(!privileged)?,
                false => Acting::unnaming(by, privileged)?,
            };
            call()
        };
        if caller.uid == 0 && !is_any_sticky(lost) {
            return act(caller, true);
        }
        // Root mostly is.
        if caller.uid == 0
            && matches!(privilege(caller.tid), Privilege::OverAll | Privilege::Unknown)
        {
            return act(caller, true);
        }
        match act(caller, false) {
            Err(Errno::PERM) => {}
            done => return done,
        }
        match privilege(caller.tid) {
            Privilege::OverAll => act(caller, true),
            Privilege::Over(ids) if !makes => {
                let found = lost.iter().filter_map(|(dir, name)| sys::stat_at(dir, name).ok());
                let others = found.filter(|seen| seen.uid != caller.uid);
                let mut owner: Option<Uid> = None;
                for seen in others {
                    let known = ids.contain(seen.uid, seen.gid);
                    if !known || owner.is_some_and(|uid| uid != seen.uid) {
                        return Err(Errno::PERM);
                    }
                    owner = Some(seen.uid);
                }
                owner.map_or(Err(Errno::PERM), |uid| act(Caller { uid, ..caller }, false))
            }
            _ => Err(Errno::PERM),
        }
    }
}

fn is_any_sticky(lost: &[At<'_>]) -> bool {
    // Most renames are in one directory, which is asked once.
    let is_new = |n: usize| n == 0 || lost[n].0.as_raw_fd() != lost[n - 1].0.as_raw_fd();
    let mut dirs = lost.iter().enumerate().filter(|(n, _)| is_new(*n)).map(|(_, at)| at.0);
    dirs.any(|dir| sys::stat(dir).is_ok_and(|seen| seen.mode & S_ISVTX != 0))
}
