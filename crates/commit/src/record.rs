//! The commit point: one record, or a joint commit over several stores.

use crate::steps::{Decided, DecidedPart, Fate, Held};
use crate::{Site, Stopped};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::Arc;
use systx_store::writeset::WriteSet;
use systx_store::{CommitError, CommitMeta, Committed, Joiner, Lease, Ready, Reservation};

/// One at a time between the first claim and the decision, in this process.
static JOINER: Joiner = Joiner::new();

/// A commit that a power cut does not take.
#[must_use = "a durable commit is to be placed"]
pub struct Durable {
    pub(crate) fate: Fate,
    pub(crate) parts: Vec<Written>,
    pub(crate) notes: Vec<String>,
    /// The number of a joint commit.
    pub(crate) joint: Option<u64>,
}

/// One part of it; without a record where the transaction has only read.
pub(crate) struct Written {
    pub(crate) on: Held,
    pub(crate) record: Option<Committed>,
}

impl Decided {
    /// Writes the record and waits for the disk.
    ///
    /// Its program has heard of the commits that it made before: this one is not found without them
    /// after a power cut, so relaxed ones of all parts are waited for.
    ///
    /// # Errors
    /// [`Stopped::Changed`], [`Stopped::NotCommitted`], [`Stopped::InDoubt`].
    pub fn durable(self) -> Result<Durable, Stopped> {
        for part in &self.parts {
            part.on.site.vol.wait_durable();
        }
        self.written()
    }

    /// As [`Decided::durable`], without the wait for what is relaxed.
    fn written(self) -> Result<Durable, Stopped> {
        let Decided { fate, meta, parts, notes } = self;
        let mut order: Vec<usize> =
            (0..parts.len()).filter(|n| parts[*n].on.store.is_some()).collect();
        order.sort_by_key(|n| {
            let site = &parts[*n].on.site;
            (site.rank(), site.vol.mount_path.clone())
        });
        let (held, mut ready): (Vec<Held>, Vec<Option<_>>) =
            parts.into_iter().map(|DecidedPart { room, set, on }| (on, Some((room, set)))).unzip();
        // What is declared last is dropped first: an abort comes before the release of what is
        // held.
        let fate = fate;
        let mut records = vec![None; held.len()];
        let mut several = Vec::with_capacity(order.len());
        for n in &order {
            if let (Some((room, set)), Some(store)) = (ready[*n].take(), &held[*n].store) {
                several.push((&held[*n].site, store, room, set));
            }
        }
        let joint = match several.len() {
            0 => None,
            1 => {
                let alone = several.pop().map(|(site, store, reservation, set)| {
                    let written = store.commit(reservation, set, meta);
                    written.map_err(|e| Stopped::by_store(e, |path| site.absolute(path)))
                });
                records[order[0]] = alone.transpose()?;
                None
            }
            _ => {
                let (id, written) = jointly(several, &meta)?;
                for (n, record) in order.iter().zip(written) {
                    records[*n] = Some(record);
                }
                Some(id)
            }
        };
        let parts = held.into_iter().zip(records).map(|(on, record)| Written { on, record });
        Ok(Durable { fate, parts: parts.collect(), notes, joint })
    }
}

type Share<'a> = (&'a Arc<Site>, &'a Lease, Reservation, WriteSet);

/// Several records with one commit point; the first decides.
fn jointly(shares: Vec<Share<'_>>, meta: &CommitMeta) -> Result<(u64, Vec<Committed>), Stopped> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|errno| Stopped::NotCommitted(CommitError::Io(errno.into())))?;
    let id = u64::from_ne_bytes(bytes);
    let sites: Vec<&Arc<Site>> = shares.iter().map(|(site, ..)| *site).collect();
    let parts = shares.into_iter().map(|(site, store, reservation, set)| systx_store::Part {
        store: &**store,
        path: site.store_path.clone(),
        reservation,
        set,
    });
    let written = JOINER.commit(id, parts.collect(), meta);
    let written = written.map_err(|failed| {
        Stopped::by_store(failed.error, |path| match sites.get(failed.part) {
            Some(site) => site.absolute(path),
            None => path.to_vec(),
        })
    })?;
    Ok((id, written))
}

/// Makes several commits durable, in their order; neighbours on one store share one wait for the
/// disk.  For commits that are relaxed: what came before them is in the same hands.
#[must_use]
pub fn durable_all(several: Vec<Decided>) -> Vec<Result<Durable, Stopped>> {
    let mut done = Vec::with_capacity(several.len());
    let mut group: Vec<Decided> = Vec::new();
    for decided in several {
        let joins = decided.parts.len() == 1
            && group.first().is_none_or(|first| same_store(first, &decided));
        if !joins {
            done.extend(group_durable(std::mem::take(&mut group)));
        }
        if decided.parts.len() == 1 {
            group.push(decided);
        } else {
            done.push(decided.written());
        }
    }
    done.extend(group_durable(group));
    done
}

fn same_store(a: &Decided, b: &Decided) -> bool {
    let store = |decided: &Decided| decided.parts.first().map(|p| Arc::as_ptr(&p.on.site.store));
    store(a) == store(b)
}

/// Commits of one part each, all on one store.
fn group_durable(group: Vec<Decided>) -> Vec<Result<Durable, Stopped>> {
    let first = group.first().and_then(|decided| decided.parts.first());
    let Some(store) = first.and_then(|part| part.on.store.clone()) else {
        // Nothing is written.
        return group.into_iter().map(Decided::written).collect();
    };
    let mut ready = Vec::with_capacity(group.len());
    let mut rest = Vec::with_capacity(group.len());
    for Decided { fate, meta, mut parts, notes } in group {
        if let Some(DecidedPart { room, set, on }) = parts.pop() {
            ready.push(Ready { reservation: room, set, meta });
            rest.push((fate, on, notes));
        }
    }
    let written = store.commit_group(ready);
    let of = |((fate, on, notes), written): ((Fate, Held, _), _)| match written {
        Ok(record) => {
            let parts = vec![Written { on, record: Some(record) }];
            Ok(Durable { fate, parts, notes, joint: None })
        }
        Err(error) => {
            // Before the release of what is held.
            drop(fate);
            Err(Stopped::by_store(error, |path| on.site.absolute(path)))
        }
    };
    rest.into_iter().zip(written).map(of).collect()
}
