//! `systx recover`: finishes or discards what a crash left.

use crate::args::Recover;
use crate::output::Out;
use crate::problem::{ERROR, OUTSIDE, Problem};
use crate::{context, progress};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_protocol::stores::{Noted, STORE_DIR, own_store};
use systx_protocol::{HostPath, Place, Recovered, call};
use systx_session::mountinfo::{self, Mount};

/// Recovers the store of one volume, or of all.
///
/// # Errors
/// The store cannot be used.
pub fn recover(args: &Recover, out: Out) -> Result<i32, Problem> {
    if args.all {
        return all(out);
    }
    let place = context::place(&args.place)?;
    // Whoever names a place trusts who made the store there.
    let found = ask(place, true, out)?;
    if out.json {
        out.json("recovered", &found);
    }
    Ok(told(&found, out))
}

/// Has one store recovered.
fn ask(place: Place, trusted: bool, out: Out) -> Result<Recovered, Problem> {
    let mut client = context::connect()?;
    progress::show(&mut client, out);
    Ok(client.ask(&call::Recover { place, trusted })?)
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

/// One that fails does not keep the others from being recovered: this runs while the machine
/// starts.
fn all(out: Out) -> Result<i32, Problem> {
    let (mut code, mut recovered) = (0, Vec::new());
    let stores = stores(out)?;
    if stores.is_empty() {
        out.say("you have no store here: nothing to recover");
    }
    for store in stores {
        let top = store.parent().unwrap_or(&store);
        let place = Place {
            cwd: HostPath::from(top),
            root: Some(HostPath::from(top)),
            store: Some(HostPath::from(store.as_path())),
        };
        match ask(place, false, out) {
            Ok(found) => {
                out.say(&format!("{}:", top.display()));
                code = code.max(told(&found, out));
                recovered.push(found);
            }
            Err(problem) => {
                out.warn(&format!("{}: {}", top.display(), problem.message));
                code = ERROR;
            }
        }
    }
    if out.json {
        out.json("recovered", &recovered);
    }
    Ok(code)
}

/// The stores of this user, each once: at the roots of file systems, in the state directory, and
/// those on the list of stores that lie elsewhere.
fn stores(out: Out) -> Result<Vec<PathBuf>, Problem> {
    let own = rustix::process::geteuid().as_raw();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let table = mountinfo::here()?;
    let at_roots = table.iter().filter(|m| has_store(m, own)).map(|m| m.at.join(STORE_DIR));
    let in_home = home.as_deref().filter(|_| own != 0).map(own_store);
    let noted = Noted::of(own, home.as_deref()).map_or(Ok(Vec::new()), |noted| noted.stores());
    let noted = noted.unwrap_or_else(|e| {
        out.warn(&format!("the list of stores that lie elsewhere cannot be read: {e}"));
        Vec::new()
    });
    let elsewhere = in_home.into_iter().chain(noted).filter(|store| is_ours(store, own));
    let mut seen = HashSet::new();
    let once = |store: &PathBuf| match std::fs::metadata(store) {
        Ok(m) => seen.insert((m.dev(), m.ino())),
        Err(_) => false,
    };
    Ok(at_roots.chain(elsewhere).filter(once).collect())
}

/// Whether a directory with a store's lock is there, and is this user's.
fn is_ours(store: &Path, own: u32) -> bool {
    std::fs::symlink_metadata(store).is_ok_and(|m| m.is_dir() && m.uid() == own)
        && store.join("lock").symlink_metadata().is_ok_and(|m| m.is_file())
}

/// Whether the root of a file system is mounted here, with a store of this user's in it.
fn has_store(mount: &Mount, own: u32) -> bool {
    // What a mount of FUSE shows may be a view, and asking it may take long.
    mount.root == Path::new("/")
        && !mount.fs.starts_with("fuse")
        && std::fs::symlink_metadata(mount.at.join(STORE_DIR)).is_ok_and(|m| {
            m.is_dir() && m.uid() == own && m.dev() == rustix::fs::makedev(mount.dev.0, mount.dev.1)
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories_of_the_user_at_roots_of_file_systems() {
        let dir = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let dev = dir.path().metadata().unwrap().dev();
        let here = Mount {
            id: 1,
            parent: 1,
            dev: (rustix::fs::major(dev), rustix::fs::minor(dev)),
            root: "/".into(),
            at: dir.path().into(),
            limits: rustix::mount::MountAttrFlags::empty(),
            fs: "ext4".into(),
            source: "/dev/sda1".into(),
        };
        assert!(!has_store(&here, own), "there is none");
        std::os::unix::fs::symlink("elsewhere", dir.path().join(STORE_DIR)).unwrap();
        assert!(!has_store(&here, own), "a link");
        std::fs::remove_file(dir.path().join(STORE_DIR)).unwrap();
        std::fs::create_dir(dir.path().join(STORE_DIR)).unwrap();
        assert!(has_store(&here, own));
        assert!(!has_store(&here, own + 1), "somebody else's");
        assert!(!has_store(&Mount { dev: (0, 1), ..here.clone() }, own), "of another file system");
        assert!(!has_store(&Mount { root: "/sub".into(), ..here.clone() }, own));
        assert!(!has_store(&Mount { fs: "fuse.systx".into(), ..here }, own));
    }
}
