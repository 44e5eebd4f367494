//! Two programs that race for one name in a directory with the sticky bit, for the suite
//! `security`.
//!
//! - `systx-e2e-opening victim KIND DIR ROUNDS`: root's, makes and removes a file of its own, again
//!   and again; says how often that was touched by somebody else.
//! - `systx-e2e-opening attack KIND DIR`: an ordinary user's, until its standard input ends; says
//!   how often it got hold of something of root.
//!
//! On a file system of the kernel neither ever happens: what the call acts on is what was checked.

#![deny(unsafe_code)]

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::hint::spin_loop;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use systx_e2e::random::Random;

/// The name that the race is about.
const NAME: &str = "n";
const SECRET: &[u8] = b"secret";
const OWN: Mode = Mode::from_raw_mode(0o600);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["victim", "bait", dir, rounds] => bait(Path::new(dir), rounds.parse().expect("a number")),
        ["victim", kind, dir, rounds] => {
            victim(kind == "rmdir", Path::new(dir), rounds.parse().expect("a number"));
        }
        ["attack", kind, dir] => attack(kind, Path::new(dir)),
        _ => panic!("{args:?}"),
    }
}

/// For up to so many microseconds.
fn spin(random: &mut Random, most: u64) {
    let until = Instant::now() + Duration::from_nanos(random.below(most * 1000));
    while Instant::now() < until {
        spin_loop();
    }
}

fn look(path: &Path) -> Result<Stat, Errno> {
    rustix::fs::lstat(path)
}

/// Removes whatever is there; root may.
fn remove(path: &Path) {
    loop {
        match rustix::fs::unlink(path) {
            Ok(()) | Err(Errno::NOENT) => return,
            Err(Errno::ISDIR) => match rustix::fs::rmdir(path) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => panic!("root removes {path:?}: {errno}"),
            },
            Err(errno) => panic!("root removes {path:?}: {errno}"),
        }
    }
}

fn victim(of_dir: bool, dir: &Path, rounds: u64) {
    let path = dir.join(NAME);
    let mut random = Random::new(7);
    let (mut touched, mut done) = (0, 0);
    while done < rounds {
        remove(&path);
        spin(&mut random, 60);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let made = match of_dir {
            true => rustix::fs::mkdir(&path, Mode::from_raw_mode(0o700)).and_then(|()| look(&path)),
            false => rustix::fs::open(&path, flags, OWN).and_then(|file| {
                let mut file = File::from(file);
                file.write_all(SECRET).expect("written");
                rustix::fs::fstat(&file)
            }),
        };
        let made = match made {
            Ok(made) => made,
            // The other one was faster.
            Err(Errno::EXIST) => continue,
            // Taken away at once.
            Err(Errno::NOENT) if of_dir => {
                touched += 1;
                continue;
            }
            Err(errno) => panic!("root makes {path:?}: {errno}"),
        };
        spin(&mut random, 120);
        done += 1;
        let same = look(&path).is_ok_and(|now| {
            let size = of_dir || now.st_size == SECRET.len() as i64;
            now.st_ino == made.st_ino && now.st_uid == 0 && size
        });
        touched += u64::from(!same);
    }
    remove(&path);
    println!("touched {touched} of {done}");
}

/// Root opens what may be there, as in a directory of its own: what is somebody else's it does not
/// get (`fs.protected_regular`, `fs.protected_fifos`).
fn bait(dir: &Path, rounds: u64) {
    let path = dir.join(NAME);
    let mut random = Random::new(7);
    let mut touched = 0;
    for _ in 0..rounds {
        remove(&path);
        spin(&mut random, 60);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, OWN) {
            Ok(file) => {
                touched += u64::from(rustix::fs::fstat(&file).expect("it is open").st_uid != 0);
            }
            Err(Errno::ACCESS | Errno::STALE) => {}
            Err(errno) => panic!("root opens {path:?}: {errno}"),
        }
    }
    remove(&path);
    println!("touched {touched} of {rounds}");
}

/// What an attacker got.
#[derive(Default)]
struct Got {
    tries: u64,
    wins: u64,
    errors: BTreeSet<String>,
}

impl Got {
    /// A call that may fail in any way that says so.
    fn tried<T>(&mut self, call: Result<T, Errno>) -> Option<T> {
        self.tries += 1;
        call.inspect_err(|errno| _ = self.errors.insert(format!("{errno:?}"))).ok()
    }
    fn check(&mut self, what: &Path) {
        self.wins += u64::from(look(what).is_ok_and(|seen| seen.st_uid == 0));
    }
}

fn attack(kind: &str, dir: &Path) {
    static ENDS: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ENDS.store(true, SeqCst);
    });
    println!("here");
    let (path, mine) = (dir.join(NAME), dir.join("mine"));
    let mut got = Got::default();
    while !ENDS.load(SeqCst) {
        once(kind, &path, &mine, &mut got);
    }
    let _ = rustix::fs::unlink(&mine);
    println!("tries {} wins {} errors {:?}", got.tries, got.wins, got.errors);
}

fn once(kind: &str, path: &PathBuf, mine: &Path, got: &mut Got) {
    let make = |at: &Path| {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::open(at, flags, Mode::from_raw_mode(0o666)).is_ok()
    };
    match kind {
        "open" | "truncate" => {
            let more = if kind == "open" { OFlags::empty() } else { OFlags::TRUNC };
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | more;
            if let Some(file) = got.tried(rustix::fs::open(path, flags, OWN)) {
                let file = File::from(file);
                got.wins += u64::from(file.metadata().expect("it is open").uid() == 0);
                let _ = rustix::fs::unlink(path);
            }
        }
        "unlink" => {
            make(path);
            got.tried(rustix::fs::unlink(path));
        }
        "rmdir" => {
            let _ = rustix::fs::mkdir(path, Mode::from_raw_mode(0o700));
            got.tried(rustix::fs::rmdir(path));
        }
        "rename" => {
            make(path);
            if got.tried(rustix::fs::rename(path, mine)).is_some() {
                got.check(mine);
                let _ = rustix::fs::unlink(mine);
            }
        }
        "over" => {
            make(path);
            make(mine);
            got.tried(rustix::fs::rename(mine, path));
        }
        "exchange" => {
            make(path);
            make(mine);
            let how = RenameFlags::EXCHANGE;
            if got.tried(rustix::fs::renameat_with(CWD, path, CWD, mine, how)).is_some() {
                got.check(mine);
                let _ = rustix::fs::unlink(mine);
            }
        }
        "link" => {
            make(path);
            if got.tried(rustix::fs::linkat(CWD, path, CWD, mine, AtFlags::empty())).is_some() {
                got.check(mine);
                let _ = rustix::fs::unlink(mine);
            }
            let _ = rustix::fs::unlink(path);
        }
        "bait" => {
            let mode = Mode::from_raw_mode(0o666);
            match got.tries % 2 {
                0 => _ = got.tried(if make(path) { Ok(()) } else { Err(Errno::EXIST) }),
                _ => {
                    got.tried(rustix::fs::mknodat(CWD, path, FileType::Fifo, mode, 0));
                }
            }
        }
        other => panic!("no kind {other}"),
    }
}
