//! Stores that earlier versions have made, one of each format that is read: opened, recovered,
//! undone, used.
//!
//! An image has a tree, two transactions that are installed and checkpointed, one that is
//! installed, and one that is committed only.  The listing beside it says what the tree was before
//! each of them, and after the last.  A new format gets an image from `cargo test -p systx-sim
//! --test golden -- --ignored`, which never writes over one.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use systx_sim::model::{Draft, Model, Op};
use systx_sim::suite::{self, Session};
use systx_sim::tree::{self, Tree};
use systx_sim::{Profile, SimFs, image, workload};
use systx_store::io::{Open, Tree as _};

/// What the transactions do; long content goes to slots.
const WORK: [&[Op]; 4] = [
    &[Op::Write("A/a", 4000, 6000), Op::Create("B/a", 20_000), Op::Chmod("B", 0o700)],
    &[
        Op::Rename("B/b", "A/c"),
        Op::Symlink("A/s", "../B/b"),
        Op::SetXattr("A/a", "user.n", 30),
        Op::Unlink("B/l"),
    ],
    &[Op::Rewrite("A/a", 15_000), Op::Mkdir("C"), Op::Create("C/x", 50)],
    &[Op::Write("A/c", 10, 20), Op::Create("B/y", 30_000), Op::Unlink("A/s")],
];

fn golden(format: u32, what: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    dir.join(format!("format-{format}.{what}"))
}

/// What programs see of a tree, but for times, as lines.
fn listing(tree: &Tree) -> String {
    let mut text = String::new();
    for (path, node) in tree {
        let hash = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        let sum = node.bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash);
        let path = String::from_utf8_lossy(path);
        write!(text, "/{path} {:?} {:o} {}", node.kind, node.mode, node.nlink).unwrap();
        write!(text, " {} {sum:016x}", node.bytes.len()).unwrap();
        for (key, value) in &node.xattrs {
            write!(text, " {}={}", String::from_utf8_lossy(key), value.len()).unwrap();
        }
        text.push('\n');
    }
    text
}

fn format_of(sim: &SimFs) -> u32 {
    let dir = sim.open_dir(&sim.root(), suite::STATE.as_bytes()).unwrap();
    let formats = [&b"super.0"[..], b"super.1"].map(|name| {
        let file = sim.open_file(&dir, name, Open::Read).unwrap();
        let mut bytes = [0; 12];
        sim.read_at(&file, &mut bytes, 0).unwrap();
        u32::from_le_bytes(bytes[8..].try_into().unwrap())
    });
    formats[0].max(formats[1])
}

fn read_tree(sim: &SimFs) -> String {
    listing(&tree::read(sim, &suite::hidden).unwrap())
}

#[test]
#[ignore = "makes the image of a new format"]
fn make() {
    let sim = SimFs::new(Profile::STRONG);
    workload::base(&sim).unwrap();
    let base = Model::read(&sim, &suite::hidden).unwrap();
    let work: Vec<Vec<Op>> = WORK.iter().map(|ops| ops.to_vec()).collect();
    let drafts: Vec<Draft> = workload::drafts(&base, &work).unwrap();
    let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
    for (n, draft) in drafts.iter().enumerate() {
        let lsn = session.commit(draft, n as u64, 8192).unwrap();
        if n < 3 {
            session.apply(lsn).unwrap();
        }
        if n == 1 {
            session.checkpoint().unwrap();
        }
    }
    let image = image::write(&sim.here().process_death().state());
    let format = format_of(&sim);
    let trees = [base.tree()].into_iter().chain(drafts.iter().map(|draft| draft.after().tree()));
    let text: Vec<String> = trees.map(|tree| listing(&tree)).collect();
    for (what, bytes) in [("image", image), ("trees", text.join("--\n").into_bytes())] {
        let path = golden(format, what);
        assert!(!path.exists(), "{} is there", path.display());
        std::fs::write(path, bytes).unwrap();
    }
}

#[test]
fn a_store_of_any_format_that_is_read_is_recovered_and_undone() {
    for format in 2..=4 {
        let state = image::read(&std::fs::read(golden(format, "image")).unwrap()).unwrap();
        let trees = std::fs::read_to_string(golden(format, "trees")).unwrap();
        let trees: Vec<&str> = trees.split("--\n").collect();
        let sim = SimFs::holding(state, Profile::STRONG);
        assert_eq!(format_of(&sim), format);
        let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
        assert_eq!(session.finished(), 2, "format {format}");
        // Two are in the file of orders, two in the journal; older formats know of none.
        let before = if format < 4 { 0 } else { 4 };
        assert_eq!(session.next(), before, "format {format}");
        assert!(session.outside().is_empty(), "format {format}: {:?}", session.outside());
        assert_eq!(read_tree(&sim), trees[4], "format {format}");
        suite::leftovers(&sim).unwrap();
        // The history has all of it: each is taken back, the last one first.
        for of in (0..4).rev() {
            let lsn = session.undo(of, 100 + of).unwrap();
            session.apply(lsn).unwrap();
            assert_eq!(read_tree(&sim), trees[of as usize], "format {format}, {of} taken back");
        }
        session.checkpoint().unwrap();
        assert_eq!(format_of(&sim), 4, "format {format} becomes the one that is written");
        // And it is used as any other.
        drop(session);
        let mut session = Session::open(Arc::new(sim.clone()), sim.instance()).unwrap();
        assert_eq!(session.finished(), 0);
        assert_eq!(session.next(), before + 4, "format {format}");
        let model = Model::read(&sim, &suite::hidden).unwrap();
        let draft = &workload::drafts(&model, &[vec![Op::Create("A/later", 70)]]).unwrap()[0];
        let lsn = session.commit(draft, 200, 8192).unwrap();
        session.apply(lsn).unwrap();
        let lsn = session.undo(200, 201).unwrap();
        session.apply(lsn).unwrap();
        assert_eq!(read_tree(&sim), trees[0], "format {format}");
    }
}
