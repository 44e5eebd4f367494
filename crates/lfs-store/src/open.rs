//! Opening a volume as a store.

use crate::error::io_error;
use crate::flow::{Flow, Part, Way};
use crate::keep::Shorts;
use crate::orders;
use crate::own::{self, Own, clear};
use crate::reserve::Room;
use crate::slot::{slot_name, slot_of};
use crate::tree::{VolumeTree, id_of, number_of};
use crate::unnamed::Belated;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use systx_base::codec::Decoder;
use systx_base::sync::{Mutex, rank};
use systx_base::{Orders, Time};
use systx_lfs::device::Device;
use systx_lfs::format::{BLOCK, Ino, ROOT};
use systx_lfs::{Clock, Error, Limits, Space, Volume};
use systx_store::io::{Handle, HostId};
use systx_store::record::{Commit, History, Users};
use systx_store::{Forgotten, OpenError, Outcome, Outcomes, Ready, Reservation, ReserveError};

/// How a volume is opened.
#[derive(Clone)]
pub struct Config {
    /// Where it is, for messages.
    pub path: String,
    /// The time.
    pub clock: Clock,
    /// Random.
    pub salt: u64,
    /// What it may use of memory.
    pub limits: Limits,
}

/// When the history was looked at.
#[derive(Default)]
pub(crate) struct Looks {
    /// Bytes that were displaced since.
    pub displaced: AtomicU64,
    /// Seconds.
    pub last: AtomicI64,
    /// What was forgotten for content, and nobody was told of: transactions and bytes.
    pub untold: (AtomicU64, AtomicU64),
}

/// An open volume as a store.
pub struct VolumeStore {
    pub(crate) volume: Arc<Volume>,
    pub(crate) tree: Arc<VolumeTree>,
    pub(crate) own: Own,
    pub(crate) own_id: HostId,
    /// The directory with what was displaced.
    pub(crate) grave: Handle,
    pub(crate) root: HostId,
    pub(crate) flow: Flow,
    pub(crate) users: Users,
    pub(crate) looks: Looks,
    pub(crate) shorts: Shorts,
    pub(crate) orders: Arc<Orders>,
    pub(crate) belated: Belated,
}

/// A clock that tells each time once, so that each change moves a version.
fn strict(clock: Clock) -> Clock {
    let last = Mutex::new(rank::LEAF, Time::default());
    Arc::new(move || {
        let mut last = last.lock();
        let now = clock();
        *last = if now > *last {
            now
        } else if last.nanos < 999_999_999 {
            Time { secs: last.secs, nanos: last.nanos + 1 }
        } else {
            Time { secs: last.secs + 1, nanos: 0 }
        };
        *last
    })
}

/// Opens a volume, and finishes what joint commits have left: `outcomes` tells what became of them.
///
/// # Errors
/// [`OpenError::Damaged`], [`OpenError::Waits`], [`OpenError::Io`]; nothing was lost.
pub fn open(
    dev: Arc<dyn Device>,
    config: Config,
    outcomes: &dyn Outcomes,
) -> Result<Arc<VolumeStore>, OpenError> {
    let path = config.path;
    let failed = |error: Error| match error {
        Error::Corrupt { .. } | Error::Unread { .. } | Error::NotAVolume(_) => {
            OpenError::Damaged { path: path.clone(), what: error.to_string() }
        }
        error => OpenError::Io { path: path.clone(), source: io_error(error) },
    };
    let clock = strict(config.clock);
    let volume = Volume::open(dev, clock.clone(), config.salt, config.limits).map_err(failed)?;
    let volume = Arc::new(volume);
    let own = volume.plain(Own::find).map_err(failed)?;
    let (root, own_id) = volume
        .look(|ops| Ok((id_of(ROOT, &ops.attrs(ROOT)?), id_of(own.top, &ops.attrs(own.top)?))))
        .map_err(failed)?;
    let tree = Arc::new(VolumeTree::new(Arc::clone(&volume), clock));
    let io = |source: io::Error| OpenError::Io { path: path.clone(), source };
    let grave = tree.handle(own.grave, false).map_err(io)?;
    let orders = Arc::new(volume.look(|ops| orders::read(ops, &own)).map_err(failed)?);
    let last = last_position(&volume, &own).map_err(failed)?;
    let store = VolumeStore {
        volume,
        tree,
        own,
        own_id,
        grave,
        root,
        flow: Flow::new(root, last),
        users: Users::new(),
        looks: Looks::default(),
        shorts: Mutex::new(rank::LEAF, HashMap::new()),
        orders,
        belated: Belated::default(),
    };
    store.finish(outcomes, &path)?;
    Ok(Arc::new(store))
}

/// The newest position in the log of transactions.
fn last_position(volume: &Volume, own: &Own) -> systx_lfs::Result<u64> {
    volume.look(|ops| {
        let mut last = 0;
        for (_, link) in ops.list(own.history, None, usize::MAX)? {
            let history = History::decode(&own::read(ops, link.ino)?);
            last = last.max(history.map_or(0, |history| history.done.lsn));
        }
        Ok(last)
    })
}

impl VolumeStore {
    /// The committed tree.
    pub fn tree(&self) -> Arc<VolumeTree> {
        Arc::clone(&self.tree)
    }

    /// What tells the volume from others.
    pub(crate) fn id(&self) -> u64 {
        number_of(&self.volume)
    }

