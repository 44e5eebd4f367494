//! A real mount over both transports: what programs see.
#![allow(clippy::unwrap_used)]

mod memfs;

use memfs::Mount;
use systx_fuse::{Config, Transport};

/// Runs a test on a fresh mount over each transport that this machine has.
fn over_both(config: &Config, test: impl Fn(&Mount)) {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        match Mount::new(Config { transport, ..config.clone() }) {
            Ok(mount) => {
                assert_eq!(mount.connection().transport(), transport);
                test(&mount);
            }
            Err(e) => eprintln!("skipped: {transport:?}: {e}"),
        }
    }
}

#[test]
fn a_file_is_created_written_and_read() {
    over_both(&Config::default(), |m| {
        let data: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        std::fs::write(m.path("a"), &data).unwrap();
        assert_eq!(std::fs::read(m.path("a")).unwrap(), data);
        assert_eq!(std::fs::metadata(m.path("a")).unwrap().len(), data.len() as u64);
    });
}
