//! The judge by scripts of samples; the rest with threads of this process.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::post::{Group, Posts};
use crate::wire::InHeader;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A machine whose time passes as the judge asks for it.
struct Script {
    judge: Judge,
    sample: Sample,
}

impl Script {
    fn new(cpus: usize) -> Self {
        Script { judge: Judge::new(cpus), sample: Sample::default() }
    }

    /// Looks, `time` after the last time, in which so many CPUs idled and so much was served.
    fn pass(&mut self, time: Duration, idle: f64, served: u64) -> Next {
        self.sample.at += time;
        self.sample.idle += time.mul_f64(idle);
        self.sample.served += served;
        self.judge.look(self.sample)
    }

    /// Looks as often as the judge asks for it, over so much time; tells how long each class
    /// lasted.
    fn go(&mut self, time: Duration, idle: f64) -> (Duration, Duration) {
        let (mut normal, mut other, until) = (ms(0), ms(0), self.sample.at + time);
        let mut next = LOOK;
        while self.sample.at < until {
            match self.judge.class() {
                Class::Normal => normal += next,
                Class::Idle => other += next,
            }
            match self.pass(next, idle, 100) {
                Next::Look(time) => next = time,
                Next::Called => next = LOOK,
            }
        }
        (normal, other)
    }
}

#[test]
fn the_class_is_taken_after_a_window_of_traffic_on_an_idle_machine() {
    let mut s = Script::new(2);
    for _ in 0..4 {
        assert_eq!(s.pass(LOOK, 1.0, 100), Next::Look(LOOK));
        assert_eq!(s.judge.class(), Class::Normal);
    }
    assert_eq!(s.pass(LOOK, 1.0, 100), Next::Look(LOOK));
    assert_eq!(s.judge.class(), Class::Idle);
    // It stays as long as that is so.
    assert_eq!(s.go(ms(5000), 0.6).0, ms(0));
}

#[test]
fn without_traffic_it_is_given_back_and_nobody_looks_any_more() {
    let mut s = Script::new(2);
    s.go(ms(200), 1.0);
    assert_eq!(s.judge.class(), Class::Idle);
    let mut looks = 0;
    while s.pass(LOOK, 2.0, 1) != Next::Called {
        looks += 1;
    }
    assert!(looks <= 4, "{looks}");
    assert_eq!(s.judge.class(), Class::Normal);
}

#[test]
fn other_work_takes_it_away_within_a_window_and_for_longer_each_time() {
    let mut s = Script::new(2);
    let mut rests = Vec::new();
    for _ in 0..10 {
        while s.judge.class() == Class::Normal {
            s.go(LOOK, 1.0);
        }
        let (mut busy, mut next) = (ms(0), Next::Called);
        while s.judge.class() == Class::Idle {
            assert!(busy < WINDOW, "{busy:?}");
            next = s.pass(LOOK, 0.0, 100);
            busy += LOOK;
        }
        let Next::Look(rest) = next else { panic!("{next:?}") };
        rests.push(rest);
    }
    assert_eq!(rests[..3], [ms(100), ms(200), ms(400)]);
    assert_eq!(rests[9], REST_MAX);
    // A long time without such an end, and the next one is forgiven soon again.
    s.go(ms(100_000), 1.0);
    assert_eq!(s.judge.rest, REST);
}

#[test]
fn a_worker_that_does_not_get_to_run_ends_it_at_once() {
    let mut s = Script::new(2);
    s.go(ms(200), 1.0);
    assert_eq!(s.judge.class(), Class::Idle);
    s.sample.starved = true;
    s.pass(LOOK, 1.0, 100);
    assert_eq!(s.judge.class(), Class::Normal);
}

#[test]
fn one_cpu_or_none_to_spare_is_no_reason() {
    assert_eq!(Script::new(1).go(ms(1000), 1.0).1, ms(0));
    assert_eq!(Script::new(2).go(ms(1000), 0.4).1, ms(0));
    assert_eq!(Script::new(8).go(ms(1000), 3.0).1, ms(0));
    assert!(Script::new(8).go(ms(1000), 4.0).1 > ms(900));
}

