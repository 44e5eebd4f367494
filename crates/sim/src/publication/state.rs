//! The state, and the kernel's side of it: what readers and the mutation do.

use super::daemon::Step;
use super::{Cache, Case, Mutation};

/// A value as it was before the commit, or as it is after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Value {
    Old,
    New,
}

/// A request from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Request {
    /// LOOKUP of e while it is not cached: under D's lock, shared.
    LookupE,
    /// LOOKUP of e to see whether the dentry still holds: under no lock.
    RevalidateE,
    /// The same two of f; their answers carry f's attributes.
    LookupF,
    RevalidateF,
    Getattr,
    /// Under the page's lock.
    Read,
    Opendir,
    /// READDIRPLUS under D's lock, shared; by a descriptor that fills the cache, or not.
    Readdir {
        fills: bool,
    },
}

impl Request {
    pub(super) fn name(self) -> &'static str {
        match self {
            Request::LookupE => "LOOKUP(e), under D's lock",
            Request::RevalidateE => "LOOKUP(e) to revalidate, under no lock",
            Request::LookupF => "LOOKUP(f), under D's lock",
            Request::RevalidateF => "LOOKUP(f) to revalidate, under no lock",
            Request::Getattr => "GETATTR(f)",
            Request::Read => "READ(f), under the page's lock",
            Request::Opendir => "OPENDIR(D)",
            Request::Readdir { fills: true } => "READDIRPLUS(D), filling the cache",
            Request::Readdir { fills: false } => "READDIRPLUS(D), not filling the cache",
        }
    }

    fn shares_lock(self) -> bool {
        matches!(self, Request::LookupE | Request::LookupF | Request::Readdir { .. })
    }

    /// Its answer carries f's attributes.
    fn tells_attributes(self) -> bool {
        use Request::*;
        matches!(self, LookupF | RevalidateF | Getattr | Readdir { .. })
    }
}

/// An answer on its way into the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Reply {
    pub(super) value: Value,
    /// A name with the long timeout; for OPENDIR: with CACHE_DIR and KEEP_CACHE.
    pub(super) long: bool,
    /// Attributes with the long timeout.
    pub(super) valid: bool,
}

