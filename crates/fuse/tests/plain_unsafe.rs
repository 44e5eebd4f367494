//! Shared mappings of files in a guarded directory.
#![allow(unsafe_code, clippy::unwrap_used)]

mod guarded;

use std::fs::File;
use std::os::unix::fs::FileExt;

use guarded::{Guarded, obstacle};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

#[test]
fn shared_mappings_reach_the_file_below() {
    if let Some(why) = obstacle() {
        return eprintln!("skipped: {why}");
    }
    let dir = std::env::temp_dir().join(format!("systx-guarded-map-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let m = Guarded::over(&dir).unwrap();
    let file = File::options().create_new(true).read(true).write(true).open(m.path("f")).unwrap();
    const LEN: usize = 3 * 4096;
    file.set_len(LEN as u64).unwrap();
    let (rights, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { mmap(null, LEN, rights, MapFlags::SHARED, &file, 0) }.unwrap();
    // SAFETY: the mapping is LEN bytes long, writable, and used by this thread only.
    unsafe { at.cast::<u8>().add(5000).copy_from(b"mapped".as_ptr(), 6) };
    // SAFETY: the range is the mapping.
    unsafe { msync(at, LEN, MsyncFlags::SYNC) }.unwrap();
    let below = File::open(m.below("f")).unwrap();
    let mut seen = [0; 6];
    below.read_exact_at(&mut seen, 5000).unwrap();
    assert_eq!(&seen, b"mapped");
    // A write through a descriptor shows in the mapping.
    file.write_at(b"written", 9000).unwrap();
    // SAFETY: as above; nobody writes there any more.
    let shown = unsafe { std::slice::from_raw_parts(at.cast::<u8>().add(9000), 7) };
    assert_eq!(shown, b"written");
    // Dirty when its file has neither a name nor a descriptor left.
    std::fs::remove_file(m.path("f")).unwrap();
    drop(file);
    // SAFETY: as above.
    unsafe { at.cast::<u8>().copy_from(b"last".as_ptr(), 4) };
    // SAFETY: the range is the mapping, which nobody uses any more.
    unsafe { munmap(at, LEN) }.unwrap();
    drop(m);
    std::fs::remove_dir_all(&dir).unwrap();
}
