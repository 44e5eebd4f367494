//! The log of a disk's writes, what a power cut makes of it, and, with `SYSTX_LONG=1`, power cuts
//! of a real system in an emulated machine (`scripts/power-cut`).

use std::path::Path;
use std::process::Command;
use systx_e2e::power_cut::log::{Act, Log, Lost, SECTOR};
use systx_e2e::random::Random;
use systx_e2e::skip;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Sectors of the disk of these tests.
const SECTORS: usize = 8;
const SIZE: u64 = (SECTORS * SECTOR) as u64;

/// A log by hand, entry by entry: (first sector, sectors, flags, with what they are filled).
fn log(entries: &[(u64, u64, u64, u8)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    sector(&mut bytes, &[0x006a_7366_7773_6872, 1, entries.len() as u64, SECTOR as u64]);
    for (at, count, flags, fill) in entries {
        sector(&mut bytes, &[*at, *count, *flags, 0]);
        if flags & DISCARD == 0 {
            bytes.extend(std::iter::repeat_n(*fill, *count as usize * SECTOR));
        }
    }
    bytes
}

/// Adds a sector that begins with these numbers.
fn sector(bytes: &mut Vec<u8>, words: &[u64]) {
    let end = bytes.len() + SECTOR;
    for word in words {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(end, 0);
}

fn parsed(entries: &[(u64, u64, u64, u8)]) -> Log {
    Log::parse(log(entries), SIZE).expect("a log")
}

/// The first byte of each sector, all of whose bytes must be the same.
fn fills(disk: &[u8]) -> Vec<u8> {
    let one = |sector: &[u8]| {
        assert!(sector.iter().all(|b| *b == sector[0]), "torn within a sector");
        sector[0]
    };
    disk.chunks(SECTOR).map(one).collect()
}

/// The disk after a cut, from one that is full of nines.
fn cut(log: &Log, end: usize, lie: bool, seed: u64) -> (Vec<u8>, Lost) {
    let mut disk = vec![9; SIZE as usize];
    let lost =
        log.cut(&mut disk, end, lie, &mut Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    (fills(&disk), lost)
}

#[test]
fn a_log_is_read_as_it_was_written() {
    let log = parsed(&[(0, 2, 0, 1), (0, 0, FLUSH, 0), (3, 1, FUA, 2), (5, 2, DISCARD, 0)]);
    let seen: Vec<_> = log.entries().iter().map(|e| (e.at, e.flush, e.durable)).collect();
    assert_eq!(
        seen,
        [(0, false, false), (0, true, false), (1536, false, true), (2560, false, false)]
    );
    assert_eq!(log.data(&log.entries()[2]), Some(&[2; SECTOR][..]));
    assert_eq!(log.data(&log.entries()[1]), None);
    assert_eq!(log.entries()[3].act, Act::Discard(2));
    assert_eq!(log.position(1536, &[2, 2]), Some(2));
    assert_eq!(log.position(1536, &[2, 1]), None);
    assert_eq!((0..=4).map(|n| log.flushed(n)).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
    let mut disk = vec![9; SIZE as usize];
    log.replay(&mut disk);
    assert_eq!(fills(&disk), [1, 1, 9, 2, 9, 0, 0, 9]);
    assert!(parsed(&[]).entries().is_empty());
}

/// What a log says is not believed: nothing of it leads beyond the log or the disk.
#[test]
fn bad_logs_are_refused() {
    let refused = |bytes: Vec<u8>, why: &str| {
        let said = Log::parse(bytes, SIZE).err().unwrap_or_else(|| panic!("accepted: {why}"));
        assert!(said.contains(why), "{said}");
    };
    let good = log(&[(0, 2, 0, 1), (3, 1, FLUSH, 2)]);
    let with = |at: usize, word: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    refused(Vec::new(), "ends within its first sector");
    refused(with(0, 1), "no log of writes");
    refused(with(8, 2), "version 2");
    refused(with(24, 4096), "sectors of 4096 bytes");
    refused(with(16, 3), "entry 2 of the log, at byte 3072: the log ends before it");
    refused(with(16, u64::MAX), "the log ends before it");
    refused(with(SECTOR, 7), "beyond the end of the disk");
    refused(with(SECTOR, u64::MAX), "beyond every disk");
    refused(with(SECTOR, u64::MAX / SECTOR as u64), "beyond the end of the disk");
    refused(with(SECTOR + 8, u64::MAX), "beyond every disk");
    refused(with(SECTOR + 8, 9), "beyond the end of the disk");
    refused(with(SECTOR + 16, MARK), "a mark");
    refused(with(SECTOR + 16, 1 << 40), "unknown flags");
    refused(with(SECTOR + 24, 1), "unknown flags");
    // Cut off anywhere: refused, and never more than an error.
    for len in 0..good.len() {
        assert!(Log::parse(good[..len].to_vec(), SIZE).is_err(), "cut off after {len} bytes");
    }
    // Any byte another: an error, or a log that stays on the disk.
    for at in 0..2 * SECTOR {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            if let Ok(log) = Log::parse(bytes, SIZE) {
                cut(&log, usize::MAX, true, at as u64);
            }
        }
    }
}

/// What a flush covers is there in every cut, and of the rest each sector is the old or the new
/// one.
#[test]
fn a_cut_loses_what_no_flush_covers_and_nothing_else() {
    let log = parsed(&[
        (0, 4, 0, 1),
        (0, 0, FLUSH, 0),
        (1, 2, 0, 2),
        (4, 1, FUA, 3),
        (6, 2, 0, 4),
        (2, 1, 0, 5),
        (0, 1, FLUSH, 6),
        (7, 1, 0, 7),
    ]);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 1..4000 {
        let (disk, lost) = cut(&log, 6, false, seed);
        let may: [&[u8]; SECTORS] = [&[1], &[1, 2], &[1, 2, 5], &[1], &[3], &[9], &[9, 4], &[9, 4]];
        for (sector, (is, may)) in disk.iter().zip(may).enumerate() {
            assert!(may.contains(is), "sector {sector} holds {is}, seed {seed}");
        }
        assert_eq!(lost.volatile, 3);
        assert_eq!(lost.damaged == 0, lost.sectors == 0);
        seen.insert(disk);
        // Before the first flush nothing is sure, and after the last, which comes before its own
        // write, most is.
        assert!(cut(&log, 1, false, seed).0.iter().all(|b| [1, 9].contains(b)));
        let (disk, _) = cut(&log, 8, false, seed);
        assert!(disk[1..7] == [2, 5, 1, 3, 9, 4], "{disk:?}");
        assert!([1, 6].contains(&disk[0]) && [4, 7].contains(&disk[7]), "{disk:?}");
    }
    // Every mixture comes: two values of one sector, three of another, torn writes among them.
    assert_eq!(seen.len(), 2 * 3 * 2 * 2, "{seen:?}");
}

#[test]
fn a_disk_that_lies_loses_what_was_flushed() {
    let log = parsed(&[(0, 8, 0, 1), (0, 0, FLUSH, 0), (0, 1, FUA, 2)]);
    let cuts = |lie| (1..500).map(|seed| cut(&log, 3, lie, seed).0).collect::<Vec<_>>();
    assert!(cuts(false).iter().all(|disk| disk[..] == [2, 1, 1, 1, 1, 1, 1, 1]));
    assert!(cuts(true).iter().any(|disk| disk.contains(&9)));
    assert!(cuts(true).iter().any(|disk| disk[0] != 2));
}

#[test]
fn the_same_seed_makes_the_same_cut() {
    let log = parsed(&[(0, 4, 0, 1), (2, 4, 0, 2), (4, 4, 0, 3)]);
    for seed in 1..50 {
        assert_eq!(cut(&log, 3, false, seed), cut(&log, 3, false, seed));
    }
}

/// The real thing, a few minutes: QEMU, a kernel, power cuts by the hundred.
#[test]
fn an_emulated_machine_survives_power_cuts() {
    if std::env::var_os("SYSTX_LONG").is_none() {
        skip!("power cuts of an emulated machine need SYSTX_LONG=1 (scripts/power-cut)");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/power-cut");
    let done = Command::new(script).args(["--trials", "100"]).output().expect("scripts/power-cut");
    let said = String::from_utf8_lossy(&done.stdout);
    if let Some(why) = said.lines().find_map(|l| l.strip_prefix("SKIPPED: ")) {
        skip!("{why}");
    }
    println!("{said}");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
