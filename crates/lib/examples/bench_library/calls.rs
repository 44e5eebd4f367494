//! The calls of TxOS Table 4, and some more, each by itself.

use crate::{Args, Numbers, check, each, median, wrong};
use rustix::fs::{Access, Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systx::Flags;

/// A directory for one batch: `file` of 64 KiB, and what the call needs.
struct Place {
    top: PathBuf,
    file: PathBuf,
    /// `file`, where the call is about a descriptor.
    open: Option<File>,
    /// What the calls opened: closed after the measurement.
    opened: Vec<OwnedFd>,
    /// The names that calls use up, and those that they make.
    old: Vec<PathBuf>,
    new: Vec<PathBuf>,
}

struct Call {
    name: &'static str,
    /// Makes one of `old`.
    prepare: fn(&Path) -> io::Result<()>,
    call: fn(&mut Place, usize) -> io::Result<()>,
    /// Whether the effect of that one is to be seen, from outside.
    seen: Option<fn(&Place, usize) -> bool>,
    /// It is about a descriptor.
    of_open: bool,
}

const PAGE: usize = 4096;

fn nothing(_: &Path) -> io::Result<()> {
    Ok(())
}

fn empty_file(path: &Path) -> io::Result<()> {
    File::create_new(path).map(drop)
}

fn place(i: usize) -> u64 {
    (i % 16 * PAGE) as u64
}

fn of(open: &Option<File>) -> io::Result<&File> {
    open.as_ref().ok_or_else(|| wrong("nothing is open"))
}

fn has(at: &Place, byte: u8, offset: u64) -> bool {
    let mut found = [0];
    let read = File::open(&at.file).and_then(|f| f.read_exact_at(&mut found, offset));
    read.is_ok() && found[0] == byte
}

fn open(at: &mut Place, path: &Path, how: OFlags) -> io::Result<()> {
    at.opened.push(rustix::fs::open(path, how | OFlags::CLOEXEC, Mode::from(0o644))?);
    Ok(())
}

impl Call {
    const fn new(
        name: &'static str,
        call: fn(&mut Place, usize) -> io::Result<()>,
        seen: Option<fn(&Place, usize) -> bool>,
    ) -> Call {
        Call { name, prepare: nothing, call, seen, of_open: false }
    }
}

/// Those of the paper first, in its order.
fn calls() -> [Call; 13] {
    let link: fn(&mut Place, usize) -> io::Result<()> =
        |at, i| Ok(rustix::fs::link(&at.file, &at.new[i])?);
    let gone: Option<fn(&Place, usize) -> bool> = Some(|at, i| !at.old[i].exists());
    let made: Option<fn(&Place, usize) -> bool> = Some(|at, i| at.new[i].exists());
    let of_open = |name, call, seen| Call { of_open: true, ..Call::new(name, call, seen) };
    [
        Call::new("access", |at, _| Ok(rustix::fs::access(&at.file, Access::READ_OK)?), None),
        Call::new("stat", |at, _| Ok(rustix::fs::stat(&at.file).map(drop)?), None),
        Call::new("open", |at, _| open(at, &at.file.clone(), OFlags::RDONLY), None),
        Call {
            prepare: empty_file,
            ..Call::new("unlink", |at, i| Ok(rustix::fs::unlink(&at.old[i])?), gone)
        },
        Call::new("link", link, made),
        Call::new("mkdir", |at, i| Ok(rustix::fs::mkdir(&at.new[i], Mode::from(0o755))?), made),
        of_open("read 1 byte", |at, _| of(&at.open)?.read_exact_at(&mut [0; 1], 0), None),
        of_open("read 4 KiB", |at, i| of(&at.open)?.read_exact_at(&mut [0; PAGE], place(i)), None),
        of_open(
            "write 1 byte",
            |at, _| of(&at.open)?.write_all_at(b"y", 0),
            Some(|at, _| has(at, b'y', 0)),
        ),
        of_open(
            "write 4 KiB",
            |at, i| of(&at.open)?.write_all_at(&[b'z'; PAGE], place(i)),
            Some(|at, i| has(at, b'z', place(i))),
        ),
        Call {
            prepare: |p| std::fs::create_dir(p),
            ..Call::new("rmdir", |at, i| Ok(rustix::fs::rmdir(&at.old[i])?), gone)
        },
        Call::new(
            "create",
            |at, i| open(at, &at.new[i].clone(), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY),
            made,
        ),
        Call {
            prepare: empty_file,
            ..Call::new("rename", |at, i| Ok(rustix::fs::rename(&at.old[i], &at.new[i])?), made)
        },
    ]
}

impl Place {
    fn new(dir: &Path, call: &Call, names: usize) -> io::Result<Place> {
        let top = dir.join("batch");
        std::fs::create_dir(&top)?;
        let file = top.join("file");
        std::fs::write(&file, vec![b'x'; 16 * PAGE])?;
        let name = |word: &str| (0..names).map(|i| top.join(format!("{word}{i}"))).collect();
        let (old, new): (Vec<PathBuf>, Vec<PathBuf>) = (name("old"), name("new"));
        old.iter().try_for_each(|path| (call.prepare)(path))?;
        Ok(Place { top, file, open: None, opened: Vec::new(), old, new })
    }

    fn open(&mut self) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(&self.file)?;
        file.read_exact_at(&mut [0; 1], 0)?;
        self.open = Some(file);
        Ok(())
    }
}

/// One batch; the first of its calls is not counted, since it also meets what the others share.
fn batch(dir: &Path, call: &Call, how: &str, count: usize) -> io::Result<f64> {
    let mut at = Place::new(dir, call, count + 1)?;
    let inside = match how {
        "inside" => Some(systx::begin(dir, Flags::default())?),
        _ => None,
    };
    // A descriptor from before is in a transaction for each call only with the flag that says so.
    let mut flags = if how == "relaxed" { Flags::RELAXED } else { Flags::default() };
    if call.of_open {
        at.open()?;
        flags = flags | Flags::DESCRIPTORS;
    }
    let whole = matches!(how, "whole" | "relaxed");
    let mut begun = Instant::now();
    for i in 0..=count {
        match whole {
            true => systx::atomic(dir, flags, |_| (call.call)(&mut at, i))?,
            false => (call.call)(&mut at, i)?,
        }
        if i == 0 {
            begun = Instant::now();
        }
    }
    let took = each(begun, u32::try_from(count).unwrap_or(u32::MAX));
    (at.open, at.opened) = (None, Vec::new());
    let expected = inside.is_none();
    if let Some(inside) = inside {
        inside.abort()?;
    }
    if let Some(seen) = call.seen {
        for i in [0, count] {
            check(seen(&at, i) == expected, || format!("{}, {how}: {i} is wrong", call.name))?;
        }
    }
    std::fs::remove_dir_all(&at.top)?;
    Ok(took)
}

pub fn run(args: &mut Args) -> io::Result<Numbers> {
    let (dir, how) = (args.path()?, args.text()?);
    let (batches, count): (usize, usize) = (args.number()?, args.number()?);
    if !["native", "outside", "inside", "whole", "relaxed"].contains(&how.as_str()) {
        return Err(wrong(format!("calls: no way {how:?}")));
    }
    let mut numbers = Numbers::new();
    for call in calls() {
        let took = (0..batches).map(|_| batch(&dir, &call, &how, count));
        numbers.push((call.name.into(), median(took.collect::<io::Result<_>>()?)));
    }
    Ok(numbers)
}
