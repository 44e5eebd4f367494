//! The judge with a clock by hand, and real mounts with a view that never answers.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::memfs::{Memfs, Mount, obstacle};
use crate::{Config, FileLocks, Transport};

const SECOND: Duration = Duration::from_secs(1);

fn judge() -> Judge {
    Judge::new(Patience::default())
}

fn post(group: Group, thread: i32, turn: u64) -> Option<Seen> {
    Some(Seen { group, thread, turn, beats: 0, opcode: 15, node: 9 })
}

fn shows(posts: &[Option<Seen>]) -> Picture {
    Picture { posts: posts.to_vec(), ..Picture::default() }
}

fn slow(thread: i32, seconds: u32) -> Slow {
    Slow { opcode: 15, node: 9, thread, time: SECOND * seconds }
}

#[test]
fn a_request_is_named_each_time_its_time_has_doubled_and_ends_the_connection_at_last() {
    let mut judge = judge();
    let picture = shows(&[post(Group::Queue(0), 1, 7), post(Group::Queue(0), 2, 4)]);
    let mut said = Vec::new();
    for second in 0..=600 {
        for finding in judge.look(SECOND.min(SECOND * second), &picture) {
            said.push((second, finding));
        }
    }
    let words = [10, 20, 40, 80, 160, 320].map(|s| (s, Finding::Slow(slow(1, s))));
    assert_eq!(said[..6], words);
    assert_eq!(said[6..], [(600, Finding::Cut(Reason::Request(slow(1, 600))))]);
}

#[test]
fn the_end_of_a_slow_request_is_told() {
    let mut judge = judge();
    judge.look(Duration::ZERO, &shows(&[post(Group::Device, 1, 7)]));
    judge.look(SECOND * 10, &shows(&[post(Group::Device, 1, 7)]));
    let over = judge.look(SECOND * 3, &shows(&[post(Group::Device, 1, 8)]));
    assert_eq!(over, [Finding::Over(slow(1, 13))]);
}

#[test]
fn busy_but_progressing_workers_and_waiters_that_look_around_are_left_alone() {
    let mut judge = judge();
    for look in 0..1000 {
        let mut waiter = post(Group::Queue(1), 2, 1);
        waiter.as_mut().unwrap().beats = look;
        // Each in service whenever it is looked at, all of a group, none of them idle.
        let picture = shows(&[post(Group::Queue(0), 1, look * 2 + 1), waiter, None]);
        assert_eq!(judge.look(SECOND * 5, &picture), []);
    }
}

#[test]
fn a_queue_without_any_worker_left_ends_the_connection_sooner() {
    let mut judge = judge();
    let stuck = [post(Group::Queue(0), 1, 7), post(Group::Queue(0), 2, 3)];
    let idle = post(Group::Queue(1), 3, 0);
    let lonely = post(Group::Alone, 4, 1);
    judge.look(Duration::ZERO, &shows(&[stuck[0], idle, lonely]));
    judge.look(SECOND * 100, &shows(&[stuck[0], stuck[1], idle, lonely]));
    let cut = |findings: Vec<Finding>| findings.into_iter().find(|f| matches!(f, Finding::Cut(_)));
    let all = shows(&[stuck[0], stuck[1], idle, lonely]);
    assert_eq!(cut(judge.look(SECOND * 119, &all)), None, "the second one may still answer");
    assert_eq!(cut(judge.look(SECOND, &all)), Some(Finding::Cut(Reason::Exhausted(slow(2, 120)))));
}

#[test]
fn waiting_for_a_commit_makes_patient_but_not_for_ever() {
    let mut judge = judge();
    let picture = Picture { waits: true, ..shows(&[post(Group::Queue(0), 1, 7)]) };
    judge.look(Duration::ZERO, &picture);
    let findings = judge.look(SECOND * 719, &picture);
    assert_eq!(findings, [Finding::Slow(slow(1, 719))], "named it is all the same");
    let findings = judge.look(SECOND, &picture);
    assert_eq!(findings, [Finding::Cut(Reason::Exhausted(slow(1, 720)))]);
}

#[test]
fn requests_that_no_worker_has_are_noticed() {
    let mut judge = judge();
    let posts = [post(Group::Queue(0), 1, 8), post(Group::Queue(0), 2, 4)];
    let picture = |n| Picture { unanswered: Some(n), ..shows(&posts) };
    judge.look(SECOND, &picture(1));
    assert_eq!(judge.look(SECOND * 10, &picture(2)), [Finding::Unserved(SECOND * 10)]);
    assert_eq!(judge.look(SECOND * 10, &picture(2)), [], "said once");
    assert_eq!(judge.look(SECOND, &picture(0)), []);
    judge.look(SECOND, &picture(1));
    let moved = [post(Group::Queue(0), 1, 10), posts[1]];
    let after = Picture { unanswered: Some(1), ..shows(&moved) };
    assert_eq!(judge.look(SECOND * 119, &after), [], "something was served");
    let cut = judge.look(SECOND * 120, &after);
    assert_eq!(cut[1..], [Finding::Cut(Reason::Unserved(SECOND * 120))]);
}

// ---- real mounts ------------------------------------------------------------------------------

/// Runs a test on a fresh mount over each transport that this machine has.
fn over_both(locks: FileLocks, test: impl Fn(Mount)) {
    if let Some(why) = obstacle() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        let config = Config { transport, locks, ..Config::default() };
        match Mount::with(Arc::new(Memfs::default()), config) {
            Ok(mount) => test(mount),
            Err(why) => eprintln!("SKIPPED: {transport:?}: {why}"),
        }
    }
}

fn look(mount: &Mount, passed: Duration) -> Vec<Finding> {
    mount.connection().shared.look(passed)
}

