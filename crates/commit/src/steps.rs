//! The steps up to the decision.

use crate::late::finish_late;
use crate::{Site, Stopped};
use std::collections::HashSet;
use std::sync::Arc;
use systx_base::TxnId;
use systx_guard::publication::{NotDecided, Publication, UnderWay};
use systx_store::io::Stamp;
use systx_store::writeset::{Origin, WriteSet};
use systx_store::{CommitMeta, Forgotten, Lease, OpenError, Reservation, ReserveError};
use systx_vfs::growing::{Appended, Merged};
use systx_vfs::neighbours::Neighbours as _;

/// What a transaction does on one file system.
pub struct Part {
    /// Where.
    pub site: Arc<Site>,
    /// What it changes there, frozen and validated; empty if the transaction has only read there.
    pub writes: WriteSet,
    /// What of it goes behind the ends of files to which others append.
    pub appended: Vec<Appended>,
}

impl Part {
    fn changes(&self) -> bool {
        !self.writes.objects.is_empty()
    }
}

/// A commit of which nothing is done.
#[must_use = "a commit that is not reserved does nothing"]
pub struct Commit {
    id: TxnId,
    meta: CommitMeta,
    parts: Vec<Part>,
}

/// A commit for which there is room.
#[must_use = "a commit that is not decided does nothing"]
pub struct Reserved {
    commit: Commit,
    rooms: Vec<Room>,
}

/// A part's room, and the store that gives it, where the part changes something.
type Room = (Reservation, Option<Lease>);

/// A commit that cannot lose any more: what is left needs the disk only.  Requests about what it
/// changes are held until it is released.
#[must_use = "dropping a decided commit aborts it"]
pub struct Decided {
    // Before `parts`: whoever is released by their drop must find the transaction aborted.
    pub(crate) fate: Fate,
    pub(crate) meta: CommitMeta,
    pub(crate) parts: Vec<DecidedPart>,
    pub(crate) notes: Vec<String>,
}

/// One part of a decided commit.
pub(crate) struct DecidedPart {
    pub(crate) room: Reservation,
    pub(crate) set: WriteSet,
    pub(crate) on: Held,
}

/// What a part keeps from its decision to its release.
pub(crate) struct Held {
    pub(crate) site: Arc<Site>,
    pub(crate) under_way: UnderWay,
    /// The versions that the transaction has met.
    pub(crate) origins: Vec<Option<Stamp>>,
    /// Open, where the part changes something.
    pub(crate) store: Option<Lease>,
}

/// What becomes of a transaction of which at least one part is decided: unless it is released it
/// is aborted, on every file system.
pub(crate) struct Fate {
    id: TxnId,
    sites: Vec<Arc<Site>>,
    is_open: bool,
}

impl Fate {
    fn new(id: TxnId, sites: Vec<Arc<Site>>) -> Fate {
        Fate { id, sites, is_open: false }
    }

    /// The transaction is in place.
    pub(crate) fn installed(mut self) {
        self.is_open = false;
        for site in &self.sites {
            site.vol.engine.installed(self.id);
        }
    }
}

impl Drop for Fate {
    fn drop(&mut self) {
        if self.is_open {
            for site in &self.sites {
                site.vol.engine.abort(self.id);
            }
        }
    }
}

impl Commit {
    /// A commit of transaction `id`, which the engines of all parts know.
    ///
    /// The parts are put into the order of their volumes, in which locks of several are taken. One
    /// that is in an order has a record also if it changes nothing: its number is used up.
    pub fn new(id: TxnId, meta: CommitMeta, mut parts: Vec<Part>) -> Commit {
        if meta.order.is_some() {
            let bare = parts.iter_mut().filter(|part| !part.changes());
            bare.for_each(|part| part.writes = WriteSet::nothing());
        }
        parts.sort_by_key(|part| part.site.vol.order());
        Commit { id, meta, parts }
    }

    /// Makes sure that there is room for all parts.
    ///
    /// # Errors
    /// [`Stopped::NoRoom`], [`Stopped::NoStore`], [`Stopped::Taken`]; the transaction is as it was.
    pub fn reserve(self) -> Result<Reserved, Stopped> {
        let reserve = |part: &Part| -> Result<Room, Stopped> {
            if !part.changes() {
                return Ok((Reservation::default(), None));
            }
            let failed = |error| Stopped::no_store(&part.site, error);
            let store = part.site.store.lease().map_err(failed)?;
            let path = || String::from_utf8_lossy(&part.site.store_path).into_owned();
            let known = store.has_history(self.meta.txn);
            // Another process may have committed under it since the transaction began.
            if known.map_err(|source| failed(OpenError::Io { path: path(), source }))? {
                return Err(Stopped::Taken(self.meta.txn));
            }
            let room = store.reserve(&part.writes).map_err(|e| no_room(&part.site, e))?;
            Ok((room, Some(store)))
        };
        let rooms = self.parts.iter().map(reserve).collect::<Result<_, _>>()?;
        Ok(Reserved { commit: self, rooms })
    }
}

