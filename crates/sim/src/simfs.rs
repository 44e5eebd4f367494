//! [`SimFs`]: the simulated file system and what a test may do to it.
//!
//! Lock order: one lock around everything, taken last of all (rank 200) and never held while the
//! caller's code runs.  A [`systx_store::io::Handle`] keeps its file system alive and its inode in
//! use, as an open descriptor does.

use crate::crash::{Choice, Disk, Plan, Profile};
use crate::state::{Inode, State};
use crate::world::{CLOCK, Point, Record, Res, World};
use rustix::io::Errno;
use std::sync::Arc;
use systx_base::sync::{Guard, Mutex, Rank};
use systx_base::{Kind, Time};
use systx_store::Instance;
use systx_store::io::{Handle, Openers};

/// Below every lock of the store: calls into the file system are made under all of them.
const SIM: Rank = Rank(200);

/// A file system in memory.  Clones are the same file system.
#[derive(Clone)]
pub struct SimFs {
    pub(crate) shared: Arc<Mutex<World>>,
}

/// An open file or directory.
pub(crate) struct Opened {
    fs: SimFs,
    pub(crate) ino: u64,
    pub(crate) writable: bool,
    pub(crate) locked: std::sync::atomic::AtomicBool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The lock may be held by the frame that panics: a test that fails says why, and does not
        // abort.
        if std::thread::panicking() {
            return;
        }
        let mut world = self.fs.world();
        if *self.locked.get_mut() {
            world.locked.remove(&self.ino);
        }
        if let Some(count) = world.opens.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                world.opens.remove(&self.ino);
            }
        }
        world.release(self.ino);
    }
}

impl SimFs {
    /// An empty file system.
    pub fn new(profile: Profile) -> SimFs {
        let state = State::new(Time { secs: CLOCK, nanos: 0 });
        let instance = Instance { boot: [1; 16], mount: 1 };
        SimFs::over(state.clone(), Disk::new(state, profile), 0, instance)
    }

    /// A file system that holds this, all of it on its disk, mounted for the first time.
    pub fn holding(state: State, profile: Profile) -> SimFs {
        let instance = Instance { boot: [2; 16], mount: 1 };
        SimFs::over(state.clone(), Disk::new(state, profile), 1_000_000_000, instance)
    }

    fn over(now: State, disk: Disk, tick: u64, instance: Instance) -> SimFs {
        SimFs { shared: Arc::new(Mutex::new(SIM, World::new(now, disk, tick, instance))) }
    }

    pub(crate) fn world(&self) -> Guard<'_, World> {
        self.shared.lock()
    }

    pub(crate) fn handle(&self, world: &mut World, ino: u64, writable: bool) -> Handle {
        *world.opens.entry(ino).or_default() += 1;
        let locked = std::sync::atomic::AtomicBool::new(false);
        Handle::new(Opened { fs: self.clone(), ino, writable, locked })
    }

    /// Begins or ends recording instants.
    pub fn record(&self, what: Record) {
        self.world().record = what;
    }
    /// Takes the recorded instants out.
    pub fn take_points(&self) -> Vec<Point> {
        std::mem::take(&mut self.world().points)
    }
    /// This instant.
    pub fn here(&self) -> Point {
        self.world().point("now".into())
    }
    /// Attaches a number to all later instants, such as how many commits were acknowledged.
    pub fn mark(&self, mark: u64) {
        self.world().mark = mark;
    }
    /// Begins to note every mutating call as text.
    pub fn start_trace(&self) {
        self.world().trace = Some(Vec::new());
    }
    /// The calls noted so far.
    pub fn trace(&self) -> Vec<String> {
        self.world().trace.clone().unwrap_or_default()
    }
    /// How many mutating calls were made.
    pub fn calls(&self) -> u64 {
        self.world().call
    }
    /// The mount instance: another one after every power cut.
    pub fn instance(&self) -> Instance {
        self.world().instance
    }
    /// Limits the disk to `blocks` of 4096 bytes more than are in use.
    pub fn set_free_blocks(&self, blocks: u64) {
        let mut world = self.world();
        world.capacity = world.used_blocks().saturating_add(blocks);
    }
    /// Lets `inodes` more inodes be made.
    pub fn set_free_inodes(&self, inodes: u64) {
        let mut world = self.world();
        world.max_inodes = (world.now.inodes.len() as u64).saturating_add(inodes);
    }
    /// Lets an inode have extended attributes with values of so many bytes in all.
    pub fn set_xattr_room(&self, bytes: usize) {
        self.world().xattr_room = bytes;
    }
    /// What a probe for other users of a file finds; `path` is relative to the root.
    pub fn set_openers(&self, path: &str, who: Openers) {
        let mut world = self.world();
        if let Ok(ino) = resolve(&world, path) {
            world.openers.insert(ino, who);
        }
    }
    /// The state that programs see.
    pub fn state(&self) -> State {
        self.world().now.clone()
    }
    /// The path by which a file or directory is known now, for messages.
    pub fn path_of(&self, h: &Handle) -> String {
        path_of(&self.world().now, h.inner::<Opened>().ino)
    }
    /// An inode by its path, for assertions.
    pub fn inode(&self, path: &str) -> Option<Arc<Inode>> {
        let world = self.world();
        resolve(&world, path).ok().and_then(|ino| world.now.get(ino).cloned())
    }
    /// The disk refuses dirty pages, all but what `choice` says, and the kernel drops them, on a
    /// file system that stays mounted.  Whoever syncs has to be told of it, once.
    pub fn lose_pages(&self, choice: &Choice) {
        let World { now, disk, .. } = &mut *self.world();
        disk.lose_pages(now, choice);
    }
    /// Flips one bit of a file on disk and in memory; false if there is no such byte.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> bool {
        use crate::state::{Body, PAGE, Page};
        let mut world = self.world();
        let Ok(ino) = resolve(&world, path) else { return false };
        let Some(page) = world.page(ino, offset / PAGE as u64) else { return false };
        let mut bytes = *page.bytes();
        bytes[offset as usize % PAGE] ^= 1 << (bit % 8);
        let page = Page::new(bytes);
        let World { now, disk, .. } = &mut *world;
        for state in [now, &mut disk.image] {
            if let Some(Body::File { pages, .. }) = state.get_mut(ino).map(|i| &mut i.body) {
                pages.insert(offset / PAGE as u64, page.clone());
            }
        }
        true
    }
}

