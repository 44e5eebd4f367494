//! A recording disk for real file systems: a FUSE file system with one file, `disk`, that a loop
//! device is put over. Every write and every flush that the kernel issues is kept in order, so that
//! the state of the disk after a power cut at any instant can be rebuilt.
//!
//! The content is kept in memory by blocks of 4096 bytes; the server is one thread that touches no
//! file system but its own, so that it cannot wait for itself.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Result, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Unit in which the disk takes writes.
pub const BLOCK: usize = 4096;

/// The content of a disk: blocks that are not there are zeros.
pub type Blocks = BTreeMap<u64, Arc<[u8; BLOCK]>>;

/// Something that happened to the disk.
#[derive(Clone)]
pub enum Event {
    /// Whole blocks were written (or, `None`, discarded), not yet durable.
    Write(Vec<(u64, Option<Arc<[u8; BLOCK]>>)>),
    /// Everything before is durable.
    Flush,
    /// The run reached this point (see [`Disk::mark`]).
    Mark(u64),
}

#[derive(Default)]
struct Content {
    blocks: Blocks,
    /// `None`: it does not record.
    log: Option<Vec<Event>>,
}

/// A mounted recording disk.
pub struct Disk {
    dir: PathBuf,
    content: Arc<Mutex<Content>>,
    server: Option<JoinHandle<()>>,
}

