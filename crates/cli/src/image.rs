//! What the commands for log-structured volumes share: opening one that nobody has mounted, and
//! what is said where it cannot be used.

use crate::problem::{CONFLICT, Problem};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use systx_base::Time;
use systx_lfs::device::{Device, FileDevice};
use systx_lfs::format::BLOCK;
use systx_lfs::{Clock, Error, Limits, Structure, Volume};
use systx_protocol::runtime::Runtime;
use systx_protocol::{HostPath, MountedVolume, call};

/// The time of the machine.
pub fn clock() -> Clock {
    Arc::new(|| {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Time { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
    })
}

/// Random bytes.
///
/// # Errors
/// The kernel has none.
pub fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(io::Error::from)?;
    Ok(bytes)
}

/// Opens the volume of a file, to be changed.
///
/// # Errors
/// As [`cannot`] says.
pub fn open(path: &Path) -> Result<Volume, Problem> {
    let device = FileDevice::open(path).map_err(|e| cannot_open(path, &e))?;
    let salt = u64::from_le_bytes(random()?);
    Volume::open(Arc::new(device), clock(), salt, Limits::default()).map_err(|e| cannot(path, e))
}

/// As [`open`], also if its log breaks off: what was behind that is given up.
///
/// # Errors
/// As [`cannot`] says.
pub fn open_broken(path: &Path) -> Result<Volume, Problem> {
    let device = FileDevice::open(path).map_err(|e| cannot_open(path, &e))?;
    let salt = u64::from_le_bytes(random()?);
    let opened = Volume::open_broken(Arc::new(device), clock(), salt, Limits::default());
    opened.map_err(|e| cannot(path, e))
}

/// Opens the volume of a file, to be read: nothing is written to it.
///
/// # Errors
/// As [`cannot`] says.
pub fn open_to_read(path: &Path) -> Result<Volume, Problem> {
    Volume::open_to_read(device_to_read(path)?, clock()).map_err(|e| cannot(path, e))
}

/// A file, to be read.
///
/// # Errors
/// As [`cannot_open`] says.
pub fn device_to_read(path: &Path) -> Result<Arc<dyn Device>, Problem> {
    let device = FileDevice::open_to_read(path).map_err(|e| cannot_open(path, &e))?;
    Ok(Arc::new(device))
}

/// The number of a volume.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes of so many blocks.
pub fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK as u64)
}

/// A problem with the file at `path`, which it names.
pub fn about(path: &Path, why: impl std::fmt::Display) -> Problem {
    let paths = vec![HostPath::from(path)];
    Problem { paths, ..Problem::new(format!("{}: {why}", path.display())) }
}

/// What may be an image, as the daemon names it.
///
/// # Errors
/// It cannot be looked at.
pub fn which(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let found = std::fs::metadata(path)?;
    Ok(match found.file_type() {
        kind if kind.is_block_device() => Some((found.rdev(), 0)),
        kind if kind.is_file() => Some((found.dev(), found.ino())),
        _ => None,
    })
}

/// The mount of a volume, as the user's daemon tells of it, if it runs and has it.
fn mount_of(path: &Path) -> Option<MountedVolume> {
    let which = which(path).ok()??;
    let all = Runtime::find().ok()?.connect().ok()??.ask(&call::Volumes).ok()?;
    all.into_iter().find(|volume| volume.which == which)
}

/// Somebody has a volume open.
fn in_use(path: &Path) -> Problem {
    let work = "this works on a volume that nobody else has open";
    let problem = match mount_of(path) {
        Some(MountedVolume { dir, stopped: Some(why), .. }) => {
            about(path, format!("it is mounted on {dir}, and has stopped: {why}")).hint(work)
        }
        Some(MountedVolume { dir, .. }) => about(path, format!("it is mounted on {dir}"))
            .hint(format!("{work}: systx umount {dir} first")),
        None => about(path, "it is mounted, or another process works on it")
            .hint(format!("{work}: unmount it first, or wait")),
    };
    problem.code(CONFLICT)
}

/// A file that cannot be opened.
pub fn cannot_open(path: &Path, e: &io::Error) -> Problem {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => in_use(path),
        io::ErrorKind::NotFound => about(path, e).hint("systx mkfs FILE --size 10G makes an image"),
        io::ErrorKind::PermissionDenied => {
            about(path, e).hint("an image belongs to a user, a device to root: see ls -l")
        }
        io::ErrorKind::ReadOnlyFilesystem => about(path, e).hint(
            "a volume is opened to be written, also to look at a snapshot: copy the image to where \
             it can be",
        ),
        io::ErrorKind::InvalidInput => {
            about(path, e).hint("name the image or the device itself, not a directory")
        }
        _ => about(path, e),
    }
}

/// A volume that does not do what it should.
pub fn cannot(path: &Path, e: Error) -> Problem {
    let hint = match &e {
        Error::NotAVolume(_) => "is it the right file?  systx mkfs FILE makes a volume",
        Error::Corrupt { what: Structure::Stream, .. } => {
            "nothing has changed; the stream has to be sent again, and whole"
        }
        Error::Corrupt { .. } | Error::Unread { .. } => {
            "nothing was changed; systx fsck FILE names all damage; what is lost comes back by \
             systx mkfs and systx receive of the last whole stream and those after it"
        }
        Error::NotEarlier { .. } => {
            "systx snapshots FILE lists them, oldest first: name the earlier one with --since"
        }
        Error::NoSpace => {
            "systx grow FILE SIZE; or systx snapshot FILE NAME --delete, which gives back what \
             only that one keeps"
        }
        Error::Io(_) | Error::Poisoned => {
            "look at the device (dmesg); what was durable comes back when FILE is opened again"
        }
        _ => return about(path, e),
    };
    about(path, e).hint(hint)
}

/// A snapshot that is not as wanted.
pub fn cannot_snapshot(path: &Path, name: &str, e: Error) -> Problem {
    match e {
        Error::NotFound => about(path, format!("there is no snapshot {name:?}"))
            .hint("systx snapshots FILE lists them"),
        Error::Exists => about(path, format!("there is a snapshot {name:?} already"))
            .hint("take another name, or systx snapshot FILE NAME --delete first"),
        Error::NameTooLong => about(path, "the name of a snapshot has at most 255 bytes"),
        Error::Invalid("name of a snapshot") => {
            about(path, "the name of a snapshot is not empty and has no slash")
        }
        e => cannot(path, e),
    }
}

/// A reader or writer that keeps its error apart: it is not the volume's.
pub struct Apart<T> {
    inner: T,
    /// What went wrong with it.
    pub error: Option<io::Error>,
}

impl<T> Apart<T> {
    /// Watches it.
    pub fn new(inner: T) -> Apart<T> {
        Apart { inner, error: None }
    }

    fn noted<R>(&mut self, done: io::Result<R>) -> io::Result<R> {
        done.map_err(|e| {
            let kind = e.kind();
            self.error = Some(e);
            kind.into()
        })
    }
}

impl<T: Read> Read for Apart<T> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let done = self.inner.read(to);
        match done {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            done => self.noted(done),
        }
    }
}

impl<T: Write> Write for Apart<T> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let done = self.inner.write(from);
        match done {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            done => self.noted(done),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        let done = self.inner.flush();
        self.noted(done)
    }
}
