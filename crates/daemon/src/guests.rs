//! Guests: other users' transactions on the guarded directories of root's daemon.
//!
//! A second socket lets any user connect; who it is, the kernel says (`SO_PEERCRED`). It offers
//! what concerns a guest's own transactions with a path, and nothing else: begin, list, status,
//! diff, commit, abort. To whom a transaction does not belong, it does not exist.
//!
//! - A directory is named by a descriptor that the guest has opened: so the guest can reach it, and
//!   the kernel tells where it is.
//! - In the view the kernel checks permissions with the attributes of the files, for whoever works
//!   there. All that these checks rest on is read by the transaction, so a commit fails if it has
//!   changed.
//! - Nothing of the way to a view belongs to the guest, so nothing can be put in its place: the
//!   directory is root's, and an access control list lets that one user through.
//! - A guest's use of the daemon is bounded: connections, transactions, the memory and the staged
//!   bytes of each.

use crate::path_views;
use crate::path_views::{Seat, Seats};
use crate::protocol::call::{self, Greeting, Hello, Reply, Request};
use crate::protocol::{Asker, Call, Failure, FailureKind, Peer};
use crate::wire::{self, WireError};
use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use systx_base::Uid;

/// Connections of one guest, and of all.
const CONNECTIONS: (usize, usize) = (8, 64);
/// Open transactions, and views still in use, of one guest, and of all.
pub(crate) const VIEWS: (usize, usize) = (8, 64);
/// Longest request.
const REQUEST_MAX: usize = 64 << 10;
/// Answers of any length that one guest, and all, are being given at a time: each may be as long as
/// a frame.
const ANSWERS: (usize, usize) = (1, 8);
/// How long a guest may take to begin a request, to send it, and to take the whole answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a request of a guest; `None` once there is nobody to answer.
pub(crate) type Answer =
    Arc<dyn Fn(&mut Asker, &Request) -> Option<Result<Reply, Failure>> + Send + Sync>;

/// The place of guests of root's daemon.
pub(crate) struct Guests {
    dir: PathBuf,
    seats: Arc<Seats>,
}

impl Guests {
    /// Opens the place, beside the runtime directory, and takes guests from now on.
    ///
    /// # Errors
    /// The place cannot be made safe.
    pub fn open(runtime: &Path, namespace: u64, answer: Answer) -> io::Result<Guests> {
        let mut name = runtime.as_os_str().to_owned();
        name.push("-guests");
        let dir = PathBuf::from(name);
        match std::fs::DirBuilder::new().mode(0o755).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let meta = std::fs::symlink_metadata(&dir)?;
        if !meta.is_dir() || meta.uid() != 0 || meta.mode() & 0o022 != 0 {
            return Err(io::Error::other(format!("{} is not root's alone", dir.display())));
        }
        // Whatever the umask.
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755))?;
        path_views::sweep_below(&dir);
        let path = systx_protocol::guests::socket(&dir, namespace);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
        let connections = Arc::new(Seats::new(CONNECTIONS));
        std::thread::Builder::new()
            .name("guests".into())
            .spawn(move || receive_all(&listener, &answer, &connections))?;
        Ok(Guests { dir, seats: Arc::new(Seats::new(VIEWS)) })
    }

    /// The directory of a guest's views: nobody but that user and root gets in.
    ///
    /// # Errors
    /// The file system below has no access control lists.
    pub fn room_of(&self, uid: Uid) -> io::Result<PathBuf> {
        let dir = self.dir.join(uid.to_string());
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&dir, "system.posix_acl_access", &only_for(uid), flags)?;
        Ok(dir)
    }

    /// A place for one more view.
    ///
    /// # Errors
    /// There are enough.
    pub fn seat(&self, uid: Uid) -> Result<Seat, Failure> {
        self.seats.take(uid).ok_or_else(|| {
            let text = format!(
                "more than {} transactions of one user, or {} of all guests",
                VIEWS.0, VIEWS.1
            );
            Failure::new(FailureKind::Space, text)
                .hint("commit or abort some, and leave their directories: `systx list`")
        })
    }
}

/// The directory is root's; the user may list it and go through.
fn only_for(uid: Uid) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let (owner, user, group, mask, other) = (0x01u16, 0x02, 0x04, 0x10, 0x20);
    let entries = [
        (owner, 7u16, NOBODY),
        (user, 5, uid),
        (group, 0, NOBODY),
        (mask, 5, NOBODY),
        (other, 0, NOBODY),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&rights.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

fn receive_all(listener: &UnixListener, answer: &Answer, seats: &Arc<Seats>) {
    let answers = Arc::new(Seats::new(ANSWERS));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // Out of descriptors or memory: others will give theirs back; do not spin meanwhile.
            Err(e) => {
                tracing::warn!("a guest's connection: {e}");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let Ok(by) = socket_peercred(&stream) else { continue };
        let uid = by.uid.as_raw();
        let Some(seat) = seats.take(uid) else { continue };
        let (answer, answers) = (Arc::clone(answer), Arc::clone(&answers));
        let pid = u32::try_from(by.pid.as_raw_nonzero().get()).unwrap_or(0);
        let guest = move || {
            let _seat = seat;
            if let Err(e) = serve(&stream, Peer { pid, uid }, &answer, &answers) {
                tracing::info!(uid, "guest: {e}");
            }
        };
        if let Err(e) = std::thread::Builder::new().name("guest".into()).spawn(guest) {
            tracing::error!("no thread for a guest: {e}");
        }
    }
}

fn serve(
    stream: &UnixStream,
    peer: Peer,
    answer: &Answer,
    answers: &Arc<Seats>,
) -> Result<(), WireError> {
    let send = |reply: &Reply, blob: &[u8]| wire::send_within(stream, reply, blob, PATIENCE);
    let receive = || wire::receive_within::<Request>(stream, REQUEST_MAX, PATIENCE);
    let hello = receive()?.message;
    send(&Reply::new::<Hello>(&Greeting::ours(0))?, &[])?;
    if !hello.is_ours() {
        return Ok(());
    }
    let mut asker = Asker::new(peer, stream);
    loop {
        let frame = match receive() {
            Ok(frame) => frame,
            Err(WireError::Closed) => return Ok(()),
            Err(e) => return Err(e),
        };
        let request = frame.message;
        // Whoever asks on many connections and does not read has one answer's memory here.
        let long = [call::Diff::NAME, call::Content::NAME].contains(&request.name);
        let turn = long.then(|| answers.wait(peer.uid));
        asker.fds = frame.fds;
        let answered = catch_unwind(AssertUnwindSafe(|| answer(&mut asker, &request)));
        asker.fds.clear();
        let reply = match answered {
            Ok(None) => return Ok(()),
            Ok(Some(Ok(reply))) => reply,
            Ok(Some(Err(failure))) => Reply::failed(&failure)?,
            Err(_) => {
                let text = "the daemon failed (see its log)";
                Reply::failed(&Failure::new(FailureKind::Internal, text))?
            }
        };
        let beside = std::mem::take(&mut asker.beside);
        match send(&reply, &beside) {
            Err(e @ WireError::TooLong { .. }) => {
                let failure = Failure::new(FailureKind::Space, format!("the answer: {e}"));
                send(&Reply::failed(&failure)?, &[])?;
            }
            other => other?,
        }
        drop((reply, beside));
        drop(turn);
    }
}
