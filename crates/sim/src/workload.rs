//! Bounded workloads after ACE (OSDI'18): every short sequence of calls over two directories with
//! two files each, and seeded random long ones.

use crate::crash::Rng;
use crate::model::{Draft, Illegal, Model, Op};
use std::io::Result;
use systx_base::Time;
use systx_store::io::Io;

/// Builds the tree that every workload begins with: `A/a` (three pages, an attribute), `B/b` (a few
/// bytes) with a second name `B/l`, and nothing else; durable.
pub fn base(io: &dyn Io) -> Result<()> {
    let root = io.root();
    let mut files = Vec::new();
    for (dir, name, len, byte) in [(b"A", b"a", 9000, 0x11u8), (b"B", b"b", 100, 0x22)] {
        io.mkdir(&root, dir, 0o755)?;
        let at = io.open_dir(&root, dir)?;
        let file = io.create_file(&at, name, 0o644)?;
        io.write_at(&file, &vec![byte; len], 0)?;
        let old = Time { secs: 500_000, nanos: 1 };
        io.set_times(&at, name, Some(old), Some(old))?;
        files.push(at);
    }
    io.set_xattr(&files[0], b"a", b"user.k", b"old")?;
    io.link(&files[1], b"b", &files[1], b"l")?;
    io.sync_fs()
}

/// The calls of the bounded workloads, each on its own legal on [`base`] or after another.
pub const CALLS: &[Op] = &[
    Op::Create("A/b", 100),
    Op::Create("B/a", 20_000),
    Op::Create("C/a", 5000),
    Op::Mkdir("C"),
    Op::Mkdir("A/d"),
    Op::Symlink("A/b", "../B/b"),
    Op::Fifo("B/a"),
    Op::Link("A/a", "B/a"),
    Op::Link("A/a", "A/b"),
    Op::Link("B/b", "C/a"),
    Op::Rename("A/a", "A/b"),
    Op::Rename("A/a", "B/a"),
    Op::Rename("A/a", "B/b"),
    Op::Rename("B/b", "A/a"),
    Op::Rename("A/b", "A/a"),
    Op::Rename("A/a", "C/a"),
    Op::Rename("A", "C"),
    Op::Rename("A", "B/a"),
    Op::Rename("B", "A/d"),
    Op::Exchange("A/a", "B/b"),
    Op::Exchange("A", "B"),
    Op::Unlink("A/a"),
    Op::Unlink("B/b"),
    Op::Unlink("B/l"),
    Op::Unlink("A/b"),
    Op::Rmdir("A"),
    Op::Rmdir("C"),
    Op::Rmdir("A/d"),
    Op::Write("A/a", 10, 50),
    Op::Write("A/a", 4000, 6000),
    Op::Write("B/b", 60, 100),
    Op::Write("B/b", 9000, 10),
    Op::Rewrite("A/a", 200),
    Op::Rewrite("A/a", 20_000),
    Op::Rewrite("B/b", 50),
    Op::Truncate("A/a", 5000),
    Op::Truncate("A/a", 12_000),
    Op::Truncate("B/b", 0),
    Op::SetXattr("A/a", "user.k", 20),
    Op::SetXattr("B", "user.n", 3),
    Op::RemoveXattr("A/a", "user.k"),
    Op::Chmod("A/a", 0o4755),
    Op::Chmod("B", 0o700),
    Op::Chown("A/a", 7),
    Op::Utimens("B/b", 77),
];

/// What a transaction does.
pub type Txn = Vec<Op>;

/// Transactions one after the other.
pub type Workload = Vec<Txn>;

/// A workload's transactions, drawn up one on the other.
pub fn drafts(base: &Model, workload: &[Txn]) -> std::result::Result<Vec<Draft>, Illegal> {
    let mut at = base.clone();
    let mut list = Vec::new();
    for (n, txn) in workload.iter().enumerate() {
        let mut draft = Draft::new(&at, n as u32 * 50);
        for op in txn {
            draft.run(op)?;
        }
        at = draft.after().clone();
        list.push(draft);
    }
    Ok(list)
}

/// Every legal workload of exactly `len` calls, as one transaction and, if there are two calls or
/// more, also as two.
pub fn bounded(base: &Model, len: usize) -> Vec<Workload> {
    let mut sequences: Vec<Txn> = vec![Vec::new()];
    for _ in 0..len {
        sequences = sequences.iter().flat_map(|s| extended(base, s)).collect();
    }
    sequences
        .into_iter()
        .flat_map(|s| {
            let split = (len > 1).then(|| vec![s[..len - 1].to_vec(), s[len - 1..].to_vec()]);
            [Some(vec![s]), split].into_iter().flatten()
        })
        .collect()
}

fn extended(base: &Model, sequence: &Txn) -> Vec<Txn> {
    let mut draft = Draft::new(base, 0);
    if sequence.iter().any(|op| draft.run(op).is_err()) {
        return Vec::new();
    }
    let legal = |op: &&Op| draft.clone().run(op).is_ok();
    CALLS
        .iter()
        .filter(legal)
        .map(|op| [&sequence[..], std::slice::from_ref(op)].concat())
        .collect()
}

/// A random workload of `txns` transactions of up to `calls` calls each, all legal.
pub fn random(base: &Model, txns: usize, calls: usize, seed: u64) -> Workload {
    let mut rng = Rng::new(seed);
    let mut at = base.clone();
    let mut workload = Vec::new();
    for n in 0..txns {
        let mut draft = Draft::new(&at, n as u32 * 50);
        let mut txn = Vec::new();
        let wanted = 1 + rng.below(calls);
        // Some states allow few of the calls: a bounded number of tries.
        for _ in 0..wanted * 20 {
            let op = &CALLS[rng.below(CALLS.len())];
            let mut longer = draft.clone();
            if txn.len() < wanted && longer.run(op).is_ok() {
                draft = longer;
                txn.push(op.clone());
            }
        }
        if txn.is_empty() {
            continue;
        }
        at = draft.after().clone();
        workload.push(txn);
    }
    workload
}
