//! A view that outlives its transaction: requests over the pause of a commit, and what becomes of
//! nodes. (With real commits and a real kernel: `crates/e2e/tests/views.rs`.)

#[path = "../../vfs/tests/common/mod.rs"]
mod common;

use common::*;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use systx_base::NodeId;
use systx_guard::retired::Lasting;
use systx_guard::shared::SharedVolume;
use systx_store::real::RealIo;
use systx_txn::Isolation;
use systx_vfs::api::*;
use systx_vfs::neighbours::Neighbours as _;
use systx_vfs::view::View;
use systx_vfs::volume::Volume;

const ROOT: NodeId = NodeId::ROOT;
const WRITE: OpenHow = OpenHow { read: true, write: true, append: false, dir: false };

fn lasting(dir: &Path) -> (Arc<View>, Arc<Lasting>) {
    let io = Arc::new(RealIo::open(dir).expect("it is there"));
    let volume = Volume::new(io.clone(), b"/v".to_vec(), Default::default()).expect("a volume");
    let volume = Arc::new(SharedVolume::over(volume.with_locks(io)));
    let view = open_view(volume.volume(), 1, Isolation::Serializable);
    (view.clone(), Arc::new(Lasting::new(view, volume)))
}

fn find(view: &Lasting, dir: NodeId, name: &[u8]) -> Reply<Option<NodeId>> {
    Ok(view.lookup(CALLER, dir, name)?.map(|entry| entry.node))
}

fn read(view: &Lasting, node: NodeId) -> Reply<Vec<u8>> {
    let mut buf = vec![0; 100];
    let n = view.read(node, 0, &mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

/// As a commit that changed nothing.
fn retire(view: &Arc<Lasting>) -> usize {
    let mut pause = view.pause();
    pause.pin(false);
    pause.landed();
    pause.retire().expect("the volume is there").len()
}

#[test]
fn nodes_keep_their_numbers_and_new_ones_get_others() {
    let dir = scratch();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), "one").unwrap();
    let (_, view) = lasting(dir.path());
    let d = find(&view, ROOT, b"d").unwrap().unwrap();
    let f = find(&view, d, b"f").unwrap().unwrap();
    assert_eq!(view.valid(d, None), Valid::default());
    assert_eq!(retire(&view), 0, "nothing is open");
    fs::write(dir.path().join("d/g"), "new").unwrap();
    fs::write(dir.path().join("d/f"), "other").unwrap();
    // Asked for by its number, as by a working directory, and found by its name.
    let there = fs::metadata(dir.path().join("d")).unwrap();
    assert_eq!(view.getattr(d).unwrap().ino, there.ino());
    assert_eq!(find(&view, d, b"f"), Ok(Some(f)));
    assert_eq!(read(&view, f).unwrap(), b"other");
    let g = find(&view, d, b"g").unwrap().unwrap();
    assert!(g != d && g != f && g > f);
    assert_eq!(view.getattr(NodeId(g.0 + 1)).unwrap_err(), Errno::STALE);
    assert_eq!(view.getattr(NodeId(0)).unwrap_err(), Errno::STALE);
    let zero = Some(Duration::ZERO);
    assert_eq!(view.valid(d, Some(b"f")), Valid { name: zero, attr: zero, dir_attr: None });
}

#[test]
fn what_is_open_stays_the_same_inode() {
    let dir = scratch();
    let path = dir.path().join("f");
    fs::write(&path, "old").unwrap();
    fs::write(dir.path().join("closed"), "old").unwrap();
    let (_, view) = lasting(dir.path());
    let f = find(&view, ROOT, b"f").unwrap().unwrap();
    let closed = find(&view, ROOT, b"closed").unwrap().unwrap();
    let open = view.open(CALLER, f, WRITE).unwrap();
    let other = view.open(CALLER, closed, WRITE).unwrap();
    view.release(closed, other.handle);
    assert!(view.is_open_for_writing());
    assert_eq!(retire(&view), 1);
    for name in ["f", "closed"] {
        fs::rename(dir.path().join(name), dir.path().join(format!("{name}.moved"))).unwrap();
        fs::write(dir.path().join(name), "another").unwrap();
    }
    assert_eq!(read(&view, f).unwrap(), b"old");
    assert_eq!(view.write(f, 0, b"new", false), Ok(3));
    assert_eq!(fs::read(dir.path().join("f.moved")).unwrap(), b"new");
    assert_eq!(read(&view, closed), Err(Errno::STALE), "not what the number stood for");
    view.fsync(f, false).unwrap();
    // Closed, it is forgotten, and its name means something else.
    view.release(f, open.handle);
    assert_eq!(read(&view, f), Err(Errno::STALE));
}

#[test]
fn requests_wait_for_the_end_of_a_pause() {
    let dir = scratch();
    fs::write(dir.path().join("f"), "x").unwrap();
    let (_, view) = lasting(dir.path());
    let f = find(&view, ROOT, b"f").unwrap().unwrap();
    for end in [false, true] {
        let mut pause = view.pause();
        let theirs = Arc::clone(&view);
        let waiter = std::thread::spawn(move || (theirs.getattr(f), theirs.valid(f, None)));
        pause.pin(false);
        // What the waiter would see in the view.
        fs::write(dir.path().join("f"), "longer").unwrap();
        assert!(!waiter.is_finished());
        if end {
            pause.retire().unwrap();
        } else {
            drop(pause);
        }
        let (attr, valid) = waiter.join().unwrap();
        assert_eq!(attr.unwrap().size, if end { 6 } else { 1 });
        assert_eq!(valid == Valid::default(), !end);
        view.settled();
    }
}

#[test]
fn a_lost_view_opens_nothing() {
    let dir = scratch();
    fs::write(dir.path().join("f"), "x").unwrap();
    let (inner, view) = lasting(dir.path());
    let f = find(&view, ROOT, b"f").unwrap().unwrap();
    assert_eq!(read(&view, f).unwrap(), b"x");
    inner.cancel();
    assert_eq!(view.open(CALLER, f, WRITE), Err(Errno::CANCELED));
    assert_eq!(find(&view, ROOT, b"g"), Err(Errno::CANCELED));
    assert_eq!(read(&view, f).unwrap(), b"x", "pages can be read");
    assert!(!view.is_open_for_writing());
}
