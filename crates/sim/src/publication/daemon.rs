//! The daemon's side: answers, and the steps of the commit.

use super::state::{At, Dentry, Flight, Label, Page, Plain, Reply, Request, State, Value, Who};
use super::{Case, Mutation, Remedies};

/// Where the commit is; in this order, but for the rounds before `Decide`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Step {
    /// Pages of f are dropped at the first transactional access.
    Flush,
    /// The transaction reads and writes what it changes: from here on it is in conflict.
    Access,
    Mark,
    Barrier,
    Entry,
    Attr,
    List,
    Pages,
    /// Settles and decides, or goes round again.
    Decide,
    /// A Barrier that is not answered until the commit is decided; what is done meanwhile.
    Lock,
    LockedList,
    LockedNames,
    LockedDecide,
    Durable,
    /// The installation, in two steps.
    Flip,
    /// The changes that were held go; then the reads.
    LetGo,
    Release,
    /// The transaction has lost.
    Undo,
    Done,
}

impl Step {
    /// It waits for D's lock, exclusively.
    pub(super) fn wants_lock(self) -> bool {
        matches!(self, Step::Barrier | Step::Entry | Step::Lock)
    }
}

impl State {
    /// The step after `step` that this case, protocol and round have.
    fn next_after(&self, step: Step, case: &Case, r: &Remedies) -> Step {
        use Step::*;
        let dir = self.todo_dir;
        let line = [
            (Access, true),
            (Mark, true),
            (Barrier, dir && r.barrier && (r.barrier_again || !self.again)),
            (Entry, dir && case.entry && r.names),
            (Attr, case.attr && r.attributes && !self.again),
            (List, dir && case.list && r.listing),
            (Pages, case.page && r.pages && self.todo_page),
            (Decide, true),
        ];
        let later = line.into_iter().find(|(to, on)| *to > step && *on);
        later.map_or(Decide, |(to, _)| to)
    }

    // ---- requests ---------------------------------------------------------------------------

    fn held(&self, flight: Option<Flight>, request: Request, case: &Case, r: &Remedies) -> bool {
        use Request::*;
        if !self.marked {
            return false;
        }
        if !self.decided {
            // How long does not count here: what is let go may come at any time.
            let early = flight.is_some_and(|f| f.early);
            return request == Read && case.page && !early && !r.reads_let_go;
        }
        let about = match request {
            LookupE | RevalidateE => case.entry,
            LookupF | RevalidateF | Getattr => case.attr,
            Read => case.page,
            Readdir { .. } => case.list,
            Opendir => false,
        };
        r.holds && about
    }

    /// What is there, and a note of it if it is old.
    fn take(&mut self, request: Request, early: bool, names: bool, case: &Case) -> Value {
        use Request::*;
        let in_d = matches!(request, LookupE | RevalidateE | Readdir { .. });
        let new = self.flipped || self.half && in_d;
        if self.marked && !new {
            match request {
                LookupE | RevalidateE => self.old_e |= case.directory,
                Readdir { .. } => {
                    self.old_list = true;
                    self.old_e |= names && case.directory;
                }
                Read => self.old_page |= !early,
                _ => {}
            }
        }
        if new { Value::New } else { Value::Old }
    }

    /// What it is told with.
    fn tell(&self, value: Value, r: &Remedies) -> Reply {
        let long = !(self.marked && r.marks);
        Reply { value, long, valid: long && !self.afterwards }
    }

    pub(super) fn daemon_steps(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        for who in 0..self.readers.len() {
            let At::Waits(flight) = self.readers[who].at else { continue };
            let (None, request) = (flight.reply, flight.request) else { continue };
            let mut next = self.clone();
            let value = match flight.taken {
                Some(value) => value,
                None if self.held(Some(flight), request, case, r) => continue,
                None => next.take(request, flight.early, r.listed_names, case),
            };
            if r.alone || flight.taken.is_some() {
                let reply = next.tell(value, r);
                next.change_flight(who, |flight| {
                    (flight.reply, flight.taken, flight.early) = (Some(reply), None, false);
                });
                out.push(((Who::Daemon, answers(reply), request.name()), next));
            } else {
                next.change_flight(who, |flight| flight.taken = Some(value));
                out.push(((Who::Daemon, "looks what it has to answer:", request.name()), next));
            }
        }
        if self.plain == Plain::Faults(None) && !self.held(None, Request::Read, case, r) {
            let mut next = self.clone();
            let value = next.take(Request::Read, false, r.listed_names, case);
            next.plain = Plain::Faults(Some(value));
            let what = answers(next.tell(value, r));
            out.push(((Who::Daemon, what, "READ(f) of the page fault"), next));
        }
        if self.plain == Plain::Sent {
            self.mutate(case, r, out);
        }
        // The time is over: whether anybody has asked meanwhile is another matter.
        if self.afterwards && (!r.asked || self.stored == Value::New) {
            let mut next = self.clone();
            next.afterwards = false;
            out.push(((Who::Daemon, "tells attributes with validity again", ""), next));
        }
    }

