//! What the simulated disks may and may not lose.  The crash suite rests on these.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use systx_sim::intercept::{Action, Op};
use systx_sim::{Intercept, Plan, Profile, Record, SimFs, tree};
use systx_store::io::{Io, Outsiders, Rename, Tree};

fn plan() -> Plan {
    Plan::new(500, 1)
}

/// Every tree that a power cut now may leave, as `name=bytes` lists.
fn outcomes(sim: &SimFs) -> BTreeSet<String> {
    sim.here().crash_states(&plan()).map(|s| listing(&s)).collect()
}

fn listing(sim: &SimFs) -> String {
    let tree = tree::read(sim, &|_| false).unwrap();
    let line = |(path, node): (&Vec<u8>, &tree::Node)| {
        format!("{}={}", String::from_utf8_lossy(path), String::from_utf8_lossy(&node.bytes))
    };
    tree.iter().skip(1).map(line).collect::<Vec<_>>().join(" ").replace('\0', "0")
}

fn set(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|s| s.to_string()).collect()
}

fn durable_file(profile: Profile, name: &[u8], data: &[u8]) -> SimFs {
    let sim = SimFs::new(profile);
    let f = sim.create_file(&sim.root(), name, 0o644).unwrap();
    sim.write_at(&f, data, 0).unwrap();
    sim.sync_fs().unwrap();
    sim
}

#[test]
fn strong_names_persist_as_a_prefix_and_a_rename_is_atomic() {
    let sim = durable_file(Profile::STRONG, b"a", b"1");
    let root = sim.root();
    sim.rename(&root, b"a", &root, b"b", Rename::Replace).unwrap();
    sim.mkdir(&root, b"d", 0o755).unwrap();
    assert_eq!(outcomes(&sim), set(&["a=1", "b=1", "b=1 d="]));
    sim.sync_all(&root).unwrap();
    assert_eq!(outcomes(&sim), set(&["b=1 d="]));
}

#[test]
fn a_weak_rename_may_lose_both_names_or_keep_both() {
    let sim = durable_file(Profile::WEAK, b"a", b"1");
    let root = sim.root();
    sim.rename(&root, b"a", &root, b"b", Rename::Replace).unwrap();
    let lost = "lost+found= lost+found/#11=1";
    assert_eq!(outcomes(&sim), set(&["a=1", "b=1", "a=1 b=1", lost]));
    sim.sync_fs().unwrap();
    assert_eq!(outcomes(&sim), set(&["b=1"]));
}

#[test]
fn a_weak_directory_entry_without_its_inode_is_dropped() {
    let sim = SimFs::new(Profile::WEAK);
    sim.mkdir(&sim.root(), b"d", 0o755).unwrap();
    sim.sync_all(&sim.root()).unwrap();
    assert_eq!(outcomes(&sim), set(&["", "d="]));
}

#[test]
fn a_freed_weak_file_may_come_back_as_garbage_and_a_strong_one_not() {
    for (profile, garbage) in [(Profile::WEAK, true), (Profile::STRONG, false)] {
        let sim = durable_file(profile, b"a", b"1");
        sim.unlink(&sim.root(), b"a").unwrap();
        let seen = outcomes(&sim);
        assert!(seen.contains("a=1") && seen.contains(""));
        assert_eq!(seen.iter().any(|s| s.contains('\u{fffd}')), garbage, "{seen:?}");
    }
}

#[test]
fn data_is_free_of_length_until_synced() {
    let sim = SimFs::new(Profile::STRONG);
    let root = sim.root();
    let f = sim.create_file(&root, b"a", 0o644).unwrap();
    sim.sync_fs().unwrap();
    sim.write_at(&f, b"xy", 0).unwrap();
    assert_eq!(outcomes(&sim), set(&["a=", "a=00", "a=xy"]));
    sim.sync_data(&f).unwrap();
    assert_eq!(outcomes(&sim), set(&["a=xy"]));
}

