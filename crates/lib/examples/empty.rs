//! What a transaction costs a thread: `empty DIR [ROUNDS]`, with DIR guarded.
//!
//! Prints microseconds for each round, the median and the best of ten batches: nothing inside; one
//! file read; one small file rewritten.

use std::path::Path;
use std::time::Instant;
use systx::Flags;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or_else(|| std::io::Error::other("empty DIR [ROUNDS]"))?;
    let rounds: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let file = Path::new(&dir).join("bench");
    std::fs::write(&file, "0")?;
    let nothing = |_: &Path| Ok(());
    let read = |file: &Path| std::fs::read(file).map(drop);
    let write = |file: &Path| std::fs::write(file, "1");
    type Body<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;
    let bodies: [(&str, Body<'_>, u32); 3] =
        [("empty", &nothing, rounds), ("read", &read, rounds), ("write", &write, rounds / 20)];
    for (name, body, rounds) in bodies {
        let batch = || -> std::io::Result<f64> {
            let begun = Instant::now();
            for _ in 0..rounds.max(1) {
                let transaction = systx::begin(&dir, Flags::default())?;
                body(&file)?;
                transaction.commit()?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(rounds.max(1)))
        };
        let mut batches = (0..10).map(|_| batch()).collect::<std::io::Result<Vec<f64>>>()?;
        batches.sort_by(f64::total_cmp);
        println!("{name}: median {:.1} us, best {:.1} us", batches[5], batches[0]);
    }
    std::fs::remove_file(&file)
}
