//! `systx protect`: what is protected, and marks of what is not (`crate::unprotected`).

use super::Daemon;
use crate::elsewhere::is_local;
use crate::fuse_mount::FS_TYPE;
use crate::mounts;
use crate::protocol::{Failure, FailureKind, HostPath, Peer, Place, Protect, Protection};
use crate::unprotected::{self, Found, overlap, protect_first};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

impl Daemon {
    pub(super) fn protection(
        &self,
        peer: Peer,
        about: &Protect,
    ) -> Result<Vec<Protection>, Failure> {
        let marks = &self.table.volumes.unprotected;
        let Some(path) = &about.path else {
            let own = marks.own()?.into_iter();
            let of = |mark: unprotected::Mark| {
                let (there, path) = (mark.found().is_some(), mark.path);
                let (mark, notes) = (Some(path.clone()), Vec::new());
                Protection { path, protected: !there, mark, notes }
            };
            return Ok(own.map(of).collect());
        };
        if self.guards.place().is_some_and(|(_, namespace)| namespace != about.mnt_ns) {
            let text = format!(
                "the daemon is in another mount namespace than you: {path} may be something else \
                 there"
            );
            return Err(Failure::new(FailureKind::Invalid, text).path(path.clone()));
        }
        let path = straight(path.as_path())?;
        match about.change {
            None => drop(unprotected::look(&path).map_err(|e| not_there(&path, e))?),
            Some(true) => self.protect_again(&path)?,
            Some(false) => self.unprotect(peer, &path)?,
        }
        let mark = marks.mark_of(&path).map(HostPath::from);
        let mut notes = Vec::new();
        if about.change.is_some() && !self.table.is_empty() {
            notes.push("transactions that are open go on as they began".to_owned());
        }
        let (path, protected) = (HostPath::from(path), mark.is_none());
        Ok(vec![Protection { path, protected, mark, notes }])
    }

    fn protect_again(&self, path: &Path) -> Result<(), Failure> {
        let marks = &self.table.volumes.unprotected;
        // Also one of what is not there any more.
        marks.remove(path)?;
        match marks.mark_of(path) {
            None => Ok(()),
            Some(mark) if mark == path => {
                let text = format!("root has decided that {} is not protected", path.display());
                Err(Failure::new(FailureKind::Invalid, text).path(path))
            }
            Some(mark) => {
                let above = mark.display();
                let text = format!(
                    "{} cannot be protected by itself: {above} is not protected, with all that is \
                     in it",
                    path.display()
                );
                Err(protect_first(Failure::new(FailureKind::Invalid, text), &mark))
            }
        }
    }

    fn unprotect(&self, peer: Peer, path: &Path) -> Result<(), Failure> {
        let marks = &self.table.volumes.unprotected;
        let found = unprotected::look(path).map_err(|e| not_there(path, e))?;
        if marks.mark_of(path).is_some() {
            return Ok(());
        }
        self.check_can_be_marked(peer, path, &found)?;
        marks.add(path, &found)
    }

