//! Which users and groups there are in the user namespace of a view.
//!
//! A process without further rights may map its own ids only, by itself. One that may become
//! anybody in its own namespace (CAP_SETUID and CAP_SETGID: root in a container, which lacks
//! CAP_SYS_ADMIN only) has all ids mapped that it knows, each to itself, so that chown(2) and
//! setuid(2) mean in the view what they mean outside. The kernel takes that map only from somebody
//! outside of the new namespace: the parent writes it while the child waits.

use crate::error::{Failed, step};
use rustix::io::Errno;
use rustix::process::Pid;
use std::path::{Path, PathBuf};

/// The kernel refuses what is not shorter than a page.
const LONGEST: usize = 4095;

/// The two maps of a user namespace, by the names of their files.
const MAPS: [&str; 2] = ["uid_map", "gid_map"];

/// True if this process may map the ids of others, too.
pub(crate) fn all_can_be_mapped() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    capabilities(None).is_ok_and(|c| c.effective.contains(needed))
}

/// By a process in a new user namespace, for itself: its own two ids, which are those of before.
pub(crate) fn map_own(uid: u32, gid: u32) -> Result<(), Failed> {
    // Without a right outside, groups can be mapped by who cannot drop any.
    write(Path::new("/proc/self/setgroups"), "deny")?;
    write(Path::new("/proc/self/uid_map"), &format!("{uid} {uid} 1"))?;
    write(Path::new("/proc/self/gid_map"), &format!("{gid} {gid} 1"))
}

/// By the parent, for a child in a new user namespace: all ids that the parent knows.
pub(crate) fn map_all(child: Pid) -> Result<(), Failed> {
    let child = PathBuf::from(format!("/proc/{}", child.as_raw_nonzero()));
    for map in MAPS {
        let own = Path::new("/proc/self").join(map);
        let known = std::fs::read_to_string(&own).map_err(failed("read", &own))?;
        write(&child.join(map), &onto_itself(&known))?;
    }
    Ok(())
}

/// The map that has every id which a map (user_namespaces(7)) has, and gives each its own number.
fn onto_itself(known: &str) -> String {
    let extent = |line: &str| -> Option<(u32, u32)> {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u32>().ok());
        let (first, _, count) = (fields.next()??, fields.next()??, fields.next()??);
        Some((first, count))
    };
    let mut extents: Vec<(u32, u32)> = known.lines().filter_map(extent).collect();
    extents.sort_unstable();
    // What was put together of many pieces outside may be in one here, which leaves more room.
    extents.dedup_by(|next, last| {
        let adjacent = last.0.checked_add(last.1) == Some(next.0);
        match last.1.checked_add(next.1) {
            Some(both) if adjacent => last.1 = both,
            _ => return false,
        }
        true
    });
    let mut text = String::new();
    for (first, count) in extents {
        let line = format!("{first} {first} {count}\n");
        if text.len() + line.len() > LONGEST {
            break;
        }
        text.push_str(&line);
    }
    text
}

/// In one piece, as the kernel wants it.
fn write(path: &Path, text: &str) -> Result<(), Failed> {
    std::fs::write(path, text).map_err(failed(step::MAP_IDS, path))
}

fn failed(step: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Failed {
    let (step, path) = (step.to_owned(), Some(path.to_owned()));
    move |e| Failed { step, path, errno: Errno::from_io_error(&e).unwrap_or(Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_id_keeps_its_number() {
        assert_eq!(onto_itself("         0          0 4294967295\n"), "0 0 4294967295\n");
        // A container's, made of a user's own id and of subordinate ones.
        assert_eq!(onto_itself("0 1000 1\n1 100000 65536\n"), "0 0 65537\n");
        assert_eq!(onto_itself("5 7 1\n0 1000 1\n65534 1 1\n"), "0 0 1\n5 5 1\n65534 65534 1\n");
        assert_eq!(onto_itself("x\n1 2\n-1 0 4\n"), "");
        assert_eq!(onto_itself("4294967294 0 1\n4294967295 9 1\n").lines().count(), 1);
    }

    #[test]
    fn a_map_is_never_longer_than_the_kernel_takes() {
        let many: String = (0..340).map(|n| format!("{} 0 1\n", n * 1_000_000)).collect();
        let text = onto_itself(&many);
        assert!(text.len() <= LONGEST && text.ends_with('\n'), "{}", text.len());
        assert!(text.starts_with("0 0 1\n1000000 1000000 1\n"));
    }
}
