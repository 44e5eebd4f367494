//! Cases of the suite `scoped`.

use crate::{Sibling, errno, waits};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use systx::{Begin, Declared, Flags, State, Status};

/// Runs a case, if it is one of these.
pub fn run(case: &str, dir: &Path, number: u64) -> bool {
    match case {
        "scope-answers" => answers(dir),
        "scope-parts" => parts(dir),
        "scope-wins" => wins(dir),
        "scope-asleep" => asleep(dir),
        "scope-replaced" => replaced(dir),
        "scope-held" => held(dir),
        "scope-transfers" => transfers(dir, number),
        "scope-noise" => noise(dir, number),
        "scope-plain" => plain(dir),
        "scope-hold" => hold(dir),
        "scope-wait" => wait(dir, number != 0),
        "scope-probe" => probe(dir, number != 0),
        _ => return false,
    }
    true
}

const MINUTE: Duration = Duration::from_secs(60);

/// Begins with these to be written.
fn begin(dir: &Path, flags: Flags, names: &[&str]) -> io::Result<systx::Transaction> {
    let paths: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    let scope = Begin::scoped(paths.iter().map(Declared::write));
    systx::begin(dir, Begin { flags, ..scope })
}

fn at_once(dir: &Path, names: &[&str]) -> io::Result<systx::Transaction> {
    begin(dir, Flags::NONBLOCK, names)
}

/// What another thread, outside of this one's transaction, gets at once.
fn elsewhere(sibling: &Sibling, dir: &Path, scope: &[(&str, bool)]) -> (Option<i32>, Status) {
    let scope: Vec<_> = scope.iter().map(|(name, write)| (dir.join(name), *write)).collect();
    let dir = dir.to_owned();
    sibling.run(move || {
        let scope = scope.iter().map(|(path, write)| Declared { path, write: *write });
        let how = Begin { flags: Flags::NONBLOCK, ..Begin::scoped(scope) };
        let begun = systx::begin(&dir, how).and_then(|tx| tx.commit());
        assert_eq!(systx::xid(), 0);
        (errno(begun), systx::xstatus().unwrap())
    })
}

/// What is asked wrongly, or does not get its turn, opens nothing and leaves nothing behind.
fn answers(dir: &Path) {
    fs::write(dir.join("a"), "1").unwrap();
    let a = dir.join("a");
    let scoped = || Begin::scoped([Declared::write(&a)]);
    let wrong = |how: Begin| errno(systx::begin(dir, how));
    assert_eq!(wrong(Begin { order: Some(("n", 0)), ..scoped() }), Some(libc::EINVAL));
    assert_eq!(wrong(Begin { flags: Flags::READ_ONLY, ..scoped() }), Some(libc::EINVAL));
    let outside = dir.parent().unwrap().join("x");
    assert_eq!(wrong(Begin::scoped([Declared::read(&outside)])), Some(libc::EXDEV));
    let many = vec![Declared::read(&a); 257];
    assert_eq!(wrong(Begin::scoped(many)), Some(libc::E2BIG));
    let long = dir.join("x".repeat(256));
    assert_eq!(wrong(Begin::scoped([Declared::read(&long)])), Some(libc::ENAMETOOLONG));
    let below = a.join("b");
    assert_eq!(wrong(Begin::scoped([Declared::read(&below)])), Some(libc::ENOTDIR));
    // What only counts declares nothing.
    let tx = systx::begin(dir, Begin::default()).unwrap();
    assert_eq!(wrong(scoped()), Some(libc::EINVAL));
    tx.commit().unwrap();

    // The thread first, or it would be made inside.
    let (sibling, place) = (Sibling::new(), dir.to_owned());
    let tx = begin(dir, Flags::default(), &["a"]).unwrap();
    let id = systx::xid();
    let (late, told) = sibling.run(move || {
        systx::set_patience(Duration::from_millis(1));
        let late = errno(begin(&place, Flags::default(), &["a", "b"]));
        (late, systx::xstatus().unwrap())
    });
    assert!(matches!(late, Some(libc::ETIMEDOUT | libc::EDEADLK)), "{late:?}");
    assert_eq!((told.id, told.state), (0, State::None), "{told:?}");
    let words = format!("guarded/a is in the scope of transaction {id:08x} (");
    assert!(told.words.contains(&words) && told.words.contains("systx-e2e-together"), "{told:?}");
    let (busy, told) = elsewhere(&sibling, dir, &[("a", true)]);
    assert!(busy == Some(libc::EBUSY) && told.words.contains(&words), "{busy:?} {told:?}");
    // Who gave up is not in line.
    assert_eq!(elsewhere(&sibling, dir, &[("b", true)]).0, None);
    fs::write(&a, "2").unwrap();
    tx.commit().unwrap();
    assert_eq!(elsewhere(&sibling, dir, &[("a", true)]).0, None);
    // One that is dropped leaves its scope, too.
    begin(dir, Flags::default(), &["a"]).unwrap().abort().unwrap();
    assert_eq!(elsewhere(&sibling, dir, &[("a", true)]).0, None);
}

