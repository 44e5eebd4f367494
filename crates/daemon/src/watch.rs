//! Files that are open in views whose transactions were committed: when somebody else changes one,
//! the kernel has to drop the pages that the view gave it.
//!
//! One inotify instance for all of them, since a user may have few, and one thread that lives as
//! long as the daemon. Stores by mappings of others move nothing that inotify sees. On a
//! log-structured volume it sees what is changed through the mount, and commits are told by the
//! volume itself.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use systx_base::NodeId;
use systx_base::sync::{Mutex, rank};
use systx_guard::shared::Follower;
use systx_store::io::HostId;

/// See the module.
#[derive(Default)]
pub struct Watcher {
    watch: OnceLock<Option<Arc<Watch>>>,
    /// The same targets by what they are; of two volumes one object may have the number of another,
    /// whose pages are then dropped for nothing.
    objects: OnceLock<Arc<Mutex<Objects>>>,
}

type Objects = HashMap<HostId, Vec<Target>>;

struct Watch {
    inotify: OwnedFd,
    targets: Mutex<HashMap<i32, Vec<Target>>>,
}

/// Who has the kernel drop pages.
pub trait Keeps: Send + Sync {
    /// Drops the pages of a file; false if the kernel does not know it (any more).
    fn drop_pages(&self, node: NodeId) -> bool;
}

struct Target {
    view: Weak<dyn Keeps>,
    node: NodeId,
}

impl Target {
    fn new(view: &Arc<dyn Keeps>, node: NodeId) -> Target {
        Target { view: Arc::downgrade(view), node }
    }

    /// Another view may have a node of the same number.
    fn is(&self, other: &Target) -> bool {
        self.view.ptr_eq(&other.view) && self.node == other.node
    }
}

/// The kernel does not know what is meant any more: each change would ask it again, for all that
/// was ever open.  Returns whether nothing of the file is left.
fn forget<K: Hash + Eq>(all: &mut HashMap<K, Vec<Target>>, file: K, gone: &Target) -> bool {
    let Some(of_file) = all.get_mut(&file) else { return false };
    of_file.retain(|target| !target.is(gone));
    let is_last = of_file.is_empty();
    if is_last {
        all.remove(&file);
    }
    is_last
}

impl Watcher {
    fn objects(&self) -> &Arc<Mutex<Objects>> {
        self.objects.get_or_init(|| Arc::new(Mutex::new(rank::LEAF, HashMap::new())))
    }

