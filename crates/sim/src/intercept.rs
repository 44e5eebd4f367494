//! An [`Io`] between a store and a [`SimFs`] that may fail, shorten, skip or weaken any call, or do
//! something else first: the death of a process, a broken disk, a kernel that lies about its
//! barriers, an outsider who changes files at the worst moment.
//!
//! A *rule* is asked before every call, with nothing locked, and answers with an [`Action`].

use crate::simfs::SimFs;
use crate::state::PAGE;
use rustix::io::Errno;
use std::io::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use systx_base::{Gid, Kind, Time, Uid};
use systx_store::io::{
    Fixed, FsInfo, Handle, Io, ListItem, Open, Openers, Outsiders, Project, Rename, Stamp, Stat,
    Tree,
};

/// Which call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)] // The methods of `Io`, one to one.
pub enum Op {
    OpenDir,
    OpenFile,
    CreateFile,
    Stat,
    List,
    ReadLink,
    GetXattr,
    ListXattr,
    ReadAt,
    WriteAt,
    WriteDurable,
    SetLen,
    PunchHole,
    Allocate,
    NextData,
    CopyRange,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Rename,
    Unlink,
    Rmdir,
    SetMode,
    SetOwner,
    SetTimes,
    SetXattr,
    RemoveXattr,
    SyncData,
    SyncAll,
    SyncFs,
    Openers,
    TryLock,
    FsInfo,
}

impl Op {
    /// Whether the call changes the file system or makes it durable.
    pub fn mutates(self) -> bool {
        use Op::*;
        !matches!(
            self,
            OpenDir
                | OpenFile
                | Stat
                | List
                | ReadLink
                | GetXattr
                | ListXattr
                | ReadAt
                | NextData
                | Openers
                | TryLock
                | FsInfo
        )
    }
}

/// A call about to be made.
pub struct Call<'a> {
    /// How many calls were made before.
    pub n: u64,
    /// Which.
    pub op: Op,
    sim: &'a SimFs,
    place: Option<(&'a Handle, &'a [u8])>,
    source: Option<(&'a Handle, &'a [u8])>,
}

impl Call<'_> {
    /// The path that is acted upon; of a rename or link, the new one.
    pub fn path(&self) -> String {
        self.text(self.place)
    }
    /// Of a rename or link, the old path.
    pub fn source(&self) -> String {
        self.text(self.source)
    }
    fn text(&self, place: Option<(&Handle, &[u8])>) -> String {
        let Some((at, name)) = place else { return String::new() };
        let dir = self.sim.path_of(at);
        if name.is_empty() {
            return dir;
        }
        format!("{}/{}", dir.trim_end_matches('/'), String::from_utf8_lossy(name))
    }
    /// The file system below, to act on it as an outsider.
    pub fn sim(&self) -> &SimFs {
        self.sim
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is made.
    Pass,
    /// It fails and changes nothing.
    Fail(Errno),
    /// About half of its data, up to the end of a page, is written, then it fails.  As
    /// [`Action::Fail`] for other calls.
    Short(Errno),
    /// It is not made and reports success: a lie.  As [`Action::Pass`] for calls that return
    /// something.
    Skip,
    /// A durable write is made as a plain one; a link as a rename.  As [`Action::Pass`] for others.
    Weaken,
}