/// What is the same, and what is not.
fn parts(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deep")).unwrap();
    fs::write(dir.join("sub/a"), "a").unwrap();
    fs::write(dir.join("b"), "b").unwrap();
    fs::hard_link(dir.join("b"), dir.join("sub/b2")).unwrap();
    std::os::unix::fs::symlink("sub/a", dir.join("link")).unwrap();
    let sibling = Sibling::new();
    let meets = |mine: &[(&str, bool)], theirs: &[(&str, bool)]| {
        let paths: Vec<_> = mine.iter().map(|(name, write)| (dir.join(name), *write)).collect();
        let scope = paths.iter().map(|(path, write)| Declared { path, write: *write });
        let tx = systx::begin(dir, Begin::scoped(scope)).unwrap();
        let busy = elsewhere(&sibling, dir, theirs).0;
        tx.commit().unwrap();
        assert!(matches!(busy, None | Some(libc::EBUSY)), "{busy:?}");
        busy.is_some()
    };
    let w = |name| (name, true);
    let r = |name| (name, false);
    assert!(!meets(&[r("b")], &[r("b")]));
    assert!(meets(&[r("b")], &[w("b")]) && meets(&[w("b")], &[r("b")]));
    assert!(!meets(&[w("b")], &[w("sub/a")]) && !meets(&[w("sub/a")], &[w("sub/new")]));
    // A directory is the names in it, also those that are not there; not what is in the files.
    assert!(meets(&[w("sub")], &[w("sub/a")]) && meets(&[w("sub/new")], &[r("sub")]));
    assert!(meets(&[w("sub")], &[r("sub/new")]) && !meets(&[r("")], &[w("sub/new")]));
    assert!(meets(&[w("sub")], &[w("sub")]) && !meets(&[r("sub")], &[r("sub/a")]));
    // The way to it is read.
    assert!(meets(&[w("sub")], &[r("sub/deep/new")]) && meets(&[w("")], &[r("sub/a")]));
    assert!(meets(&[w("sub")], &[r("sub/deep")]) && !meets(&[r("")], &[r("sub/deep/new")]));
    // What has two names is one; what a link leads to is what is meant.
    assert!(meets(&[w("b")], &[w("sub/b2")]) && meets(&[w("link")], &[w("sub/a")]));
    // Of what has no directory yet, the first name that is missing.
    assert!(meets(&[w("new/x")], &[w("new/y")]) && !meets(&[w("new/x")], &[w("old/x")]));
    // It makes them, and removes them, at the first attempt.
    let tx = begin(dir, Flags::default(), &["sub", "sub/a", "new"]).unwrap();
    fs::create_dir(dir.join("new")).unwrap();
    fs::rename(dir.join("sub/a"), dir.join("new/a")).unwrap();
    fs::write(dir.join("sub/more"), "more").unwrap();
    assert_eq!(fs::read_dir(dir.join("sub")).unwrap().count(), 3);
    tx.commit().unwrap();
    assert_eq!(fs::read_to_string(dir.join("new/a")).unwrap(), "a");
}

