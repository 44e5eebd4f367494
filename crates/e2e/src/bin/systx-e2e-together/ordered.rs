//! Cases of the suite `ordered`.

use crate::lasting::share_of;
use crate::{Sibling, errno};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;
use systx::{Begin, Flags, State};

/// Runs a case, if it is one of these.
pub fn run(case: &str, dir: &Path, number: u64) -> bool {
    match case {
        "numbers" => numbers(dir),
        "missing" => missing(dir),
        "replay" => replay(dir, number),
        "pipeline" => pipeline(dir, number),
        "lasting-0" => share_of(dir, number, 0),
        "lasting-1" => share_of(dir, number, 1),
        _ => return false,
    }
    true
}

const MINUTE: Duration = Duration::from_secs(60);

/// Numbers are used up by commits, also of nothing, and by nothing else.
fn numbers(dir: &Path) {
    let begin = |number| systx::begin(dir, Begin::ordered("n", number));
    systx::set_patience(MINUTE);
    let next = || systx::next_order(Some(dir), "n").unwrap();
    assert_eq!(next(), 0);
    begin(0).unwrap().commit().unwrap();
    assert_eq!(next(), 1);
    assert_eq!(errno(begin(0)), Some(libc::EEXIST));
    let told = systx::xstatus().unwrap();
    assert_eq!((told.state, systx::xid()), (State::Failed, 0), "{told:?}");
    assert!(told.words.contains("1 comes next"), "{told:?}");
    // An abort leaves the number to the next attempt.
    let tx = begin(1).unwrap();
    fs::write(dir.join("a"), "dropped").unwrap();
    tx.abort().unwrap();
    // Two at once cannot have it, nor can the order be reset meanwhile.
    let (sibling, place) = (Sibling::new(), dir.to_owned());
    let tx = begin(1).unwrap();
    fs::write(dir.join("a"), "one").unwrap();
    sibling.run(move || {
        let begin = |number| systx::begin(&place, Begin::ordered("n", number));
        assert_eq!(errno(begin(1)), Some(libc::EBUSY));
        assert_eq!(errno(systx::reset_order(Some(&place), "n", 9)), Some(libc::EBUSY));
        // What only counts has no number.
        let outer = systx::begin(&place, Begin::default()).unwrap();
        assert_eq!(errno(begin(5)), Some(libc::EINVAL));
        systx::begin(&place, Begin::default()).unwrap().commit().unwrap();
        outer.commit().unwrap();
    });
    // Neither has who was made inside.
    let inside = std::thread::scope(|s| s.spawn(|| errno(begin(5))).join().unwrap());
    assert_eq!(inside, Some(libc::EINVAL));
    tx.commit().unwrap();
    assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "one");
    assert_eq!(next(), 2);
    systx::reset_order(Some(dir), "n", 7).unwrap();
    assert_eq!((next(), errno(begin(6))), (7, Some(libc::EEXIST)));
    begin(7).unwrap().commit().unwrap();
    // One that only reads uses its number up, too.
    let reads = Begin { flags: Flags::READ_ONLY, ..Begin::ordered("n", 8) };
    systx::begin(dir, reads).unwrap().commit().unwrap();
    assert_eq!(next(), 9);
    systx::reset_order(Some(dir), "n", 0).unwrap();
    assert_eq!(next(), 0);
    begin(0).unwrap().commit().unwrap();
    let wrong = |name: &str| errno(systx::begin(dir, Begin::ordered(name, 0)));
    assert_eq!(wrong(""), Some(libc::EINVAL));
    assert_eq!(wrong(&"x".repeat(65)), Some(libc::EINVAL));
    assert_eq!(errno(systx::next_order(Some(dir), "")), Some(libc::EINVAL));
    systx::begin(dir, Begin::ordered(&"x".repeat(64), 0)).unwrap().commit().unwrap();
    // Another order has numbers of its own.
    systx::begin(dir, Begin::ordered("m", 0)).unwrap().commit().unwrap();
}

