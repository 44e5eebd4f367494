//! Where a volume and its store are.

use super::refused::failed;
use super::{OpenVolume, VolumeError};
use crate::fuse_mount::{FS_TYPE, SOURCE};
use crate::guarded::Guarded;
use crate::mounts::{self, Mount};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::Uid;
use systx_protocol::stores::{Noted, STORE_DIR, own_store};

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Mount point on the host.
    pub mount: PathBuf,
    /// `st_dev`.
    pub dev: u64,
    /// The store's directory, absolute.
    pub store: PathBuf,
}

/// Finds the volume of `dir` and a place for its store. A directory in one of `guarded` is on the
/// volume below; of those that are `mounted` the store is in the volume.
pub fn locate(
    dir: &Path,
    store: Option<&Path>,
    uid: Uid,
    home: Option<&Path>,
    (guarded, mounted): (&[Arc<Guarded>], &[Arc<OpenVolume>]),
) -> Result<Location, VolumeError> {
    let given = store
        .map(|given| std::path::absolute(given).map_err(|e| failed("resolve", given, e)))
        .transpose()?;
    let on = |below: &Location| Location {
        store: given.clone().unwrap_or_else(|| below.store.clone()),
        ..below.clone()
    };
    let table = mounts::here().map_err(|e| failed("read", Path::new("/proc/self/mountinfo"), e))?;
    // Working directories come without symbolic links. One in a guarded directory is recognised
    // without asking that mount, which is served by this very process.
    let straight = !dir.components().any(|c| c == std::path::Component::ParentDir);
    let holder = mounts::holding(&table, dir).filter(|_| straight);
    if let Some(below) = guarded.iter().find(|g| holder.is_some_and(|m| g.is(m))) {
        return Ok(on(&below.location));
    }
    if let Some(there) = mounted.iter().find(|v| holder.is_some_and(|m| v.is_mounted_as(m))) {
        return Ok(there.location.clone());
    }
    let dir = std::fs::canonicalize(dir).map_err(|e| failed("find", dir, e))?;
    let dev = device(&dir)?;
    if let Some(below) = guarded.iter().find(|g| g.dev == dev) {
        return Ok(on(&below.location));
    }
    if let Some(there) = mounted.iter().find(|v| v.location.dev == dev) {
        return Ok(there.location.clone());
    }
    let mount = mount_point(&table, mount_id(&dir)?)
        .ok_or_else(|| VolumeError::NoMount { path: dir.display().to_string() })?;
    // What another daemon guards is a file system as any.
    if mount.fs == FS_TYPE && mount.source != Path::new(SOURCE) {
        let (path, mount) = (dir.display().to_string(), mount.at.display().to_string());
        return Err(VolumeError::LogStructured { path, mount });
    }
    // Nothing can be linked or renamed into it from outside; a view of the mount shows an empty
    // place there.
    if mount.fs == "btrfs" && device(&mount.at)? != dev {
        let (path, mount) = (dir.display().to_string(), mount.at.display().to_string());
        return Err(VolumeError::Subvolume { path, mount });
    }
    let mount = mount.at.clone();
    let store = match given {
        Some(given) => given,
        None => default_store(&mount, dev, uid, &dir, home)?,
    };
    Ok(Location { mount, dev, store })
}

/// The mount points in a file system that is mounted at `whole` whose own content is in sight all
/// the same: by a mount of a part of the file system, at that very place or at another one.
pub(super) fn seen(table: &[Mount], whole: &Path) -> Vec<PathBuf> {
    let Some(whole) = table.iter().rev().find(|m| m.at == whole) else { return Vec::new() };
    let parts = || table.iter().filter(|m| m.dev == whole.dev && m.root != whole.root);
    let is_seen = |at: &&PathBuf| {
        let beneath = whole.inner(at);
        beneath.is_some_and(|beneath| parts().any(|part| beneath.starts_with(&part.root)))
    };
    table.iter().map(|m| &m.at).filter(is_seen).cloned().collect()
}

