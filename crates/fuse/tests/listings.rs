//! What programs see of a directory that others change, where the kernel keeps listings and
//! attributes of it: whoever begins after a change sees all of it.
#![allow(clippy::unwrap_used)]

mod memfs;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::Ordering;

use memfs::Mount;
use rustix::fs::{RawDir, SeekFrom};
use systx_fuse::wire::Opcode;
use systx_fuse::{Config, Transport};

/// Runs a test on a fresh mount over each transport that this machine has.
fn over_both(test: impl Fn(&Mount)) {
    if let Some(why) = memfs::obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for transport in [Transport::DevFuse, Transport::IoUring] {
        match Mount::new(Config { transport, ..Config::default() }) {
            Ok(mount) => test(&mount),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                eprintln!("skipped: {transport:?}: {e}");
            }
            Err(e) => panic!("{transport:?}: {e}"),
        }
    }
}

/// So many that a listing takes many calls.
const FILES: usize = 600;

fn name(i: usize) -> String {
    format!("a-name-of-some-length-{i:04}")
}

fn fill(m: &Mount) {
    (0..FILES).for_each(|i| drop(File::create(m.path(&name(i))).unwrap()));
}

/// A listing that goes on by one getdents(2) at a time.
struct Slow(File);

impl Slow {
    fn begin(dir: &Path) -> Slow {
        Slow(File::open(dir).unwrap())
    }
    /// The names of one call; none at the end.
    fn next(&self) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut raw = RawDir::new(&self.0, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = raw.next() {
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            names.extend((!name.starts_with('.')).then_some(name));
            if raw.is_buffer_empty() {
                break;
            }
        }
        names
    }
    fn rest(&self) -> BTreeSet<String> {
        let calls = std::iter::repeat_with(|| self.next());
        calls.take_while(|names| !names.is_empty()).flatten().collect()
    }
    fn rewind(&self) {
        rustix::fs::seek(&self.0, SeekFrom::Start(0)).unwrap();
    }
}

/// The kernel looks whether a directory has changed only for who is at its start, and completes its
/// listing at the end of anybody's.
#[test]
fn a_listing_does_not_go_on_with_one_that_began_before_a_change() {
    over_both(|m| {
        fill(m);
        let old = Slow::begin(&m.dir);
        let mut seen = BTreeSet::new();
        while seen.len() < FILES {
            seen.extend(old.next());
        }
        // Of what comes late in a listing.
        std::fs::remove_file(m.path(&name(FILES - 2))).unwrap();
        std::fs::rename(m.path(&name(FILES - 3)), m.path("renamed")).unwrap();
        File::create(m.path("new")).unwrap();
        let young = Slow::begin(&m.dir);
        let mut now: BTreeSet<_> = young.next().into_iter().collect();
        assert!(now.len() < FILES / 2, "a call tells {} names at once", now.len());
        // It may well end without the new names.
        old.rest();
        now.extend(young.rest());
        let gone = [name(FILES - 2), name(FILES - 3)];
        assert!(!gone.iter().any(|name| now.contains(name)), "it shows what is gone");
        assert!(["new", "renamed"].iter().all(|name| now.contains(*name)), "it lacks what is new");
        assert_eq!(now.len(), FILES);
        // And from the start, with the same descriptor and with another one.
        young.rewind();
        assert_eq!(young.rest(), now);
        assert_eq!(Slow::begin(&m.dir).rest(), now);
    });
}

/// Changes cost nothing of what the kernel keeps after them: the next listing is the last one that
/// is asked for.
#[test]
fn a_directory_that_rests_is_listed_without_messages() {
    over_both(|m| {
        fill(m);
        let asked = || {
            let stats = m.connection().stats();
            stats.count(Opcode::Readdir) + stats.count(Opcode::Readdirplus)
        };
        for i in 0..3 {
            File::create(m.path(&format!("new-{i}"))).unwrap();
            assert_eq!(Slow::begin(&m.dir).rest().len(), FILES + i + 1);
            let before = asked();
            for _ in 0..5 {
                assert_eq!(Slow::begin(&m.dir).rest().len(), FILES + i + 1);
            }
            assert_eq!(asked(), before);
        }
        // So it is after listings that met changes.
        let slow = Slow::begin(&m.dir);
        slow.next();
        std::fs::remove_file(m.path("new-0")).unwrap();
        let young = Slow::begin(&m.dir);
        young.next();
        slow.rest();
        young.rest();
        Slow::begin(&m.dir).rest();
        let before = asked();
        assert_eq!(Slow::begin(&m.dir).rest().len(), FILES + 2);
        assert_eq!(asked(), before);
    });
}

/// Attributes that were on their way when a name changed are none to be kept.
#[test]
fn attributes_from_before_a_change_are_not_kept_after_it() {
    over_both(|m| {
        let dir = m.path("d");
        std::fs::create_dir(&dir).unwrap();
        let times = || {
            let seen = rustix::fs::stat(&dir).unwrap();
            (seen.st_mtime, seen.st_mtime_nsec, seen.st_ctime, seen.st_ctime_nsec)
        };
        let at = |name: &str| dir.join(name);
        let changes: [(&str, &dyn Fn()); 7] = [
            ("create", &|| drop(File::create(at("f")).unwrap())),
            ("mkdir", &|| std::fs::create_dir(at("d")).unwrap()),
            ("symlink", &|| std::os::unix::fs::symlink("f", at("s")).unwrap()),
            ("link", &|| std::fs::hard_link(at("f"), at("l")).unwrap()),
            ("rename", &|| std::fs::rename(at("f"), at("g")).unwrap()),
            ("unlink", &|| std::fs::remove_file(at("g")).unwrap()),
            ("rmdir", &|| std::fs::remove_dir(at("d")).unwrap()),
        ];
        for (what, change) in changes {
            // Nobody else has asked since these: the answer on its way is the first one.
            drop(File::create(at("mine")).unwrap());
            std::fs::remove_file(at("mine")).unwrap();
            let before = times();
            // It has changed the access time, so the kernel asks; but not for the sake of a path.
            Slow::begin(&dir).rest();
            m.fs.gate.close();
            m.fs.slow.store(true, Ordering::SeqCst);
            std::thread::scope(|s| {
                let asked = s.spawn(times);
                m.fs.gate.wait_held(1);
                change();
                m.fs.gate.open();
                assert_eq!(asked.join().unwrap(), before, "{what} was not in the middle");
            });
            assert_ne!(times(), before, "{what}");
        }
    });
}
