//! What a view costs: bytes of heap for each file that it met, all layers included (nodes, names,
//! listings, the conflict engine's records), counted by the allocator.

#![allow(unsafe_code)]

mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use systx_base::NodeId;
use systx_txn::Isolation;
use systx_vfs::api::Calls;

/// Most bytes for a file that was met by a lookup, or listed.
const LIMIT: usize = 500;

static USED: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator.

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        USED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test, so that nobody else allocates meanwhile.
#[test]
fn a_file_that_was_met_costs_little() {
    let files: usize =
        std::env::var("SYSTX_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let dir = scratch();
    let per_dir = 50;
    for d in 0..files / per_dir {
        let path = dir.path().join(format!("dir-{d:05}"));
        fs::create_dir(&path).expect("mkdir");
        for f in 0..per_dir {
            fs::write(path.join(format!("some-source-{f:04}.c")), "").expect("write");
        }
    }
    let vol = open_volume(dir.path());
    let start = USED.load(Ordering::Relaxed);
    let walked = Twin(open_view(&vol, 1, Isolation::Serializable));
    for d in 0..files / per_dir {
        let up = walked.walk(&format!("dir-{d:05}")).expect("directory").node;
        for f in 0..per_dir {
            let name = format!("some-source-{f:04}.c");
            walked.0.lookup(CALLER, up, name.as_bytes()).expect("lookup").expect("a file");
        }
    }
    let by_lookup = (USED.load(Ordering::Relaxed) - start) / files;
    let engine = vol.engine.memory() / files;
    drop(walked);
    vol.engine.abort(systx_base::TxnId(1));

    let start = USED.load(Ordering::Relaxed);
    let listed = Twin(open_view(&vol, 2, Isolation::Serializable));
    for d in 0..files / per_dir {
        let up = listed.walk(&format!("dir-{d:05}")).expect("directory").node;
        assert_ne!(up, NodeId::ROOT);
        listed.0.readdir(up, 0, true, &mut |_| true).expect("readdir");
    }
    let by_name = (USED.load(Ordering::Relaxed) - start) / files;
    for d in 0..files / per_dir {
        let up = listed.walk(&format!("dir-{d:05}")).expect("directory").node;
        for f in 0..per_dir {
            let name = format!("some-source-{f:04}.c");
            listed.0.lookup(CALLER, up, name.as_bytes()).expect("lookup").expect("a file");
        }
    }
    let by_list = (USED.load(Ordering::Relaxed) - start) / files;
    println!(
        "{files} files: {by_lookup} bytes each by lookup ({engine} in the engine), {by_name} as \
         names, {by_list} when looked up after that"
    );
    assert!(by_lookup <= LIMIT, "{by_lookup} bytes for a file that was looked up");
    assert!(by_list <= LIMIT, "{by_list} bytes for a file that was listed and looked up");
}
