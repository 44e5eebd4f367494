//! Requests that are accepted, done in the directory: inside of one transaction.

use crate::OWN;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use systx_protocol::certify::{Content, Offer, Set, Source};

/// Installs one.
///
/// # Errors
/// Those of the directory.
pub fn install(dir: &Path, offer: &Offer) -> io::Result<()> {
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
    offer.set.iter().try_for_each(|one| set(&at(&one.path), one))
}

fn set(at: &Path, set: &Set) -> io::Result<()> {
    if let Some(content) = &set.content {
        write(at, content)?;
    }
    if let Some((uid, gid)) = set.owner {
        lchown(at, Some(uid), Some(gid))?;
    }
    let is_link = fs::symlink_metadata(at)?.is_symlink();
    if let Some(mode) = set.mode.filter(|_| !is_link) {
        fs::set_permissions(at, Permissions::from_mode(mode))?;
    }
    for (key, value) in set.xattrs.iter().filter(|_| !is_link) {
        match value {
            Some(value) => {
                rustix::fs::lsetxattr(at, &key[..], value, rustix::fs::XattrFlags::empty())?;
            }
            None => rustix::fs::lremovexattr(at, &key[..])?,
        }
    }
    if let Some(mtime) = set.mtime.filter(|time| time.secs >= 0 && !is_link) {
        let since = Duration::new(mtime.secs.unsigned_abs(), mtime.nanos);
        File::open(at)?.set_modified(UNIX_EPOCH + since)?;
    }
    Ok(())
}

fn write(at: &Path, content: &Content) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(at)?;
    file.set_len(content.keep.min(content.len))?;
    for run in &content.runs {
        file.write_all_at(&run.bytes, run.offset)?;
    }
    file.set_len(content.len)
}
