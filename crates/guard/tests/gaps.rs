//! Bytes that nobody has written: what each request leaves of them behind the old end of a file,
//! and what of the kernel's pages lies there. In a view and in the plain view.

#[path = "../../vfs/tests/common/mod.rs"]
mod common;

use common::*;
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::{self, File};
use std::sync::Arc;
use systx_base::NodeId;
use systx_guard::plain::{NoGate, Plain};
use systx_txn::Isolation;
use systx_vfs::api::*;
use systx_vfs::client;

const NEW: NewAttr = NewAttr { mode: 0o644, umask: 0o022 };

/// The same for both, with a file of 100 bytes and one of 10.
fn everywhere(check: impl Fn(&dyn Requests, NodeId, NodeId)) {
    if !is_root() {
        return;
    }
    let dirs = scratch();
    let (backing, guarded) = (dirs.path().join("backing"), dirs.path().join("guarded"));
    for dir in [&backing, &guarded] {
        fs::create_dir(dir).expect("mkdir");
        fs::write(dir.join("f"), [b'T'; 100]).expect("write");
        fs::write(dir.join("source"), "0123456789").expect("write");
    }
    let view = open_view(&open_volume(&backing), 1, Isolation::Serializable);
    let root = File::open(&guarded).expect("open").into();
    let plain = Plain::new(root, HashSet::new(), Arc::new(NoGate)).expect("a view").untold();
    for requests in [&*view as &dyn Requests, &plain] {
        let find = |name: &[u8]| {
            requests.lookup(CALLER, NodeId::ROOT, name).expect("find").expect("it is there").node
        };
        check(requests, find(b"f"), find(b"source"));
        let new = requests.create(CALLER, NodeId::ROOT, b"new", NEW, true).expect("create").node;
        requests.write(new, 0, &[b'T'; 100], false).expect("write");
        check(requests, new, find(b"source"));
    }
}

/// The gap of one request.
fn gap<T>(act: impl FnOnce() -> Reply<T>) -> Option<(u64, u64)> {
    let _serving = client::serving(CALLER);
    act().map(drop).expect("it can be done");
    let gap = client::gap();
    assert_eq!(client::gap(), None, "told once");
    gap.map(|gap| (gap.start, gap.end))
}

#[test]
fn who_makes_a_file_longer_without_writing_tells_how_much() {
    everywhere(|fs, file, source| {
        let size = |to| SetAttr { size: Some(to), ..SetAttr::default() };
        let truncate = |to| gap(|| fs.setattr(CALLER, file, size(to)));
        let allocate = |how, at, len| gap(|| fs.fallocate(file, how, at, len));
        let write = |at, data: &[u8]| gap(|| fs.write(file, at, data, false));
        let copy = |at, to| gap(|| fs.copy_file_range((source, at), (file, to), 4));
        assert_eq!(write(90, b"within"), None);
        assert_eq!(write(95, b"across the end"), None);
        assert_eq!(write(109, b"right behind it"), None);
        assert_eq!(gap(|| fs.append(file, 124, b"x", false)), None);
        assert_eq!(write(130, b"x"), Some((125, 130)));
        assert_eq!(copy(0, 131), None);
        assert_eq!(copy(6, 140), Some((135, 140)));
        assert_eq!(truncate(150), Some((144, 150)));
        assert_eq!(truncate(150), None);
        assert_eq!(truncate(149), None);
        assert_eq!(allocate(Fallocate::Allocate, 0, 149), None);
        assert_eq!(allocate(Fallocate::KeepSize, 0, 9000), None);
        assert_eq!(allocate(Fallocate::PunchHole, 10, 9000), None);
        assert_eq!(allocate(Fallocate::Allocate, 10, 190), Some((149, 200)));
        if fs.fallocate(file, Fallocate::ZeroRangeKeepSize, 10, 9000) == Err(Errno::OPNOTSUPP) {
            return eprintln!("left out: tmpfs cannot zero a range");
        }
        assert_eq!(allocate(Fallocate::ZeroRange, 300, 10), Some((200, 310)));
    });
}

#[test]
fn what_the_kernel_writes_back_makes_no_file_longer() {
    everywhere(|fs, file, _| {
        let content = || {
            let mut bytes = [0; 300];
            let n = fs.read(file, 0, &mut bytes).expect("read");
            String::from_utf8_lossy(&bytes[..n]).into_owned()
        };
        for (at, data) in [(90, "page of which a part is behind"), (100, "behind"), (5000, "far")] {
            assert_eq!(gap(|| fs.write_back(file, at, data.as_bytes())), None);
        }
        assert_eq!(content(), "T".repeat(90) + "page of wh");
        assert_eq!(fs.getattr(file).expect("stat").size, 100);
    });
}
