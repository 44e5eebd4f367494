//! What committed transactions changed, for `diff` and `show`.

use super::find;
use crate::protocol::{Change, ChangeKind, Content, Failure, FailureKind, HostPath, Side, Version};
use crate::transactions::Transactions;
use crate::volume::OpenVolume;
use std::sync::Arc;
use systx_base::{Kind, TxnId};
use systx_store::{self as stored, Joint, Past, PastSide};

/// Longest target of a symbolic link.
const LINK_MAX: usize = 4096;

/// What a committed transaction changed, on all file systems that are there.
///
/// # Errors
/// It is not in the history, or what it changed was forgotten.
pub fn changes(
    table: &Transactions,
    volume: &OpenVolume,
    id: TxnId,
) -> Result<Vec<Change>, Failure> {
    let entry = find(volume, id)?;
    if entry.forgotten {
        let message = format!("what transaction {id} changed is not known any more");
        return Err(Failure::new(FailureKind::State, message).hint(
            "the history has a bound, `systx gc --help` says which; `systx log` has a line of it",
        ));
    }
    let mut all = of(volume, id)?;
    for member in entry.joint.iter().flat_map(Joint::others) {
        let Ok(other) = table.volumes.volume_of(member) else { continue };
        all.extend(of(&other, id)?);
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

fn look(volume: &OpenVolume, id: TxnId) -> Result<Arc<Vec<Past>>, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(FailureKind::Store, format!("cannot look at what transaction {id} left: {e}"))
            .path(volume.location.store.as_path())
    };
    let store = volume.existing()?;
    let found = store.map(|store| store.look_back(id)).transpose().map_err(failed)?;
    let found = Arc::new(found.flatten().unwrap_or_default());
    volume.has_looked_at(id, Arc::clone(&found));
    Ok(found)
}

fn of(volume: &OpenVolume, id: TxnId) -> Result<Vec<Change>, Failure> {
    Ok(look(volume, id)?.iter().map(|past| change(volume, past)).collect())
}

fn change(volume: &OpenVolume, past: &Past) -> Change {
    let kinds = [&past.old, &past.new].map(|side| side.as_ref().map(|s| s.kind));
    let (kind, from) = match &past.kind {
        stored::ChangeKind::Created => (ChangeKind::Added, None),
        stored::ChangeKind::Removed => (ChangeKind::Deleted, None),
        stored::ChangeKind::Renamed { from } => {
            (ChangeKind::Renamed, Some(HostPath(volume.absolute(from))))
        }
        stored::ChangeKind::Replaced if kinds[0] != kinds[1] => (ChangeKind::Retyped, None),
        stored::ChangeKind::Replaced => (ChangeKind::Modified, None),
        stored::ChangeKind::Modified if past.content => (ChangeKind::Modified, None),
        stored::ChangeKind::Modified => (ChangeKind::Attributes, None),
    };
    let side = |side: &Option<PastSide>| side.as_ref().map(|s| self::side(volume, s));
    Change {
        kind,
        path: HostPath(volume.absolute(&past.path)),
        from,
        old: side(&past.old),
        new: side(&past.new),
        content: past.content,
        bytes: past.bytes,
        xattrs: past.xattrs.iter().map(|key| HostPath(key.clone())).collect(),
        dropped: false,
    }
}

fn side(volume: &OpenVolume, side: &PastSide) -> Side {
    let target = (side.kind == Kind::Symlink)
        .then(|| volume.existing().ok()??.read_back(side, LINK_MAX).ok().flatten().map(HostPath))
        .flatten();
    Side {
        mode: side.kind.mode_bits() | side.mode,
        uid: side.uid,
        gid: side.gid,
        size: side.size,
        mtime: side.mtime,
        target,
        rdev: side.rdev,
    }
}

/// Content of a side of a committed change. It is unknown where somebody has changed it since
/// outside of transactions.
///
/// # Errors
/// The transaction is not in the history, or did not change the path.
pub fn content(
    table: &Transactions,
    volume: &OpenVolume,
    id: TxnId,
    path: &HostPath,
    version: Version,
    limit: u64,
) -> Result<Content, Failure> {
    // For each of its files this is asked, and reading all of the history is long.
    if let Some(content) = here(volume, id, path, version, limit)? {
        return Ok(content);
    }
    let entry = find(volume, id)?;
    for member in entry.joint.iter().flat_map(Joint::others) {
        let Ok(other) = table.volumes.volume_of(member) else { continue };
        if let Some(content) = here(&other, id, path, version, limit)? {
            return Ok(content);
        }
    }
    let message = format!("transaction {id} did not change {path}");
    Err(Failure::new(FailureKind::Invalid, message).path(path.clone()))
}

fn here(
    volume: &OpenVolume,
    id: TxnId,
    path: &HostPath,
    version: Version,
    limit: u64,
) -> Result<Option<Content>, Failure> {
    let known = volume.looked_at(id).map_or_else(|| look(volume, id), Ok)?;
    // They are in the order of their paths.
    let first = known.partition_point(|past| volume.absolute(&past.path) < path.0);
    let Some(past) = known.get(first).filter(|past| volume.absolute(&past.path) == path.0) else {
        return Ok(None);
    };
    let side = match version {
        Version::Old => &past.old,
        Version::New => &past.new,
    };
    let Some(side) = side else { return Ok(Some(Content::default())) };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let read = |e: std::io::Error| {
        Failure::new(FailureKind::Io, format!("cannot read {path}: {e}")).path(path.clone())
    };
    let bytes = match volume.existing()? {
        Some(store) => store.read_back(side, limit).map_err(read)?,
        None => None,
    };
    Ok(Some(match bytes {
        Some(bytes) => Content { bytes, total: side.size, unknown: false },
        None => Content { unknown: true, total: side.size, ..Content::default() },
    }))
}
