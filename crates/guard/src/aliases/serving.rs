//! What becomes of a request: most are handed on whole, to view 0 or to the transaction of their
//! nodes; the others are those about names, which have to be known at the end, and those about what
//! all transactions share.

use super::member::Member;
use super::seats::Over;
use super::{Aliases, At, CONTROL, DIRECTORY, HIDDEN, Seat, split};
use crate::plain::is_special;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use systx_base::NodeId;
use systx_vfs::acl;
use systx_vfs::api::*;

fn is_acl(key: &[u8]) -> bool {
    key == acl::ACCESS || key == acl::DEFAULT
}

/// The name that a request gives or looks for, if its answer is the node of that name.
fn name_of<'a>(request: &Request<'a>) -> Option<(NodeId, &'a [u8])> {
    use Request as R;
    match *request {
        R::Lookup { parent, name }
        | R::Mknod { parent, name, .. }
        | R::Mkdir { parent, name, .. }
        | R::Symlink { parent, name, .. }
        | R::Create { parent, name, .. } => Some((parent, name)),
        _ => None,
    }
}

impl Requests for Aliases {
    fn root(&self) -> Reply<Entry> {
        self.zero.root()
    }
    fn serve(&self, caller: Caller, request: Request<'_>) -> Reply<Answer> {
        use Request as R;
        if let Some((dir, name)) = name_of(&request) {
            return self.serve_name(caller, (dir, name), request);
        }
        match request {
            R::Getattr { node } => self.attr_of(node).map(Answer::from),
            R::Setattr { node, set } => self.set_attr(caller, node, set).map(Answer::from),
            R::Link { node, parent, name } => {
                self.link_to(caller, node, (parent, name)).map(Answer::from)
            }
            R::Rename { from, to, .. } => {
                for (dir, name) in [from, to] {
                    if let At::In(member, _) = self.at(dir)? {
                        if from.0 != to.0 && member.lasting.asks_the_mount() {
                            return Err(Errno::XDEV);
                        }
                        self.note(&member, dir, name);
                    }
                }
                self.hand_on(caller, request)
            }
            R::Tmpfile { parent, new } => match self.at(parent)? {
                At::Zero(dir) => self.zero.tmpfile(caller, dir, new).map(Answer::from),
                At::In(member, dir) => {
                    member.told(member.lasting.tmpfile(caller, dir, new)?).map(Answer::from)
                }
                At::Idle | At::Control(_) => Err(Errno::CANCELED),
            },
            R::Readdir { node, from, attributes, sink } => {
                self.list(node, from, attributes, sink).map(Answer::from)
            }
            R::Getxattr { node, key } => self.xattr_of(node, key).map(Answer::from),
            R::Setxattr { node, key, .. } | R::Removexattr { node, key } => {
                self.check_shared(node, key)?;
                self.check_special(&self.at(node)?)?;
                self.hand_on(caller, request)
            }
            R::Setlk { .. } if request.unlocks() => match self.hand_on(caller, request) {
                // Nothing is locked of what is gone.
                Err(Errno::STALE | Errno::CANCELED) => Ok(Answer::Done(())),
                done => done,
            },
            R::Control { node, cmd, arg } => {
                self.ask_control(caller, node, cmd, arg).map(Answer::from)
            }
            R::Open { node, how } => self.open_at(caller, node, how).map(Answer::from),
            request => self.hand_on(caller, request),
        }
    }
    fn forget(&self, id: NodeId, count: u64) {
        let (tag, node) = split(id);
        if tag == 0 {
            return self.zero.forget(id, count);
        }
        let Some(member) = self.table.lock().members.get(&tag).cloned() else { return };
        member.lasting.forget(node, count);
        let left = |held: u64| Some(held.saturating_sub(count));
        let before = member.held.fetch_update(SeqCst, SeqCst, left).unwrap_or(0);
        if before <= count && member.ended.load(SeqCst) {
            let gone = self.table.lock().members.remove(&tag);
            // A view may be large.
            drop(gone);
        }
    }
    fn worn_listing(&self, file: NodeId) -> Option<NodeId> {
        match self.at(file).ok()? {
            At::Zero(file) => self.zero.worn_listing(file),
            At::In(member, file) => {
                let dir = member.lasting.worn_listing(file)?;
                // Of what has no root of its own the kernel keeps no listing there.
                let root = member.routed.is_some() && member.root.get() == Some(&dir);
                if root { None } else { member.number(dir).ok() }
            }
            At::Idle | At::Control(_) => None,
        }
    }
    fn closes(&self, caller: Caller, node: NodeId) {
        if let (tag @ 1.., CONTROL) = split(node)
            && self.table.lock().seats.contains_key(&tag)
            && let Some(control) = self.control.get()
        {
            control.closes(Seat(tag), caller.tid);
        }
    }
    fn release(&self, id: NodeId, handle: u8) {
        if handle == DIRECTORY {
            return;
        }
        let (tag, node) = split(id);
        if tag == 0 {
            return self.zero.release(id, handle);
        }
        let mut table = self.table.lock();
        if let Some(chair) = table.seats.get_mut(&tag).filter(|_| node == CONTROL) {
            chair.opens = chair.opens.saturating_sub(1);
            let last = chair.opens == 0;
            drop(table);
            if let (true, Some(control)) = (last, self.control.get()) {
                control.vacated(Seat(tag));
            }
            return;
        }
        let Some(member) = table.members.get(&tag).cloned() else { return };
        if let Some(over) = table.over.get_mut(&tag) {
            *over = Over::soon();
        }
        drop(table);
        member.lasting.release(node, handle);
    }
    fn land(&self, node: NodeId) -> bool {
        match self.at(node) {
            Ok(At::Zero(node)) => self.zero.land(node),
            _ => false,
        }
    }
    fn waits(&self) -> bool {
        let members: Vec<_> = self.table.lock().members.values().cloned().collect();
        self.zero.waits() || members.iter().any(|member| member.lasting.waits())
    }
    fn valid(&self, node: NodeId, name: Option<&[u8]>) -> Valid {
        const ZERO: Option<Duration> = Some(Duration::ZERO);
        const NO: Valid = Valid { name: ZERO, attr: ZERO, dir_attr: ZERO };
        if self.is_shared(node) {
            // Whoever asks: the next one may be another one.
            let valid = self.zero.valid(node, name);
            return Valid { name: ZERO, attr: valid.attr, dir_attr: ZERO };
        }
        match self.at(node) {
            Ok(At::Zero(NodeId::ROOT)) if name.is_some_and(|n| n.starts_with(HIDDEN)) => NO,
            Ok(At::Zero(node)) => self.zero.valid(node, name),
            Ok(At::In(member, node)) => member.lasting.valid(node, name),
            Ok(At::Idle | At::Control(_)) | Err(_) => NO,
        }
    }
}

