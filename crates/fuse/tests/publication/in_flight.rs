//! Plain calls in flight, and programs that are killed while they are held.

use super::*;
use std::os::unix::fs::PermissionsExt;
use systx_vfs::neighbours::Before;

/// How often, at the moment of a decision, a file that the transaction has read was newer in the
/// kernel's page than below: a write(2) was in flight. It has read so many `others` that are open
/// for writing, too.
fn ahead_at_decisions(arena: &Arena, others: usize, rounds: u64, enough: usize) -> usize {
    ahead_of((arena, others), rounds, enough, false)
}

/// The same; the writer `reopens` the file for each write.
fn ahead_of((arena, others): (&Arena, usize), rounds: u64, enough: usize, reopens: bool) -> usize {
    prepare(arena);
    let other = |n| File::create(arena.mount.path(&format!("other-{n}"))).unwrap();
    let held: Vec<File> = (0..others).map(other).collect();
    let open = || File::options().read(true).write(true).open(arena.mount.path("held")).unwrap();
    let file = if reopens { File::open(arena.mount.path("held")).unwrap() } else { open() };
    // The process that serves it reads it where no request of its own is answered.
    let page = map_unsafe::Shared::pinned(&file, 4096).unwrap();
    assert_eq!(number(&page.read(8)), Some(1));
    let pages_of = |name: &str| {
        let oid = arena.stamp(name).id().oid();
        ObjectRef::Pages { oid, first: 0, last: 0 }
    };
    let names = (0..others).map(|n| format!("other-{n}"));
    let all: Vec<_> = names.chain(["held".into()]).map(|name| pages_of(&name)).collect();
    let below = File::open(arena.below.join("held")).unwrap();
    let stop = AtomicBool::new(false);
    let mut ahead = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 2_u64.. {
                if stop.load(SeqCst) {
                    break;
                }
                let write =
                    |file: &File| file.write_all_at(format!("{n:8}").as_bytes(), 0).unwrap();
                if reopens { write(&open()) } else { write(&file) }
            }
        });
        let _stop = Stop(&stop);
        for round in 0..rounds {
            if ahead == enough {
                break;
            }
            let (id, engine) = (TxnId(100 + round), &arena.vol.engine);
            engine.begin(id, BeginOptions::default());
            for pages in &all {
                while let Access::Wait(winner) = engine.read(id, *pages) {
                    engine.wait_installed(winner);
                }
            }
            let mut shape = Shape::new();
            shape.owner(arena, "owned");
            let publication = arena.vol.publish(id, &shape.writes);
            let decided = publication.decide(|| {
                let shown = number(&page.read(8));
                let mut there = [0; 8];
                below.read_exact_at(&mut there, 0).unwrap();
                ahead += usize::from(shown > number(&there));
                Err::<(), ()>(())
            });
            assert!(matches!(decided, Err(NotDecided::Lost(()))), "{decided:?}");
            drop(publication);
            engine.abort(id);
        }
    });
    drop(held);
    ahead
}

#[test]
fn no_write_is_in_flight_at_a_decision() {
    arenas(|arena| assert_eq!(ahead_at_decisions(arena, 0, 300, 1), 0));
    arenas_without(Remedy::FileBarrier, |arena| {
        assert_eq!(ahead_at_decisions(arena, 0, 100_000, 1), 1, "the barrier is idle");
    });
}

#[test]
fn nor_of_who_opens_the_file_for_each_write() {
    arenas(|arena| assert_eq!(ahead_of((arena, 0), 300, 1, true), 0));
    arenas_without(Remedy::Lease, |arena| {
        assert_eq!(ahead_of((arena, 0), 100_000, 1, true), 1, "the lease is idle");
    });
}

#[test]
fn nor_where_many_files_are_open() {
    arenas(|arena| assert_eq!(ahead_at_decisions(arena, 100, 100, 1), 0));
}