    /// Parts of joint commits that were prepared, and slots that nobody has.
    fn finish(&self, outcomes: &dyn Outcomes, path: &str) -> Result<(), OpenError> {
        let failed = |error| OpenError::Io { path: path.to_owned(), source: io_error(error) };
        let (prepared, slots) = self
            .volume
            .look(|ops| {
                let mut all = Vec::new();
                for (name, link) in ops.list(self.own.prepared, None, usize::MAX)? {
                    all.push((name, own::read(ops, link.ino)?));
                }
                Ok((all, ops.list(self.own.slots, None, usize::MAX)?))
            })
            .map_err(failed)?;
        let mut wanted: Vec<(Vec<u8>, Commit, Outcome)> = Vec::new();
        for (name, bytes) in prepared {
            let commit = Commit::decode(&mut Decoder::new(&bytes)).map_err(|e| {
                let what = format!("a prepared commit: {e}");
                OpenError::Damaged { path: path.to_owned(), what }
            })?;
            let joint = commit.joint.as_ref();
            let outcome = joint.map_or(Outcome::Aborted, |joint| outcomes.outcome(joint));
            if outcome == Outcome::Unknown {
                let decider = joint.and_then(|joint| joint.decider());
                let decider = decider.map_or(Vec::new(), |decider| decider.path.clone());
                return Err(OpenError::Waits {
                    path: path.to_owned(),
                    txn: commit.meta.txn,
                    decider: String::from_utf8_lossy(&decider).into_owned(),
                });
            }
            wanted.push((name, commit, outcome));
        }
        let asked = !wanted.is_empty();
        for (name, commit, outcome) in wanted {
            let txn = commit.meta.txn;
            let finished = match outcome {
                Outcome::Committed => self.finish_one(&name, commit),
                _ => self.unname_prepared(&name).map_err(io_error),
            };
            finished.map_err(|source| OpenError::Recovery {
                txn,
                path: path.to_owned(),
                source,
            })?;
        }
        let slots: Vec<Ino> = slots.iter().filter_map(|(name, _)| slot_of(name)).collect();
        match self.remove_slots(slots) {
            // Who removes other things makes room for that; a volume that is not opened has nobody.
            Err(Error::NoSpace) => {}
            done => done.map_err(failed)?,
        }
        // Nobody is asked again: whoever has told it may forget it now.
        if asked { self.volume.sync().map_err(failed) } else { Ok(()) }
    }

    /// Puts a part that was decided while the volume was closed into the tree.
    fn finish_one(&self, name: &[u8], commit: Commit) -> io::Result<()> {
        let Commit { meta, set, joint, .. } = commit;
        let none = || io::Error::other("a part of a joint commit that names no others");
        let joint = joint.ok_or_else(none)?;
        let lsn = match self.flow.enter(&[&set]) {
            Ok(Way::Free(places)) => places.first().copied().unwrap_or_default(),
            _ => return Err(io::Error::other("two parts of joint commits meet")),
        };
        // What the decision was promised is as free as then; without room for what it displaces, it
        // is put into the tree all the same.
        let reservation = match self.reserve_for(&set) {
            Ok(reservation) => reservation,
            Err(ReserveError::NoSpace { .. }) => {
                Reservation::new(Room { promise: None, keep: false }, Forgotten::default())
            }
            Err(error) => {
                self.flow.leave(lsn, None);
                return Err(io::Error::other(error.to_string()));
            }
        };
        let mut part = Part { ready: Ready { reservation, set, meta }, joint };
        let done = self.place_decided(lsn, name, &mut part);
        self.flow.leave(lsn, None);
        done.map(drop)
    }

    /// A prepared part is not there any more.
    pub(crate) fn unname_prepared(&self, name: &[u8]) -> systx_lfs::Result<()> {
        self.volume.plain(|ops| clear(ops, self.own.prepared, name))
    }

    /// Removes slots, but for those that parts of joint commits need.
    pub(crate) fn remove_slots(&self, slots: Vec<Ino>) -> systx_lfs::Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let needed: BTreeSet<Ino> = self.flow.lock().slots().into_iter().collect();
        let (later, now): (Vec<Ino>, Vec<Ino>) = slots.iter().partition(|s| needed.contains(s));
        self.tree.to_be_removed(later);
        let removed = self.volume.plain(|ops| {
            now.iter().try_for_each(|ino| clear(ops, self.own.slots, &slot_name(*ino)))
        });
        if removed.is_err() {
            self.tree.to_be_removed(now);
        }
        removed
    }

    /// Lets go of all that was dropped.
    pub(crate) fn tidy(&self) -> io::Result<()> {
        let slots = self.tree.let_go()?;
        self.remove_slots(slots).map_err(io_error)
    }

    /// Gives back the room of what transactions have dropped, as whoever commits does. Returns how
    /// many bytes that was.
    ///
    /// # Errors
    /// What the volume says.
    pub fn give_back(&self) -> io::Result<u64> {
        let before = self.volume.space().used;
        self.tidy()?;
        Ok(before.saturating_sub(self.volume.space().used) * BLOCK as u64)
    }

    /// How full it is, without what transactions have dropped.
    pub fn space(&self) -> Space {
        // What cannot be removed now is counted.
        drop(self.tidy());
        self.volume.space()
    }

    /// Writes everything, and a last checkpoint of the log.
    ///
    /// # Errors
    /// What the device says.
    pub fn close(&self) -> io::Result<()> {
        let slots = self.tree.let_go()?;
        match self.remove_slots(slots) {
            // The next opening finds them. Everything else has to be durable all the same.
            Err(Error::NoSpace) => {}
            done => done.map_err(io_error)?,
        }
        self.volume.checkpoint().map_err(io_error)
    }
}
