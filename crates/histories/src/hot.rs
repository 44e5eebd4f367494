//! The hot set: few files and names that everybody works on, and the calls of that work with what
//! they saw, as atoms.
//!
//! - `r0`, `r1` …: *registers*, two pages with two records each, overwritten in place, never
//!   shorter (but inside a transaction, which may write one anew from empty); their mode;
//! - `l0`, `l1` …: *logs*, to which records are appended, and which are cut to nothing when long;
//! - `n/0` … `n/5`: *names*, of symbolic links and files with one token each, made, removed,
//!   renamed, linked, listed;
//! - `t/`: where each process writes the files that it then renames into `n`.
//!
//! Every write has a token of its own, so what was seen says who wrote it.
//!
//! Who works in transactions goes for all of this also by what it had opened before: by descriptors
//! and mappings of the registers, and through a descriptor of the directory. Whether that is in the
//! transaction is said by [`Reach`]; what is not is a plain call, which is told apart
//! ([`Done::beside`]). Registers are also written by descriptors that were opened inside of an
//! earlier transaction, which is committed. What is read by those is not looked at: they may show
//! what was there a moment ago.

use crate::arena::Reach;
use crate::dice::Dice;
use crate::history::{Atom, Cell, State, Step, token};
use crate::mapping_unsafe::Mapping;
use clap::ValueEnum;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Number of registers.
pub const REGISTERS: u32 = 3;
const RECORDS: u32 = 4;
/// From one record of a register to the next.
const STRIDE: usize = 2048;
/// Of eight bytes, in a register.
const WORDS: usize = STRIDE * RECORDS as usize / 8;
const LOGS: u32 = 2;
const NAMES: u32 = 6;
/// A log with so many records is cut.
const LONG: usize = 24;
/// Records of a log that are read at most.
const MOST: usize = 4096;
/// Operations of a transaction that go by what was opened before it, in thousandths.
const BEFORE: u64 = 300;
/// File numbers of logs.
const LOG: u32 = 100;
/// The one directory of names.
const DIR: u32 = 0;
/// What nobody ever writes: a record or a listing that no execution explains.
const BROKEN: u64 = u64::MAX;

fn register(dir: &Path, n: u32) -> PathBuf {
    dir.join(format!("r{n}"))
}

fn log(dir: &Path, n: u32) -> PathBuf {
    dir.join(format!("l{n}"))
}

fn name(dir: &Path, n: u32) -> PathBuf {
    dir.join(format!("n/{n}"))
}

/// Whether the mode of a register is asked of a kept descriptor, by who has one; that of the others
/// by name.
fn is_kept(r: u32) -> bool {
    r.is_multiple_of(2)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// What an operation may be, for [`Actor::leave_out`]; `Rewrite` and `Modify` need a transaction.
/// `Before` is all that a transaction does by what was opened before it, `Former` what it does by
/// what was opened in an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum Work {
    Read,
    ReadKept,
    ReadMapped,
    ReadAll,
    Write,
    Append,
    ReadLog,
    Size,
    Chmod,
    Mode,
    Look,
    Symlink,
    Unlink,
    Rename,
    Link,
    List,
    Rewrite,
    Modify,
    Before,
    Former,
}

/// By the dice; some are more frequent.
const PLAIN: [Work; 19] = [
    Work::Read,
    Work::ReadKept,
    Work::ReadKept,
    Work::ReadMapped,
    Work::ReadMapped,
    Work::ReadAll,
    Work::Write,
    Work::Write,
    Work::Append,
    Work::ReadLog,
    Work::Size,
    Work::Chmod,
    Work::Mode,
    Work::Look,
    Work::Symlink,
    Work::Unlink,
    Work::Rename,
    Work::Link,
    Work::List,
];

/// Makes the hot set in an empty directory.
///
/// # Errors
/// As of the calls.
pub fn make(dir: &Path) -> io::Result<()> {
    for sub in ["n", "t"] {
        fs::create_dir(dir.join(sub))?;
    }
    for n in 0..REGISTERS {
        fs::write(register(dir, n), vec![0; STRIDE * RECORDS as usize])?;
        fs::set_permissions(register(dir, n), Permissions::from_mode(0o600))?;
    }
    for n in 0..LOGS {
        fs::write(log(dir, n), [])?;
    }
    Ok(())
}