    fn change_flight(&mut self, who: usize, change: impl FnOnce(&mut Flight)) {
        if let At::Waits(flight) = &mut self.readers[who].at {
            change(flight);
        }
    }

    /// A plain mutation never loses; it is held only for what is decided.
    fn mutate(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let mut next = self.clone();
        (next.mutated, next.plain) = (true, Plain::Answered);
        let over = self.doomed || self.released;
        if !over && self.step > Step::Access {
            if self.decided {
                let waits = match case.mutation {
                    Some(Mutation::Place) => r.places,
                    Some(Mutation::OnlyRead) => r.only_read,
                    _ => r.waits,
                };
                if waits {
                    return;
                }
                if case.mutation == Some(Mutation::Place) && !self.flipped {
                    next.wrong = Some("the installation does not find what it relies on");
                }
            } else if case.mutation == Some(Mutation::Directory) && !r.directories_run {
                return;
            } else {
                next.doomed = r.dooms;
            }
        }
        next.after = self.step > Step::Access && !next.doomed;
        let what = if next.doomed && !self.doomed { "; the transaction loses by it" } else { "" };
        out.push(((Who::Daemon, "performs the plain mutation", what), next));
    }

    // ---- the commit -------------------------------------------------------------------------

    pub(super) fn commit_steps(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        use Step::*;
        let mut next = self.clone();
        next.step = self.next_after(self.step, case, r);
        let what = match self.step {
            Flush if !(case.page && case.writable()) => "begins",
            Flush | Pages => return self.invalidate_pages(case, r, out),
            Barrier | Entry | Lock => return self.take_lock(case, r, out),
            Access => {
                next.carried = self.mutated;
                "reads and writes what it changes"
            }
            Mark => {
                next.marked = true;
                "marks: answers carry the old values with timeout 0 from here on"
            }
            Attr => {
                // INVAL_INODE takes the inode's spin lock.
                if self.storing {
                    return;
                }
                if self.inode {
                    next.attr = None;
                    next.outdate();
                    "INVAL_INODE(f, -1)"
                } else {
                    "INVAL_INODE(f, -1) finds no inode"
                }
            }
            List | LockedList => {
                next.list = None;
                if self.step == LockedList {
                    next.step = LockedNames;
                }
                "INVAL_INODE(D, 0)"
            }
            Decide => return self.settle(case, r, out),
            LockedNames => {
                next.step = LockedDecide;
                if self.old_e && r.epoch {
                    (next.e, next.f) = (None, None);
                    next.detach();
                }
                (next.old_e, next.old_list) = (false, false);
                if self.old_e { "INC_EPOCH: all names are stale" } else { "no name is to go" }
            }
            LockedDecide => return self.settle(case, r, out),
            Durable => {
                next.step = Flip;
                "is durable"
            }
            Flip if !self.half => {
                (next.half, next.step) = (true, Flip);
                "installs D's names and listing"
            }
            Flip => {
                (next.flipped, next.step) = (true, LetGo);
                // It writes what the transaction made, over what came between.
                if !matches!(case.mutation, Some(Mutation::OnlyRead | Mutation::Place)) {
                    next.mutated = self.carried;
                }
                "installs f's attributes and page"
            }
            LetGo => {
                (next.released, next.step) = (true, Release);
                "lets go the changes that were held"
            }
            // A change that was held is waited for.
            Release if self.plain == Plain::Sent => return,
            Release => {
                (next.marked, next.step) = (false, Done);
                next.afterwards = case.attr && r.afterwards;
                // Whoever waited for the commit knows of it.
                next.seen_new = true;
                "unmarks and releases"
            }
            Undo => {
                (next.marked, next.step) = (false, Done);
                "unmarks and releases"
            }
            Done => return,
        };
        out.push(((Who::Commit, what, ""), next));
    }

