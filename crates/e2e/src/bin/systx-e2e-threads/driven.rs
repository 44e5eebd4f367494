//! A program that does what it is told, line by line, and says on one line what has become of it,
//! for the suite `volume_threads`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::{Flags, SERIALIZABLE};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;

/// What it has open.
#[derive(Default)]
struct Held {
    file: Option<File>,
    locked: Vec<File>,
}

pub fn case(dir: &Path) {
    println!("ready");
    let mut held = Held::default();
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let (word, rest) = line.split_once(' ').unwrap_or((line.as_str(), ""));
        let said = act(dir, (word, rest), &mut held)
            .unwrap_or_else(|e| format!("error {}", e.raw_os_error().unwrap_or_default()));
        println!("{}", said.trim_end().replace('\n', "|"));
    }
}

fn rw(dir: &Path, name: &str) -> io::Result<File> {
    File::options().read(true).write(true).open(dir.join(name))
}

fn ok(done: io::Result<()>) -> io::Result<String> {
    done.map(|()| "ok".into())
}

fn is_free(got: Result<(), Errno>) -> io::Result<bool> {
    match got {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

fn lock(held: &mut Held, file: File, got: bool) -> String {
    if !got {
        return "busy".into();
    }
    held.locked.push(file);
    "locked".into()
}

fn act(dir: &Path, (word, rest): (&str, &str), held: &mut Held) -> io::Result<String> {
    let closed = || io::Error::from_raw_os_error(libc::EBADF);
    match word {
        "begin" => ok(systx::xbegin(Some(dir), SERIALIZABLE)),
        "retry" => ok(systx::xbegin(Some(dir), Flags::RETRY)),
        "end" => ok(systx::xend()),
        "abort" => ok(systx::xabort()),
        // By a process that is made here, so inside of what is open.
        "sh" => {
            let done = Command::new("sh").args(["-c", rest]).current_dir(dir).output()?;
            let code = done.status.code().unwrap_or(-1);
            Ok(format!("{code} {}", String::from_utf8_lossy(&done.stdout)))
        }
        "read" => fs::read_to_string(dir.join(rest)),
        "open" => {
            held.file = Some(rw(dir, rest)?);
            Ok("ok".into())
        }
        "put" => ok(held.file.as_ref().ok_or_else(closed)?.write_all_at(rest.as_bytes(), 0)),
        "get" => {
            let mut bytes = [0; 100];
            let n = held.file.as_ref().ok_or_else(closed)?.read_at(&mut bytes, 0)?;
            Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
        }
        "close" => {
            held.file = None;
            Ok("ok".into())
        }
        "flock" => {
            let file = rw(dir, rest)?;
            let got = is_free(flock(&file, FlockOperation::NonBlockingLockExclusive))?;
            Ok(lock(held, file, got))
        }
        // A process's, until it closes any descriptor of the file.
        "posix" => {
            let file = rw(dir, rest)?;
            let got = is_free(fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive))?;
            Ok(lock(held, file, got))
        }
        "unlock" => {
            held.locked.clear();
            Ok("ok".into())
        }
        other => panic!("{other:?}"),
    }
}
