//! A model of a plain write(2) in flight, explored state by state: what the kernel shows before the
//! daemon knows of it, or after, and what the inode's lock closes of that
//! (`crates/guard/src/inode_locks.rs`).
//!
//! There is one file *f*, one program that opens it and writes to it, one transaction that reads *f*
//! and changes something else, *o*, one moment at which the daemon has f's page dropped, and
//! readers.
//!
//! What is modelled of the kernel (fs/fuse of 6.18): write(2) has f's `i_rwsem` exclusively all the
//! time. An *overwrite* is in the page, for everybody to see, before the request is sent
//! (`fuse_perform_write`); the length that an *append* makes is in the inode only when the answer
//! has come (`fuse_write_update_attr`), but in every answer to GETATTR since the daemon has
//! performed it, and a stat shows the answer, whatever becomes of the inode
//! (`FUSE_I_SIZE_UNSTABLE`). READ has the page locked, for which a write waits. Some calls ask
//! GETATTR with `i_rwsem` taken (permissions in setxattr, `SEEK_END`): the *asker*.
//!
//! Checked in every state: (a) who has seen the write, or hears from somebody who has, does not see
//! f without it; (b) there is an order of write, transaction and readers; (c) somebody can go on
//! until all have ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What the write does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Write {
    /// It changes bytes that are there.
    Overwrite,
    /// It makes the file longer.
    Append,
}

/// A bounded case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The write.
    pub write: Write,
    /// The transaction is aged: writes to what it has read are held.
    pub aged: bool,
    /// Somebody asks for attributes with the inode locked.
    pub asker: bool,
    /// Number of readers.
    pub readers: usize,
    /// Accesses by each.
    pub accesses: u8,
}

/// What closes the windows; each can be taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remedies {
    /// The decision is made with f locked.
    pub decision: bool,
    /// The page is dropped with f locked.
    pub drop: bool,
    /// Attributes with a write that the daemon has performed are told after a barrier.
    pub attributes: bool,
    /// That barrier is not waited for without end.
    pub bounded: bool,
    /// An aged transaction locks f before it reads it, until it is decided; unless nobody has f
    /// open for writing.
    pub keep_out: bool,
    /// It says so before it looks who has.
    pub says_first: bool,
    /// Who opens f for writing is counted first, and asks then whether an aged one has said so, or
    /// has read it.
    pub counts_first: bool,
    /// No READ waits for a barrier.
    pub reads_go: bool,
}

impl Remedies {
    /// The protocol.
    pub const ALL: Remedies = Remedies {
        decision: true,
        drop: true,
        attributes: true,
        bounded: true,
        keep_out: true,
        says_first: true,
        counts_first: true,
        reads_go: true,
    };

    /// Each remedy taken away in turn, with its name.
    pub fn each_without() -> Vec<(&'static str, Remedies)> {
        let all = Remedies::ALL;
        vec![
            ("decision", Remedies { decision: false, ..all }),
            ("drop", Remedies { drop: false, ..all }),
            ("attributes", Remedies { attributes: false, ..all }),
            ("bounded", Remedies { bounded: false, ..all }),
            ("keeping out", Remedies { keep_out: false, ..all }),
            ("saying first", Remedies { says_first: false, ..all }),
            ("counting first", Remedies { counts_first: false, ..all }),
            ("reads go", Remedies { reads_go: false, ..all }),
        ]
    }
}

/// All cases with so many readers and accesses.
pub fn cases(readers: usize, accesses: u8) -> Vec<Case> {
    let mut all = Vec::new();
    for write in [Write::Overwrite, Write::Append] {
        for (aged, asker) in [(false, false), (false, true), (true, false), (true, true)] {
            all.push(Case { write, aged, asker, readers, accesses });
        }
    }
    all
}

