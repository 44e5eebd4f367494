//! Threads, transactions with intercepted calls, signals, processes and pipes, all at the same
//! time.

use crate::{open, read};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systx::Flags;
use systx_e2e::processes::{any_left, copied, fork, lent, shell};
use systx_e2e::random::Random;
use systx_e2e::signals::{self, raise};

const THREADS: u64 = 4;
/// Also on a machine that is slow: the rest of the rounds is left out then.
const LONGEST: Duration = Duration::from_secs(150);

/// Signals that threads sent themselves, as they were handled.
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Those that came from the side.
static DISTURBED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: i32) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn disturb(_: i32) {
    DISTURBED.fetch_add(1, Ordering::SeqCst);
}

/// What came of the rounds of one thread.
#[derive(Default)]
struct Done {
    committed: u64,
    /// What its log is to be.
    log: String,
    /// What is to come through the pipe.
    piped: Vec<String>,
    /// How often its signals are to be handled.
    signals: u64,
    lost: u64,
}

/// One thread of them.
struct Worker<'a> {
    dir: &'a Path,
    number: u64,
    random: Random,
    /// Opened before, like the next two.
    total: &'a File,
    log: File,
    pipe: &'a PipeWriter,
    done: Done,
}

fn open_numbers() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// `rounds` for each thread.
pub fn stress(dir: &Path, rounds: u64) {
    let seed = Random::from_environment().word();
    signals::on(libc::SIGUSR1, handle);
    signals::on(libc::SIGUSR2, disturb);
    let before = open_numbers();
    let until = Instant::now() + LONGEST;
    fs::write(dir.join("total"), format!("{:20}", 0)).unwrap();
    let total = open(&dir.join("total"));
    let (reader, writer) = io::pipe().unwrap();
    let reading = std::thread::spawn(move || {
        signals::block(&[libc::SIGUSR1, libc::SIGUSR2]);
        BufReader::new(reader).lines().collect::<Result<Vec<_>, _>>().unwrap()
    });
    let over = AtomicBool::new(false);
    let done: Vec<Done> = std::thread::scope(|s| {
        let (known, threads) = std::sync::mpsc::channel();
        let working: Vec<_> = (0..THREADS)
            .map(|number| {
                let known = known.clone();
                let (total, pipe, over) = (&total, &writer, &over);
                s.spawn(move || {
                    known.send(signals::Thread::this()).unwrap();
                    let name = dir.join(format!("log-{number}"));
                    fs::write(&name, "").unwrap();
                    let random = Random::new(seed ^ (number + 1).wrapping_mul(0x9e37_79b9));
                    let (log, done) = (open(&name), Done::default());
                    let mut worker = Worker { dir, number, random, total, log, pipe, done };
                    for round in 0..rounds {
                        if Instant::now() >= until {
                            break;
                        }
                        worker.round(round);
                    }
                    // Who disturbs it needs it alive.
                    while !over.load(Ordering::SeqCst) && Instant::now() < until + LONGEST {
                        std::thread::yield_now();
                    }
                    worker.done
                })
            })
            .collect();
        let threads: Vec<_> = (0..THREADS).map(|_| threads.recv().unwrap()).collect();
        drop(known);
        // Signals at any moment, until the first of them has done its part.
        let disturbing = s.spawn({
            let (over, working) = (&over, working.len());
            let mut random = Random::new(seed);
            move || {
                signals::block(&[libc::SIGUSR1, libc::SIGUSR2]);
                for _ in 0..rounds * 20 {
                    threads[random.below(working as u64) as usize].send(libc::SIGUSR2);
                    std::thread::sleep(Duration::from_micros(random.below(2000)));
                }
                over.store(true, Ordering::SeqCst);
            }
        });
        disturbing.join().unwrap();
        working.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(writer);
    let piped = reading.join().unwrap();
    for (number, done) in done.iter().enumerate() {
        assert_eq!(read(dir.join(format!("log-{number}"))), done.log, "of thread {number}");
        let its = format!("{number} ");
        let of_it: Vec<_> = piped.iter().filter(|line| line.starts_with(&its)).cloned().collect();
        assert_eq!(of_it, done.piped, "of thread {number}");
    }
    let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>();
    assert_eq!(read(dir.join("total")).trim(), sum(|done| done.committed).to_string());
    assert_eq!(HANDLED.load(Ordering::SeqCst), sum(|done| done.signals));
    assert!(DISTURBED.load(Ordering::SeqCst) > 0);
    assert!(!any_left(), "a process that nobody waited for");
    let names = fs::read_dir(dir).unwrap().count() as u64;
    assert_eq!(names, THREADS + 1, "a temporary file");
    drop(total);
    assert_eq!(open_numbers(), before, "descriptors");
    let (committed, lost) = (sum(|done| done.committed), sum(|done| done.lost));
    eprintln!("{committed} committed, {lost} lost");
}

/// What one attempt would leave if it is committed.
#[derive(Default)]
struct Attempt {
    log: String,
    piped: Vec<String>,
}

impl Worker<'_> {
    fn round(&mut self, round: u64) {
        let [mode, kinds, aborts] = [3, 1 << 6, 8].map(|n| self.random.below(n));
        let mut flags = Flags::DESCRIPTORS | Flags::PIPES_HELD | Flags::SIGNALS_HELD;
        flags = match mode {
            0 => flags | Flags::SIGNALS_DEFERRED,
            1 => flags | Flags::SIGNALS_SPECULATIVE,
            _ => flags,
        };
        let mut retry = Flags::default();
        for attempt in 0.. {
            let tx = match systx::begin(self.dir, flags | retry) {
                Ok(tx) => tx,
                Err(e) => panic!("thread {}, round {round}: {e}", self.number),
            };
            let (signals, mut would) = (1 + (kinds & 1), Attempt::default());
            (0..signals).for_each(|_| raise(libc::SIGUSR1));
            let worked = self.attempt(round, attempt, kinds, &mut would);
            let aborted = worked.is_ok() && aborts == 0 && attempt == 0;
            let committed =
                if aborted { tx.abort().map(|()| false) } else { tx.commit().map(|()| true) };
            // What was taken at once is taken again after an abort.
            let again = mode == 1 && !matches!(committed, Ok(true));
            self.done.signals += signals * (1 + u64::from(again));
            match (worked, committed) {
                (Ok(()), Ok(true)) => {
                    self.done.committed += 1;
                    self.done.log += &would.log;
                    self.done.piped.append(&mut would.piped);
                    return;
                }
                (Ok(()), Ok(false)) => return,
                (_, Err(e)) if e.raw_os_error() == Some(libc::ECANCELED) => {
                    self.done.lost += 1;
                    retry = Flags::RETRY;
                }
                (worked, committed) => {
                    panic!("thread {}, round {round}: {worked:?}, {committed:?}", self.number)
                }
            }
        }
    }

    /// Something of everything; an error only if the transaction has lost.
    fn attempt(
        &mut self,
        round: u64,
        attempt: u64,
        kinds: u64,
        would: &mut Attempt,
    ) -> io::Result<()> {
        let id = format!("{} {round} {attempt}", self.number);
        let has = |kind: u64| kinds & (1 << kind) != 0;
        let line = |who: &str| format!("{id} {who}\n");
        let mut log = |text: String| -> io::Result<String> {
            would.log += &text;
            Ok(text)
        };
        let by_thread = log(line("thread"))?;
        (&self.log).write_all(by_thread.as_bytes())?;
        if has(1) {
            let text = log(line("fork"))?;
            let mut to = &self.log;
            ended(fork(&mut || to.write_all(text.as_bytes()).map_or(1, |()| 0)).wait())?;
        }
        if has(2) {
            let text = log(line("lent"))?;
            let mut to = &self.log;
            ended(lent(&mut || to.write_all(text.as_bytes()).map_or(1, |()| 0)).wait())?;
            ended(lent(&mut || shell(c"exit 0")).wait())?;
        }
        if has(3) {
            let text = log(line("spawned"))?;
            let out = self.log.try_clone()?;
            ended(Command::new("printf").args(["%s", &text]).stdout(out).status()?)?;
        }
        if has(4) {
            let told = Command::new("sh").args(["-c", "echo inside"]).output()?;
            ended(told.status)?;
            if told.stdout != b"inside\n" {
                return Err(io::Error::other("what came through a pipe from inside"));
            }
            ended(copied(&mut || shell(c"exit 0")).wait())?;
        }
        // With names that come and go.
        let temporary = self.dir.join(format!("temporary-{}", self.number));
        fs::write(&temporary, &by_thread)?;
        let mut pipe = self.pipe;
        pipe.write_all(by_thread.as_bytes())?;
        would.piped.push(by_thread.trim_end().to_owned());
        // Everybody changes this one.
        let mut bytes = [0; 20];
        self.total.read_exact_at(&mut bytes, 0)?;
        let total: u64 = std::str::from_utf8(&bytes)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| io::Error::other("no number"))?;
        self.total.write_all_at(format!("{:20}", total + 1).as_bytes(), 0)?;
        if has(5) {
            ended(fork(&mut || i32::from(fs::remove_file(&temporary).is_err())).wait())
        } else {
            fs::remove_file(&temporary)
        }
    }
}

/// In a transaction that has lost a process is refused what it asks for, and says so; a signal that
/// ends it nobody has sent.
fn ended(status: ExitStatus) -> io::Result<()> {
    assert_eq!(status.signal(), None, "{status}");
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{status}"))) }
}
