//! The processes in a view: ends what still runs there when its client has died.

use crate::mounts;
use crate::namespace_unsafe::identity;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use systx_base::proc::Stat;

/// Rounds of looking at those that were made while it was looked: nobody keeps the daemon busy for
/// ever by starting processes.
const ROUNDS: u32 = 64;

/// How long processes are given to be gone after SIGKILL: they can only linger in the kernel.
const LIMIT: Duration = Duration::from_secs(5);

/// A mount namespace. Its number is given out again as soon as it is gone, to the next run's for
/// instance, and a mount's device number with it; its identity is not.
#[derive(Clone, Copy, Debug)]
struct Namespace {
    number: u64,
    /// Not on kernels before 6.11.
    identity: Option<u64>,
}

impl Namespace {
    /// That of a process that says which one it is in.
    fn of(pid: u32, number: u64) -> Self {
        let file = File::open(place(pid)).ok();
        let same = file.filter(|file| file.metadata().is_ok_and(|meta| meta.ino() == number));
        Namespace { number, identity: same.as_ref().and_then(identity) }
    }

    /// Whether a process is in it. (A zombie is in none.)
    fn holds(self, pid: u32) -> bool {
        let at = place(pid);
        std::fs::metadata(&at).is_ok_and(|meta| meta.ino() == self.number)
            && (self.identity.is_none()
                || File::open(at).is_ok_and(|file| identity(&file) == self.identity))
    }
}

fn place(pid: u32) -> String {
    format!("/proc/{pid}/ns/mnt")
}

/// Who is in a view.
///
/// The daemon itself never is; a process that moved to a namespace of its own below the view is not
/// found here, and gets errors when the connection is aborted.
#[derive(Clone, Copy, Debug)]
pub struct Visitor {
    /// The first process.
    pub pid: u32,
    namespace: Namespace,
    /// Minor device number of what it sees the view by; 0 if not known.
    connection: u64,
}

impl Visitor {
    /// The one who says so of itself.
    pub fn new(pid: u32, namespace: u64, connection: u64) -> Self {
        Visitor { pid, namespace: Namespace::of(pid, namespace), connection }
    }

    /// Whether a process is in the view.
    fn holds(&self, pid: u32) -> bool {
        self.namespace.holds(pid) && (self.connection == 0 || has_mounted(pid, self.connection))
    }

    /// The processes in the view.
    fn all(&self) -> Vec<(u32, OwnedFd)> {
        find(|pid| {
            // Opened before it is looked at: then the one that was looked at is the one that ends.
            let fd = || pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok();
            let found = self.holds(pid).then(fd)??;
            self.holds(pid).then_some((pid, found))
        })
    }

    /// A process in the view: the first if it still is, else another, if there is any.
    pub fn somebody(&self) -> Option<u32> {
        if self.holds(self.pid) {
            return Some(self.pid);
        }
        self.all().first().map(|(pid, _)| *pid)
    }

    /// Sends SIGKILL to every process in the view, again and again until none is left (they may
    /// fork meanwhile) or the limit has passed. Returns whether all ended.
    pub fn end_all(&self) -> bool {
        if self.namespace.number == 0 || self.namespace.holds(std::process::id()) {
            return false;
        }
        let until = Instant::now() + LIMIT;
        loop {
            let found = self.all();
            if found.is_empty() {
                return true;
            }
            for (_, process) in found {
                // Already gone is as good.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            if Instant::now() > until {
                tracing::error!(visitor = ?self, "processes of a dead client do not end");
                return false;
            }
            std::thread::yield_now();
        }
    }
}

/// What `look` finds of the processes of the machine.
///
/// A process may start another one and end, again and again, while the list is read.  So what is
/// new is looked at until nothing is new: then each that lives has been looked at.
pub fn find<T>(look: impl FnMut(u32) -> Option<T>) -> Vec<T> {
    find_in(|| ids("/proc").collect(), last_started, look)
}