fn lock(content: &Mutex<Content>) -> std::sync::MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// Mounts a disk of `size` bytes at the directory `dir`: one that records, or (`flush`) records
    /// nothing and takes this long for each flush.
    pub fn mount(dir: &Path, size: u64, flush: Option<Duration>) -> Result<Disk> {
        let log = if flush.is_none() { Some(Vec::new()) } else { None };
        let content = Content { log, ..Content::default() };
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("systx-disk", dir, "fuse", flags, options.as_c_str())?;
        let content = Arc::new(Mutex::new(content));
        let shared = content.clone();
        let server =
            std::thread::spawn(move || serve(device, size, &shared, flush.unwrap_or_default()));
        Ok(Disk { dir: dir.to_owned(), content, server: Some(server) })
    }

    /// The file to put a loop device over.
    pub fn file(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Forgets the past; what is there is the disk to begin with.
    pub fn restart_log(&self) -> Blocks {
        let mut content = lock(&self.content);
        content.log.iter_mut().for_each(Vec::clear);
        content.blocks.clone()
    }

    /// Notes that the run reached a point.
    pub fn mark(&self, mark: u64) {
        lock(&self.content).note(Event::Mark(mark));
    }

    /// What happened since [`Disk::restart_log`].
    pub fn log(&self) -> Vec<Event> {
        lock(&self.content).log.clone().unwrap_or_default()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(e) = unmount(&self.dir, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {e}", self.dir.display());
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Applies a write to a disk image.
pub fn put(blocks: &mut Blocks, list: &[(u64, Option<Arc<[u8; BLOCK]>>)]) {
    for (n, data) in list {
        match data {
            Some(data) => blocks.insert(*n, data.clone()),
            None => blocks.remove(n),
        };
    }
}

impl Content {
    fn note(&mut self, event: Event) {
        if let Some(log) = &mut self.log {
            log.push(event);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut list = Vec::new();
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (n, from) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let len = (BLOCK - from).min(data.len() - done);
            let mut block = self.blocks.get(&n).map_or([0; BLOCK], |b| **b);
            block[from..from + len].copy_from_slice(&data[done..done + len]);
            list.push((n, Some(Arc::new(block))));
            done += len;
        }
        put(&mut self.blocks, &list);
        self.note(Event::Write(list));
    }

    fn discard(&mut self, offset: u64, len: u64) {
        let block = BLOCK as u64;
        let whole = offset.div_ceil(block)..(offset + len) / block;
        let list: Vec<_> = self
            .blocks
            .range(whole.start..whole.end.max(whole.start))
            .map(|(n, _)| (*n, None))
            .collect();
        put(&mut self.blocks, &list);
        self.note(Event::Write(list));
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (n, from) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let part = (BLOCK - from).min(len - done);
            if let Some(block) = self.blocks.get(&n) {
                out[done..done + part].copy_from_slice(&block[from..from + part]);
            }
            done += part;
        }
        out
    }
}

// What the kernel sends and gets: include/uapi/linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const FALLOCATE: u32 = 43;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
const IN_HEADER: usize = 40;
const MAX_WRITE: usize = 128 * 1024;

struct Request<'a> {
    opcode: u32,
    unique: u64,
    node: u64,
    body: &'a [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn serve(mut device: File, size: u64, content: &Mutex<Content>, flush: Duration) {
    let mut buf = vec![0; MAX_WRITE + 4096];
    loop {
        let n = match device.read(&mut buf) {
            Ok(n) if n >= IN_HEADER => n,
            Ok(_) => continue,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            // ENODEV: unmounted.
            Err(_) => return,
        };
        let request = Request {
            opcode: u32_at(&buf, 4),
            unique: u64_at(&buf, 8),
            node: u64_at(&buf, 16),
            body: &buf[IN_HEADER..n],
        };
        if matches!(request.opcode, FORGET | BATCH_FORGET) {
            continue;
        }
        if request.opcode == FSYNC {
            std::thread::sleep(flush);
        }
        let (error, body) = match answer(&request, size, content) {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let mut reply = Vec::with_capacity(16 + body.len());
        reply.extend_from_slice(&(16 + body.len() as u32).to_le_bytes());
        reply.extend_from_slice(&error.to_le_bytes());
        reply.extend_from_slice(&request.unique.to_le_bytes());
        reply.extend_from_slice(&body);
        // A request that was interrupted meanwhile has no one to answer.
        let _ = device.write_all(&reply);
        if request.opcode == DESTROY {
            return;
        }
    }
}

fn answer(
    request: &Request<'_>,
    size: u64,
    content: &Mutex<Content>,
) -> std::result::Result<Vec<u8>, i32> {
    let body = request.body;
    let mut out = Out(Vec::new());
    match request.opcode {
        INIT => {
            out.u32s(&[7, 31, MAX_WRITE as u32, 0]);
            out.u32s(&[12 | 16 << 16, MAX_WRITE as u32, 1, 0]);
            out.0.resize(64, 0);
        }
        LOOKUP if body.strip_suffix(&[0]) == Some(b"disk") => {
            out.u64s(&[2, 1, 3600, 3600]);
            out.u32s(&[0, 0]);
            out.attr(2, size);
        }
        LOOKUP => return Err(ENOENT),
        GETATTR | SETATTR => {
            out.u64s(&[3600, 0]);
            out.attr(request.node, size);
        }
        OPEN => {
            out.u64s(&[1]);
            // FOPEN_DIRECT_IO: no page cache between the loop device and the log.
            out.u32s(&[1, 0]);
        }
        OPENDIR => {
            out.u64s(&[1, 0]);
        }
        READ => {
            let (offset, len) = (u64_at(body, 8), u32_at(body, 16) as usize);
            let len = len.min(size.saturating_sub(offset) as usize);
            out.0 = lock(content).read(offset, len);
        }
        WRITE => {
            let data = body.get(40..).unwrap_or_default();
            lock(content).write(u64_at(body, 8), data);
            out.u32s(&[data.len() as u32, 0]);
        }
        FSYNC => lock(content).note(Event::Flush),
        FALLOCATE => lock(content).discard(u64_at(body, 8), u64_at(body, 16)),
        STATFS => out.0.resize(80, 0),
        FLUSH | RELEASE | RELEASEDIR | DESTROY => {}
        _ => return Err(ENOSYS),
    }
    Ok(out.0)
}

struct Out(Vec<u8>);

impl Out {
    fn u32s(&mut self, list: &[u32]) {
        for v in list {
            self.0.extend_from_slice(&v.to_le_bytes());
        }
    }
    fn u64s(&mut self, list: &[u64]) {
        for v in list {
            self.0.extend_from_slice(&v.to_le_bytes());
        }
    }
    /// `struct fuse_attr`: the root directory, or the file.
    fn attr(&mut self, node: u64, size: u64) {
        let (mode, size) = if node == 1 { (0o040755, 0) } else { (0o100600, size) };
        self.u64s(&[node, size, size / 512, 0, 0, 0]);
        self.u32s(&[0, 0, 0, mode, 1, 0, 0, 0, BLOCK as u32, 0]);
    }
}
