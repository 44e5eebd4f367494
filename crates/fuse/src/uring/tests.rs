//! Queues under exhaustion, on a real mount.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::memfs::{Mount, obstacle};
use crate::{Config, Transport};

fn mount() -> Option<Mount> {
    let config = Config { transport: Transport::IoUring, ..Config::default() };
    let mounted = match obstacle() {
        Some(why) => Err(io::Error::other(why)),
        None => Mount::new(config),
    };
    mounted.inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

/// Does something on the first CPU, whose queue the tests look at.
fn on_cpu0<'s, 'e>(
    scope: &'s std::thread::Scope<'s, 'e>,
    work: impl FnOnce() + Send + 's,
) -> std::thread::ScopedJoinHandle<'s, ()> {
    scope.spawn(move || {
        pin(0);
        work();
    })
}

#[test]
fn an_entry_that_registers_late_serves_requests_that_were_already_waiting() {
    let Some(m) = mount() else { return };
    let shared = &m.connection().shared;
    shared.start.wait();
    (0..4).for_each(|i| std::fs::create_dir(m.path(&format!("d{i}"))).unwrap());
    (0..3).for_each(|i| std::fs::create_dir(m.path(&format!("w{i}"))).unwrap());
    std::fs::write(m.path("a-regular-file"), b"").unwrap();
    let pool = &shared.queues.pools[0];
    pool.set_limit(0);
    m.fs.gate.close();
    std::thread::scope(|s| {
        let make = |name: String| {
            let path = m.path(&name);
            move || std::fs::create_dir(path).unwrap()
        };
        // Hold every entry of the queue.
        let mut held = 0;
        while pool.free() > 0 {
            on_cpu0(s, make(format!("d{held}/gate")));
            held += 1;
            m.fs.gate.wait_held(held);
        }
        let waiting: Vec<_> = (0..3).map(|i| on_cpu0(s, make(format!("w{i}/w")))).collect();
        // They are in the kernel's queue once their threads sleep there.
        while waiting.iter().any(|w| w.is_finished()) {
            panic!("served without a free entry");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        grow(shared, 0);
        for thread in waiting {
            thread.join().unwrap();
        }
        m.fs.gate.open();
    });
}
