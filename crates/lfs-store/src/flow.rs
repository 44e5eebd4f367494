//! Which commits are under way, and which of them wait for each other.

use crate::error::poisoned;
use std::collections::{BTreeMap, HashMap};
use systx_base::sync::{Event, Guard, Mutex, rank};
use systx_base::{OrderStep, Time, TxnId};
use systx_lfs::Hidden;
use systx_lfs::format::Ino;
use systx_store::io::HostId;
use systx_store::writeset::WriteSet;
use systx_store::{ApplyReport, CommitError, Footprint, Joint, Meeting, Poisoned, Ready};

/// A commit that is durable and hidden.
pub(crate) struct Shown {
    pub txn: TxnId,
    pub hidden: Hidden,
    /// The object of the volume for each one of the write set.
    pub inos: Vec<Ino>,
    /// What it says of an order, and when.
    pub order: Option<(OrderStep, Time)>,
}

/// A part of a joint commit that others decide about.
pub(crate) struct Part {
    pub ready: Ready,
    /// What its history says of the others.
    pub joint: Joint,
}

/// How far a commit is.
pub(crate) enum Stage {
    /// It has a place among the others, and is not durable.
    Entered,
    /// A part of a joint commit that is durable, and does not count yet.
    Prepared(Box<Part>),
    /// It counts, and is to be put into the tree.
    Decided(Box<Part>),
    /// It is durable, and to be shown.
    Committed(Shown),
    /// Somebody is doing that.
    Applying,
}

struct UnderWay {
    footprint: Footprint,
    stage: Stage,
    /// Putting it into the tree has failed.
    late: bool,
}

#[derive(Default)]
pub(crate) struct State {
    under_way: BTreeMap<u64, UnderWay>,
    last: u64,
    /// Of what is in the tree, until the checkpoint.
    pub reports: HashMap<u64, ApplyReport>,
    stopped: Option<Poisoned>,
}

/// All of them.
pub(crate) struct Flow {
    root: HostId,
    state: Mutex<State>,
    moved: Event,
    /// See [`Flow::turn`].
    turn: Mutex<()>,
}

/// What stands in the way of commits.
pub(crate) enum Way {
    /// Nothing: they have these positions.
    Free(Vec<u64>),
    /// This one is to be applied first.
    After(u64),
}

impl Flow {
    /// On the volume with this root; positions before `last` are taken.
    pub fn new(root: HostId, last: u64) -> Flow {
        let state = State { last, ..State::default() };
        Flow {
            root,
            state: Mutex::new(rank::STORE, state),
            moved: Event::new(),
            turn: Mutex::new(rank::STORE, ()),
        }
    }