/// Who works: its tokens, and the descriptors and mappings that it keeps.
pub struct Actor {
    /// Where it works: everybody's path, or that of its transaction.
    dir: PathBuf,
    process: u32,
    number: u32,
    left_out: Vec<Work>,
    kept: Option<Kept>,
    /// By register: a descriptor for writing that was opened inside of a transaction which is
    /// committed.
    former: Vec<Option<File>>,
    inside: Option<Inside>,
    /// What the operation at hand works below.
    base: PathBuf,
    /// It goes by what was opened before.
    before: bool,
}

/// What a process has opened and goes on to use.
struct Kept {
    dir: File,
    /// By register.
    files: Vec<File>,
    maps: Vec<Mapping>,
}

impl Kept {
    fn open(dir: &Path) -> io::Result<Kept> {
        let (mut files, mut maps) = (Vec::new(), Vec::new());
        for n in 0..REGISTERS {
            let file = OpenOptions::new().read(true).write(true).open(register(dir, n))?;
            maps.push(Mapping::new(&file, WORDS)?);
            files.push(file);
        }
        Ok(Kept { dir: File::open(dir)?, files, maps })
    }
}

/// The transaction that an actor is in.
struct Inside {
    /// Nobody else sees what it does.
    isolated: bool,
    reach: Reach,
    /// Registers that it has open for writing, and keeps if it commits.
    open: Vec<(u32, File)>,
}

/// What an operation did and saw.
#[derive(Default, Debug)]
pub struct Done {
    /// As one unit, unless it is a transaction's.
    pub steps: Vec<Step>,
    /// The steps are of no known order.
    pub survey: bool,
    /// It went by what was opened before the transaction that it was done in.
    pub before: bool,
    /// And is no part of that transaction: a plain call.
    pub beside: bool,
    /// It went by what was opened inside of an earlier one.
    pub former: bool,
}

impl Done {
    fn one(how: &str, atoms: &[Atom]) -> Done {
        let mut done = Done::default();
        done.step(how, atoms);
        done
    }

    fn step(&mut self, how: &str, atoms: &[Atom]) {
        self.steps.push(Step { atoms: atoms.to_vec(), how: how.into() });
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(BROKEN, u64::from_le_bytes)
}

impl Actor {
    /// Someone who works below `dir`, and may keep descriptors and mappings.
    ///
    /// # Errors
    /// As of the calls.
    pub fn new(dir: &Path, process: u32, keeps: bool) -> io::Result<Actor> {
        let kept = if keeps { Some(Kept::open(dir)?) } else { None };
        let (dir, base) = (dir.to_path_buf(), dir.to_path_buf());
        let left_out = Vec::new();
        let former = (0..REGISTERS).map(|_| None).collect();
        let (number, inside, before) = (0, None, false);
        Ok(Actor { dir, process, number, left_out, kept, former, inside, base, before })
    }

    /// Works below another directory from now on: the view of a transaction.  Whether nobody else
    /// sees what it does, and what of that which was opened before is in it.
    pub fn enter(&mut self, dir: &Path, isolated: bool, reach: Reach) {
        self.dir = dir.to_path_buf();
        self.inside = Some(Inside { isolated, reach, open: Vec::new() });
    }

    /// Is in no transaction any more, which was committed or not, and works below this directory.
    /// Now and then it opens anew what it keeps, so that this is not always the same.
    ///
    /// # Errors
    /// As of the calls.
    pub fn leave(&mut self, dir: &Path, committed: bool, dice: &mut Dice) -> io::Result<()> {
        self.dir = dir.to_path_buf();
        let open = self.inside.take().map(|inside| inside.open).unwrap_or_default();
        for (r, file) in open.into_iter().filter(|_| committed) {
            self.former[r as usize] = Some(file);
        }
        if self.kept.is_some() && dice.permille(20) {
            self.kept = Some(Kept::open(dir)?);
        }
        Ok(())
    }

    /// Never does any of these, to see what else there is.
    pub fn leave_out(&mut self, works: &[Work]) {
        self.left_out = works.to_vec();
    }

    fn token(&mut self) -> u64 {
        self.number += 1;
        token(self.process, self.number)
    }

