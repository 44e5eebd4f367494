//! The last part of a commit over several file systems: as [`crate::install`], with one commit point.
//!
//! In the order of the volumes: publications, decisions, installations begin.  Then the stores commit together
//! ([`systx_store::Joiner`]), each is installed, and all are released.  Between the first decision and the last nobody sees
//! anything of it; if a later decision is lost, the earlier ones are given up.

use crate::install::{
    NotInstalled, carried_forward, finish_late, moves, no_room, not_applied, not_committed,
    not_published, outside_change, stamp_of, versions,
};
use crate::protocol::{self, Failure, FailureKind};
use crate::volume::OpenVolume;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use systx_base::TxnId;
use systx_store::io::{Class, Stamp};
use systx_store::writeset::WriteSet;
use systx_store::{CommitMeta, Committed, DirStore, Joiner, Part};
use systx_vfs::growing::Appended;
use systx_vfs::publication::{NotDecided, Publication};

/// One at a time between the first claim and the decision, in this process.
static JOINER: Joiner = Joiner::new();

/// What a transaction does on one volume.
pub struct Share<'a> {
    /// Where.
    pub volume: &'a Arc<OpenVolume>,
    /// What it changes there; empty if it only read.
    pub writes: WriteSet,
    /// What of it goes behind the ends of files that others append to.
    pub appended: Vec<Appended>,
}

impl Share<'_> {
    fn changes(&self) -> bool {
        !self.writes.objects.is_empty()
    }

    /// Who should decide: what everybody has mounted first, what a power cut takes away last.
    fn rank(&self) -> u8 {
        match (self.volume.store.class(), self.volume.location.mount == Path::new("/")) {
            (Class::Memory, _) => 2,
            (_, true) => 0,
            (_, false) => 1,
        }
    }
}

/// From the reservations to the release, of all shares, which are in the order of their volumes.  Also what outsiders
/// had put in the way, and sentences for the user.
///
/// # Errors
/// Nothing was committed.  (If a store fails after the commit point, the failure says so.)
pub fn install_several(
    shares: Vec<Share<'_>>,
    id: TxnId,
    meta: &CommitMeta,
) -> Result<(Vec<protocol::OutsideChange>, Vec<String>), NotInstalled> {
    let volumes: Vec<&Arc<OpenVolume>> = shares.iter().map(|s| s.volume).collect();
    let mut publications = Vec::with_capacity(shares.len());
    let done = decide_and_install(shares, id, meta, &mut publications);
    for volume in volumes {
        match &done {
            Ok(_) => volume.vol.engine.installed(id),
            // Where a store could not even install it, whoever waits sees what is there; that store refuses
            // further commits until recovery has finished this one.
            Err(_) => volume.vol.engine.abort(id),
        }
    }
    drop(publications);
    let (outside, notes, checkpoint) = done?;
    std::thread::spawn(checkpoint);
    Ok((outside, notes))
}

type Done = (Vec<protocol::OutsideChange>, Vec<String>, Box<dyn FnOnce() + Send>);

