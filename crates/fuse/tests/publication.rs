//! Publication on a real mount: readers of every kind hammer a guarded directory while commits
//! change names, listings, attributes and pages at once. Nobody may see anything older than what
//! anybody has seen.
#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;
mod guarded;
#[path = "publication/in_flight.rs"]
mod in_flight;
mod map_unsafe;
#[path = "publication/readers.rs"]
mod readers;
#[path = "publication/several.rs"]
mod several;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::scratch;
use guarded::{Guarded, HANG, obstacle};
use readers::{Of, hammer};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use systx_base::{Kind, NodeId, Oid, TxnId};
use systx_fuse::KernelCaches;
use systx_fuse::wire::Opcode;
use systx_fuse::{Config, Transport};
use systx_guard::inode_locks::Ticket;
use systx_guard::inode_locks::writers::Writing;
use systx_guard::plain::{Change, Gate, Order, Plain, STALL};
use systx_guard::publication::{self, Caches, NotDecided};
use systx_guard::shared::SharedVolume;
use systx_store::io::{HostId, Stamp};
use systx_store::real::RealIo;
use systx_store::writeset::{Attrs, Bind, Content, Data, Extent, Ix, Object, Origin, WriteSet};
use systx_txn::{Access, BeginOptions, Object as Item, ObjectRef};
use systx_vfs::api::{Reply, Valid};
use systx_vfs::volume::Volume;

/// A guarded directory whose commits this test makes itself, by hand.
struct Arena {
    mount: Guarded,
    vol: Arc<SharedVolume>,
    below: std::path::PathBuf,
    slow: Arc<Slow>,
    /// How long a test waits for what must not happen before something else does. Where a remedy is
    /// missing it does happen, however slow the machine is.
    patience: Duration,
}

/// How the mount of an arena is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mount {
    /// Opens make messages.
    Told,
    /// They make none.
    Untold,
    /// They do, and who serves it opens nodes in a way of his own.
    Reached,
}

/// What is slow as long as it is set.
#[derive(Default)]
struct Slow {
    /// Plain changes are not performed.
    early: AtomicBool,
    /// Plain changes that have been performed are not answered.
    late: AtomicBool,
    /// What was read is not answered; how many are at that.
    answers: AtomicBool,
    answering: AtomicU64,
    /// The kernel is not told to drop pages; how many are about to.
    drops: AtomicBool,
    dropping: AtomicU64,
}

fn while_set(flag: &AtomicBool) {
    while flag.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open(dir: &Path) -> std::os::fd::OwnedFd {
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .unwrap()
}

/// A remedy that can be taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Remedy {
    DropName,
    DropAttributes,
    DropListing,
    DropPages,
    Barrier,
    /// Locks on files that are being written to, or otherwise changed.
    FileBarrier,
    /// Answers about what is marked have timeout 0.
    Timeout,
    /// Reads of what is decided wait for the release; others are noted.
    Admission,
    /// The kernel has stored the attributes when a commit is over.
    Told,
    /// Who opens a file for writing waits for what must not happen beside a writer.
    Opening,
    /// Where opens are not told: who has a file open for writing is asked of the kernel, and nobody
    /// else opens it.
    Lease,
}

/// The kernel's caches, or the order of requests, without one remedy.
struct Without<T> {
    it: T,
    missing: Option<Remedy>,
    slow: Arc<Slow>,
}

impl<T> Without<T> {
    fn has(&self, remedy: Remedy) -> bool {
        self.missing != Some(remedy)
    }
}