    /// One operation of the dice's choice.
    ///
    /// # Errors
    /// Of a call that fails otherwise than by what is in the hot set: ECANCELED, say.
    pub fn work(&mut self, dice: &mut Dice) -> io::Result<Done> {
        let (r, slot) = (dice.below(REGISTERS.into()) as u32, dice.below(RECORDS.into()) as u32);
        let l = dice.below(LOGS.into()) as u32;
        let a = dice.below(NAMES.into()) as u32;
        let b = (a + 1 + dice.below(u64::from(NAMES) - 1) as u32) % NAMES;
        self.before = match self.inside {
            Some(_) => {
                self.kept.is_some() && dice.permille(BEFORE) && !self.leaves_out(Work::Before)
            }
            // Names by path, so that they are looked up by everybody.
            None => self.kept.is_some(),
        };
        let reach = self.inside.as_ref().map(|inside| inside.reach);
        // Through the link in /proc, as openat(2) does: from the descriptor's mount, whatever the
        // path leads to.
        self.base = match &self.kept {
            Some(kept) if self.before && reach.is_some() => {
                PathBuf::from(format!("/proc/self/fd/{}", kept.dir.as_raw_fd()))
            }
            _ => self.dir.clone(),
        };
        let plain = reach.is_none_or(|reach| self.before && !reach.directories);
        let transactional = [Work::Rewrite, Work::Modify].into_iter();
        let earlier = self.before && reach.is_some_and(|reach| !reach.files);
        let works: Vec<Work> = PLAIN
            .into_iter()
            .chain(transactional.filter(|_| !plain))
            .chain(earlier.then_some(Work::Former))
            .filter(|work| !self.leaves_out(*work))
            .collect();
        let Some(work) = works.get(dice.below(works.len() as u64) as usize) else {
            return Ok(Done::default());
        };
        let mapped = self.before && *work == Work::ReadMapped && dice.permille(500);
        let beside = self.before
            && reach.is_some_and(|reach| match work {
                Work::ReadMapped if mapped => true,
                Work::Former => true,
                Work::ReadKept | Work::ReadMapped | Work::Write => !reach.files,
                Work::Mode if is_kept(r) => !reach.files,
                _ => !reach.directories,
            });
        let done = match work {
            Work::Read => self.read(r, slot),
            Work::ReadKept => self.read_kept(r, slot),
            Work::ReadMapped => self.read_mapped(r, slot, mapped),
            Work::ReadAll => self.read_all(r),
            Work::Write => self.write(r, slot, self.before),
            Work::Append => self.append(l),
            Work::ReadLog => self.read_log(l, true),
            Work::Size => self.size(l),
            Work::Chmod => self.chmod(r, 0o600 | dice.below(64) as u32),
            Work::Mode => self.mode(r),
            Work::Look => self.look(a, dice.permille(500)),
            Work::Symlink => self.symlink(a),
            Work::Unlink => self.unlink(a),
            Work::Rename if dice.permille(500) => self.rename(a, b),
            Work::Rename => self.replace(a),
            Work::Link => self.link(a, b),
            Work::List => self.list(),
            // Several requests: only in a transaction does that make one thing.
            Work::Rewrite => self.rewrite(r),
            Work::Modify => self.modify(r, slot),
            Work::Former => self.write_former(r, slot),
            Work::Before => Ok(Done::default()),
        };
        let before = self.before && reach.is_some();
        match done {
            Ok(done) => Ok(Done { before, beside, ..done }),
            // Nothing that becomes of the transaction is its concern.
            Err(e) if beside => {
                Err(io::Error::other(format!("a call beside the transaction: {e}")))
            }
            Err(e) => Err(e),
        }
    }

    fn leaves_out(&self, work: Work) -> bool {
        self.left_out.contains(&work)
    }

    /// What it has opened before, if the operation goes by that.
    fn before(&self) -> Option<&Kept> {
        self.kept.as_ref().filter(|_| self.before)
    }

    fn read(&mut self, r: u32, slot: u32) -> io::Result<Done> {
        let file = File::open(register(&self.base, r))?;
        Self::read_by(&file, r, slot, "open, pread")
    }

    fn read_by(file: &File, r: u32, slot: u32, how: &str) -> io::Result<Done> {
        let mut bytes = [0; 8];
        let n = file.read_at(&mut bytes, slot as u64 * STRIDE as u64)?;
        Ok(Done::one(how, &[Atom::Is(Cell::Slot(r, slot), word(&bytes[..n]))]))
    }