/// A list is read by rising numbers, and mostly whoever is started has a higher one than who starts
/// it.  Once the numbers begin again it may have one that the list is past: a list with nothing new
/// says nothing if that happened meanwhile.
fn find_in<T>(
    mut list: impl FnMut() -> Vec<u32>,
    mut last: impl FnMut() -> u32,
    mut look: impl FnMut(u32) -> Option<T>,
) -> Vec<T> {
    let mut looked_at = HashSet::new();
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let before = last();
        let new: Vec<u32> = list().into_iter().filter(|pid| looked_at.insert(*pid)).collect();
        if new.is_empty() && last() >= before {
            break;
        }
        found.extend(new.into_iter().filter_map(&mut look));
    }
    found
}

/// The number of the process or thread that was started last (`/proc/loadavg`).
fn last_started() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().last().and_then(|last| last.parse().ok()).unwrap_or(0)
}

/// The numbers that a directory of proc(5) lists: processes, or threads of one.
pub(crate) fn ids(dir: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// A process for a sentence: `user alice (systx abort 5e1f, process 4711 of bash 4700)`.
pub fn described(pid: u32, uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    let user = name.unwrap_or_else(|| format!("with the number {uid}"));
    let read = |pid: u32, what: &str| std::fs::read(format!("/proc/{pid}/{what}")).ok();
    let text = |bytes: Vec<u8>| {
        let text = String::from_utf8_lossy(&bytes).replace(['\0', '\n'], " ");
        text.trim_end().to_owned()
    };
    let Some(mut command) = command_line(pid).ok().map(text).filter(|c| !c.is_empty()) else {
        return format!("user {user}");
    };
    if command.chars().count() > 60 {
        command = command.chars().take(59).chain(['…']).collect();
    }
    let stat = read(pid, "stat").map(text).unwrap_or_default();
    let parent =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
    let of = parent.and_then(|parent| Some((parent, text(read(parent, "comm")?))));
    match of {
        Some((parent, name)) => {
            format!("user {user} ({command}, process {pid} of {name} {parent})")
        }
        None => format!("user {user} ({command}, process {pid})"),
    }
}

/// The command line of a process, with a zero after each word. One read(2) gets that of one
/// program; if the process executes another one meanwhile, several reads get parts of both.
///
/// # Errors
/// The process is gone.
pub(crate) fn command_line(pid: u32) -> std::io::Result<Vec<u8>> {
    let mut text = vec![0; 32 << 10];
    loop {
        let size = File::open(format!("/proc/{pid}/cmdline"))?.read(&mut text)?;
        if size < text.len() {
            text.truncate(size);
            return Ok(text);
        }
        text.resize(2 * size, 0);
    }
}

/// Whether a process exists and has not ended (a zombie has). One that cannot be named (0) counts
/// as alive: its connection will tell.
pub fn is_alive(pid: u32) -> bool {
    if pid == 0 {
        return true;
    }
    let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = Stat::read(&text).and_then(|stat| stat.state());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The process that has a file locked by flock(2). `None`: none has, or the kernel's list names
/// another device than the file (btrfs).
pub fn has_locked(file: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let place = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let all = std::fs::read_to_string("/proc/locks").ok()?;
    all.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let (pid, at) = (words.nth(2)?, words.next()?);
        if is_flock && at == place { pid.parse().ok() } else { None }
    })
}

/// When a process started, in ticks since the boot; its number may be another one's at another
/// time.
pub fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::read(&text)?.field(22)?.parse().ok()
}

/// Whether a process sees a mount of the file system with this minor device number (major 0).
fn has_mounted(pid: u32, minor: u64) -> bool {
    mounts::of(pid).is_ok_and(|table| table.iter().any(|m| m.dev == minor_device(minor)))
}

