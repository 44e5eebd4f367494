//! Mounts a file system in memory and prints what warm operations on it cost, over both transports.
//! Needs root and /dev/fuse.  `cargo run --release -p systx-fuse --example memfs`
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use systx_fuse::{Config, Transport};

#[path = "../tests/memfs/mod.rs"]
mod memfs;

/// Nanoseconds per call: the best of a few batches.
fn cost(mut op: impl FnMut()) -> u128 {
    const BATCH: u32 = 2000;
    let batch = |op: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..BATCH).for_each(|_| op());
        start.elapsed().as_nanos() / u128::from(BATCH)
    };
    (0..10).map(|_| batch(&mut op)).min().unwrap()
}

fn measure(name: &str, config: Config) {
    let started = Instant::now();
    let mount = match memfs::Mount::new(config) {
        Ok(mount) => mount,
        Err(e) => return println!("{name}: {e}"),
    };
    let ready = started.elapsed();
    let file = mount.path("file");
    std::fs::write(&file, vec![7; 65536]).unwrap();
    let first = started.elapsed();
    let handle = File::options().read(true).write(true).open(&file).unwrap();
    let mut page = [0; 4096];
    let stat = cost(|| assert!(std::fs::metadata(&file).is_ok()));
    let missing = cost(|| assert!(std::fs::metadata(mount.path("none")).is_err()));
    let open = cost(|| drop(File::open(&file).unwrap()));
    let read = cost(|| assert!(handle.read_at(&mut page, 0).is_ok()));
    let write = cost(|| assert!(handle.write_at(&page, 0).is_ok()));
    let mut n = 0;
    let create = cost(|| {
        n += 1;
        drop(File::create(mount.path(&format!("c{n}"))).unwrap());
    });
    println!(
        "{name:24} serve {ready:>9.1?} first {first:>9.1?} | stat {stat} missing {missing} \
         open {open} read {read} write {write} create {create} ns | {} threads",
        mount.connection().stats().threads
    );
}

fn main() {
    if let Some(why) = memfs::obstacle() {
        return println!("skipped: {why}");
    }
    for (name, transport) in [("io_uring", Transport::IoUring), ("/dev/fuse", Transport::DevFuse)] {
        measure(&format!("{name} cached"), Config { transport, ..Config::default() });
        let zero = Duration::ZERO;
        let uncached = Config {
            transport,
            entry_timeout: zero,
            attr_timeout: zero,
            negative_timeout: zero,
            ..Config::default()
        };
        measure(&format!("{name} uncached"), uncached);
    }
}
