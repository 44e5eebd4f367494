//! Threads that are held before they begin: after a loss, and those that keep losing.

use super::profile::Attempt as Ended;
use super::{DEFER, Desk, Last, Place};
use crate::members::process_of;
use crate::protocol::ThreadActivity;
use crate::transaction::Transaction;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_txn::{Attempt, BeginOptions, Engine, Patience};
use systx_vfs::api::Reply;
use systx_vfs::client;

/// What a transaction that is to begin has to wait for, and for how long at the most.
pub(super) struct Hold<'a> {
    pub id: TxnId,
    pub options: &'a BeginOptions,
    /// What the attempt before it has lost by, if it is another attempt at the same.
    pub again: Option<&'a Last>,
    /// How long somebody who keeps losing may be held.
    pub stall: Duration,
}

impl Place {
    /// Waits for the turn of a transaction: of another attempt; of a first one, if the thread keeps
    /// losing.  It has nothing open meanwhile, so nobody waits for it.
    ///
    /// # Errors
    /// `EINTR`: the thread has been killed.
    pub(super) fn hold<'e>(
        &self,
        engine: &'e Engine,
        hold: &Hold<'_>,
    ) -> Reply<Option<Attempt<'e>>> {
        let over = match hold.again {
            Some(last) => last.lost.clone(),
            None => self.now.lock().profile.keeps_losing_over().to_vec(),
        };
        let limit = if hold.again.is_some() { DEFER.max(hold.stall) } else { hold.stall };
        if over.is_empty() && hold.again.is_none() || limit.is_zero() {
            return Ok(None);
        }
        self.now.lock().held = Some((hold.id, Instant::now()));
        let goes_on = || client::check().is_ok();
        let patience = Patience { limit, goes_on: &goes_on };
        let turn = engine.await_turn(hold.id, hold.options, &over, patience);
        let mut now = self.now.lock();
        let begun = now.held.take().map(|(_, begun)| begun.elapsed());
        now.waited = begun.filter(|_| turn.waited);
        drop(now);
        client::check()?;
        Ok(Some(turn))
    }

    /// Before the end of what is open here: whether it has touched what the thread was held for,
    /// and how much.
    pub(super) fn measure(&self, txn: &Transaction) -> (u64, bool) {
        let engine = &txn.volume.vol.engine;
        let size = engine.workset(txn.id).unwrap_or_default();
        let over = self.now.lock().profile.keeps_losing_over().to_vec();
        let met = over.iter().any(|lost| engine.holds(txn.id, lost.object.as_ref()));
        (size.reads + size.writes, met)
    }
}

impl super::Now {
    /// One more attempt has ended like this.
    pub(super) fn note_end(&mut self, (size, met): (u64, bool)) {
        let waited = self.waited.take();
        let lost = (self.last.state == systx_abi::state::LOST).then_some(&self.last.lost[..]);
        self.profile.ended(&Ended { lost, size, waited, met });
    }
}

impl Desk {
    /// The threads that have had a transaction here.
    pub(super) fn all_threads(&self, engine: &Engine) -> Vec<ThreadActivity> {
        let places: Vec<_> = self.places.lock().values().cloned().collect();
        let mut all: Vec<_> =
            places.iter().filter_map(|place| thread_activity(place, engine)).collect();
        all.sort_by_key(|thread| (std::cmp::Reverse(thread.lost), thread.tid));
        all
    }
}

fn thread_activity(place: &Arc<Place>, engine: &Engine) -> Option<ThreadActivity> {
    let (profile, held) = {
        let now = place.now.lock();
        (now.profile.clone(), now.held)
    };
    Some(ThreadActivity {
        pid: process_of(place.tid)?,
        tid: place.tid,
        argv: place.argv.clone(),
        ended: profile.ended,
        lost: profile.lost,
        held: profile.held,
        losses_per_mille: profile.losses,
        size: profile.size,
        waited_us: profile.waited_us,
        keeps_losing: !profile.keeps_losing_over().is_empty(),
        held_for: held.and_then(|(id, _)| engine.waits_for_turn(id)),
    })
}
