//! Which transaction an undo or a redo means.
//!
//! Without an id it is the latest one *of a directory*: one that changed something in there, or was
//! run from there. A file system holds many projects, and who says `undo` in one of them does not
//! mean what was committed in another, by another terminal, a moment ago. Where there is none, none
//! is taken: the latest of the file system is named, with the command that undoes it.
//!
//! A transaction that changed only what is mounted below the directory is in that file system's
//! history alone, and is one of the directory all the same.

use super::{Direction, NOT_THERE, entries, undone_by};
use crate::protocol::{Failure, FailureKind, HostPath, Place};
use crate::stopped;
use crate::volume::OpenVolume;
use crate::volumes::Volumes;
use std::collections::HashSet;
use std::sync::Arc;
use systx_base::TxnId;
use systx_commit::finish_late;
use systx_protocol::is_below;
use systx_store::{self as stored, HistoryEntry, TxnKind};

/// What is to be taken back, and what the user should know of the choice.
pub(super) struct Choice {
    pub target: HistoryEntry,
    pub notes: Vec<String>,
}

/// The transaction to take back, and the volume in whose history it is: the given one, or the
/// latest of the directory that is meant, wherever below it that changed something.
pub(super) fn choose(
    volumes: &Volumes,
    place: &Place,
    id: Option<TxnId>,
    direction: Direction,
) -> Result<(Arc<OpenVolume>, Choice), Failure> {
    let own = match id {
        Some(id) => that_has(volumes, place, id)?,
        None => volumes.at(place)?,
    };
    finish(&own)?;
    let mut best = of_volume(&own, place, id, direction);
    let is_said = best.as_ref().is_err_and(|e| e.kind != FailureKind::NotFound);
    if is_said || id.is_some() || place.store.is_some() {
        return best.map(|choice| (own, choice));
    }
    let (here, mut volume) = (scope(place), Arc::clone(&own));
    for other in volumes.below(HostPath(here.clone()).as_path(), &own.location) {
        finish(&other)?;
        let all = entries(&other)?;
        let can = candidates(&all, direction);
        let Some(entry) = can.into_iter().find(|e| is_of(&other, e, &here)) else { continue };
        let is_later = best.as_ref().map_or(true, |known| {
            let known = &known.target.meta;
            known.txn != entry.meta.txn && known.finished < entry.meta.finished
        });
        if is_later {
            best = Ok(Choice { target: entry.clone(), notes: Vec::new() });
            volume = other;
        }
    }
    best.map(|choice| (volume, choice))
}

/// Puts in place what is committed and is not yet: it may be what is meant.
fn finish(volume: &OpenVolume) -> Result<(), Failure> {
    finish_late(&volume.site, &mut HashSet::new()).map(drop).map_err(stopped::failure)
}

/// The volume in whose history a transaction is: that of the place, else any other that is here,
/// unless the place is said to be the only one that is meant.
///
/// # Errors
/// The volume of the place cannot be had.
pub fn that_has(volumes: &Volumes, place: &Place, id: TxnId) -> Result<Arc<OpenVolume>, Failure> {
    let own = volumes.at(place)?;
    let only = place.store.is_some() || place.root.is_some();
    if only || has(&own, id)? {
        return Ok(own);
    }
    let mut others = volumes.others(&own.location).into_iter();
    // One that cannot be read is no reason to find it nowhere.
    Ok(others.find(|other| has(other, id).unwrap_or(false)).unwrap_or(own))
}

/// Whether a volume's history has a transaction.
fn has(volume: &OpenVolume, id: TxnId) -> Result<bool, Failure> {
    // What its program has been told of is there.
    volume.vol.wait_durable();
    let Some(store) = volume.existing()? else { return Ok(false) };
    store.has_history(id).map_err(|e| super::unreadable(volume, &e))
}

/// What can be taken back in this direction, the latest first.
fn candidates(all: &[HistoryEntry], direction: Direction) -> Vec<&HistoryEntry> {
    let undone = undone_by(all);
    let is_undo = |e: &HistoryEntry| matches!(e.meta.kind, TxnKind::Undo { .. });
    let fits = |e: &&HistoryEntry| {
        let way = is_undo(e) == (direction == Direction::Redo);
        way && !e.forgotten && !undone.contains_key(&e.meta.txn)
    };
    all.iter().filter(fits).collect()
}

