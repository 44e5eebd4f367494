//! A volume of each version of the format, as it was made then, is read as it was.
//!
//! `cargo test -p systx-lfs --test golden -- --ignored` makes the files of the current version,
//! and never writes over one.

#![allow(clippy::unwrap_used)]

mod common;

use common::{SEGMENT, bytes, clock, commit, dir, file, format, open, some, tree};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use systx_base::Kind;
use systx_lfs::device::MemDevice;
use systx_lfs::format::{BLOCK, Compression, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Format, SetXattr, Shape, mkfs};

fn golden(format: u32, what: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    dir.join(format!("format{format}.{what}"))
}

/// Blocks that are not zeros: number, bytes up to the last that is not zero.
fn pack(image: &[u8]) -> Vec<u8> {
    let mut packed = ((image.len() / BLOCK) as u32).to_le_bytes().to_vec();
    for (n, block) in image.chunks_exact(BLOCK).enumerate() {
        let Some(last) = block.iter().rposition(|b| *b != 0) else { continue };
        packed.extend((n as u32).to_le_bytes());
        packed.extend((last as u32 + 1).to_le_bytes());
        packed.extend(&block[..=last]);
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(packed[at..at + 4].try_into().unwrap()) as usize;
    let mut image = vec![0; number(0) * BLOCK];
    let mut at = 4;
    while at < packed.len() {
        let (block, len) = (number(at), number(at + 4));
        image[block * BLOCK..][..len].copy_from_slice(&packed[at + 8..][..len]);
        at += 8 + len;
    }
    image
}

/// The version of a volume without packs, of one that may have some, and of one that writes pages
/// together; with the segments that each has.
const FORMATS: [(u32, Compression, u32, u32); 3] =
    [(2, Compression::Off, 1, 40), (3, Compression::Zstd, 1, 64), (4, Compression::Zstd, 4, 64)];

/// A volume with something of everything, of which the log has to be followed.
fn made(compression: Compression, cluster: u32, segments: u32) -> MemDevice {
    let dev = Arc::new(MemDevice::new(9 + (segments * SEGMENT) as usize));
    mkfs(dev.clone(), &Format { compression, cluster, ..format() }, clock()).unwrap();
    let volume = open(dev.clone()).unwrap();
    let fill = |name: &[u8], seed, len| {
        commit(&volume, |ops| {
            let d = ops.create(ROOT, name, &dir())?;
            for n in 0..12 {
                let f = ops.create(d, format!("{n} {}", "long ".repeat(20)).as_bytes(), &file())?;
                ops.write(f, n * 3000, &bytes(seed + n, len))?;
            }
            let f = ops.create(d, b"f", &file())?;
            ops.set_xattr(f, b"user.x", b"value", SetXattr::Any)?;
            ops.link(f, ROOT, &[name, b"2"].concat())?;
            ops.create(d, b"s", &Shape::symlink(b"to"))?;
            ops.create(d, b"n", &Shape { rdev: 0x501, ..Shape::new(Kind::CharDev, 0o600) })?;
            Ok(())
        })
        .unwrap();
    };
    fill(b"first", 1, 700);
    volume.snapshot("kept").unwrap();
    volume.checkpoint().unwrap();
    if compression != Compression::Off {
        // Pages of two files are in packs: in records of the checkpoint, and in the log after it.
        let packed = |name: &[u8]| {
            commit(&volume, |ops| {
                let f = ops.create(ROOT, name, &file())?;
                ops.write(f, 0, &some(2, 30 * 4096))
            })
            .unwrap();
            volume.checkpoint().unwrap();
            assert!(volume.pack().unwrap().pages >= 9);
        };
        packed(b"packed");
        packed(b"packed later");
    }
    if cluster > 1 {
        // The log has what was written along.
        commit(&volume, |ops| {
            let f = ops.lookup(ROOT, b"packed later")?.ino;
            ops.write(f, 13 * 4096 + 7, b"written alone")
        })
        .unwrap();
    }
    fill(b"second", 50, 5000);
    volume.plain(|ops| ops.unlink(ROOT, b"first2")).unwrap();
    volume.sync().unwrap();
    drop(volume);
    MemDevice::from_bytes(dev.bytes())
}

fn seen(dev: MemDevice) -> String {
    let dev = Arc::new(dev);
    assert_eq!(check(dev.clone(), clock()).unwrap().findings, []);
    let volume = open(dev).unwrap();
    assert!(volume.report().groups > 0, "the log is followed");
    let mut text = String::new();
    let kept = volume.at("kept").unwrap().look(common::dump).unwrap();
    assert_eq!(kept.keys().filter(|path| path.starts_with("/second")).count(), 0);
    for (path, s) in kept.into_iter().chain(tree(&volume)) {
        let a = &s.attrs;
        let crc = crc32c::crc32c(&s.content);
        writeln!(
            text,
            "{path} {} {:?} {:o} {}:{} {} {} {:x} {:?} {:?} {crc:08x}",
            s.ino, a.kind, a.mode, a.uid, a.gid, a.nlink, a.size, a.rdev, a.mtime, s.xattrs
        )
        .unwrap();
    }
    text
}

#[test]
fn volumes_of_each_format_are_read() {
    for format in 1..=FORMATS.len() as u32 + 1 {
        let image = std::fs::read(golden(format, "image"))
            .unwrap_or_else(|e| panic!("format {format} has no golden image: {e}"));
        let trees = std::fs::read_to_string(golden(format, "tree")).unwrap();
        assert_eq!(seen(MemDevice::from_bytes(unpack(&image))), trees, "format {format}");
    }
}

/// Who changes the format without a new version breaks volumes that exist.
#[test]
fn the_format_is_as_it_was() {
    for (format, compression, cluster, segments) in FORMATS {
        let image = std::fs::read(golden(format, "image")).unwrap();
        let (now, then) = (made(compression, cluster, segments).bytes(), unpack(&image));
        let differs = |n: &usize| now[n * BLOCK..][..BLOCK] != then[n * BLOCK..][..BLOCK];
        let blocks: Vec<usize> = (0..now.len() / BLOCK).filter(differs).collect();
        assert!(now.len() == then.len() && blocks.is_empty(), "{format}: blocks {blocks:?} differ");
    }
}

#[test]
#[ignore = "makes the files"]
fn make() {
    let (format, compression, cluster, segments) = FORMATS[FORMATS.len() - 1];
    let dev = made(compression, cluster, segments);
    for (what, content) in [
        ("image", pack(&dev.bytes())),
        ("tree", seen(MemDevice::from_bytes(dev.bytes())).into_bytes()),
    ] {
        let path = golden(format, what);
        assert!(!path.exists(), "{} exists", path.display());
        std::fs::write(path, content).unwrap();
    }
}