/// What making room has cost: a sentence.
fn forgotten(room: &Reservation) -> Option<String> {
    let Forgotten { transactions, bytes, itself } = room.forgotten();
    let s = if transactions == 1 { "" } else { "s" };
    let old = (transactions > 0).then(|| {
        format!("forgot how to undo {transactions} old transaction{s} to make room: {bytes} bytes")
    });
    let own = itself.then(|| {
        "no room to keep what was removed: this transaction cannot be undone, and is not in the log"
            .to_owned()
    });
    let both: Vec<String> = own.into_iter().chain(old).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

fn no_room(site: &Site, mut error: ReserveError) -> Stopped {
    if let ReserveError::Xattr(refused) = &mut error {
        refused.path = site.absolute(&refused.path);
    }
    Stopped::NoRoom(error)
}

impl Reserved {
    /// Marks and invalidates what is changed in guarded directories, and decides: part by part, so
    /// that nobody sees anything of it between the first decision and the last.
    ///
    /// # Errors
    /// [`Stopped::Lost`], [`Stopped::NotPublished`], [`Stopped::Changed`].
    pub fn decide(self) -> Result<Decided, Stopped> {
        let Reserved { commit: Commit { id, meta, parts }, rooms } = self;
        let sites: Vec<Arc<Site>> = parts.iter().map(|part| Arc::clone(&part.site)).collect();
        let mut publications = Vec::with_capacity(parts.len());
        // What is declared last is dropped first: an abort comes before the release of what is
        // held.
        let mut fate = Fate::new(id, sites.clone());
        for (site, part) in sites.iter().zip(&parts) {
            let publication = mark(site, id, &part.writes);
            publication.decide(|| site.vol.engine.decide(id)).map_err(|why| match why {
                NotDecided::Lost(why) => Stopped::Lost { at: site.vol.order(), why: Box::new(why) },
                NotDecided::Kernel(errno) => Stopped::NotPublished(errno),
            })?;
            fate.is_open = true;
            publications.push(publication);
        }
        // Other transactions may have installed since this one was frozen.  None of those that are
        // under way meets it.
        let mut notes: Vec<String> = rooms.iter().filter_map(|(room, _)| forgotten(room)).collect();
        let mut forward = Vec::with_capacity(parts.len());
        for part in parts {
            forward.push(carried_forward(&part.site, part.writes, &part.appended, &mut notes)?);
        }
        // Snapshots keep what was there under the versions that are there now, so not before that.
        for ((site, set), (_, store)) in sites.iter().zip(&forward).zip(&rooms) {
            if store.is_some() {
                site.vol.keep_past(set);
            }
        }
        let under_way: Vec<UnderWay> =
            publications.into_iter().map(Publication::into_under_way).collect();
        let parts = sites.into_iter().zip(rooms).zip(under_way).zip(forward);
        let parts = parts.map(|(((site, (room, store)), under_way), set)| {
            let origins = set.objects.iter().map(|object| stamp_of(&object.origin)).collect();
            DecidedPart { room, set, on: Held { site, under_way, origins, store } }
        });
        let parts = parts.collect();
        Ok(Decided { fate, meta, parts, notes })
    }
}

impl Decided {
    /// Its program goes on before it is durable: it is to be finished by [`crate::Relaxed`].
    pub fn relax(&self) {
        self.parts.iter().for_each(|part| part.on.under_way.relax());
    }
}

/// Marks what is about to change, when everything that is late on the file system was tried again.
fn mark<'v>(site: &'v Site, id: TxnId, writes: &WriteSet) -> Publication<'v> {
    let mut tried = HashSet::new();
    loop {
        if let Err(failure) = finish_late(site, &mut tried) {
            tracing::error!(%failure, "what is late");
        }
        let publication = site.vol.publish(id, writes);
        // A commit that this one had to wait for may have failed.
        let late = site.store.if_open().map(|store| store.late()).unwrap_or_default();
        if late.iter().all(|late| tried.contains(&late.lsn)) {
            return publication;
        }
    }
}

/// The write set with the stamps that own installations have left since it was made, and what is
/// appended behind what others have appended since; `notes` tell the user of that.
fn carried_forward(
    site: &Site,
    mut writes: WriteSet,
    appended: &[Appended],
    notes: &mut Vec<String>,
) -> Result<WriteSet, Stopped> {
    for object in &mut writes.objects {
        if let Origin::Host { stamp, .. } = &mut object.origin {
            *stamp = site.vol.current(*stamp);
        }
    }
    let guarded = site.vol.is_guarded();
    let merged = site.vol.rebase_appended(&mut writes, appended, guarded).map_err(
        |paths: Vec<Vec<u8>>| {
            Stopped::Changed(paths.iter().map(|path| site.absolute(path)).collect())
        },
    )?;
    notes.extend(merged.iter().map(|Merged { path, between }| {
        let path = site.absolute(path);
        let path = String::from_utf8_lossy(&path);
        format!("merged: {path}: others had appended {between} bytes, which come first")
    }));
    Ok(writes)
}

/// The version of what a write set changes, if it is something that was there.
#[must_use]
pub fn stamp_of(origin: &Origin) -> Option<Stamp> {
    match origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}

#[cfg(test)]
mod tests;
