//! Threads that lose: those that keep losing, driven line by line, for the suite `scheduling`; and
//! by what they have read of what they listed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use systx_e2e::cases::errno;

use super::{SERIALIZABLE, plain_write};

/// A whole page, so that nothing is read first.
fn write_page(dir: &Path) -> io::Result<()> {
    File::options().write(true).open(dir.join("f"))?.write_all_at(&[b'h'; 4096], 0)
}

/// Does what it is told and says what has become of it.
pub fn driven(dir: &Path) {
    println!("ready");
    for line in io::stdin().lines() {
        match line.unwrap().as_str() {
            "lose" => {
                systx::xbegin(Some(dir), SERIALIZABLE).unwrap();
                assert_eq!(errno(write_page(dir)), Some(libc::ECANCELED));
                assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
                println!("lost");
            }
            "urgent" => {
                rustix::process::setpriority_process(None, -5).unwrap();
                println!("urgent");
            }
            "commit" => {
                let done = systx::xbegin(Some(dir), SERIALIZABLE)
                    .and_then(|()| write_page(dir))
                    .and_then(|()| systx::xend());
                match done {
                    Ok(()) => println!("committed"),
                    Err(error) => println!("failed: {error}"),
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Counts in one file beside others, for as many milliseconds, and says how often.
pub fn counts(dir: &Path, milliseconds: u64) {
    println!("ready");
    super::told_to_go_on();
    let until = Instant::now() + Duration::from_millis(milliseconds);
    let path = dir.join("count");
    let (mut done, mut attempts) = (0, 0);
    while Instant::now() < until {
        systx::atomic(dir, SERIALIZABLE, |_| {
            attempts += 1;
            let count: u64 = fs::read_to_string(&path)?.parse().map_err(io::Error::other)?;
            fs::write(&path, (count + 1).to_string())
        })
        .unwrap();
        done += 1;
    }
    println!("{done} {attempts}");
}

/// Who lists names loses to nobody who changes what is listed; who has looked at it does.
pub fn listed(dir: &Path) {
    let d = dir.join("d");
    fs::create_dir(&d).unwrap();
    let [f, g] = ["f", "g"].map(|name| d.join(name));
    for looks in [false, true] {
        [&f, &g].iter().for_each(|file| fs::write(file, "x").unwrap());
        let tx = systx::begin(dir, SERIALIZABLE).unwrap();
        let names = fs::read_dir(&d).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["f", "g"]);
        if looks {
            assert_eq!((f.metadata().unwrap().len(), g.metadata().unwrap().len()), (1, 1));
        }
        let younger = || {
            systx::xbegin(Some(dir), SERIALIZABLE)?;
            let appended = fs::write(&g, "longer");
            appended.and(systx::xend()).inspect_err(|_| drop(systx::xabort()))
        };
        // A thread that is made inside belongs to it.
        let id = systx::xpause().unwrap();
        let done = std::thread::scope(|s| {
            let younger = s.spawn(younger);
            // If it slept it would lose.
            while !younger.is_finished() {
                std::thread::yield_now();
            }
            younger.join().unwrap()
        });
        systx::xresume(id).unwrap();
        assert_eq!(errno(done), looks.then_some(libc::ECANCELED));
        plain_write(&f, "longer");
        if !looks {
            assert_eq!((super::read(&f), super::read(&g)), ("longer".into(), "longer".into()));
        }
        fs::write(dir.join("mine"), "x").map_or_else(|e| assert!(looks, "{e}"), drop);
        assert_eq!(errno(tx.commit()), looks.then_some(libc::ECANCELED));
    }
}
