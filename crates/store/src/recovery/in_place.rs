//! Records that change the same files in place are installed again in their order.

use super::*;
use crate::journal::{Head, Record};
use crate::testing::*;
use crate::writeset::{Object, WriteSet};
use crate::{CommitMeta, TxnKind};
use systx_base::Time;

/// Another boot: nothing of what was installed counts as being there.
fn after_power_cut(s: &Scratch) -> (DirStore, RecoveryReport) {
    DirStore::open(rebooted(), s.io()).unwrap()
}

fn set(s: &Scratch, fill: impl FnOnce(&mut Ws<'_>)) -> WriteSet {
    let io = s.io();
    let mut ws = Ws::new(&*io);
    fill(&mut ws);
    ws.done()
}

fn run(s: &Scratch, store: &DirStore, txn: u64, fill: impl FnOnce(&mut Ws<'_>)) {
    let set = set(s, fill);
    let committed = store.commit(store.reserve(&set).unwrap(), set, meta(txn)).unwrap();
    assert_eq!(store.apply(committed.lsn).unwrap().outside, []);
}

fn text(n: u64) -> String {
    "x".repeat(n as usize % 7) + &n.to_string()
}

/// Small rewrites in place, longer and shorter, and changes of attributes between them.
fn history(s: &Scratch, store: &DirStore, txns: std::ops::RangeInclusive<u64>) {
    for n in txns {
        let text = text(n);
        run(s, store, n, |ws| match n % 4 {
            3 => {
                let f = ws.host("f");
                ws.obj(f).attrs.mode = Some(0o600 | (n as u32 % 8));
            }
            _ => ws.patch("f", text.len() as u64, 0, &[(0, text.as_bytes())]),
        });
    }
}

#[test]
fn one_file_changed_in_place_again_and_again_needs_no_checkpoint_between() {
    let s = Scratch::new();
    s.write("f", "old");
    let store = s.store();
    history(&s, &store, 1..=6);
    assert_eq!(store.uncheckpointed().len(), 6);
    // Whoever does more to it meets all of them.
    run(&s, &store, 7, |ws| ws.rename("f", "g"));
    assert_eq!(store.uncheckpointed().len(), 1);
    drop(store);
    let (_, report) = after_power_cut(&s);
    assert_eq!((report.finished.len(), report.outside), (1, vec![]));
    assert_eq!(s.read("g"), text(6).as_bytes());
}

#[test]
fn whatever_of_it_has_reached_the_disk_the_last_one_counts_and_each_can_be_undone() {
    // What the file holds when power comes back: the state after any of them.
    for reached in 0..=6u64 {
        let s = Scratch::new();
        s.write("f", "old");
        let store = s.store();
        history(&s, &store, 1..=6);
        drop(store);
        let there = match reached {
            0 => "old".to_owned(),
            n => text(if n % 4 == 3 { n - 1 } else { n }),
        };
        std::fs::write(s.path("f"), &there).unwrap();
        let (store, report) = after_power_cut(&s);
        assert_eq!((report.finished.len(), report.outside), (6, vec![]), "{there}");
        assert_eq!(s.read("f"), text(6).as_bytes());
        for (undone, left) in [(6, 5), (5, 4), (4, 2), (3, 2), (2, 1)] {
            let undo = store.undo_set(TxnId(undone)).unwrap();
            let meta =
                CommitMeta { kind: TxnKind::Undo { of: TxnId(undone) }, ..meta(20 - undone) };
            let room = store.reserve(&undo.set).unwrap();
            let committed = store.commit(room, undo.set, meta).unwrap();
            drop(undo.slots);
            store.apply(committed.lsn).unwrap();
            assert_eq!(s.read("f"), text(left).as_bytes(), "{there}, {undone} undone");
        }
    }
}

#[test]
fn what_an_outsider_wrote_after_the_last_one_is_kept() {
    for outside in ["strange", "some more than anybody had in this file"] {
        let s = Scratch::new();
        s.write("f", "old");
        let store = s.store();
        history(&s, &store, 1..=2);
        drop(store);
        std::fs::write(s.path("f"), outside).unwrap();
        let (_, report) = after_power_cut(&s);
        assert_eq!(s.read("f"), text(2).as_bytes());
        let [met] = &report.outside[..] else { panic!("{report:?}") };
        let kept = String::from_utf8(met.kept_as.clone().unwrap()).unwrap();
        assert_eq!(s.read(&kept), outside.as_bytes());
    }
}

/// The first record of a chain says nothing of the bytes: who changes them first looks.
#[test]
fn what_an_outsider_wrote_is_kept_though_attributes_were_changed_first() {
    let s = Scratch::new();
    s.write("f", "old");
    let store = s.store();
    history(&s, &store, 3..=6);
    drop(store);
    std::fs::write(s.path("f"), "strange").unwrap();
    let (_, report) = after_power_cut(&s);
    assert_eq!((s.read("f"), report.finished.len()), (text(6).into_bytes(), 4));
    let [met] = &report.outside[..] else { panic!("{report:?}") };
    let kept = String::from_utf8(met.kept_as.clone().unwrap()).unwrap();
    assert_eq!(s.read(&kept), b"strange");
}

/// Cut off and made longer again, in pieces: what the last one left, from whatever is found.
#[test]
fn several_lengths_come_to_the_last_one() {
    let found: [Option<Vec<u8>>; 3] = [Some(vec![b'o'; 3000]), Some(vec![b'o'; 200]), None];
    for found in found {
        let s = Scratch::new();
        s.write("f", [b'o'; 3000]);
        let store = s.store();
        run(&s, &store, 1, |ws| ws.patch("f", 3500, 3000, &[(100, b"one"), (3400, &[b'1'; 100])]));
        run(&s, &store, 2, |ws| ws.patch("f", 200, 200, &[(150, b"two")]));
        run(&s, &store, 3, |ws| ws.patch("f", 2500, 200, &[(10, b"3rd"), (2000, &[b'3'; 300])]));
        assert_eq!(store.uncheckpointed().len(), 3);
        drop(store);
        let after = s.read("f");
        if let Some(found) = found {
            std::fs::write(s.path("f"), found).unwrap();
        }
        let (_, report) = after_power_cut(&s);
        assert_eq!((report.finished.len(), report.outside), (3, vec![]));
        assert_eq!(s.read("f"), after);
    }
}

#[test]
fn a_tail_that_somebody_appended_is_not_cut_off_unseen() {
    let s = Scratch::new();
    s.write("f", "old");
    let store = s.store();
    run(&s, &store, 1, |ws| ws.patch("f", 3, 3, &[(0, b"new")]));
    drop(store);
    std::fs::write(s.path("f"), "new and appended").unwrap();
    let (_, report) = after_power_cut(&s);
    assert_eq!(report.outside.len(), 1, "{report:?}");
    let kept = String::from_utf8(report.outside[0].kept_as.clone().unwrap()).unwrap();
    assert_eq!(s.read(&kept), b"new and appended");
}

#[test]
fn what_somebody_wrote_between_two_of_them_is_not_undone() {
    let s = Scratch::new();
    s.write("f", "old");
    let store = s.store();
    run(&s, &store, 1, |ws| ws.patch("f", 3, 3, &[(0, b"new")]));
    std::fs::write(s.path("f"), "between, and longer").unwrap();
    run(&s, &store, 2, |ws| ws.patch("f", 19, 19, &[(0, b"B")]));
    assert_eq!(store.uncheckpointed(), [TxnId(2)]);
    run(&s, &store, 3, |ws| ws.patch("f", 20, 19, &[(19, b"!")]));
    assert_eq!(store.uncheckpointed(), [TxnId(2), TxnId(3)]);
    drop(store);
    let (_, report) = after_power_cut(&s);
    assert_eq!(report.outside, []);
    assert_eq!(s.read("f"), b"Between, and longer!");
}

/// What is looked at for a record is what that record has in common with others, however many files
/// they all have.
#[test]
fn a_record_costs_by_its_own_files() {
    const RECORDS: usize = 2000;
    const FILES: usize = 500;
    let s = Scratch::new();
    s.write("f", "old");
    for n in 0..FILES {
        s.write(&format!("f{n}"), "old");
    }
    let pending = |n: usize| {
        let set = set(&s, |ws| {
            ws.patch("f", 3, 3, &[(0, b"new")]);
            ws.patch(&format!("f{}", n % FILES), 3, 3, &[(0, b"new")]);
        });
        let commit = Commit {
            meta: meta(n as u64 + 1),
            set,
            befores: Vec::new(),
            slots: Vec::new(),
            joint: None,
        };
        let lsn = n as u64 + 1;
        Pending { record: Record { lsn, after: Head::default(), side: None, body: vec![] }, commit }
    };
    let mut pending: Vec<Pending> = (0..RECORDS).map(pending).collect();
    let mut chains = Chains::new(&pending, |p| p.record.lsn != 1);
    assert_eq!(chains.of(0), []);
    let looked_at: usize = (0..RECORDS).map(|n| chains.of(n).len()).sum();
    assert_eq!(looked_at, 2 * (RECORDS - 1));
    // Each meets what the one before it has left; one after which the file has no place leaves
    // nothing.
    let mut left = None;
    for n in 1..RECORDS {
        chains.carry_forward(n, &mut pending);
        let objects = &pending[n].commit.set.objects;
        let stamp = |object: &Object| match &object.origin {
            Origin::Host { stamp, .. } => Some(*stamp),
            _ => None,
        };
        let common = chains.of(1).iter().find(|(_, id)| chains.files[id].records.len() > 4);
        let (_, common) = common.unwrap();
        let met: Vec<_> = objects.iter().map(stamp).collect();
        let met_common = met.iter().flatten().find(|stamp| stamp.id == *common).copied().unwrap();
        assert!(left.is_none_or(|left| left == met_common), "{n}");
        let changed = |stamp: Option<Stamp>| {
            stamp.map(|stamp| Stamp { ctime: Time { secs: n as i64, nanos: 7 }, ..stamp })
        };
        let mut now: Vec<_> = met.into_iter().map(changed).collect();
        if n % 3 == 0 {
            now.iter_mut().for_each(|stamp| *stamp = None);
        } else {
            left = changed(Some(met_common));
        }
        chains.installed(n, &now);
    }
}

/// A mailbox: messages get other names in `d`, and its time is set each time.
fn mark(s: &Scratch, store: &DirStore, txn: u64, time: i64) {
    run(s, store, txn, |ws| {
        ws.rename(&format!("d/m{txn}"), &format!("d/m{txn}-seen"));
        let d = ws.host("d");
        ws.obj(d).attrs.mtime = Some(Time { secs: time, nanos: 5 });
    });
}

fn time_of(s: &Scratch, dir: &str) -> i64 {
    std::os::unix::fs::MetadataExt::mtime(&std::fs::metadata(s.path(dir)).unwrap())
}

fn mailbox() -> Scratch {
    let s = Scratch::new();
    std::fs::create_dir(s.path("d")).unwrap();
    (1..=6).for_each(|n| s.write(&format!("d/m{n}"), "message"));
    s
}

#[test]
fn names_that_change_in_a_directory_whose_time_is_set_need_no_checkpoint_between() {
    let s = mailbox();
    let store = s.store();
    (1..=6).for_each(|n| mark(&s, &store, n, 1000 + n as i64));
    assert_eq!(store.uncheckpointed().len(), 6);
    drop(store);
    // What reached the disk of it: nothing of the first, the time of the second.
    std::fs::rename(s.path("d/m1-seen"), s.path("d/m1")).unwrap();
    let times = std::fs::FileTimes::new();
    let second = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1002);
    std::fs::File::open(s.path("d")).unwrap().set_times(times.set_modified(second)).unwrap();
    let (_, report) = after_power_cut(&s);
    assert_eq!((report.finished.len(), report.outside), (6, vec![]));
    assert_eq!(time_of(&s, "d"), 1006);
    (1..=6).for_each(|n| assert_eq!(s.read(&format!("d/m{n}-seen")), b"message"));
}

/// Else a power cut would take back the time at which the names have changed, and who goes by it
/// would not look for them.
#[test]
fn names_that_change_without_a_time_wait_for_a_checkpoint_of_one_that_was_set() {
    let s = mailbox();
    let store = s.store();
    (1..=2).for_each(|n| mark(&s, &store, n, 1000 + n as i64));
    run(&s, &store, 3, |ws| {
        ws.create("d/new", "message");
    });
    assert_eq!(store.uncheckpointed().len(), 1);
    // Before one that sets it they do not.
    mark(&s, &store, 4, 1004);
    assert_eq!(store.uncheckpointed().len(), 2);
    drop(store);
    after_power_cut(&s);
    assert_eq!(time_of(&s, "d"), 1004);
}

#[test]
fn a_directory_that_somebody_else_has_changed_meanwhile_is_checkpointed_first() {
    let s = mailbox();
    let store = s.store();
    mark(&s, &store, 1, 1001);
    s.write("d/delivered", "message");
    mark(&s, &store, 2, 1002);
    assert_eq!(store.uncheckpointed().len(), 1);
}
