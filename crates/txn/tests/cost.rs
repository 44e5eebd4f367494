//! What accesses cost.  The bound on memory is a promise of the design and always asserted.  Times
//! mean nothing on a shared machine; they are printed by
//! `cargo test --release -p systx-txn --test cost -- --ignored --nocapture`.

use std::time::Instant;
use systx_base::{Oid, TxnId};
use systx_txn::{Access, BeginOptions, Caller, Engine, Isolation, ObjectRef, Plain, Stall};

const FILES: u64 = 100_000;
const FILES_PER_DIR: u64 = 40;

/// A tree as a lookup of every file shows it: entry, attributes, size.
fn walk(engine: &Engine, t: TxnId, mut each: impl FnMut(u64, Oid, Oid, &[u8])) {
    for i in 0..FILES {
        let name = format!("component_{i}.c");
        let (dir, file) = (Oid(1 + i / FILES_PER_DIR), Oid(1_000_000 + i));
        each(i, dir, file, name.as_bytes());
    }
    assert!(engine.workset(t).is_some());
}

fn read_tree(engine: &Engine, t: TxnId) {
    walk(engine, t, |_, dir, file, name| {
        let all = [ObjectRef::Entry { dir, name }, ObjectRef::Attr(file), ObjectRef::Size(file)];
        assert!(all.iter().all(|o| engine.read(t, *o) == Access::Granted));
    });
}

/// Resident memory of this process in bytes; `None` where /proc is not there.
fn resident() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}

/// One test, so that nothing else of this process allocates meanwhile.
#[test]
fn a_tree_of_100_000_files_stays_small() {
    const LIMIT: usize = 25 << 20;
    let before = resident();
    let engine = Engine::new();
    let t = TxnId(1);
    engine.begin(t, BeginOptions::default());
    read_tree(&engine, t);
    assert!(engine.memory() <= LIMIT, "{} bytes", engine.memory());
    if let (Some(before), Some(after)) = (before, resident()) {
        let grown = after - before;
        println!("{} bytes by count, {grown} bytes resident", engine.memory());
        assert!(grown <= LIMIT + (4 << 20), "{grown} bytes resident");
    } else {
        println!("no /proc: resident memory not compared");
    }
    // A second reader costs its workset and a list for each object, not another table.
    let first = engine.memory();
    engine.begin(TxnId(2), BeginOptions { isolation: Isolation::Snapshot, ..Default::default() });
    read_tree(&engine, TxnId(2));
    println!("second reader: {} bytes", engine.memory() - first);
    assert!(engine.memory() <= 3 * LIMIT);
    engine.abort(TxnId(2));
    engine.abort(t);
    assert!(engine.memory() < 1 << 20, "{} bytes are left", engine.memory());
}

fn time(what: &str, count: u64, f: impl FnOnce()) {
    let start = Instant::now();
    f();
    println!("{what:40} {:7.1} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

/// No transaction open, then one that is in nobody's way.
fn plain_times(engine: &Engine) {
    const COUNT: u64 = 1_000_000;
    let by = Caller::new(1, 0, b"bench");
    let mutate = |name: &[u8]| {
        let dir = Oid(3);
        let objects = [ObjectRef::Entry { dir, name }, ObjectRef::Attr(Oid(4))];
        assert!(matches!(engine.plain_mutation(&objects, by, Stall::Bounded), Plain::Decided(_)));
    };
    let run = |what: &str, threads: u64| {
        time(&format!("plain mutation, {what}, {threads} threads"), COUNT * threads, || {
            std::thread::scope(|s| {
                for n in 0..threads {
                    s.spawn(move || (0..COUNT).for_each(|_| mutate(&[n as u8])));
                }
            });
        });
    };
    run("no transaction", 1);
    run("no transaction", 2);
    engine.begin(TxnId(1), BeginOptions::default());
    let wait_free = |what: &str| {
        time(what, COUNT, || (0..COUNT).for_each(|_| mutate(b"x")));
    };
    wait_free("plain mutation, one transaction");
    engine.abort(TxnId(1));
}

#[test]
#[ignore = "prints times"]
fn times() {
    let engine = Engine::new();
    let t = TxnId(1);
    engine.begin(t, BeginOptions::default());
    time("first read of entry, attr, size (each)", FILES * 3, || read_tree(&engine, t));
    time("repeated read (each)", FILES * 3, || read_tree(&engine, t));
    time("the loop itself (each)", FILES * 3, || walk(&engine, t, |_, _, _, _| ()));
    let hot = ObjectRef::Size(Oid(1_000_000));
    time("repeated read of one object", 1_000_000, || {
        for _ in 0..1_000_000 {
            assert_eq!(engine.read(t, hot), Access::Granted);
        }
    });
    time("first write of an entry", FILES, || {
        walk(&engine, t, |_, dir, _, name| {
            assert_eq!(engine.write(t, ObjectRef::Entry { dir, name }), Access::Granted);
        });
    });
    time("first read of pages", FILES, || {
        walk(&engine, t, |_, _, oid, _| {
            let o = ObjectRef::Pages { oid, first: 0, last: 3 };
            assert_eq!(engine.read(t, o), Access::Granted);
        });
    });
    time("sequential windows of one file", FILES, || {
        for i in 0..FILES {
            let o = ObjectRef::Pages { oid: Oid(7_000_000), first: i * 32, last: i * 32 + 31 };
            assert_eq!(engine.read(t, o), Access::Granted);
        }
    });
    time("scattered pages of one file", FILES, || {
        for i in 0..FILES {
            let first = i.wrapping_mul(0x9e37_79b9) % 1_000_000;
            let o = ObjectRef::Pages { oid: Oid(7_000_001), first, last: first };
            assert_eq!(engine.write(t, o), Access::Granted);
        }
    });
    println!("memory {:.1} MB", engine.memory() as f64 / 1e6);
    assert!(engine.decide(t).is_ok());
    time("release (each file)", FILES, || engine.installed(t));
    plain_times(&engine);
    let mut id = 2;
    time("begin, decide, installed", FILES, || {
        for _ in 0..FILES {
            engine.begin(TxnId(id), BeginOptions::default());
            assert!(engine.decide(TxnId(id)).is_ok());
            engine.installed(TxnId(id));
            id += 1;
        }
    });
}