impl Caches for Without<KernelCaches> {
    fn drop_name(&self, dir: NodeId, name: &[u8]) -> Result<(), Errno> {
        if self.has(Remedy::DropName) { self.it.drop_name(dir, name) } else { Ok(()) }
    }
    fn drop_attributes(&self, node: NodeId) -> Result<(), Errno> {
        if self.has(Remedy::DropAttributes) { self.it.drop_attributes(node) } else { Ok(()) }
    }
    fn store_attributes(&self, nodes: &[NodeId]) -> Result<(), Errno> {
        // The kernel drops a listing, too, when it is told another time of the directory.
        let has = self.has(Remedy::Told) && self.has(Remedy::DropListing);
        if has { self.it.store_attributes(nodes) } else { Ok(()) }
    }
    fn drop_listing(&self, dir: NodeId) -> Result<(), Errno> {
        if self.has(Remedy::DropListing) { self.it.drop_listing(dir) } else { Ok(()) }
    }
    fn drop_pages(&self, node: NodeId) -> Result<(), Errno> {
        self.slow.dropping.fetch_add(1, SeqCst);
        while_set(&self.slow.drops);
        self.slow.dropping.fetch_sub(1, SeqCst);
        if self.has(Remedy::DropPages) { self.it.drop_pages(node) } else { Ok(()) }
    }
    fn drop_all_names(&self) -> Result<(), Errno> {
        self.it.drop_all_names()
    }
    fn barrier(&self, dir: NodeId) -> Result<(), Errno> {
        if self.has(Remedy::Barrier) { self.it.barrier(dir) } else { Ok(()) }
    }
    fn lock(&self, dir: NodeId) -> Result<(), Errno> {
        if self.has(Remedy::Barrier) { self.it.lock(dir) } else { Ok(()) }
    }
    fn file_barrier(&self, file: NodeId, ticket: Ticket) -> Result<(), Errno> {
        if self.has(Remedy::FileBarrier) { self.it.file_barrier(file, ticket) } else { Ok(()) }
    }
    fn keep_unwritten(&self, files: &[NodeId]) -> Result<Vec<Writing>, Errno> {
        if self.has(Remedy::Lease) {
            return self.it.keep_unwritten(files);
        }
        // As if nobody had it open; nobody is kept from that: these are leases on another file.
        let other = || File::open("/proc/self/exe").map_err(|_| Errno::IO);
        files.iter().map(|_| Writing::of(other()?.into())).collect()
    }
    fn reach(&self, node: NodeId) -> Result<OwnedFd, Errno> {
        self.it.reach(node)
    }
    fn find(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.it.find(path)
    }
    fn is_in_flight(&self, file: NodeId) -> bool {
        self.it.is_in_flight(file)
    }
}

