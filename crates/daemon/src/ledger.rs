//! What this daemon's user has noted of the own stores: which they are, where they are, and what
//! waits to be done outside after their commits.  It lies beside no store, so nothing that a medium
//! says can get into it.
//!
//! One directory, 0700, of the user: `/var/lib/systx` for root, `.local/state/systx-ledger` in the
//! home of others.  Who has neither has it in the runtime directory: then it is forgotten when the
//! machine starts again.
//! - `stores/STORE`: a store that this machine has written to, or that was taken over by `systx
//!   recover`; the text is where its directory was last.
//! - `unprotected`: see [`crate::unprotected`].
//! - `services/STORE-TXN.new`, `.due`: the bytes of a list of what is to be done after a commit,
//!   before it and after it.
//!
//! Numbers are 16 hexadecimal digits.  A file is written under another name and renamed, all of it
//! durable on return.

use crate::images::Images;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use systx_base::TxnId;
use systx_protocol::places;
use systx_protocol::replaced::replace;

/// Root's.
pub(crate) const OF_ROOT: &str = "/var/lib/systx";
const IN_HOME: &str = ".local/state/systx-ledger";
const IN_RUNTIME: &str = "ledger";
const STORES: &str = "stores";
const SERVICES: &str = "services";
/// Longer than any file that makes sense.
const LONGEST: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    /// Stores that are in no directory.
    pub(crate) images: Images,
}

impl Ledger {
    /// The ledger of this user; `runtime`: the runtime directory.
    ///
    /// # Errors
    /// There is no place that nobody else can write to.
    pub fn find(runtime: Option<&Path>) -> Result<Ledger> {
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(dir) = variable(places::STATE_VARIABLE) {
            return Ledger::at(&dir);
        }
        let mut places = Vec::new();
        // A daemon that is apart from the user's others.
        if variable(places::DIR_VARIABLE).is_some() {
            places.extend(runtime.map(|dir| dir.join(IN_RUNTIME)));
        }
        if rustix::process::geteuid().is_root() {
            places.push(PathBuf::from(OF_ROOT));
        }
        places.extend(variable("HOME").filter(|h| h.is_absolute()).map(|home| home.join(IN_HOME)));
        places.extend(runtime.map(|dir| dir.join(IN_RUNTIME)));
        let mut last = Error::new(ErrorKind::NotFound, "no home and no runtime directory");
        for place in places {
            match Ledger::at(&place) {
                Ok(ledger) => return Ok(ledger),
                Err(e) => last = Error::new(e.kind(), format!("{}: {e}", place.display())),
            }
        }
        Err(last)
    }

    /// The ledger in a directory, which is made if need be.
    ///
    /// # Errors
    /// It cannot be written, or not by this user alone.
    pub fn at(dir: &Path) -> Result<Ledger> {
        for dir in [dir.to_owned(), dir.join(STORES), dir.join(SERVICES)] {
            private(&dir)?;
        }
        let writable = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK);
        writable.map_err(Error::from)?;
        Ok(Ledger { dir: dir.to_owned(), images: Images::new() })
    }

    /// Its directory: views hide it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether a store is this machine's.
    pub fn knows(&self, store: u64) -> bool {
        self.path_of(store).is_some()
    }

    /// Where a store was last, by its own number.
    pub fn path_of(&self, store: u64) -> Option<PathBuf> {
        let text = read(&self.store(store)).unwrap_or_else(|error| {
            tracing::warn!(%error, "{} is not used", self.store(store).display());
            None
        })?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(text)))
    }

    /// Whether a crash has left a list of which only the store knows whether it is due.
    pub fn is_undecided(&self, store: u64) -> bool {
        self.transactions(store, "new").is_ok_and(|all| !all.is_empty())
    }

    /// Notes that a store is this machine's, and where it is; durable on return.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&self, store: u64, path: &Path) -> Result<()> {
        if self.path_of(store).is_some_and(|noted| noted == path) {
            return Ok(());
        }
        let file = self.store(store);
        replace(&file, path.as_os_str().as_bytes(), 0o600).map_err(|e| {
            let text = format!("the store cannot be noted in {}: {e}", file.display());
            Error::new(e.kind(), text)
        })
    }

    fn store(&self, store: u64) -> PathBuf {
        self.dir.join(STORES).join(format!("{store:016x}"))
    }

    fn services(&self) -> PathBuf {
        self.dir.join(SERVICES)
    }

    fn service(&self, store: u64, txn: TxnId, state: &str) -> PathBuf {
        self.services().join(format!("{store:016x}-{:016x}.{state}", txn.0))
    }

    /// Keeps a list for a transaction that is about to be committed; durable on return.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn defer(&self, store: u64, txn: TxnId, list: &[u8]) -> Result<()> {
        replace(&self.service(store, txn, "new"), list, 0o600)
    }

    /// The transaction is committed: its list is due.
    ///
    /// # Errors
    /// The disk's.  It is due all the same, when the store is opened next.
    pub fn due(&self, store: u64, txn: TxnId) -> Result<()> {
        std::fs::rename(self.service(store, txn, "new"), self.service(store, txn, "due"))?;
        sync(&self.services())
    }

    /// The transaction was not committed: its list is forgotten.
    ///
    /// # Errors
    /// The disk's.
    pub fn not_due(&self, store: u64, txn: TxnId) -> Result<()> {
        remove(&self.service(store, txn, "new"))
    }

    /// The lists that are due, by store and transaction; of one store, or of all.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn all_due(&self, of: Option<u64>) -> Result<Vec<(u64, TxnId, Vec<u8>)>> {
        let mut all = Vec::new();
        for (store, txn) in self.noted("due")? {
            if of.is_none_or(|of| of == store) {
                let list = read(&self.service(store, txn, "due"))?;
                all.extend(list.map(|list| (store, txn, list)));
            }
        }
        Ok(all)
    }

    /// What is left to do of a list that is due; nothing: it is forgotten.
    ///
    /// # Errors
    /// The disk's.
    pub fn set_due(&self, store: u64, txn: TxnId, left: Option<&[u8]>) -> Result<()> {
        let path = self.service(store, txn, "due");
        left.map_or_else(|| remove(&path), |left| replace(&path, left, 0o600))
    }

    /// After the recovery of a store: decides about lists that a crash left undecided.
    ///
    /// # Errors
    /// The disk's.
    pub fn settle(&self, store: u64, committed: impl Fn(TxnId) -> Result<bool>) -> Result<()> {
        for txn in self.transactions(store, "new")? {
            if committed(txn)? { self.due(store, txn)? } else { self.not_due(store, txn)? }
        }
        Ok(())
    }

    fn transactions(&self, of: u64, state: &str) -> Result<Vec<TxnId>> {
        let all = self.noted(state)?.into_iter();
        Ok(all.filter(|(store, _)| *store == of).map(|(_, txn)| txn).collect())
    }

    /// What lists there are, by store and transaction.
    fn noted(&self, state: &str) -> Result<Vec<(u64, TxnId)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(self.services())? {
            let name = entry?.file_name();
            all.extend(name.to_str().and_then(|name| {
                let (store, txn) = name.strip_suffix(state)?.strip_suffix('.')?.split_once('-')?;
                let number = |digits| u64::from_str_radix(digits, 16).ok();
                Some((number(store)?, TxnId(number(txn)?)))
            }));
        }
        all.sort();
        Ok(all)
    }
}

