//! Threads whose transactions work in the same files, by descriptors that are always open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;

const FILES: usize = 4;
const THREADS: usize = 12;
const ROUNDS: u64 = 20;
const PAGE: u64 = 4096;

/// Each thread counts in a page of its own of each file, the files in an order of its own. So
/// decisions rely on files that all the others have open for writing.
pub fn counted(dir: &Path) {
    let path = |n: usize| dir.join(format!("f{n}"));
    for n in 0..FILES {
        fs::write(path(n), vec![0; THREADS * PAGE as usize]).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let open = |n| File::options().read(true).write(true).open(path(n)).unwrap();
                let files: Vec<File> = (0..FILES).map(|n| open((n + thread) % FILES)).collect();
                for _ in 0..ROUNDS {
                    count(dir, &files, thread as u64 * PAGE);
                }
            });
        }
    });
    for n in 0..FILES {
        let bytes = fs::read(path(n)).unwrap();
        for page in bytes.chunks(PAGE as usize) {
            let count = page.first_chunk().copied().map(u64::from_ne_bytes);
            assert_eq!(count, Some(ROUNDS));
        }
    }
}

fn count(dir: &Path, files: &[File], at: u64) {
    let done = systx::atomic(dir, systx::Flags::DESCRIPTORS, |_| {
        for file in files {
            let mut count = [0; 8];
            file.read_exact_at(&mut count, at)?;
            file.write_all_at(&(u64::from_ne_bytes(count) + 1).to_ne_bytes(), at)?;
        }
        Ok(())
    });
    done.unwrap_or_else(|error| panic!("{error}: {:?}", systx::xstatus()));
}

/// A commit makes calls that are served as those of programs are: many that end at once leave room
/// for these.
pub fn crowd(dir: &Path) {
    const CROWD: usize = 400;
    let all = Barrier::new(CROWD);
    let one = &|n: usize| {
        let tx = systx::begin(dir, systx::Flags::default()).unwrap();
        fs::write(dir.join(format!("n{n}")), "").unwrap();
        all.wait();
        tx.commit().unwrap();
    };
    std::thread::scope(|scope| {
        for n in 0..CROWD {
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, move || one(n))
                .unwrap();
        }
    });
    assert_eq!(fs::read_dir(dir).unwrap().count(), CROWD);
}
