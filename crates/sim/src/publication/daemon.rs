//! The daemon's side: answers, and the steps of the commit.

use super::state::{At, Dentry, Label, Page, Plain, Reply, Request, State, Value, Who};
use super::{Case, Mutation, Remedies};

/// Where the commit is; in this order, but for the loops around `Decide` and `Fence`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Step {
    /// Flush of f at the first transactional access.
    Flush,
    /// The transaction reads and writes what it changes: from here on it is in conflict.
    Access,
    Mark,
    Barrier,
    Entry,
    Attr,
    List,
    /// Flush of f at validation; in the settled protocol the invalidation of its pages, too.
    Settle,
    Decide,
    Durable,
    Pages,
    Fence,
    FenceEntry,
    FenceBarrier,
    FenceList,
    FencePages,
    /// The installation, in two steps.
    Flip,
    Release,
    /// The transaction has lost.
    Undo,
    Done,
}

impl Step {
    /// It waits for D's lock, exclusively.
    pub(super) fn wants_lock(self) -> bool {
        matches!(self, Step::Barrier | Step::Entry | Step::FenceBarrier | Step::FenceEntry)
    }

    /// The next one that this case and protocol have.
    fn next(self, case: &Case, r: &Remedies) -> Step {
        use Step::*;
        let line = [
            (Flush, false),
            (Access, true),
            (Mark, true),
            (Barrier, r.barrier),
            (Entry, case.entry),
            (Attr, case.attr),
            (List, case.list && r.listing),
            (Settle, case.page && flushes(case, r)),
            (Decide, true),
            (Durable, true),
            (Pages, case.page && !(r.settled && flushes(case, r))),
            (Fence, true),
        ];
        let later = line.into_iter().find(|(step, on)| *step > self && *on);
        later.map_or(Fence, |(step, _)| step)
    }
}

fn flushes(case: &Case, r: &Remedies) -> bool {
    case.writable() && r.flush
}

impl State {
    // ---- requests ---------------------------------------------------------------------------

    fn held(&self, request: Request, case: &Case, r: &Remedies) -> bool {
        use Request::*;
        if self.holds {
            return match request {
                LookupE | RevalidateE => case.entry,
                LookupF | RevalidateF | Getattr => case.attr,
                Read => case.page,
                Opendir | Readdir { .. } => case.list,
            };
        }
        if !(r.settled && self.decided && self.marked) {
            return false;
        }
        match request {
            LookupE => case.entry && case.directory,
            Opendir | Readdir { .. } => case.list,
            Read => case.page && flushes(case, r),
            RevalidateE | LookupF | RevalidateF | Getattr => false,
        }
    }

    fn answer(&mut self, request: Request, case: &Case, r: &Remedies) -> Reply {
        use Request::*;
        let in_d = matches!(request, LookupE | RevalidateE | Readdir { .. });
        let new = self.flipped || self.half && in_d;
        if self.marked && !new {
            match request {
                Request::LookupE => self.old_e = true,
                Request::Readdir { fills } => {
                    self.old_e |= case.entry;
                    self.old_list |= fills;
                }
                Request::Read => self.old_page = true,
                _ => {}
            }
        }
        let value = if new { Value::New } else { Value::Old };
        Reply { value, long: !(self.marked && r.marks) }
    }

    pub(super) fn daemon_steps(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        for who in 0..self.readers.len() {
            let At::Waits(flight) = self.readers[who].at else { continue };
            if flight.reply.is_none() && !self.held(flight.request, case, r) {
                let mut next = self.clone();
                let reply = next.answer(flight.request, case, r);
                next.set_reply(who, reply);
                out.push(((Who::Daemon, answers(reply), flight.request.name()), next));
            }
        }
        if self.plain == Plain::Faults(None) && !self.held(Request::Read, case, r) {
            let mut next = self.clone();
            let reply = next.answer(Request::Read, case, r);
            next.plain = Plain::Faults(Some(reply.value));
            out.push(((Who::Daemon, answers(reply), "READ(f) of the page fault"), next));
        }
        if self.plain == Plain::Sent {
            self.mutate(case, r, out);
        }
    }

    fn set_reply(&mut self, who: usize, reply: Reply) {
        if let At::Waits(flight) = &mut self.readers[who].at {
            flight.reply = Some(reply);
        }
    }

    /// A plain mutation never loses; it is held only for what is decided.
    fn mutate(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let mut next = self.clone();
        (next.mutated, next.plain) = (true, Plain::Answered);
        let free = self.doomed || self.step <= Step::Access || !self.marked && self.decided;
        if !free {
            let held = case.mutation == Some(Mutation::Directory) && !r.directories_run;
            if (self.decided && r.waits) || held {
                return;
            }
            next.doomed = r.dooms && !self.decided;
        }
        let what = if next.doomed && !self.doomed { "; the transaction loses by it" } else { "" };
        out.push(((Who::Daemon, "performs the plain mutation", what), next));
    }

    // ---- the commit -------------------------------------------------------------------------