    /// From now on, changes of the file make the kernel drop the pages of the node.
    pub fn add(&self, view: &Arc<dyn Keeps>, node: NodeId, (file, id): (BorrowedFd<'_>, HostId)) {
        self.objects().lock().entry(id).or_default().push(Target::new(view, node));
        let Some(watch) = self.watch.get_or_init(start) else { return };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = WatchFlags::MODIFY | WatchFlags::MASK_ADD;
        // With the lock, so that the first change finds its target.
        let mut targets = watch.targets.lock();
        match inotify::add_watch(&watch.inotify, path, flags) {
            Ok(id) => targets.entry(id).or_default().push(Target::new(view, node)),
            Err(errno) => tracing::warn!(%errno, "a file that is open in a view is not watched"),
        }
    }

    /// Nothing of the view is open any more.
    pub fn remove(&self, view: &Arc<dyn Keeps>) {
        let view = Arc::downgrade(view);
        self.objects().lock().retain(|_, targets| {
            targets.retain(|target| !target.view.ptr_eq(&view));
            !targets.is_empty()
        });
        let Some(Some(watch)) = self.watch.get() else { return };
        let mut targets = watch.targets.lock();
        targets.retain(|id, targets| {
            targets.retain(|target| !target.view.ptr_eq(&view));
            if targets.is_empty() {
                // Fails if the file is gone, and the watch with it.
                let _ = inotify::remove_watch(&watch.inotify, *id);
            }
            !targets.is_empty()
        });
    }
}

impl Follower for Watcher {
    fn changed(&self, files: &[HostId]) {
        let met: Vec<(HostId, Arc<dyn Keeps>, NodeId)> = {
            let objects = self.objects().lock();
            let targets = files.iter().filter_map(|id| Some((*id, objects.get(id)?)));
            let each = targets.flat_map(|(id, of)| of.iter().map(move |target| (id, target)));
            each.filter_map(|(id, target)| Some((id, target.view.upgrade()?, target.node)))
                .collect()
        };
        if met.is_empty() {
            return;
        }
        let objects = Arc::clone(self.objects());
        // The kernel waits for each READ of these pages that is under way, and these for commits.
        let drop_all = move || {
            for (id, view, node) in met {
                if !view.drop_pages(node) {
                    forget(&mut objects.lock(), id, &Target::new(&view, node));
                }
            }
        };
        let thread = std::thread::Builder::new().name("follow".into()).spawn(drop_all);
        if let Err(error) = thread {
            tracing::warn!(%error, "files open over a commit may show old pages");
        }
    }
}

fn start() -> Option<Arc<Watch>> {
    let inotify = match inotify::init(CreateFlags::CLOEXEC) {
        Ok(inotify) => inotify,
        Err(errno) => {
            tracing::warn!(%errno, "no inotify: files open over a commit may show old pages");
            return None;
        }
    };
    let watch = Watch { inotify, targets: Mutex::new(rank::LEAF, HashMap::new()) };
    let watch = Arc::new(watch);
    let own = Arc::clone(&watch);
    let thread = std::thread::Builder::new().name("watch".into()).spawn(move || own.run());
    thread.is_ok().then_some(watch)
}

impl Watch {
    fn run(&self) {
        let mut buf = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buf);
        loop {
            match reader.next() {
                Ok(event) => self.event(event.wd(), event.events()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "inotify");
                    return;
                }
            }
        }
    }

    fn event(&self, id: i32, what: ReadFlags) {
        let targets: Vec<(i32, Arc<dyn Keeps>, NodeId)> = {
            let mut targets = self.targets.lock();
            if what.contains(ReadFlags::IGNORED) {
                targets.remove(&id);
                return;
            }
            // Changes were lost: of which files is not known.
            let all = what.contains(ReadFlags::QUEUE_OVERFLOW);
            let met = targets.iter().filter(|(other, _)| all || **other == id);
            met.flat_map(|(id, targets)| targets.iter().map(move |target| (*id, target)))
                .filter_map(|(id, target)| Some((id, target.view.upgrade()?, target.node)))
                .collect()
        };
        for (id, view, node) in targets {
            if !view.drop_pages(node) {
                self.forget(id, &Target::new(&view, node));
            }
        }
    }

    fn forget(&self, id: i32, gone: &Target) {
        let mut targets = self.targets.lock();
        if forget(&mut targets, id, gone) {
            let _ = inotify::remove_watch(&self.inotify, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    /// Tells of each drop; whether the kernel knows its nodes.
    struct Seen {
        told: Mutex<Sender<&'static str>>,
        name: &'static str,
        known: bool,
    }

    impl Keeps for Seen {
        fn drop_pages(&self, _: NodeId) -> bool {
            self.told.lock().send(self.name).expect("the test waits");
            self.known
        }
    }

    #[test]
    fn what_one_view_has_closed_another_with_the_same_number_of_it_is_still_told_of() {
        let (tell, told) = channel();
        let view = |name, known| -> Arc<dyn Keeps> {
            Arc::new(Seen { told: Mutex::new(rank::LEAF, tell.clone()), name, known })
        };
        let (closed, open) = (view("closed", false), view("open", true));
        let place = tempfile::tempdir().expect("a directory");
        let mut file = std::fs::File::create(place.path().join("f")).expect("a file");
        let id = HostId::new(1, Default::default());
        let watcher = Watcher::default();
        for view in [&closed, &open] {
            watcher.add(view, NodeId(7), (file.as_fd(), id));
        }
        let next = |n| -> Vec<_> {
            let limit = Duration::from_secs(300);
            (0..n).map(|_| told.recv_timeout(limit).expect("it is told")).collect()
        };
        // By commits of a volume, and by the kernel.
        watcher.changed(&[id]);
        assert_eq!(next(2), ["closed", "open"]);
        file.write_all(b"changed").expect("ours");
        assert_eq!(next(2), ["closed", "open"]);
        watcher.changed(&[id]);
        file.write_all(b"again").expect("ours");
        assert_eq!(next(2), ["open", "open"]);
    }
}