#[test]
fn a_synced_length_is_not_taken_back_by_older_attributes() {
    let sim = durable_file(Profile::STRONG, b"a", b"1");
    let f = sim.open_to_write(&sim.root(), b"a").unwrap();
    sim.set_mode(&f, b"", 0o600).unwrap();
    sim.write_at(&f, b"22", 1).unwrap();
    sim.sync_data(&f).unwrap();
    assert_eq!(outcomes(&sim), set(&["a=122"]));
    let modes: BTreeSet<u32> = sim
        .here()
        .crash_states(&plan())
        .map(|s| s.stat_at(&s.root(), b"a").unwrap().mode)
        .collect();
    assert_eq!(modes, BTreeSet::from([0o644, 0o600]));
}

#[test]
fn a_weak_sync_covers_only_what_was_there_before() {
    let sim = durable_file(Profile::WEAK, b"a", &[b'1'; 4096]);
    let f = sim.open_to_write(&sim.root(), b"a").unwrap();
    sim.write_durable(&f, &[b'2'; 4096], 0).unwrap();
    sim.write_durable(&f, &[b'3'; 4096], 4096).unwrap();
    let firsts: BTreeSet<(usize, u8)> = sim
        .here()
        .crash_states(&plan())
        .map(|s| {
            let bytes = &tree::read(&s, &|_| false).unwrap()[&b"a"[..]].bytes;
            (bytes.len(), bytes[0])
        })
        .collect();
    assert_eq!(firsts, BTreeSet::from([(4096, b'2'), (8192, b'2')]));

    let fixed = Profile { fsync_persists_inode: true, ..Profile::WEAK };
    let sim = durable_file(fixed, b"a", b"1");
    let f = sim.open_to_write(&sim.root(), b"a").unwrap();
    sim.write_at(&f, b"22", 1).unwrap();
    sim.sync_data(&f).unwrap();
    assert_eq!(outcomes(&sim), set(&["a=122"]));
}

#[test]
fn memory_forgets_nothing_and_orphans_die_with_their_process() {
    let sim = SimFs::new(Profile::MEMORY);
    let root = sim.root();
    let f = sim.create_file(&root, b"a", 0o644).unwrap();
    sim.write_at(&f, b"1", 0).unwrap();
    sim.unlink(&root, b"a").unwrap();
    sim.mkdir(&root, b"d", 0o755).unwrap();
    assert!(sim.inode("d").is_some());
    let after = sim.here().process_death();
    assert_eq!(listing(&after), "d=");
    assert_eq!(after.state().inodes.len(), 2);
    // Here it is still there, as long as it is open.
    let mut byte = [0];
    assert_eq!(sim.read_at(&f, &mut byte, 0).unwrap(), 1);
    drop(f);
    assert_eq!(sim.state().inodes.len(), 2);
}

#[test]
fn a_lost_directory_keeps_its_content_in_lost_and_found() {
    let sim = SimFs::new(Profile::WEAK);
    let root = sim.root();
    sim.mkdir(&root, b"d", 0o755).unwrap();
    let d = sim.open_dir(&root, b"d").unwrap();
    sim.create_file(&d, b"f", 0o644).unwrap();
    sim.sync_fs().unwrap();
    sim.rename(&root, b"d", &root, b"e", Rename::Replace).unwrap();
    let seen = outcomes(&sim);
    assert!(seen.contains("lost+found= lost+found/#11= lost+found/#11/f="), "{seen:?}");
    // Never both: a directory keeps one name, and fsck decides which.
    assert!(seen.contains("d= d/f=") && seen.contains("e= e/f="));
    assert!(!seen.iter().any(|s| s.contains("d=") && s.contains("e=")), "{seen:?}");
}

#[test]
fn instants_are_recorded_before_each_sync() {
    let sim = SimFs::new(Profile::STRONG);
    sim.record(Record::Syncs);
    let root = sim.root();
    sim.mkdir(&root, b"a", 0o755).unwrap();
    sim.sync_fs().unwrap();
    sim.mark(7);
    sim.mkdir(&root, b"b", 0o755).unwrap();
    sim.sync_all(&root).unwrap();
    let points = sim.take_points();
    let marks: Vec<u64> = points.iter().map(|p| p.mark).collect();
    assert_eq!(marks, [0, 7]);
    assert_eq!(points[0].count(), 2);
    assert_eq!(points[1].label, "sync_all /");
}

