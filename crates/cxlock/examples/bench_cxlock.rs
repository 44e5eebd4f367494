//! Measures sections of a table under several kinds of locks: what `bench/cxlock` runs.
//!
//! `bench_cxlock KIND THREADS OPERATIONS SHARED MILLISECONDS CALLS` prints sections per second.  A
//! section does `OPERATIONS` updates of slots of its thread, or of all threads' if `SHARED` is 1;
//! one section in `CALLS` asks the kernel for something (0: none does).  The sum of the table is
//! checked.

use cxlock::{CxLock, Native, Tx, TxCell};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SLOTS: usize = 1 << 14;

/// A cell on a cache line of its own.
#[repr(align(64))]
struct Slot(TxCell<u64>);

#[repr(align(64))]
#[derive(Clone)]
struct Plain(u64);

/// The slots of one section.
struct Walk {
    state: u64,
    thread: usize,
    threads: usize,
    shared: bool,
}

impl Walk {
    fn next(&mut self) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let slot = (self.state >> 40) as usize % (SLOTS / self.threads);
        if self.shared { slot } else { slot * self.threads + self.thread }
    }
}

struct Setting {
    threads: usize,
    operations: usize,
    shared: bool,
    time: Duration,
    calls: u64,
    null: File,
}

impl Setting {
    /// Whether a section asks the kernel, and what it asks for.
    fn asks(&self, section: u64) -> bool {
        self.calls != 0 && section.is_multiple_of(self.calls)
    }

    fn ask(&self) {
        (&self.null).write_all(b"x").expect("it takes everything");
    }
}

/// By which kind of section of a cooperative lock.
#[derive(Clone, Copy)]
enum How {
    Optimistic,
    Exclusive,
    /// One in sixteen exclusive: call sites of both kinds at one lock.
    Mixed,
}

/// Runs `section` in all threads for some time; sections done, and seconds.
fn measure(setting: &Setting, section: impl Fn(&[usize], u64) + Sync) -> (u64, f64) {
    let (start, stop) = (Barrier::new(setting.threads + 1), AtomicBool::new(false));
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..setting.threads)
            .map(|thread| {
                let (start, stop, section) = (&start, &stop, &section);
                s.spawn(move || {
                    let mut walk = Walk {
                        state: thread as u64 + 1,
                        thread,
                        threads: setting.threads,
                        shared: setting.shared,
                    };
                    let mut slots = vec![0; setting.operations];
                    let mut done = 0;
                    start.wait();
                    while !stop.load(Ordering::Relaxed) {
                        slots.fill_with(|| walk.next());
                        section(black_box(&slots), done);
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        std::thread::sleep(setting.time);
        stop.store(true, Ordering::Relaxed);
        let done = threads.into_iter().map(|t| t.join().expect("it ends")).sum();
        (done, begun.elapsed().as_secs_f64())
    })
}

/// What a section does.
fn update<'t>(
    setting: &Setting,
    t: &Tx<'t, '_, Native>,
    table: &'t [Slot],
    slots: &[usize],
    asks: bool,
) {
    for slot in slots {
        table[*slot].0.update(t, |n| n + 1);
    }
    if asks {
        t.io(|| setting.ask());
    }
}

fn cells(setting: &Setting, how: How) -> (u64, f64, u64) {
    let lock = CxLock::new((0..SLOTS).map(|_| Slot(TxCell::new(0))).collect::<Vec<_>>());
    let (done, seconds) = measure(setting, |slots, section| {
        let asks = setting.asks(section);
        match how {
            How::Mixed if section.is_multiple_of(16) => {
                lock.exclusive(|t, table| update(setting, t, table, slots, asks));
            }
            How::Exclusive => lock.exclusive(|t, table| update(setting, t, table, slots, asks)),
            How::Optimistic | How::Mixed => {
                lock.optimistic(|t, table| update(setting, t, table, slots, asks));
            }
        }
    });
    let sum = lock.into_inner().into_iter().map(|slot| slot.0.into_inner()).sum();
    (done, seconds, sum)
}

fn mutex(setting: &Setting) -> (u64, f64, u64) {
    let table = Mutex::new(vec![Plain(0); SLOTS]);
    let (done, seconds) = measure(setting, |slots, section| {
        let mut table = table.lock();
        for slot in slots {
            table[*slot].0 += 1;
        }
        if setting.asks(section) {
            setting.ask();
        }
    });
    (done, seconds, table.into_inner().iter().map(|slot| slot.0).sum())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, numbers @ ..] = arguments.as_slice() else {
        eprintln!("usage: bench_cxlock KIND THREADS OPERATIONS SHARED MILLISECONDS CALLS");
        return ExitCode::FAILURE;
    };
    let numbers: Vec<u64> = numbers.iter().filter_map(|n| n.parse().ok()).collect();
    let [threads, operations, shared, milliseconds, calls] = numbers[..] else {
        eprintln!("five numbers are needed");
        return ExitCode::FAILURE;
    };
    let setting = Setting {
        threads: threads as usize,
        operations: operations as usize,
        shared: shared != 0,
        time: Duration::from_millis(milliseconds),
        calls,
        null: OpenOptions::new().write(true).open("/dev/null").expect("every machine has it"),
    };
    let (done, seconds, sum) = match kind.as_str() {
        "optimistic" => cells(&setting, How::Optimistic),
        "exclusive" => cells(&setting, How::Exclusive),
        "mixed" => cells(&setting, How::Mixed),
        "parking_lot" => mutex(&setting),
        other => {
            eprintln!("{other}: no such kind");
            return ExitCode::FAILURE;
        }
    };
    assert_eq!(sum, done * operations, "updates are lost");
    println!("{:.0}", done as f64 / seconds);
    ExitCode::SUCCESS
}