    fn read_kept(&mut self, r: u32, slot: u32) -> io::Result<Done> {
        match self.before() {
            Some(kept) => Self::read_by(&kept.files[r as usize], r, slot, "pread, kept descriptor"),
            None => self.read(r, slot),
        }
    }

    /// By a mapping: one that it has kept, or one that is made now, of what it has opened before or
    /// opens now.
    fn read_mapped(&mut self, r: u32, slot: u32, mapped: bool) -> io::Result<Done> {
        let at = slot as usize * STRIDE / 8;
        let (value, how) = match self.before() {
            Some(kept) if mapped || self.inside.is_none() => {
                (kept.maps[r as usize].word(at), "kept mapping")
            }
            Some(kept) => {
                let file = &kept.files[r as usize];
                (Mapping::new(file, WORDS)?.fetch(at)?, "mapping of a kept descriptor")
            }
            None => {
                let file = File::open(register(&self.base, r))?;
                (Mapping::new(&file, WORDS)?.fetch(at)?, "mapping")
            }
        };
        Ok(Done::one(how, &[Atom::Is(Cell::Slot(r, slot), value)]))
    }

    fn read_all(&mut self, r: u32) -> io::Result<Done> {
        let mut bytes = vec![0; STRIDE * RECORDS as usize];
        let file = File::open(register(&self.base, r))?;
        let mut n = 0;
        // Where a transaction loses in the middle, the second page is refused, and the first is all
        // that is read.
        while n < bytes.len() {
            match file.read_at(&mut bytes[n..], n as u64)? {
                0 => break,
                more => n += more,
            }
        }
        let mut done = Done::default();
        for slot in 0..RECORDS {
            let at = slot as usize * STRIDE;
            let value = bytes[..n].get(at..at + 8).map_or(BROKEN, word);
            done.step("one pread of the file", &[Atom::Is(Cell::Slot(r, slot), value)]);
        }
        Ok(done)
    }

    fn write(&mut self, r: u32, slot: u32, before: bool) -> io::Result<Done> {
        let value = self.token();
        let (at, bytes) = (slot as u64 * STRIDE as u64, value.to_le_bytes());
        let how = match self.kept.as_ref().filter(|_| before) {
            Some(kept) => {
                kept.files[r as usize].write_all_at(&bytes, at)?;
                "pwrite, kept descriptor"
            }
            None => {
                let file = OpenOptions::new().write(true).open(register(&self.base, r))?;
                file.write_all_at(&bytes, at)?;
                // A descriptor that is in transactions is closed with one that is aborted, and not
                // ours any more.
                if let Some(inside) = self.inside.as_mut().filter(|i| i.isolated && !i.reach.files)
                    && !self.before
                {
                    inside.open.push((r, file));
                }
                "open, pwrite"
            }
        };
        Ok(Done::one(how, &[Atom::Set(Cell::Slot(r, slot), value)]))
    }

    /// By a descriptor of an earlier transaction; or of before, if there is none.
    fn write_former(&mut self, r: u32, slot: u32) -> io::Result<Done> {
        let Some(file) = self.former[r as usize].take() else { return self.write(r, slot, true) };
        let value = self.token();
        file.write_all_at(&value.to_le_bytes(), slot as u64 * STRIDE as u64)?;
        self.former[r as usize] = Some(file);
        let how = "pwrite, descriptor of an earlier transaction";
        let done = Done::one(how, &[Atom::Set(Cell::Slot(r, slot), value)]);
        Ok(Done { former: true, ..done })
    }

    fn modify(&mut self, r: u32, slot: u32) -> io::Result<Done> {
        let mut done = self.read(r, slot)?;
        done.steps.extend(self.write(r, slot, false)?.steps);
        Ok(done)
    }

    fn rewrite(&mut self, r: u32) -> io::Result<Done> {
        let path = register(&self.base, r);
        // Who has the file mapped would not survive that it is shorter for a moment.
        let isolated = self.inside.as_ref().is_some_and(|inside| inside.isolated);
        let file = OpenOptions::new().write(true).truncate(isolated).open(path)?;
        let mut bytes = vec![0; STRIDE * RECORDS as usize];
        let mut atoms = Vec::new();
        for slot in 0..RECORDS {
            let (value, at) = (self.token(), slot as usize * STRIDE);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            atoms.push(Atom::Set(Cell::Slot(r, slot), value));
        }
        file.write_all_at(&bytes, 0)?;
        Ok(Done::one("pwrite of the file, with O_TRUNC", &atoms))
    }

