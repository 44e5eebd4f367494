//! What calls cost a thread outside and inside of a region, also those that have nothing to do with
//! the directory.

use crate::{Args, Numbers, check, each, median, wrong};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::time::Instant;
use systx::Flags;

/// The flags of the region; `None`: there is none.
fn region(how: &str) -> io::Result<Option<Flags>> {
    Ok(match how {
        // A thread that never was in one, and one that was.
        "never" | "outside" => None,
        "inside" => Some(Flags::default()),
        "descriptors" => Some(Flags::DESCRIPTORS),
        "signals" => Some(Flags::SIGNALS_HELD),
        "all" => {
            Some(Flags::DESCRIPTORS | Flags::SIGNALS_HELD | Flags::PIPES_HELD | Flags::OUTPUT_HELD)
        }
        _ => return Err(wrong(format!("region: no way {how:?}"))),
    })
}

pub fn run(args: &mut Args) -> io::Result<Numbers> {
    let (dir, how) = (args.path()?, args.text()?);
    let (batches, count): (u32, u32) = (args.number()?, args.number()?);
    let path = dir.join("region");
    std::fs::write(&path, vec![b'x'; 4096])?;
    let flags = region(&how)?;
    if how == "outside" {
        systx::begin(&dir, Flags::default())?.commit()?;
    }
    let inside = flags.map(|flags| systx::begin(&dir, flags)).transpose()?;
    let file = File::options().read(true).write(true).open(&path)?;
    let nowhere = File::options().write(true).open("/dev/null")?;
    let (mut end, mut start) = io::pipe()?;
    let mut numbers = Numbers::new();
    let mut measure = |name: &str, call: &mut dyn FnMut() -> io::Result<()>| -> io::Result<()> {
        let mut took = Vec::new();
        call()?;
        for _ in 0..batches.max(1) {
            let begun = Instant::now();
            for _ in 0..count {
                call()?;
            }
            took.push(each(begun, count));
        }
        numbers.push((name.into(), median(took)));
        Ok(())
    };
    measure("getppid", &mut || check(std::os::unix::process::parent_id() != 0, String::new))?;
    measure("write to /dev/null", &mut || (&nowhere).write_all(b"x"))?;
    measure("write to a pipe and read", &mut || {
        start.write_all(b"x")?;
        end.read_exact(&mut [0])
    })?;
    measure("stat elsewhere", &mut || Ok(rustix::fs::stat("/etc/passwd").map(drop)?))?;
    measure("open, close elsewhere", &mut || File::open("/etc/passwd").map(drop))?;
    measure("stat", &mut || Ok(rustix::fs::stat(&path).map(drop)?))?;
    measure("open, close", &mut || File::open(&path).map(drop))?;
    measure("read 1 byte", &mut || file.read_exact_at(&mut [0; 1], 0))?;
    measure("write 1 byte", &mut || file.write_all_at(b"y", 0))?;
    // An abort closes some of what was opened inside.
    drop((file, nowhere, start, end));
    if let Some(inside) = inside {
        inside.abort()?;
    }
    let expected = if flags.is_some() { b'x' } else { b'y' };
    let found = std::fs::read(&path)?;
    check(found.first() == Some(&expected), || format!("{how}: the write is wrong"))?;
    std::fs::remove_file(&path)?;
    Ok(numbers)
}