/// A number that does not come is named; who waits for it is open until it gives up, and goes on
/// when it comes.
fn missing(dir: &Path) {
    systx::set_patience(Duration::from_millis(1));
    let sibling = Sibling::new();
    let tx = systx::begin(dir, Begin::ordered("n", 2)).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    std::env::set_current_dir(dir.join("sub")).unwrap();
    fs::write("two", "2").unwrap();
    let waits = |who: &str| {
        // Whoever has the number may sleep.
        let late = errno(systx::xend());
        assert!(matches!(late, Some(libc::ETIMEDOUT | libc::EDEADLK)), "{late:?}");
        let told = systx::xstatus().unwrap();
        assert_eq!((told.state, told.id), (State::Open, systx::xid()), "{told:?}");
        assert!(told.words.contains(who), "{told:?}");
        // It is where it was.
        assert_eq!(std::env::current_dir().unwrap(), dir.join("sub"));
        assert_eq!(fs::read_to_string("two").unwrap(), "2");
    };
    waits("waits for number 0, which nobody has begun");
    let place = dir.to_owned();
    sibling.run(move || {
        systx::begin(&place, Begin::ordered("n", 0)).unwrap().commit().unwrap();
        systx::xbegin(Some(&place), Begin::ordered("n", 1)).unwrap();
        fs::write(place.join("one"), "1").unwrap();
    });
    waits("systx-e2e-together");
    waits("waits for number 1: transaction ");
    systx::set_patience(MINUTE);
    let first = sibling.start(|| systx::xend().unwrap());
    tx.commit().unwrap();
    first.wait();
    assert_eq!(std::env::current_dir().unwrap(), dir.join("sub"));
    assert_eq!(fs::read_to_string(dir.join("one")).unwrap(), "1");
    assert_eq!(fs::read_to_string(dir.join("sub/two")).unwrap(), "2");
    std::env::set_current_dir("/").unwrap();
    // What gives up leaves the reason.
    systx::set_patience(Duration::ZERO);
    let given_up = systx::atomic(dir, Begin::ordered("n", 9), |_| Ok(()));
    assert_eq!(errno(given_up), Some(libc::ETIMEDOUT));
    let told = systx::xstatus().unwrap();
    assert!(told.state == State::Aborted && told.words.contains("number 3"), "{told:?}");
}

/// What number `n` does: it depends on what all before it did, and on the order in which they did
/// it.
fn step(n: u64, from: u64) -> u64 {
    (from ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

fn value(dir: &Path, file: u64) -> io::Result<u64> {
    match fs::read_to_string(dir.join(format!("f{file}"))) {
        Ok(text) => text.parse().map_err(|_| io::Error::other(format!("f{file}: {text:?}"))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Threads that take numbers from all over the range, each of which reads one file and changes
/// another: the end is that of doing them one after another.
fn replay(dir: &Path, numbers: u64) {
    const THREADS: u64 = 4;
    const FILES: u64 = 3;
    systx::set_patience(Duration::from_secs(240));
    let files = |n: u64| (n * 7 % FILES, n * 5 % (FILES + 1) % FILES);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            s.spawn(move || {
                for n in (0..numbers).filter(|n| n % THREADS == thread) {
                    let (from, to) = files(n);
                    systx::atomic(dir, Begin::ordered("replay", n), |_| {
                        let text = step(n, value(dir, from)?).to_string();
                        if n % 5 == 0 {
                            // By another name and a rename, as editors do.
                            let new = dir.join(format!("new{to}"));
                            fs::write(&new, text)?;
                            return fs::rename(new, dir.join(format!("f{to}")));
                        }
                        fs::write(dir.join(format!("f{to}")), text)
                    })
                    .unwrap_or_else(|e| panic!("{n}: {e}, {:?}", systx::xstatus()));
                }
            });
        }
    });
    let mut want = vec![0; FILES as usize];
    for n in 0..numbers {
        let (from, to) = files(n);
        want[to as usize] = step(n, want[from as usize]);
    }
    let seen: Vec<u64> = (0..FILES).map(|f| value(dir, f).unwrap()).collect();
    assert_eq!(seen, want);
}

/// All numbers have done their work before the first one is committed, and then come one after
/// another; those that have nothing in common lose nothing.
fn pipeline(dir: &Path, numbers: u64) {
    systx::set_patience(Duration::from_secs(240));
    let ready = Barrier::new(numbers as usize);
    let lost = std::thread::scope(|s| {
        let ready = &ready;
        let start = |n: u64| {
            s.spawn(move || {
                let own = dir.join(format!("own{n}"));
                fs::create_dir(&own).unwrap();
                ready.wait();
                let tx = systx::begin(&own, Begin::ordered("pipeline", n)).unwrap();
                fs::write(own.join("x"), n.to_string()).unwrap();
                ready.wait();
                // Whoever comes later sees what came before.
                tx.commit().is_err()
            })
        };
        let threads: Vec<_> = (0..numbers).rev().map(start).collect();
        threads.into_iter().filter_map(|t| t.join().unwrap().then_some(())).count()
    });
    assert_eq!(lost, 0);
    let tx = systx::begin(dir, Flags::READ_ONLY).unwrap();
    for n in 0..numbers {
        assert_eq!(fs::read_to_string(dir.join(format!("own{n}/x"))).unwrap(), n.to_string());
    }
    tx.commit().unwrap();
}