    fn append(&mut self, l: u32) -> io::Result<Done> {
        let value = self.token();
        let file = OpenOptions::new().append(true).open(log(&self.base, l))?;
        let n = rustix::io::write(&file, &value.to_le_bytes())?;
        if n != 8 {
            return Err(io::Error::other(format!("an append of 8 bytes wrote {n}")));
        }
        Ok(Done::one("write with O_APPEND", &[Atom::Append(LOG + l, value)]))
    }

    fn read_log(&mut self, l: u32, cut: bool) -> io::Result<Done> {
        let path = log(&self.base, l);
        let mut bytes = vec![0; 8 * MOST];
        let n = File::open(&path)?.read_at(&mut bytes, 0)?;
        if cut && n >= 8 * LONG {
            // A call of its own; what was read is not worth more.
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(0)?;
            return Ok(Done::one("ftruncate", &[Atom::Truncate(LOG + l, 0)]));
        }
        let mut done = Done::default();
        let how = "pread of the log";
        done.step(how, &[Atom::Is(Cell::Size(LOG + l), n.div_ceil(8) as u64)]);
        for (slot, record) in bytes[..n].chunks(8).enumerate() {
            done.step(how, &[Atom::Is(Cell::Slot(LOG + l, slot as u32), word(record))]);
        }
        Ok(done)
    }

    fn size(&mut self, l: u32) -> io::Result<Done> {
        let size = fs::metadata(log(&self.base, l))?.len();
        let size = if size.is_multiple_of(8) { size / 8 } else { BROKEN };
        Ok(Done::one("stat", &[Atom::Is(Cell::Size(LOG + l), size)]))
    }

    fn chmod(&mut self, r: u32, mode: u32) -> io::Result<Done> {
        fs::set_permissions(register(&self.base, r), Permissions::from_mode(mode))?;
        Ok(Done::one("chmod", &[Atom::Set(Cell::Mode(r), mode.into())]))
    }

    fn mode(&mut self, r: u32) -> io::Result<Done> {
        let (mode, how) = match self.before() {
            Some(kept) if is_kept(r) => {
                (kept.files[r as usize].metadata()?.mode(), "fstat, kept descriptor")
            }
            _ => (fs::metadata(register(&self.base, r))?.mode(), "stat"),
        };
        Ok(Done::one(how, &[Atom::Is(Cell::Mode(r), u64::from(mode & 0o7777))]))
    }

    fn look(&mut self, a: u32, open: bool) -> io::Result<Done> {
        let (path, cell) = (name(&self.base, a), Cell::Entry(DIR, a));
        if open {
            let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
            let seen = match file {
                Ok(mut file) => {
                    let mut bytes = Vec::new();
                    file.read_to_end(&mut bytes)?;
                    Atom::Is(cell, word(&bytes))
                }
                Err(e) if is(&e, Errno::NOENT) => Atom::Is(cell, 0),
                Err(e) if is(&e, Errno::LOOP) => Atom::Present(cell),
                Err(e) => return Err(e),
            };
            return Ok(Done::one("open, read", &[seen]));
        }
        let seen = match fs::read_link(path) {
            Ok(target) => {
                let value = target.to_str().and_then(|t| t.parse().ok());
                Atom::Is(cell, value.unwrap_or(BROKEN))
            }
            Err(e) if is(&e, Errno::NOENT) => Atom::Is(cell, 0),
            Err(e) if is(&e, Errno::INVAL) => Atom::Present(cell),
            Err(e) => return Err(e),
        };
        Ok(Done::one("readlink", &[seen]))
    }

    fn symlink(&mut self, a: u32) -> io::Result<Done> {
        let (value, cell) = (self.token(), Cell::Entry(DIR, a));
        match symlink(value.to_string(), name(&self.base, a)) {
            Ok(()) => Ok(Done::one("symlink", &[Atom::Is(cell, 0), Atom::Set(cell, value)])),
            Err(e) if is(&e, Errno::EXIST) => Ok(Done::one("symlink", &[Atom::Present(cell)])),
            Err(e) => Err(e),
        }
    }