/// A length that one thread is told while another appends is one up to which it can read.
fn short_reads(arena: &Arena, looks: usize, enough: usize) -> usize {
    prepare(arena);
    let path = arena.mount.path("long");
    let mut log = File::options().append(true).open(&path).unwrap();
    let file = File::open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let mut short = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                log.write_all(b"1").unwrap();
            }
        });
        let _stop = Stop(&stop);
        for _ in 0..looks {
            if short == enough {
                break;
            }
            let len = file.metadata().unwrap().len();
            short += usize::from(file.read_at(&mut [0], len - 1).unwrap() == 0);
        }
    });
    short
}

#[test]
fn a_length_is_not_told_before_it_can_be_read() {
    arenas(|arena| assert_eq!(short_reads(arena, 3000, 1), 0));
    arenas_without(Remedy::FileBarrier, |arena| {
        assert_eq!(short_reads(arena, 1_000_000, 1), 1, "the barrier is idle");
    });
}

/// Waits for the end of a process; whether it came while others may still be held.
fn ends(child: &mut std::process::Child) -> bool {
    let until = Instant::now() + HANG;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

#[test]
fn who_is_killed_is_not_held_any_more() {
    arenas(|arena| {
        prepare(arena);
        let mut shape = Shape::new();
        shape.content(arena, "held");
        shape.content(arena, "mapped");
        let (engine, id) = (&arena.vol.engine, TxnId(7));
        engine.begin(id, BeginOptions::default());
        for object in &shape.claims {
            assert!(matches!(engine.write(id, object.as_ref()), Access::Granted));
        }
        let start = |script: &str| {
            let mut command = std::process::Command::new("/bin/sh");
            command.args(["-c", script]).current_dir(&arena.mount.dir);
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut line = [0; 6];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
            child
        };
        let go = |child: &mut std::process::Child| {
            child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        };
        // One of each: a write, a read, an open.
        let mut killed = [
            "exec 3>>held; echo ready; read line; echo plain >&3",
            "exec 3<held; echo ready; read line; cat <&3",
            "echo ready; read line; cat held",
        ]
        .map(start);
        // Of another file: a write that is held has its inode locked.
        let mut patient = start("exec 3>>mapped; echo ready; read line; echo patient >&3");
        let publication = arena.vol.publish(id, &shape.writes);
        publication.decide(|| engine.decide(id)).unwrap();
        let asked = || -> u64 {
            use Opcode::{Getattr, Getxattr, Lookup, Open, Read, Write};
            let stats = arena.mount.connection().stats();
            [Getattr, Getxattr, Lookup, Open, Read, Write].iter().map(|o| stats.count(*o)).sum()
        };
        let before = asked();
        killed.iter_mut().for_each(go);
        go(&mut patient);
        let until = Instant::now() + HANG;
        while asked() < before + 4 {
            assert!(Instant::now() < until, "nobody asks");
            std::thread::sleep(Duration::from_millis(1));
        }
        for child in &mut killed {
            assert!(child.try_wait().unwrap().is_none(), "it is held");
            child.kill().unwrap();
        }
        let ended = killed.each_mut().map(ends);
        let is_held = patient.try_wait().unwrap().is_none();
        engine.installed(id);
        drop(publication);
        assert_eq!(ended, [true; 3], "a write, a read, an open");
        assert!(is_held, "the others wait");
        assert!(ends(&mut patient));
        let text = |name: &str| fs::read(arena.below.join(name)).unwrap();
        assert_eq!(text("held"), b"       1", "what was killed wrote nothing");
        assert_eq!(text("mapped"), b"       1patient\n");
    });
}

/// It goes on at the end, whatever happens.
struct InTime<'a>(&'a AtomicBool);