impl Aliases {
    /// Hands a request on to where its nodes belong, which have to belong together.
    fn hand_on(&self, caller: Caller, mut request: Request<'_>) -> Reply<Answer> {
        let [Some(one), two] = request.nodes() else { return self.zero.serve(caller, request) };
        let first = self.at(*one)?;
        if let Some(two) = two {
            *two = match (&first, self.at(*two)?) {
                (At::Zero(_), At::Zero(two)) => two,
                (At::In(a, _), At::In(b, two)) if Arc::ptr_eq(a, &b) => two,
                _ => return Err(Errno::XDEV),
            };
        }
        let (At::Zero(node) | At::In(_, node)) = &first else { return Err(Errno::CANCELED) };
        *one = *node;
        match &first {
            At::In(member, _) => member.lasting.serve(caller, request),
            _ => self.zero.serve(caller, request),
        }
    }

    /// A request about a name: the kernel is told what the node that has it is here.
    fn serve_name(
        &self,
        caller: Caller,
        (dir, name): (NodeId, &[u8]),
        mut request: Request<'_>,
    ) -> Reply<Answer> {
        let hidden = dir == NodeId::ROOT && name.starts_with(HIDDEN);
        if hidden && matches!(request, Request::Lookup { .. }) {
            return self.find_seat(caller, name).map(Answer::from);
        }
        // By a file handle, where the numbers of view 0 mean the same for ever: these do not.
        if split(dir).0 != 0 && matches!(name, b"." | b"..") {
            return Err(Errno::STALE);
        }
        let at = self.at(dir)?;
        if let ([Some(place), _], At::Zero(node) | At::In(_, node)) = (request.nodes(), &at) {
            *place = *node;
        }
        let member = match at {
            At::Zero(_) if hidden => return Err(Errno::PERM),
            At::Zero(_) => return self.zero.serve(caller, request),
            At::In(member, _) => member,
            At::Idle | At::Control(_) => return Err(Errno::CANCELED),
        };
        self.note(&member, dir, name);
        match member.lasting.serve(caller, request)? {
            Answer::Entry(entry) => self.told_in(&member, dir, entry).map(Answer::Entry),
            Answer::Found(Some(entry)) => {
                self.told_in(&member, dir, entry).map(|entry| Answer::Found(Some(entry)))
            }
            none => Ok(none),
        }
    }