proptest! {
    /// Whatever a machine does: beside other work the workers have the class for a small part of
    /// the time.
    #[test]
    fn load_that_comes_and_goes_finds_ordinary_workers(
        bursts in proptest::collection::vec((1u64..400, 1u64..400), 1..200),
    ) {
        let mut s = Script::new(2);
        let (mut busy, mut harmed) = (ms(0), ms(0));
        let mut next = LOOK;
        let mut load = bursts.iter().flat_map(|(calm, load)| [(*calm, 1.0), (*load, 0.0)]);
        let (mut left, mut idle) = (ms(0), 1.0);
        'all: loop {
            while left.is_zero() {
                let Some((time, to)) = load.next() else { break 'all };
                (left, idle) = (ms(time), to);
            }
            let step = left.min(next);
            if idle == 0.0 {
                busy += step;
                if s.judge.class() == Class::Idle {
                    harmed += step;
                }
            }
            left -= step;
            next -= step;
            s.sample.idle += step.mul_f64(idle);
            s.sample.at += step;
            s.sample.served += step.as_millis() as u64;
            if next.is_zero() {
                next = match s.judge.look(s.sample) {
                    Next::Look(time) => time,
                    Next::Called => LOOK,
                };
            }
        }
        // A window after each time that it was taken, and these come further and further apart.
        prop_assert!(harmed <= WINDOW * 4 + busy / 5, "{harmed:?} of {busy:?}");
    }
}

#[test]
fn workers_change_class_and_what_they_start_comes_back_with_them() {
    let able = std::thread::spawn(can_go_and_come_back).join().unwrap();
    if let Err(why) = able {
        eprintln!("skipped: {why}");
        return;
    }
    // Other tests' workers keep their class as long, and so do these threads for them.
    let _alone = REGISTER.state.lock();
    let posts = Posts::new();
    let (tell, told) = std::sync::mpsc::channel();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            let post = posts.take(Group::Queue(0));
            tell.send((Arc::clone(&post), None)).unwrap();
            while class(0) == Some(Class::Normal) {
                std::thread::yield_now();
            }
            std::thread::scope(|s| {
                s.spawn(move || {
                    tell.send((post, Some((rustix::thread::gettid(), class(0))))).unwrap();
                    let _ = wait.recv();
                    assert_eq!(class(0), Some(Class::Normal));
                });
            });
            assert_eq!(class(0), Some(Class::Normal));
        });
        let (post, _) = told.recv().unwrap();
        let workers = vec![post];
        let mut state = State { workers, class: Class::Normal, running: true, refused: false };
        change(&mut state, Class::Idle);
        assert_eq!(class(0), Some(Class::Normal), "this thread is none of the workers");
        let (_, child) = told.recv().unwrap();
        assert_eq!(child.unwrap().1, Some(Class::Idle), "threads inherit the class");
        change(&mut state, Class::Normal);
        drop(end);
    });
}

#[test]
fn a_request_that_does_not_come_on_is_starved_only_if_its_worker_could_run() {
    let posts = Posts::new();
    let post = posts.take(Group::Queue(0));
    let workers = vec![Arc::clone(&post)];
    let mut turns = Turns::default();
    let serving = post.serve(&InHeader::default());
    assert_eq!(turns.look(&workers), (0, false), "seen for the first time");
    assert_eq!(turns.look(&workers), (0, true), "this thread runs");
    post.beat();
    assert_eq!(turns.look(&workers), (0, false), "it came on");
    drop(serving);
    assert_eq!(turns.look(&workers), (1, false));

    let (tell, told) = std::sync::mpsc::channel();
    let (end, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            let post = Posts::new().take(Group::Queue(0));
            let _serving = post.serve(&InHeader::default());
            tell.send(Arc::clone(&post)).unwrap();
            let _ = wait.recv();
        });
        let post = told.recv().unwrap();
        while ready(post.thread()) {
            std::thread::yield_now();
        }
        let workers = vec![post];
        assert!(!turns.look(&workers).1);
        assert!(!turns.look(&workers).1, "it sleeps");
        drop(end);
    });
}

#[test]
fn the_machine_tells_its_idle_time() {
    let first = idle_time().unwrap();
    assert!(idle_time().unwrap() >= first);
}
