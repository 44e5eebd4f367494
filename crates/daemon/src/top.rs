//! What goes on, for `systx top`: counted per volume as it happens, worksets asked of the engine.

use crate::hall::Hall;
use crate::members::process_of;
use crate::protocol::{
    Activity, Before, Behind, GuardedActivity, HostPath, InLine, Remembered, Sides, VolumeActivity,
    WorksetSizes,
};
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use crate::volume::OpenVolume;
use std::sync::Arc;
use systx_base::TxnId;
use systx_txn::{Census, Stats};

/// Of every volume that the daemon knows, by its path.
pub(crate) fn activity(table: &Transactions) -> Vec<VolumeActivity> {
    let (volumes, mut open) = table.everything();
    open.sort_by_key(|t| (t.begun, t.id));
    let of_open = volumes.iter().map(|volume| of_volume(table, volume, &open));
    let closed = table.volumes.closed().into_iter();
    let of_closed = closed.map(|(location, memory)| VolumeActivity {
        runs: table.runs.of(&location),
        volume: HostPath::from(location.mount),
        open: false,
        stopped: None,
        counts: memory.counts.since_the_first(&Stats::default()),
        guarded: Vec::new(),
        transactions: Vec::new(),
        line: Vec::new(),
        remembered: Remembered::default(),
    });
    // What nothing has worked on was looked at by the way.
    let worked_on = of_closed.filter(|volume| volume.counts.begun > 0);
    let mut all: Vec<_> = of_open.chain(worked_on).collect();
    all.sort_by(|a, b| a.volume.cmp(&b.volume));
    all
}

fn of_volume(
    table: &Transactions,
    volume: &Arc<OpenVolume>,
    open: &[Arc<Transaction>],
) -> VolumeActivity {
    let stats = volume.vol.engine.stats();
    let waits = volume.vol.waits();
    let here = open.iter().filter(|t| t.works_on(volume));
    VolumeActivity {
        volume: HostPath::from(volume.location.mount.as_path()),
        open: true,
        stopped: volume.stopped(),
        counts: volume.counts().since_the_first(&stats),
        guarded: guarded_of(volume),
        runs: table.runs.of(&volume.location),
        transactions: here.map(|txn| of_transaction(table, txn, &waits)).collect(),
        line: line_of(volume),
        remembered: remembered_of(volume),
    }
}

fn of_transaction(table: &Transactions, txn: &Transaction, waits: &[(TxnId, TxnId)]) -> Activity {
    Activity {
        id: txn.id,
        state: txn.state(),
        argv: txn.terms.argv.clone(),
        begun: txn.begun,
        isolation: txn.terms.isolation,
        read_only: txn.terms.read_only,
        workset: sizes(&txn.volume.vol.engine.census(txn.id)),
        waits_for: waits.iter().find(|(who, _)| *who == txn.id).map(|(_, whom)| *whom),
        conflict: txn.conflict(table),
    }
}

fn guarded_of(volume: &OpenVolume) -> Vec<GuardedActivity> {
    let of = |hall: Arc<Hall>| {
        let (seats, members) = hall.aliases.size();
        GuardedActivity {
            dir: HostPath::from(hall.dir.as_path()),
            stall_ms: hall.conflicts.stall_ms(),
            nodes: hall.aliases.known() as u64,
            seats: seats as u64,
            members: members as u64,
            threads: hall.threads(&volume.vol.engine),
        }
    };
    volume.halls().into_iter().map(of).collect()
}

fn remembered_of(volume: &OpenVolume) -> Remembered {
    let (stats, past) = (volume.vol.engine.stats(), volume.vol.past.size());
    Remembered {
        inodes: stats.inodes,
        names: stats.entries,
        snapshots: past.snapshots as u64,
        past: past.items as u64,
    }
}

/// Who waits to begin with a scope.
fn line_of(volume: &OpenVolume) -> Vec<InLine> {
    let line = volume.vol.engine.in_line();
    let ids: Vec<_> = line.iter().map(|w| w.id).collect();
    if ids.is_empty() {
        return Vec::new();
    }
    let told: Vec<_> = volume.halls().iter().flat_map(|hall| hall.waiting(&ids)).collect();
    let position = |id: TxnId| ids.iter().position(|other| *other == id).map(|at| at as u64 + 1);
    let shown = |waits: &systx_txn::InLine| {
        // Who is not here has left meanwhile.
        let (waiting, argv) = told.iter().find(|(waiting, _)| waiting.id == waits.id)?;
        let behind = waits.ahead.as_ref().and_then(|ahead| {
            let path = HostPath(waiting.path(&volume.vol, &ahead.part));
            let by = match ahead.runs {
                true => Before::Transaction(ahead.by),
                false => Before::Position(position(ahead.by)?),
            };
            Some(Behind { path, by })
        });
        Some(InLine {
            position: position(waits.id)?,
            pid: process_of(waits.client)?,
            tid: waits.client,
            argv: argv.clone(),
            since: waiting.since,
            behind,
        })
    };
    line.iter().filter_map(shown).collect()
}

fn sizes(census: &Census) -> WorksetSizes {
    let sides = |(read, written): (u64, u64)| Sides { read, written };
    WorksetSizes {
        entries: sides(census.entries),
        lists: sides(census.lists),
        attributes: sides(census.attributes),
        sizes: sides(census.sizes),
        pages: sides(census.pages),
    }
}