impl<'a> InTime<'a> {
    fn stop(flag: &'a AtomicBool) -> InTime<'a> {
        flag.store(true, SeqCst);
        InTime(flag)
    }
}

impl Drop for InTime<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + HANG;
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A plain change whose answer is on its way, of which a transaction has seen `object`. Whether a
/// program that asks the kernel sees it, too, when the transaction ends.
fn known_at_the_end(
    arena: &Arena,
    change: impl FnOnce() + Send,
    is_there: impl Fn(&Path) -> bool + Sync,
    object: Item,
) -> bool {
    let (vol, engine) = (&arena.vol, &arena.vol.engine);
    let above = arena.mount.path("");
    assert!(!is_there(&above), "the kernel keeps what it has been told");
    std::thread::scope(|scope| {
        let _in_time = InTime::stop(&arena.slow.late);
        scope.spawn(change);
        eventually("it is not performed", || is_there(&arena.below));
        assert!(!is_there(&above), "it is answered");
        let [saw, else_where, snapshot] = [100, 101, 102].map(TxnId);
        for id in [saw, else_where, snapshot] {
            engine.begin(id, BeginOptions::default());
        }
        while let Access::Wait(winner) = engine.read(saw, object.as_ref()) {
            engine.wait_installed(winner);
        }
        // Who has not seen it waits for nobody.
        vol.land_seen(else_where, Before::End);
        assert!(!is_there(&above), "it is answered");
        let (told, ends) = std::sync::mpsc::channel();
        for (id, before) in [(saw, Before::End), (snapshot, Before::EndOfSnapshot)] {
            let (told, is_there, above) = (told.clone(), &is_there, &above);
            scope.spawn(move || {
                vol.land_seen(id, before);
                told.send(is_there(above)).unwrap();
            });
        }
        let early = ends.recv_timeout(Duration::from_millis(100)).ok();
        arena.slow.late.store(false, SeqCst);
        let known = early.unwrap_or_else(|| ends.recv_timeout(HANG).unwrap());
        let known = known & ends.recv_timeout(HANG).unwrap();
        for id in [saw, else_where, snapshot] {
            engine.abort(id);
        }
        known
    })
}

#[test]
fn what_a_transaction_has_seen_of_plain_changes_is_known_when_it_ends() {
    let name = |arena: &Arena| {
        let is_there = |dir: &Path| dir.join("new").symlink_metadata().is_ok();
        let make = || std::os::unix::fs::symlink("there", arena.mount.path("new")).unwrap();
        let object = Item::Entry { dir: root_id(arena).oid(), name: b"new"[..].into() };
        let made = known_at_the_end(arena, make, is_there, object);
        let is_gone = |dir: &Path| !is_there(dir);
        let list = Item::List(root_id(arena).oid());
        let remove = || fs::remove_file(arena.mount.path("new")).unwrap();
        made & known_at_the_end(arena, remove, is_gone, list)
    };
    let mode = |arena: &Arena| {
        prepare(arena);
        let other = fs::Permissions::from_mode(0o640);
        let is_there =
            |dir: &Path| fs::metadata(dir.join("owned")).unwrap().mode() & 0o777 == 0o640;
        let object = Item::Attr(arena.stamp("owned").id().oid());
        let change = || fs::set_permissions(arena.mount.path("owned"), other).unwrap();
        known_at_the_end(arena, change, is_there, object)
    };
    let length = |arena: &Arena| {
        let is_there = |dir: &Path| fs::metadata(dir.join("long")).unwrap().len() == 0;
        let object = Item::Size(arena.stamp("long").id().oid());
        let file = File::options().write(true).open(arena.mount.path("long")).unwrap();
        let cut = || file.set_len(0).unwrap();
        known_at_the_end(arena, cut, is_there, object)
    };
    arenas(|arena| assert!(name(arena) && mode(arena) && length(arena)));
    arenas_without(Remedy::Barrier, |arena| assert!(!name(arena), "the barrier is idle"));
    arenas_without(Remedy::FileBarrier, |arena| {
        assert!(!mode(arena) && !length(arena), "the barrier is idle");
    });
}

/// What is read of a file whose pages are dropped, by who has changed it past the kernel, while a
/// write of it is in flight.
fn read_after_a_drop(arena: &Arena) -> Option<u64> {
    prepare(arena);
    let file = File::options().read(true).write(true).open(arena.mount.path("held")).unwrap();
    let look = || {
        let mut text = [0; 8];
        file.read_exact_at(&mut text, 0).unwrap();
        number(&text)
    };
    assert_eq!(look(), Some(1));
    let id = arena.stamp("held").id();
    std::thread::scope(|scope| {
        let in_time = InTime::stop(&arena.slow.early);
        let writer = scope.spawn(|| file.write_all_at(b"       2", 0).unwrap());
        // It is in the page already, of which other readers do not ask.
        let reader = File::open(arena.mount.path("held")).unwrap();
        let mapped = map_unsafe::Shared::new(&reader, 4096).unwrap();
        eventually("nothing is written", || number(&mapped.read(8)) == Some(2));
        let (told, ends) = std::sync::mpsc::channel();
        scope.spawn(move || {
            arena.vol.drop_changed(id);
            told.send(()).unwrap();
        });
        let early = ends.recv_timeout(Duration::from_millis(100));
        // Where the page is gone it comes back as the file is below, without the write.
        look();
        drop(in_time);
        writer.join().unwrap();
        early.unwrap_or_else(|_| ends.recv_timeout(HANG).unwrap());
        look()
    })
}

#[test]
fn a_page_is_not_dropped_with_a_write_that_is_in_flight() {
    arenas(|arena| assert_eq!(read_after_a_drop(arena), Some(2)));
    arenas_without(Remedy::FileBarrier, |arena| {
        assert_eq!(read_after_a_drop(arena), Some(1), "the barrier is idle");
    });
}

/// Whether a file can be opened for writing while its pages are dropped without its lock.
fn is_opened_meanwhile(arena: &Arena) -> bool {
    prepare(arena);
    assert_eq!(fs::read(arena.mount.path("held")).unwrap(), b"       1");
    let id = arena.stamp("held").id();
    std::thread::scope(|scope| {
        let in_time = InTime::stop(&arena.slow.drops);
        let dropper = scope.spawn(|| arena.vol.drop_changed(id));
        let (told, opens) = std::sync::mpsc::channel();
        // Whoever opens it before that comes first.
        eventually("nothing is dropped", || arena.slow.dropping.load(SeqCst) > 0);
        assert!(arena.vol.is_dropping(id));
        // Nobody keeps a reader waiting.
        let open = |write| File::options().read(true).write(write).open(arena.mount.path("held"));
        open(false).unwrap();
        scope.spawn(move || told.send(open(true).unwrap()).unwrap());
        let early = opens.recv_timeout(arena.patience).is_ok();
        drop(in_time);
        dropper.join().unwrap();
        if !early {
            opens.recv_timeout(HANG).unwrap();
        }
        early
    })
}

#[test]
fn who_opens_a_file_for_writing_waits_until_its_pages_are_dropped() {
    arenas(|arena| assert!(!is_opened_meanwhile(arena)));
    arenas_without(Remedy::Opening, |arena| {
        assert!(is_opened_meanwhile(arena), "waiting is idle");
    });
}

/// Whether a program reads up to the length that a commit has left, if the next one has the kernel
/// drop the answer by which that program would have learnt it.
fn reads_to_the_end(arena: &Arena) -> bool {
    prepare(arena);
    let file = File::open(arena.mount.path("long")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1);
    let mut longer = Shape::new();
    longer.content(arena, "long");
    let below = File::options().write(true).open(arena.below.join("long")).unwrap();
    arena.commit(7, &longer, || below.write_all_at(b"12345", 0).unwrap()).unwrap();
    let mut owner = Shape::new();
    owner.owner(arena, "long");
    std::thread::scope(|scope| {
        let in_time = InTime::stop(&arena.slow.answers);
        let reader = scope.spawn(|| file.read_at(&mut [0], 4).unwrap() == 1);
        eventually("nobody asks", || arena.slow.answering.load(SeqCst) > 0);
        arena.commit(8, &owner, || drop(in_time)).unwrap();
        reader.join().unwrap()
    })
}

#[test]
fn a_read_does_not_go_by_a_length_from_before_the_last_commit() {
    arenas(|arena| assert!(reads_to_the_end(arena)));
    arenas_without(Remedy::Told, |arena| assert!(!reads_to_the_end(arena), "telling is idle"));
}
