//! A disk in memory whose flushes take as long as is asked for, to measure what waits for the disk:
//! `slow-disk DIR MEGABYTES MILLISECONDS` mounts it at DIR as the file `disk`, which a loop device
//! can be put over, and unmounts it when its standard input ends.

#[allow(dead_code)] // The other half is for recording.
#[path = "loop-crash/disk.rs"]
mod disk;

use std::io::{Error, Read, Result};
use std::time::Duration;

fn main() -> Result<()> {
    let wrong = |why: String| Error::other(format!("slow-disk DIR MEGABYTES MILLISECONDS: {why}"));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, size, flush] = args.as_slice() else {
        return Err(wrong(format!("{} arguments", args.len())));
    };
    let number = |text: &String| text.parse::<u64>().map_err(|e| wrong(format!("{text}: {e}")));
    let (size, flush) = (number(size)? << 20, Duration::from_millis(number(flush)?));
    let disk = disk::Disk::mount(dir.as_ref(), size, Some(flush))?;
    println!("{}", disk.file().display());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
