//! Cases of the suite `composing`: transactions together with other synchronisation, after Table 1
//! of TxOS+ (EuroSys'12).

use crate::{Sibling, errno, tid, waits};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use systx::{Begin, Flags, State};

/// Runs a case, if it is one of these.
pub fn run(case: &str, dir: &Path, number: u64) -> bool {
    match case {
        "goodfutex" => goodfutex(dir),
        "badfutex" => badfutex(dir),
        "orderedfutex" => orderedfutex(dir),
        "mutex" => mutex(dir, number),
        "ordered-p/c" => ordered_pc(dir, number),
        "pipe-p/c" => pipe_pc(dir, number),
        "lockfile" => lockfile(dir),
        "pipe" => pipe(dir),
        "at-work" => at_work(dir),
        _ => return false,
    }
    true
}

const LONG: Duration = Duration::from_secs(240);

/// A condition that threads sleep for.
#[derive(Default)]
struct Gate(Mutex<bool>, Condvar);

impl Gate {
    fn open(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let open = self.0.lock().unwrap();
        drop(self.1.wait_while(open, |open| !*open).unwrap());
    }

    /// Whether it was open within a while.
    fn pass_within(&self, limit: Duration) -> bool {
        let open = self.0.lock().unwrap();
        *self.1.wait_timeout_while(open, limit, |open| !*open).unwrap().0
    }
}

