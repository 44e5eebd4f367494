//! From a reservation to a durable record: of one transaction, or of several in one write.
//!
//! A *group* ([`DirStore::commit_group`]) are transactions of which none touches what another one
//! touches ([`Disjoint`]). Each has a record, an entry in the history and an undo of its own; what
//! they share are the two waits for the disk: one sync of all that the records refer to, then one
//! durable write of the records, in the order of the group. A power cut in that write leaves a
//! prefix of them (see [`crate::journal`]). A member that cannot be committed is left out and told
//! its own error.

use super::{DirStore, Entry, NotWritten, Phase, Queued, Room, SYNC_EACH, State};
use crate::error::{ApplyError, CheckpointError, CommitError, Poisoned, is_full};
use crate::footprint::{Footprint, Meeting};
use crate::history::Commit;
use crate::interface::{Committed, Ready};
use crate::io::{Class, Handle, HostId};
use crate::joint::Joint;
use crate::journal::{Body, Head, Ring};
use crate::prepare::{Prepared, drop_files, prepare};
use crate::staging::Slot;
use crate::super_block::{FORMAT, Super, Supers};
use crate::writeset::{Content, SlotId, WriteSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use systx_base::TxnId;
use systx_base::mix;
use systx_base::progress;
use systx_base::sync::Guard;

/// What a record needs before it may be written.
struct Staged {
    queued: Queued,
    files: Vec<Handle>,
    /// Its side log, kept until the pool knows that it is committed.
    side: Option<Slot>,
}

impl DirStore {
    /// As [`crate::Store`] has it.
    #[cfg(test)]
    pub(crate) fn commit(
        &self,
        reservation: crate::Reservation,
        set: WriteSet,
        meta: crate::CommitMeta,
    ) -> Result<Committed, CommitError> {
        (self as &dyn crate::Store).commit(reservation, set, meta)
    }

    /// Commits several transactions, with one wait for the journal; what becomes of each is in the
    /// order of `members`. Their records are in that order, too. Those that are committed are
    /// durable when this returns, and in the tree after [`DirStore::apply`] of each.
    ///
    /// Who touches what one before it touches is refused with [`CommitError::Overlaps`]: ask
    /// [`Disjoint`].
    pub fn commit_group(&self, members: Vec<Ready>) -> Vec<Result<Committed, CommitError>> {
        let mut wanted: Vec<Result<Footprint, CommitError>> = Vec::with_capacity(members.len());
        for Ready { set, .. } in &members {
            let mine = set.check().map_err(CommitError::from).and_then(|()| {
                let mine = Footprint::new(set, self.root);
                let apart = |other: &Footprint| other.meets(&mine) == Meeting::Apart;
                let apart = wanted.iter().flatten().all(apart);
                if apart { Ok(mine) } else { Err(CommitError::Overlaps) }
            });
            wanted.push(mine);
        }
        let claims = self.claim_all(wanted).into_iter().zip(members);
        let staged: Vec<_> =
            claims.map(|(ticket, ready)| self.stage_record(ticket?, ready, None)).collect();
        let written = self.write_staged(staged);
        written.into_iter().map(|lsn| lsn.map(|lsn| Committed { lsn })).collect()
    }

    /// Waits for, or settles, every transaction that this one meets; then nobody else meets it.
    pub(super) fn claim(&self, footprint: Footprint) -> Result<u64, CommitError> {
        let ticket = self.claim_all(vec![Ok(footprint)]).pop();
        ticket.unwrap_or(Err(CommitError::UnknownSlot))
    }

    /// As [`DirStore::claim`], all at once: two groups that claimed one after the other could wait
    /// for each other. What cannot be claimed, or has failed before, is left out.
    fn claim_all(
        &self,
        mut wanted: Vec<Result<Footprint, CommitError>>,
    ) -> Vec<Result<u64, CommitError>> {
        let all_poisoned = |wanted: Vec<Result<Footprint, CommitError>>, why: &Poisoned| {
            let refuse = |w: Result<_, _>| w.and_then(|_| Err(CommitError::Poisoned(why.clone())));
            wanted.into_iter().map(refuse).collect()
        };
        loop {
            let mut state = match self.live() {
                Ok(state) => state,
                Err(why) => return all_poisoned(wanted, &why),
            };
            let mut left = wanted.iter().flatten();
            let meets = |a: &Footprint, b| a.meets(b) != Meeting::Apart;
            if left.any(|mine| state.inflight.values().any(|other| meets(other, mine))) {
                self.changed.wait(&mut state);
                continue;
            }
            let met = wanted.iter().enumerate().find_map(|(n, mine)| {
                let mine = mine.as_ref().ok()?;
                let mut entries = state.entries.iter().rev();
                entries.find_map(|(lsn, e)| match e.footprint.meets(mine) {
                    Meeting::Full => Some((n, *lsn, true)),
                    Meeting::InPlace if e.phase != Phase::Applied => Some((n, *lsn, false)),
                    _ => None,
                })
            });
            let Some((n, lsn, for_good)) = met else {
                let claim = |footprint: Result<Footprint, CommitError>| {
                    let ticket = state.next_ticket;
                    state.next_ticket += 1;
                    state.inflight.insert(ticket, footprint?);
                    Ok(ticket)
                };
                return wanted.into_iter().map(claim).collect();
            };
            drop(state);
            let settled = if for_good { self.settle(lsn) } else { self.install_all(lsn..=lsn) };
            if let Err(error) = settled {
                wanted[n] = Err(error);
            }
        }
    }

    /// Installs and checkpoints everything up to `lsn`.
    fn settle(&self, lsn: u64) -> Result<(), CommitError> {
        self.install_all(0..=lsn)?;
        self.checkpoint().map_err(|e| match e {
            CheckpointError::Poisoned(why) => CommitError::Poisoned(why),
            CheckpointError::NoRoom(e) => CommitError::Io(e),
        })
    }

    fn install_all(&self, which: RangeInclusive<u64>) -> Result<(), CommitError> {
        let due: Vec<(u64, TxnId)> = {
            let state = self.live().map_err(CommitError::Poisoned)?;
            state.entries.range(which).map(|(lsn, entry)| (*lsn, entry.txn)).collect()
        };
        for (lsn, txn) in due {
            match self.install_entry(lsn, false) {
                Ok(_) | Err(ApplyError::Unknown(_)) => {}
                Err(source) => return Err(CommitError::Blocked { txn, source: Box::new(source) }),
            }
        }
        Ok(())
    }

    /// Writes the record of a transaction whose claim this is; if there is an error, the claim is
    /// over.
    pub(crate) fn commit_claimed(
        &self,
        ticket: u64,
        ready: Ready,
        joint: Option<Joint>,
    ) -> Result<u64, CommitError> {
        let staged = self.stage_record(ticket, ready, joint);
        self.write_staged(vec![staged]).pop().unwrap_or(Err(CommitError::UnknownSlot))
    }

    /// Makes the record of a transaction whose claim this is, but for what has to be synced first;
    /// if there is an error, the claim is over.
    fn stage_record(
        &self,
        ticket: u64,
        ready: Ready,
        joint: Option<Joint>,
    ) -> Result<Staged, CommitError> {
        let made = self.make_record(ticket, ready, joint);
        if made.is_err() {
            self.unclaim(ticket);
        }
        made
    }

    fn make_record(
        &self,
        ticket: u64,
        Ready { reservation, set, meta }: Ready,
        joint: Option<Joint>,
    ) -> Result<Staged, CommitError> {
        // The room that was held is for what comes now.
        let mut room: Room = reservation.into_room().unwrap_or_default();
        drop(room.ahead.take());
        let mut slots = set.slots();
        if slots.iter().any(|slot| self.ground.pool.handle(*slot).is_none()) {
            return Err(CommitError::UnknownSlot);
        }
        let mut set = set;
        let raised = if self.ground.overlay {
            let raised = crate::overlay::raise(self.ground.env(), meta.txn, &mut set)
                .map_err(CommitError::Io)?;
            if let Some(claim) = self.state.lock().inflight.get_mut(&ticket) {
                claim.raised(&set, self.root);
            }
            raised
        } else {
            None
        };
        let prepared = prepare(self.ground.env(), meta.txn, &set, self.config.inline_before)
            .map_err(CommitError::Io)?;
        if !prepared.changed.is_empty() {
            return Err(CommitError::Changed { paths: prepared.changed });
        }
        let Prepared { befores, mut files, .. } = prepared;
        files.extend(raised);
        let file_slots = self.file_slots(&set);
        let mut commit = Commit { slots: Vec::new(), meta, set, befores, joint };
        let body = file_slots.and_then(|file_slots| {
            commit.slots = file_slots;
            self.body(commit.encode_record())
        });
        let (body, side) =
            body.inspect_err(|_| drop_files(self.ground.env(), commit.meta.txn, &commit.befores))?;
        let commit = Arc::new(commit);
        slots.extend(side.as_ref().map(Slot::id));
        Ok(Staged { queued: Queued { ticket, body, commit, slots, room }, files, side })
    }

    /// Makes staged records durable: first what they refer to, then they themselves. The claims of
    /// those that are not written are over.
    fn write_staged(
        &self,
        staged: Vec<Result<Staged, CommitError>>,
    ) -> Vec<Result<u64, CommitError>> {
        let all = || staged.iter().flatten();
        let slots: Vec<SlotId> = all().flat_map(|s| &s.queued.slots).copied().collect();
        let files: Vec<Handle> = all().flat_map(|s| &s.files).cloned().collect();
        progress::phase(progress::Phase::Syncing, || 0);
        if let Err(why) = self.sync_slots(&slots, &files) {
            let refuse = |staged: Staged| {
                self.unclaim(staged.queued.ticket);
                Err(CommitError::Poisoned(why.clone()))
            };
            return staged.into_iter().map(|s| s.and_then(refuse)).collect();
        }
        self.ground.pool.commit(&slots);
        let mut queue = Vec::new();
        let mut put = |Staged { queued, side, .. }: Staged| {
            drop(side);
            let mine = (queued.ticket, queued.slots.clone(), Arc::clone(&queued.commit));
            queue.push(queued);
            mine
        };
        let tickets: Vec<_> = staged.into_iter().map(|s| s.map(&mut put)).collect();
        let mut written = self.enqueue(queue).into_iter();
        let mut outcome = |(ticket, slots, commit): (u64, Vec<SlotId>, Arc<Commit>)| {
            let lsn = written.next().unwrap_or(Err(CommitError::UnknownSlot));
            lsn.inspect_err(|error| {
                if matches!(error, CommitError::Io(_)) {
                    slots.iter().for_each(|slot| self.ground.pool.release(*slot, false));
                    drop_files(self.ground.env(), commit.meta.txn, &commit.befores);
                } else {
                    // The slots stay committed: the record may be on disk.
                    tracing::warn!(?slots, "slots of a commit in doubt are kept");
                }
                self.unclaim(ticket);
            })
        };
        tickets.into_iter().map(|mine| mine.and_then(&mut outcome)).collect()
    }

    /// The identity of every slot that becomes a file.
    fn file_slots(&self, set: &WriteSet) -> Result<Vec<(SlotId, HostId)>, CommitError> {
        let mut out = Vec::new();
        for object in &set.objects {
            if let Content::Slot(slot) = object.content {
                let handle = self.ground.pool.handle(slot).ok_or(CommitError::UnknownSlot)?;
                out.push((slot, self.ground.io.stat(&handle).map_err(CommitError::Io)?.id));
            }
        }
        Ok(out)
    }

    /// Puts a record's body into a side log if the ring is not made for it.
    fn body(&self, bytes: Vec<u8>) -> Result<(Body, Option<Slot>), CommitError> {
        let segment = self.live().map_err(CommitError::Poisoned)?.block;
        let segment = segment.map_or(self.config.segment_bytes, |b| b.segment_bytes);
        let body = Body::Inline(bytes);
        if body.extent() <= segment / 2 {
            return Ok((body, None));
        }
        let Body::Inline(bytes) = body else { return Err(CommitError::UnknownSlot) };
        let write = || -> std::io::Result<Slot> {
            let slot = self.ground.pool.take()?;
            self.ground.io.write_at(slot.handle(), &bytes, 0)?;
            Ok(slot)
        };
        let slot = write().map_err(CommitError::Io)?;
        let body =
            Body::Side { slot: slot.id(), len: bytes.len() as u64, crc: crc32c::crc32c(&bytes) };
        Ok((body, Some(slot)))
    }

    /// Makes what a record refers to durable, before the record is.
    fn sync_slots(&self, slots: &[SlotId], files: &[Handle]) -> Result<(), Poisoned> {
        if slots.is_empty() && files.is_empty() {
            return Ok(());
        }
        let sync = || -> std::io::Result<()> {
            match self.ground.class {
                Class::Memory => Ok(()),
                Class::Strong if slots.len() + files.len() <= SYNC_EACH => {
                    for slot in slots {
                        if let Some(handle) = self.ground.pool.handle(*slot) {
                            self.ground.io.sync_all(&handle)?;
                        }
                    }
                    for file in files {
                        self.ground.io.sync_all(file)?;
                    }
                    // The names of what was made.
                    if !slots.is_empty() {
                        self.ground.io.sync_all(&self.ground.layout.slots)?;
                    }
                    if files.is_empty() {
                        Ok(())
                    } else {
                        self.ground.io.sync_all(&self.ground.layout.grave)
                    }
                }
                _ => self.ground.io.sync_fs(),
            }
        };
        sync().map_err(|e| self.sync_failed("syncing staged data", &e))
    }

    /// Hands records to the leader, or becomes it; what became of each.
    fn enqueue(&self, records: Vec<Queued>) -> Vec<Result<u64, CommitError>> {
        if records.is_empty() {
            return Vec::new();
        }
        let tickets: Vec<u64> = records.iter().map(|q| q.ticket).collect();
        let mut state = match self.live() {
            Ok(state) => state,
            Err(why) => {
                let refused = |_| Err(CommitError::Poisoned(why.clone()));
                return records.into_iter().map(refused).collect();
            }
        };
        state.queue.extend(records);
        loop {
            if tickets.iter().all(|ticket| state.results.contains_key(ticket)) {
                let taken = tickets.iter().filter_map(|ticket| state.results.remove(ticket));
                let error = |e: NotWritten| match e.nothing() {
                    Ok(nothing) => CommitError::Io(nothing),
                    Err(poisoned) => CommitError::InDoubt(poisoned.why),
                };
                return taken.map(|r| r.map_err(error)).collect();
            }
            if state.leading {
                self.changed.wait(&mut state);
                continue;
            }
            state = self.lead(state);
        }
    }

    /// Writes what is queued, as much as fits into one write.
    fn lead<'s>(&'s self, mut state: Guard<'s, State>) -> Guard<'s, State> {
        state.leading = true;
        let limit = state.block.map_or(self.config.segment_bytes, |b| b.segment_bytes) / 2;
        let mut group = Vec::new();
        let mut total = 0;
        while let Some(next) = state.queue.first() {
            total += next.body.extent();
            if total > limit && !group.is_empty() {
                break;
            }
            group.push(state.queue.remove(0));
        }
        drop(state);
        let tickets: Vec<u64> = group.iter().map(|q| q.ticket).collect();
        let failed = self.write_group(group).err();
        let mut state = self.state.lock();
        state.leading = false;
        if let Some(why) = failed {
            for ticket in tickets {
                state.results.insert(ticket, Err(why.clone()));
            }
        }
        self.changed.notify_all();
        state
    }

    /// Writes a group's records and enters them into the table.
    fn write_group(&self, group: Vec<Queued>) -> Result<(), NotWritten> {
        let mut ring = self.take_ring()?;
        // A crash right after the first record must find the store noted.
        let noted = self.config.registry.note(ring.identity().store);
        let noted = noted.map_err(|e| NotWritten::Unnoted(Arc::new(e)));
        let room = noted.and_then(|()| self.make_room(&ring, &group));
        let ordered = group.iter().any(|queued| queued.commit.ordered().is_some());
        let room = room.and_then(|()| if ordered { self.raise_format() } else { Ok(()) });
        if let Err(why) = room {
            self.state.lock().ring = Some(ring);
            return Err(why);
        }
        let (bodies, rest): (Vec<Body>, Vec<_>) =
            group.into_iter().map(|q| (q.body, (q.ticket, q.commit, q.slots, q.room))).unzip();
        let first = ring.head().lsn;
        let mut append =
            || ring.append(&*self.ground.io, &self.ground.layout, self.ground.class, &bodies);
        let written = match append() {
            Err(e) if is_full(&e) && self.spare.give_up(&*self.ground.io, &self.ground.layout) => {
                append()
            }
            written => written,
        };
        let after = match written {
            Ok(after) => after,
            Err(e) if is_full(&e) => {
                self.state.lock().ring = Some(ring);
                return Err(no_room(&e));
            }
            Err(e) => return Err(self.poison("writing the journal", &e).into()),
        };
        let mut state = self.state.lock();
        for (i, (ticket, commit, slots, room)) in rest.into_iter().enumerate() {
            let lsn = first + i as u64;
            let footprint = state.inflight.remove(&ticket).unwrap_or_default();
            for earlier in state.entries.values_mut() {
                earlier.footprint.followed_by(&footprint);
            }
            state.highest_txn = state.highest_txn.max(commit.meta.txn);
            let undecided = commit.joint.as_ref().is_some_and(|j| !j.decides());
            if !undecided {
                self.numbers.take(commit.ordered(), commit.meta.finished);
            }
            let entry = Entry {
                phase: if undecided { Phase::Prepared } else { Phase::Durable },
                txn: commit.meta.txn,
                commit: Some(commit),
                room: Some(room),
                footprint,
                slots,
                segment: after[i].segment,
                after: after[i],
                report: None,
                taken: false,
                redo: false,
            };
            state.entries.insert(lsn, entry);
            state.results.insert(ticket, Ok(lsn));
        }
        state.ring = Some(ring);
        Ok(())
    }

    /// The ring, made with the first commit: most stores of a short command never need one.
    pub(super) fn take_ring(&self) -> Result<Ring, NotWritten> {
        let (ring, config) = (self.live()?.ring.take(), &self.config);
        if let Some(ring) = ring {
            return Ok(ring);
        }
        let now = self.ground.io.now();
        let store = mix(now.secs as u64 ^ u64::from(now.nanos) << 32)
            ^ mix(self.ground.layout.id.ino.wrapping_add(config.seed));
        let block = Super {
            format: FORMAT,
            seq: 2,
            store,
            epoch: 1,
            head: Head { segment: 0, offset: 0, lsn: 1, chain: 0 },
            txn: 0,
            segments: config.segments,
            segment_bytes: config.segment_bytes,
            orders: 0,
        };
        let mut ring = Ring::new(block.identity(), block.head);
        let make = || -> std::io::Result<Supers> {
            ring.prepare(&*self.ground.io, &self.ground.layout)?;
            let supers = Supers::create(&*self.ground.io, &self.ground.layout)?;
            if self.ground.class != Class::Memory {
                // Once: names and blocks of all that was made so far.
                self.ground.io.sync_fs()?;
            }
            supers.write(&*self.ground.io, &Super { seq: 1, ..block })?;
            supers.write(&*self.ground.io, &block)?;
            Ok(supers)
        };
        let mut make = make;
        let supers = match make() {
            Ok(supers) => supers,
            // No super block, or one of a store that has no record: the next attempt makes all of
            // it anew.
            Err(e) if is_full(&e) => return Err(no_room(&e)),
            Err(e) => return Err(self.poison("making the journal", &e).into()),
        };
        let mut state = self.state.lock();
        state.block = Some(block);
        state.supers = Some(Arc::new(supers));
        Ok(ring)
    }

    /// Whoever knows only older formats would not see the orders in the records that come now.
    fn raise_format(&self) -> Result<(), NotWritten> {
        let (block, supers) = {
            let mut state = self.wait_checkpointed()?;
            match state.block {
                Some(block) if !block.has_orders() => {
                    state.checkpointing = true;
                    (block, state.supers.clone())
                }
                _ => return Ok(()),
            }
        };
        let block = Super { format: FORMAT, seq: block.seq + 1, ..block };
        let written = self.write_super(supers, &block);
        let mut state = self.state.lock();
        state.checkpointing = false;
        let failed = match written {
            Ok(supers) => {
                (state.supers, state.block) = (Some(supers), Some(block));
                None
            }
            Err(e) => Some(e),
        };
        drop(state);
        self.changed.notify_all();
        match failed {
            None => Ok(()),
            Some(e) if is_full(&e) => Err(no_room(&e)),
            Some(e) => Err(self.poison("writing a super block", &e).into()),
        }
    }

    /// Frees the segment that a group will enter.
    fn make_room(&self, ring: &Ring, group: &[Queued]) -> Result<(), NotWritten> {
        let mut offset = ring.head().offset;
        let mut enters = false;
        for queued in group {
            let extent = queued.body.extent();
            if offset + extent > ring.identity().segment_bytes {
                enters = true;
                offset = 0;
            }
            offset += extent;
        }
        if !enters {
            return Ok(());
        }
        let next = (ring.head().segment + 1) % ring.identity().segments;
        loop {
            let state = self.live()?;
            let last = state.entries.iter().rev().find(|(_, e)| e.segment == next);
            let Some((lsn, _)) = last else { return Ok(()) };
            let lsn = *lsn;
            drop(state);
            self.settle(lsn).map_err(|e| match e {
                CommitError::Poisoned(p) => p.into(),
                CommitError::Io(e) if is_full(&e) => no_room(&e),
                other => {
                    let why = std::io::Error::other(other.to_string());
                    self.poison("making room in the journal", &why).into()
                }
            })?;
        }
    }
}

fn no_room(e: &std::io::Error) -> NotWritten {
    NotWritten::NoRoom(e.raw_os_error().unwrap_or(libc::ENOSPC))
}

#[cfg(test)]
mod tests;
