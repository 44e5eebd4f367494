use super::*;
use crate::dir_store::tests::{everything, populate, pretty};
use crate::testing::*;
use crate::writeset::WriteSet;
use crate::{CommitError, Outside};

const CLASSES: [Class; 3] = [Class::Memory, Class::Strong, Class::Weak];

fn large(s: &Scratch) {
    populate(s);
    s.write("huge", vec![b'H'; 400_000]);
}

/// A transaction with all kinds of changes, a slot that becomes a file, and data in another slot.
fn script(store: &DirStore, io: &dyn Io) -> Result<(WriteSet, Vec<crate::staging::Slot>)> {
    let mut ws = Ws::new(io);
    everything(&mut ws);
    let file = store.stage()?;
    store.ground.io.write_at(file.handle(), b"from a slot", 0)?;
    let new = ws.slot_file(file.id());
    ws.bind("slotted", Some(new));
    let data = store.stage()?;
    store.ground.io.write_at(data.handle(), &[b'D'; 9000], 0)?;
    let piece = |offset, at, len| crate::writeset::Extent {
        offset,
        data: crate::writeset::Data::Slot { slot: data.id(), at, len },
    };
    let huge = ws.host("huge");
    ws.obj(huge).content = crate::writeset::Content::Patch {
        len: 400_000,
        keep: 400_000,
        extents: vec![piece(5, 0, 9000), piece(350_000, 100, 50)],
    };
    let copied = ws.file("");
    ws.obj(copied).content =
        crate::writeset::Content::Whole { len: 20_000, extents: vec![piece(4096, 0, 9000)] };
    ws.bind("copied", Some(copied));
    Ok((ws.set, vec![file, data]))
}

/// What a process does from opening the store to the checkpoint; whether the commit was
/// acknowledged.
fn life(s: &Scratch, io: Arc<dyn Io>) -> (bool, bool) {
    let plain = s.io();
    let Ok((store, _)) = DirStore::open(config(), io) else { return (false, false) };
    let Ok((set, slots)) = script(&store, &*plain) else { return (false, false) };
    let Ok(reservation) = store.reserve(&set) else { return (false, false) };
    let Ok(committed) = store.commit(reservation, set, meta(1)) else { return (false, false) };
    drop(slots);
    let applied = store.apply(committed.lsn).is_ok();
    (true, applied && store.checkpoint().is_ok())
}

fn is_empty(s: &Scratch, below: &str) -> bool {
    std::fs::read_dir(s.path(STATE).join(below)).map_or(true, |mut d| d.next().is_none())
}

fn after_recovery(s: &Scratch, acknowledged: bool, before: &Tree, after: &Tree, what: &str) {
    let now = s.tree();
    assert!(!acknowledged || now != *before, "{what}: an acknowledged commit is lost");
    if now != *before {
        pretty(what, &now, after);
    }
    assert!(is_empty(s, "t"), "{what}: staging is not empty");
    assert!(!s.path(STATE).join("conflict").exists(), "{what}: a conflict with nobody");
}

fn trees() -> (Tree, Tree) {
    let s = Scratch::new();
    large(&s);
    let before = s.tree();
    assert_eq!(life(&s, s.io()), (true, true));
    (before, s.tree())
}

#[test]
fn a_process_that_dies_at_any_call_leaves_before_or_after() {
    let (before, after) = trees();
    for class in CLASSES {
        let mut seen = [0; 2];
        for n in 0.. {
            let s = Scratch::new();
            large(&s);
            let io = Dying::of_class(s.io(), n, class);
            let (acknowledged, finished) = life(&s, io);
            let what = format!("{class:?}, dead after {n} calls");
            let again = Dying::of_class(s.io(), u64::MAX, class);
            let (store, report) = DirStore::open(config(), again.clone()).expect(&what);
            assert_eq!(report.outside, [], "{what}");
            after_recovery(&s, acknowledged, &before, &after, &what);
            seen[usize::from(s.tree() != before)] += 1;
            drop(store);
            let (store, report) = DirStore::open(config(), again).expect(&what);
            assert_eq!(report, RecoveryReport::default(), "{what}: recovery was not complete");
            if s.tree() != before && n % 16 == 0 {
                // The history that recovery wrote serves undo.
                let undo = store.undo_set(TxnId(1)).expect(&what);
                let reservation = store.reserve(&undo.set).unwrap();
                let committed = store.commit(reservation, undo.set, meta(2)).expect(&what);
                store.apply(committed.lsn).unwrap();
                pretty(&what, &s.tree(), &before);
            }
            if finished {
                break;
            }
        }
        assert!(seen[0] > 20 && seen[1] > 50, "{class:?}: {seen:?}");
    }
}