/// Who declared it wins, against who has it and against who comes for it, however old that is.
fn wins(dir: &Path) {
    for name in ["a", "b", "c"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let (sibling, place) = (Sibling::new(), dir.to_owned());
    let again = move || systx::xbegin(Some(&place), Flags::RETRY).unwrap();
    for n in 0..3 {
        let (again, c) = (again.clone(), dir.join("c"));
        sibling.run(move || (again(), fs::read(c).unwrap()));
        fs::write(dir.join("c"), n.to_string()).unwrap();
        sibling.run(|| assert_eq!(errno(systx::xend()), Some(libc::ECANCELED)));
    }
    // Older, aged and at work, and it has what the other one has declared.
    let (has, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (a, ready, over) = (dir.join("a"), has.clone(), lost.clone());
    let holder = sibling.start(move || {
        again();
        assert_eq!(systx::xstatus().unwrap().retries, 3);
        fs::write(a, "unscoped").unwrap();
        ready.store(true, SeqCst);
        waits(|| over.load(SeqCst));
        assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
        systx::xstatus().unwrap()
    });
    waits(|| has.load(SeqCst));
    let tx = begin(dir, Flags::default(), &["a", "b"]).unwrap();
    let id = systx::xid();
    let written = fs::write(dir.join("a"), "scoped");
    lost.store(true, SeqCst);
    written.unwrap();
    let told = holder.wait();
    assert_eq!((told.state, told.opponent), (State::Lost, id), "{told:?}");
    // Of what was declared, also what was not touched yet; not anything else.
    let place = dir.to_owned();
    let told = sibling.run(move || {
        systx::xbegin(Some(&place), Flags::default()).unwrap();
        fs::write(place.join("c"), "beside").unwrap();
        assert!(fs::read(place.join("b")).is_err());
        assert_eq!(errno(systx::xend()), Some(libc::ECANCELED));
        systx::xstatus().unwrap()
    });
    assert_eq!((told.state, told.opponent), (State::Lost, id), "{told:?}");
    assert!(told.path.ends_with(b"guarded/b"), "{told:?}");
    tx.commit().unwrap();
    assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "scoped");
    assert_eq!(fs::read_to_string(dir.join("c")).unwrap(), "2");
}

/// Who waits hears that it waits for who sleeps, and does not make it lose.
fn asleep(dir: &Path) {
    let (sibling, place) = (Sibling::new(), dir.to_owned());
    sibling.run(move || std::mem::forget(begin(&place, Flags::default(), &["a"]).unwrap()));
    systx::set_patience(Duration::from_millis(1));
    assert_eq!(errno(begin(dir, Flags::default(), &["a"])), Some(libc::EDEADLK));
    let told = systx::xstatus().unwrap();
    assert!(told.words.ends_with("which waits for a futex"), "{told:?}");
    // Nor does who goes for it without a scope, though that one is at work.
    let tx = systx::begin(dir, Begin::default()).unwrap();
    assert!(fs::write(dir.join("a"), "x").is_err());
    drop(tx);
    let place = dir.to_owned();
    sibling.run(move || {
        fs::write(place.join("a"), "slept").unwrap();
        systx::xend().unwrap();
    });
    assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "slept");
}

/// A file that is replaced while somebody is in line for it: the new one is in that scope.
fn replaced(dir: &Path) {
    for name in ["a", "c"] {
        fs::write(dir.join(name), name).unwrap();
    }
    fs::hard_link(dir.join("c"), dir.join("c2")).unwrap();
    let (sibling, third, place) = (Sibling::new(), Sibling::new(), dir.to_owned());
    let tx = begin(dir, Flags::default(), &["a", "c"]).unwrap();
    let waiting = sibling.start(move || {
        systx::set_patience(MINUTE);
        std::mem::forget(begin(&place, Flags::default(), &["a", "mark"]).unwrap());
    });
    let in_line = || elsewhere(&third, dir, &[("mark", true)]).0 == Some(libc::EBUSY);
    waits(in_line);
    fs::rename(dir.join("c"), dir.join("a")).unwrap();
    tx.commit().unwrap();
    waiting.wait();
    let place = dir.to_owned();
    third.run(move || {
        let tx = systx::begin(&place, Begin::default()).unwrap();
        assert!(fs::write(place.join("c2"), "x").is_err());
        assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
    });
    let place = dir.to_owned();
    sibling.run(move || {
        fs::write(place.join("a"), "new").unwrap();
        systx::xend().unwrap();
    });
    assert_eq!(fs::read_to_string(dir.join("c2")).unwrap(), "new");
}

/// Descriptors from before, of this thread and of others, that are open on what is declared: they
/// neither keep the begin from its turn nor take it away, and are in the transaction where they are
/// asked to be.
fn held(dir: &Path) {
    let sibling = Sibling::new();
    let (a, b) = (dir.join("a"), dir.join("b"));
    for flags in [Flags::default(), Flags::DESCRIPTORS] {
        fs::write(&a, "0").unwrap();
        fs::write(&b, "0").unwrap();
        let open = |path: &Path| fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let (mine, log) = (open(&a), fs::OpenOptions::new().append(true).open(&b).unwrap());
        let theirs = open(&a);
        let inside = flags != Flags::default();
        for commits in [false, true] {
            let tx = begin(dir, flags, &["a", "b"]).unwrap();
            let id = systx::xid();
            assert_eq!(elsewhere(&sibling, dir, &[("a", true)]).0, Some(libc::EBUSY));
            if inside {
                mine.write_all_at(b"1", 0).unwrap();
                (&log).write_all(b"1").unwrap();
            } else {
                fs::write(&a, "1").unwrap();
                fs::write(&b, "01").unwrap();
            }
            assert_eq!(fs::read_to_string(&a).unwrap(), "1");
            // Who has not declared it loses, by an old descriptor of its own as well.
            let (place, other) = (dir.to_owned(), theirs.try_clone().unwrap());
            let told = sibling.run(move || {
                let how = Begin { flags: Flags::DESCRIPTORS, ..Begin::default() };
                let tx = systx::begin(&place, how).unwrap();
                let _ = other.write_all_at(b"x", 0);
                assert_eq!(errno(tx.commit()), Some(libc::ECANCELED));
                systx::xstatus().unwrap()
            });
            assert_eq!((told.state, told.opponent), (State::Lost, id), "{told:?}");
            if commits {
                tx.commit().unwrap()
            } else {
                tx.abort().unwrap()
            }
            let want = if commits { ["1", "01"] } else { ["0", "0"] };
            let have = [&a, &b].map(|path| fs::read_to_string(path).unwrap());
            assert_eq!(have, want, "{flags:?}, commits: {commits}");
            let mut byte = [0];
            for file in [&mine, &theirs] {
                assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1);
                assert_eq!(&byte, want[0].as_bytes());
            }
        }
    }
}

