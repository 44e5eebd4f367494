//! What `bench/library` measures, without an interpreter in it. Each prints one JSON object of
//! numbers:
//!
//! ```text
//! bench_library empty  DIR BATCHES CALLS            a transaction of nothing, microseconds
//! bench_library calls  DIR HOW BATCHES CALLS        a call of TxOS Table 4, microseconds
//! bench_library region DIR HOW BATCHES CALLS        a call inside and outside of a region, microseconds
//! bench_library update DIR HOW THREADS SECONDS      four files at once
//! bench_library mix    DIR HOW THREADS SECONDS K M READER   K counters out of a hot set of M
//! ```
//! DIR is guarded, unless HOW says that nothing of systx is used. Work is checked: a program that
//! ends with success has done what the numbers are about.

mod calls;
mod empty;
mod mix;
mod region;
mod update;

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// What is printed: names and numbers, in this order.
type Numbers = Vec<(String, f64)>;

/// The arguments that are left.
struct Args(std::iter::Skip<std::env::Args>);

impl Args {
    fn text(&mut self) -> io::Result<String> {
        self.0.next().ok_or_else(|| wrong("an argument is missing"))
    }

    fn number<T: FromStr>(&mut self) -> io::Result<T> {
        let text = self.text()?;
        text.parse().map_err(|_| wrong(format!("{text:?} is no such number")))
    }

    fn path(&mut self) -> io::Result<PathBuf> {
        self.text().map(PathBuf::from)
    }

    fn seconds(&mut self) -> io::Result<Duration> {
        Duration::try_from_secs_f64(self.number()?).map_err(io::Error::other)
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// Fails unless `holds`.
fn check(holds: bool, what: impl Fn() -> String) -> io::Result<()> {
    if holds { Ok(()) } else { Err(wrong(what())) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Microseconds per call since then.
fn each(begun: Instant, calls: u32) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(calls.max(1))
}

/// Runs `work` for 0 to `threads` - 1 in threads of their own. Each gets ready first, and hands out
/// what it then does until the instant that it is given; all begin to do that together.
fn together<W, T>(
    threads: usize,
    time: Duration,
    work: impl Fn(usize) -> io::Result<W> + Sync,
) -> io::Result<Vec<T>>
where
    W: FnOnce(Instant) -> io::Result<T>,
    T: Send,
{
    let ready = Barrier::new(threads);
    let one = |number| {
        let work = work(number);
        // Also who failed comes here, or the others would wait for ever.
        ready.wait();
        work?(Instant::now() + time)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..threads).map(|n| scope.spawn(move || one(n))).collect();
        let ended = all.into_iter().map(|t| t.join().map_err(|_| wrong("a thread died"))?);
        ended.collect()
    })
}

fn main() -> io::Result<()> {
    let mut args = Args(std::env::args().skip(1));
    let numbers = match args.text()?.as_str() {
        "empty" => empty::run(&mut args)?,
        "calls" => calls::run(&mut args)?,
        "region" => region::run(&mut args)?,
        "update" => update::run(&mut args)?,
        "mix" => mix::run(&mut args)?,
        other => return Err(wrong(format!("no part {other:?}"))),
    };
    let line = |(name, value): &(String, f64)| match value.is_finite() {
        true => format!("\"{name}\": {value:.4}"),
        false => format!("\"{name}\": null"),
    };
    println!("{{{}}}", numbers.iter().map(line).collect::<Vec<_>>().join(", "));
    Ok(())
}