/// A client in a request that the view never answers, and what it got in the end.
fn held(mount: &Mount) -> std::thread::JoinHandle<Option<i32>> {
    // A directory of its own, whose lock the client keeps.
    std::fs::create_dir(mount.path("held")).unwrap();
    mount.fs.gate.close();
    let path = mount.path("held/gate");
    let client = std::thread::spawn(move || {
        std::fs::create_dir(path).err().and_then(|error| error.raw_os_error())
    });
    mount.fs.gate.wait_held(1);
    client
}

/// The view's answer comes too late, and changes nothing.
fn ends_well(mut mount: Mount) {
    let refused = std::fs::metadata(mount.path("other")).unwrap_err().raw_os_error();
    assert!(matches!(refused, Some(libc::ECONNABORTED | libc::ENOTCONN)), "{refused:?}");
    mount.connection().stop();
    mount.fs.gate.open();
    drop(mount.connection.take());
}

#[test]
fn a_view_that_never_answers_is_warned_of_and_cut_off() {
    over_both(FileLocks::Kernel, |m| {
        let client = held(&m);
        look(&m, Duration::ZERO);
        let findings = look(&m, SECOND * 10);
        let [Finding::Slow(slow)] = findings[..] else { panic!("{findings:?}") };
        assert_eq!(Opcode::from_wire(slow.opcode), Some(Opcode::Lookup));
        let node = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(m.path("held")).unwrap());
        assert_eq!((slow.node, slow.time), (node, SECOND * 10));
        let task = format!("/proc/self/task/{}/comm", slow.thread);
        assert!(std::fs::read_to_string(task).unwrap().starts_with("fuse-"));
        assert!(!client.is_finished());
        // Others are served as before.
        std::fs::create_dir(m.path("d")).unwrap();
        assert_eq!(m.connection().cut_off(), None);
        let findings = look(&m, SECOND * 590);
        assert!(matches!(findings[..], [.., Finding::Cut(Reason::Request(_))]), "{findings:?}");
        assert_eq!(client.join().unwrap(), Some(libc::ECONNABORTED));
        let why = m.connection().cut_off().unwrap();
        assert!(why.contains("Lookup of node"), "{why}");
        ends_well(m);
    });
}

/// A view may need any lock to say that it waits: where the watchdog held one of its own, it heard
/// nothing.
#[test]
fn a_view_that_waits_is_given_more_time() {
    over_both(FileLocks::Kernel, |m| {
        let client = held(&m);
        *m.fs.waiting.lock() = true;
        look(&m, Duration::ZERO);
        let findings = look(&m, SECOND * 600);
        assert!(matches!(findings[..], [Finding::Slow(_)]), "{findings:?}");
        *m.fs.waiting.lock() = false;
        m.fs.gate.open();
        client.join().unwrap();
    });
}

#[test]
fn only_the_own_connection_is_cut_off() {
    over_both(FileLocks::Kernel, |m| {
        let bystander = Mount::new(Config::default()).unwrap();
        let client = held(&m);
        look(&m, Duration::ZERO);
        look(&m, SECOND * 600);
        client.join().unwrap();
        std::fs::create_dir(bystander.path("d")).unwrap();
        ends_well(m);
        // Its number is free and may be another's: nothing is opened by it.
        std::fs::create_dir(bystander.path("e")).unwrap();
    });
}

#[test]
fn a_connection_that_ended_has_no_switches() {
    over_both(FileLocks::Kernel, |m| {
        let device = &m.connection().shared.device;
        let control = crate::control::Control::open(device, None);
        let Ok(control) = control else { return eprintln!("SKIPPED: {:?}", control.err()) };
        assert_eq!(control.waiting(device).unwrap(), 0);
        rustix::mount::unmount(&m.dir, rustix::mount::UnmountFlags::empty()).unwrap();
        // Likely the same number.
        let other = Mount::new(Config::default()).unwrap();
        assert!(control.abort(device).is_err());
        std::fs::create_dir(other.path("d")).unwrap();
    });
}

#[test]
fn without_the_kernels_switches_its_descriptors_are_closed() {
    over_both(FileLocks::Kernel, |m| {
        let client = held(&m);
        m.connection().shared.let_go();
        m.connection().shared.crew.dismiss();
        m.connection().shared.crew.abandon();
        while !client.is_finished() {
            m.connection().shared.crew.reap();
            std::thread::yield_now();
        }
        let error = client.join().unwrap();
        assert!(matches!(error, Some(libc::ECONNABORTED | libc::ENOTCONN)), "{error:?}");
        ends_well(m);
    });
}

#[test]
fn waiting_for_a_lock_is_no_fault() {
    over_both(FileLocks::ViewToldOfClose, |m| {
        use rustix::fs::FlockOperation::{LockExclusive, Unlock};
        std::fs::write(m.path("lock"), b"").unwrap();
        let holder = std::fs::File::open(m.path("lock")).unwrap();
        rustix::fs::flock(&holder, LockExclusive).unwrap();
        let path = m.path("lock");
        let waiter = std::thread::spawn(move || {
            rustix::fs::flock(std::fs::File::open(path).unwrap(), LockExclusive).unwrap();
        });
        while m.connection().stats().count(Opcode::Setlkw) == 0 {
            std::thread::yield_now();
        }
        let beats = || m.connection().shared.posts.see().iter().flatten().map(|s| s.beats).sum();
        for _ in 0..10 {
            // It looks around by itself, after 10 ms at most.
            let before: u64 = beats();
            while beats() == before {
                std::thread::yield_now();
            }
            assert_eq!(look(&m, SECOND * 500), []);
        }
        rustix::fs::flock(&holder, Unlock).unwrap();
        waiter.join().unwrap();
        assert_eq!(m.connection().cut_off(), None);
    });
}
