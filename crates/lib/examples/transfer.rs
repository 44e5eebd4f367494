//! Moves 1 from file a to file b of a guarded directory, N times: `transfer DIR N`.

use std::io;
use std::path::Path;

fn add(path: &Path, n: i64) -> io::Result<()> {
    let value: i64 = std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)?;
    std::fs::write(path, (value + n).to_string())
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, dir, times] = &args[..] else { return Err(io::Error::other("transfer DIR N")) };
    let dir = Path::new(dir);
    for _ in 0..times.parse().map_err(io::Error::other)? {
        systx::atomic(dir, systx::Flags::default(), |_| {
            add(&dir.join("a"), -1)?;
            add(&dir.join("b"), 1)
        })?;
    }
    Ok(())
}