impl Gate for Without<Order> {
    fn read(&self, reads: &[ObjectRef<'_>], act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        let done = if self.has(Remedy::Admission) { self.it.read(reads, act) } else { act() };
        if self.slow.answers.load(SeqCst) {
            self.slow.answering.fetch_add(1, SeqCst);
            while_set(&self.slow.answers);
            self.slow.answering.fetch_sub(1, SeqCst);
        }
        done
    }
    fn mutate(&self, change: Change<'_>, act: &mut dyn FnMut() -> Reply<()>) -> Reply<()> {
        while_set(&self.slow.early);
        let done = self.it.mutate(change, act);
        while_set(&self.slow.late);
        done
    }
    fn valid(&self, oid: Oid, name: Option<&[u8]>) -> Valid {
        if self.has(Remedy::Timeout) { self.it.valid(oid, name) } else { Valid::default() }
    }
    fn is_publishing(&self) -> bool {
        self.it.is_publishing()
    }
    fn may_keep(&self, oid: Oid) -> bool {
        !self.has(Remedy::Timeout) || self.it.may_keep(oid)
    }
    fn barrier(&self, dir: Oid) {
        self.it.barrier(dir);
    }
    fn file_barrier(&self, ticket: Ticket) {
        self.it.file_barrier(ticket);
    }
    fn land(&self, file: HostId) -> bool {
        self.it.land(file)
    }
    fn before_writing(&self, file: HostId) -> Reply<()> {
        if self.has(Remedy::Opening) { self.it.before_writing(file) } else { Ok(()) }
    }
    fn appended_elsewhere(&self, file: HostId) -> bool {
        self.it.appended_elsewhere(file)
    }
}

impl Arena {
    fn new(
        dir: &Path,
        (transport, how): (Transport, Mount),
        missing: Option<Remedy>,
    ) -> std::io::Result<Arena> {
        let io = Arc::new(RealIo::from_dir(open(dir))?);
        let at = dir.as_os_str().as_encoded_bytes().to_vec();
        let vol = Arc::new(SharedVolume::over(Volume::new(io, at, HashSet::new())?));
        let it = Order::new(Arc::clone(&vol), STALL);
        let slow = Arc::<Slow>::default();
        let order = Arc::new(Without { it, missing, slow: Arc::clone(&slow) });
        let plain = Plain::new(open(dir), HashSet::new(), order)?;
        let plain = Arc::new(if how == Mount::Untold { plain.untold() } else { plain });
        let below = open(dir);
        let config = Config { transport, ..Config::default() };
        let mount = Guarded::serving(dir, below, Arc::clone(&plain), &config)?;
        let root = dir.to_path_buf();
        let it = mount.connection().caches(move || Ok(open(&root)));
        let it = match how {
            Mount::Reached => mount.connection().caches_reached(move |node| it.reach(node)),
            Mount::Told | Mount::Untold => it,
        };
        let caches = Arc::new(Without { it, missing, slow: Arc::clone(&slow) });
        vol.guard(Arc::new(publication::Guarded::new(plain, caches, STALL)));
        let below = mount.below("");
        let patience = missing.map_or(Duration::from_millis(100), |_| HANG);
        Ok(Arena { mount, vol, below, slow, patience })
    }

    fn stamp(&self, name: &str) -> Stamp {
        let io = &self.vol.tree;
        io.stat_at(&io.root(), name.as_bytes()).unwrap().stamp()
    }

