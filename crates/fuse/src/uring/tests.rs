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

/// Waits until a thread that makes a request sleeps in the kernel.
fn wait_until_asleep(tid: rustix::thread::Pid) {
    let asleep = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        let state = stat.rsplit(')').next().unwrap().trim_start();
        state.starts_with('S') || state.starts_with('D')
    };
    // Twice, since it may wait for something else on its way.
    for _ in 0..2 {
        while !asleep() {
            std::thread::yield_now();
        }
    }
}

/// Opens the gate also when the test fails: else it would wait for its held threads, not fail.
struct Opens<'a>(&'a Mount);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.fs.gate.open();
    }
}

#[test]
fn requests_one_after_the_other_start_one_worker_more_and_not_one_each() {
    let Some(m) = mount() else { return };
    m.connection().shared.start.wait();
    std::thread::scope(|s| {
        on_cpu0(s, || {
            (0..50).for_each(|i| std::fs::create_dir(m.path(&format!("d{i}"))).unwrap());
        });
    });
    let pool = &m.connection().shared.queues.pools[0];
    while pool.starting() {
        std::thread::yield_now();
    }
    // One newcomer; a second one if a request came just as the first entered.
    let grown = m.connection().stats().grown;
    assert!((1..=3).contains(&grown), "{grown} workers for one client");
}

#[test]
fn an_entry_that_registers_late_serves_requests_that_were_already_waiting() {
    let Some(m) = mount() else { return };
    let shared = &m.connection().shared;
    shared.start.wait();
    // The threads above may have started one more worker, or two where one is on its way.
    (0..8).for_each(|i| std::fs::create_dir(m.path(&format!("d{i}"))).unwrap());
    (0..3).for_each(|i| std::fs::create_dir(m.path(&format!("w{i}"))).unwrap());
    std::fs::write(m.path("a-regular-file"), b"").unwrap();
    let pool = &shared.queues.pools[0];
    pool.set_limit(0);
    // Nobody may come late but the worker that this test is about.
    while pool.starting() {
        std::thread::yield_now();
    }
    m.fs.gate.close();
    std::thread::scope(|s| {
        let _opens = Opens(&m);
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
        let (tell, tids) = std::sync::mpsc::channel();
        let waiting: Vec<_> = (0..3)
            .map(|i| {
                let (tell, make) = (tell.clone(), make(format!("w{i}/w")));
                on_cpu0(s, move || {
                    tell.send(rustix::thread::gettid()).unwrap();
                    make();
                })
            })
            .collect();
        tids.iter().take(3).for_each(wait_until_asleep);
        assert!(waiting.iter().all(|w| !w.is_finished()), "served without a free entry");
        grow(shared, 0);
        for thread in waiting {
            thread.join().unwrap();
        }
        m.fs.gate.open();
    });
}
