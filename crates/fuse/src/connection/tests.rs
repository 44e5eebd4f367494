//! Machines that this one is not: absent CPUs, and a kernel that refuses a ring entry.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::FileLocks;
use crate::memfs::{Memfs, Mount, obstacle};

/// A mount over io_uring by a server that believes in `cpus`; `None` where io_uring is not to be
/// had anyway.
fn mount(cpus: &Cpus) -> Option<Mount> {
    let config =
        Config { transport: Transport::IoUring, locks: FileLocks::View, ..Config::default() };
    let fs = Arc::new(Memfs::default());
    let mounted = match obstacle() {
        Some(why) => Err(io::Error::other(why)),
        None => Mount::served(fs, |dev, fs| serve_on(dev, fs, &config, cpus)),
    };
    mounted.inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

#[test]
fn queues_of_absent_cpus_are_served_by_the_keeper() {
    let real = Cpus::detect();
    let pretended = Cpus { possible: real.possible, online: vec![real.online[0]] };
    let Some(m) = mount(&pretended) else { return };
    assert_eq!(m.connection().transport(), Transport::IoUring);
    for cpu in real.online {
        let path = m.path(&format!("from-cpu{cpu}"));
        std::thread::spawn(move || {
            crate::cpu::pin(cpu);
            std::fs::write(&path, b"served").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"served");
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_refused_entry_moves_the_connection_to_dev_fuse() {
    let real = Cpus::detect();
    // One queue more than the kernel has.
    let Some(m) = mount(&Cpus { possible: real.possible + 1, ..real }) else { return };
    assert_eq!(m.connection().transport(), Transport::DevFuse);
    std::fs::write(m.path("a"), b"served").unwrap();
    assert_eq!(std::fs::read(m.path("a")).unwrap(), b"served");
    (0..50).for_each(|i| std::fs::create_dir(m.path(&format!("d{i}"))).unwrap());
    rustix::mount::unmount(&m.dir, rustix::mount::UnmountFlags::empty()).unwrap();
    m.connection().wait();
}

/// Whoever asks something afterwards would wait for ever.
#[test]
fn a_worker_that_fails_or_panics_ends_the_connection() {
    for transport in [Transport::IoUring, Transport::DevFuse] {
        let fail = || Err(io::Error::from_raw_os_error(libc::ENOMEM));
        let panic = || panic!("on purpose");
        for (what, work) in
            [("os error 12", &fail as &dyn Fn() -> io::Result<()>), ("panicked", &panic)]
        {
            let config = Config { transport, locks: FileLocks::View, ..Config::default() };
            let fs = Arc::new(Memfs::default());
            let mounted = match obstacle() {
                Some(why) => Err(io::Error::other(why)),
                None => Mount::served(fs, |dev, fs| serve_on(dev, fs, &config, &Cpus::detect())),
            };
            let m = match mounted {
                Ok(m) => m,
                Err(why) => {
                    eprintln!("SKIPPED: {why}");
                    continue;
                }
            };
            std::fs::write(m.path("a"), b"served").unwrap();
            assert_eq!(m.connection().cut_off(), None);
            m.connection().shared.worker(work);
            let why = m.connection().cut_off().unwrap();
            assert!(why.contains("a worker failed") && why.contains(what), "{why}");
            // Also what the kernel knows how to ask for.
            let refused = std::fs::write(m.path("b"), b"x").unwrap_err();
            let over = [libc::ENOTCONN, libc::ECONNABORTED];
            assert!(over.contains(&refused.raw_os_error().unwrap()), "{transport:?}: {refused}");
            m.connection().wait();
        }
    }
}

#[test]
fn a_worker_that_fails_at_the_end_of_its_connection_is_no_fault() {
    let Some(m) = mount(&Cpus::detect()) else { return };
    m.connection().stop();
    m.connection().shared.worker(|| Err(io::ErrorKind::NotConnected.into()));
    assert_eq!(m.connection().cut_off(), None);
}