    /// A commit that changes these names and objects, and is installed by `install`.
    fn commit(
        &self,
        id: u64,
        change: &Shape,
        install: impl FnOnce(),
    ) -> Result<(), NotDecided<systx_txn::Conflict>> {
        let id = TxnId(id);
        let engine = &self.vol.engine;
        engine.begin(id, BeginOptions::default());
        for object in &change.claims {
            assert!(matches!(engine.write(id, object.as_ref()), Access::Granted));
        }
        let mut publication = self.vol.publish(id, &change.writes);
        let decided = publication.decide(|| engine.decide(id));
        publication.let_next();
        if decided.is_err() {
            engine.abort(id);
            return decided;
        }
        install();
        engine.installed(id);
        Ok(())
    }
}

/// A write set, as far as a publication looks at it.
#[derive(Default)]
struct Shape {
    writes: WriteSet,
    claims: Vec<Item>,
}

impl Shape {
    fn new() -> Shape {
        let root = Object {
            origin: Origin::Root,
            attrs: Attrs::default(),
            xattrs: vec![],
            content: Content::Keep,
        };
        Shape { writes: WriteSet { objects: vec![root], ..WriteSet::default() }, claims: vec![] }
    }
    fn object(&mut self, arena: &Arena, name: &str, kind: Kind) -> Ix {
        let stamp = arena.stamp(name);
        let origin = Origin::Host { parent: Ix(0), name: name.into(), kind, stamp };
        self.writes.objects.push(Object {
            origin,
            attrs: Attrs::default(),
            xattrs: vec![],
            content: Content::Keep,
        });
        Ix(self.writes.objects.len() as u32 - 1)
    }
    fn content(&mut self, arena: &Arena, name: &str) {
        let ix = self.object(arena, name, Kind::File);
        let data = Data::Inline(vec![0]);
        self.writes.objects[ix.0 as usize].content =
            Content::Patch { len: 8, keep: 8, extents: vec![Extent { offset: 0, data }] };
        let oid = arena.stamp(name).id().oid();
        self.claims.push(Item::Pages { oid, first: 0, last: u64::MAX });
        self.claims.push(Item::Size(oid));
    }
    fn owner(&mut self, arena: &Arena, name: &str) {
        let ix = self.object(arena, name, Kind::File);
        self.writes.objects[ix.0 as usize].attrs.owner = Some((0, 0));
        self.claims.push(Item::Attr(arena.stamp(name).id().oid()));
    }
    fn new_name_in(&mut self, arena: &Arena, dir: &str, name: &str) {
        let at = self.object(arena, dir, Kind::Dir);
        self.writes.binds.push(Bind { dir: at, name: name.into(), target: None, displaces: None });
        let dir = arena.stamp(dir).id().oid();
        self.claims.push(Item::Entry { dir, name: name.as_bytes().into() });
    }
    fn name(&mut self, arena: &Arena, name: &str, displaces: Option<Kind>) {
        let displaces = displaces.map(|kind| self.object(arena, name, kind));
        self.writes.binds.push(Bind { dir: Ix(0), name: name.into(), target: None, displaces });
        let dir = root_id(arena).oid();
        self.claims.push(Item::Entry { dir, name: name.as_bytes().into() });
    }
}

fn root_id(arena: &Arena) -> HostId {
    arena.vol.tree.stat(&arena.vol.tree.root()).unwrap().id
}

fn arenas(test: impl Fn(&Arena)) {
    each_arena(None, test);
}

fn arenas_without(remedy: Remedy, test: impl Fn(&Arena)) {
    each_arena(Some(remedy), test);
}

fn each_arena(missing: Option<Remedy>, test: impl Fn(&Arena)) {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    // Where opens are told and where they are not, as far as the remedy is one.
    let mounts = [Mount::Told, Mount::Untold].into_iter().filter(|how| match missing {
        None => true,
        Some(Remedy::Lease) => *how == Mount::Untold,
        Some(_) => *how == Mount::Told,
    });
    let transports = [Transport::DevFuse, Transport::IoUring];
    let ways = mounts.flat_map(|how| transports.map(|transport| (transport, how)));
    let reached = missing.is_none().then_some((Transport::Auto, Mount::Reached));
    for way @ (transport, how) in ways.chain(reached) {
        let dir = scratch();
        match Arena::new(dir.path(), way, missing) {
            Ok(arena) => {
                if how == Mount::Untold {
                    // From here on the kernel knows.
                    let _ = File::open(arena.mount.path(systx_base::FIRST_OPEN));
                }
                test(&arena);
                let stats = arena.mount.connection().stats();
                assert_eq!((stats.malformed, stats.panicked), (0, 0), "{stats:?}");
            }
            Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
                eprintln!("skipped: {transport:?}: {e}")
            }
            Err(e) => panic!("{transport:?}: {e}"),
        }
    }
}

/// How one reader looks; which generation it saw.
type Look = Box<dyn FnMut(&Path) -> Option<u64> + Send>;

fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.trim_end_matches('\0').trim().parse().ok()
}

fn number_after(name: &str, prefix: &str) -> Option<u64> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// A listing from the beginning by a descriptor that stays open.
fn names_of(dir: &std::os::fd::OwnedFd) -> Vec<String> {
    rustix::fs::seek(dir, rustix::fs::SeekFrom::Start(0)).unwrap();
    let mut buf = [std::mem::MaybeUninit::uninit(); 32768];
    let mut raw = rustix::fs::RawDir::new(dir.as_fd(), &mut buf);
    let mut names = Vec::new();
    while let Some(entry) = raw.next() {
        names.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
    }
    names
}

