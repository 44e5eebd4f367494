//! `systx recover`: finishes or discards what a crash left.

use crate::args::Recover;
use crate::output::Out;
use crate::problem::{ERROR, OUTSIDE, Problem};
use crate::{context, progress};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_daemon::mounts::{self, Mount};
use systx_daemon::protocol::{HostPath, Place, Recovered};
use systx_daemon::volume::STORE_DIR;

/// Recovers the store of one volume, or of all.
///
/// # Errors
/// The store cannot be used.
pub fn recover(args: &Recover, out: Out) -> Result<i32, Problem> {
    if args.all {
        return all(out);
    }
    let place = context::place(&args.place)?;
    let found = ask(place, out)?;
    if out.json {
        out.json("recovered", &found);
    }
    Ok(told(&found, out))
}

/// Has one store recovered.
fn ask(place: Place, out: Out) -> Result<Recovered, Problem> {
    let mut client = context::connect()?;
    progress::show(&mut client, out);
    Ok(client.recover(place)?)
}

/// What happened to one store, in words; the exit code.
fn told(found: &Recovered, out: Out) -> i32 {
    if !out.json {
        match (found.finished, found.discarded) {
            (0, 0) => out.say("nothing to recover"),
            (f, d) => out.say(&format!(
                "{f} committed transactions installed, remains of {d} unfinished ones discarded"
            )),
        }
        for note in &found.notes {
            out.say(note);
        }
        for change in &found.outside {
            let saved = change.saved.as_ref().map(|s| format!("; what was there is now {s}"));
            out.warn(&format!("{}: {}{}", change.path, change.what, saved.unwrap_or_default()));
        }
    }
    if found.outside.is_empty() { 0 } else { OUTSIDE }
}

/// One that fails does not keep the others from being recovered: this runs while the machine starts.
fn all(out: Out) -> Result<i32, Problem> {
    let (mut code, mut recovered) = (0, Vec::new());
    let volumes = volumes()?;
    if volumes.is_empty() {
        out.say("no store here: nothing to recover");
    }
    for root in volumes {
        let place = Place {
            cwd: HostPath::from(root.as_path()),
            root: Some(HostPath::from(root.as_path())),
            store: None,
        };
        match ask(place, out) {
            Ok(found) => {
                out.say(&format!("{}:", root.display()));
                code = code.max(told(&found, out));
                recovered.push(found);
            }
            Err(problem) => {
                out.warn(&format!("{}: {}", root.display(), problem.message));
                code = ERROR;
            }
        }
    }
    if out.json {
        out.json("recovered", &recovered);
    }
    Ok(code)
}

/// Where the file systems are mounted that have a store of this user, each once.
fn volumes() -> Result<Vec<PathBuf>, Problem> {
    let own = rustix::process::geteuid().as_raw();
    let mut seen = HashSet::new();
    let table = mounts::here()?.into_iter();
    Ok(table.filter(|m| has_store(m, own) && seen.insert(m.dev)).map(|m| m.at).collect())
}

/// Whether the root of a file system is mounted here, with a store of this user's in it.
fn has_store(mount: &Mount, own: u32) -> bool {
    // What a mount of FUSE shows may be a view, and asking it may take long.
    mount.root == Path::new("/")
        && !mount.fs.starts_with("fuse")
        && std::fs::symlink_metadata(mount.at.join(STORE_DIR))
            .is_ok_and(|m| m.is_dir() && m.uid() == own && m.dev() == mount.dev)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories_of_the_user_at_roots_of_file_systems() {
        let dir = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let here = Mount {
            id: 1,
            dev: dir.path().metadata().unwrap().dev(),
            root: "/".into(),
            at: dir.path().into(),
            read_only: false,
            shared: None,
            master: None,
            fs: "ext4".into(),
            quotas: false,
        };
        assert!(!has_store(&here, own), "there is none");
        std::os::unix::fs::symlink("elsewhere", dir.path().join(STORE_DIR)).unwrap();
        assert!(!has_store(&here, own), "a link");
        std::fs::remove_file(dir.path().join(STORE_DIR)).unwrap();
        std::fs::create_dir(dir.path().join(STORE_DIR)).unwrap();
        assert!(has_store(&here, own));
        assert!(!has_store(&here, own + 1), "somebody else's");
        assert!(!has_store(&Mount { dev: 1, ..here.clone() }, own), "of another file system");
        assert!(!has_store(&Mount { root: "/sub".into(), ..here.clone() }, own));
        assert!(!has_store(&Mount { fs: "fuse.systx".into(), ..here }, own));
    }
}
