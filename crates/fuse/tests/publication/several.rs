//! Commits that are under way at once.

use super::*;
use std::sync::atomic::AtomicUsize;

const COMMITTERS: u64 = 3;
const ROUNDS: u64 = 150;
/// How long a commit waits for another one to be decided beside it.
const BESIDE: Duration = Duration::from_millis(3);

/// Every how many rounds a commit also changes names in directories where all do; those come one
/// after the other.
const SHARED: u64 = 4;

/// One committer's next commit: a page of its file, a name more in its directory; sometimes also
/// another file by its name, and a name more in a directory of all.
fn advance(arena: &Arena, who: u64, to: u64, under_way: &AtomicUsize, most: &AtomicUsize) {
    let held = format!("held.{who}");
    let (own, swapped) = (format!("own.{who}"), format!("swapped.{who}"));
    let name = format!("g.{who}.{to}");
    let shared = to.is_multiple_of(SHARED);
    let mut shape = Shape::new();
    shape.content(arena, &held);
    shape.new_name_in(arena, &own, &name);
    if shared {
        shape.name(arena, &swapped, Some(Kind::File));
        shape.new_name_in(arena, "grow", &name);
    }
    let done = arena.commit(to * COMMITTERS + who, &shape, || {
        under_way.fetch_add(1, SeqCst);
        let begun = Instant::now();
        while under_way.load(SeqCst) < 2 && begun.elapsed() < BESIDE {
            std::thread::yield_now();
        }
        most.fetch_max(under_way.load(SeqCst), SeqCst);
        let below = &arena.below;
        let file = File::options().write(true).open(below.join(&held)).unwrap();
        file.write_all_at(format!("{to:8}").as_bytes(), 0).unwrap();
        fs::write(below.join(&own).join(&name), b"").unwrap();
        if shared {
            let staged = format!("staged.{who}");
            put(below, &staged, to);
            fs::rename(below.join(&staged), below.join(&swapped)).unwrap();
            fs::write(below.join("grow").join(&name), b"").unwrap();
        }
        under_way.fetch_sub(1, SeqCst);
    });
    done.unwrap();
}

/// Every way to see how far a committer is.
fn looks(dir: &Path, who: u64) -> Vec<(&'static str, Look)> {
    let held = File::open(dir.join(format!("held.{who}"))).unwrap();
    let mapped = map_unsafe::Shared::new(&held, 4096).unwrap();
    let prefix = format!("g.{who}.");
    let listing = |of: String, prefix: String| -> Look {
        Box::new(move |dir| {
            let names = fs::read_dir(dir.join(&of)).unwrap();
            let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
            names.filter_map(|n| number_after(&n, &prefix)).max()
        })
    };
    let by_descriptor = |of: &str, prefix: String| -> Look {
        let listed = open(&dir.join(of));
        Box::new(move |_| names_of(&listed).iter().filter_map(|n| number_after(n, &prefix)).max())
    };
    let own = format!("own.{who}");
    vec![
        (
            "a page",
            Box::new(move |_| {
                let mut buf = [0; 8];
                held.read_exact_at(&mut buf, 0).unwrap();
                number(&buf)
            }),
        ),
        ("a mapping", Box::new(move |_| number(&mapped.read(8)))),
        ("its listing by a descriptor", by_descriptor(&own, prefix.clone())),
        ("its listing", listing(own, prefix)),
    ]
}

/// The same of what only some commits change.
fn shared_looks(dir: &Path, who: u64) -> Vec<(&'static str, Look)> {
    let prefix = format!("g.{who}.");
    let of_all = open(&dir.join("grow"));
    vec![
        (
            "a file by its path",
            Box::new(move |dir| number(&fs::read(dir.join(format!("swapped.{who}"))).unwrap())),
        ),
        (
            "the listing of all",
            Box::new(move |_| {
                names_of(&of_all).iter().filter_map(|n| number_after(n, &prefix)).max()
            }),
        ),
    ]
}

/// All of them, in groups by what shows one committer's commits at the same time.
pub fn all_looks(dir: &Path) -> readers::Looks {
    let of_one = |who: u64| {
        let both = [looks(dir, who), shared_looks(dir, who)].into_iter().enumerate();
        both.flat_map(move |(kind, looks)| {
            let group = 2 * who as usize + kind;
            looks.into_iter().map(move |(what, look)| (group, what, look))
        })
    };
    (0..COMMITTERS).flat_map(of_one).collect()
}

#[test]
fn nobody_sees_the_old_after_the_new_of_commits_that_are_under_way_at_once() {
    arenas(|arena| {
        fs::create_dir(arena.below.join("grow")).unwrap();
        for who in 0..COMMITTERS {
            put(&arena.below, &format!("held.{who}"), 1);
            put(&arena.below, &format!("swapped.{who}"), 1);
            fs::create_dir(arena.below.join(format!("own.{who}"))).unwrap();
            for dir in ["grow".to_owned(), format!("own.{who}")] {
                fs::write(arena.below.join(dir).join(format!("g.{who}.1")), b"").unwrap();
            }
        }
        let (under_way, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wrong = hammer(arena, Of::Several, 4, || {
            std::thread::scope(|committers| {
                for who in 0..COMMITTERS {
                    let (under_way, most) = (&under_way, &most);
                    committers.spawn(move || {
                        (2..=ROUNDS).for_each(|to| advance(arena, who, to, under_way, most));
                    });
                }
            });
        });
        assert!(wrong.is_empty(), "{} times, first {:?}", wrong.len(), wrong.first());
        assert!(most.into_inner() > 1, "never two at once");
        for who in 0..COMMITTERS {
            let dir = &arena.mount.dir;
            for (what, mut look) in looks(dir, who) {
                assert_eq!(look(dir), Some(ROUNDS), "{what} of {who}, at the end");
            }
            for (what, mut look) in shared_looks(dir, who) {
                let last = ROUNDS - ROUNDS % SHARED;
                assert_eq!(look(dir), Some(last), "{what} of {who}, at the end");
            }
        }
    });
}
