//! What every command needs: the place it is about, the daemon, and ids from their first
//! characters.

use crate::args::Where;
use crate::problem::Problem;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use systx_base::TxnId;
use systx_base::proc::Mounted;
use systx_protocol::call;
use systx_protocol::client::Client;
use systx_protocol::runtime;
use systx_protocol::{HostPath, Place};
use systx_session::VIEW_SOURCE;
use systx_session::mountinfo::Mount;

/// In a view's processes: the id of its transaction.
pub const VARIABLE: &str = "SYSTX_TXN";

/// The id of the transaction that this process is in, if it is in one.  The variable alone proves
/// nothing (it may have leaked into a terminal multiplexer); the mount of a view does.
pub fn inside() -> Option<String> {
    let id = std::env::var(VARIABLE).ok().filter(|id| !id.is_empty())?;
    let text = std::fs::read("/proc/self/mountinfo").ok()?;
    let mounts = systx_session::mountinfo::parse(&text).ok()?;
    let is_view = |m: &Mount| m.fs == "fuse.systx" && m.source == Path::new(VIEW_SOURCE);
    mounts.iter().any(is_view).then_some(id)
}

/// A connection to the daemon.
///
/// # Errors
/// It cannot be had, or this process is inside a view, where the daemon is out of reach.
pub fn connect() -> Result<Client, Problem> {
    if let Some(id) = inside() {
        return Err(Problem::new(format!(
            "inside transaction {id} only `systx run` works (its command joins the transaction)"
        ))
        .hint("use another terminal, outside of the transaction"));
    }
    Ok(runtime::connect_or_start()?)
}

/// A connection to root's daemon as a guest of it; `None` if there is none, or this is root.
///
/// # Errors
/// Something poses as it, or it does not answer.
pub fn connect_as_guest() -> Result<Option<Client>, Problem> {
    if rustix::process::geteuid().is_root() || inside().is_some() {
        return Ok(None);
    }
    let Some(stream) = systx_protocol::guests::connect()? else { return Ok(None) };
    Ok(Some(Client::new(stream)?))
}

/// Whether a directory (absolute, without symbolic links) is in a mount that another user's daemon
/// serves.
pub fn is_of_another_daemon(dir: &Path) -> bool {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    is_served_by_another(&text, dir, rustix::process::geteuid().as_raw())
}

fn is_served_by_another(mountinfo: &[u8], dir: &Path, user: u32) -> bool {
    let mounts = mountinfo.split(|b| *b == b'\n').filter_map(Mounted::read);
    let depth = |m: &Mounted<'_>| m.at.components().count();
    let holder = mounts.filter(|m| dir.starts_with(&m.at)).max_by_key(depth);
    // The user whose process answers the kernel.
    let own = format!("user_id={user}");
    holder.is_some_and(|m| {
        m.fs == "fuse.systx" && !m.of_all.split(|b| *b == b',').any(|o| o == own.as_bytes())
    })
}

/// The open transaction whose id starts with `prefix`, and the daemon that has it: root's, if this
/// user has it there as a guest, else the user's own.
///
/// # Errors
/// None or several match, or the daemon does not answer.
pub fn find_open(prefix: &str) -> Result<(Client, TxnId), Problem> {
    if let Some(mut client) = connect_as_guest()? {
        let ids: Vec<TxnId> = client.ask(&call::List)?.iter().map(|t| t.id).collect();
        if let Ok(id) = resolve(prefix, &ids, "open") {
            return Ok((client, id));
        }
    }
    let mut client = connect()?;
    let id = resolve_open(&mut client, prefix)?;
    Ok((client, id))
}

/// Changes the directory if asked to, and says which volume is meant.
///
/// # Errors
/// A directory is not there.
pub fn place(place: &Where) -> Result<Place, Problem> {
    if let Some(dir) = &place.directory {
        std::env::set_current_dir(dir)
            .map_err(|e| Problem::new(format!("cannot change to {}: {e}", dir.display())))?;
    }
    let cwd = std::env::current_dir().map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotConnected => Problem::new(
            "the working directory is not there any more: it was removed, or what was mounted \
             there was unmounted or mounted again",
        )
        .hint("change to one that is there (cd \"$PWD\", if that is mounted), or name one: -C DIR"),
        _ => Problem::new(format!("cannot find the working directory: {e}")),
    })?;
    let absolute = |dir: &Option<PathBuf>| -> Result<Option<HostPath>, Problem> {
        dir.as_ref()
            .map(|dir| {
                std::fs::canonicalize(dir)
                    .map(HostPath::from)
                    .map_err(|e| Problem::new(format!("{}: {e}", dir.display())))
            })
            .transpose()
    };
    // The store may be made on demand.
    let store = place.store.as_ref().map(|dir| HostPath::from(cwd.join(dir)));
    Ok(Place { cwd: HostPath::from(cwd), root: absolute(&place.root)?, store })
}