/// As [`choose`], in one volume.
fn of_volume(
    volume: &OpenVolume,
    place: &Place,
    id: Option<TxnId>,
    direction: Direction,
) -> Result<Choice, Failure> {
    let all = entries(volume)?;
    if let Some(id) = id {
        return Ok(Choice { target: named(all, id, direction)?, notes: Vec::new() });
    }
    let can = candidates(&all, direction);
    let word = direction.word();
    let Some(latest) = can.first() else {
        return Err(Failure::new(FailureKind::NotFound, format!("nothing to {word}")));
    };
    let here = scope(place);
    let name = |e: &HistoryEntry| {
        let text = String::from_utf8_lossy(&e.meta.argv.join(&b' ')).into_owned();
        let text = text.replace('\n', " ");
        let cwd = String::from_utf8_lossy(&e.meta.cwd).into_owned();
        format!("{} ({}) in {cwd}", e.meta.txn, text.chars().take(60).collect::<String>())
    };
    match can.iter().position(|e| is_of(volume, e, &here)) {
        Some(0) => Ok(Choice { target: (*latest).clone(), notes: Vec::new() }),
        Some(at) => {
            let text =
                format!("later ones elsewhere stay: {at}, the last of them {}", name(latest));
            Ok(Choice { target: can[at].clone(), notes: vec![text] })
        }
        None => {
            let dir = HostPath(here);
            let what = match direction {
                Direction::Undo => "transaction that could be undone",
                Direction::Redo => "undo that could be redone",
            };
            let text = format!(
                "nothing to {word} in {dir}: no {what} changed anything there, or was run there"
            );
            Err(Failure::new(FailureKind::NotFound, text).hint(format!(
                "the last one of this file system is {}; `systx {word} {}` takes it",
                name(latest),
                latest.meta.txn
            )))
        }
    }
}

/// The directory that a request is about.
fn scope(place: &Place) -> Vec<u8> {
    let dir = place.root.as_ref().unwrap_or(&place.cwd);
    let resolved =
        std::fs::canonicalize(dir.as_path()).map_or_else(|_| dir.clone(), HostPath::from);
    resolved.0
}

/// Whether a transaction changed something in a directory, or took or gave it its name, or was run
/// there.
fn is_of(volume: &OpenVolume, entry: &HistoryEntry, dir: &[u8]) -> bool {
    is_below(&entry.meta.cwd, dir) || touches(volume, entry, dir)
}

/// Whether a transaction changed something at a path or below it.
pub(super) fn changed_below(volume: &OpenVolume, entry: &HistoryEntry, top: &[u8]) -> bool {
    let below = |path: &[u8]| is_below(&volume.absolute(path), top);
    entry.changes.iter().any(|change| {
        let from = match &change.kind {
            stored::ChangeKind::Renamed { from } => below(from),
            _ => false,
        };
        from || below(&change.path)
    })
}

/// Whether a transaction changed something at a path, below it, or took or gave a directory above
/// its name.
pub(super) fn touches(volume: &OpenVolume, entry: &HistoryEntry, dir: &[u8]) -> bool {
    let touched = |change: &stored::Change| {
        let above = |path: &[u8]| is_below(dir, &volume.absolute(path));
        match &change.kind {
            stored::ChangeKind::Modified => false,
            stored::ChangeKind::Renamed { from } => above(from) || above(&change.path),
            _ => above(&change.path),
        }
    };
    changed_below(volume, entry, dir) || entry.changes.iter().any(touched)
}

/// The transaction with this id, if it can be taken back in this direction.
fn named(all: Vec<HistoryEntry>, id: TxnId, direction: Direction) -> Result<HistoryEntry, Failure> {
    let undone = undone_by(&all);
    // `redo ID` may name the undone transaction or the undo.
    let named = match direction {
        Direction::Redo => undone.get(&id).copied().unwrap_or(id),
        Direction::Undo => id,
    };
    let entry = all.into_iter().find(|e| e.meta.txn == named).ok_or_else(|| {
        Failure::new(FailureKind::NotFound, format!("the history has no transaction {id}"))
            .hint(NOT_THERE)
    })?;
    if entry.forgotten {
        return Err(super::forgotten(id));
    }
    if let Some(by) = undone.get(&entry.meta.txn) {
        let message = format!("transaction {} was undone already, by {by}", entry.meta.txn);
        return Err(Failure::new(FailureKind::State, message)
            .hint(format!("`systx redo {by}` brings it back")));
    }
    if direction == Direction::Redo && !matches!(entry.meta.kind, TxnKind::Undo { .. }) {
        let message = format!("transaction {id} was not undone");
        return Err(Failure::new(FailureKind::State, message));
    }
    Ok(entry)
}
