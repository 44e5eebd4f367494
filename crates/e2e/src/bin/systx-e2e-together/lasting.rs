//! The case of the suite `ordered` in which daemons and members are killed.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use systx::{Begin, Flags};

/// One of two processes that do the numbers of an order up to an end: number `n` appends itself to
/// a log, but for each third, which commits nothing. The order alone says where to go on, also for
/// one that comes after one that was killed.
pub fn share_of(dir: &Path, end: u64, share: u64) {
    // One does not wait for the disk.
    let flags = if share == 0 { Flags::default() } else { Flags::RELAXED };
    systx::set_patience(Duration::from_secs(60));
    loop {
        let next = until_there(|| systx::next_order(Some(dir), "lasting"));
        let own = next + (next + share) % 2;
        if own >= end {
            return;
        }
        let how = Begin { flags, ..Begin::ordered("lasting", own) };
        match systx::atomic(dir, how, |_| note(dir, own)) {
            Ok(()) if share == 0 => {
                let next = until_there(|| systx::next_order(Some(dir), "lasting"));
                assert!(next > own, "{own} was committed, and {next} comes next");
                println!("{own}");
            }
            Ok(()) => println!("{own}"),
            // It was committed, or it is another's that was killed and not ended yet, or the daemon
            // has ended: the order knows.
            Err(e) => assert!(may_be(&e), "{own}: {e}, {:?}", systx::xstatus()),
        }
    }
}

fn note(dir: &Path, n: u64) -> io::Result<()> {
    if n % 3 == 2 {
        return Ok(());
    }
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join("log"))?;
    log.write_all(format!("{n}\n").as_bytes())
}

fn may_be(e: &io::Error) -> bool {
    let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::ENOTTY, libc::ENODEV];
    let of_order = [libc::EEXIST, libc::EBUSY, libc::EIO];
    e.raw_os_error().is_some_and(|e| gone.contains(&e) || of_order.contains(&e))
}

/// Asks until the daemon is there.
fn until_there<T>(mut ask: impl FnMut() -> io::Result<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(e) => assert!(may_be(&e) && Instant::now() < deadline, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
