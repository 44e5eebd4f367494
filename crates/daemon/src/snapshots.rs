//! The snapshots of a log-structured volume that is mounted.

use crate::protocol::{Failure, FailureKind, SnapshotChange, VolumeSnapshot};
use std::path::Path;
use systx_lfs::format::BLOCK;
use systx_lfs::{Error, SnapshotInfo, Volume};

/// Changes them, and lists them, oldest first.  `file`: the image.
///
/// # Errors
/// As [`failed`] says.
pub(crate) fn change(
    volume: &Volume,
    file: &Path,
    change: &SnapshotChange,
) -> Result<Vec<VolumeSnapshot>, Failure> {
    let mut only = None;
    match change {
        SnapshotChange::Nothing => {}
        SnapshotChange::Before(id) => {
            let found = systx_lfs_store::before(volume, id).map_err(|e| failed(file, id, &e))?;
            let hint = "systx snapshots FILE lists them, systx log the transactions";
            let none = |text: String| told(FailureKind::NotFound, file, &text, hint);
            only = Some(found.name(id).map_err(none)?);
        }
        SnapshotChange::Make(name) => {
            volume.snapshot(name).map_err(|e| failed(file, name, &e))?;
        }
        SnapshotChange::Remove(name) => {
            volume.remove_snapshot(name).map_err(|e| failed(file, name, &e))?;
        }
    }
    let segment = BLOCK as u64 * u64::from(volume.identity().1.segment_blocks);
    let wanted = |s: &SnapshotInfo| only.as_ref().is_none_or(|only| s.name == *only);
    let listed = volume.snapshots().into_iter().filter(wanted).map(|s| VolumeSnapshot {
        name: s.name,
        time: s.time,
        keeps: segment.saturating_mul(s.segments.into()),
        of: s.origin.map(|(id, _)| id.iter().map(|b| format!("{b:02x}")).collect()),
    });
    Ok(listed.collect())
}

fn told(kind: FailureKind, file: &Path, text: &str, hint: &str) -> Failure {
    let text = format!("{}: {text}", file.display());
    Failure::new(kind, text).hint(hint.to_owned()).path(file)
}

/// A snapshot that is not as wanted.
pub(crate) fn failed(file: &Path, name: &str, e: &Error) -> Failure {
    let said = |kind, text: &str, hint: &str| told(kind, file, text, hint);
    match e {
        Error::NotFound => said(
            FailureKind::NotFound,
            &format!("there is no snapshot {name:?}"),
            "systx snapshots FILE lists them",
        ),
        Error::Exists => said(
            FailureKind::Invalid,
            &format!("there is a snapshot {name:?} already"),
            "take another name, or systx snapshot FILE NAME --delete first",
        ),
        Error::NameTooLong => said(
            FailureKind::Invalid,
            "the name of a snapshot has at most 255 bytes",
            "take a shorter one",
        ),
        Error::Invalid("name of a snapshot") => said(
            FailureKind::Invalid,
            "the name of a snapshot is not empty and has no slash",
            "take another one",
        ),
        Error::Busy(_) => said(
            FailureKind::Busy,
            &format!("snapshot {name:?} is mounted"),
            "systx mount lists the mounts; systx umount DIR ends one",
        ),
        Error::NoSpace => said(
            FailureKind::Space,
            "there is no space for a snapshot",
            "remove files or other snapshots; or unmount it, and systx grow FILE SIZE",
        ),
        Error::Corrupt { .. } | Error::Unread { .. } => {
            said(FailureKind::Store, &e.to_string(), "unmount it; systx fsck FILE names all damage")
        }
        e => said(FailureKind::Io, &e.to_string(), "look at the device (dmesg)"),
    }
}
