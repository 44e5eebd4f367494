//! What a connection leaves behind: nothing.  Alone in its process, so that it can count.
#![allow(clippy::unwrap_used)]

mod memfs;

use std::sync::Arc;

use memfs::{Memfs, Mount};
use systx_fuse::{Config, Transport};

fn entries(dir: &str) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Buffers of ring entries that are mapped: header page and 1 MiB each.  Neighbours are merged.
fn payload_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let sizes = maps.lines().filter_map(|l| l.strip_prefix("Size:")?.split_whitespace().next());
    let kib = sizes.map(|n| n.parse::<usize>().unwrap());
    kib.filter(|n| n % 1028 == 0).map(|n| n / 1028).sum()
}

#[test]
fn threads_descriptors_and_memory_are_gone_after_umount() {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let counts = || (entries("/proc/self/task"), entries("/proc/self/fd"), payload_mappings());
    for transport in [Transport::DevFuse, Transport::IoUring] {
        let before = counts();
        for round in 0..20 {
            let fs = Arc::new(Memfs::default());
            let Ok(m) = Mount::with(Arc::clone(&fs), Config { transport, ..Config::default() })
            else {
                eprintln!("skipped: {transport:?}");
                break;
            };
            std::fs::write(m.path("a"), vec![1; 300_000]).unwrap();
            if transport == Transport::IoUring {
                assert!(payload_mappings() > before.2, "this test can see them");
            }
            if round % 2 == 0 {
                rustix::mount::unmount(&m.dir, rustix::mount::UnmountFlags::empty()).unwrap();
                m.connection().wait();
            } else {
                m.connection().stop();
            }
            assert_eq!(m.connection().stats().threads, 0);
            drop(m);
            assert_eq!(Arc::strong_count(&fs), 1, "the view is free");
        }
        // The watchdogs of the mounts end by themselves, and soon.
        while entries("/proc/self/task") > before.0 {
            std::thread::yield_now();
        }
        assert_eq!(counts(), before, "{transport:?}: threads, descriptors, mappings");
    }
}