/// Where the mount with this id is mounted.  By id, not by device: a btrfs subvolume has a device
/// number that the mount table does not know, and several mounts may show one device.
fn mount_point(table: &[Mount], id: u64) -> Option<&Mount> {
    let mount = table.iter().find(|m| m.id == id)?;
    tracing::debug!(root = %mount.root.display(), "volume found");
    Some(mount)
}

/// Whether a user's store is where it is found without a list: at the root of its file system, or
/// in the state directory.
fn is_easily_found(location: &Location, home: Option<&Path>) -> bool {
    let top = location.mount.join(STORE_DIR);
    let own = home.map(own_store);
    location.store == top || own.is_some_and(|own| location.store == own)
}

/// Puts the store of a user on the list of those that are not easily found, if it is one.
pub(super) fn note(location: &Location) {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    if is_easily_found(location, home.as_deref()) {
        return;
    }
    let uid = rustix::process::geteuid().as_raw();
    let Some(noted) = Noted::of(uid, home.as_deref()) else { return };
    if let Err(error) = noted.note(&location.store) {
        let store = location.store.display();
        tracing::warn!(%error, %store, "`recover --all` will not find it");
    }
}

/// Root keeps the store at the volume's root. Anybody else in the own state directory if that is on
/// the volume, else next to the work: in the topmost directory above `dir` that is theirs.
fn default_store(
    mount: &Path,
    dev: u64,
    uid: Uid,
    dir: &Path,
    home: Option<&Path>,
) -> Result<PathBuf, VolumeError> {
    if uid == 0 {
        return Ok(mount.join(STORE_DIR));
    }
    if let Some(home) = home
        && device(home).is_ok_and(|d| d == dev)
        && owner(home) == Some(uid)
        && home.starts_with(mount)
    {
        return Ok(own_store(home));
    }
    let own = dir
        .ancestors()
        .take_while(|a| a.starts_with(mount) && device(a).is_ok_and(|d| d == dev))
        .filter(|a| owner(a) == Some(uid))
        .last();
    match own {
        Some(top) => Ok(top.join(STORE_DIR)),
        None => Err(VolumeError::NoStore { mount: mount.display().to_string() }),
    }
}

pub(super) fn device(path: &Path) -> Result<u64, VolumeError> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
        .map_err(|e| failed("look at", path, e.into()))?;
    Ok(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

fn mount_id(path: &Path) -> Result<u64, VolumeError> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)
        .map_err(|e| failed("look at", path, e.into()))?;
    Ok(stat.stx_mnt_id)
}

fn owner(path: &Path) -> Option<Uid> {
    rustix::fs::lstat(path).ok().map(|stat| stat.st_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 27 0:21 / /proc rw - proc proc rw\n\
        27 1 254:0 / / rw - ext4 /dev/vda rw\n\
        40 27 254:0 /srv/data /mnt/a\\040b rw - ext4 /dev/vda rw\n\
        41 27 7:1 / /mnt rw - xfs /dev/loop1 rw\n";

    #[test]
    fn a_mount_is_found_by_its_id() {
        let table = mounts::parse(TABLE);
        let find = |id| mount_point(&table, id).map(|m| m.at.clone());
        assert_eq!(find(27), Some(PathBuf::from("/")));
        assert_eq!(find(40), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(find(41), Some(PathBuf::from("/mnt")));
        assert_eq!(find(9), None);
    }

    #[test]
    fn what_a_part_of_the_volume_shows_is_not_out_of_sight() {
        let table = mounts::parse(
            b"1 0 8:1 / / rw - ext4 a rw\n\
            2 1 8:1 /self /self rw - ext4 a rw\n\
            3 1 8:1 /part /mnt/part rw - ext4 a rw\n\
            4 1 0:9 / /part/covered rw - tmpfs t rw\n\
            5 1 0:9 / /proc rw - proc p rw\n\
            6 1 8:1 / /mnt/whole rw - ext4 a rw\n",
        );
        let seen = seen(&table, Path::new("/"));
        assert_eq!(seen, ["/self", "/part/covered"].map(PathBuf::from));
    }
}
