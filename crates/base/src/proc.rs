//! Texts of /proc, read in one place: proc_pid_mountinfo(5), proc_pid_stat(5), proc_pid_status(5).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount: a line of a mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted<'a> {
    /// Its id.
    pub id: u64,
    /// The id of the mount it is mounted on; its own for the topmost.
    pub parent: u64,
    /// `major:minor` of the superblock.
    pub dev: (u32, u32),
    /// Directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub at: PathBuf,
    options: &'a [u8],
    optional: Vec<&'a [u8]>,
    /// File system type.
    pub fs: String,
    /// What is mounted, as whoever mounted it named it.
    pub source: PathBuf,
    /// Options of the file system, at all places where it is mounted.
    pub of_all: &'a [u8],
}

/// The options that take from what a mount allows, and how mount_setattr(2) calls them
/// (linux/mount.h).
pub const LIMITS: [(&str, u32); 5] =
    [("ro", 1), ("nosuid", 2), ("nodev", 4), ("noexec", 8), ("nosymfollow", 0x20_0000)];

impl<'a> Mounted<'a> {
    /// `None`: a line that is not as it should be.
    #[must_use]
    pub fn read(line: &'a [u8]) -> Option<Mounted<'a>> {
        let mut fields = line.split(|b| *b == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let mut dev = fields.next()?.split(|b| *b == b':');
        let dev = (number(dev.next()?)?, number(dev.next()?)?);
        let dev = (dev.0.try_into().ok()?, dev.1.try_into().ok()?);
        let root = unescape(fields.next()?);
        let at = unescape(fields.next()?);
        let options = fields.next()?;
        let mut optional = Vec::new();
        // They are ended by a lone hyphen.
        loop {
            match fields.next()? {
                b"-" => break,
                field => optional.push(field),
            }
        }
        let fs = String::from_utf8_lossy(fields.next()?).into_owned();
        let source = unescape(fields.next().unwrap_or_default());
        let of_all = fields.next().unwrap_or_default();
        Some(Mounted { id, parent, dev, root, at, options, optional, fs, source, of_all })
    }

    /// Nothing can be changed through it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.has("ro")
    }

    /// What it does not allow: bits of [`LIMITS`].
    #[must_use]
    pub fn limits(&self) -> u32 {
        LIMITS.iter().filter(|(name, _)| self.has(name)).fold(0, |all, (_, limit)| all | limit)
    }

    fn has(&self, name: &str) -> bool {
        self.options.split(|b| *b == b',').any(|option| option == name.as_bytes())
    }

    /// The number behind an optional field of that name, such as `shared`.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<u64> {
        let of = |field: &&[u8]| number(field.strip_prefix(name.as_bytes())?.strip_prefix(b":")?);
        self.optional.iter().find_map(of)
    }
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Space, tab, newline and backslash stand as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|d| d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal.filter(|_| *first == b'\\') {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |v, b| v * 8 + u32::from(b - b'0'));
                out.push((value & 0xff) as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// What `/proc/PID/stat` says of a process, or of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// Its number.
    pub pid: u32,
    /// The command, which may hold anything.
    pub name: &'a [u8],
    rest: &'a str,
}

impl<'a> Stat<'a> {
    /// `None`: it is not as it should be.
    #[must_use]
    pub fn read(text: &'a [u8]) -> Option<Stat<'a>> {
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let pid = std::str::from_utf8(text.get(..open)?).ok()?.trim().parse().ok()?;
        let name = text.get(open + 1..close)?;
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        Some(Stat { pid, name, rest })
    }

    /// The field that the manual gives this number; from the third on.
    #[must_use]
    pub fn field(&self, number: usize) -> Option<&'a str> {
        self.rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
    }

    /// `R`, `S`, `Z`, …
    #[must_use]
    pub fn state(&self) -> Option<char> {
        self.field(3)?.chars().next()
    }

    /// The number of its parent.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        self.field(4)?.parse().ok()
    }
}

/// A field in the text of `/proc/PID/status`.
#[must_use]
pub fn status<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(field)?.strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_mount_is_read_in_all_its_parts() {
        let line = br"36 35 98:0 /m /mnt\0402\134x ro,noatime master:1 shared:2 - ext3 /dev/r rw,u";
        let mount = Mounted::read(line).unwrap();
        assert_eq!((mount.id, mount.parent, mount.dev), (36, 35, (98, 0)));
        assert_eq!((&*mount.root, &*mount.at), (Path::new("/m"), Path::new(r"/mnt 2\x")));
        assert_eq!((mount.fs.as_str(), &*mount.source), ("ext3", Path::new("/dev/r")));
        assert_eq!((mount.is_read_only(), mount.of_all), (true, &b"rw,u"[..]));
        assert_eq!((mount.group("shared"), mount.group("master")), (Some(2), Some(1)));
        assert_eq!(mount.group("propagate_from"), None);
        for bad in ["36 35 98:0 / /x rw shared:1 ext3", "nonsense", "", "1 2 8:x / /a rw - a b rw"]
        {
            assert_eq!(Mounted::read(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(unescape(b"a\\0"), Path::new("a\\0"));
        assert_eq!(unescape(b"\\134"), Path::new("\\"));
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let stat = Stat::read(b"12 (a) R (b) Z 11 3 rest\n").unwrap();
        assert_eq!((stat.pid, stat.name), (12, &b"a) R (b"[..]));
        assert_eq!((stat.state(), stat.parent()), (Some('Z'), Some(11)));
        assert_eq!((stat.field(6), stat.field(2), stat.field(60)), (Some("rest"), None, None));
        assert_eq!(Stat::read(b"12 (a"), None);
        assert_eq!(Stat::read(b") 12 ("), None);
        let text = "Name:\tx\nTgid:\t7\nGroups:\t1 2 \n";
        assert_eq!((status(text, "Tgid"), status(text, "Groups")), (Some("7"), Some("1 2")));
        assert_eq!(status(text, "Tg"), None);
    }
}