    fn unlink(&mut self, a: u32) -> io::Result<Done> {
        let cell = Cell::Entry(DIR, a);
        match fs::remove_file(name(&self.base, a)) {
            Ok(()) => Ok(Done::one("unlink", &[Atom::Present(cell), Atom::Set(cell, 0)])),
            Err(e) if is(&e, Errno::NOENT) => Ok(Done::one("unlink", &[Atom::Is(cell, 0)])),
            Err(e) => Err(e),
        }
    }

    fn rename(&mut self, a: u32, b: u32) -> io::Result<Done> {
        let (from, to) = (Cell::Entry(DIR, a), Cell::Entry(DIR, b));
        match fs::rename(name(&self.base, a), name(&self.base, b)) {
            Ok(()) => Ok(Done::one("rename", &[Atom::Rename(from, to)])),
            Err(e) if is(&e, Errno::NOENT) => Ok(Done::one("rename", &[Atom::Is(from, 0)])),
            Err(e) => Err(e),
        }
    }

    fn replace(&mut self, a: u32) -> io::Result<Done> {
        let value = self.token();
        // What it does beside its transaction does not take the transaction's name.
        let by = if self.before && self.inside.is_some() { "b" } else { "" };
        let new = self.base.join(format!("t/{}{by}", self.process));
        fs::write(&new, value.to_le_bytes())?;
        fs::rename(&new, name(&self.base, a))?;
        let how = "rename of a new file to it";
        Ok(Done::one(how, &[Atom::Set(Cell::Entry(DIR, a), value)]))
    }

    fn link(&mut self, a: u32, b: u32) -> io::Result<Done> {
        let (from, to) = (Cell::Entry(DIR, a), Cell::Entry(DIR, b));
        let mut done = Done::default();
        match fs::hard_link(name(&self.base, a), name(&self.base, b)) {
            Ok(()) => {
                done.step("link, first name", &[Atom::Resolve(from)]);
                done.step("link, second name", &[Atom::Bind(to)]);
            }
            Err(e) if is(&e, Errno::EXIST) => {
                done.step("link, first name", &[Atom::Present(from)]);
                done.step("link, second name", &[Atom::Present(to)]);
            }
            // Either there is none, or what was found lost its last name before it got another.
            Err(e) if is(&e, Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
        Ok(done)
    }

    fn list(&mut self) -> io::Result<Done> {
        let mut seen = [0; NAMES as usize];
        let mut strangers = false;
        for entry in fs::read_dir(self.base.join("n"))? {
            let entry = entry?.file_name();
            let n = entry.to_str().and_then(|n| n.parse::<usize>().ok());
            match n.and_then(|n| seen.get_mut(n)) {
                Some(times) => *times += 1,
                None => strangers = true,
            }
        }
        let mut done = Done { survey: true, ..Done::default() };
        for (n, times) in seen.into_iter().enumerate() {
            let cell = Cell::Entry(DIR, n as u32);
            done.step(
                "listing",
                &[match times {
                    _ if strangers => Atom::Is(cell, BROKEN),
                    0 => Atom::Is(cell, 0),
                    1 => Atom::Present(cell),
                    _ => Atom::Is(cell, BROKEN),
                }],
            );
        }
        Ok(done)
    }

    /// Looks at everything, while nobody else does anything.
    ///
    /// # Errors
    /// As of the calls.
    pub fn audit(&mut self) -> io::Result<State> {
        let mut all = Vec::new();
        for r in 0..REGISTERS {
            all.extend(self.read_all(r)?.steps);
            all.extend(self.mode(r)?.steps);
        }
        for l in 0..LOGS {
            all.extend(self.read_log(l, false)?.steps);
        }
        for a in 0..NAMES {
            let mut seen = self.look(a, true)?;
            if matches!(seen.steps[0].atoms[..], [Atom::Present(_)]) {
                seen = self.look(a, false)?;
            }
            all.extend(seen.steps);
        }
        let mut state = State::new();
        for atom in all.into_iter().flat_map(|s| s.atoms) {
            if let Atom::Is(cell, value) = atom {
                state.insert(cell, value);
            }
        }
        Ok(state)
    }
}
