//! Transactions in which nothing is done, and as a yardstick what two threads need to hand a byte
//! to and fro: begin and end are a message each.

use crate::{Args, Numbers, check, each, median, together};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use systx::{Begin, Declared, Flags};

/// Medians of batches of one way.
fn batches(
    batches: u32,
    calls: u32,
    mut one: impl FnMut() -> io::Result<()>,
) -> io::Result<(f64, f64)> {
    let mut took = Vec::new();
    // The first one is not counted.
    for _ in 0..=batches.max(1) {
        let begun = Instant::now();
        for _ in 0..calls {
            one()?;
        }
        took.push(each(begun, calls));
    }
    took.remove(0);
    let best = took.iter().copied().fold(f64::INFINITY, f64::min);
    Ok((median(took), best))
}

/// A byte to another thread and back.
fn ping(count: u32, calls: u32) -> io::Result<(f64, f64)> {
    let (mut here, mut to_there) = io::pipe()?;
    let (mut there, mut to_here) = io::pipe()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            // Ends with the other side's end of the pipe.
            while here.read_exact(&mut byte).is_ok() && to_here.write_all(&byte).is_ok() {}
        });
        let mut byte = [0];
        let done = batches(count, calls, || {
            to_there.write_all(&[1])?;
            there.read_exact(&mut byte)
        });
        drop(to_there);
        done
    })
}

/// So many threads at once; microseconds of wall time per transaction of all of them.
fn at_once(dir: &Path, threads: usize, time: Duration) -> io::Result<f64> {
    let one = || systx::begin(dir, Flags::default())?.commit();
    let done: Vec<(u32, Duration)> = together(threads, time, |_| {
        one()?;
        Ok(move |until: Instant| {
            let (begun, mut count) = (Instant::now(), 0);
            while Instant::now() < until {
                one()?;
                count += 1;
            }
            Ok((count, begun.elapsed()))
        })
    })?;
    let count: u32 = done.iter().map(|d| d.0).sum();
    let took = done.iter().map(|d| d.1).max().unwrap_or_default();
    Ok(took.as_secs_f64() * 1e6 / f64::from(count.max(1)))
}

pub fn run(args: &mut Args) -> io::Result<Numbers> {
    let (dir, count, calls) = (args.path()?, args.number()?, args.number()?);
    let file = dir.join("empty");
    std::fs::write(&file, "0")?;
    let begin = |how: Begin<'_>| systx::begin(&dir, how);
    let mut numbers = Numbers::new();
    let mut note = |name: &str, (median, best): (f64, f64)| {
        numbers.push((name.into(), median));
        numbers.push((format!("{name}, best"), best));
    };
    note("a byte to another thread and back", ping(count, calls)?);
    let plain = |flags: Flags| batches(count, calls, || begin(flags.into())?.commit());
    note("begin, end", plain(Flags::default())?);
    note("begin, abort", batches(count, calls, || begin(Flags::default().into())?.abort())?);
    note("begin, end, read only", plain(Flags::READ_ONLY)?);
    note("begin, end, relaxed", plain(Flags::RELAXED)?);
    note("begin, end, descriptors", plain(Flags::DESCRIPTORS)?);
    let scope = || begin(Begin::scoped([Declared::write(&file)]))?.commit();
    note("begin, end, a scope of one file", batches(count, calls, scope)?);
    let four = at_once(&dir, 4, Duration::from_millis(u64::from(count) * 20))?;
    numbers.push(("begin, end, 4 threads at once, each of all".into(), four));
    check(systx::xid() == 0, || "a transaction is open".into())?;
    std::fs::remove_file(&file)?;
    Ok(numbers)
}
