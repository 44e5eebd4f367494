//! The threads of the soak: a program with libsystx that lives as long as the soak and does its
//! part of a cycle whenever it is told to, and one that is killed with an open transaction. The
//! soak's own binary, started once more.

use crate::Lab;
use crate::cases::{errno, line, read, started};
use std::fs::{self, File};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use systx::{Begin, Declared, Flags};

/// The first argument of the soak's binary if it is to be one of these programs; then which one,
/// and the directory.
pub const PROGRAM: &str = "--program";

/// Threads of a program that move its counter on side by side, and how often in a cycle.
const WORKERS: usize = 3;
const ROUNDS: u64 = 4;

/// What a cycle of a program came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// How often the counter was moved on.
    pub counted: u64,
    /// Attempts that lost.
    pub lost: u64,
}

impl Done {
    fn and(self, other: Done) -> Done {
        Done { counted: self.counted + other.counted, lost: self.lost + other.lost }
    }
}

// ---- by the soak --------------------------------------------------------------------------------

/// A program that lives as long as the soak.
pub struct Program {
    child: Child,
    say: ChildStdin,
    out: BufReader<ChildStdout>,
    /// The file that counts its commits.
    pub counter: PathBuf,
    /// What it should say.
    pub counted: u64,
}

impl Program {
    /// `command` is the soak's binary, to be started as whoever is meant.
    pub fn start(mut command: Command, dir: &Path) -> Program {
        let counter = dir.join("counted");
        command.args([PROGRAM, "lives"]).arg(dir);
        let (mut child, out) = started(command);
        let say = child.stdin.take().expect("a pipe");
        Program { child, say, out, counter, counted: 0 }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it begin a cycle.
    pub fn go_on(&mut self) {
        self.say.write_all(b"\n").expect("it reads");
    }

    /// Waits for the end of the cycle.
    ///
    /// # Panics
    /// If something was wrong in there.
    pub fn done(&mut self, lab: &Lab) -> Done {
        let said = line(&mut self.out);
        let mut numbers = said.split(' ').map_while(|n| n.parse().ok());
        let (Some(counted), Some(lost)) = (numbers.next(), numbers.next()) else {
            panic!("a program with threads ended with {said:?}\n{}", lab.daemon_log());
        };
        self.counted += counted;
        let reached = fs::read_to_string(&self.counter).expect("it is there");
        assert_eq!(reached, self.counted.to_string(), "commits, and {:?}", self.counter);
        Done { counted, lost }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Begins a transaction in a program and kills it there.  `command` as for [`Program::start`].
pub fn kill_one(lab: &Lab, mut command: Command, dir: &Path) {
    command.args([PROGRAM, "killed"]).arg(dir);
    let (mut child, mut out) = started(command);
    assert_eq!(line(&mut out), "open", "{}", lab.daemon_log());
    child.kill().expect("ours");
    child.wait().expect("ours");
}

// ---- in the program -----------------------------------------------------------------------------

/// What the soak's binary does when it is one of the programs.
///
/// # Panics
/// If something is wrong.
pub fn program(which: &str, dir: &Path) {
    match which {
        "lives" => lives(dir),
        "killed" => killed(dir),
        other => panic!("no program {other}"),
    }
}

/// Waits in a transaction to be killed.
fn killed(dir: &Path) {
    systx::xbegin(Some(dir), Flags::RELAXED).expect("it begins");
    fs::write(dir.join("never"), "never").expect("it can be written");
    println!("open");
    let _ = io::stdin().lines().next();
}

/// A cycle for each line.
fn lives(dir: &Path) {
    let counter = dir.join("counted");
    if !counter.exists() {
        fs::write(&counter, "0").expect("it can be written");
    }
    // Threads that live as long as the program, with seats that do.
    let workers: Vec<(Sender<()>, Receiver<Done>)> = (0..WORKERS)
        .map(|_| {
            let (ask, asked) = channel();
            let (tell, told) = channel();
            let (dir, counter) = (dir.to_owned(), counter.clone());
            std::thread::spawn(move || {
                for () in asked {
                    if tell.send(count(&dir, &counter, ROUNDS)).is_err() {
                        return;
                    }
                }
            });
            (ask, told)
        })
        .collect();
    for line in io::stdin().lines() {
        line.expect("it is told");
        for (ask, _) in &workers {
            ask.send(()).expect("it lives");
        }
        let mut done = one_of_each(dir, &counter);
        for (_, told) in &workers {
            done = done.and(told.recv().expect("it went well"));
        }
        // Waits for those commits that were not to wait for the disk.
        File::open(dir).and_then(|dir| dir.sync_all()).expect("all is durable");
        println!("{} {}", done.counted, done.lost);
    }
}

/// Moves the counter on, every second time without waiting for the disk.
fn count(dir: &Path, counter: &Path, rounds: u64) -> Done {
    let mut done = Done::default();
    for round in 0..rounds {
        let flags = [Flags::RELAXED, Flags::default()][round as usize % 2];
        let lost = committed(dir, flags, || {
            let n: u64 = fs::read_to_string(counter)?.parse().map_err(io::Error::other)?;
            fs::write(counter, (n + 1).to_string())
        });
        done = done.and(Done { counted: 1, lost });
    }
    done
}

/// Does it in a transaction, which has to be committed in the end.  How often it lost before.
fn committed<'a>(
    dir: &Path,
    how: impl Into<Begin<'a>>,
    mut work: impl FnMut() -> io::Result<()>,
) -> u64 {
    let mut attempts = 0;
    let done = systx::atomic(dir, how, |_| {
        attempts += 1;
        work()
    });
    done.unwrap_or_else(|e| panic!("attempt {attempts}: {e}, {:?}", systx::xstatus()));
    attempts - 1
}

/// Does it in a transaction that is dropped.
fn dropped(dir: &Path, flags: Flags, mut work: impl FnMut() -> io::Result<()>) {
    let done: io::Result<()> = systx::atomic(dir, flags, |_| {
        work()?;
        Err(io::Error::other("dropped"))
    });
    let why = done.expect_err("it was dropped");
    assert_eq!(why.to_string(), "dropped", "{:?}", systx::xstatus());
}

/// By this thread, while its transaction is paused: a change from outside.
fn from_outside(path: &Path, text: &str) {
    let id = systx::xpause().expect("it can be paused");
    fs::write(path, text).expect("it can be written");
    systx::xresume(id).expect("it was paused");
}

/// All that threads do beside counting.
fn one_of_each(dir: &Path, counter: &Path) -> Done {
    let mut done = Done::default();
    let routed = is_routed(dir);
    // Held over the ends of their transactions and over the next ones.
    let mut held = Vec::new();
    for (flags, name) in [(Flags::default(), "kept"), (Flags::RELAXED, "kept too")] {
        done.lost += keeps_a_file(dir, &dir.join(name), flags, &mut held);
        drops(dir, flags, &mut held);
        let path = dir.join("by a child");
        done.lost += committed(dir, flags, || with_children(dir, &path));
        // Committed with the transaction, or by themselves where children are outside.
        assert_eq!(read(&path), "child\n");
        done.lost += loses(dir, &dir.join("lost"), flags);
        done = done.and(threads_end(dir, counter, flags));
    }
    looks_back(dir, &dir.join("looked at"));
    let path = dir.join("declared");
    done.lost += committed(dir, Begin::scoped([Declared::write(&path)]), || fs::write(&path, "x"));
    let order = format!("soak {}", dir.display());
    systx::reset_order(Some(dir), &order, 0).expect("nobody uses it");
    done.lost += committed(dir, Begin::ordered(&order, 0), || fs::write(&path, "y"));
    if !routed {
        calls_are_known(dir, &dir.join("from before"));
        a_child_is_killed(dir);
    }
    for file in &held {
        // As it was left by its transaction.
        let mut byte = [0];
        file.read_at(&mut byte, 0).expect("it can be read");
        assert_eq!(byte, *b"k");
    }
    done
}

/// Whether threads go nowhere in their transactions here, and so can have no descriptors in it.
fn is_routed(dir: &Path) -> bool {
    let why = errno(systx::xbegin(Some(dir), Flags::DESCRIPTORS));
    match why {
        None => systx::xabort().expect("it is open"),
        Some(errno) => assert_eq!(errno, libc::EOPNOTSUPP),
    }
    why.is_some()
}

/// A file that is open over the end of the transaction that made it.
fn keeps_a_file(dir: &Path, path: &Path, flags: Flags, held: &mut Vec<File>) -> u64 {
    let mut kept = None;
    let lost = committed(dir, flags, || {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.write_all_at(b"kept", 0)?;
        kept = Some(file);
        Ok(())
    });
    let file = kept.expect("it was opened");
    // It is the committed file.
    file.write_all_at(b"!", 4).expect("it can be written");
    assert_eq!(read(path), "kept!");
    held.push(file);
    lost
}

/// A transaction that is dropped, with names, directories and a file that stays open.
fn drops(dir: &Path, flags: Flags, held: &mut Vec<File>) {
    let made = dir.join("never made");
    let mut kept = None;
    dropped(dir, flags, || {
        fs::create_dir(&made)?;
        fs::write(made.join("f"), "kept by nobody")?;
        fs::rename(made.join("f"), made.join("g"))?;
        fs::remove_file(dir.join("kept"))?;
        kept = Some(File::open(made.join("g"))?);
        // What was never read cannot be read later.
        kept.as_ref().map_or(Ok(0), |file| file.read_at(&mut [0; 16], 0)).map(drop)
    });
    assert!(!made.exists() && dir.join("kept").exists());
    held.extend(kept);
}

/// A process and a thread that are made inside.
fn with_children(dir: &Path, path: &Path) -> io::Result<()> {
    fs::write(dir.join("by the parent"), "x")?;
    let script = "echo child >'by a child'; mkdir made; echo x >made/f; rm -r made";
    let mut child = Command::new("sh");
    // If the transaction is lost they cannot, and its end says so.
    child.args(["-c", script]).current_dir(dir).stderr(Stdio::null()).status()?;
    std::thread::scope(|s| {
        let other = s.spawn(|| fs::write(path.with_file_name("by a thread"), "x"));
        drop(other.join());
    });
    Ok(())
}

/// A transaction that loses to a plain program, and its next attempt.
fn loses(dir: &Path, path: &Path, flags: Flags) -> u64 {
    fs::write(path, "before").expect("it can be written");
    systx::xbegin(Some(dir), flags).expect("it begins");
    // It may have lost to somebody else.
    let _ = fs::read(path);
    from_outside(path, "outside");
    assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
    1 + committed(dir, flags | Flags::RETRY, || fs::write(path, "after"))
}

/// Threads that end after a commit, and with an open transaction.
fn threads_end(dir: &Path, counter: &Path, flags: Flags) -> Done {
    std::thread::scope(|s| {
        let commits = s.spawn(|| count(dir, counter, 1));
        let dies = s.spawn(|| {
            systx::xbegin(Some(dir), flags).expect("it begins");
            let _ = fs::write(dir.join("never"), "never");
        });
        dies.join().expect("it did");
        assert!(!dir.join("never").exists());
        commits.join().expect("it did")
    })
}

/// A frozen snapshot, of what is changed meanwhile.
fn looks_back(dir: &Path, path: &Path) {
    fs::write(path, "before").expect("it can be written");
    systx::xbegin(Some(dir), Flags::READ_ONLY).expect("it begins");
    assert_eq!(read(path), "before");
    from_outside(path, "after");
    from_outside(&path.with_file_name("made later"), "after");
    assert_eq!((read(path), path.with_file_name("made later").exists()), ("before".into(), false));
    systx::xend().expect("it loses to nobody");
    assert_eq!(read(path), "after");
    fs::remove_file(path.with_file_name("made later")).expect("it was made");
}

/// A descriptor from before is in the transaction.
fn calls_are_known(dir: &Path, path: &Path) {
    fs::write(path, "before").expect("it can be written");
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    for text in [b"dropped", b"written"] {
        let work = || file.write_all_at(text, 0);
        match text {
            b"dropped" => dropped(dir, Flags::DESCRIPTORS, work),
            _ => drop(committed(dir, Flags::DESCRIPTORS | Flags::RELAXED, work)),
        }
    }
    assert_eq!(read(path), "written");
}

/// What a child may have done half of is dropped.
fn a_child_is_killed(dir: &Path) {
    systx::xbegin(Some(dir), Flags::default()).expect("it begins");
    let mut child = Command::new("sh");
    child.args(["-c", "echo x >never; kill -9 $$"]).current_dir(dir).stderr(Stdio::null());
    child.status().expect("it is started");
    assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
    assert!(!dir.join("never").exists());
}