/// Every way to see the generation. `None`: this look met the middle of two calls, which proves
/// nothing.
fn looks(dir: &Path) -> Vec<(&'static str, Look)> {
    let held = File::open(dir.join("held")).unwrap();
    let mapped = map_unsafe::Shared::new(&File::open(dir.join("mapped")).unwrap(), 4096).unwrap();
    let stated = File::open(dir.join("owned")).unwrap();
    let (listed, grows) = (open(dir), open(&dir.join("grow")));
    vec![
        (
            "a page by an open descriptor",
            Box::new(move |_| {
                let mut buf = [0; 8];
                held.read_exact_at(&mut buf, 0).unwrap();
                number(&buf)
            }),
        ),
        ("a page by a mapping", Box::new(move |_| number(&mapped.read(8)))),
        ("a file by its path", Box::new(|dir| number(&fs::read(dir.join("swapped")).unwrap()))),
        (
            "attributes by an open descriptor",
            Box::new(move |_| Some(u64::from(stated.metadata().unwrap().uid()))),
        ),
        (
            "attributes by a path",
            Box::new(|dir| Some(u64::from(dir.join("owned").metadata().unwrap().uid()))),
        ),
        ("a length by a path", Box::new(|dir| Some(dir.join("long").metadata().unwrap().len()))),
        (
            "a listing",
            Box::new(|dir| {
                let names = fs::read_dir(dir)
                    .unwrap()
                    .map(|e| e.unwrap().file_name().into_string().unwrap());
                let found: Vec<u64> =
                    names.filter_map(|n| n.strip_prefix("at.")?.parse().ok()).collect();
                // One small directory comes in one request: it has one such name at any time.
                Some(if found.len() == 1 { found[0] } else { 0 })
            }),
        ),
        (
            "a listing by an open descriptor",
            Box::new(move |_| names_of(&listed).iter().find_map(|n| number_after(n, "at."))),
        ),
        (
            "a listing that only grows, by an open descriptor",
            Box::new(move |_| names_of(&grows).iter().filter_map(|n| number_after(n, "g.")).max()),
        ),
        (
            "a listing that only grows",
            Box::new(|dir| {
                let names = fs::read_dir(dir.join("grow")).unwrap();
                let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
                names.filter_map(|n| n.strip_prefix("g.")?.parse().ok()).max()
            }),
        ),
        (
            "a directory that is replaced",
            Box::new(|dir| {
                // The directory can be replaced between the two steps of the walk, and is then
                // removed.
                number(&fs::read(dir.join("dir/generation")).ok()?)
            }),
        ),
    ]
}

fn put(below: &Path, name: &str, generation: u64) {
    fs::write(below.join(name), format!("{generation:8}")).unwrap();
}

/// One commit: everything goes from one generation to the next.
fn advance(arena: &Arena, to: u64) -> Result<(), NotDecided<systx_txn::Conflict>> {
    let below = &arena.below;
    let (old, new) = (format!("at.{}", to - 1), format!("at.{to}"));
    let mut shape = Shape::new();
    for name in ["held", "mapped", "long"] {
        shape.content(arena, name);
    }
    shape.owner(arena, "owned");
    shape.new_name_in(arena, "grow", &format!("g.{to}"));
    shape.name(arena, "swapped", Some(Kind::File));
    shape.name(arena, &old, Some(Kind::File));
    shape.name(arena, &new, None);
    shape.name(arena, "dir", Some(Kind::Dir));
    arena.commit(to, &shape, || {
        let write = |name: &str| {
            let file = File::options().write(true).open(below.join(name)).unwrap();
            file.write_all_at(format!("{to:8}").as_bytes(), 0).unwrap();
        };
        write("held");
        fs::rename(below.join(&old), below.join(&new)).unwrap();
        write("mapped");
        put(below, "staged", to);
        // What is staged here has no name in the view: it is there for a moment only.
        fs::rename(below.join("staged"), below.join("swapped")).unwrap();
        File::options().write(true).open(below.join("long")).unwrap().set_len(to).unwrap();
        std::os::unix::fs::chown(below.join("owned"), Some(to as u32), None).unwrap();
        fs::write(below.join("grow").join(format!("g.{to}")), b"").unwrap();
        let dir = below.join("dir");
        let grave = below.join(format!("grave.{to}"));
        fs::create_dir(&grave).unwrap();
        fs::write(grave.join("generation"), format!("{to:8}")).unwrap();
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            &grave,
            rustix::fs::CWD,
            &dir,
            RenameFlags::EXCHANGE,
        )
        .unwrap();
        fs::remove_dir_all(&grave).unwrap();
    })
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn prepare(arena: &Arena) {
    for name in ["held", "mapped", "swapped", "at.1"] {
        put(&arena.below, name, 1);
    }
    fs::write(arena.below.join("long"), b"1").unwrap();
    fs::write(arena.below.join("owned"), b"").unwrap();
    std::os::unix::fs::chown(arena.below.join("owned"), Some(1), None).unwrap();
    fs::create_dir(arena.below.join("grow")).unwrap();
    fs::write(arena.below.join("grow/g.1"), b"").unwrap();
    fs::create_dir(arena.below.join("dir")).unwrap();
    put(&arena.below, "dir/generation", 1);
}

