//! The backing file system, with something that happens right before or right after one call of one
//! thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use systx_base::sync::{is_held, rank};
use systx_base::{Gid, Kind, Time, Uid};
use systx_store::io::*;
use systx_store::real::RealIo;

type Act = Box<dyn FnOnce() + Send>;
type Out<T> = std::io::Result<T>;

/// See the module.
pub struct Hooked {
    io: RealIo,
    whose: ThreadId,
    /// Moments so far at which something may happen: two for each call of that thread.
    moments: AtomicUsize,
    /// What happens, at which of them, and on a thread of its own.
    act: Mutex<Option<(usize, Act)>>,
    /// What the file system is said to be.
    class: Option<Class>,
    /// After so many calls nothing succeeds any more, as if this process had died.
    left: AtomicUsize,
    /// Whether commits are said to share files.
    shares: AtomicBool,
}

impl Hooked {
    /// Calls of the thread that makes it count.
    pub fn new(io: RealIo) -> Arc<Hooked> {
        Hooked::of_class(io, None)
    }

    /// A file system that is said to be of this class.
    pub fn of_class(io: RealIo, class: Option<Class>) -> Arc<Hooked> {
        let whose = std::thread::current().id();
        let (moments, left) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        let (act, shares) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(Hooked { io, whose, moments, act, class, left, shares })
    }

    /// Says from now on that commits share files.
    pub fn share_files(&self) {
        self.shares.store(true, SeqCst);
    }

    /// Fails all calls after so many.  Not for several threads.
    pub fn die_after(&self, calls: usize) {
        self.left.store(calls, SeqCst);
    }

    /// How many calls are left.
    pub fn left(&self) -> usize {
        self.left.load(SeqCst)
    }

    /// Has something happen at the `nth` moment from now on: before the first call, after it,
    /// before the second...
    pub fn at(&self, nth: usize, act: impl FnOnce() + Send + 'static) {
        self.moments.store(0, SeqCst);
        *self.act.lock().expect("hook") = Some((nth, Box::new(act)));
    }

    /// Whether it has not happened; it will not any more.
    pub fn cancel(&self) -> bool {
        self.act.lock().expect("hook").take().is_some()
    }

    fn moment(&self) {
        // With one of these locks held, who commits would wait for this thread.
        let is_in_the_way =
            [rank::PUBLICATION, rank::MARKS, rank::INSTALL].into_iter().any(is_held);
        if std::thread::current().id() != self.whose || is_in_the_way {
            return;
        }
        let moment = self.moments.fetch_add(1, SeqCst);
        let act = {
            let mut act = self.act.lock().expect("hook");
            match &*act {
                Some((nth, _)) if *nth == moment => act.take(),
                _ => None,
            }
        };
        if let Some((_, act)) = act {
            std::thread::spawn(act).join().expect("what happens in between");
        }
    }
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $result {
            self.moment();
            let left = self.left.load(SeqCst);
            if left == 0 {
                return Err(std::io::Error::from_raw_os_error(libc::EIO));
            }
            self.left.store(left - 1, SeqCst);
            let answer = self.io.$name($($arg),*);
            self.moment();
            answer
        })*
    };
}

impl Tree for Hooked {
    pass_on! {
        open_dir(at: &Handle, name: &[u8]) -> Out<Handle>;
        open_file(at: &Handle, name: &[u8], how: Open) -> Out<Handle>;
        pin(at: &Handle, name: &[u8]) -> Out<Handle>;
        stat_at(at: &Handle, name: &[u8]) -> Out<Stat>;
        stat(h: &Handle) -> Out<Stat>;
        list(dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Out<()>;
        path_of(dir: &Handle) -> Out<Vec<u8>>;
        read_link(at: &Handle, name: &[u8]) -> Out<Vec<u8>>;
        get_xattr(at: &Handle, name: &[u8], key: &[u8]) -> Out<Vec<u8>>;
        list_xattr(at: &Handle, name: &[u8]) -> Out<Vec<Vec<u8>>>;
        read_at(h: &Handle, buf: &mut [u8], offset: u64) -> Out<usize>;
        next_data(h: &Handle, offset: u64) -> Out<Option<(u64, u64)>>;
        fixed(at: &Handle, name: &[u8]) -> Out<Fixed>;
        project(at: &Handle, name: &[u8]) -> Out<Project>;
    }
    fn fs_info(&self) -> Out<FsInfo> {
        let info = self.io.fs_info()?;
        Ok(FsInfo { class: self.class.unwrap_or(info.class), ..info })
    }
    fn root(&self) -> Handle {
        self.io.root()
    }
    fn now(&self) -> Time {
        self.io.now()
    }
    fn shares_files(&self) -> bool {
        self.shares.load(SeqCst)
    }
    fn longest_target(&self) -> usize {
        self.io.longest_target()
    }
}

impl Outsiders for Hooked {
    pass_on! {
        sync_data(h: &Handle) -> Out<()>;
        openers(h: &Handle) -> Out<Openers>;
    }
    fn is_settled(&self, version: &Stamp) -> bool {
        self.io.is_settled(version)
    }
}

impl Io for Hooked {
    pass_on! {
        open_to_write(at: &Handle, name: &[u8]) -> Out<Handle>;
        create_file(at: &Handle, name: &[u8], mode: u32) -> Out<Handle>;
        write_at(h: &Handle, data: &[u8], offset: u64) -> Out<()>;
        write_durable(h: &Handle, data: &[u8], offset: u64) -> Out<()>;
        set_len(h: &Handle, len: u64) -> Out<()>;
        punch_hole(h: &Handle, offset: u64, len: u64) -> Out<()>;
        allocate(h: &Handle, offset: u64, len: u64) -> Out<()>;
        copy_range(a: &Handle, b: u64, c: &Handle, d: u64, e: u64) -> Out<()>;
        mkdir(at: &Handle, name: &[u8], mode: u32) -> Out<()>;
        symlink(target: &[u8], at: &Handle, name: &[u8]) -> Out<()>;
        mknod(at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Out<()>;
        link(a: &Handle, b: &[u8], c: &Handle, d: &[u8]) -> Out<()>;
        rename(a: &Handle, b: &[u8], c: &Handle, d: &[u8], how: Rename) -> Out<()>;
        unlink(at: &Handle, name: &[u8]) -> Out<()>;
        rmdir(at: &Handle, name: &[u8]) -> Out<()>;
        set_mode(at: &Handle, name: &[u8], mode: u32) -> Out<()>;
        set_project(at: &Handle, name: &[u8], project: Project) -> Out<()>;
        set_owner(at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Out<()>;
        set_times(at: &Handle, name: &[u8], a: Option<Time>, m: Option<Time>) -> Out<()>;
        set_xattr(at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Out<()>;
        remove_xattr(at: &Handle, name: &[u8], key: &[u8]) -> Out<()>;
        sync_all(h: &Handle) -> Out<()>;
        sync_fs() -> Out<()>;
        try_lock(h: &Handle) -> Out<bool>;
        touch(at: &Handle, name: &[u8]) -> Out<()>;
        is_locked(h: &Handle) -> Out<bool>;
        hold(h: &Handle, hold: bool) -> Out<()>;
        ask_for_lock(h: &Handle, ask: bool) -> Out<()>;
        is_lock_asked_for(h: &Handle) -> Out<bool>;
    }
    fn max_len(&self, h: &Handle) -> u64 {
        self.io.max_len(h)
    }
    fn has_quota(&self) -> bool {
        self.io.has_quota()
    }
    fn makers(&self) -> usize {
        self.io.makers()
    }
    fn unmask(&self) {
        self.io.unmask();
    }
}
