//! Critical sections that were recorded in the manager of systx, on more processors than it had.
//!
//! A trace is a table (`bench/metatm --record` makes it): one line for each section of a ranked
//! lock (`systx_base::sync`), with its thread, its begin and how long it was held, where in the
//! code, and what it touched where that is known (the conflict table).  Each thread of the model
//! repeats what one recorded thread did.  What only one recorded thread used, each repetition has
//! for itself.

use super::{Addr, Kind, LINE, Lock, Op, Site, SiteId, ThreadSpec, Workload};
use std::collections::{BTreeMap, BTreeSet};

/// What sections touch of which it is not known what they touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// The same word, of each lock: all of them conflict.
    Same,
    /// A word of the lock and the thread: none of them does.
    Own,
}

/// Longer pauses than this are waits for a request, in nanoseconds.
const BUSY: u64 = 20_000;
/// Longer waits than this are as long as this.
const IDLE: u64 = 100_000;
/// Cycles of a request to the kernel in a section, beside what the section took anyway.
const REQUEST: u32 = 1;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Section {
    thread: u32,
    begun: u64,
    ended: u64,
    lock: u32,
    place: String,
    io: u32,
    /// What was read, or changed.
    touched: Vec<(u32, bool)>,
}

/// A recorded trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// By thread, in the order of their begins; inner ones end before outer ones.
    threads: Vec<Vec<Section>>,
    /// Which locks, and which objects, several threads have used.
    shared: [Vec<u32>; 2],
    counts: [u32; 2],
    names: BTreeMap<u32, String>,
}