    pub(super) fn commit_steps(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        use Step::*;
        let mut next = self.clone();
        next.step = self.step.next(case, r);
        let what = match self.step {
            Flush if !(case.page && flushes(case, r)) => "begins",
            Flush | Settle | Pages | FencePages => return self.invalidate_pages(case, r, out),
            Barrier | FenceBarrier | Entry | FenceEntry => return self.take_lock(case, r, out),
            Access => {
                next.carried = self.mutated;
                "reads and writes what it changes"
            }
            Mark => {
                next.marked = true;
                "marks: answers carry the old values with timeout 0 from here on"
            }
            Attr => {
                if self.inode {
                    next.attr = None;
                    for reader in &mut next.readers {
                        if let At::Waits(flight) = &mut reader.at {
                            flight.outdated = true;
                        }
                    }
                    "INVAL_INODE(f, -1)"
                } else {
                    "INVAL_INODE(f, -1) finds no inode"
                }
            }
            List | FenceList => {
                next.list = None;
                // A reply in flight is only known to have landed if it came before the Barrier.
                next.old_list &= r.barrier;
                if self.step == FenceList {
                    next.step = Fence;
                }
                "INVAL_INODE(D, 0)"
            }
            Decide if self.doomed => {
                next.step = Undo;
                "has lost"
            }
            Decide if r.settled && self.unsettled(case, r) => {
                next.step = Mark.next(case, r);
                "finds something that was answered old: invalidates again"
            }
            Decide => {
                next.decided = true;
                "DECIDES"
            }
            Durable => "is durable",
            Fence => return self.fence(case, r, out),
            Flip if !self.half => {
                (next.half, next.step) = (true, Flip);
                "installs D's names and listing"
            }
            Flip => {
                (next.flipped, next.mutated, next.step) = (true, self.carried, Release);
                "installs f's attributes and page"
            }
            Release | Undo => {
                (next.marked, next.holds, next.step) = (false, false, Done);
                "unmarks and releases"
            }
            Done => return,
        };
        out.push(((Who::Commit, what, ""), next));
    }

    /// Something in the caches that only an invalidation that a held mutation can lock out removes.
    fn unsettled(&self, case: &Case, r: &Remedies) -> bool {
        (r.names_again && case.entry && case.directory && self.old_e)
            || (r.listing_again && case.list && self.old_list)
            || (case.page && flushes(case, r) && self.old_page)
    }

    fn fence(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let mut next = self.clone();
        let names = !r.settled && r.names_again && case.entry && case.directory && self.old_e;
        let list = !r.settled && r.listing_again && case.list && self.old_list;
        let page = r.pages_again && case.page && self.old_page;
        let what = if names {
            next.step = Step::FenceEntry;
            "invalidates e again"
        } else if list {
            next.step = if r.barrier { Step::FenceBarrier } else { Step::FenceList };
            "invalidates the listing again"
        } else if (self.holds || !r.holds) && !page {
            next.step = Step::Flip;
            "finds nothing left"
        } else if page {
            next.step = Step::FencePages;
            "invalidates the page again"
        } else {
            next.holds = true;
            "finds nothing left and HOLDS in the same step"
        };
        out.push(((Who::Commit, what, ""), next));
        // Readers may come for ever: it need not wait until nothing is left of the pages.
        if page && r.holds && !self.holds && !names && !list {
            let mut next = self.clone();
            next.holds = true;
            out.push(((Who::Commit, "HOLDS before nothing is left", ""), next));
        }
    }

    /// Barrier and INVAL_ENTRY.
    fn take_lock(&self, case: &Case, r: &Remedies, out: &mut Vec<(Label, State)>) {
        let entry = matches!(self.step, Step::Entry | Step::FenceEntry);
        let mut next = self.clone();
        if !self.begun {
            next.begun = true;
            // "Since its invalidation began" is since the Barrier began that belongs to it.
            match self.step {
                Step::Barrier => (next.old_e, next.old_list) = (false, false),
                Step::FenceBarrier => next.old_list = false,
                Step::FenceEntry => next.old_e = false,
                _ => next.old_e &= r.barrier,
            }
            let what = if entry { "begins INVAL_ENTRY(e)" } else { "begins Barrier(D)" };
            out.push(((Who::Commit, what, ""), next));
            return;
        }
        let at_once = entry && case.later_kernel && self.e.is_none();
        if !at_once && (self.shared > 0 || self.exclusive) {
            return;
        }
        next.begun = false;
        next.step = match self.step {
            Step::FenceEntry => Step::Fence,
            Step::FenceBarrier => Step::FenceList,
            step => step.next(case, r),
        };
        let what = if !entry {
            "Barrier(D) returns"
        } else if at_once {
            "INVAL_ENTRY(e) finds no name and returns at once"
        } else {
            "INVAL_ENTRY(e) returns"
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
            out.push(((Who::Commit, "begins INVAL_INODE(f, page)", ""), next));
            return;
        }
        let dirty = matches!(self.page, Page::Dirty(_));
        if dirty && self.plain == Plain::Stored {
            next.plain = Plain::Sent;
            let what = "INVAL_INODE(f, page) writes the dirty page back: WRITE";
            out.push(((Who::Commit, what, ""), next));
        } else if !(self.page_locked || dirty && self.plain == Plain::Sent) {
            (next.begun, next.page) = (false, Page::None);
            next.step = match self.step {
                Step::FencePages => Step::Fence,
                step => step.next(case, r),
            };
            out.push(((Who::Commit, "INVAL_INODE(f, page) returns", ""), next));
        } else if self.page_locked && self.holds && r.spare_way {
            self.let_stuck_reads_go(out);
        }
    }

    /// The invalidation is stuck: the held READ that has the page locked is answered old.
    fn let_stuck_reads_go(&self, out: &mut Vec<(Label, State)>) {
        let mut next = self.clone();
        next.old_page = true;
        if self.plain == Plain::Faults(None) {
            next.plain = Plain::Faults(Some(Value::Old));
        }
        for who in 0..self.readers.len() {
            if let At::Waits(flight) = self.readers[who].at
                && flight.request == Request::Read
                && flight.reply.is_none()
            {
                next.set_reply(who, Reply { value: Value::Old, long: false });
            }
        }
        if next.readers != self.readers || next.plain != self.plain {
            let what = "lets the READ go that the invalidation is stuck behind: answers it old";
            out.push(((Who::Commit, what, ""), next));
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
