//! A seat: what a thread needs to enter a transaction on one guarded directory, made once.
//!
//! 1. The daemon gives this thread an alias root, under a name that only this thread can open.
//! 2. A copy of it is taken as a mount that is nowhere yet; the thread gets a mount namespace of
//!    its own, a copy of the one it was in, and puts that mount over the guarded directory there.
//! 3. It goes back.  From then on entering and leaving is one setns(2) each.
//!
//! Mounts that are made outside later are seen inside, not the other way round.
//!
//! On a directory whose daemon routes by thread number there is only the control file: the thread
//! stays where it is, and its requests go to the transaction from its begin to its end.

use crate::door::Door;
use crate::sys_unsafe::{enter, ioctl, unshare};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_abi as abi;

/// How long a guarded directory whose daemon has ended is waited for.
const COMES_BACK: Duration = Duration::from_secs(10);

/// Type of guarded mounts in the mount table.
const FS_TYPE: &[u8] = b"fuse.systx";

/// See the module.
pub struct Seat {
    /// Where the ioctls go.
    pub control: OwnedFd,
    /// Of its mount namespace.
    pub door: Arc<Door>,
    /// Where the guarded directory is.
    pub at: PathBuf,
}

/// Where a thread works.
pub struct Where {
    /// None if it stays there.
    dir: Option<OwnedFd>,
    path: Option<PathBuf>,
}

/// A thread that went out.
pub struct Out {
    /// Where it worked inside, if not where it came in.
    pub moved: Option<PathBuf>,
    /// Whether it works again where it came in. If not it is in `/`. That may concern a file system
    /// that has nothing to do with the transaction.
    pub back: Result<(), Errno>,
}

