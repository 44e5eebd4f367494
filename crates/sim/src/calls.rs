//! The calls of [`Io`] on [`SimFs`], with the errnos of Linux for a caller that may do everything.
//! Checked call by call against the real thing in `tests/model.rs`.
//!
//! An empty name means the handle's own inode where the real implementation understands it so.
//! Not simulated: permissions, ACL inheritance, quotas, delayed allocation.

mod data;
mod names;

use crate::simfs::{Opened, SimFs, dir_of};
use crate::state::{Body, Inode, PAGE};
use crate::world::{Record, Res, World};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::Ordering;
use systx_base::{Gid, Kind, Time, Uid};
use systx_store::io::{
    Class, Fixed, FsInfo, Handle, HostId, Io, ListItem, Open, Openers, Outsiders, Project, Rename,
    Stamp, Stat, Tree,
};

const DEV: u64 = 0x51;

/// `.`, `..` and names with a slash never name an entry.
fn entry_name(name: &[u8]) -> Res<()> {
    match name {
        b"" => Err(Errno::NOENT),
        b"." | b".." => Err(Errno::EXIST),
        _ if name.len() > 255 => Err(Errno::NAMETOOLONG),
        _ if name.contains(&b'/') => Err(Errno::NOENT),
        _ => Ok(()),
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn target(w: &World, at: &Handle, name: &[u8]) -> Res<u64> {
    if name.is_empty() {
        let ino = at.inner::<Opened>().ino;
        return w.inode(ino).map(|_| ino);
    }
    w.find(dir_of(w, at)?, name)
}

fn stat_of(ino: u64, inode: &Inode) -> Stat {
    let rdev = if let Body::Special { rdev } = &inode.body { *rdev } else { 0 };
    let size = if inode.kind == Kind::Dir { PAGE as u64 } else { inode.meta.size };
    Stat {
        id: HostId::new(ino, inode.btime),
        dev: DEV,
        kind: inode.kind,
        mode: inode.meta.mode,
        uid: inode.meta.uid,
        gid: inode.meta.gid,
        nlink: inode.nlink,
        size,
        blocks: inode.blocks() * (PAGE as u64 / 512),
        blksize: PAGE as u32,
        rdev,
        atime: inode.meta.atime,
        mtime: inode.meta.mtime,
        ctime: inode.meta.ctime,
    }
}

/// Whether an attribute name may be used on an inode, and what is said if not.
fn xattr_allowed(inode: &Inode, key: &[u8], write: bool) -> Res<()> {
    let known = [&b"user."[..], b"trusted.", b"security.", b"system.posix_acl_"];
    if key.is_empty() || key.len() > 255 {
        return Err(Errno::RANGE);
    }
    if !known.iter().any(|p| key.starts_with(p)) {
        return Err(Errno::OPNOTSUPP);
    }
    if key.starts_with(b"user.") && !matches!(inode.kind, Kind::File | Kind::Dir) {
        return Err(if write { Errno::PERM } else { Errno::NODATA });
    }
    if key.starts_with(b"system.") && inode.kind == Kind::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    if known.contains(&key) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn file_for_write(w: &World, h: &Handle, errno: Errno) -> Res<u64> {
    let opened = h.inner::<Opened>();
    if !opened.writable {
        return Err(errno);
    }
    w.inode(opened.ino).map(|_| opened.ino)
}

impl SimFs {
    /// A call that changes something.
    fn change<T>(
        &self,
        label: impl FnOnce() -> String,
        f: impl FnOnce(&mut World) -> Res<T>,
    ) -> Result<T> {
        let mut w = self.world();
        w.begin();
        let result = f(&mut w);
        let failed = result.as_ref().err().copied();
        w.end(|| match failed {
            None => label(),
            Some(e) => format!("{} = {e:?}", label()),
        });
        result.map_err(Error::from)
    }

    fn look<T>(&self, f: impl FnOnce(&World) -> Res<T>) -> Result<T> {
        f(&self.world()).map_err(Error::from)
    }

    /// A call that makes something durable: the instant before is recorded.
    fn sync(&self, label: impl FnOnce() -> String, f: impl FnOnce(&mut World)) -> Result<()> {
        let mut w = self.world();
        w.call += 1;
        let record = w.record != Record::Off;
        w.note(label, record);
        f(&mut w);
        Ok(())
    }

    /// The path for a label, where labels are kept.
    fn named(&self, h: &Handle) -> String {
        let kept = {
            let w = self.world();
            w.trace.is_some() || w.record != Record::Off
        };
        if kept { self.path_of(h) } else { String::new() }
    }
}

impl SimFs {
    fn open_regular(&self, at: &Handle, name: &[u8], writable: bool) -> Result<Handle> {
        let mut w = self.world();
        let ino = w.find(dir_of(&w, at)?, name)?;
        if w.inode(ino)?.kind != Kind::File {
            return Err(Errno::INVAL.into());
        }
        Ok(self.handle(&mut w, ino, writable))
    }
}

impl Tree for SimFs {
    fn root(&self) -> Handle {
        self.handle(&mut self.world(), crate::state::ROOT, false)
    }

    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        let mut w = self.world();
        let ino = w.find(dir_of(&w, at)?, name)?;
        if !names::is_dir(&w, ino) {
            return Err(Errno::NOTDIR.into());
        }
        Ok(self.handle(&mut w, ino, false))
    }

    fn open_file(&self, at: &Handle, name: &[u8], _: Open) -> Result<Handle> {
        self.open_regular(at, name, false)
    }

    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        let mut w = self.world();
        let ino = w.find(dir_of(&w, at)?, name)?;
        Ok(self.handle(&mut w, ino, false))
    }

    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat> {
        self.look(|w| {
            let ino = target(w, at, name)?;
            Ok(stat_of(ino, w.inode(ino)?))
        })
    }

    fn stat(&self, h: &Handle) -> Result<Stat> {
        self.stat_at(h, b"")
    }

    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()> {
        // Copied, so that the caller may use the file system while it looks at each.
        let entries: Vec<(Vec<u8>, u64, Option<Kind>)> = self.look(|w| {
            let ino = dir_of(w, dir)?;
            // Read through a second descriptor, which a removed directory does not give.
            w.may_add(ino)?;
            let entries = w.inode(ino)?.entries().ok_or(Errno::NOTDIR)?;
            let item = |(name, ino): (&Vec<u8>, &u64)| {
                (name.clone(), *ino, w.inode(*ino).ok().map(|i| i.kind))
            };
            Ok(entries.iter().map(item).collect())
        })?;
        for (name, ino, kind) in &entries {
            if !each(ListItem { name, ino: *ino, kind: *kind }) {
                break;
            }
        }
        Ok(())
    }

    fn path_of(&self, _: &Handle) -> Result<Vec<u8>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        self.look(|w| match &w.inode(target(w, at, name)?)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(if name.is_empty() { Errno::NOENT } else { Errno::INVAL }),
        })
    }

    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        self.look(|w| {
            let inode = w.inode(target(w, at, name)?)?;
            xattr_allowed(inode, key, false)?;
            inode.xattrs.get(key).cloned().ok_or(Errno::NODATA)
        })
    }

    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.look(|w| Ok(w.inode(target(w, at, name)?)?.xattrs.keys().cloned().collect()))
    }

    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.look(|w| {
            let ino = h.inner::<Opened>().ino;
            if names::is_dir(w, ino) {
                return Err(Errno::BADF);
            }
            data::read(w, ino, buf, offset)
        })
    }

    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>> {
        self.look(|w| data::next_data(w, h.inner::<Opened>().ino, offset))
    }

    fn fs_info(&self) -> Result<FsInfo> {
        self.look(|w| {
            let free = w.capacity.saturating_sub(w.used_blocks());
            let class = w.disk.profile.class;
            let magic = match class {
                Class::Memory => 0x0102_1994,
                _ => 0xef53,
            };
            Ok(FsInfo {
                magic,
                class,
                bsize: PAGE as u64,
                blocks: w.capacity,
                bfree: free,
                bavail: free,
                files: w.max_inodes,
                ffree: w.max_inodes.saturating_sub(w.now.inodes.len() as u64),
                namelen: 255,
            })
        })
    }

    fn now(&self) -> Time {
        let mut w = self.world();
        w.tick += 1;
        w.time()
    }

    fn fixed(&self, _: &Handle, _: &[u8]) -> Result<Fixed> {
        Ok(Fixed::No)
    }

    fn project(&self, at: &Handle, name: &[u8]) -> Result<Project> {
        self.stat_at(at, name).map(|_| Project::default())
    }

    fn shares_files(&self) -> bool {
        false
    }
    fn longest_target(&self) -> usize {
        PAGE - 1
    }
}

