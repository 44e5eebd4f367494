//! Requests that are accepted, done in the directory: inside of one transaction.

use crate::OWN;
use crate::model::{Changed, Leaf, xattrs};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use systx_protocol::certify::{Content, Offer, Set, Source};

/// Installs one, of which the model says what it leaves.
///
/// # Errors
/// Those of the directory.
pub fn install(dir: &Path, offer: &Offer, changed: &Changed) -> io::Result<()> {
    let at = |path: &[u8]| dir.join(OsStr::from_bytes(path));
    let aside = dir.join(OWN).join("taken");
    let held = |n: usize| aside.join(n.to_string());
    let mut left: Vec<Option<PathBuf>> = Vec::new();
    for (n, path) in offer.taken.iter().enumerate() {
        fs::rename(at(path), held(n))?;
        left.push(Some(held(n)));
    }
    for (path, source) in &offer.placed {
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
            write(&at(&one.path), content)?;
        }
    }
    changed.iter().try_for_each(|(path, leaf)| settle(&at(path), leaf))?;
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
    if meta.is_symlink() {
        return Ok(());
    }
    let found = xattrs(at)?;
    for key in found.keys().filter(|key| !leaf.xattrs.contains_key(*key)) {
        rustix::fs::lremovexattr(at, &key[..])?;
    }
    for (key, value) in leaf.xattrs.iter().filter(|(key, value)| found.get(*key) != Some(value)) {
        rustix::fs::lsetxattr(at, &key[..], value, rustix::fs::XattrFlags::empty())?;
    }
    if fs::symlink_metadata(at)?.mode() & 0o7777 != leaf.mode {
        fs::set_permissions(at, Permissions::from_mode(leaf.mode))?;
    }
    Ok(())
}

fn date(at: &Path, set: &Set) -> io::Result<()> {
    let Some(mtime) = set.mtime.filter(|time| time.secs >= 0) else { return Ok(()) };
    if fs::symlink_metadata(at)?.is_symlink() {
        return Ok(());
    }
    let since = Duration::new(mtime.secs.unsigned_abs(), mtime.nanos);
    File::open(at)?.set_modified(UNIX_EPOCH + since)
}

fn write(at: &Path, content: &Content) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(at)?;
    file.set_len(content.keep.min(content.len))?;
    for run in &content.runs {
        file.write_all_at(&run.bytes, run.offset)?;
    }
    file.set_len(content.len)
}
