//! From the view's and the engine's terms to the protocol's: what changed, and why it was lost.

use crate::patterns::Patterns;
use crate::protocol::{self, ChangeKind, HostPath, Part, Side, Summary};
use systx_base::{Kind, TxnId, Uid};
use systx_store::Told;
use systx_txn::{Caller, Conflict, Object, Opponent};
use systx_vfs::changes::{Change, Side as ViewSide, Status};
use systx_vfs::validate::{OutsideChange, What};
use systx_vfs::view::View;

/// Longest target of a symbolic link.
const LINK_MAX: usize = 4096;

/// The changes of a view, as the protocol shows them.
pub fn changes(view: &View, patterns: &Patterns) -> Vec<protocol::Change> {
    view.changes().iter().map(|c| change(view, c, patterns)).collect()
}

fn change(view: &View, c: &Change, patterns: &Patterns) -> protocol::Change {
    let xattrs = match (&c.old, &c.new) {
        (Some(old), Some(new)) => changed_xattrs(old, new),
        (_, Some(side)) | (Some(side), None) => {
            side.xattrs.iter().map(|(k, _)| HostPath(k.clone())).collect()
        }
        (None, None) => Vec::new(),
    };
    let (kind, from) = match &c.status {
        Status::Added => (ChangeKind::Added, None),
        Status::Deleted => (ChangeKind::Deleted, None),
        Status::TypeChanged => (ChangeKind::Retyped, None),
        Status::Renamed(from) => (ChangeKind::Renamed, Some(HostPath(from.clone()))),
        Status::Modified if c.content => (ChangeKind::Modified, None),
        Status::Modified => (ChangeKind::Attributes, None),
    };
    protocol::Change {
        kind,
        from,
        old: c.old.as_ref().map(|s| side(view, s)),
        new: c.new.as_ref().map(|s| side(view, s)),
        content: c.content,
        bytes: c.bytes,
        xattrs,
        dropped: patterns.drops(&c.path),
        path: HostPath(c.path.clone()),
    }
}

fn changed_xattrs(old: &ViewSide, new: &ViewSide) -> Vec<HostPath> {
    let before =
        |key: &[u8]| old.xattrs.iter().find(|(k, _)| k == key).and_then(|(_, v)| v.clone());
    let differs = |(k, v): &&(Vec<u8>, Option<Vec<u8>>)| before(k) != *v;
    new.xattrs.iter().filter(differs).map(|(k, _)| HostPath(k.clone())).collect()
}

fn side(view: &View, side: &ViewSide) -> Side {
    let a = &side.attr;
    let target = (a.kind == Kind::Symlink)
        .then(|| view.read_side(side, LINK_MAX).ok().map(HostPath))
        .flatten();
    Side {
        mode: a.kind.mode_bits() | a.mode,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        mtime: a.mtime,
        target,
        rdev: a.rdev,
    }
}

/// Counts for the one-line summary.
pub fn summary<'a>(changes: impl IntoIterator<Item = &'a protocol::Change>) -> Summary {
    let mut s = Summary::default();
    for c in changes {
        match c.kind {
            ChangeKind::Added => s.added += 1,
            ChangeKind::Deleted => s.deleted += 1,
            ChangeKind::Renamed => s.renamed += 1,
            ChangeKind::Modified | ChangeKind::Retyped => s.modified += 1,
            ChangeKind::Attributes => s.attributes += 1,
        }
        s.bytes += c.bytes;
    }
    s
}

/// The same, for the history.
pub fn told(s: Summary) -> Told {
    let Summary { added, modified, deleted, renamed, attributes, bytes } = s;
    Told { added, modified, deleted, renamed, attributes, bytes }
}

/// What the history says a commit was.
pub fn as_told(t: Told) -> Summary {
    let Told { added, modified, deleted, renamed, attributes, bytes } = t;
    Summary { added, modified, deleted, renamed, attributes, bytes }
}

