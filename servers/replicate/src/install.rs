//! Requests that are accepted, done in the directory: inside of one transaction.

use crate::OWN;
use crate::model::{Changed, Leaf, xattrs};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, mknodat, utimensat,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use systx_protocol::certify::{Content, Offer, Set, Source};
use systx_snapshots::step;

/// Installs one, of which the model says what it leaves. `place`: at what it is, for a message.
///
/// # Errors
/// Those of the directory.
pub fn install(
    dir: &Path,
    offer: &Offer,
    changed: &Changed,
    place: &RefCell<Vec<u8>>,
) -> io::Result<()> {
    let is_at = |path: &[u8]| {
        *place.borrow_mut() = path.to_vec();
        step();
    };
    let at = |path: &[u8]| dir.join(OsStr::from_bytes(path));
    let aside = dir.join(OWN).join("taken");
    let held = |n: usize| aside.join(n.to_string());
    let mut left: Vec<Option<PathBuf>> = Vec::new();
    for (n, path) in offer.taken.iter().enumerate() {
        is_at(path);
        fs::rename(at(path), held(n))?;
        left.push(Some(held(n)));
    }
    for (path, source) in &offer.placed {
        is_at(path);
        match source {
            Source::Taken(n) => {
                fs::rename(held(*n as usize), at(path))?;
                if let Some(slot) = left.get_mut(*n as usize) {
                    *slot = None;
                }
            }
            Source::File => {
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(at(path))?;
            }
            Source::Dir => fs::create_dir(at(path))?,
            Source::Symlink(to) => symlink(OsStr::from_bytes(to), at(path))?,
            Source::Special { kind, rdev } => {
                let kind = FileType::from_raw_mode(kind.mode_bits());
                mknodat(CWD, at(path), kind, Mode::from_raw_mode(0o600), *rdev)?;
            }
            Source::Link(to) => fs::hard_link(at(to), at(path))?,
        }
    }
    for path in left.into_iter().flatten() {
        match fs::symlink_metadata(&path)?.is_dir() {
            true => fs::remove_dir_all(&path)?,
            false => fs::remove_file(&path)?,
        }
    }
    for one in &offer.set {
        if let Some(content) = &one.content {
            is_at(&one.path);
            write(&at(&one.path), content)?;
        }
    }
    for (path, leaf) in changed {
        is_at(path);
        settle(&at(path), leaf)?;
    }
    offer.set.iter().try_for_each(|one| date(&at(&one.path), one))
}

/// Undoes what the kernel has made of an object by itself: the access list that a directory gives
/// to what is made in it, a group that it hands on, capabilities and set-id bits that a write or a
/// new owner takes away. The order matters for the same reason.
fn settle(at: &Path, leaf: &Leaf) -> io::Result<()> {
    let meta = fs::symlink_metadata(at)?;
    let (uid, gid) = leaf.owner;
    if (meta.uid(), meta.gid()) != leaf.owner {
        lchown(at, Some(uid), Some(gid))?;
    }
    let found = xattrs(at)?;
    for key in found.keys().filter(|key| !leaf.xattrs.contains_key(*key)) {
        rustix::fs::lremovexattr(at, &key[..])?;
    }
    for (key, value) in leaf.xattrs.iter().filter(|(key, value)| found.get(*key) != Some(value)) {
        rustix::fs::lsetxattr(at, &key[..], value, rustix::fs::XattrFlags::empty())?;
    }
    // A link has no permissions of its own.
    if !meta.is_symlink() && fs::symlink_metadata(at)?.mode() & 0o7777 != leaf.mode {
        fs::set_permissions(at, Permissions::from_mode(leaf.mode))?;
    }
    Ok(())
}

fn date(at: &Path, set: &Set) -> io::Result<()> {
    let Some(mtime) = set.mtime else { return Ok(()) };
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    };
    // Nothing is opened: a FIFO would wait for another one.
    Ok(utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn write(at: &Path, content: &Content) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(at)?;
    file.set_len(content.keep.min(content.len))?;
    for run in &content.runs {
        file.write_all_at(&run.bytes, run.offset)?;
    }
    file.set_len(content.len)
}