    fn told_in(&self, member: &Arc<Member>, dir: NodeId, entry: Entry) -> Reply<Entry> {
        let told = self.told(member, entry)?;
        if self.is_shared(dir) && split(told.node).0 != 0 {
            member.loose.lock().insert(told.node);
        }
        Ok(told)
    }

    /// What everybody's rights in a shared directory rest on is not changed by a transaction.
    fn check_shared(&self, node: NodeId, key: &[u8]) -> Reply<()> {
        let shared = is_acl(key) && self.is_shared(node) && matches!(self.at(node)?, At::In(..));
        if shared { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    fn attr_of(&self, node: NodeId) -> Reply<Attr> {
        match self.at_or_plain(node)? {
            At::Zero(node) => self.zero.getattr(node),
            At::In(member, at) if self.is_shared(node) => {
                let Attr { mode, uid, gid, .. } = self.zero.getattr(node)?;
                Ok(Attr { mode, uid, gid, ..member.lasting.getattr(at)? })
            }
            At::In(member, node) => member.lasting.getattr(node),
            At::Idle => Ok(self.zero.root()?.attr),
            At::Control(seat) => self.control_attr(seat),
        }
    }

    fn set_attr(&self, caller: Caller, node: NodeId, set: SetAttr) -> Reply<Attr> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let at = self.at(node)?;
        self.check_special(&at)?;
        match at {
            At::In(..) if rights && self.is_shared(node) => Err(Errno::OPNOTSUPP),
            At::In(member, at) if self.is_shared(node) => {
                member.lasting.setattr(caller, at, set)?;
                self.attr_of(node)
            }
            At::In(member, node) => member.lasting.setattr(caller, node, set),
            At::Zero(node) => self.zero.setattr(caller, node, set),
            At::Idle | At::Control(_) => Err(Errno::CANCELED),
        }
    }

    fn link_to(
        &self,
        caller: Caller,
        node: NodeId,
        (parent, name): (NodeId, &[u8]),
    ) -> Reply<Entry> {
        let (member, node, dir) = match (self.at(node)?, self.at(parent)?) {
            (At::Zero(node), At::Zero(dir)) => return self.zero.link(caller, node, dir, name),
            (At::In(a, node), At::In(b, dir)) if Arc::ptr_eq(&a, &b) => (a, node, dir),
            (At::Zero(node), At::In(member, dir)) => {
                let node = self.in_member(&member, node).ok_or(Errno::XDEV)?;
                (member, node, dir)
            }
            _ => return Err(Errno::XDEV),
        };
        self.note(&member, parent, name);
        self.told(&member, member.lasting.link(caller, node, dir, name)?)
    }

    fn list(&self, id: NodeId, from: u64, attributes: bool, sink: &mut Sink<'_>) -> Reply<()> {
        let (member, node) = match self.at(id)? {
            // Where the kernel believes no name it need not be told of any.
            At::Zero(node) => {
                let attributes = attributes && self.routes.is_none();
                return self.zero.readdir(node, from, attributes, sink);
            }
            At::In(member, node) => (member, node),
            At::Idle | At::Control(_) => return Err(Errno::CANCELED),
        };
        let at_root = id == member.seat.node() || self.is_shared(id);
        // What may have to be told as something else is looked up by itself.
        let mut left_out = Vec::new();
        let done = member.lasting.readdir(node, from, attributes && !at_root, &mut |entry| {
            let special = entry.entry.filter(|e| is_special(e.attr.kind));
            let told = entry.entry.filter(|_| special.is_none());
            let told = told.map(|e| member.told(e)).transpose();
            let Ok(told) = told else { return false };
            let taken = sink(DirEntry { entry: told, ..entry });
            if told.is_some() && !taken {
                member.held.fetch_sub(1, SeqCst);
            }
            left_out.extend(special.filter(|_| taken).map(|e| e.node));
            taken
        });
        left_out.into_iter().for_each(|node| member.lasting.forget(node, 1));
        done
    }

    fn xattr_of(&self, node: NodeId, key: &[u8]) -> Reply<Vec<u8>> {
        match self.at_or_plain(node)? {
            At::Zero(node) => self.zero.getxattr(node, key),
            At::In(member, at) if self.is_shared(node) && is_acl(key) => {
                // The transaction relies on its own all the same.
                let _ = member.lasting.getxattr(at, key);
                self.zero.getxattr(node, key)
            }
            At::In(member, node) => member.lasting.getxattr(node, key),
            // Before others than the directory's owner may open it, the kernel asks for its access
            // control list.
            At::Control(_) => Err(Errno::NODATA),
            At::Idle => Err(Errno::CANCELED),
        }
    }

    fn ask_control(&self, caller: Caller, node: NodeId, cmd: u32, arg: &[u8]) -> Reply<Vec<u8>> {
        let control = self.control.get().ok_or(Errno::NOTTY)?;
        let seat = match split(node) {
            (0, _) => None,
            (tag, NodeId::ROOT | CONTROL) if self.table.lock().seats.contains_key(&tag) => {
                Some(Seat(tag))
            }
            (tag, _) => self.table.lock().members.get(&tag).map(|member| member.seat),
        };
        control.control(caller, seat, cmd, arg)
    }

    fn open_at(&self, caller: Caller, id: NodeId, how: OpenHow) -> Reply<Opened> {
        if how.dir {
            // As view 0 says, and one answer holds for the mount.
            if self.routes.is_none() {
                return Err(Errno::NOSYS);
            }
            let own = split(id).0 != 0;
            return Ok(Opened { handle: DIRECTORY, keep_cache: own, cache_listing: own });
        }
        // One answer for the mount, and nobody has another root in it.
        if !self.zero.is_told() {
            return Err(Errno::NOSYS);
        }
        match self.at(id)? {
            At::Zero(node) => self.zero.open(caller, node, how),
            At::In(member, node) => member.lasting.open(caller, node, how),
            At::Idle => Err(Errno::CANCELED),
            At::Control(seat) => {
                let mut table = self.table.lock();
                let chair = table.seats.get_mut(&seat.0).ok_or(Errno::STALE)?;
                chair.opens += 1;
                Ok(Opened { handle: 1, keep_cache: false, cache_listing: false })
            }
        }
    }
}