/// What is known of another transaction, for messages.
pub trait Opponents {
    /// Whose it is, if that is known, its command, and whether it has ended.
    fn find(&self, id: TxnId) -> (Option<Uid>, Vec<HostPath>, bool);
}

/// A conflict that the engine found.
pub fn conflict(
    view: &View,
    found: &Conflict,
    stale_only: bool,
    opponents: &dyn Opponents,
) -> protocol::Conflict {
    let path = HostPath(view.path_of_object(&found.object));
    let opponent = opponent(&found.opponent, opponents);
    let stale = if stale_only { vec![path.clone()] } else { Vec::new() };
    protocol::Conflict { part: part(&found.object), path, opponent, stale_only, stale }
}

/// The other side of a conflict.
pub fn opponent(by: &Opponent, opponents: &dyn Opponents) -> protocol::Opponent {
    match *by {
        Opponent::Txn(id) => {
            let (uid, argv, ended) = opponents.find(id);
            protocol::Opponent::Transaction { id, argv, ended, uid }
        }
        Opponent::Outside => protocol::Opponent::outside("changed by a process outside"),
        Opponent::Injected => {
            let text = format!("a test: {} is set", systx_protocol::runtime::INJECT_VARIABLE);
            protocol::Opponent::outside(text)
        }
        Opponent::Plain(caller) => by_caller(&caller),
    }
}

/// A request that came through the daemon: it knows who made it.
fn by_caller(caller: &Caller) -> protocol::Opponent {
    let what = match (caller.pid, String::from_utf8_lossy(caller.command())) {
        (0, _) => "changed by a process outside".into(),
        (pid, command) if command.is_empty() => by_process(pid),
        (pid, command) => format!("changed by {command} (process {pid}) outside"),
    };
    let by = (caller.pid != 0).then_some((caller.pid, caller.uid));
    protocol::Opponent::Outside { what, by }
}

fn by_process(pid: u32) -> String {
    format!("changed by process {pid} outside")
}

/// Whether a user may know what another one's processes are called and do: where /proc is mounted
/// with `hidepid`, nobody else does.
pub fn may_know(viewer: Uid, owner: Option<Uid>) -> bool {
    viewer == 0 || owner == Some(viewer)
}

/// What of a conflict is for the eyes of a user: of others' processes the number, of others'
/// transactions that there was one.
pub fn for_user(mut conflict: protocol::Conflict, viewer: Uid) -> protocol::Conflict {
    match &mut conflict.opponent {
        protocol::Opponent::Transaction { id, argv, uid, .. } => {
            if !may_know(viewer, *uid) {
                (*id, *argv) = (TxnId(0), Vec::new());
            }
        }
        protocol::Opponent::Outside { what, by: Some((pid, uid)) } => {
            if !may_know(viewer, Some(*uid)) {
                *what = by_process(*pid);
            }
        }
        protocol::Opponent::Outside { by: None, .. } => {}
    }
    conflict
}

fn part(object: &Object) -> Part {
    match object {
        Object::Entry { .. } => Part::Entry,
        Object::List(_) => Part::List,
        Object::Attr(_) => Part::Attr,
        Object::Size(_) => Part::Size,
        Object::Pages { .. } => Part::Data,
    }
}

/// Outsiders' changes that validation found; `None` if there are none.
pub fn outside(found: &[OutsideChange]) -> Option<protocol::Conflict> {
    let worst = found.iter().find(|c| c.written).or(found.first())?;
    let stale_only = found.iter().all(|c| !c.written);
    let stale = found.iter().filter(|c| !c.written).map(|c| HostPath(c.path.clone())).collect();
    let (part, what) = match worst.what {
        What::Changed => (Part::Any, "changed after it was read"),
        What::Replaced => (Part::Entry, "removed or replaced after it was read"),
        What::Appeared => (Part::Entry, "appeared after it was found absent"),
        What::ListingChanged => (Part::List, "other names than when it was listed"),
    };
    Some(protocol::Conflict {
        path: HostPath(worst.path.clone()),
        part,
        opponent: protocol::Opponent::outside(what),
        stale_only,
        stale,
    })
}