#[test]
fn recovery_that_dies_at_any_call_can_be_repeated() {
    let (before, after) = trees();
    let total = {
        let s = Scratch::new();
        large(&s);
        let io = Dying::after(s.io(), u64::MAX);
        life(&s, io.clone());
        io.calls()
    };
    for class in CLASSES {
        for first in (0..total).step_by(37) {
            for second in (0..).step_by(11) {
                let s = Scratch::new();
                large(&s);
                let (acknowledged, _) = life(&s, Dying::of_class(s.io(), first, class));
                let died =
                    DirStore::open(config(), Dying::of_class(s.io(), second, class)).is_err();
                let what = format!("{class:?}, dead after {first}, then {second} calls");
                let again = Dying::of_class(s.io(), u64::MAX, class);
                let (_, report) = DirStore::open(config(), again).expect(&what);
                assert_eq!(report.outside, [], "{what}");
                after_recovery(&s, acknowledged, &before, &after, &what);
                if !died {
                    break;
                }
            }
        }
    }
}

#[test]
fn without_the_mark_everything_is_looked_at_again_and_nothing_changes() {
    let s = Scratch::new();
    large(&s);
    let io = Dying::of_class(s.io(), u64::MAX, Class::Strong);
    {
        let (store, _) = DirStore::open(config(), io.clone()).unwrap();
        let (set, slots) = script(&store, &*s.io()).unwrap();
        let committed = store.commit(store.reserve(&set).unwrap(), set, meta(1)).unwrap();
        drop(slots);
        store.apply(committed.lsn).unwrap();
    }
    let after = s.tree();
    // Another boot: what was not synced may be gone, so the mark counts for nothing.
    let (_, report) = DirStore::open(rebooted(), io).unwrap();
    assert_eq!(report.finished, [TxnId(1)]);
    assert_eq!(report.outside, []);
    pretty("looked at again", &s.tree(), &after);
}

/// A store that committed and died before it installed anything.
fn committed_only(s: &Scratch) {
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create("new", "ours");
    ws.rewrite("plain", "rewritten");
    ws.remove("gone");
    let set = ws.done();
    store.commit(store.reserve(&set).unwrap(), set, meta(1)).unwrap();
}

#[test]
fn what_outsiders_did_before_recovery_is_kept_and_reported() {
    let s = Scratch::new();
    populate(&s);
    committed_only(&s);
    s.write("new", "theirs");
    let (_, report) = s.open();
    assert_eq!(s.read("new"), b"ours");
    assert_eq!(s.read("plain"), b"rewritten");
    assert!(!s.path("gone").exists());
    let [change] = &report.outside[..] else { panic!("{:?}", report.outside) };
    assert_eq!((&change.path[..], &change.what), (&b"new"[..], &Outside::Appeared));
    let kept = String::from_utf8(change.kept_as.clone().unwrap()).unwrap();
    assert_eq!(s.read(&kept), b"theirs");
}

#[test]
fn a_second_daemon_is_refused() {
    let s = Scratch::new();
    let _store = s.store();
    let second = DirStore::open(config(), s.io());
    assert!(matches!(second, Err(OpenError::Locked { path }) if path == STATE));
}

#[test]
fn a_store_that_somebody_else_made_is_not_trusted() {
    let s = Scratch::new();
    populate(&s);
    committed_only(&s);
    let meta = std::fs::metadata(s.path(STATE)).unwrap();
    let owner = std::os::unix::fs::MetadataExt::uid(&meta);
    let gid = std::os::unix::fs::MetadataExt::gid(&meta);
    let open =
        |uid| DirStore::open(Config { owner: Some(crate::Owner { uid, gid }), ..config() }, s.io());
    assert!(matches!(open(owner + 1), Err(OpenError::Foreign { owner: o, .. }) if o == owner));
    assert_eq!(s.read("plain"), b"plain content");
    assert_eq!(open(owner).unwrap().1.finished, [TxnId(1)]);
}

