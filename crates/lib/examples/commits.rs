//! How many commits threads make: `commits DIR [CLIENTS [SECONDS [FILES [relaxed]]]]`, with DIR
//! guarded.
//!
//! Each client rewrites a small file of its own in every transaction, one of FILES in turn (1);
//! durably, or `relaxed`. Prints commits in a second, of all of them, and the median time of one.

use std::path::Path;
use std::time::{Duration, Instant};
use systx::Flags;

#[derive(Clone, Copy)]
struct How<'a> {
    dir: &'a Path,
    files: usize,
    flags: Flags,
}

fn client(how: How<'_>, number: usize, until: Instant) -> std::io::Result<Vec<Duration>> {
    let file = |n: usize| how.dir.join(format!("bench-{number}-{n}"));
    let files: Vec<_> = (0..how.files.max(1)).map(file).collect();
    for file in &files {
        std::fs::write(file, "0")?;
    }
    let mut took = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        let transaction = systx::begin(how.dir, how.flags)?;
        std::fs::write(&files[took.len() % files.len()], took.len().to_string())?;
        transaction.commit()?;
        took.push(begun.elapsed());
    }
    for file in &files {
        std::fs::remove_file(file)?;
    }
    Ok(took)
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or_else(|| {
        std::io::Error::other("commits DIR [CLIENTS [SECONDS [FILES [relaxed]]]]")
    })?;
    let clients: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let seconds: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(3);
    let files: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let relaxed = args.next().as_deref() == Some("relaxed");
    let flags = if relaxed { Flags::RELAXED } else { Flags::default() };
    let begun = Instant::now();
    let until = begun + Duration::from_secs(seconds);
    let took = std::thread::scope(|scope| -> std::io::Result<Vec<Duration>> {
        let how = How { dir: Path::new(&dir), files, flags };
        let threads: Vec<_> =
            (0..clients).map(|n| scope.spawn(move || client(how, n, until))).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| std::io::Error::other("a client died"))??);
        }
        Ok(all)
    });
    let mut took = took?;
    let rate = took.len() as f64 / begun.elapsed().as_secs_f64();
    took.sort();
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    println!("{clients} clients: {rate:.0} commits/s, median {:.0} us", median.as_secs_f64() * 1e6);
    Ok(())
}