fn decide_and_install<'a>(
    mut shares: Vec<Share<'a>>,
    id: TxnId,
    meta: &CommitMeta,
    publications: &mut Vec<Publication<'a>>,
) -> Result<Done, NotInstalled> {
    let reserve = |share: &Share<'_>| match share.changes() {
        true => share.volume.store.reserve(&share.writes).map_err(|e| no_room(share.volume, e)),
        false => Ok(systx_store::Reservation::default()),
    };
    for share in &shares {
        // What meets one that is late all the same is refused by its store.
        if let Err(failure) = finish_late(share.volume, &mut HashSet::new()) {
            tracing::error!(%failure, "what is late");
        }
    }
    let mut room: Vec<_> = shares.iter().map(reserve).collect::<Result<_, _>>()?;
    for share in &shares {
        let volume: &'a Arc<OpenVolume> = share.volume;
        let vol = &volume.vol;
        let publication = vol.publish(id, &share.writes);
        publication.decide(|| vol.engine.decide(id)).map_err(|e| match e {
            NotDecided::Lost(_) => NotInstalled::Lost,
            NotDecided::Kernel(errno) => NotInstalled::Failed(not_published(errno)),
        })?;
        publications.push(publication);
    }
    for share in shares.iter().filter(|share| share.changes()) {
        share.volume.vol.keep_past(&share.writes);
    }
    let mut notes = Vec::new();
    for share in &mut shares {
        // Other transactions may have installed since this one was frozen.
        let writes = std::mem::take(&mut share.writes);
        let (writes, merged) = carried_forward(share.volume, writes, &share.appended)?;
        share.writes = writes;
        notes.extend(merged);
    }
    let origins: Vec<Vec<Option<Stamp>>> = shares
        .iter()
        .map(|s| s.writes.objects.iter().map(|o| stamp_of(&o.origin)).collect())
        .collect();
    let mut writers: Vec<usize> = (0..shares.len()).filter(|n| shares[*n].changes()).collect();
    writers.sort_by_key(|n| (shares[*n].rank(), &shares[*n].volume.location.mount));
    let (lsns, joint) = commit(&mut shares, &mut room, &writers, meta)?;
    let mut installations = Vec::with_capacity(shares.len());
    for (share, origins) in shares.iter().zip(&origins) {
        let ids = origins.iter().flatten().map(|stamp| stamp.id);
        installations.push(share.volume.vol.start_installing(ids));
    }
    let mut outside = Vec::new();
    let mut failed = None;
    let installed = publications.iter().zip(installations).enumerate();
    for (n, (publication, installation)) in installed {
        let Some(at) = writers.iter().position(|w| *w == n) else { continue };
        let volume = shares[n].volume;
        let before = versions(volume, &origins[n]);
        match volume.store.apply(lsns[at].lsn) {
            Ok(report) => {
                let moves = moves(&before, &report.stamps);
                publication.replaced(&moves);
                installation.end(moves);
                outside.extend(report.outside.iter().map(|c| outside_change(volume, c)));
            }
            Err(error) => failed = Some(not_applied(error)),
        }
    }
    if let Some(failed) = failed {
        return Err(failed);
    }
    let stores = writers.iter().map(|n| Arc::clone(&shares[*n].volume.store));
    let stores: Vec<(Arc<DirStore>, Committed)> = stores.zip(lsns).collect();
    Ok((outside, notes, Box::new(move || checkpoint(&stores, joint))))
}

/// The commit point.
fn commit(
    shares: &mut [Share<'_>],
    room: &mut [systx_store::Reservation],
    writers: &[usize],
    meta: &CommitMeta,
) -> Result<(Vec<Committed>, Option<u64>), NotInstalled> {
    let mut parts = Vec::with_capacity(writers.len());
    for n in writers {
        let (reservation, set) =
            (std::mem::take(&mut room[*n]), std::mem::take(&mut shares[*n].writes));
        let path = shares[*n].volume.location.store.as_os_str().as_encoded_bytes().to_vec();
        parts.push(Part { store: &shares[*n].volume.store, path, reservation, set });
    }
    let at = |n: usize| shares[writers[n]].volume;
    if parts.len() == 1
        && let Some(Part { store, reservation, set, .. }) = parts.pop()
    {
        let done = store.commit(reservation, set, meta.clone());
        return Ok((vec![done.map_err(|e| not_committed(at(0), e))?], None));
    }
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(|e| {
        let text = format!("no random bytes: {e}");
        NotInstalled::Failed(Failure::new(FailureKind::Internal, text))
    })?;
    let joint = u64::from_ne_bytes(bytes);
    let done = JOINER.commit(joint, parts, meta);
    Ok((done.map_err(|e| not_committed(at(e.part), e.error))?, Some(joint)))
}

/// Lets the journals forget what is installed, and then the decider (the first) its decision.
fn checkpoint(stores: &[(Arc<DirStore>, Committed)], joint: Option<u64>) {
    for (store, _) in stores {
        if let Err(error) = store.checkpoint() {
            tracing::error!(%error, "checkpoint");
            return;
        }
    }
    // Behind a record that could not be installed: the next start looks again.
    if let (Some(joint), Some((decider, _))) = (joint, stores.first())
        && stores.iter().all(|(store, committed)| store.has_let_go(*committed))
        && let Err(error) = decider.forget_decision(joint)
    {
        tracing::warn!(%error, "a decision is kept");
    }
}