impl Outsiders for SimFs {
    fn sync_data(&self, h: &Handle) -> Result<()> {
        let (name, ino) = (self.named(h), h.inner::<Opened>().ino);
        self.sync(|| format!("sync_data {name}"), |w| w.sync(ino, false))
    }

    fn openers(&self, h: &Handle) -> Result<Openers> {
        let ino = h.inner::<Opened>().ino;
        Ok(self.world().openers.get(&ino).copied().unwrap_or(Openers::None))
    }

    fn is_settled(&self, _: &Stamp) -> bool {
        false
    }
}

impl Io for SimFs {
    fn open_to_write(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.open_regular(at, name, true)
    }

    fn create_file(&self, at: &Handle, name: &[u8], mode: u32) -> Result<Handle> {
        self.change(
            || format!("create {}", text(name)),
            |w| {
                let dir = dir_of(w, at)?;
                entry_name(name)?;
                let body = Body::File { pages: BTreeMap::new(), reserved: BTreeSet::new() };
                let ino = w.make(dir, name, Kind::File, mode, body)?;
                Ok(self.handle(w, ino, true))
            },
        )
    }

    fn write_at(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        let name = self.named(h);
        self.change(
            || format!("write {name} {offset}+{}", data.len()),
            |w| {
                let ino = file_for_write(w, h, Errno::BADF)?;
                data::write(w, ino, data, offset)
            },
        )
    }

