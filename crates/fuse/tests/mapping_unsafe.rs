//! Shared memory mappings of files on a mount over both transports.
#![allow(unsafe_code, clippy::unwrap_used)]

mod memfs;

use std::fs::OpenOptions;

use memfs::Mount;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use systx_base::NodeId;
use systx_fuse::{Config, Transport};
use systx_vfs::api::Calls;

const LEN: usize = 64 * 4096;

#[test]
fn what_is_written_to_a_mapping_reaches_the_view() {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        let m = match Mount::new(Config { transport, ..Config::default() }) {
            Ok(m) => m,
            Err(e) => {
                eprintln!("skipped: {transport:?}: {e}");
                continue;
            }
        };
        let path = m.path("a");
        std::fs::write(&path, vec![b'.'; LEN]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping, whose bytes nobody else in this process refers to.
        let (at, bytes) = unsafe {
            let at = mmap(std::ptr::null_mut(), LEN, prot, MapFlags::SHARED, &file, 0).unwrap();
            (at, std::slice::from_raw_parts_mut(at.cast::<u8>(), LEN))
        };
        assert!(bytes.iter().all(|b| *b == b'.'));
        (0..LEN).step_by(1000).for_each(|i| bytes[i] = b'!');
        let through_read = std::fs::read(&path).unwrap();
        assert_eq!(through_read, bytes, "read(2) and the mapping agree");
        // SAFETY: the mapping made above.
        unsafe { msync(at, LEN, MsyncFlags::SYNC) }.unwrap();
        let mut seen = vec![0; LEN];
        m.fs.read(NodeId(2), 0, &mut seen).unwrap();
        assert_eq!(seen, bytes, "msync(2) brought it to the view");
        // SAFETY: the mapping made above, not used any more.
        unsafe { munmap(at, LEN) }.unwrap();
    }
}
