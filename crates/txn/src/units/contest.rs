//! Who is in the way of an access, and who would win.

use super::{Look, Phase, Seated, Stronger, Units, side};
use crate::hold::{Flags, Slot};
use crate::object::{Conflict, ObjectRef, Opponent, Side};
use crate::policy::{Contender, ContentionPolicy, Place};
use crate::table;
use systx_base::TxnId;

/// What an access is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    Read,
    /// A read that writers may not make stale, even under snapshot isolation.
    Depend,
    Write,
}

/// One access on its way through the engine.
pub(crate) struct Ask<'a> {
    pub(crate) slot: Slot,
    pub(crate) o: ObjectRef<'a>,
    pub(crate) place: table::Place,
    pub(crate) write: bool,
    /// How the object is to be held.
    pub(crate) want: Flags,
    /// It is in the scope of who asks.
    pub(crate) sure: bool,
}

/// A rival that does not lose.
pub(crate) struct Winner {
    pub(crate) slot: Slot,
    pub(crate) side: Side,
    pub(crate) id: TxnId,
    /// It would lose, if it waited for something that is not seen here.
    pub(crate) defers: bool,
}

/// The holds with which an access to an object needs no second look.
pub(crate) fn covering(o: ObjectRef<'_>, want: Flags) -> Flags {
    match want {
        Flags::WRITE => Flags::WRITE,
        // Whoever added names to a directory has not listed it by that.
        Flags::READ | Flags::SOFT if matches!(o, ObjectRef::List(_)) => Flags::READ,
        // What one wrote oneself is read back from one's own copy.
        Flags::READ | Flags::SOFT => Flags::READ.and(Flags::WRITE),
        _ => Flags::NONE,
    }
}

fn overlap(a: ObjectRef<'_>, b: ObjectRef<'_>) -> bool {
    match (a, b) {
        (
            ObjectRef::Pages { oid: x, first: a, last: b },
            ObjectRef::Pages { oid: y, first: c, last: d },
        ) => x == y && a <= d && c <= b,
        _ => a == b,
    }
}

impl Units {
    /// As whom a transaction contends: a member of a group as the first member that is active, but
    /// for its number.
    pub(crate) fn contender(&self, slot: Slot) -> Contender {
        let txn = self.txn(slot);
        let Some(Seated { group, number, .. }) = txn.place else {
            return txn.contends();
        };
        let members = self.orders.group(group).members.range(..=number);
        let mut before = members
            .filter_map(|(_, id)| Some(self.txn(self.find(*id)?)))
            .filter(|txn| txn.phase == Phase::Active)
            .peekable();
        let first = before.peek().map_or_else(|| txn.contends(), |txn| txn.contends());
        let place = Some(Place { group, number });
        // It cannot commit before them.
        let asleep = before.any(|txn| txn.contender.asleep);
        Contender { id: txn.contender.id, place, asleep, ..first }
    }

    /// Whether an access, or a hold, is within the scope of its transaction.
    pub(crate) fn in_scope(&self, slot: Slot, o: ObjectRef<'_>, write: bool) -> bool {
        let contender = &self.txn(slot).contender;
        contender.scoped && self.scopes.covers(contender.id, o, write)
    }

