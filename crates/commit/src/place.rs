//! Installation and release.

use crate::record::{Durable, Written};
use crate::steps::{Fate, Held};
use crate::{Site, Stopped};
use std::sync::Arc;
use systx_store::io::Stamp;
use systx_store::writeset::Ix;
use systx_store::{Committed, Lease, OutsideChange, Store};

/// A commit that is in its place, while nobody else can touch it yet.
#[must_use = "a commit that is in its place is to be released"]
pub struct Placed {
    fate: Fate,
    parts: Vec<PlacedPart>,
    notes: Vec<String>,
    joint: Option<u64>,
}

struct PlacedPart {
    on: Held,
    record: Option<Committed>,
    stamps: Vec<(Ix, Stamp)>,
    outside: Vec<OutsideChange>,
}

/// What a commit has left.
pub struct Installed {
    /// What outsiders had put in the way, and where.
    pub outside: Vec<(Arc<Site>, OutsideChange)>,
    /// Sentences for the user.
    pub notes: Vec<String>,
}

impl Durable {
    /// Installs all parts.
    ///
    /// # Errors
    /// [`Stopped::NotPlaced`]: it is committed.  Whoever waits for it sees what is there; the store
    /// refuses what meets it until it is finished.
    pub fn place(self) -> Result<Placed, Stopped> {
        let Durable { fate, parts: written, notes, joint } = self;
        let mut parts = Vec::with_capacity(written.len());
        // What is declared last is dropped first: an abort comes before the release of what is
        // held.
        let fate = fate;
        // All of them begin before the first is made: no look at one part is taken for an outsider.
        let sites: Vec<Arc<Site>> = written.iter().map(|part| Arc::clone(&part.on.site)).collect();
        let mut installations = Vec::with_capacity(written.len());
        for (site, part) in sites.iter().zip(&written) {
            let ids = part.on.origins.iter().flatten().map(|stamp| stamp.id());
            installations.push(site.vol.start_installing(ids));
        }
        let mut failed = None;
        for (part, installation) in written.into_iter().zip(installations) {
            match install(part) {
                Ok((part, moves)) => {
                    installation.end(moves);
                    parts.push(part);
                }
                Err(stopped) => {
                    let (on, error) = *stopped;
                    failed = Some(error);
                    let (record, stamps, outside) = (None, Vec::new(), Vec::new());
                    parts.push(PlacedPart { on, record, stamps, outside });
                }
            }
        }
        match failed {
            Some(error) => Err(Stopped::NotPlaced(error)),
            None => Ok(Placed { fate, parts, notes, joint }),
        }
    }
}

type Moved = (PlacedPart, Vec<(Stamp, Stamp)>);

/// One part; also the versions that its installation has moved.
fn install(part: Written) -> Result<Moved, Box<(Held, systx_store::ApplyError)>> {
    let Written { on, record } = part;
    let (Some(committed), Some(store)) = (record, &on.store) else {
        let (stamps, outside) = (Vec::new(), Vec::new());
        return Ok((PlacedPart { on, record, stamps, outside }, Vec::new()));
    };
    // Now: others may have changed names in the same directories while this one waited for the
    // disk.
    let before = on.site.current(&on.origins);
    match store.apply(committed.lsn) {
        Ok(report) => {
            let pairs = before.iter().zip(&report.stamps);
            let moves: Vec<_> = pairs.filter_map(|(old, new)| Some(((*old)?, (*new)?))).collect();
            on.under_way.replaced(&moves);
            let stamps = (0..).zip(&report.stamps).filter_map(|(i, new)| Some((Ix(i), (*new)?)));
            let (stamps, outside) = (stamps.collect(), report.outside);
            Ok((PlacedPart { on, record, stamps, outside }, moves))
        }
        Err(error) => Err(Box::new((on, error))),
    }
}

impl Placed {
    /// The versions after the installation of what the write set of a site's part changes.
    #[must_use]
    pub fn stamps(&self, site: &Arc<Site>) -> &[(Ix, Stamp)] {
        let part = self.parts.iter().find(|part| Arc::ptr_eq(&part.on.site, site));
        part.map_or(&[], |part| &part.stamps)
    }

    /// Everybody sees all of it from now on.
    #[must_use]
    pub fn release(self) -> Installed {
        let Placed { fate, parts, notes, joint } = self;
        fate.installed();
        let mut outside = Vec::new();
        let mut records = Vec::new();
        for PlacedPart { on, record, outside: found, .. } in parts {
            let Held { site, under_way, store, .. } = on;
            drop(under_way);
            outside.extend(found.into_iter().map(|change| (Arc::clone(&site), change)));
            records.extend(store.zip(record).map(|(store, committed)| (site, store, committed)));
        }
        match joint {
            Some(joint) => {
                std::thread::spawn(move || forget(joint, records));
            }
            None => {
                for (site, store, _) in &records {
                    site.checkpoints.soon(store);
                }
            }
        }
        Installed { outside, notes }
    }
}

/// Lets the journals forget what is installed, and then the decider its decision.
fn forget(joint: u64, mut records: Vec<(Arc<Site>, Lease, Committed)>) {
    records.sort_by_key(|(site, ..)| (site.rank(), site.vol.mount_path.clone()));
    let stores: Vec<(&dyn Store, Committed)> =
        records.iter().map(|(_, store, committed)| (&**store, *committed)).collect();
    for (store, _) in &stores {
        if let Err(error) = store.checkpoint() {
            tracing::error!(%error, "checkpoint");
            return;
        }
        crate::checkpoints::bound_history(*store);
    }
    // Behind a record that could not be installed: the next start looks again.
    if let Some((decider, _)) = stores.first()
        && stores.iter().all(|(store, committed)| store.has_let_go(*committed))
        && let Err(error) = decider.forget_decision(joint)
    {
        tracing::warn!(%error, "a decision is kept");
    }
}