#[test]
fn large_state_spaces_are_sampled_within_the_budget_and_by_seed() {
    let sim = SimFs::new(Profile::WEAK);
    let root = sim.root();
    for n in 0..30u8 {
        let f = sim.create_file(&root, &[b'a' + n], 0o644).unwrap();
        sim.write_at(&f, &[n; 9000], 0).unwrap();
    }
    let here = sim.here();
    assert_eq!(here.count(), u64::MAX);
    let plan = Plan { exhaustive: 100, budget: 900, seed: 5 };
    let choices = here.choices(&plan);
    assert!(choices.len() > 800 && choices.len() <= 900, "{}", choices.len());
    assert!(choices == here.choices(&plan));
    assert!(choices.iter().any(|c| c.picks.iter().any(|p| p.torn > 0)));
    assert!(choices != here.choices(&Plan { seed: 6, ..plan }));
}

#[test]
fn a_torn_page_has_old_sectors_behind_new_ones() {
    let sim = durable_file(Profile::STRONG, b"a", &[1; 4096]);
    let f = sim.open_to_write(&sim.root(), b"a").unwrap();
    sim.write_at(&f, &[2; 4096], 0).unwrap();
    let plan = Plan { exhaustive: 0, budget: 200, seed: 1 };
    let mut cuts = BTreeSet::new();
    for state in sim.here().crash_states(&plan) {
        let bytes = &tree::read(&state, &|_| false).unwrap()[&b"a"[..]].bytes;
        let cut = bytes.iter().take_while(|b| **b == 2).count();
        assert!(bytes[cut..].iter().all(|b| *b == 1));
        cuts.insert(cut);
    }
    assert_eq!(cuts, (0..=8).map(|n| n * 512).collect());
}

#[test]
fn full_disks_say_so_and_keep_what_fitted() {
    let sim = durable_file(Profile::STRONG, b"a", b"1");
    let root = sim.root();
    sim.set_free_blocks(1);
    let f = sim.open_to_write(&root, b"a").unwrap();
    let full = sim.write_at(&f, &[3; 3 * 4096], 4096).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    assert_eq!(sim.stat(&f).unwrap().size, 8192);
    // What is there can be overwritten.
    sim.write_at(&f, &[4; 8192], 0).unwrap();
    assert!(sim.allocate(&f, 8192, 1).is_err());
    assert_eq!(sim.fs_info().unwrap().bavail, 0);
    sim.set_free_inodes(0);
    assert!(sim.create_file(&root, b"b", 0o644).is_err());
}

#[test]
fn intercepted_calls_fail_lie_and_die() {
    let sim = SimFs::new(Profile::STRONG);
    let root = sim.root();
    let lying =
        Intercept::new(
            &sim,
            |call| {
                if call.op == Op::SyncFs { Action::Skip } else { Action::Pass }
            },
        );
    lying.mkdir(&root, b"a", 0o755).unwrap();
    lying.sync_fs().unwrap();
    assert_eq!(sim.here().count(), 2);

    let dying = Intercept::dying(&sim, 1);
    dying.mkdir(&root, b"b", 0o755).unwrap();
    assert!(dying.stat_at(&root, b"b").is_ok());
    assert!(dying.mkdir(&root, b"c", 0o755).is_err());
    assert!(dying.stat_at(&root, b"b").is_err());
    assert!(sim.inode("c").is_none());

    let short = Intercept::failing_once(&sim, 1, Action::Short(rustix::io::Errno::IO));
    let f = short.create_file(&root, b"f", 0o644).unwrap();
    assert!(short.write_at(&f, &[1; 12_000], 0).is_err());
    assert_eq!(short.stat(&f).unwrap().size, 4096);
    short.write_at(&f, b"34", 2).unwrap();

    let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let log = seen.clone();
    let watching = Intercept::new(&sim, move |call| {
        *log.lock().unwrap() = format!("{:?} {} {}", call.op, call.source(), call.path());
        Action::Weaken
    });
    let a = sim.open_dir(&root, b"a").unwrap();
    watching.link(&root, b"f", &a, b"g").unwrap();
    assert_eq!(*seen.lock().unwrap(), "Link /f /a/g");
    assert!(sim.inode("f").is_none() && sim.inode("a/g").is_some());
}