    /// In whose scope an object is that a transaction goes for, so that it loses, and whether that
    /// one declared to write it; `sure`: it is in its own as well.
    pub(crate) fn claimed(
        &self,
        slot: Slot,
        (o, want, sure): (ObjectRef<'_>, Flags, bool),
    ) -> Option<(TxnId, bool)> {
        let (family, mine) = (self.txn(slot).family, side(want));
        let guest = self.txn(slot).contender.guest;
        // One that has its turn may be about to begin.
        let other = |id: TxnId| self.find(id).is_none_or(|at| self.txn(at).family != family);
        let mut claimants = self.scopes.claimants(o, mine == Side::Write, (guest, sure));
        claimants.find(|(id, _)| other(*id))
    }

    /// How an object is to be held for an access; `sure`: it is in the scope of the transaction.
    pub(crate) fn wants(&self, slot: Slot, intent: Intent, sure: bool) -> Flags {
        let me = self.txn(slot);
        match intent {
            Intent::Write if me.read_only => Flags::NONE,
            Intent::Write => Flags::WRITE,
            Intent::Depend if !me.read_only => Flags::READ,
            // What is in its scope is its own.
            Intent::Depend | Intent::Read if me.soft && !sure => Flags::SOFT,
            Intent::Depend | Intent::Read => Flags::READ,
        }
    }

    /// Collects the active transactions that are in the way, and what they did; or returns the
    /// decided one that has to be waited for.
    pub(crate) fn rivals(&self, ask: &Ask<'_>, rivals: &mut Vec<(Slot, Side)>) -> Option<TxnId> {
        let family = self.txn(ask.slot).family;
        let in_the_way = match ask.want {
            Flags::WRITE => Flags::READ.and(Flags::WRITE),
            Flags::READ => Flags::WRITE,
            _ => Flags::NONE,
        };
        let mut winner = None;
        self.table.holders(ask.o, ask.place, ask.write, |other, flags| {
            if other == ask.slot {
                return true;
            }
            let txn = self.txn(other);
            if txn.phase.decided() && flags.any(Flags::WRITE) {
                winner = Some(txn.contender.id);
            } else if txn.phase == Phase::Active && txn.family != family && flags.any(in_the_way) {
                rivals.push((other, side(flags)));
            }
            winner.is_none()
        });
        winner
    }

    /// First committer wins: whoever read a version that is no longer the last may not write the
    /// object, nor rely on it.
    pub(crate) fn built_on_stale(&self, ask: &Ask<'_>) -> Option<Conflict> {
        let txn = self.txn(ask.slot);
        let builds = ask.want.any(Flags::READ.and(Flags::WRITE));
        if !builds
            || txn.stale.is_empty()
            || !self.table.holds_any(ask.slot, Flags::STALE, ask.o, ask.place)
        {
            return None;
        }
        let by = txn.stale.iter().find(|(stale, _)| overlap(stale.as_ref(), ask.o));
        Some(Conflict {
            object: ask.o.to_object(),
            opponent: by.map_or(Opponent::Outside, |(_, by)| *by),
            mine: side(ask.want),
            theirs: Side::Write,
        })
    }

    /// The first of these rivals to whom the challenger loses.  Each is asked for its urgency once.
    pub(crate) fn stronger(
        &self,
        ask: &Ask<'_>,
        me: &Contender,
        rivals: &[(Slot, Side)],
        policy: &dyn ContentionPolicy,
    ) -> Option<Winner> {
        let mut asked: Vec<(Slot, Contender)> = Vec::new();
        rivals.iter().find_map(|(slot, side)| {
            let known = asked.iter().find(|(of, _)| of == slot).map(|(_, known)| *known);
            let other = known.unwrap_or_else(|| self.contender(*slot));
            if known.is_none() {
                asked.push((*slot, other));
            }
            // A scope is no matter between a guest and who is none.
            let outranks = other.outranks(me);
            let owns = self.in_scope(*slot, ask.o, *side == Side::Write);
            let lost = owns && !me.outranks(&other);
            let wins = ask.sure && !outranks || !lost && policy.challenger_wins(me, &other);
            // In its scope it does not defer, nor to a guest.
            let defers = !owns && !outranks;
            (!wins).then_some(Winner { slot: *slot, side: *side, id: other.id, defers })
        })
    }

    /// A rival that would win, if it would defer, nobody has looked at it yet, and it can be looked
    /// at.
    pub(crate) fn not_looked_at(&self, rival: &Winner, looked: &[TxnId]) -> Option<Stronger> {
        if !rival.defers || looked.contains(&rival.id) {
            return None;
        }
        let look = self.txn(rival.slot).look.clone()?;
        Some(Stronger { id: rival.id, look })
    }

    /// The first of these rivals that the challenger waits for, whoever would win.
    pub(crate) fn locked_by(
        &self,
        slot: Slot,
        rivals: &[(Slot, Side)],
        policy: &dyn ContentionPolicy,
    ) -> Option<Winner> {
        // In an order the numbers say who waits.
        let contends = |slot: Slot| Some(self.txn(slot)).filter(|txn| txn.place.is_none());
        let me = contends(slot)?;
        rivals.iter().copied().find_map(|(slot, side)| {
            let other = contends(slot)?.contender;
            let winner = Winner { slot, side, id: other.id, defers: true };
            policy.waits(&me.contender, &other).then_some(winner)
        })
    }

    /// Somebody who runs and has what one that has not begun lost over, to whom that would lose
    /// again; and how to find out whether it sleeps.
    pub(crate) fn stronger_holder(
        &self,
        me: &Contender,
        lost: &[Conflict],
        policy: &dyn ContentionPolicy,
    ) -> Option<(TxnId, Option<Look>)> {
        lost.iter().find_map(|Conflict { object, mine, .. }| {
            let (o, write) = (object.as_ref(), *mine == Side::Write);
            let in_the_way = if write { Flags::READ.and(Flags::WRITE) } else { Flags::WRITE };
            let mut found = None;
            self.table.holders(o, self.table.locate(o, write), write, |slot, flags| {
                let txn = self.txn(slot);
                let decided = txn.phase.decided() && flags.any(Flags::WRITE);
                let runs = txn.phase == Phase::Active && flags.any(in_the_way);
                let wins = || !policy.challenger_wins(me, &self.contender(slot));
                if decided || runs && wins() {
                    let look = txn.look.clone().filter(|_| runs);
                    found = Some((txn.contender.id, look));
                }
                found.is_none()
            });
            found
        })
    }
}