/// Flips one bit of a file in the store.
fn flip(s: &Scratch, below: &str, at: usize) {
    let path = s.path(STATE).join(below);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn another_version_and_damage_are_told_and_nothing_is_lost() {
    let s = Scratch::new();
    populate(&s);
    committed_only(&s);
    let before = s.tree();
    let copy = std::fs::read(s.path(STATE).join("super.1")).unwrap();
    flip(&s, "super.1", 40);
    assert!(DirStore::open(Config::new("elsewhere"), s.io()).is_ok());
    flip(&s, "super.0", 40);
    let damaged = DirStore::open(config(), s.io());
    assert!(matches!(&damaged, Err(OpenError::Damaged { .. })), "{:?}", damaged.err());
    let mut other = copy.clone();
    other[8] = 9;
    let crc = crc32c::crc32c(&other[..4092]);
    other[4092..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(s.path(STATE).join("super.1"), other).unwrap();
    let version = DirStore::open(config(), s.io());
    assert!(matches!(version, Err(OpenError::Version { found: 9, known: 4, .. })));
    std::fs::remove_dir_all(s.path("elsewhere")).unwrap();
    assert_eq!(s.tree(), before);
    std::fs::write(s.path(STATE).join("super.1"), copy).unwrap();
    assert_eq!(s.open().1.finished, [TxnId(1)]);
}

#[test]
fn a_damaged_record_that_was_acknowledged_is_refused_not_cut_off() {
    let s = Scratch::new();
    populate(&s);
    {
        let store = s.store();
        let io = s.io();
        for n in 1..=3 {
            let mut ws = Ws::new(&*io);
            ws.create(&format!("n{n}"), "x");
            let set = ws.done();
            store.commit(store.reserve(&set).unwrap(), set, meta(n)).unwrap();
        }
    }
    // In the body of the second record.
    flip(&s, "j/00", 4096 + 100);
    let damaged = DirStore::open(config(), s.io()).err().unwrap().to_string();
    assert!(damaged.contains("record 2 of the journal"), "{damaged}");
    flip(&s, "j/00", 4096 + 100);
    assert_eq!(s.open().1.finished, [TxnId(1), TxnId(2), TxnId(3)]);
    // The last record, when the mark tells that it was installed.
    let store = s.store();
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create("last", "x");
    let set = ws.done();
    let committed = store.commit(store.reserve(&set).unwrap(), set, meta(4)).unwrap();
    store.apply(committed.lsn).unwrap();
    drop(store);
    flip(&s, "j/00", 3 * 4096 + 100);
    assert!(matches!(DirStore::open(config(), s.io()), Err(OpenError::Damaged { .. })));
}

#[test]
fn a_failed_journal_write_poisons_the_store() {
    let s = Scratch::new();
    populate(&s);
    let io = s.io();
    let mut ws = Ws::new(&*io);
    ws.create("new", "x");
    let set = ws.done();
    let calls = {
        let dying = Dying::after(s.io(), u64::MAX);
        let (store, _) = DirStore::open(config(), dying.clone()).unwrap();
        let committed = store.commit(store.reserve(&set).unwrap(), set.clone(), meta(1)).unwrap();
        let calls = dying.calls();
        store.apply(committed.lsn).unwrap();
        store.checkpoint().unwrap();
        calls
    };
    drop(set);
    let _ = calls;
    let mut ws = Ws::new(&*io);
    ws.create("newer", "x");
    let set = ws.done();
    let mut in_doubt = 0;
    for n in 0..60 {
        let dying = Dying::after(s.io(), n);
        let Ok((store, _)) = DirStore::open(config(), dying) else { continue };
        let Ok(reservation) = store.reserve(&set) else { continue };
        match store.commit(reservation, set.clone(), meta(2)) {
            Ok(_) => break,
            Err(CommitError::InDoubt(_)) => {
                in_doubt += 1;
                let again = store.commit(Default::default(), set.clone(), meta(3));
                assert!(matches!(again, Err(CommitError::Poisoned(_))), "{again:?}");
                assert!(store.checkpoint().is_err());
            }
            Err(_) => {}
        }
    }
    assert!(in_doubt > 0);
}
