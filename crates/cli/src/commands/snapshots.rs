//! `systx snapshots`: what a log-structured volume keeps of its past.  Of a volume that is mounted,
//! the daemon is asked.

use crate::args::Snapshots;
use crate::commands::mount;
use crate::context;
use crate::image;
use crate::output::{self, Out};
use crate::problem::{Problem, USAGE};
use crate::retention::{Rules, superfluous};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Serialize;
use std::path::Path;
use systx_base::shown;
use systx_lfs::{Error, Volume};
use systx_protocol::{
    self as protocol, FailureKind, MountedVolume, SnapshotChange, VolumeSnapshot,
};

/// Lists them, oldest first, or removes those that no rule keeps.
///
/// # Errors
/// It is no volume, cannot be read, or is in use.
pub fn snapshots(args: &Snapshots, out: Out) -> Result<i32, Problem> {
    let path = args.volume.as_path();
    if args.prune {
        return prune(args, out);
    }
    let all = list(path)?;
    if out.json {
        out.json("snapshots", &all);
        return Ok(0);
    }
    if all.is_empty() {
        out.say(&format!("{}: no snapshots", path.display()));
    }
    for s in &all {
        let of = s.of.as_ref().map_or(String::new(), |id| format!("  received from {id}"));
        let (time, keeps) = (output::time(s.time), output::size(s.keeps));
        output::print(&format!("{time}  {keeps:>9}  {}{of}\n", shown(s.name.as_bytes())));
    }
    Ok(0)
}

/// What became of the snapshots.
#[derive(Debug, Serialize)]
struct Pruned {
    removed: Vec<String>,
    /// They are mounted.
    in_use: Vec<String>,
    kept: usize,
}

fn prune(args: &Snapshots, out: Out) -> Result<i32, Problem> {
    let path = args.volume.as_path();
    let rules = Rules {
        last: args.last,
        hourly: args.hourly,
        daily: args.daily,
        weekly: args.weekly,
        monthly: args.monthly,
    };
    if rules == Rules::default() {
        return Err(Problem::new("nothing would be kept, and every snapshot removed")
            .hint("systx snapshot FILE NAME --delete removes one")
            .code(USAGE));
    }
    let all = list(path)?;
    let names: Vec<_> = superfluous(&all, rules).into_iter().map(str::to_owned).collect();
    let needed = all.len() - names.len();
    let (removed, in_use) = match args.dry_run {
        true => (names, Vec::new()),
        false => remove(path, names)?,
    };
    let pruned = Pruned { kept: needed + in_use.len(), removed, in_use };
    if out.json {
        out.json("pruned", &pruned);
        return Ok(0);
    }
    let how = if args.dry_run { "would be removed" } else { "removed" };
    pruned.removed.iter().for_each(|name| out.say(&format!("{name:?} {how}")));
    pruned.in_use.iter().for_each(|name| out.warn(&format!("{name:?} is kept: it is mounted")));
    let (gone, kept) = (pruned.removed.len(), pruned.kept);
    out.say(&format!("{}: {gone} {how}, {kept} kept", path.display()));
    Ok(0)
}

