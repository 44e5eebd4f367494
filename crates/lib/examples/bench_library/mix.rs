//! Threads that all add 1 to K counters out of a hot set of M, by reading and writing a file for
//! each, and one long reader of all of them: how much gets done, what is lost, and who gets how
//! much of it.

use crate::update::replace;
use crate::{Args, Numbers, check, together, wrong};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systx::{Flags, State};

/// The work that all share.
struct Mix {
    dir: PathBuf,
    counters: Vec<PathBuf>,
    /// How many of them each takes.
    some: usize,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    Transactions(Flags),
    /// One lock file for all counters, each of which is replaced; durably or not.
    Lock(bool),
}

/// What one thread got.
#[derive(Default)]
struct Share {
    done: u64,
    /// Attempts that lost, and the most of them for one piece of work.
    lost: u64,
    longest: u64,
    /// The longest that what is done in an attempt took, without its begin and end.
    slowest: Duration,
    took: Duration,
}

/// A generator of picks (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }
}

fn value(path: &Path) -> io::Result<u64> {
    std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)
}

impl Mix {
    /// The next counters, in the order in which they come: who locked each would have to sort them.
    fn pick(&self, random: &mut Random) -> Vec<usize> {
        let mut picked: Vec<usize> = Vec::new();
        while picked.len() < self.some {
            let next = random.below(self.counters.len());
            if !picked.contains(&next) {
                picked.push(next);
            }
        }
        picked
    }

    fn sum(&self) -> io::Result<u64> {
        self.counters.iter().map(|path| value(path)).sum()
    }