/// See the module.
pub type Rule = dyn Fn(&Call<'_>) -> Action + Send + Sync;

/// See the module.
pub struct Intercept {
    sim: SimFs,
    calls: AtomicU64,
    rule: Box<Rule>,
}

impl Intercept {
    /// `sim` as seen through `rule`.
    pub fn new(
        sim: &SimFs,
        rule: impl Fn(&Call<'_>) -> Action + Send + Sync + 'static,
    ) -> Intercept {
        Intercept { sim: sim.clone(), calls: AtomicU64::new(0), rule: Box::new(rule) }
    }

    /// The process dies at its `n`-th mutating call, counted from 0: neither that call nor any
    /// later one, mutating or not, does anything.
    pub fn dying(sim: &SimFs, n: u64) -> Intercept {
        let mutations = AtomicU64::new(0);
        Intercept::new(sim, move |call| {
            let step = u64::from(call.op.mutates());
            let before = mutations.fetch_add(step, Ordering::Relaxed);
            if before > n || (before == n && step == 1) {
                Action::Fail(Errno::IO)
            } else {
                Action::Pass
            }
        })
    }

    /// The `n`-th mutating call, counted from 0, has `fault`; all others work.
    pub fn failing_once(sim: &SimFs, n: u64, fault: Action) -> Intercept {
        let mutations = AtomicU64::new(0);
        Intercept::new(sim, move |call| {
            if call.op.mutates() && mutations.fetch_add(1, Ordering::Relaxed) == n {
                fault
            } else {
                Action::Pass
            }
        })
    }

    /// How many calls were made.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn ask(
        &self,
        op: Op,
        place: Option<(&Handle, &[u8])>,
        source: Option<(&Handle, &[u8])>,
    ) -> Action {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        (self.rule)(&Call { n, op, sim: &self.sim, place, source })
    }

    /// A call that returns something.
    fn get<T>(
        &self,
        op: Op,
        place: Option<(&Handle, &[u8])>,
        f: impl FnOnce(&SimFs) -> Result<T>,
    ) -> Result<T> {
        match self.ask(op, place, None) {
            Action::Fail(e) | Action::Short(e) => Err(e.into()),
            Action::Pass | Action::Skip | Action::Weaken => f(&self.sim),
        }
    }

    /// A call that returns nothing.
    fn set(
        &self,
        op: Op,
        place: Option<(&Handle, &[u8])>,
        f: impl FnOnce(&SimFs) -> Result<()>,
    ) -> Result<()> {
        match self.ask(op, place, None) {
            Action::Fail(e) | Action::Short(e) => Err(e.into()),
            Action::Skip => Ok(()),
            Action::Pass | Action::Weaken => f(&self.sim),
        }
    }
}

/// Where the kernel stops a write half-way: between two pages.
fn half(offset: u64, len: usize) -> usize {
    let end = (offset + len as u64 / 2) / PAGE as u64 * PAGE as u64;
    end.saturating_sub(offset) as usize
}

fn of(h: &Handle) -> Option<(&Handle, &[u8])> {
    Some((h, b""))
}

impl Tree for Intercept {
    fn root(&self) -> Handle {
        self.sim.root()
    }
    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.get(Op::OpenDir, Some((at, name)), |s| s.open_dir(at, name))
    }
    fn open_file(&self, at: &Handle, name: &[u8], how: Open) -> Result<Handle> {
        self.get(Op::OpenFile, Some((at, name)), |s| s.open_file(at, name, how))
    }
    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.get(Op::Stat, Some((at, name)), |s| s.pin(at, name))
    }
    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat> {
        self.get(Op::Stat, Some((at, name)), |s| s.stat_at(at, name))
    }
    fn stat(&self, h: &Handle) -> Result<Stat> {
        self.get(Op::Stat, of(h), |s| s.stat(h))
    }
    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()> {
        self.get(Op::List, of(dir), |s| s.list(dir, each))
    }
    fn path_of(&self, _: &Handle) -> Result<Vec<u8>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        self.get(Op::ReadLink, Some((at, name)), |s| s.read_link(at, name))
    }
    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        self.get(Op::GetXattr, Some((at, name)), |s| s.get_xattr(at, name, key))
    }
    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.get(Op::ListXattr, Some((at, name)), |s| s.list_xattr(at, name))
    }
    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.get(Op::ReadAt, of(h), |s| s.read_at(h, buf, offset))
    }
    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>> {
        self.get(Op::NextData, of(h), |s| s.next_data(h, offset))
    }
    fn fs_info(&self) -> Result<FsInfo> {
        self.get(Op::FsInfo, None, SimFs::fs_info)
    }
    fn now(&self) -> Time {
        self.sim.now()
    }
    fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed> {
        self.get(Op::Stat, Some((at, name)), |s| s.fixed(at, name))
    }
    fn project(&self, at: &Handle, name: &[u8]) -> Result<Project> {
        self.get(Op::Stat, Some((at, name)), |s| s.project(at, name))
    }
    fn shares_files(&self) -> bool {
        self.sim.shares_files()
    }
    fn longest_target(&self) -> usize {
        self.sim.longest_target()
    }
}