    fn write_durable(&self, h: &Handle, data: &[u8], offset: u64) -> Result<()> {
        if !data.len().is_multiple_of(PAGE) || !offset.is_multiple_of(PAGE as u64) {
            return Err(Errno::INVAL.into());
        }
        let name = self.named(h);
        let name = || format!("write durably {name} {}+{}", offset, data.len());
        self.change(name, |w| {
            let ino = file_for_write(w, h, Errno::BADF)?;
            data::write(w, ino, data, offset)
        })?;
        let (first, count) = (offset / PAGE as u64, (data.len() / PAGE) as u64);
        let ino = h.inner::<Opened>().ino;
        self.sync(|| format!("end of {}", name()), |w| w.flush_written(ino, first, first + count))
    }

    fn set_len(&self, h: &Handle, len: u64) -> Result<()> {
        let name = self.named(h);
        self.change(
            || format!("truncate {name} {len}"),
            |w| {
                let ino = file_for_write(w, h, Errno::INVAL)?;
                data::set_len(w, ino, len)
            },
        )
    }

    fn punch_hole(&self, h: &Handle, offset: u64, len: u64) -> Result<()> {
        let name = self.named(h);
        self.change(
            || format!("punch {name} {offset}+{len}"),
            |w| {
                if len == 0 {
                    return Err(Errno::INVAL);
                }
                let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
                let ino = file_for_write(w, h, Errno::BADF)?;
                data::end_of(offset, len).map_err(|_| Errno::FBIG)?;
                w.strip_capability(ino);
                data::clear(w, ino, offset, end.min(data::MAX_SIZE));
                let page = PAGE as u64;
                w.unreserve(ino, offset.div_ceil(page)..(end / page).max(offset.div_ceil(page)));
                let time = w.time();
                w.set_meta(ino, |m| m.mtime = time);
                Ok(())
            },
        )
    }

    fn allocate(&self, h: &Handle, offset: u64, len: u64) -> Result<()> {
        let name = self.named(h);
        self.change(
            || format!("allocate {name} {offset}+{len}"),
            |w| {
                if len == 0 {
                    return Err(Errno::INVAL);
                }
                let ino = file_for_write(w, h, Errno::BADF)?;
                let end = data::end_of(offset, len).map_err(|_| Errno::FBIG)?;
                if end > data::MAX_SIZE {
                    return Err(Errno::FBIG);
                }
                let (first, last) = (offset / PAGE as u64, (end - 1) / PAGE as u64);
                let fresh = (first..=last).filter(|n| !data::has_block(w, ino, *n)).count();
                w.room(fresh as u64, 0)?;
                w.strip_capability(ino);
                w.reserve(ino, first, last);
                w.set_meta(ino, |_| {});
                Ok(())
            },
        )
    }

    fn copy_range(
        &self,
        from: &Handle,
        from_at: u64,
        to: &Handle,
        to_at: u64,
        len: u64,
    ) -> Result<()> {
        data::end_of(from_at, len)?;
        if len > 0 && !to.inner::<Opened>().writable {
            return Err(Errno::BADF.into());
        }
        let (mut done, mut buf) = (0, vec![0; 64 * PAGE]);
        while done < len {
            let wanted = (len - done).min(buf.len() as u64) as usize;
            let got = self.read_at(from, &mut buf[..wanted], from_at + done)?;
            if got == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
            self.write_at(to, &buf[..got], to_at + done)?;
            done += got as u64;
        }
        Ok(())
    }