/// Who has f's `i_rwsem`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Holder {
    Writer,
    /// The daemon, for the transaction.
    Commit,
    /// The daemon, to drop the page.
    Dropper,
    Asker,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Writer {
    Closed,
    /// One half of open(2) is done: it is counted, or has asked and may go on.
    Opening,
    /// It has f open for writing.
    Idle,
    /// It has the lock.
    Begun,
    /// In the page, and on its way to the daemon.
    Sent,
    /// The daemon has performed it.
    Performed,
    Landed,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Commit {
    Begun,
    /// Aged: one half is done: it has said that it is about to read, or has seen that nobody has f
    /// open.
    Looking,
    /// It has done both, and somebody has f open, or nobody.
    Meets,
    Alone,
    Read,
    Locked,
    Decided,
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Dropper {
    Idle,
    Locked,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Idle,
    /// A READ is at the daemon: the page is locked.
    Reads,
    /// Its answer is on its way.
    Read {
        new: bool,
    },
    /// GETATTR has been performed, and waits for a barrier if that is needed.
    Asked {
        new: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Reader {
    left: u8,
    at: At,
    /// When its access began, somebody had seen the write.
    after_write: bool,
    /// When its access began, somebody had seen the commit.
    after_commit: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    lock: Option<Holder>,
    /// What f's page has, if it is there: the write or not.
    page: Option<bool>,
    page_locked: bool,
    /// The kernel's length has the write.
    size: bool,
    writer: Writer,
    commit: Commit,
    /// What the transaction read.
    read: Option<bool>,
    dropper: Dropper,
    asker: Option<At>,
    readers: Vec<Reader>,
    seen_write: bool,
    seen_commit: bool,
    /// Somebody saw the write, and then o as it was before the commit.
    write_then_old: bool,
    wrong: Option<&'static str>,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// In a few words.
    pub what: &'static str,
    /// One line for each step from the beginning.
    pub trace: Vec<&'static str>,
}

impl State {
    fn new(case: &Case) -> State {
        let reader =
            Reader { left: case.accesses, at: At::Idle, after_write: false, after_commit: false };
        State {
            lock: None,
            page: Some(false),
            page_locked: false,
            size: false,
            writer: Writer::Closed,
            commit: Commit::Begun,
            read: None,
            dropper: Dropper::Idle,
            asker: case.asker.then_some(At::Idle),
            readers: vec![reader; case.readers],
            seen_write: false,
            seen_commit: false,
            write_then_old: false,
            wrong: None,
        }
    }

    /// The daemon's state of f has the write.
    fn performed(&self) -> bool {
        self.writer >= Writer::Performed
    }

    fn over(&self) -> bool {
        self.writer == Writer::Landed
            && self.commit >= Commit::Decided
            && self.dropper == Dropper::Done
            && self.asker.is_none()
            && self.readers.iter().all(|r| r.left == 0 && r.at == At::Idle)
    }

    fn steps(&self, case: &Case, r: &Remedies) -> Vec<(&'static str, State)> {
        let mut out = Vec::new();
        self.writer_steps(case, r, &mut out);
        self.commit_steps(case, r, &mut out);
        self.dropper_steps(r, &mut out);
        self.asker_steps(r, &mut out);
        for who in 0..self.readers.len() {
            self.reader_steps(who, case, r, &mut out);
        }
        out
    }

    /// Whether who asks before he opens f for writing has to wait.
    fn is_kept_out(&self, case: &Case, r: &Remedies) -> bool {
        let says = match self.commit {
            Commit::Looking => r.says_first,
            Commit::Meets | Commit::Alone | Commit::Read | Commit::Locked => true,
            Commit::Begun | Commit::Decided | Commit::Lost => false,
        };
        case.aged && says
    }

    /// Whether f is counted as open for writing.
    fn is_counted(&self, r: &Remedies) -> bool {
        self.writer > Writer::Opening || self.writer == Writer::Opening && r.counts_first
    }

    fn opening_step(&self, case: &Case, r: &Remedies, out: &mut Vec<(&'static str, State)>) {
        let asks = (self.writer == Writer::Opening) == r.counts_first;
        if asks && self.is_kept_out(case, r) {
            return;
        }
        let mut next = self.clone();
        let closed = self.writer == Writer::Closed;
        next.writer = if closed { Writer::Opening } else { Writer::Idle };
        let what =
            if asks { "open(2) asks, and may go on" } else { "open(2) for writing is counted" };
        out.push((what, next));
    }

    fn writer_steps(&self, case: &Case, r: &Remedies, out: &mut Vec<(&'static str, State)>) {
        let mut next = self.clone();
        let what = match self.writer {
            Writer::Closed | Writer::Opening => return self.opening_step(case, r, out),
            Writer::Idle if self.lock.is_none() => {
                (next.lock, next.writer) = (Some(Holder::Writer), Writer::Begun);
                "write(2) has f's lock"
            }
            Writer::Begun if !self.page_locked => {
                next.writer = Writer::Sent;
                if case.write == Write::Overwrite {
                    next.page = Some(true);
                }
                "write(2) has changed the page and sends WRITE"
            }
            Writer::Sent => {
                let met = matches!(self.commit, Commit::Read | Commit::Locked);
                if met && case.aged && case.write == Write::Overwrite {
                    // Held until the transaction ends.
                    return;
                }
                next.writer = Writer::Performed;
                if met {
                    next.commit = Commit::Lost;
                    if next.lock == Some(Holder::Commit) {
                        next.lock = None;
                    }
                }
                "the daemon performs WRITE"
            }
            Writer::Performed => {
                (next.lock, next.writer, next.size) = (None, Writer::Landed, true);
                "write(2) returns"
            }
            _ => return,
        };
        out.push((what, next));
    }

    fn commit_steps(&self, case: &Case, r: &Remedies, out: &mut Vec<(&'static str, State)>) {
        let mut next = self.clone();
        let early = case.aged && r.keep_out;
        let found = if self.is_counted(r) { Commit::Meets } else { Commit::Alone };
        let what = match self.commit {
            Commit::Begun if early && r.says_first => {
                next.commit = Commit::Looking;
                "the aged transaction says that it is about to read f"
            }
            Commit::Looking if r.says_first => {
                next.commit = found;
                "it looks who has f open for writing"
            }
            // Whom it meets it locks out in any order.
            Commit::Begun if early => {
                next.commit = if found == Commit::Meets { found } else { Commit::Looking };
                "the aged transaction looks who has f open for writing"
            }
            Commit::Looking => {
                next.commit = Commit::Alone;
                "it says that it is about to read f"
            }
            Commit::Meets if self.lock != Some(Holder::Commit) => {
                if self.lock.is_some() {
                    return;
                }
                next.lock = Some(Holder::Commit);
                "the aged transaction locks f"
            }
            Commit::Begun | Commit::Meets | Commit::Alone => {
                (next.read, next.commit) = (Some(self.performed()), Commit::Read);
                "the transaction reads f"
            }
            Commit::Read if r.decision && self.lock != Some(Holder::Commit) => {
                if self.lock.is_some() {
                    return;
                }
                (next.lock, next.commit) = (Some(Holder::Commit), Commit::Locked);
                "the commit locks f"
            }
            Commit::Read | Commit::Locked => {
                next.commit = Commit::Decided;
                if next.lock == Some(Holder::Commit) {
                    next.lock = None;
                }
                "the commit is decided, and o is new for everybody"
            }
            Commit::Decided | Commit::Lost => return,
        };
        next.judge();
        out.push((what, next));
    }

    fn dropper_steps(&self, r: &Remedies, out: &mut Vec<(&'static str, State)>) {
        let mut next = self.clone();
        let what = match self.dropper {
            Dropper::Idle if r.drop => {
                if self.lock.is_some() {
                    return;
                }
                (next.lock, next.dropper) = (Some(Holder::Dropper), Dropper::Locked);
                "the daemon locks f to drop its page"
            }
            Dropper::Idle | Dropper::Locked if !self.page_locked => {
                (next.page, next.dropper) = (None, Dropper::Done);
                if next.lock == Some(Holder::Dropper) {
                    next.lock = None;
                }
                "the daemon has f's page dropped"
            }
            _ => return,
        };
        out.push((what, next));
    }

    /// It has the lock, asks, and goes on when it is answered.
    fn asker_steps(&self, r: &Remedies, out: &mut Vec<(&'static str, State)>) {
        let mut next = self.clone();
        let what = match self.asker {
            Some(At::Idle) if self.lock.is_none() => {
                next.lock = Some(Holder::Asker);
                next.asker = Some(At::Asked { new: self.performed() });
                "setxattr(2) has f's lock and sends GETATTR"
            }
            Some(At::Asked { new }) => {
                // A write that is over, or not: the daemon cannot tell.
                if new && r.attributes && !r.bounded {
                    return;
                }
                (next.lock, next.asker) = (None, None);
                "setxattr(2) is answered and returns"
            }
            _ => return,
        };
        out.push((what, next));
    }

    fn reader_steps(
        &self,
        who: usize,
        case: &Case,
        r: &Remedies,
        out: &mut Vec<(&'static str, State)>,
    ) {
        let reader = self.readers[who];
        match reader.at {
            At::Idle if reader.left > 0 => {
                let mut begun = self.clone();
                let me = &mut begun.readers[who];
                me.left -= 1;
                (me.after_write, me.after_commit) = (self.seen_write, self.seen_commit);
                let mut next = begun.clone();
                next.sees_o(who);
                out.push(("a reader looks at o", next));
                if case.write == Write::Append {
                    let mut next = begun.clone();
                    next.sees_f(who, self.size);
                    out.push(("a reader reads up to the end that the kernel knows", next));
                    begun.readers[who].at = At::Asked { new: self.performed() };
                    out.push(("a reader sends GETATTR, and it is performed", begun));
                } else if let Some(new) = self.page.filter(|_| !self.page_locked) {
                    begun.sees_f(who, new);
                    out.push(("a reader reads f's page in the cache", begun));
                } else if !self.page_locked {
                    begun.page_locked = true;
                    begun.readers[who].at = At::Reads;
                    out.push(("a reader sends READ, with the page locked", begun));
                }
            }
            At::Reads if r.reads_go || self.lock.is_none() => {
                let mut next = self.clone();
                next.readers[who].at = At::Read { new: self.performed() };
                out.push(("the daemon answers READ", next));
            }
            At::Read { new } => {
                let mut next = self.clone();
                (next.page, next.page_locked) = (Some(new), false);
                next.sees_f(who, new);
                out.push(("READ lands", next));
            }
            At::Asked { new } => {
                // The barrier passes when nobody has the lock, or only the daemon, which it waits
                // for.
                let in_flight = self.writer == Writer::Performed;
                let asker = self.lock == Some(Holder::Asker) && !r.bounded;
                if !(new && r.attributes && (in_flight || asker)) {
                    let mut next = self.clone();
                    next.sees_f(who, new);
                    out.push(("stat(2) returns", next));
                }
            }
            At::Idle | At::Reads => {}
        }
    }

    fn sees_f(&mut self, who: usize, new: bool) {
        let Reader { after_write, after_commit, .. } = self.readers[who];
        if !new && after_write {
            self.wrong = Some("the write is seen, and then not");
        }
        if !new && after_commit && self.read == Some(true) {
            self.wrong = Some("a commit that read the write is seen, and then the write is not");
        }
        self.seen_write |= new;
        self.readers[who].at = At::Idle;
    }

    fn sees_o(&mut self, who: usize) {
        if self.commit == Commit::Decided {
            self.seen_commit = true;
        } else if self.readers[who].after_write {
            self.write_then_old = true;
        }
        self.readers[who].at = At::Idle;
    }

    fn judge(&mut self) {
        if self.commit == Commit::Decided && self.read == Some(false) && self.write_then_old {
            self.wrong = Some("the write was seen before a commit that comes before the write");
        }
    }
}

/// Goes through all states of a case; what is wrong first, if anything, and how many states there
/// were.
pub fn explore(case: &Case, r: &Remedies) -> (usize, Option<Found>) {
    let mut states: Vec<(State, usize, &'static str)> = vec![(State::new(case), 0, "")];
    let mut known = HashMap::from([(states[0].0.clone(), 0)]);
    let mut at = 0;
    while at < states.len() {
        let state = states[at].0.clone();
        let next = state.steps(case, r);
        let stuck = next.is_empty() && !state.over();
        if let Some(what) = state.wrong.or(stuck.then_some("nobody can go on")) {
            let mut trace = Vec::new();
            let mut back = at;
            while back != 0 {
                trace.push(states[back].2);
                back = states[back].1;
            }
            trace.reverse();
            return (states.len(), Some(Found { what, trace }));
        }
        for (label, next) in next {
            if let Entry::Vacant(new) = known.entry(next) {
                states.push((new.key().clone(), at, label));
                new.insert(states.len() - 1);
            }
        }
        at += 1;
    }
    (states.len(), None)
}