/// Paths that a user named, absolute.  Not resolved: they may exist only in a transaction.
pub fn absolute_paths(paths: &[PathBuf]) -> Result<Vec<HostPath>, Problem> {
    let cwd = std::env::current_dir()?;
    Ok(paths.iter().map(|p| HostPath::from(tidy(&cwd.join(p)))).collect())
}

/// Without `.`, `..`, and double slashes.
fn tidy(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            std::path::Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// The one id that starts with `prefix`.
///
/// # Errors
/// None does, or several do.
pub fn resolve(prefix: &str, ids: &[TxnId], what: &str) -> Result<TxnId, Problem> {
    let wanted = prefix.trim().to_ascii_lowercase();
    let mut found: Vec<TxnId> = Vec::new();
    for id in ids {
        let text = id.to_string();
        if text == wanted {
            return Ok(*id);
        }
        if !wanted.is_empty() && text.starts_with(&wanted) && !found.contains(id) {
            found.push(*id);
        }
    }
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(Problem::new(format!("no {what} transaction {prefix:?}"))),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(Problem::new(format!("{prefix:?} is not unique: {}", names.join(", "))))
        }
    }
}

/// [`resolve`] among the open transactions.
///
/// # Errors
/// None or several match, or the daemon does not answer.
pub fn resolve_open(client: &mut Client, prefix: &str) -> Result<TxnId, Problem> {
    let ids: Vec<TxnId> = client.ask(&call::List)?.iter().map(|t| t.id).collect();
    resolve(prefix, &ids, "open").map_err(|p| {
        if p.hint.is_some() {
            p
        } else {
            p.hint("`systx list` shows the open ones, `systx log` the committed ones")
        }
    })
}

/// [`resolve`] among the committed transactions of a place.
///
/// # Errors
/// None or several match, or the daemon does not answer.
pub fn resolve_committed(
    client: &mut Client,
    prefix: &str,
    place: &Place,
) -> Result<TxnId, Problem> {
    let ids: Vec<TxnId> = client
        .ask(&call::Log { place: place.clone(), limit: None, paths: Vec::new() })?
        .iter()
        .map(|t| t.id)
        .collect();
    // A whole one may be of another file system, where the daemon finds it.
    resolve(prefix, &ids, "committed")
        .or_else(|p| whole(prefix).ok_or(p))
        .map_err(|p| p.hint("`systx log` shows them; -C DIR or --root DIR names another volume"))
}

/// An id with all of its digits.
fn whole(text: &str) -> Option<TxnId> {
    let text = text.trim().to_ascii_lowercase();
    let id = TxnId(u64::from_str_radix(&text, 16).ok()?);
    (id.to_string() == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_by_their_first_characters() {
        let ids = [TxnId(0x1234_5678), TxnId(0x1299_0000), TxnId(0x12)];
        let find = |p: &str| resolve(p, &ids, "open").map_err(|p| p.message);
        assert_eq!(find("1234"), Ok(ids[0]));
        assert_eq!(find("12345678"), Ok(ids[0]));
        assert_eq!(find("0000001"), Ok(ids[2]));
        assert!(find("12").unwrap_err().contains("not unique: 12345678, 12990000"));
        assert!(find("9").is_err() && find("").is_err());
        assert_eq!(whole("00000012"), Some(ids[2]));
        assert!(["12", "", "x2345678", "+2345678"].iter().all(|text| whole(text).is_none()));
    }

    #[test]
    fn the_users_own_mounts_are_not_anothers() {
        let table = b"30 1 8:1 / / rw - ext4 /dev/a rw\n\
            31 30 0:50 / /srv/g rw - fuse.systx systx rw,user_id=0,group_id=0\n\
            32 30 0:51 / /home/v rw - fuse.systx /home/v.img rw,user_id=1000,group_id=1000\n";
        let another = |dir: &str, user| is_served_by_another(table, Path::new(dir), user);
        assert!(another("/srv/g/a", 1000) && !another("/srv/g/a", 0));
        assert!(another("/home/v", 100) && !another("/home/v/a", 1000));
        assert!(!another("/home", 1000) && !another("/srv", 1000));
    }

    #[test]
    fn paths_need_not_exist() {
        assert_eq!(tidy(Path::new("/a/./b/../c//d")), Path::new("/a/c/d"));
    }
}
