//! Sockets and FIFOs that were there before: who is at their other end is met from inside, too.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use systx::Flags;
use systx_e2e::cases::errno;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that was made before any transaction, and is outside of all.
struct Outside(Sender<Job>);

impl Outside {
    fn start() -> Outside {
        let (jobs, asked) = channel::<Job>();
        std::thread::spawn(move || asked.into_iter().for_each(|job| job()));
        Outside(jobs)
    }

    /// Has it do something, one after the other; what comes of it.
    fn does<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (send, result) = channel();
        let job = move || send.send(work()).unwrap();
        self.0.send(Box::new(job)).unwrap();
        result
    }
}

/// What whoever listens says to who connects to this name.
fn hear(name: impl AsRef<Path>) -> String {
    let mut said = String::new();
    UnixStream::connect(name).unwrap().read_to_string(&mut said).unwrap();
    said
}

fn listen(name: &Path) {
    let listener = UnixListener::bind(name).unwrap();
    std::thread::spawn(move || {
        listener.incoming().for_each(|client| client.unwrap().write_all(b"heard").unwrap());
    });
}

fn identity(path: &Path) -> (u64, u64) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.dev(), meta.ino())
}

fn make_fifos(names: &[&Path]) {
    for name in names {
        mknodat(CWD, *name, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    }
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// What is met, in the guarded directory and below.
fn met(dir: &Path, outside: &Outside) {
    let (sock, sub) = (dir.join("sock"), dir.join("sub"));
    let (fifo, deep) = (dir.join("fifo"), sub.join("deep"));
    // A listing with attributes comes first, which tells the kernel of files.
    let listed = fs::read_dir(&sub).unwrap().map(|e| e.unwrap().metadata().unwrap().file_type());
    assert_eq!(listed.filter(|t| t.is_fifo() || t.is_socket()).count(), 3);
    assert_eq!([hear(&sock), hear(sub.join("other"))], ["heard", "heard"]);
    for path in [&fifo, &deep] {
        let theirs = path.clone();
        let read = outside.does(move || fs::read(theirs).unwrap());
        File::options().write(true).open(path).unwrap().write_all(b"from inside").unwrap();
        assert_eq!(read.recv().unwrap(), b"from inside");
        let theirs = path.clone();
        let wrote = outside.does(move || fs::write(theirs, "from outside").unwrap());
        assert_eq!(fs::read(path).unwrap(), b"from outside");
        wrote.recv().unwrap();
    }
    let theirs = fifo.clone();
    let read = outside.does(move || fs::read(theirs).unwrap());
    let done = Command::new("sh").args(["-c", "echo program >fifo"]).current_dir(dir).status();
    assert!(done.unwrap().success());
    assert_eq!(read.recv().unwrap(), b"program\n");
}

fn change_names(dir: &Path) {
    fs::rename(dir.join("sock"), dir.join("moved")).unwrap();
    fs::hard_link(dir.join("fifo"), dir.join("second")).unwrap();
    fs::remove_file(dir.join("sub/deep")).unwrap();
}

/// `joined`: programs that are executed inside are inside.
pub fn case(dir: &Path, joined: bool) {
    let sub = dir.join("sub");
    let [sock, fifo, deep] = ["sock", "fifo", "sub/deep"].map(|name| dir.join(name));
    fs::create_dir(&sub).unwrap();
    let kept = sub.join("kept");
    make_fifos(&[&fifo, &deep, &kept]);
    listen(&sock);
    listen(&sub.join("other"));
    let outside = Outside::start();
    let all = || [&sock, &fifo, &deep].map(|path| identity(path));
    let before = all();

    systx::xbegin(Some(dir), Flags::from_bits(0)).unwrap();
    met(dir, &outside);
    assert_eq!(all(), before);
    // Stays open over the end.
    let _open = File::options().read(true).write(true).open(&kept).unwrap();
    change_names(dir);
    assert_eq!(hear(dir.join("moved")), "heard");
    assert_eq!(identity(&dir.join("second")), before[1]);
    let (theirs, there) = (dir.to_owned(), deep.clone());
    let plain = outside.does(move || {
        assert_eq!(hear(theirs.join("sock")), "heard");
        assert!(!theirs.join("moved").exists() && !theirs.join("second").exists());
        assert_eq!(fs::metadata(&there).unwrap().nlink(), 1);
    });
    plain.recv().unwrap();
    // All would see it at once.
    assert_eq!(errno(set_mode(&fifo, 0o640)), Some(libc::EOPNOTSUPP));
    if joined {
        let changed = Command::new("chmod").arg("640").arg(&fifo).output().unwrap();
        assert!(!changed.status.success(), "by a program that is executed inside");
    }
    systx::xabort().unwrap();
    assert_eq!(all(), before);
    assert!([&fifo, &deep].iter().all(|path| fs::metadata(path).unwrap().nlink() == 1));

    systx::xbegin(Some(dir), Flags::from_bits(0)).unwrap();
    change_names(dir);
    // What is made inside is the transaction's own, with all that it is.
    let new = dir.join("new");
    make_fifos(&[&new]);
    set_mode(&new, 0o620).unwrap();
    // Plain programs change what they like, also while somebody inside has seen it.
    let theirs = sub.join("other");
    outside.does(move || set_mode(&theirs, 0o600).unwrap()).recv().unwrap();
    systx::xend().unwrap();
    assert!(!sock.exists() && !deep.exists());
    set_mode(&fifo, 0o640).unwrap();
    let second = fs::metadata(dir.join("second")).unwrap();
    assert_eq!((second.ino(), second.nlink(), second.mode() & 0o777), (before[1].1, 2, 0o640));
    assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o620);
    assert_eq!([hear(dir.join("moved")), hear(sub.join("other"))], ["heard", "heard"]);
}