    /// Decides if nothing was answered old since its invalidation began.
    fn settle(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let mut next = self.clone();
        if self.step == Step::LockedDecide {
            next.exclusive = false;
        }
        let dir = (r.names_again && case.entry && case.directory && self.old_e)
            || (r.listing_again && case.list && self.old_list);
        let page = r.pages_again && case.page && self.old_page;
        let what = if self.doomed {
            next.step = Step::Undo;
            "has lost"
        } else if !r.settled && !self.decided {
            next.decided = true;
            if dir || page {
                next.go_round(dir, page, case, r);
            } else {
                next.step = Step::Durable;
            }
            "DECIDES, whatever was answered old"
        } else if dir || page {
            if self.step == Step::Decide && dir && r.settled {
                // The same with D locked, where it is looked up and listed without pause.
                let mut locked = self.clone();
                locked.step = Step::Lock;
                out.push(((Who::Commit, "goes round again, with D locked", ""), locked));
            }
            next.go_round(dir, page, case, r);
            "finds something that was answered old: invalidates again"
        } else {
            (next.decided, next.step) = (true, Step::Durable);
            "finds nothing left and DECIDES: everything is held from here on"
        };
        out.push(((Who::Commit, what, ""), next));
    }

    fn go_round(&mut self, dir: bool, page: bool, case: &Case, r: &Remedies) {
        (self.again, self.todo_dir, self.todo_page) = (true, dir, page);
        if dir {
            // What is answered from here on counts.
            (self.old_e, self.old_list) = (false, false);
        }
        self.step = self.next_after(Step::Mark, case, r);
    }

    /// Barrier and INVAL_ENTRY.
    fn take_lock(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let entry = self.step == Step::Entry;
        let mut next = self.clone();
        if !self.begun {
            next.begun = true;
            let what = if entry { "begins INVAL_ENTRY(e)" } else { "begins Barrier(D)" };
            out.push(((Who::Commit, what, ""), next));
            return;
        }
        let at_once = entry && case.later_kernel && self.e.is_none();
        if !at_once && (self.shared > 0 || self.exclusive) {
            return;
        }
        next.begun = false;
        let what = if self.step == Step::Lock {
            (next.exclusive, next.step) = (true, Step::LockedList);
            "Barrier(D) has the lock, and keeps it"
        } else {
            next.step = self.next_after(self.step, case, r);
            match (entry, at_once) {
                (false, _) => "Barrier(D) returns",
                (true, true) => "INVAL_ENTRY(e) finds no name and returns at once",
                (true, false) => "INVAL_ENTRY(e) returns",
            }
        };
        if entry && next.e.take().is_some_and(|e: Dentry| e.value == Value::Old) {
            next.detach();
        }
        out.push(((Who::Commit, what, ""), next));
    }

    /// INVAL_INODE(f, range).
    fn invalidate_pages(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let mut next = self.clone();
        if !self.begun {
            (next.begun, next.old_page) = (true, false);
            for reader in &mut next.readers {
                if let At::Waits(flight) = &mut reader.at {
                    flight.early = self.marked
                        && flight.request == Request::Read
                        && (flight.reply, flight.taken) == (None, None);
                }
            }
            let what = "begins INVAL_INODE(f, page); READs that came before may go";
            out.push(((Who::Commit, what, ""), next));
            return;
        }
        let dirty = matches!(self.page, Page::Dirty(_));
        if dirty && self.plain == Plain::Stored {
            next.plain = Plain::Sent;
            let what = "INVAL_INODE(f, page) writes the dirty page back: WRITE";
            out.push(((Who::Commit, what, ""), next));
        } else if !(self.page_locked || dirty && self.plain == Plain::Sent) {
            (next.begun, next.page) = (false, Page::None);
            next.step = self.next_after(self.step, case, r);
            out.push(((Who::Commit, "INVAL_INODE(f, page) returns", ""), next));
        }
    }
}

fn answers(reply: Reply) -> &'static str {
    match (reply.value, reply.long) {
        (Value::Old, true) => "answers OLD with a long timeout:",
        (Value::Old, false) => "answers OLD with timeout 0:",
        (Value::New, true) => "answers NEW with a long timeout:",
        (Value::New, false) => "answers NEW with timeout 0:",
    }
}
