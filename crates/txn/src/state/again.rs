//! Attempts after a loss ([`crate::again`]), in the state: who is in the way of one.

use super::State;
use crate::again::Entry;
use crate::object::Conflict;
use crate::policy::ContentionPolicy;
use crate::units::Stronger;
use systx_base::TxnId;

/// What is in the way of an attempt.
pub(crate) enum InTheWay {
    /// One in line, which wakes it.
    InLine(TxnId),
    /// One that runs.
    Runs(TxnId),
    /// The same, if it does not sleep.
    Look(Stronger),
}

impl State {
    /// Notes the next one that is in the way of an attempt; whether there is one.
    fn waits_again(&mut self, id: TxnId, policy: &dyn ContentionPolicy) -> bool {
        let line = &self.again.line;
        let Some(me) = line.get(&id) else { return false };
        let others = || line.values().filter(|e| e.contender.id != id && e.meets(me));
        let wins = |a: &Entry, b: &Entry| policy.challenger_wins(&a.contender, &b.contender);
        let stands = |winner| self.units.stands(winner);
        let waits_for_another = |e: &Entry| e.winner != me.winner && e.winner.is_some_and(stands);
        let stronger = others().filter(|e| wins(e, me) && !waits_for_another(e));
        let next = stronger.reduce(|a, b| if wins(a, b) { b } else { a });
        let in_the_way = |e: &&Entry| e.runs && !me.contender.outranks(&e.contender);
        let next = next.or_else(|| others().find(in_the_way)).map(|e| e.contender.id);
        self.again.line.entry(id).and_modify(|me| me.behind = next);
        next.is_some()
    }

    /// What is in the way of an attempt at what has `lost`.
    pub(crate) fn in_the_way(
        &mut self,
        id: TxnId,
        lost: &[Conflict],
        policy: &dyn ContentionPolicy,
        looked: &[TxnId],
    ) -> Option<InTheWay> {
        let found = if self.waits_again(id, policy) {
            self.again.line.get(&id).and_then(|me| me.behind).map(InTheWay::InLine)
        } else {
            let me = self.again.line.get(&id)?;
            let winner = me.winner.filter(|winner| self.units.stands(*winner)).map(InTheWay::Runs);
            let has = || self.units.stronger_holder(&me.contender, lost, policy);
            winner.or_else(|| {
                Some(match has()? {
                    (id, Some(look)) if !looked.contains(&id) => {
                        InTheWay::Look(Stronger { id, look })
                    }
                    (id, _) => InTheWay::Runs(id),
                })
            })
        };
        let waits_for = match &found {
            Some(InTheWay::InLine(id) | InTheWay::Runs(id)) => Some(*id),
            Some(InTheWay::Look(_)) | None => None,
        };
        self.again.line.entry(id).and_modify(|me| me.waits_for = waits_for);
        found
    }
}