/// Removes some, and says which it has removed, and which of them are in use. What somebody else
/// has removed meanwhile is neither.
fn remove(path: &Path, names: Vec<String>) -> Result<(Vec<String>, Vec<String>), Problem> {
    let mut in_use = Vec::new();
    let Some(at) = mounted(path)? else {
        let volume = image::open(path)?;
        let mut removed = Vec::new();
        for name in names {
            match volume.remove_snapshot(&name) {
                Ok(()) => removed.push(name),
                Err(Error::NotFound) => {}
                Err(e) => return Err(image::cannot_snapshot(path, &name, e)),
            }
        }
        volume.close().map_err(|e| image::cannot(path, e))?;
        return Ok((removed, in_use));
    };
    let mut removed = Vec::new();
    for name in names {
        match of_mounted(&at, SnapshotChange::Remove(name.clone())) {
            Ok(_) => removed.push(name),
            Err(problem) if problem.kind == Some(FailureKind::Busy) => in_use.push(name),
            Err(problem) if problem.kind == Some(FailureKind::NotFound) => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok((removed, in_use))
}

/// All of a volume, mounted or not, oldest first.
///
/// # Errors
/// It is no volume, cannot be read, or is in use.
fn list(path: &Path) -> Result<Vec<VolumeSnapshot>, Problem> {
    match mounted(path)? {
        Some(at) => of_mounted(&at, SnapshotChange::Nothing),
        None => Ok(of_volume(&image::open_to_read(path)?)),
    }
}

/// Those of a volume that is open here.
fn of_volume(volume: &Volume) -> Vec<VolumeSnapshot> {
    let segment = image::bytes(volume.identity().1.segment_blocks.into());
    let listed = volume.snapshots().into_iter().map(|s| VolumeSnapshot {
        name: s.name,
        time: s.time,
        keeps: segment.saturating_mul(s.segments.into()),
        of: s.origin.map(|(id, _)| image::hex(&id)),
    });
    listed.collect()
}

/// Asks the daemon that has it mounted.
///
/// # Errors
/// What the daemon says.
pub(super) fn of_mounted(
    at: &MountedVolume,
    change: SnapshotChange,
) -> Result<Vec<VolumeSnapshot>, Problem> {
    let about = protocol::Snapshots { volume: at.dir.clone(), change };
    Ok(context::connect()?.ask(&about)?)
}

/// The mount of a volume that the daemon has, by its image or where it is mounted; the live one
/// before those of snapshots.
///
/// # Errors
/// A directory that no volume is mounted on; the daemon does not answer.
pub(super) fn mounted(path: &Path) -> Result<Option<MountedVolume>, Problem> {
    let given = std::fs::canonicalize(path).map_err(|e| image::cannot_open(path, &e))?;
    let (_, mut volumes) = mount::mounted()?;
    // By what it is, not by its path: an image may have been renamed, and another one have come
    // to its name.
    let which = image::which(&given).map_err(|e| image::cannot_open(path, &e))?;
    volumes.retain(|v| !v.dead && (v.dir.as_path() == given || Some(v.which) == which));
    volumes.sort_by_key(|v| v.snapshot.is_some());
    match volumes.into_iter().next() {
        None if given.is_dir() => {
            Err(image::about(path, "you have no log-structured volume mounted on it")
                .hint("systx mount lists those that you have; or name the image"))
        }
        found => Ok(found),
    }
}

/// The name of the snapshot that is meant: by its name, or the last one that was made before a
/// time or a transaction.
///
/// # Errors
/// There is none; as [`snapshots`].
pub fn find(volume: &Path, at: &str) -> Result<String, Problem> {
    let mut all = list(volume)?;
    if all.iter().any(|s| s.name == at) {
        return Ok(at.to_owned());
    }
    let Some(time) = time(at) else {
        return from_before(volume, at);
    };
    all.retain(|s| s.time.secs <= time.as_second());
    match all.into_iter().max_by_key(|s| s.time) {
        Some(s) => Ok(s.name),
        None => Err(image::about(volume, format!("no snapshot is as old as {at}"))
            .hint("systx snapshots FILE lists them")),
    }
}

/// The name of the last snapshot from before the transaction whose id begins with `id`.
fn from_before(volume: &Path, id: &str) -> Result<String, Problem> {
    let is_id = (1..=16).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_id {
        return Err(image::cannot_snapshot(volume, id, Error::NotFound));
    }
    let id = id.to_ascii_lowercase();
    if let Some(at) = mounted(volume)? {
        let found = of_mounted(&at, SnapshotChange::Before(id))?.into_iter().next();
        return found.map(|s| s.name).ok_or_else(|| image::cannot(volume, Error::NotFound));
    }
    let found = systx_lfs_store::before(&image::open_to_read(volume)?, &id);
    let found = found.map_err(|e| image::cannot(volume, e))?;
    found.name(&id).map_err(|text| {
        image::about(volume, text)
            .hint("systx snapshots FILE lists them; mounted, systx log lists the transactions")
    })
}

/// A point in time, in UTC if nothing else is said.
fn time(text: &str) -> Option<Timestamp> {
    let in_utc = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| Some(in_utc()?.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_with_or_without_a_zone() {
        let at = |text| time(text).map(Timestamp::as_second);
        assert_eq!(at("2000-02-29 12:34:56Z"), Some(951_827_696));
        assert_eq!(at("2000-02-29 12:34"), Some(951_827_640));
        assert_eq!(at("2000-02-29"), Some(951_782_400));
        assert_eq!(at("2000-02-29T12:34:56+01:00"), Some(951_824_096));
        assert_eq!(at("monday"), None);
    }
}