const ROUNDS: u64 = 300;

#[test]
fn nobody_sees_the_old_after_the_new() {
    arenas(|arena| {
        prepare(arena);
        let mut slowest = Duration::ZERO;
        let wrong = hammer(arena, Of::One, 6, || {
            for to in 2..=ROUNDS {
                let begun = Instant::now();
                advance(arena, to).unwrap();
                slowest = slowest.max(begun.elapsed());
            }
        });
        assert!(
            wrong.is_empty(),
            "{} times, first {:?}",
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        );
        assert!(slowest < Duration::from_secs(60), "{slowest:?}");
        let caught_up = looks(&arena.mount.dir)
            .into_iter()
            .map(|(what, mut look)| (what, look(&arena.mount.dir)));
        for (what, seen) in caught_up {
            assert_eq!(seen, Some(ROUNDS), "{what}, at the end");
        }
    });
}

#[test]
fn no_remedy_is_idle() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    use Remedy::*;
    // The barrier's window is too narrow to be met by luck: the model has it (crates/sim).
    for missing in [DropName, DropAttributes, DropPages, Timeout, Admission] {
        let dir = scratch();
        let arena = Arena::new(dir.path(), (Transport::Auto, Mount::Told), Some(missing)).unwrap();
        prepare(&arena);
        let mut to = 1;
        let mut wrong = Vec::new();
        while wrong.is_empty() {
            assert!(to < 20 * ROUNDS, "{missing:?}: nobody noticed");
            wrong = hammer(&arena, Of::One, 6, || {
                for _ in 0..20 {
                    to += 1;
                    // It may also be that it never comes to an end without the remedy.
                    let _ = advance(&arena, to);
                }
            });
        }
        eprintln!("{missing:?}: noticed after {to} commits: {}", wrong[0]);
    }
}

/// A name that the kernel has never asked for leaves no trace but in the listing.
#[test]
fn a_cached_listing_is_dropped() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    for missing in [None, Some(Remedy::DropListing)] {
        let scratch = scratch();
        let arena = Arena::new(scratch.path(), (Transport::Auto, Mount::Told), missing).unwrap();
        prepare(&arena);
        let grows = open(&arena.mount.path("grow"));
        let newest = || names_of(&grows).iter().filter_map(|n| number_after(n, "g.")).max();
        let asked = || {
            let stats = arena.mount.connection().stats();
            stats.count(Opcode::Readdir) + stats.count(Opcode::Readdirplus)
        };
        assert_eq!((newest(), newest()), (Some(1), Some(1)));
        let before = asked();
        assert_eq!(newest(), Some(1));
        assert_eq!(asked(), before, "the listing is cached");
        let mut shape = Shape::new();
        shape.new_name_in(&arena, "grow", "g.2");
        arena.commit(2, &shape, || fs::write(arena.below.join("grow/g.2"), b"").unwrap()).unwrap();
        let expected = if missing.is_none() { Some(2) } else { Some(1) };
        assert_eq!(newest(), expected, "without {missing:?}");
    }
}