/// A request in flight, from one reader.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Flight {
    pub(super) request: Request,
    pub(super) reply: Option<Reply>,
    /// What it will be answered; only where others do not wait for those who are being answered.
    pub(super) taken: Option<Value>,
    /// A READ that came before the invalidation of its page began.
    pub(super) early: bool,
    /// It has declared the attributes valid, and is storing them.
    pub(super) stores: bool,
    /// INVAL_INODE(f) found the inode meanwhile: attributes of the reply are not cached.
    pub(super) outdated: bool,
    /// The dentry that it revalidates was taken out of the tree meanwhile.
    pub(super) detached: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Access {
    Walk,
    Stat,
    /// The second half of a stat: the inode is found.
    StatInode,
    Read,
    List,
    /// The second half of a listing.
    Scan {
        fills: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum At {
    Idle,
    Next(Access),
    Waits(Flight),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Reader {
    pub(super) left: u8,
    /// When the access began, somebody had seen a new value.
    pub(super) must_be_new: bool,
    pub(super) at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Dentry {
    pub(super) value: Value,
    pub(super) valid: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Page {
    None,
    Clean(Value),
    /// A store through a mapping that the daemon has not heard of.
    Dirty(Value),
}

/// Where the plain mutation is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Plain {
    Idle,
    /// A READ by its page fault: under the page's lock.
    Faults(Option<Value>),
    /// It has stored to the mapped page.
    Stored,
    /// The request is at the daemon.
    Sent,
    Answered,
    Done,
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    // D's lock.
    pub(super) shared: u8,
    pub(super) exclusive: bool,
    // Caches of view 0.
    pub(super) e: Option<Dentry>,
    /// The dentry of f: valid or expired.
    pub(super) f: Option<bool>,
    /// f's inode is in memory.
    pub(super) inode: bool,
    pub(super) attr: Option<Value>,
    /// f's attributes as they are stored, valid or not.
    pub(super) stored: Value,
    /// Somebody has the inode's spin lock, and stores attributes that are declared valid.
    pub(super) storing: bool,
    pub(super) page: Page,
    pub(super) page_locked: bool,
    pub(super) list: Option<Value>,
    pub(super) readers: Vec<Reader>,
    pub(super) plain: Plain,
    /// The plain write keeps the page locked.
    pub(super) write_locks: bool,
    pub(super) seen_new: bool,
    // The daemon.
    pub(super) step: Step,
    /// A notification of this step has begun and has not returned.
    pub(super) begun: bool,
    pub(super) marked: bool,
    pub(super) decided: bool,
    pub(super) doomed: bool,
    /// The changes that were held may go.
    pub(super) released: bool,
    /// Attributes are told without validity: the time after the commit.
    pub(super) afterwards: bool,
    /// D's names and listing are installed; and everything is.
    pub(super) half: bool,
    pub(super) flipped: bool,
    /// Not the first round of invalidation; and what this one is for.
    pub(super) again: bool,
    pub(super) todo_dir: bool,
    pub(super) todo_page: bool,
    /// Answered old since the invalidation began.
    pub(super) old_e: bool,
    pub(super) old_page: bool,
    pub(super) old_list: bool,
    /// The plain mutation is in what is committed; and in what the transaction made of it.
    pub(super) mutated: bool,
    pub(super) carried: bool,
    /// The mutation comes after the transaction: who knows of it may not miss the commit.
    pub(super) after: bool,
    /// What went wrong.
    pub(super) wrong: Option<&'static str>,
}

/// What happened, for the trace.
pub(super) type Label = (Who, &'static str, &'static str);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    Reader(usize),
    Mutator,
    Daemon,
    Commit,
}

impl State {
    pub(super) fn new(case: &Case) -> State {
        let old = (case.cache != Cache::Cold).then_some(Value::Old);
        let warm = case.cache == Cache::Warm;
        State {
            shared: 0,
            exclusive: false,
            e: old.map(|value| Dentry { value, valid: warm }),
            f: old.map(|_| warm),
            inode: old.is_some(),
            attr: old.filter(|_| warm),
            stored: Value::Old,
            storing: false,
            page: old.map_or(Page::None, Page::Clean),
            page_locked: false,
            list: old,
            readers: vec![
                Reader { left: case.accesses, must_be_new: false, at: At::Idle };
                case.readers
            ],
            plain: Plain::Idle,
            write_locks: false,
            seen_new: false,
            step: Step::Flush,
            begun: false,
            marked: false,
            decided: false,
            doomed: false,
            released: false,
            afterwards: false,
            again: false,
            todo_dir: true,
            todo_page: true,
            half: false,
            flipped: false,
            old_e: false,
            old_page: false,
            old_list: false,
            mutated: false,
            carried: false,
            after: false,
            wrong: None,
        }
    }

    /// Readers of the lock queue up behind a notification that waits for it exclusively.
    fn may_share(&self) -> bool {
        !(self.exclusive || self.begun && self.step.wants_lock())
    }

    fn observe(&mut self, who: usize, value: Value) {
        let reader = &mut self.readers[who];
        if reader.must_be_new && value == Value::Old {
            self.wrong = Some("an old value was seen after a new one");
        }
        self.seen_new |= value == Value::New;
        let reader = &mut self.readers[who];
        (reader.left, reader.at, reader.must_be_new) = (reader.left - 1, At::Idle, false);
    }

    // ---- readers ----------------------------------------------------------------------------

    /// All that the readers can do.
    pub(super) fn reader_steps(&self, case: &Case, out: &mut Vec<(Label, State)>) {
        for who in 0..self.readers.len() {
            match self.readers[who].at {
                At::Idle if self.readers[who].left > 0 => {
                    let all = [
                        (case.entry, Access::Walk),
                        (case.attr, Access::Stat),
                        (case.page, Access::Read),
                        (case.list, Access::List),
                    ];
                    for (_, access) in all.into_iter().filter(|(on, _)| *on) {
                        let mut next = self.clone();
                        next.readers[who].must_be_new = self.seen_new;
                        next.go_on(who, access, out);
                    }
                }
                At::Next(access) => self.clone().go_on(who, access, out),
                At::Waits(flight) => {
                    if let Some(reply) = flight.reply {
                        self.get_reply(who, flight, reply, case, out);
                    }
                }
                At::Idle => {}
            }
        }
    }

    fn cached(
        mut self,
        who: usize,
        what: &'static str,
        value: Value,
        out: &mut Vec<(Label, State)>,
    ) {
        self.observe(who, value);
        let sees = if value == Value::Old { "sees the OLD" } else { "sees the NEW" };
        out.push(((Who::Reader(who), sees, what), self));
    }

    fn ask(mut self, who: usize, request: Request, out: &mut Vec<(Label, State)>) {
        if request.shares_lock() {
            if !self.may_share() {
                return;
            }
            self.shared += 1;
        }
        if request == Request::Read {
            if self.page_locked {
                return;
            }
            self.page_locked = true;
        }
        let flight = Flight {
            request,
            reply: None,
            taken: None,
            early: false,
            stores: false,
            outdated: false,
            detached: false,
        };
        self.readers[who].at = At::Waits(flight);
        out.push(((Who::Reader(who), "sends", request.name()), self));
    }

    fn go_on(self, who: usize, access: Access, out: &mut Vec<(Label, State)>) {
        match access {
            Access::Walk => match self.e {
                Some(Dentry { value, valid: true }) => {
                    self.cached(who, "name e in the cache", value, out)
                }
                Some(_) => self.ask(who, Request::RevalidateE, out),
                None => self.ask(who, Request::LookupE, out),
            },
            Access::Stat => match self.f {
                Some(true) => self.go_on(who, Access::StatInode, out),
                Some(false) => self.ask(who, Request::RevalidateF, out),
                None => self.ask(who, Request::LookupF, out),
            },
            Access::StatInode => match self.attr {
                Some(value) => self.cached(who, "attributes of f in the cache", value, out),
                None => self.ask(who, Request::Getattr, out),
            },
            Access::Read => match self.page {
                Page::Clean(value) | Page::Dirty(value) => {
                    self.cached(who, "page of f in the cache", value, out);
                }
                Page::None => self.ask(who, Request::Read, out),
            },
            Access::List => self.ask(who, Request::Opendir, out),
            Access::Scan { fills } => match self.list {
                Some(value) if fills => self.cached(who, "listing of D in the cache", value, out),
                _ => self.ask(who, Request::Readdir { fills }, out),
            },
        }
    }

    fn get_reply(
        &self,
        who: usize,
        flight: Flight,
        reply: Reply,
        case: &Case,
        out: &mut Vec<(Label, State)>,
    ) {
        let mut next = self.clone();
        let name = flight.request.name();
        let attributes = case.attr && flight.request.tells_attributes();
        let what = if attributes && self.inode && !flight.outdated && !flight.stores {
            if self.storing {
                return;
            }
            if reply.valid && self.stored != reply.value {
                // Valid first, then stored: stat(2) takes no lock.
                (next.storing, next.attr) = (true, Some(self.stored));
                next.readers[who].at = At::Waits(Flight { stores: true, ..flight });
                out.push(((Who::Reader(who), "declares the attributes valid:", name), next));
                return;
            }
            "gets its reply into the cache:"
        } else if flight.stores {
            next.storing = false;
            "has stored the attributes:"
        } else {
            "gets its reply into the cache:"
        };
        next.land(who, flight, reply, case);
        out.push(((Who::Reader(who), what, name), next));
    }

    /// A reply goes into the caches.
    fn land(&mut self, who: usize, flight: Flight, reply: Reply, case: &Case) {
        let Reply { value, long, .. } = reply;
        if flight.request.shares_lock() {
            self.shared -= 1;
        }
        match flight.request {
            Request::LookupE => {
                self.attach(value, long, case);
                self.observe(who, value);
            }
            Request::RevalidateE => match self.e {
                Some(Dentry { value: cached, .. }) if !flight.detached && cached != value => {
                    // Another answer: the dentry goes, and a real lookup follows.
                    self.e = None;
                    self.detach();
                    self.readers[who].at = At::Next(Access::Walk);
                }
                Some(_) if !flight.detached => {
                    self.e = Some(Dentry { value, valid: long });
                    self.observe(who, value);
                }
                // The answer is about a dentry that nobody finds any more.
                _ => self.observe(who, value),
            },
            Request::LookupF | Request::RevalidateF => {
                self.attributes(flight, reply);
                // The name does not change.
                self.f = Some(true);
                self.readers[who].at = At::Next(Access::StatInode);
            }
            Request::Getattr => {
                self.attributes(flight, reply);
                self.observe(who, value);
            }
            Request::Read => {
                self.page_locked = false;
                self.page = Page::Clean(value);
                self.observe(who, value);
            }
            Request::Opendir => {
                if !long {
                    self.list = None;
                }
                self.readers[who].at = At::Next(Access::Scan { fills: long });
            }
            Request::Readdir { fills } => {
                if fills {
                    self.list = Some(value);
                }
                if case.attr {
                    self.attributes(flight, reply);
                    self.f = Some(true);
                }
                if case.entry {
                    self.attach(value, long, case);
                }
                self.observe(who, value);
            }
        }
    }

    /// `fuse_iget` and `fuse_change_attributes`.
    fn attributes(&mut self, flight: Flight, reply: Reply) {
        if self.inode && flight.outdated {
            return;
        }
        self.inode = true;
        self.outdate();
        self.stored = reply.value;
        self.attr = reply.valid.then_some(reply.value);
    }

    /// Another attribute version: what was asked before is not stored.
    pub(super) fn outdate(&mut self) {
        for reader in &mut self.readers {
            if let At::Waits(flight) = &mut reader.at {
                flight.outdated |= flight.request.tells_attributes();
            }
        }
    }

    /// A lookup's answer becomes a dentry.  A directory has one dentry: who revalidates it at this
    /// moment has it in the tree again.
    fn attach(&mut self, value: Value, long: bool, case: &Case) {
        self.e = Some(Dentry { value, valid: long });
        if case.directory && value == Value::Old {
            for reader in &mut self.readers {
                if let At::Waits(flight) = &mut reader.at {
                    flight.detached = false;
                }
            }
        }
    }

    /// The dentry of e leaves the tree while some revalidate it.
    pub(super) fn detach(&mut self) {
        for reader in &mut self.readers {
            if let At::Waits(flight) = &mut reader.at
                && flight.request == Request::RevalidateE
            {
                flight.detached = true;
            }
        }
    }

    // ---- the mutation -----------------------------------------------------------------------

    /// All that the program can do that changes something.
    pub(super) fn mutator_steps(&self, case: &Case, out: &mut Vec<(Label, State)>) {
        let Some(kind) = case.mutation else { return };
        let mut next = self.clone();
        let what = match (self.plain, kind) {
            (Plain::Idle, Mutation::Directory | Mutation::Place)
                if !self.exclusive && self.shared == 0 =>
            {
                (next.exclusive, next.plain) = (true, Plain::Sent);
                "sends a change of names, under D's lock"
            }
            (Plain::Idle, Mutation::OnlyRead) => {
                next.plain = Plain::Sent;
                "sends a change of what the transaction has only read"
            }
            (Plain::Idle, Mutation::Write) if !self.page_locked => {
                // A page that is up to date is not kept locked.
                let locks = self.page == Page::None;
                (next.page_locked, next.write_locks, next.plain) = (locks, locks, Plain::Sent);
                if locks {
                    "sends WRITE of a part of f's page, which stays locked"
                } else {
                    "sends WRITE of a part of f's page"
                }
            }
            (Plain::Idle, Mutation::Mapped) => match self.page {
                Page::Clean(value) => {
                    (next.page, next.plain) = (Page::Dirty(value), Plain::Stored);
                    "stores to f's page through a mapping"
                }
                Page::None if !self.page_locked => {
                    (next.page_locked, next.plain) = (true, Plain::Faults(None));
                    "meets a page fault: READ(f), under the page's lock"
                }
                _ => return,
            },
            (Plain::Faults(Some(value)), _) => {
                (next.page_locked, next.plain) = (false, Plain::Idle);
                next.page = Page::Clean(value);
                "its READ(f) lands"
            }
            (Plain::Stored, _) => {
                next.plain = Plain::Sent;
                "msync: WRITE of f's page"
            }
            (Plain::Answered, _) => {
                next.plain = Plain::Done;
                next.seen_new |= self.after;
                match kind {
                    Mutation::Directory | Mutation::Place => next.exclusive = false,
                    Mutation::OnlyRead => {}
                    Mutation::Write if self.write_locks => {
                        (next.page_locked, next.write_locks) = (false, false);
                    }
                    Mutation::Write => {}
                    Mutation::Mapped => {
                        if let Page::Dirty(value) = self.page {
                            next.page = Page::Clean(value);
                        }
                    }
                }
                "its call returns"
            }
            _ => return,
        };
        out.push(((Who::Mutator, what, ""), next));
    }

    // ---- the end ----------------------------------------------------------------------------

    /// Whether everybody has done what there was to do.
    pub(super) fn over(&self, case: &Case) -> bool {
        self.step == Step::Done
            && self.readers.iter().all(|r| r.at == At::Idle && r.left == 0)
            && (case.mutation.is_none() || self.plain == Plain::Done)
    }

    /// What is wrong at the end.
    pub(super) fn judge(&self, case: &Case) -> Option<&'static str> {
        if !self.over(case) {
            return Some("nobody can go on");
        }
        if case.mutation.is_some() && !self.mutated {
            return Some("the plain mutation is lost");
        }
        let old = Value::Old;
        let stale = (case.entry && self.e == Some(Dentry { value: old, valid: true }))
            || (case.attr && self.attr == Some(old))
            || (case.page && self.page == Page::Clean(old))
            || (case.list && self.list == Some(old));
        (self.flipped && stale).then_some("something stale stays in a cache")
    }
}