fn text(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

fn add(path: &Path, line: &str) -> io::Result<()> {
    let before = text(path)?;
    fs::write(path, format!("{before}{line} "))
}

/// One waits inside for what another one does after a transaction that is in conflict with it: the
/// sleeper loses at the other's first attempt, though it is older, and hears of it when it wakes.
fn goodfutex(dir: &Path) {
    let (inner, attempts, sleeper) = <(Gate, AtomicU64, AtomicU64)>::default();
    let file = dir.join("f");
    std::thread::scope(|s| {
        s.spawn(|| {
            sleeper.store(tid(), SeqCst);
            systx::atomic(dir, Flags::default(), |_| {
                attempts.fetch_add(1, SeqCst);
                add(&file, "sleeper")?;
                inner.pass();
                Ok(())
            })
            .unwrap();
        });
        waits(|| attempts.load(SeqCst) == 1 && asleep(sleeper.load(SeqCst)));
        let tx = systx::begin(dir, Flags::default()).unwrap();
        add(&file, "other").unwrap();
        tx.commit().unwrap();
        assert_eq!(systx::xstatus().unwrap().retries, 0);
        inner.open();
    });
    assert_eq!(attempts.load(SeqCst), 2);
    assert_eq!(text(&file).unwrap(), "other sleeper ");
}

/// Whether a thread of this process sleeps for a futex.
fn asleep(tid: u64) -> bool {
    let call = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap_or_default();
    call.split(' ').next() == Some("202")
}

/// One takes a lock inside of transactions, the other one holds it around its own, and both write
/// one file: whoever comes second makes the first one lose, for ever. One of them is told.
fn badfutex(dir: &Path) {
    let lock = Gate::default();
    // How often the file was written by who takes the lock inside.
    let (touched, changed) = (Mutex::new(0_u64), Condvar::new());
    let told = AtomicBool::new(false);
    let file = dir.join("f");
    let report = || {
        let status = systx::xstatus().unwrap();
        assert!(status.words.contains("held around transactions"), "{status:?}");
        let _touched = touched.lock().unwrap();
        told.store(true, SeqCst);
        changed.notify_all();
    };
    std::thread::scope(|s| {
        // It holds the lock until somebody is told.
        s.spawn(|| {
            let mut flags = Flags::default();
            while !told.load(SeqCst) {
                let tx = match systx::begin(dir, flags) {
                    Ok(tx) => tx,
                    Err(e) if e.raw_os_error() == Some(libc::EDEADLK) => {
                        report();
                        break;
                    }
                    Err(e) => panic!("{e}"),
                };
                flags = Flags::RETRY;
                let before = *touched.lock().unwrap();
                if fs::write(&file, "holder").is_err() {
                    continue;
                }
                let same = |now: &mut u64| *now == before && !told.load(SeqCst);
                drop(changed.wait_while(touched.lock().unwrap(), same).unwrap());
                if tx.commit().is_ok() {
                    // The other one is still in its way, so it did not lose by this attempt.
                    flags = Flags::default();
                }
            }
            lock.open();
        });
        let mut flags = Flags::default();
        loop {
            let tx = match systx::begin(dir, flags) {
                Ok(tx) => tx,
                Err(e) if e.raw_os_error() == Some(libc::EDEADLK) => {
                    report();
                    flags = Flags::RETRY;
                    continue;
                }
                Err(e) => panic!("{e}"),
            };
            flags = Flags::RETRY;
            let wrote = add(&file, "taker").is_ok();
            if !wrote {
                continue;
            }
            *touched.lock().unwrap() += 1;
            changed.notify_all();
            while systx::xstatus().unwrap().state == State::Open
                && !lock.pass_within(Duration::from_millis(200))
            {}
            if tx.commit().is_ok() {
                break;
            }
        }
    });
    assert!(told.load(SeqCst));
}

/// The second of an order takes a lock and waits for its turn with it; the first one waits for the
/// lock, inside. That cannot end, and the second is told so: it knows the number, and what that one
/// does.
fn orderedfutex(dir: &Path) {
    systx::set_patience(Duration::from_millis(1));
    let lock = Arc::new(Gate::default());
    let (sibling, place, theirs) = (Sibling::new(), dir.to_owned(), Arc::clone(&lock));
    let second = systx::begin(dir, Begin::ordered("o", 1)).unwrap();
    fs::write(dir.join("second"), "x").unwrap();
    let first = sibling.start(move || {
        let tx = systx::begin(&place, Begin::ordered("o", 0)).unwrap();
        theirs.pass();
        fs::write(place.join("first"), "x").unwrap();
        tx.commit().unwrap();
    });
    waits(|| match errno(systx::xend()) {
        Some(libc::EDEADLK) => true,
        // It has not begun, or not gone to sleep.
        Some(libc::ETIMEDOUT) => false,
        other => panic!("{other:?}"),
    });
    let told = systx::xstatus().unwrap();
    assert!(told.words.contains("number 0") && told.words.contains("a futex"), "{told:?}");
    assert_eq!(told.state, State::Open);
    systx::set_patience(LONG);
    // It gives the lock back, and all is well.
    lock.open();
    second.commit().unwrap();
    first.wait();
    assert!(dir.join("first").exists() && dir.join("second").exists());
}

/// Mutexes that are taken and given back inside, and around: both are fine.
fn mutex(dir: &Path, rounds: u64) {
    const THREADS: u64 = 3;
    let (inside, around) = (Mutex::new(()), Mutex::new(()));
    let number = |name: &str| text(&dir.join(name)).map(|t| t.trim().parse::<u64>().unwrap_or(0));
    let raise = |name: &str| fs::write(dir.join(name), (number(name)? + 1).to_string());
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (inside, around, raise) = (&inside, &around, &raise);
            s.spawn(move || {
                for round in 0..rounds {
                    let held = (round % 3 == 0).then(|| around.lock().unwrap());
                    systx::atomic(dir, Flags::default(), |_| {
                        // In both sequences, so that one has what the other wants while it sleeps.
                        let (first, second) = if thread % 2 == 0 { ("a", "b") } else { ("b", "a") };
                        raise(first)?;
                        let guard = inside.lock().unwrap();
                        raise(second)?;
                        drop(guard);
                        Ok(())
                    })
                    .unwrap();
                    drop(held);
                }
            });
        }
    });
    let want = THREADS * rounds;
    assert_eq!((number("a").unwrap(), number("b").unwrap()), (want, want));
}

/// Producers fill an array, consumers wait for its places and write them to a file: the order of
/// transactions alone is enough.
fn ordered_pc(dir: &Path, items: u64) {
    systx::set_patience(LONG);
    let array: Vec<(Gate, AtomicU64)> = (0..items).map(|_| Default::default()).collect();
    let out = dir.join("out");
    std::thread::scope(|s| {
        for (k, (full, item)) in (0..items).zip(&array) {
            let out = &out;
            s.spawn(move || {
                systx::atomic(dir, Begin::ordered("items", 2 * k + 1), |_| {
                    full.pass();
                    add(out, &item.load(SeqCst).to_string())
                })
                .unwrap();
            });
            s.spawn(move || {
                systx::atomic(dir, Begin::ordered("items", 2 * k), |_| {
                    item.store(100 + k, SeqCst);
                    full.open();
                    fs::write(dir.join(format!("made{k}")), "x")
                })
                .unwrap();
            });
        }
    });
    let want: String = (0..items).map(|k| format!("{} ", 100 + k)).collect();
    assert_eq!(text(&out).unwrap(), want);
}