impl Where {
    pub fn now() -> Result<Where, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(c".", flags, Mode::empty())?;
        Ok(Where { dir: Some(dir), path: here() })
    }

    /// Where it is.
    fn stays() -> Where {
        Where { dir: None, path: None }
    }

    /// There again.
    fn back(&self) -> Result<(), Errno> {
        let Some(dir) = &self.dir else { return Ok(()) };
        match rustix::process::fchdir(dir) {
            Err(e) if has_ended(e) => self.back_by_path(),
            other => other,
        }
    }

    /// At the same path, in the guarded directory whose daemon has ended, when it is back. That is
    /// waited for: what the program calls by relative paths must go neither to `/`, where setns(2)
    /// leaves a thread, nor to the dead mount.
    fn back_by_path(&self) -> Result<(), Errno> {
        let path = self.path.as_ref().ok_or(Errno::NOTCONN)?;
        let until = Instant::now() + COMES_BACK;
        loop {
            // By what the kernel remembers of it, a dead directory can be entered.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            let asked = || rustix::fs::statx(CWD, c"", flags, StatxFlags::MODE).map(drop);
            match rustix::process::chdir(path).and_then(|()| asked()) {
                Err(e) if has_ended(e) && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }
}

/// Whether an error of what the daemon does not refuse so itself says that it has ended:
/// `ECONNABORTED` if it had been asked, `ECANCELED` if a thread of it that was killed did not get
/// to that any more, `ENOTCONN` from then on (`fuse_dev_end_requests()`,
/// `fuse_uring_send_in_task()` and `fuse_get_req()` of the kernel).
pub fn has_ended(e: Errno) -> bool {
    matches!(e, Errno::NOTCONN | Errno::CANCELED | Errno::CONNABORTED)
}

pub fn here() -> Option<PathBuf> {
    let path = rustix::process::getcwd(Vec::new()).ok()?;
    // One that is not below the root has no path.
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
    path.is_absolute().then_some(path)
}

impl Seat {
    /// For this thread, on the guarded directory that holds `dir`.  `ENOTTY`: it lies in none.
    pub fn new(dir: &Path) -> Result<Seat, Errno> {
        let fd = open_dir(dir)?;
        let mut attach =
            abi::Attach { version: abi::VERSION, name_len: 0, routed: 0, name: [0; 52] };
        let at = mount_of(&fd, dir)?;
        ioctl(&fd, abi::ATTACH, &mut attach)?;
        let name = attach.name.get(..attach.name_len as usize).ok_or(Errno::PROTO)?;
        let root = open_dir(&at)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let control = [name, b".control"].concat();
        let control = rustix::fs::openat(&root, control, flags, Mode::empty())?;
        if attach.routed != 0 {
            return Ok(Seat { control, door: Door::routed(), at });
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = rustix::mount::open_tree(&root, name, flags)?;
        let back = Where::now()?;
        let slash = rustix::fs::stat(c"/")?;
        let outside = namespace()?;
        unshare(true)?;
        // From here on the thread has to be brought back whatever happens.
        let made = cover(&tree, &at).and_then(|()| namespace());
        enter(outside.as_fd())?;
        let now = rustix::fs::stat(c"/")?;
        if (now.st_dev, now.st_ino) != (slash.st_dev, slash.st_ino) {
            // A root that is not the namespace's own does not come back by itself, and would not be
            // that of the transaction either.
            return Err(Errno::OPNOTSUPP);
        }
        back.back()?;
        let inside = made?;
        Ok(Seat { control, door: Door::new(inside, outside)?, at })
    }

    /// Into the transaction; the working directory goes along.
    pub fn go_in(&self) -> Result<Where, Errno> {
        if self.door.is_routed() {
            return Ok(Where::stays());
        }
        let from = Where::now()?;
        self.door.go_in()?;
        let Some(path) = from.path.as_deref().filter(|p| *p != Path::new("/")) else {
            return Ok(from);
        };
        match rustix::process::chdir(path) {
            Ok(()) => Ok(from),
            Err(e) => {
                self.door.go_out()?;
                from.back()?;
                Err(e)
            }
        }
    }

    /// Out of it.
    ///
    /// # Errors
    /// The thread is inside as before.
    pub fn go_out(&self, from: &Where) -> Result<Out, Errno> {
        if self.door.is_routed() {
            return Ok(Out { moved: None, back: Ok(()) });
        }
        let now = here();
        self.door.go_out()?;
        let moved = now.filter(|now| from.path.as_ref() != Some(now));
        Ok(Out { moved, back: from.back() })
    }

    /// After a [`Seat::go_out`], if the daemon turns out to have ended.
    ///
    /// # Errors
    /// The directory does not come back.
    pub fn daemon_has_ended(&self, from: &Where) -> Result<(), Errno> {
        if self.door.is_routed() {
            return self.knows();
        }
        let inside = from.path.as_ref().is_some_and(|path| path.starts_with(&self.at));
        if inside { from.back_by_path() } else { Ok(()) }
    }

    /// Tells the next daemon, as soon as there is one, that the program knows what became of its
    /// transaction: what the thread asks of the directory from then on is not refused any more.
    fn knows(&self) -> Result<(), Errno> {
        let until = Instant::now() + COMES_BACK;
        loop {
            let told = open_dir(&self.at)
                .and_then(|dir| ioctl(dir, abi::ROUTE, &mut abi::Route::default()));
            match told {
                Err(e) if has_ended(e) && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // It is not guarded any more, or not in that way.
                Err(Errno::NOTTY) => return Ok(()),
                other => return other,
            }
        }
    }

    /// Out of a transaction that stays open.
    ///
    /// # Errors
    /// As [`Seat::go_out`].
    pub fn step_out(&self, from: &Where) -> Result<Out, Errno> {
        self.route(false)?;
        self.go_out(from)
    }

    /// Into it again.
    pub fn step_in(&self) -> Result<Where, Errno> {
        self.route(true)?;
        self.go_in()
    }

    fn route(&self, on: bool) -> Result<(), Errno> {
        if !self.door.is_routed() {
            return Ok(());
        }
        self.ask(abi::ROUTE, &mut abi::Route { on: u32::from(on), reserved: 0 })
    }

    /// Into it again after a [`Seat::go_out`] that told `moved`.
    pub fn go_back(&self, from: Where, moved: Option<&Path>) -> Result<Where, Errno> {
        self.go_in()?;
        if let Some(moved) = moved {
            rustix::process::chdir(moved)?;
        }
        Ok(from)
    }

    /// Makes an ioctl on the seat.
    pub fn ask<T: zerocopy::FromBytes + zerocopy::IntoBytes>(
        &self,
        cmd: u32,
        arg: &mut T,
    ) -> Result<(), Errno> {
        ioctl(&self.control, cmd, arg)
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn namespace() -> Result<OwnedFd, Errno> {
    rustix::fs::open(c"/proc/thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Puts the alias over the guarded directory, in the namespace that this thread is in.
fn cover(tree: &OwnedFd, at: &Path) -> Result<(), Errno> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change(c"/", flags)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", CWD, at, flags)
}

/// Where the guarded mount is that `fd` was opened in, by the path `dir`.
///
/// # Errors
/// `ENOTTY`: it is none. `ENOTCONN`: it was taken away since: that is how the dead mount of a
/// daemon goes when the next one has its own in place.
fn mount_of(fd: &OwnedFd, dir: &Path) -> Result<PathBuf, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let number = rustix::fs::statx(fd, c"", flags, StatxFlags::MNT_ID)?.stx_mnt_id;
    let id = number.to_string();
    let table = std::fs::read("/proc/thread-self/mountinfo").map_err(|_| Errno::IO)?;
    for line in table.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b' ');
        if fields.next() != Some(id.as_bytes()) {
            continue;
        }
        let at = fields.nth(3).ok_or(Errno::IO)?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1);
        if kind != Some(FS_TYPE) {
            return Err(Errno::NOTTY);
        }
        return Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&plain(at))));
    }
    // The table has no mount either that the root directory lies in the midst of (chroot(2)).
    let now = rustix::fs::statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)?;
    Err(if now.stx_mnt_id == number { Errno::NOTTY } else { Errno::NOTCONN })
}

/// Undoes the mount table's octal escapes.
fn plain(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).filter(|_| field[at] == b'\\');
        let byte = digits
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        out.push(byte.unwrap_or(field[at]));
        at += if byte.is_some() { 4 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table_lose_their_escapes() {
        assert_eq!(plain(br"/a\040b\134c\"), br"/a b\c\");
        assert_eq!(plain(br"/\09"), br"/\09");
    }

    #[test]
    fn a_mount_that_was_taken_away_since_is_told_from_one_that_is_not_guarded() {
        let there = std::thread::spawn(|| {
            if unshare(true).is_err() {
                return println!("SKIPPED: only root can mount here");
            }
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change(c"/", private).unwrap();
            let at = std::env::temp_dir();
            assert_eq!(mount_of(&open_dir(&at).unwrap(), &at), Err(Errno::NOTTY));
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount(c"none", &at, c"tmpfs", flags, None).unwrap();
            let fd = open_dir(&at).unwrap();
            assert_eq!(mount_of(&fd, &at), Err(Errno::NOTTY));
            rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).unwrap();
            assert_eq!(mount_of(&fd, &at), Err(Errno::NOTCONN));
        });
        there.join().unwrap();
    }
}