impl Trace {
    /// Reads the table: a head, then `thread,begun,held,lock,name,place,io,touched` in each line.
    /// Times are nanoseconds; locks and objects are numbers from 0; `touched` has `N` for an object
    /// that was read and `N!` for one that was changed.
    ///
    /// # Errors
    /// A text that names the line and what is wrong with it.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut trace = Trace {
            threads: Vec::new(),
            shared: [Vec::new(), Vec::new()],
            counts: [0, 0],
            names: BTreeMap::new(),
        };
        let mut by_thread: BTreeMap<u32, Vec<Section>> = BTreeMap::new();
        for (n, line) in text.lines().enumerate().skip(1) {
            let (section, name) = section(line)
                .ok_or_else(|| format!("line {}: {line:?} is not a section", n + 1))?;
            trace.names.insert(section.lock, name);
            by_thread.entry(section.thread).or_default().push(section);
        }
        for sections in by_thread.values_mut() {
            sections.sort_by_key(|s| (s.begun, std::cmp::Reverse(s.ended)));
        }
        trace.threads = by_thread.into_values().collect();
        if trace.threads.is_empty() {
            return Err("there are no sections".to_owned());
        }
        trace.count();
        Ok(trace)
    }

    /// The names of its locks.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let names: BTreeSet<_> = self.names.values().map(String::as_str).collect();
        names.into_iter().collect()
    }

    fn count(&mut self) {
        let mut users: [BTreeMap<u32, (usize, bool)>; 2] = [BTreeMap::new(), BTreeMap::new()];
        for (thread, sections) in self.threads.iter().enumerate() {
            for section in sections {
                let objects = section.touched.iter().map(|(o, _)| (1, *o));
                for (kind, number) in objects.chain([(0, section.lock)]) {
                    let user = users[kind].entry(number).or_insert((thread, false));
                    user.1 |= user.0 != thread;
                }
            }
        }
        for (kind, users) in users.iter().enumerate() {
            let shared = users.iter().filter(|(_, (_, shared))| *shared);
            self.shared[kind] = shared.map(|(number, _)| *number).collect();
            self.counts[kind] = users.keys().max().map_or(0, |n| n + 1);
        }
    }

    /// The number of a lock (0) or an object (1) in a repetition.
    fn number(&self, kind: usize, number: u32, repetition: usize) -> u32 {
        match self.shared[kind].binary_search(&number) {
            Ok(_) => number,
            Err(_) => number + repetition as u32 * self.counts[kind],
        }
    }

    /// The trace on so many processors, with a thread for each.
    #[must_use]
    pub fn workload(&self, processors: usize, seed: u64, unknown: Unknown) -> Workload {
        self.finer(processors, seed, unknown, &[])
    }

    /// The same, with the locks of these names so fine that no two threads meet at one, nor at what
    /// it protects: the most that could be gained by several locks instead of one.
    #[must_use]
    pub fn finer(
        &self,
        processors: usize,
        seed: u64,
        unknown: Unknown,
        finer: &[&str],
    ) -> Workload {
        let repetitions = processors.div_ceil(self.threads.len()) as u32;
        let common = self.counts[0] * repetitions;
        // Beside the common ones, each thread has one of its own for each.
        let locks = common + if finer.is_empty() { 0 } else { self.counts[0] * processors as u32 };
        let objects = self.counts[1] * repetitions;
        let fine = |name: &String| finer.contains(&name.as_str());
        let mut plan = Plan {
            unknown,
            common,
            finer: self.names.iter().filter(|(_, name)| fine(name)).map(|(n, _)| *n).collect(),
            sites: Vec::new(),
            by_place: BTreeMap::new(),
            threads: processors as u32,
            objects: locks * processors as u32 * LINE,
        };
        let threads = (0..processors).map(|n| {
            let ops = self.program(n, seed, &mut plan);
            ThreadSpec { nice: 0, realtime: None, program: Box::new(ops.into_iter()) }
        });
        let threads = threads.collect();
        let words = plan.objects + objects * LINE;
        let lock = |n: u32| Lock {
            name: self.names.get(&(n % self.counts[0])).cloned().unwrap_or_default(),
            kind: Kind::Spin,
            converted: !self.does_io(n % self.counts[0]),
        };
        let mut name = match unknown {
            Unknown::Same => "trace, unknown data is the same",
            Unknown::Own => "trace, unknown data is apart",
        }
        .to_owned();
        if !finer.is_empty() {
            let which = if finer == self.names() { "all".into() } else { finer.join(" ") };
            name = format!("{name}, finer: {which}");
        }
        Workload {
            name,
            locks: (0..locks).map(lock).collect(),
            sites: plan.sites,
            threads,
            words,
            tick: [vec![], vec![]],
        }
    }

    /// Whether a section with this lock, or inside of one, asks the kernel for something.
    fn does_io(&self, lock: u32) -> bool {
        self.threads.iter().any(|sections| {
            let outer = sections.iter().filter(|s| s.lock == lock);
            outer.into_iter().any(|s| {
                let inside = |i: &&Section| i.begun >= s.begun && i.begun <= s.ended;
                sections.iter().filter(inside).any(|i| i.io > 0)
            })
        })
    }

    fn program(&self, n: usize, seed: u64, plan: &mut Plan) -> Vec<Vec<Op>> {
        let (recorded, repetition) = (n % self.threads.len(), n / self.threads.len());
        let sections = &self.threads[recorded];
        let mut random = fastrand::Rng::with_seed(seed ^ (n as u64) << 40);
        let mut program = Vec::new();
        // Repetitions do not begin together.
        let mut ops = vec![Op::User(random.u32(1..100_000))];
        let (mut open, mut at): (Vec<&Section>, u64) = (Vec::new(), sections[0].begun);
        for section in sections {
            close(&mut ops, &mut open, &mut at, section.begun);
            let gap = section.begun.saturating_sub(at);
            if open.is_empty() {
                program.push(std::mem::take(&mut ops));
                ops.push(pause(gap, &mut random));
            } else if gap > 0 {
                ops.push(Op::Work(gap.min(IDLE) as u32));
            }
            at = at.max(section.begun);
            if open.iter().any(|o| o.lock == section.lock) {
                continue;
            }
            let fine = plan.finer.contains(&section.lock);
            let lock = match fine {
                true => plan.common + n as u32 * self.counts[0] + section.lock,
                false => self.number(0, section.lock, repetition),
            };
            ops.push(Op::Enter(plan.site(lock, &section.place)));
            let touched = if fine { &[][..] } else { &section.touched };
            for (object, changed) in touched {
                let word = plan.objects + LINE * self.number(1, *object, repetition);
                ops.push(if *changed { Op::Write(word) } else { Op::Read(word) });
            }
            if touched.is_empty() {
                let word = plan.word(lock, n);
                ops.extend([Op::Read(word), Op::Write(word)]);
            }
            ops.extend((0..section.io.min(1)).map(|_| Op::Io(REQUEST)));
            open.push(section);
        }
        close(&mut ops, &mut open, &mut at, u64::MAX);
        program.push(ops);
        program
    }
}

