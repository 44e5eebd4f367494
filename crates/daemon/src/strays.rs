//! Which threads are in routed transactions, in a file: for the daemon that mounts the directory
//! again after this one was killed.
//!
//! A thread that is in a transaction by routing is nowhere else than all others. When the daemon
//! dies, and the next one has mounted the directory again, what it does there would be plain, and
//! the program does not know yet that its transaction is gone. So the next daemon reads here whom
//! it has to refuse until they are told.
//!
//! The file has a record for each thread, and is written in place at each begin and end: a write of
//! 16 bytes, of which nothing has to outlive the machine. What is read is not trusted: a record
//! counts if the number of the thread's pidfd, which is never used again, is the one that it names.

use crate::members::PIDFD_THREAD;
use rustix::fs::{Mode, OFlags, fstat};
use rustix::process::{Pid, pidfd_open};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::sync::{Mutex, rank};
use systx_guard::aliases::Rider;

/// Of the pidfd's inode number, the thread's number, and a mark.
const RECORD: usize = 16;
const MARK: u32 = 0x7379_7374;
/// More threads than anybody has.
const MOST: usize = 1 << 16;

/// See the module.
#[derive(Default)]
pub(crate) struct Strays {
    file: Option<File>,
    places: Option<Mutex<Places>>,
}

#[derive(Default)]
struct Places {
    /// The record of each thread.
    by_tid: HashMap<u32, u64>,
    free: Vec<u64>,
    next: u64,
    /// The directory is not served any more, and they do not know.
    over: bool,
}

impl Strays {
    /// The list of a directory, below the runtime directory, and who is on it and lives.
    pub fn load(path: &Path) -> (Strays, Vec<Rider>) {
        let found = read(path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
        let file = file.inspect_err(|errno| {
            tracing::error!(%errno, ?path, "who is in a transaction is forgotten if this daemon is killed");
        });
        let places = Some(Mutex::new(rank::LEAF, Places::default()));
        let strays = Strays { file: file.ok().map(File::from), places };
        for rider in &found {
            strays.enter(rider.tid, rider.thread.as_fd());
        }
        (strays, found)
    }

    /// Where that list is.
    pub fn path(runtime: &Path, (ino, dev): (u64, u64)) -> PathBuf {
        runtime.join(format!("routed-{dev:x}-{ino:x}"))
    }

    /// A thread begins.
    pub fn enter(&self, tid: u32, thread: BorrowedFd<'_>) {
        let Ok(ino) = fstat(thread).map(|stat| stat.st_ino) else { return };
        self.change(|places| {
            let Places { by_tid, free, next, .. } = places;
            let at = *by_tid.entry(tid).or_insert_with(|| {
                free.pop().unwrap_or_else(|| {
                    *next += 1;
                    *next - 1
                })
            });
            let mut record = [0; RECORD];
            record[..8].copy_from_slice(&ino.to_le_bytes());
            record[8..12].copy_from_slice(&tid.to_le_bytes());
            record[12..].copy_from_slice(&MARK.to_le_bytes());
            Some((at, record))
        });
    }

    /// It has ended its transaction, or knows that it is gone.
    pub fn leave(&self, tid: u32) {
        self.change(|places| {
            let at = places.by_tid.remove(&tid)?;
            places.free.push(at);
            Some((at, [0; RECORD]))
        });
    }

    /// The directory is not served any more: what is on the list stays there.
    pub fn leave_behind(&self) {
        if let Some(places) = &self.places {
            places.lock().over = true;
        }
    }

    fn change(&self, change: impl FnOnce(&mut Places) -> Option<(u64, [u8; RECORD])>) {
        let Some(places) = &self.places else { return };
        let mut places = places.lock();
        if places.over {
            return;
        }
        let change = change(&mut places);
        if let (Some((at, record)), Some(file)) = (change, &self.file)
            && let Err(error) = file.write_all_at(&record, at * RECORD as u64)
        {
            tracing::error!(%error, "who is in a transaction is forgotten if this daemon is killed");
        }
    }
}

fn read(path: &Path) -> Vec<Rider> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return Vec::new() };
    let mut bytes = Vec::new();
    let length = (MOST * RECORD) as u64;
    if let Err(error) = File::from(file).take(length).read_to_end(&mut bytes) {
        tracing::error!(%error, ?path, "who was in a transaction is not known");
    }
    bytes.chunks_exact(RECORD).filter_map(rider).collect()
}

/// Whom a record is about, if that thread lives.
fn rider(record: &[u8]) -> Option<Rider> {
    let (ino, rest) = record.split_first_chunk::<8>()?;
    let (tid, rest) = rest.split_first_chunk::<4>()?;
    let mark = rest.first_chunk::<4>()?;
    if u32::from_le_bytes(*mark) != MARK {
        return None;
    }
    let tid = u32::from_le_bytes(*tid);
    let number = i32::try_from(tid).ok().and_then(Pid::from_raw)?;
    let thread: OwnedFd = pidfd_open(number, PIDFD_THREAD).ok()?;
    let same = fstat(&thread).is_ok_and(|stat| stat.st_ino == u64::from_le_bytes(*ino));
    // Whoever it asks for is refused.
    same.then(|| Rider { tid, uid: 0, gid: 0, thread: Arc::new(thread) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (u32, OwnedFd) {
        let tid = rustix::thread::gettid();
        let fd = pidfd_open(tid, PIDFD_THREAD).unwrap();
        (tid.as_raw_nonzero().get().unsigned_abs(), fd)
    }

    #[test]
    fn the_next_daemon_finds_who_lives_and_was_inside_and_nobody_else() {
        let dir = std::env::temp_dir();
        let path = Strays::path(&dir, (u64::from(std::process::id()), 1));
        let tids = |riders: Vec<Rider>| riders.iter().map(|r| r.tid).collect::<Vec<u32>>();
        let (strays, found) = Strays::load(&path);
        assert_eq!(tids(found), Vec::<u32>::new());
        let (tid, fd) = own();
        let (dead, its) = std::thread::spawn(own).join().unwrap();
        strays.enter(dead, its.as_fd());
        strays.enter(tid, fd.as_fd());
        strays.enter(tid, fd.as_fd());
        // Twice: the one after the next one finds him, too.
        let (strays, found) = Strays::load(&path);
        assert_eq!(tids(found), [tid]);
        strays.leave_behind();
        strays.leave(tid);
        let (strays, found) = Strays::load(&path);
        assert_eq!(tids(found), [tid]);
        strays.leave(tid);
        strays.leave(tid);
        assert_eq!(tids(Strays::load(&path).1), Vec::<u32>::new());
        // Another thread has got the number since; and what nobody has written.
        std::fs::write(
            &path,
            [&1_u64.to_le_bytes()[..], &tid.to_le_bytes(), &MARK.to_le_bytes()].concat(),
        )
        .unwrap();
        assert_eq!(tids(Strays::load(&path).1), Vec::<u32>::new());
        std::fs::write(&path, [7; 55]).unwrap();
        assert_eq!(tids(Strays::load(&path).1), Vec::<u32>::new());
        std::fs::remove_file(&path).unwrap();
    }
}