impl Outsiders for Intercept {
    fn sync_data(&self, h: &Handle) -> Result<()> {
        self.set(Op::SyncData, of(h), |s| s.sync_data(h))
    }
    fn openers(&self, h: &Handle) -> Result<Openers> {
        self.get(Op::Openers, of(h), |s| s.openers(h))
    }
    fn is_settled(&self, version: &Stamp) -> bool {
        self.sim.is_settled(version)
    }
}

impl Io for Intercept {
    fn open_to_write(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.get(Op::OpenFile, Some((at, name)), |s| s.open_to_write(at, name))
    }
    fn create_file(&self, at: &Handle, name: &[u8], mode: u32) -> Result<Handle> {
        self.get(Op::CreateFile, Some((at, name)), |s| s.create_file(at, name, mode))
    }
    fn write_at(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        match self.ask(Op::WriteAt, of(h), None) {
            Action::Pass | Action::Weaken => self.sim.write_at(h, data, offset),
            Action::Skip => Ok(()),
            Action::Fail(e) => Err(e.into()),
            Action::Short(e) => {
                self.sim.write_at(h, &data[..half(offset, data.len())], offset)?;
                Err(e.into())
            }
        }
    }
    fn write_durable(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        match self.ask(Op::WriteDurable, of(h), None) {
            Action::Pass => self.sim.write_durable(h, data, offset),
            Action::Weaken => self.sim.write_at(h, data, offset),
            Action::Skip => Ok(()),
            Action::Fail(e) => Err(e.into()),
            Action::Short(e) => {
                // The device took some sectors; whether they are durable, nobody knows.
                self.sim.write_at(h, &data[..data.len() / 2], offset)?;
                Err(e.into())
            }
        }
    }
    fn set_len(&self, h: &Handle, len: u64) -> Result<()> {
        self.set(Op::SetLen, of(h), |s| s.set_len(h, len))
    }
    fn punch_hole(&self, h: &Handle, offset: u64, len: u64) -> Result<()> {
        self.set(Op::PunchHole, of(h), |s| s.punch_hole(h, offset, len))
    }
    fn allocate(&self, h: &Handle, offset: u64, len: u64) -> Result<()> {
        self.set(Op::Allocate, of(h), |s| s.allocate(h, offset, len))
    }
    fn copy_range(
        &self,
        from: &Handle,
        from_at: u64,
        to: &Handle,
        to_at: u64,
        len: u64,
    ) -> Result<()> {
        match self.ask(Op::CopyRange, of(to), of(from)) {
            Action::Pass | Action::Weaken => self.sim.copy_range(from, from_at, to, to_at, len),
            Action::Skip => Ok(()),
            Action::Fail(e) => Err(e.into()),
            Action::Short(e) => {
                let some = half(to_at, usize::try_from(len).unwrap_or(usize::MAX));
                self.sim.copy_range(from, from_at, to, to_at, some as u64)?;
                Err(e.into())
            }
        }
    }
    fn mkdir(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()> {
        self.set(Op::Mkdir, Some((at, name)), |s| s.mkdir(at, name, mode))
    }
    fn symlink(&self, target: &[u8], at: &Handle, name: &[u8]) -> Result<()> {
        self.set(Op::Symlink, Some((at, name)), |s| s.symlink(target, at, name))
    }
    fn mknod(&self, at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Result<()> {
        self.set(Op::Mknod, Some((at, name)), |s| s.mknod(at, name, kind, mode, rdev))
    }
    fn link(&self, from: &Handle, from_name: &[u8], to: &Handle, to_name: &[u8]) -> Result<()> {
        match self.ask(Op::Link, Some((to, to_name)), Some((from, from_name))) {
            Action::Pass => self.sim.link(from, from_name, to, to_name),
            Action::Weaken => self.sim.rename(from, from_name, to, to_name, Rename::NoReplace),
            Action::Skip => Ok(()),
            Action::Fail(e) | Action::Short(e) => Err(e.into()),
        }
    }
    fn rename(
        &self,
        from: &Handle,
        from_name: &[u8],
        to: &Handle,
        to_name: &[u8],
        how: Rename,
    ) -> Result<()> {
        match self.ask(Op::Rename, Some((to, to_name)), Some((from, from_name))) {
            Action::Pass | Action::Weaken => self.sim.rename(from, from_name, to, to_name, how),
            Action::Skip => Ok(()),
            Action::Fail(e) | Action::Short(e) => Err(e.into()),
        }
    }
    fn unlink(&self, at: &Handle, name: &[u8]) -> Result<()> {
        self.set(Op::Unlink, Some((at, name)), |s| s.unlink(at, name))
    }
    fn rmdir(&self, at: &Handle, name: &[u8]) -> Result<()> {
        self.set(Op::Rmdir, Some((at, name)), |s| s.rmdir(at, name))
    }
    fn set_mode(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()> {
        self.set(Op::SetMode, Some((at, name)), |s| s.set_mode(at, name, mode))
    }
    fn set_project(&self, at: &Handle, name: &[u8], project: Project) -> Result<()> {
        self.set(Op::SetMode, Some((at, name)), |s| s.set_project(at, name, project))
    }
    fn set_owner(&self, at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Result<()> {
        self.set(Op::SetOwner, Some((at, name)), |s| s.set_owner(at, name, uid, gid))
    }
    fn set_times(
        &self,
        at: &Handle,
        name: &[u8],
        atime: Option<Time>,
        mtime: Option<Time>,
    ) -> Result<()> {
        self.set(Op::SetTimes, Some((at, name)), |s| s.set_times(at, name, atime, mtime))
    }
    fn set_xattr(&self, at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Result<()> {
        self.set(Op::SetXattr, Some((at, name)), |s| s.set_xattr(at, name, key, value))
    }
    fn remove_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<()> {
        self.set(Op::RemoveXattr, Some((at, name)), |s| s.remove_xattr(at, name, key))
    }
    fn sync_all(&self, h: &Handle) -> Result<()> {
        self.set(Op::SyncAll, of(h), |s| s.sync_all(h))
    }
    fn sync_fs(&self) -> Result<()> {
        self.set(Op::SyncFs, None, SimFs::sync_fs)
    }
    fn try_lock(&self, h: &Handle) -> Result<bool> {
        self.get(Op::TryLock, of(h), |s| s.try_lock(h))
    }
    fn touch(&self, at: &Handle, name: &[u8]) -> Result<()> {
        self.set(Op::SetTimes, Some((at, name)), |s| s.touch(at, name))
    }
    fn max_len(&self, h: &Handle) -> u64 {
        self.sim.max_len(h)
    }
    fn is_locked(&self, h: &Handle) -> Result<bool> {
        self.sim.is_locked(h)
    }
    fn hold(&self, h: &Handle, hold: bool) -> Result<()> {
        self.sim.hold(h, hold)
    }
    fn ask_for_lock(&self, h: &Handle, ask: bool) -> Result<()> {
        self.sim.ask_for_lock(h, ask)
    }
    fn is_lock_asked_for(&self, h: &Handle) -> Result<bool> {
        self.sim.is_lock_asked_for(h)
    }
    fn has_quota(&self) -> bool {
        self.sim.has_quota()
    }
    fn makers(&self) -> usize {
        self.sim.makers()
    }
    fn unmask(&self) {
        self.sim.unmask();
    }
}