fn minor_device(minor: u64) -> u64 {
    rustix::fs::makedev(0, u32::try_from(minor).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    /// Its first thread ends (exit(2) is of one thread), another one keeps what is open.
    const DIES_IN_PART: &str = "
import ctypes, fcntl, os, sys, threading
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(1, b'.')
os.read(0, 1)
threading.Thread(target=os.read, args=(0, 1)).start()
ctypes.CDLL(None).syscall(60, 0)
";

    /// The process 30000 starts 300 and ends, while the second list is between the two.
    #[test]
    fn a_list_in_which_the_numbers_began_again_is_read_once_more() {
        let mut lists =
            [vec![1, 20_000], vec![1, 20_000], vec![1, 300, 20_000]].into_iter().cycle();
        let mut lasts = [30_000, 30_000, 300, 300, 300].into_iter().cycle();
        let found = find_in(|| lists.next().unwrap(), || lasts.next().unwrap(), Some);
        assert_eq!(found, [1, 20_000, 300]);
        assert!(last_started() > 0);
    }

    /// Each process of this chain starts the next one and ends.
    #[test]
    fn processes_that_hand_on_while_it_is_looked_are_found() {
        let place = tempfile::tempdir().unwrap();
        let goes_on = place.path().join("goes-on");
        std::fs::write(&goes_on, "").unwrap();
        let link = r#"[ ! -e "$1" ] || sh -c "$0" "$0" "$1" &"#;
        let mut chain = Command::new("sh");
        chain.args(["-c", link, link]).arg(&goes_on).process_group(0);
        let mut first = chain.spawn().expect("sh");
        let group = first.id().to_string();
        first.wait().unwrap();
        let is_in = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let of = stat.rsplit_once(')')?.1.split_whitespace().nth(2)?;
            (of == group && is_alive(pid)).then_some(pid)
        };
        let missed = (0..100).filter(|_| find(is_in).is_empty()).count();
        std::fs::remove_file(&goes_on).unwrap();
        assert_eq!(missed, 0, "of 100 looks");
    }

    /// The process executes the next program without pause, each with its last two words the other
    /// way round.
    #[test]
    fn a_command_line_is_that_of_one_program() {
        const AGAIN: &str = r#"exec sh -c "$1" sh "$1" "$3" "$2""#;
        let [first, second] = ["a", "b"].map(|letter| letter.repeat(50_000));
        let words = |last: [&str; 2]| ["sh", "-c", AGAIN, "sh", AGAIN, last[0], last[1]].join("\0");
        let texts = [[&*first, &*second], [&*second, &*first]].map(|last| words(last) + "\0");
        let mut sh = Command::new("sh");
        let mut child = sh.args(["-c", AGAIN, "sh", AGAIN, &first, &second]).spawn().expect("sh");
        let look = || command_line(child.id()).unwrap();
        // While a program is executed there is none.
        let looks = std::iter::repeat_with(look).filter(|text| !text.is_empty());
        let mut seen = looks.take(2000);
        let torn = seen.position(|text| texts.iter().all(|one| one.as_bytes() != text));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(torn, None);
    }

    #[test]
    fn who_has_a_lock_is_known_and_whether_that_one_has_died_though_the_lock_is_held() {
        // Where the kernel's list of locks has the device that files say that they are on.
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = place.path().join("lock");
        let file = File::create(&path).unwrap();
        assert_eq!(has_locked(file.as_fd()), None);
        let mut python = Command::new("python3");
        let python = python.args(["-c", DIES_IN_PART]).arg(&path);
        let mut child =
            python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert_eq!(has_locked(file.as_fd()), Some(child.id()));
        assert!(is_alive(child.id()));
        child.stdin.as_mut().unwrap().write_all(b".").unwrap();
        let until = Instant::now() + Duration::from_secs(300);
        while is_alive(child.id()) {
            assert!(Instant::now() < until, "its first thread does not end");
            std::thread::yield_now();
        }
        assert_eq!(has_locked(file.as_fd()), Some(child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(has_locked(file.as_fd()), None);
    }
}
