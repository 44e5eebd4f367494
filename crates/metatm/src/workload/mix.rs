//! What stands for the paper's benchmarks (Table 5): system calls made of sections of a kernel.
//!
//! The benchmarks themselves need a kernel in an instruction simulator.  What the figures depend on
//! is kept: how long sections are (the paper gives 449 cycles), how much is outside of them, how
//! many words they share, how often they do I/O, how many threads there are, and how they sleep.

use super::{Addr, Kind, LINE, Lock, Op, Site, SiteId, ThreadSpec, Workload};

/// A group of locks of one kind, each with words of its own.
struct Class {
    name: &'static str,
    kind: Kind,
    /// In the kernel of converted subsystems (paper, Table 4).
    converted: bool,
    /// How many there are; 0 for one per processor.
    instances: usize,
    words: u32,
}

const fn class(name: &'static str, converted: bool, instances: usize, words: u32) -> Class {
    Class { name, kind: Kind::Spin, converted, instances, words }
}

const XTIME: usize = 0;
const RUN_QUEUE: usize = 1;
const DCACHE: usize = 2;
const DENTRY: usize = 3;
const SLAB: usize = 4;
const ZONE: usize = 5;
const FILES: usize = 6;
const RCU: usize = 7;
const MAPPING: usize = 8;
const INODE: usize = 9;
const JOURNAL: usize = 10;
const IDE: usize = 11;
const BUFFERS: usize = 12;

const CLASSES: [Class; 13] = [
    Class { kind: Kind::Sequence, ..class("xtime", true, 1, 8) },
    Class { kind: Kind::Raw, ..class("run queue", false, 0, 32) },
    class("dcache", true, 1, 512),
    class("dentry", true, 64, 16),
    class("slab", true, 12, 64),
    class("zone", true, 2, 128),
    class("files", true, 1, 256),
    class("rcu", true, 0, 16),
    class("mapping", true, 32, 64),
    class("inode", false, 32, 32),
    class("journal", false, 1, 512),
    class("ide", false, 1, 64),
    class("buffers", true, 0, 8192),
];

/// A function with a section.
struct Function {
    name: &'static str,
    class: usize,
    reads: u32,
    writes: u32,
    /// Percent of calls that also change the first word, as heads of lists and counters are.
    head: u32,
    /// Percent of calls that talk to a device.
    io: u32,
    /// A function that is called inside.
    calls: Option<usize>,
}

const fn function(
    name: &'static str,
    class: usize,
    [reads, writes, head, io]: [u32; 4],
) -> Function {
    Function { name, class, reads, writes, head, io, calls: None }
}

const TICK: usize = 0;
const SCHEDULE: usize = 2;

const FUNCTIONS: [Function; 19] = [
    function("do_timer", XTIME, [1, 2, 100, 0]),
    function("gettimeofday", XTIME, [3, 0, 0, 0]),
    function("schedule", RUN_QUEUE, [4, 3, 50, 0]),
    function("d_lookup", DENTRY, [4, 1, 0, 0]),
    function("dput", DCACHE, [3, 2, 30, 0]),
    function("d_instantiate", DCACHE, [4, 3, 40, 0]),
    function("cache_alloc", SLAB, [4, 3, 30, 0]),
    function("cache_grow", SLAB, [3, 2, 60, 0]),
    function("page_alloc", ZONE, [5, 4, 20, 0]),
    function("page_free", ZONE, [4, 4, 20, 0]),
    function("file_move", FILES, [3, 3, 10, 0]),
    function("call_rcu", RCU, [3, 2, 100, 0]),
    function("add_to_page_cache", MAPPING, [6, 3, 20, 0]),
    function("inode_update", INODE, [4, 3, 20, 2]),
    Function { calls: Some(13), ..function("journal_add", JOURNAL, [5, 3, 15, 3]) },
    function("journal_commit", JOURNAL, [8, 4, 50, 60]),
    function("ide_request", IDE, [4, 3, 60, 97]),
    function("ide_queue", IDE, [4, 2, 5, 0]),
    function("truncate", BUFFERS, [300, 60, 40, 0]),
];

/// One of the benchmarks.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name in the paper.
    pub name: &'static str,
    /// Threads for each processor.
    threads: usize,
    /// System calls of a thread.
    calls: usize,
    /// Cycles of the program before a call, and of the kernel around its sections; on average.
    outside: (u32, u32),
    /// Sections in a call.
    sections: u32,
    /// How often each function is called, relative to the others.
    weights: &'static [(usize, u32)],
    /// Percent of calls that wait for a device, and the cycles of that.
    sleeps: (u32, u32),
    /// Percent of calls that go to the thread's own instance of a lock.
    own: u32,
    /// Percent of calls of a function of the directory cache that change its first word, instead of
    /// what the function usually does.
    heads: Option<u32>,
    /// One thread is of a real-time class.
    realtime: bool,
}