/// Makes a directory with its parents, or checks that the one that is there is the user's own.
fn private(dir: &Path) -> Result<()> {
    let look = || std::fs::symlink_metadata(dir);
    // Looked at first: to make what is there already would wait for a frozen file system.
    let meta = match look() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            look()?
        }
        other => other?,
    };
    let own = meta.uid() == rustix::process::geteuid().as_raw();
    if meta.is_dir() && own && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = "it is not a directory that only its owner, this user, may write";
    Err(Error::new(ErrorKind::PermissionDenied, why))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => path.parent().map_or(Ok(()), sync),
    }
}

fn sync(dir: &Path) -> Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (tempfile::TempDir, Ledger) {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::at(&dir.path().join("ledger")).unwrap();
        (dir, ledger)
    }

    #[test]
    fn a_store_that_was_noted_is_known_and_found() {
        let (_dir, ledger) = ledger();
        assert!(!ledger.knows(7));
        ledger.note(7, Path::new("/a/.systx")).unwrap();
        ledger.note(7, Path::new("/b/.systx")).unwrap();
        assert!(ledger.knows(7) && !ledger.knows(8));
        assert_eq!(ledger.path_of(7), Some(PathBuf::from("/b/.systx")));
    }

    #[test]
    fn a_list_is_due_once_its_transaction_is_committed() {
        let (_dir, ledger) = ledger();
        ledger.defer(1, TxnId(7), b"restart").unwrap();
        assert!(ledger.all_due(Some(1)).unwrap().is_empty());
        ledger.due(1, TxnId(7)).unwrap();
        assert!(ledger.all_due(Some(2)).unwrap().is_empty(), "of another store");
        ledger.set_due(1, TxnId(7), Some(b"the rest")).unwrap();
        let rest = [(1, TxnId(7), b"the rest".to_vec())];
        assert_eq!(ledger.all_due(Some(1)).unwrap(), rest);
        assert_eq!(ledger.all_due(None).unwrap(), rest, "of all stores");
        // A crash left two undecided, of which one was committed.
        ledger.defer(1, TxnId(8), b"never").unwrap();
        ledger.defer(1, TxnId(9), b"crashed").unwrap();
        ledger.settle(1, |txn| Ok(txn == TxnId(9))).unwrap();
        let due: Vec<_> =
            ledger.all_due(Some(1)).unwrap().into_iter().map(|(_, txn, _)| txn).collect();
        assert_eq!(due, [TxnId(7), TxnId(9)]);
        for txn in due {
            ledger.set_due(1, txn, None).unwrap();
        }
        assert_eq!(std::fs::read_dir(ledger.services()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_write_is_no_ledger() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Ledger::at(&open).is_err());
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        assert!(Ledger::at(&dir.path().join("link")).is_err());
    }
}