/// Ends the sections that end before a time.
fn close(ops: &mut Vec<Op>, open: &mut Vec<&Section>, at: &mut u64, before: u64) {
    while let Some(last) = open.last() {
        // What ends after the one around it ends with it.
        let ended = open.iter().map(|s| s.ended).min().unwrap_or(last.ended);
        if ended > before {
            return;
        }
        let left = ended.saturating_sub(*at).min(10 * IDLE);
        if left > 0 {
            ops.push(Op::Work(left as u32));
        }
        ops.push(Op::Exit);
        *at = (*at).max(ended);
        open.pop();
    }
}

fn pause(gap: u64, random: &mut fastrand::Rng) -> Op {
    let near = gap.min(IDLE) as u32;
    // A tenth more or less.
    let cycles = near - near / 10 + random.u32(0..=near / 5) + 1;
    if gap > BUSY { Op::Sleep(cycles) } else { Op::User(cycles) }
}

struct Plan {
    unknown: Unknown,
    /// Locks that are not of one thread.
    common: u32,
    /// Recorded locks of which each thread has one.
    finer: BTreeSet<u32>,
    sites: Vec<Site>,
    by_place: BTreeMap<(u32, String), SiteId>,
    threads: u32,
    /// The first word of the objects: before it is a word for each lock and thread.
    objects: Addr,
}

impl Plan {
    /// What a section touches of which nothing is known.
    fn word(&self, lock: u32, thread: usize) -> Addr {
        match self.unknown {
            Unknown::Same => lock * LINE,
            Unknown::Own => (lock * self.threads + thread as u32) * LINE,
        }
    }

    fn site(&mut self, lock: u32, place: &str) -> SiteId {
        *self.by_place.entry((lock, place.to_owned())).or_insert_with(|| {
            self.sites.push(Site {
                name: place.to_owned(),
                lock: lock as usize,
                reads: false,
                exclusive: false,
                irq_off: false,
            });
            (self.sites.len() - 1) as SiteId
        })
    }
}

fn section(line: &str) -> Option<(Section, String)> {
    let mut cells = line.split(',');
    let mut number = || cells.next()?.parse::<u64>().ok();
    let (thread, begun, held, lock) = (number()?, number()?, number()?, number()?);
    let name = cells.next()?.to_owned();
    let place = cells.next()?.to_owned();
    let io = cells.next()?.parse().ok()?;
    let touched = cells.next()?.split_whitespace().map(|word| {
        let (number, changed) = match word.strip_suffix('!') {
            Some(number) => (number, true),
            None => (word, false),
        };
        Some((number.parse().ok()?, changed))
    });
    let touched = touched.collect::<Option<Vec<_>>>()?;
    let (thread, lock) = (u32::try_from(thread).ok()?, u32::try_from(lock).ok()?);
    let ended = begun.checked_add(held)?;
    Some((Section { thread, begun, ended, lock, place, io, touched }, name))
}