const FILES_WORK: &[(usize, u32)] = &[
    (1, 6),
    (2, 8),
    (3, 30),
    (4, 8),
    (5, 3),
    (6, 16),
    (7, 2),
    (8, 8),
    (9, 8),
    (10, 6),
    (11, 6),
    (12, 10),
    (13, 6),
    (14, 4),
    (17, 2),
];
const CREATES: &[(usize, u32)] = &[
    (1, 2),
    (2, 6),
    (3, 20),
    (4, 30),
    (5, 16),
    (6, 14),
    (7, 2),
    (8, 4),
    (10, 6),
    (11, 4),
    (13, 12),
    (14, 12),
    (15, 1),
    (18, 1),
];
const SCRIPTS: &[(usize, u32)] = &[
    (1, 6),
    (2, 14),
    (3, 24),
    (4, 8),
    (5, 4),
    (6, 16),
    (8, 12),
    (9, 12),
    (10, 6),
    (11, 4),
    (12, 8),
    (13, 4),
    (14, 5),
    (15, 1),
    (16, 3),
    (17, 4),
];
const READS: &[(usize, u32)] = &[
    (1, 4),
    (2, 8),
    (3, 40),
    (4, 6),
    (6, 8),
    (8, 14),
    (9, 10),
    (10, 6),
    (12, 20),
    (16, 2),
    (17, 3),
];
const NAMES: &[(usize, u32)] =
    &[(1, 2), (2, 4), (3, 50), (4, 26), (5, 14), (6, 8), (11, 8), (13, 4)];

/// All benchmarks, in the order of the paper's figures.
pub const PROFILES: [Profile; 6] = [
    Profile {
        name: "pmake",
        threads: 2,
        calls: 60,
        outside: (26_000, 9_000),
        sections: 5,
        weights: FILES_WORK,
        sleeps: (8, 60_000),
        own: 85,
        heads: None,
        realtime: false,
    },
    Profile {
        name: "bonnie++",
        threads: 1,
        calls: 120,
        outside: (5_000, 90_000),
        sections: 6,
        weights: CREATES,
        sleeps: (2, 4_000),
        own: 60,
        heads: Some(85),
        realtime: false,
    },
    Profile {
        name: "mab",
        threads: 1,
        calls: 120,
        outside: (14_000, 14_000),
        sections: 5,
        weights: SCRIPTS,
        sleeps: (15, 60_000),
        own: 75,
        heads: None,
        realtime: true,
    },
    Profile {
        name: "find",
        threads: 1,
        calls: 120,
        outside: (20_000, 14_000),
        sections: 5,
        weights: READS,
        sleeps: (6, 60_000),
        own: 85,
        heads: None,
        realtime: false,
    },
    Profile {
        name: "config",
        threads: 1,
        calls: 120,
        outside: (17_000, 14_000),
        sections: 5,
        weights: SCRIPTS,
        sleeps: (12, 50_000),
        own: 85,
        heads: None,
        realtime: false,
    },
    Profile {
        name: "dpunish",
        threads: 2,
        calls: 60,
        outside: (5_000, 70_000),
        sections: 5,
        weights: NAMES,
        sleeps: (2, 20_000),
        own: 50,
        heads: Some(35),
        realtime: true,
    },
];

/// Which locks, sites and words there are on a machine.
struct Layout {
    /// First lock and number of locks of each class.
    classes: Vec<(usize, usize)>,
    /// First word of each lock.
    bases: Vec<Addr>,
    /// First site of each function: one for each lock of its class.
    functions: Vec<usize>,
}

impl Layout {
    fn site(&self, function: usize, instance: usize) -> SiteId {
        (self.functions[function] + instance) as SiteId
    }

    fn base(&self, function: usize, instance: usize) -> Addr {
        self.bases[self.classes[FUNCTIONS[function].class].0 + instance]
    }
}

fn layout(processors: usize) -> (Layout, Vec<Lock>, Vec<Site>, u32) {
    let (mut locks, mut sites, mut words) = (Vec::new(), Vec::new(), 0);
    let mut layout = Layout { classes: Vec::new(), bases: Vec::new(), functions: Vec::new() };
    for class in &CLASSES {
        let instances = if class.instances == 0 { processors } else { class.instances };
        layout.classes.push((locks.len(), instances));
        for _ in 0..instances {
            let Class { name, kind, converted, .. } = *class;
            locks.push(Lock { name: name.to_owned(), kind, converted });
            layout.bases.push(words);
            words += class.words.next_multiple_of(LINE);
        }
    }
    for function in &FUNCTIONS {
        let (first, instances) = layout.classes[function.class];
        layout.functions.push(sites.len());
        let timer = function.class == XTIME;
        sites.extend((first..first + instances).map(|lock| Site {
            name: function.name.to_owned(),
            lock,
            reads: timer && function.writes == 0,
            exclusive: function.io > 90,
            irq_off: timer,
        }));
    }
    (layout, locks, sites, words)
}