    fn mkdir(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()> {
        self.change(
            || format!("mkdir {}", text(name)),
            |w| {
                let dir = dir_of(w, at)?;
                entry_name(name)?;
                let body = Body::Dir { entries: BTreeMap::new(), parent: dir };
                // mkdir(2) takes the sticky bit and the permissions only.
                w.make(dir, name, Kind::Dir, mode & 0o1777, body).map(|_| ())
            },
        )
    }

    fn symlink(&self, target: &[u8], at: &Handle, name: &[u8]) -> Result<()> {
        self.change(
            || format!("symlink {} -> {}", text(name), text(target)),
            |w| {
                if target.is_empty() {
                    return Err(Errno::NOENT);
                }
                if target.len() >= PAGE {
                    return Err(Errno::NAMETOOLONG);
                }
                let dir = dir_of(w, at)?;
                entry_name(name)?;
                let body = Body::Symlink(target.to_vec());
                w.make(dir, name, Kind::Symlink, 0o777, body).map(|_| ())
            },
        )
    }

    fn mknod(&self, at: &Handle, name: &[u8], kind: Kind, mode: u32, rdev: u64) -> Result<()> {
        self.change(
            || format!("mknod {} {kind:?}", text(name)),
            |w| {
                let device = matches!(kind, Kind::CharDev | Kind::BlockDev);
                let body = match kind {
                    Kind::Dir => return Err(Errno::PERM),
                    Kind::Symlink => return Err(Errno::INVAL),
                    Kind::File => Body::File { pages: BTreeMap::new(), reserved: BTreeSet::new() },
                    _ => Body::Special { rdev: if device { rdev } else { 0 } },
                };
                let dir = dir_of(w, at)?;
                entry_name(name)?;
                w.make(dir, name, kind, mode, body).map(|_| ())
            },
        )
    }

    fn link(&self, from: &Handle, from_name: &[u8], to: &Handle, to_name: &[u8]) -> Result<()> {
        self.change(
            || format!("link {} {}", text(from_name), text(to_name)),
            |w| {
                let (from, to) = (dir_of(w, from)?, dir_of(w, to)?);
                if from_name.is_empty() {
                    return Err(Errno::NOENT);
                }
                w.find(from, from_name)?;
                entry_name(to_name)?;
                names::link(w, (from, from_name), (to, to_name))
            },
        )
    }

    fn rename(
        &self,
        from: &Handle,
        from_name: &[u8],
        to: &Handle,
        to_name: &[u8],
        how: Rename,
    ) -> Result<()> {
        self.change(
            || format!("rename {} {} {how:?}", text(from_name), text(to_name)),
            |w| {
                let (from, to) = (dir_of(w, from)?, dir_of(w, to)?);
                if from_name.is_empty() || to_name.is_empty() {
                    return Err(Errno::NOENT);
                }
                names::rename(w, (from, from_name), (to, to_name), how)
            },
        )
    }

    fn unlink(&self, at: &Handle, name: &[u8]) -> Result<()> {
        self.change(
            || format!("unlink {}", text(name)),
            |w| {
                let dir = dir_of(w, at)?;
                let ino = w.find(dir, name)?;
                if names::is_dir(w, ino) {
                    return Err(Errno::ISDIR);
                }
                w.bind(dir, name, None);
                w.unname(ino, dir);
                w.touch(dir, true);
                Ok(())
            },
        )
    }

    fn rmdir(&self, at: &Handle, name: &[u8]) -> Result<()> {
        self.change(
            || format!("rmdir {}", text(name)),
            |w| {
                let dir = dir_of(w, at)?;
                let ino = w.find(dir, name)?;
                let entries = w.inode(ino)?.entries().ok_or(Errno::NOTDIR)?;
                if !entries.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
                w.bind(dir, name, None);
                w.unname(ino, dir);
                w.touch(dir, true);
                Ok(())
            },
        )
    }

    fn set_project(&self, _: &Handle, _: &[u8], _: Project) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn set_mode(&self, at: &Handle, name: &[u8], mode: u32) -> Result<()> {
        self.change(
            || format!("chmod {} {mode:o}", text(name)),
            |w| {
                let ino = target(w, at, name)?;
                if w.inode(ino)?.kind == Kind::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                w.set_meta(ino, |m| m.mode = mode & 0o7777);
                Ok(())
            },
        )
    }

    fn set_owner(&self, at: &Handle, name: &[u8], uid: Uid, gid: Gid) -> Result<()> {
        self.change(
            || format!("chown {} {uid}:{gid}", text(name)),
            |w| {
                let ino = target(w, at, name)?;
                if w.inode(ino)?.kind != Kind::Dir {
                    w.strip_capability(ino);
                    w.set_meta(ino, |m| {
                        m.mode &= !0o4000;
                        if m.mode & 0o010 != 0 {
                            m.mode &= !0o2000;
                        }
                    });
                }
                w.set_meta(ino, |m| (m.uid, m.gid) = (uid, gid));
                Ok(())
            },
        )
    }

    fn set_times(
        &self,
        at: &Handle,
        name: &[u8],
        atime: Option<Time>,
        mtime: Option<Time>,
    ) -> Result<()> {
        self.change(
            || format!("utimens {}", text(name)),
            |w| {
                if atime.is_none() && mtime.is_none() {
                    return Ok(());
                }
                let bad = |t: Option<Time>| t.is_some_and(|t| t.nanos >= 1_000_000_000);
                if bad(atime) || bad(mtime) {
                    return Err(Errno::INVAL);
                }
                let ino = target(w, at, name)?;
                w.set_meta(ino, |m| {
                    m.atime = atime.unwrap_or(m.atime);
                    m.mtime = mtime.unwrap_or(m.mtime);
                });
                Ok(())
            },
        )
    }

    fn set_xattr(&self, at: &Handle, name: &[u8], key: &[u8], value: &[u8]) -> Result<()> {
        self.change(
            || format!("setxattr {} {}", text(name), text(key)),
            |w| {
                let ino = target(w, at, name)?;
                xattr_allowed(w.inode(ino)?, key, true)?;
                if value.len() > 65536 {
                    return Err(Errno::TOOBIG);
                }
                let others = w.inode(ino)?.xattrs.iter().filter(|(k, _)| k[..] != *key);
                let others: usize = others.map(|(_, value)| value.len()).sum();
                if others + value.len() > w.xattr_room {
                    return Err(Errno::NOSPC);
                }
                w.set_xattrs(ino, |x| {
                    x.insert(key.to_vec(), value.to_vec());
                });
                w.set_meta(ino, |_| {});
                Ok(())
            },
        )
    }

    fn remove_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<()> {
        self.change(
            || format!("removexattr {} {}", text(name), text(key)),
            |w| {
                let ino = target(w, at, name)?;
                let inode = w.inode(ino)?;
                xattr_allowed(inode, key, true)?;
                if !inode.xattrs.contains_key(key) {
                    return Err(Errno::NODATA);
                }
                w.set_xattrs(ino, |x| {
                    x.remove(key);
                });
                w.set_meta(ino, |_| {});
                Ok(())
            },
        )
    }

    fn sync_all(&self, h: &Handle) -> Result<()> {
        let (name, ino) = (self.named(h), h.inner::<Opened>().ino);
        self.sync(|| format!("sync_all {name}"), |w| w.sync(ino, true))
    }

    fn sync_fs(&self) -> Result<()> {
        self.sync(|| "sync_fs".to_owned(), World::sync_everything)
    }

    fn try_lock(&self, h: &Handle) -> Result<bool> {
        let opened = h.inner::<Opened>();
        if !opened.writable {
            return Err(Errno::BADF.into());
        }
        if opened.locked.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let taken = self.world().locked.insert(opened.ino);
        opened.locked.store(taken, Ordering::Relaxed);
        Ok(taken)
    }

    fn touch(&self, at: &Handle, name: &[u8]) -> Result<()> {
        let now = Some(self.now());
        self.set_times(at, name, now, now)
    }

    fn max_len(&self, _: &Handle) -> u64 {
        i64::MAX as u64
    }

    // One process, which never waits for its own lock.
    fn is_locked(&self, _: &Handle) -> Result<bool> {
        Ok(false)
    }

    fn hold(&self, _: &Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn ask_for_lock(&self, _: &Handle, _: bool) -> Result<()> {
        Ok(())
    }

    fn is_lock_asked_for(&self, _: &Handle) -> Result<bool> {
        Ok(false)
    }

    fn has_quota(&self) -> bool {
        false
    }

    fn makers(&self) -> usize {
        1
    }

    fn unmask(&self) {}
}
