//! What has become of the attempts of runs (`systx run --retries`), for `systx top`.  A run that
//! has lost tries again with another transaction, so no transaction can tell of the ones before.
//!
//! A run is known by its client, which has one attempt at a time and ends with the last one.

use crate::averages::average;
use crate::processes::is_alive;
use crate::protocol::{Conflict, HostPath, Outcome, RunActivity};
use crate::transaction::Transaction;
use crate::volume::Location;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use systx_base::sync::{Mutex, rank};
use systx_base::{Time, TxnId};

/// Those that have lost and are not over, by the process of their client.
pub(crate) struct Runs(Mutex<HashMap<u32, Run>>);

struct Run {
    argv: Vec<HostPath>,
    /// The volume on which it began.
    volume: Location,
    lost: u64,
    /// How long the attempts took that lost.
    wasted: Duration,
    size: u64,
    waited_us: u64,
    over: Conflict,
    now: Now,
}

enum Now {
    /// The last attempt was over then.
    Waits(Instant),
    Tries(TxnId),
}

impl Runs {
    pub(crate) fn new() -> Runs {
        Runs(Mutex::new(rank::LEAF, HashMap::new()))
    }

    /// A client begins an attempt, after so many that have lost.
    pub(crate) fn begins(&self, client: u32, losses: u32, id: TxnId) {
        let mut runs = self.0.lock();
        if losses == 0 {
            // Of a client that had this number before.
            runs.remove(&client);
        } else if let Some(run) = runs.get_mut(&client) {
            if let Now::Waits(since) = run.now {
                average(&mut run.waited_us, micros(since.elapsed()));
            }
            run.now = Now::Tries(id);
        }
    }

    /// An attempt has ended that had touched so many objects.
    pub(crate) fn ends(&self, txn: &Transaction, size: u64, outcome: &Outcome) {
        let client = txn.terms.whose.client;
        // Before the lock: a store's clock may have one of its own.
        let took = since(txn.begun, txn.volume.vol.tree.now());
        let mut runs = self.0.lock();
        match outcome {
            Outcome::Conflict { conflict, .. } => {
                runs.retain(|client, _| is_alive(*client));
                let run = runs.entry(client).or_insert_with(|| Run::of(txn, conflict));
                run.lost += 1;
                run.wasted += took;
                average(&mut run.size, size);
                run.over = conflict.clone();
                run.now = Now::Waits(Instant::now());
            }
            // Somebody has the file or the store in use: it may try again.
            Outcome::Refused { .. } => {
                if let Some(run) = runs.get_mut(&client) {
                    run.now = Now::Waits(Instant::now());
                }
            }
            _ => drop(runs.remove(&client)),
        }
    }

    /// Those of a volume, the ones that lost most first.
    pub(crate) fn of(&self, volume: &Location) -> Vec<RunActivity> {
        let mut runs = self.0.lock();
        runs.retain(|client, _| is_alive(*client));
        let here = runs.iter().filter(|(_, run)| run.volume == *volume);
        let mut all: Vec<_> = here.map(|(client, run)| run.activity(*client)).collect();
        all.sort_by_key(|run| (std::cmp::Reverse(run.lost), run.pid));
        all
    }
}

impl Run {
    fn of(txn: &Transaction, over: &Conflict) -> Run {
        Run {
            argv: txn.terms.argv.clone(),
            volume: txn.volume.location.clone(),
            lost: 0,
            wasted: Duration::ZERO,
            size: 0,
            waited_us: 0,
            over: over.clone(),
            now: Now::Waits(Instant::now()),
        }
    }

    fn activity(&self, pid: u32) -> RunActivity {
        RunActivity {
            pid,
            argv: self.argv.clone(),
            lost: self.lost,
            lost_us: micros(self.wasted),
            size: self.size,
            waited_us: self.waited_us,
            tries: match self.now {
                Now::Tries(id) => Some(id),
                Now::Waits(_) => None,
            },
            over: self.over.clone(),
        }
    }
}

/// How many objects an open transaction has touched.
pub(crate) fn size_of(txn: &Transaction) -> u64 {
    let workset = |part: &Transaction| part.volume.vol.engine.workset(part.id).unwrap_or_default();
    txn.parts().map(workset).map(|w| w.reads + w.writes).sum()
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}

/// From one moment to another one; nothing if the clock was set back.
fn since(then: Time, now: Time) -> Duration {
    let at = |time: Time| {
        Duration::new(u64::try_from(time.secs).unwrap_or(0), time.nanos.min(999_999_999))
    };
    at(now).saturating_sub(at(then))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_has_wasted_nothing() {
        let at = |secs, nanos| Time { secs, nanos };
        assert_eq!(since(at(5, 999_999_999), at(6, 0)), Duration::from_nanos(1));
        assert_eq!(since(at(6, 0), at(5, 0)), Duration::ZERO);
    }
}
