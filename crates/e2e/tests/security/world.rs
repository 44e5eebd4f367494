//! What the attempts are made with: ordinary users in a room, and bytes of a store as its maker
//! wants them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use systx_e2e::room::{Room, Said};

/// An ordinary user that no machine has.
pub const MALLORY: u32 = 12041;
/// Another one.
pub const BOB: u32 = 12042;

/// Lets [`as_user`] run the program.
pub fn prepare(room: &Room) {
    room.sh("cp $S /run/systx && chmod 755 /run/systx").ok();
    for uid in [MALLORY, BOB] {
        room.sh(&format!("mkdir -m 700 /run/{uid} && chown {uid}:{uid} /run/{uid}")).ok();
    }
}

/// A script of that user, in the directory that has `a`, `b` and `m`; `$S` is systx.
pub fn as_user(room: &Room, uid: u32, script: &str) -> Said {
    let quoted = script.replace('\'', "'\\''");
    room.sh(&format!(
        "S=/run/systx HOME=/run/{uid} SYSTX_RUNTIME_DIR=/run/{uid} exec setpriv --reuid={uid} \
         --regid={uid} --clear-groups -- sh -c '{quoted}'"
    ))
}

/// Permission bits.
pub fn mode(path: &Path) -> u32 {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    meta.permissions().mode() & 0o7777
}

/// CRC-32C, as in docs/FORMAT.md.
fn sum(bytes: &[u8]) -> [u8; 4] {
    let step = |crc: u32| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0x82f6_3b78 };
    let byte = |crc: u32, b: &u8| (0..8).fold(crc ^ u32::from(*b), |crc, _| step(crc));
    (!bytes.iter().fold(u32::MAX, byte)).to_le_bytes()
}

/// Makes the first commit of a store one that waits to be installed: the super blocks begin
/// before it, and nothing tells that it was done.  What it did to the tree is not taken back.
pub fn rewind(store: &Path) {
    let newest = |bytes: &Vec<u8>| u64::from_le_bytes(bytes[12..20].try_into().expect("8 bytes"));
    let read = |name: &str| fs::read(store.join(name)).expect("a super block");
    let mut block = ["super.0", "super.1"].map(read).into_iter().max_by_key(newest).expect("two");
    // Epoch; segment, offset, LSN and chain of the first record.
    block[28..36].copy_from_slice(&1u64.to_le_bytes());
    block[36..48].fill(0);
    block[48..56].copy_from_slice(&1u64.to_le_bytes());
    block[56..60].fill(0);
    let crc = sum(&block[..4092]);
    block[4092..].copy_from_slice(&crc);
    for name in ["super.0", "super.1"] {
        fs::write(store.join(name), &block).expect("root may");
    }
    let _ = fs::remove_file(store.join("applied"));
    for dir in ["h", "d"] {
        for entry in fs::read_dir(store.join(dir)).into_iter().flatten().flatten() {
            fs::remove_file(entry.path()).expect("root may");
        }
    }
}

/// In the first record of a store's journal, writes `to` wherever `from` is; both are as long.
pub fn rename_in_record(store: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let path = store.join("j/00");
    let mut bytes = fs::read(&path).expect("a journal");
    let len = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
    let body = 64..64 + len;
    let found: Vec<usize> =
        body.clone().filter(|at| bytes[*at..].starts_with(from.as_bytes())).collect();
    assert!(!found.is_empty(), "{from:?} is not in the record");
    for at in found {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    let crc = sum(&bytes[body]);
    bytes[56..60].copy_from_slice(&crc);
    let crc = sum(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc);
    fs::write(&path, bytes).expect("root may");
}