fn amount(path: &Path) -> i64 {
    let why = |e| panic!("{path:?}: {e}: {:?}", systx::xstatus());
    let text = fs::read_to_string(path).unwrap_or_else(why);
    text.trim().parse().unwrap_or_else(|_| panic!("{path:?}: {text:?}"))
}

/// How many files the amounts are in.
pub const ACCOUNTS: u64 = 4;

/// Moves amounts, and never tries again: a file each way, in a directory that others write to, by
/// the rate of a file that plain programs write.
fn transfers(dir: &Path, times: u64) {
    let me = u64::from(std::process::id());
    for n in 0..times {
        let (from, to) = ((me + n) % ACCOUNTS, (me + n * 3 + 1) % ACCOUNTS);
        let [a, b] = [from, to].map(|n| dir.join(n.to_string()));
        let (rate, note) = (dir.join("rate"), dir.join(format!("note-{me}-{n}")));
        let scope = [
            Declared::write(&a),
            Declared::write(&b),
            Declared::write(&note),
            Declared::read(&rate),
        ];
        let tx = systx::begin(dir, Begin::scoped(scope)).unwrap();
        let rate = amount(&rate);
        if from != to {
            fs::write(&a, (amount(&a) - rate).to_string()).unwrap();
            fs::write(&b, (amount(&b) + rate).to_string()).unwrap();
        }
        fs::write(&note, "done").unwrap();
        tx.commit().unwrap_or_else(|e| panic!("{e}: {:?}", systx::xstatus()));
    }
}

/// The same without a scope, again and again until it wins.
fn noise(dir: &Path, times: u64) {
    for n in 0..times {
        let [a, b] = [n % ACCOUNTS, (n + 1) % ACCOUNTS].map(|n| dir.join(n.to_string()));
        systx::atomic(dir, Flags::default(), |_| {
            // A loser may see nothing.
            let read =
                |path: &Path| fs::read_to_string(path)?.trim().parse().map_err(io::Error::other);
            let (x, y): (i64, i64) = (read(&a)?, read(&b)?);
            fs::write(&a, (x - 1).to_string())?;
            fs::write(&b, (y + 1).to_string())
        })
        .unwrap();
    }
}

/// A plain program that changes what the others read, and what they do not, until it is told to
/// stop.
fn plain(dir: &Path) {
    let stop = Sibling::new().start(|| drop(io::stdin().read_line(&mut String::new())));
    for n in 0.. {
        // In place: who reads it sees one of the rates.
        let rate = fs::OpenOptions::new().write(true).open(dir.join("rate")).unwrap();
        std::os::unix::fs::FileExt::write_at(&rate, (n % 7 + 1).to_string().as_bytes(), 0).unwrap();
        fs::write(dir.join("log"), n.to_string()).unwrap();
        if stop.poll().is_some() {
            return;
        }
    }
}

fn said(word: &str) {
    println!("{word}");
    io::stdout().flush().unwrap();
}

fn hold(dir: &Path) {
    let tx = begin(dir, Flags::default(), &["a"]).unwrap();
    fs::write(dir.join("a"), "held").unwrap();
    said("in");
    io::stdin().read_line(&mut String::new()).unwrap();
    tx.commit().unwrap();
}

/// Waits for `a`, with a mark; or, as the last one in line, for the mark.
fn wait(dir: &Path, last: bool) {
    systx::set_patience(10 * MINUTE);
    let scope: &[&str] = if last { &["mark"] } else { &["a", "mark"] };
    let tx = begin(dir, Flags::default(), scope).unwrap();
    said("in");
    fs::write(dir.join(scope[0]), "waited").unwrap();
    tx.commit().unwrap();
}

/// Returns when somebody is in line with the name `mark`, or nobody is.
fn probe(dir: &Path, wanted: bool) {
    waits(|| {
        let got = at_once(dir, &["mark"]);
        if let Err(e) = &got {
            assert_eq!(e.raw_os_error(), Some(libc::EBUSY), "{e}");
            let told = systx::xstatus().unwrap();
            assert!(told.words.contains("is in line before"), "{told:?}");
        }
        got.is_err() == wanted
    });
}