    fn check_can_be_marked(&self, peer: Peer, path: &Path, found: &Found) -> Result<(), Failure> {
        let shown = path.display();
        let no = |text: String| Failure::new(FailureKind::Invalid, text).path(path);
        if path == Path::new("/") {
            return Err(no("/ is always protected: every transaction works below it".into()));
        }
        if self.table.volumes.path_views.has(path) {
            let text = format!("{shown} is in the view of an open transaction");
            return Err(no(text).hint("name the path of the directory that it shows"));
        }
        if !found.can_be_marked() {
            return Err(no(format!("{shown} is neither a directory nor a regular file")));
        }
        if found.is_mount {
            return Err(no(format!("{shown} is a mount point"))
                .hint("mark what is in it; or run with --passthrough, which leaves it out"));
        }
        if found.uid != peer.uid && peer.uid != 0 {
            let text = format!("{shown} belongs to uid {}: only its owner can mark it", found.uid);
            return Err(no(text).hint("or root, for everybody"));
        }
        let table = mounts::here().map_err(|e| {
            Failure::new(FailureKind::Io, format!("cannot read the mount table: {e}"))
        })?;
        let holder = table.iter().find(|m| m.id == found.mount);
        let Some(holder) = holder else {
            return Err(no(format!("the mount of {shown} is not in the mount table")));
        };
        if holder.read_only {
            let at = holder.at.display();
            return Err(no(format!("{at} is mounted read-only: nothing in it can be changed")));
        }
        let is_own = || self.guards.volumes().iter().any(|volume| volume.dev == holder.dev);
        if holder.fs == FS_TYPE && peer.uid != 0 && !is_own() {
            let at = holder.at.display();
            let text = format!("{shown} is in {at}, whose transactions are root's daemon's");
            return Err(no(text).hint("root can mark it"));
        }
        if holder.fs != FS_TYPE && holder.fs != "overlay" && !is_local(holder) {
            let text =
                format!("{shown} is on a {} file system: no transaction covers it", holder.fs);
            return Err(no(text));
        }
        self.check_guards(path)?;
        match self.own_files(path).into_iter().find(|own| overlap(path, own)) {
            Some(own) => {
                Err(no(format!("{shown} has to do with systx's own files in {}", own.display())))
            }
            None => Ok(()),
        }
    }

    fn check_guards(&self, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        let no = |text: String| Failure::new(FailureKind::Invalid, text).path(path);
        for (_, guarded) in self.table.volumes.all_guarded() {
            let dir = guarded.dir.display();
            if guarded.dir.starts_with(path) {
                return Err(no(format!("{shown} holds {dir}, which is guarded"))
                    .hint(format!("mark what is in {dir}, or: systx umount {dir}")));
            }
            // It would be of no use to anybody.
            if path.starts_with(&guarded.dir) && guarded.hall.conflicts.certifier.is_some() {
                let text = format!("{shown} is in {dir}, which only its certifier changes");
                return Err(no(text).hint(format!("systx umount {dir}")));
            }
        }
        Ok(())
    }

    /// Where the daemon keeps what no transaction may touch.
    fn own_files(&self, path: &Path) -> Vec<PathBuf> {
        let volumes = &self.table.volumes;
        let cwd = HostPath::from(path.parent().unwrap_or(path));
        let location = volumes.locate(&Place { cwd, root: None, store: None });
        let mut all: Vec<PathBuf> = location.into_iter().map(|at| at.store).collect();
        all.extend(volumes.all().iter().map(|volume| volume.location.store.clone()));
        all.extend(self.guards.place().map(|(runtime, _)| runtime));
        all.push(volumes.ledger().dir().to_owned());
        all
    }
}

/// A path as the kernel knows it, but for a symbolic link at its end, which means itself.
fn straight(path: &Path) -> Result<PathBuf, Failure> {
    let (parent, name) = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => (parent, Some(name)),
        // It ends in `..`, or is `/`.
        _ => (path, None),
    };
    let parent = std::fs::canonicalize(parent).map_err(|e| {
        let text = format!("cannot find {}: {e}", path.display());
        Failure::new(FailureKind::NotFound, text).path(path)
    })?;
    Ok(name.map_or(parent.clone(), |name| parent.join(name)))
}

fn not_there(path: &Path, e: Errno) -> Failure {
    let shown = path.display();
    let failure = match e {
        Errno::NOENT => {
            let text = format!("there is nothing at {shown}");
            Failure::new(FailureKind::NotFound, text).hint("make it first; what is made is marked")
        }
        Errno::LOOP => {
            let to = std::fs::canonicalize(path).map(|to| format!(": {}", to.display()));
            let text = format!("{shown} is a symbolic link");
            Failure::new(FailureKind::Invalid, text)
                .hint(format!("name what it leads to{}", to.unwrap_or_default()))
        }
        e => Failure::new(FailureKind::Io, format!("cannot look at {shown}: {e}")),
    };
    failure.path(path)
}