/// A benchmark on so many processors.
#[must_use]
pub fn mix(profile: &Profile, processors: usize, seed: u64) -> Workload {
    let (plan, locks, sites, words) = layout(processors);
    let plan = std::rc::Rc::new(plan);
    let threads = (0..profile.threads * processors).map(|n| {
        let random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003) ^ (n as u64) << 40);
        let (profile, plan) = (profile.clone(), plan.clone());
        let realtime = (profile.realtime && n == 1).then_some(1);
        let mut caller = Caller { profile, plan, random, number: n, ops: Vec::new() };
        let program = (0..caller.profile.calls).map(move |_| caller.call());
        ThreadSpec { nice: 0, realtime, program: Box::new(program) }
    });
    let mut timer = Caller {
        profile: profile.clone(),
        plan: plan.clone(),
        random: fastrand::Rng::with_seed(seed),
        number: 0,
        ops: Vec::new(),
    };
    timer.function(TICK, 0);
    Workload {
        name: profile.name.to_owned(),
        locks,
        sites,
        threads: threads.collect(),
        words,
        tick: [timer.ops, vec![]],
    }
}

/// Makes the calls of one thread.
struct Caller {
    profile: Profile,
    plan: std::rc::Rc<Layout>,
    random: fastrand::Rng,
    number: usize,
    ops: Vec<Op>,
}

impl Caller {
    /// Half to one and a half times as much.
    fn around(&mut self, cycles: u32) -> u32 {
        cycles / 2 + self.random.u32(0..=cycles)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.u32(0..100) < percent
    }

    fn call(&mut self) -> Vec<Op> {
        let (user, kernel) = self.profile.outside;
        let user = self.around(user);
        self.ops.push(Op::User(user));
        for _ in 0..self.profile.sections {
            let work = self.around(kernel / self.profile.sections);
            self.ops.push(Op::Work(work));
            let function = self.pick();
            let instance = self.instance(function);
            self.function(function, instance);
        }
        let (often, long) = self.profile.sleeps;
        if self.chance(often) {
            // The device is asked, the processor given away.
            self.function(SCHEDULE, self.number % self.plan.classes[RUN_QUEUE].1);
            let cycles = self.around(long);
            self.ops.push(Op::Sleep(cycles));
        }
        std::mem::take(&mut self.ops)
    }

    fn pick(&mut self) -> usize {
        let all: u32 = self.profile.weights.iter().map(|(_, w)| w).sum();
        let mut at = self.random.u32(0..all);
        for (function, weight) in self.profile.weights {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *function,
            }
        }
        unreachable!("the weights have that sum")
    }

    fn instance(&mut self, function: usize) -> usize {
        let instances = self.plan.classes[FUNCTIONS[function].class].1;
        let own = self.profile.own;
        if self.chance(own) { self.number % instances } else { self.random.usize(0..instances) }
    }

    fn function(&mut self, number: usize, instance: usize) {
        let function = &FUNCTIONS[number];
        let words = CLASSES[function.class].words;
        let base = self.plan.base(number, instance);
        self.ops.push(Op::Enter(self.plan.site(number, instance)));
        // The first word is left to those that mean it.
        let mut touched = Vec::new();
        for _ in 0..function.reads {
            let at = base + self.random.u32(1..words);
            self.ops.push(Op::Read(at));
            self.ops.push(Op::Work(3));
            touched.push(at);
        }
        for _ in 0..function.writes {
            let at = match self.random.usize(0..=touched.len()) {
                n if n < touched.len() => touched[n],
                _ => base + self.random.u32(1..words),
            };
            self.ops.push(Op::Write(at));
        }
        let head = match self.profile.heads {
            Some(percent) if function.class == DCACHE => percent,
            _ => function.head,
        };
        if self.chance(head) {
            self.ops.extend([Op::Read(base), Op::Work(5), Op::Write(base)]);
        }
        if let Some(inner) = function.calls {
            let instance = self.instance(inner);
            self.function(inner, instance);
        }
        if self.chance(function.io) {
            self.ops.push(Op::Io(600));
        }
        self.ops.push(Op::Exit);
    }
}