    /// One attempt; `false`: it lost.
    fn attempt(&self, flags: Flags, body: impl Fn() -> io::Result<()>) -> io::Result<bool> {
        let transaction = match systx::begin(&self.dir, flags) {
            Ok(begun) => begun,
            Err(e) => return Err(io::Error::other(format!("begin: {e}"))),
        };
        let ended = body().and_then(|()| transaction.commit());
        match ended {
            Ok(()) => Ok(true),
            // What is done by one that has lost means nothing, errors included.
            Err(_) if systx::xstatus()?.state == State::Lost => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Attempts until one wins; `false`: the time is over.
    fn win(
        &self,
        flags: Flags,
        share: &mut Share,
        until: Instant,
        body: impl Fn() -> io::Result<()>,
    ) -> io::Result<bool> {
        let mut flags = flags;
        let mut lost = 0;
        let slowest = std::cell::Cell::new(Duration::ZERO);
        let timed = || {
            let begun = Instant::now();
            let done = body();
            slowest.set(slowest.get().max(begun.elapsed()));
            done
        };
        loop {
            let won = self.attempt(flags, timed)?;
            share.slowest = share.slowest.max(slowest.get());
            if won {
                return Ok(true);
            }
            lost += 1;
            share.lost += 1;
            share.longest = share.longest.max(lost);
            flags = flags | Flags::RETRY;
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    fn write(&self, picked: &[usize], sync: Option<bool>) -> io::Result<()> {
        for path in picked.iter().map(|n| &self.counters[*n]) {
            let text = (value(path)? + 1).to_string();
            match sync {
                None => std::fs::write(path, text)?,
                Some(sync) => replace(path, &text, sync)?,
            }
        }
        Ok(())
    }

    fn lock(&self) -> io::Result<File> {
        File::open(self.dir.join("lock"))
    }

    fn writer(&self, number: usize, until: Instant) -> io::Result<Share> {
        let (mut share, begun) = (Share::default(), Instant::now());
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
        let (lock, directory) = (self.lock()?, File::open(&self.dir)?);
        while Instant::now() < until {
            let picked = self.pick(&mut random);
            let done = match self.how {
                How::Transactions(flags) => {
                    self.win(flags, &mut share, until, || self.write(&picked, None))?
                }
                How::Lock(sync) => {
                    flock(&lock, FlockOperation::LockExclusive)?;
                    self.write(&picked, Some(sync))?;
                    if sync {
                        directory.sync_all()?;
                    }
                    flock(&lock, FlockOperation::Unlock)?;
                    true
                }
            };
            share.done += u64::from(done);
        }
        share.took = begun.elapsed();
        Ok(share)
    }

    fn reader(&self, frozen: bool, until: Instant) -> io::Result<Share> {
        let (mut share, begun) = (Share::default(), Instant::now());
        let lock = self.lock()?;
        let flags = if frozen { Flags::READ_ONLY } else { Flags::default() };
        while Instant::now() < until {
            let seen = std::cell::Cell::new(0);
            let done = match self.how {
                How::Transactions(_) => self.win(flags, &mut share, until, || {
                    seen.set(self.sum()?);
                    Ok(())
                })?,
                How::Lock(_) => {
                    flock(&lock, FlockOperation::LockShared)?;
                    seen.set(self.sum()?);
                    flock(&lock, FlockOperation::Unlock)?;
                    true
                }
            };
            let whole = seen.get().is_multiple_of(self.some as u64);
            check(!done || whole, || format!("the reader saw half of a change: {}", seen.get()))?;
            share.done += u64::from(done);
        }
        share.took = begun.elapsed();
        Ok(share)
    }
}

/// Jain's index: 1 if all get the same, 1 / threads if one gets all.
fn jain(shares: &[Share]) -> f64 {
    let of = |f: fn(f64) -> f64| -> f64 { shares.iter().map(|s| f(s.done as f64)).sum() };
    of(|n| n).powi(2) / (shares.len() as f64 * of(|n| n * n))
}

pub fn run(args: &mut Args) -> io::Result<Numbers> {
    let (dir, how) = (args.path()?, args.text()?);
    let (threads, time): (usize, Duration) = (args.number()?, args.seconds()?);
    let (some, all): (usize, usize) = (args.number()?, args.number()?);
    let reader = args.text()?;
    let how = match how.as_str() {
        "durable" => How::Transactions(Flags::default()),
        "relaxed" => How::Transactions(Flags::RELAXED),
        "lock" => How::Lock(true),
        "lock-nosync" => How::Lock(false),
        _ => return Err(wrong(format!("mix: no way {how:?}"))),
    };
    let reads = match reader.as_str() {
        "none" => 0,
        "reader" | "frozen" => 1,
        _ => return Err(wrong(format!("mix: no reader {reader:?}"))),
    };
    check((1..=all).contains(&some) && threads > 0, || "mix: K of M".into())?;
    let counters: Vec<_> = (0..all).map(|n| dir.join(format!("counter-{n}"))).collect();
    counters.iter().try_for_each(|path| std::fs::write(path, "0"))?;
    File::create(dir.join("lock"))?;
    let mix = Mix { dir, counters, some, how };
    let mut shares: Vec<Share> = together(threads + reads, time, |number| {
        if matches!(mix.how, How::Transactions(_)) {
            systx::begin(&mix.dir, Flags::default())?.commit()?;
        }
        let (mix, frozen) = (&mix, reader == "frozen");
        Ok(move |until| match number < threads {
            true => mix.writer(number, until),
            false => mix.reader(frozen, until),
        })
    })?;
    let read = shares.split_off(threads);
    let done: u64 = shares.iter().map(|s| s.done).sum();
    let sum = mix.sum()?;
    check(sum == done * some as u64, || format!("{done} commits of {some} left {sum}"))?;
    for path in mix.counters.iter().chain([&mix.dir.join("lock")]) {
        std::fs::remove_file(path)?;
    }
    let lost: u64 = shares.iter().map(|s| s.lost).sum();
    let took = shares.iter().map(|s| s.took).max().unwrap_or_default().as_secs_f64();
    let slowest = shares.iter().map(|s| s.slowest).max().unwrap_or_default();
    let most = shares.iter().map(|s| s.done).max().unwrap_or(0);
    let least = shares.iter().map(|s| s.done).min().unwrap_or(0);
    let mut numbers = vec![
        ("commits".into(), done as f64),
        ("per second".into(), done as f64 / took),
        ("lost per commit".into(), lost as f64 / done as f64),
        ("longest".into(), shares.iter().map(|s| s.longest).max().unwrap_or(0) as f64),
        ("slowest body, ms".into(), slowest.as_secs_f64() * 1e3),
        ("jain".into(), jain(&shares)),
        ("least to most".into(), least as f64 / most as f64),
    ];
    if let Some(read) = read.first() {
        numbers.push(("reads per second".into(), read.done as f64 / read.took.as_secs_f64()));
        numbers.push(("lost per read".into(), read.lost as f64 / read.done as f64));
        numbers.push(("longest of the reader".into(), read.longest as f64));
    }
    Ok(numbers)
}