impl Point {
    /// The mount instance.
    pub fn instance(&self) -> Instance {
        self.instance
    }
    /// How many states a power cut at this instant may leave.
    pub fn count(&self) -> u64 {
        self.disk.count()
    }
    /// The states to look at.
    pub fn choices(&self, plan: &Plan) -> Vec<Choice> {
        self.disk.choices(plan)
    }
    /// The file system as mounted after a power cut in which `choice` was persisted.
    ///
    /// It is the disk that has lost its power, and been found again by a kernel that ran on:
    /// whoever does not notice that believes what was never synced.  A machine that was restarted
    /// is the easier case.
    pub fn power_cut(&self, choice: &Choice) -> SimFs {
        let state = self.disk.crash(choice);
        let disk = Disk::new(state.clone(), self.disk.profile);
        let instance = Instance { mount: self.instance.mount + 1, ..self.instance };
        // The clock went on while the disk was away.
        SimFs::over(state, disk, self.tick + 1000, instance)
    }
    /// The file system after the death of every process at this instant.
    pub fn process_death(&self) -> SimFs {
        let mut now = self.now.clone();
        // Open files without a name die with their processes.
        now.repair(false, false);
        SimFs::over(now, self.disk.clone(), self.tick + 1, self.instance)
    }
    /// Every state that a power cut may leave, or a sample (see [`Plan`]).
    pub fn crash_states(&self, plan: &Plan) -> impl Iterator<Item = SimFs> + '_ {
        self.choices(plan).into_iter().map(|choice| self.power_cut(&choice))
    }
    /// What did not persist in `choice`, for messages.
    pub fn describe(&self, choice: &Choice) -> String {
        use crate::crash::Unit;
        let mut text = format!("at call {} ({}), mark {}:", self.call, self.label, self.mark);
        for ((unit, versions), pick) in self.disk.pending.iter().zip(&choice.picks) {
            let what = match unit {
                Unit::Namespace => "names".to_owned(),
                Unit::Life(ino) => format!("inode of {}", path_of(&self.now, *ino)),
                Unit::Meta(ino) => format!("attributes of {}", path_of(&self.now, *ino)),
                Unit::Xattrs(ino) => format!("xattrs of {}", path_of(&self.now, *ino)),
                Unit::Page(ino, n) => format!("page {n} of {}", path_of(&self.now, *ino)),
                Unit::Entry(dir, name) => {
                    format!("entry {}/{}", path_of(&self.now, *dir), String::from_utf8_lossy(name))
                }
            };
            let torn = if pick.torn == 0 { String::new() } else { format!(" torn {}", pick.torn) };
            text += &format!("\n  {what}: {}/{}{torn}", pick.version, versions.len());
        }
        text
    }
}

fn resolve(world: &World, path: &str) -> Res<u64> {
    let mut ino = crate::state::ROOT;
    for name in path.split('/').filter(|n| !n.is_empty()) {
        ino = world.find(ino, name.as_bytes())?;
    }
    Ok(ino)
}

fn path_of(state: &State, ino: u64) -> String {
    if ino == crate::state::ROOT {
        return "/".to_owned();
    }
    for (dir, inode) in &state.inodes {
        let names = inode.entries().into_iter().flatten();
        if let Some((name, _)) = names.into_iter().find(|(_, i)| **i == ino) {
            let above = path_of(state, *dir);
            let name = String::from_utf8_lossy(name);
            return format!("{}/{name}", above.trim_end_matches('/'));
        }
    }
    format!("#{ino}")
}

/// Refuses what is not a directory.
pub(crate) fn dir_of(world: &World, h: &Handle) -> Res<u64> {
    let ino = h.inner::<Opened>().ino;
    if world.inode(ino)?.kind == Kind::Dir { Ok(ino) } else { Err(Errno::NOTDIR) }
}