#[test]
fn a_plain_mutation_wins_before_the_decision_and_waits_after_it() {
    arenas(|arena| {
        prepare(arena);
        let mut shape = Shape::new();
        shape.content(arena, "held");
        let engine = &arena.vol.engine;
        let id = TxnId(7);
        engine.begin(id, BeginOptions::default());
        for object in &shape.claims {
            assert!(matches!(engine.write(id, object.as_ref()), Access::Granted));
        }
        let publication = arena.vol.publish(id, &shape.writes);
        fs::write(arena.mount.path("held"), b"plain").unwrap();
        match publication.decide(|| engine.decide(id)) {
            Err(NotDecided::Lost(why)) => {
                let systx_txn::Opponent::Plain(by) = why.opponent else { panic!("{why:?}") };
                assert_ne!(by.pid, 0, "{why:?}");
            }
            other => panic!("{other:?}"),
        }
        drop(publication);
        engine.abort(id);
        assert_eq!(fs::read(arena.mount.path("held")).unwrap(), b"plain");
    });
}

#[test]
fn stores_to_a_mapping_are_writes() {
    arenas(|arena| {
        prepare(arena);
        let file = File::options().read(true).write(true).open(arena.mount.path("mapped")).unwrap();
        let mut map = map_unsafe::Shared::writable(&file, 4096).unwrap();
        map.write(b"stored!!");
        let id = arena.stamp("mapped").id();
        assert_ne!(
            fs::read(arena.below.join("mapped")).unwrap(),
            b"stored!!",
            "nobody was told yet"
        );
        let engine = &arena.vol.engine;
        engine.begin(TxnId(9), BeginOptions::default());
        let pages = ObjectRef::Pages { oid: id.oid(), first: 0, last: 0 };
        assert!(matches!(engine.read(TxnId(9), pages), Access::Granted));
        assert!(arena.vol.flush(Some(TxnId(9)), id));
        assert_eq!(fs::read(arena.below.join("mapped")).unwrap(), b"stored!!");
        assert!(engine.conflict(TxnId(9)).is_some(), "who read the page before has lost");
        engine.abort(TxnId(9));
    });
}

/// The kernel does not ask for the length before it appends.
#[test]
fn appends_go_to_the_end_that_a_commit_moved() {
    arenas(|arena| {
        prepare(arena);
        let path = arena.mount.path("long");
        let mut log = File::options().append(true).read(true).open(&path).unwrap();
        log.write_all(b"2").unwrap();
        let mut shape = Shape::new();
        shape.content(arena, "long");
        let below = arena.below.join("long");
        let append =
            || File::options().append(true).open(&below).unwrap().write_all(b"3456").unwrap();
        arena.commit(2, &shape, append).unwrap();
        log.write_all(b"7").unwrap();
        log.write_all(b"8").unwrap();
        assert_eq!(fs::read(&below).unwrap(), b"12345678");
        assert_eq!(path.metadata().unwrap().len(), 8);
        // The pages that had it in the wrong place are dropped a moment later.
        let until = Instant::now() + HANG;
        while fs::read(&path).unwrap() != b"12345678" {
            assert!(Instant::now() < until, "the kernel's pages stay wrong");
            std::thread::yield_now();
        }
    });
}

#[test]
fn the_barrier_has_no_name() {
    arenas(|arena| {
        let name = std::str::from_utf8(publication::BARRIER).unwrap();
        let at = arena.mount.path(name);
        assert_eq!(
            fs::write(&at, b"").unwrap_err().raw_os_error(),
            Some(Errno::PERM.raw_os_error())
        );
        assert!(fs::metadata(&at).is_err());
        assert!(fs::create_dir(&at).is_err());
        assert_eq!(fs::read_dir(&arena.mount.dir).unwrap().count(), 0);
    });
}