    /// From what a commit finds on the volume to its place in the log: of two that change one file
    /// the later one is to find what the earlier one leaves, also if neither is seen yet.
    pub fn turn(&self) -> Guard<'_, ()> {
        self.turn.lock()
    }

    pub fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Whether commits are possible.
    pub fn goes_on(&self) -> Result<(), Poisoned> {
        self.state.lock().stopped.clone().map_or(Ok(()), Err)
    }

    /// No commit is possible any longer.
    pub fn stop(&self, why: Option<&str>) {
        let why = why.map_or_else(poisoned, |why| Poisoned { why: why.to_owned() });
        self.state.lock().stopped.get_or_insert(why);
        self.moved.notify_all();
    }

    /// A place for write sets that do not meet each other, all at once: who has one waits for
    /// nobody.  Waits until none of them meets what is under way.
    ///
    /// # Errors
    /// [`CommitError::Poisoned`].
    pub fn enter(&self, sets: &[&WriteSet]) -> Result<Way, CommitError> {
        let footprints: Vec<_> =
            sets.iter().map(|set| Footprint::by_pages(set, self.root)).collect();
        let mut state = self.state.lock();
        loop {
            if let Some(stopped) = &state.stopped {
                return Err(CommitError::Poisoned(stopped.clone()));
            }
            let meets = |earlier: &UnderWay| {
                let apart = |f: &Footprint| earlier.footprint.meets(f) == Meeting::Apart;
                !footprints.iter().all(apart)
            };
            let met = state.under_way.iter().find(|(_, earlier)| meets(earlier));
            match met {
                None => break,
                Some((lsn, UnderWay { stage: Stage::Committed(_) | Stage::Decided(_), .. })) => {
                    return Ok(Way::After(*lsn));
                }
                Some(_) => self.moved.wait(&mut state),
            }
        }
        let mut places = Vec::with_capacity(footprints.len());
        for footprint in footprints {
            state.last += 1;
            let (lsn, stage, late) = (state.last, Stage::Entered, false);
            state.under_way.insert(lsn, UnderWay { footprint, stage, late });
            places.push(lsn);
        }
        Ok(Way::Free(places))
    }

    /// A commit has come so far.
    pub fn is_at(&self, lsn: u64, stage: Stage) {
        if let Some(one) = self.state.lock().under_way.get_mut(&lsn) {
            one.stage = stage;
        }
        self.moved.notify_all();
    }

    /// Putting it into the tree has failed: it is as before.
    pub fn is_late(&self, lsn: u64, stage: Stage) {
        if let Some(one) = self.state.lock().under_way.get_mut(&lsn) {
            (one.stage, one.late) = (stage, true);
        }
        self.moved.notify_all();
    }

    /// It is not under way any longer.
    pub fn leave(&self, lsn: u64, report: Option<ApplyReport>) {
        let mut state = self.state.lock();
        state.under_way.remove(&lsn);
        state.reports.extend(report.map(|report| (lsn, report)));
        self.moved.notify_all();
    }

    /// The right to apply a commit; or its report, if it has been.  Waits for whoever does it.
    pub fn apply(&self, lsn: u64) -> Option<Result<ApplyReport, Stage>> {
        let mut state = self.state.lock();
        loop {
            if let Some(report) = state.reports.get(&lsn) {
                return Some(Ok(report.clone()));
            }
            let one = state.under_way.get_mut(&lsn)?;
            match &one.stage {
                Stage::Applying => self.moved.wait(&mut state),
                Stage::Committed(_) | Stage::Decided(_) => {
                    return Some(Err(std::mem::replace(&mut one.stage, Stage::Applying)));
                }
                Stage::Entered | Stage::Prepared(_) => return None,
            }
        }
    }

    /// Takes a part of a joint commit that is prepared.
    pub fn prepared(&self, lsn: u64) -> Option<Box<Part>> {
        let mut state = self.state.lock();
        let one = state.under_way.get_mut(&lsn)?;
        match std::mem::replace(&mut one.stage, Stage::Entered) {
            Stage::Prepared(part) => Some(part),
            other => {
                one.stage = other;
                None
            }
        }
    }
}

impl State {
    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether a commit is neither under way nor waits for a checkpoint.
    pub fn has_let_go(&self, lsn: u64) -> bool {
        !self.under_way.contains_key(&lsn) && !self.reports.contains_key(&lsn)
    }

    /// Which transaction has this position, of those that are durable.
    pub fn txn_of(&self, lsn: u64) -> Option<TxnId> {
        match &self.under_way.get(&lsn)?.stage {
            Stage::Prepared(part) | Stage::Decided(part) => Some(part.ready.meta.txn),
            Stage::Committed(one) => Some(one.txn),
            Stage::Entered | Stage::Applying => None,
        }
    }

    /// Decided ones that could not be put into the tree.
    pub fn late(&self) -> Vec<(u64, TxnId, WriteSet)> {
        let late = self.under_way.iter().filter(|(_, one)| one.late);
        let told = late.filter_map(|(lsn, one)| match &one.stage {
            Stage::Decided(part) => Some((*lsn, part.ready.meta.txn, part.ready.set.clone())),
            _ => None,
        });
        told.collect()
    }

    /// Slots that parts of joint commits refer to.
    pub fn slots(&self) -> Vec<Ino> {
        let sets = self.under_way.values().filter_map(|one| match &one.stage {
            Stage::Prepared(part) | Stage::Decided(part) => Some(&part.ready.set),
            _ => None,
        });
        sets.flat_map(|set| set.slots()).map(|slot| slot.0).collect()
    }
}