/// The same with a pipe of the system.
fn pipe_pc(dir: &Path, items: u64) {
    systx::set_patience(LONG);
    let (mut read, mut write) = io::pipe().unwrap();
    let out = dir.join("out");
    std::thread::scope(|s| {
        s.spawn(|| {
            for k in 0..items {
                // What went into the pipe is there, whatever becomes of the attempt.
                let mut got = None;
                systx::atomic(dir, Begin::ordered("items", 2 * k + 1), |_| {
                    if got.is_none() {
                        let mut byte = [0];
                        read.read_exact(&mut byte)?;
                        got = Some(byte[0]);
                    }
                    add(&out, &got.unwrap_or(0).to_string())
                })
                .unwrap();
            }
        });
        for k in 0..items {
            let mut sent = false;
            systx::atomic(dir, Begin::ordered("items", 2 * k), |_| {
                add(&dir.join("made"), &k.to_string())?;
                if !std::mem::replace(&mut sent, true) {
                    write.write_all(&[k as u8])?;
                }
                Ok(())
            })
            .unwrap();
        }
    });
    let want: String = (0..items).map(|k| format!("{k} ")).collect();
    assert_eq!((text(&out).unwrap(), text(&dir.join("made")).unwrap()), (want.clone(), want));
}

/// A transaction that looks for a file again and again hears that it has lost, whether a plain
/// program makes the file or another transaction.
fn lockfile(dir: &Path) {
    fs::create_dir(dir.join("sub")).unwrap();
    for (name, plain) in [("lock", true), ("other", false), ("sub/deep", true)] {
        let (seen, lost) = (AtomicBool::new(false), AtomicU64::new(0));
        let file = dir.join(name);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut attempt = 0;
                systx::atomic(dir, Flags::default(), |_| {
                    lost.store(attempt, SeqCst);
                    attempt += 1;
                    fs::read_dir(dir)?.count();
                    // Any error is that it has lost.
                    while !file.try_exists()? {
                        seen.store(true, SeqCst);
                        std::thread::yield_now();
                    }
                    Ok(())
                })
                .unwrap();
            });
            waits(|| seen.load(SeqCst));
            if plain {
                fs::write(&file, "x").unwrap();
            } else {
                systx::atomic(dir, Flags::default(), |_| fs::write(&file, "x")).unwrap();
            }
        });
        assert!(lost.load(SeqCst) >= 1, "{name}: what was seen first was not there");
    }
}

/// A reader of a pipe is in conflict with its writer: the reader loses, and gets its byte.
fn pipe(dir: &Path) {
    let (mut read, mut write) = io::pipe().unwrap();
    let (attempts, reader) = <(AtomicU64, AtomicU64)>::default();
    let file = dir.join("f");
    std::thread::scope(|s| {
        s.spawn(|| {
            reader.store(tid(), SeqCst);
            let mut got = None;
            systx::atomic(dir, Flags::default(), |_| {
                attempts.fetch_add(1, SeqCst);
                add(&file, "reader")?;
                if got.is_none() {
                    let mut byte = [0];
                    read.read_exact(&mut byte)?;
                    got = Some(byte[0]);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(got, Some(b'!'));
        });
        let reads = || {
            let path = format!("/proc/self/task/{}/syscall", reader.load(SeqCst));
            fs::read_to_string(path).unwrap_or_default().starts_with("0 ")
        };
        waits(|| attempts.load(SeqCst) == 1 && reads());
        // Its first read may have been of the file.
        systx::atomic(dir, Flags::default(), |_| add(&file, "writer")).unwrap();
        write.write_all(b"!").unwrap();
    });
    assert!(attempts.load(SeqCst) >= 2);
    assert_eq!(text(&file).unwrap(), "writer reader ");
}

/// Who sleeps for somebody that works in the same transaction does not sleep.
fn at_work(dir: &Path) {
    let lost = AtomicBool::new(false);
    let (sibling, place) = (Sibling::new(), dir.to_owned());
    let tx = systx::begin(dir, Flags::default()).unwrap();
    fs::write(dir.join("f"), "mine").unwrap();
    let me = tid();
    std::thread::scope(|s| {
        // Made inside.
        s.spawn(|| {
            waits(|| asleep(me));
            let other = sibling.start(move || {
                let tx = systx::begin(&place, Flags::default()).unwrap();
                errno(fs::write(place.join("f"), "theirs").and_then(|()| tx.commit()))
            });
            let answer = loop {
                match other.poll() {
                    Some(answer) => break answer,
                    None => std::hint::spin_loop(),
                }
            };
            lost.store(answer == Some(libc::ECANCELED), SeqCst);
        });
    });
    assert!(lost.load(SeqCst));
    tx.commit().unwrap();
    assert_eq!(text(&dir.join("f")).unwrap(), "mine");
}
