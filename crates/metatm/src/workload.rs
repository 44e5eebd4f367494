//! What the modelled threads do: locks, sections of code that take them, and threads.

pub mod micro;
pub mod mix;
pub mod trace;

/// A word of shared memory, by number.  Eight to a cache line.
pub type Addr = u32;

/// Words of a cache line.
pub const LINE: u32 = 8;

/// A place in the code that takes a lock, by number.
pub type SiteId = u16;

/// One step of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Cycles of a program.
    User(u32),
    /// Cycles of the kernel.
    Work(u32),
    /// The thread waits for a device so many cycles.  Not in a section.
    Sleep(u32),
    /// Looks at a word.
    Read(Addr),
    /// Changes a word.
    Write(Addr),
    /// Talks to a device, which nothing can undo.
    Io(u32),
    /// A section begins.
    Enter(SiteId),
    /// The innermost section ends.
    Exit,
}

/// What a lock is in the unmodified kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A spinlock.
    Spin,
    /// A sequence lock.
    Sequence,
    /// A spinlock that hardware or the scheduler depend on: never a transaction.
    Raw,
}

/// A lock.
#[derive(Clone, Debug)]
pub struct Lock {
    /// For tables.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// A plain transaction in the kernel of converted subsystems.  Then no section under it does
    /// I/O.
    pub converted: bool,
}

/// A place in the code.
#[derive(Clone, Debug)]
pub struct Site {
    /// For tables.
    pub name: String,
    /// The lock, by number.
    pub lock: usize,
    /// Reads only.  Of a sequence lock: retries in place of waiting.
    pub reads: bool,
    /// Known to do I/O nearly always: exclusive, where there is a choice.
    pub exclusive: bool,
    /// Interrupts are off inside.
    pub irq_off: bool,
}

/// A thread.
pub struct ThreadSpec {
    /// Its nice value.
    pub nice: i32,
    /// It is scheduled before all that are not, and before those with a lower number.
    pub realtime: Option<u8>,
    /// What it does, piece by piece: every section that a piece begins ends in it.
    pub program: Box<dyn Iterator<Item = Vec<Op>>>,
}

/// All that runs on the machine.
pub struct Workload {
    /// For tables.
    pub name: String,
    /// All locks.
    pub locks: Vec<Lock>,
    /// All places that take one.
    pub sites: Vec<Site>,
    /// All threads.
    pub threads: Vec<ThreadSpec>,
    /// Shared words.
    pub words: u32,
    /// What the handler of a tick does on the first processor, and on the others.
    pub tick: [Vec<Op>; 2],
}

impl Workload {
    /// What is wrong with it, if anything is.
    ///
    /// # Errors
    /// A text that names the part that does not fit.
    pub fn check(&self) -> Result<(), String> {
        for site in &self.sites {
            if site.lock >= self.locks.len() {
                return Err(format!("{}: there is no lock {}", site.name, site.lock));
            }
        }
        for tick in &self.tick {
            check(&self.locks, &self.sites, self.words, tick)?;
        }
        if self.threads.is_empty() {
            return Err("no threads".to_owned());
        }
        Ok(())
    }
}

/// What is wrong with one piece of a program, if anything is.
pub(crate) fn check(locks: &[Lock], sites: &[Site], words: u32, ops: &[Op]) -> Result<(), String> {
    let mut held: Vec<usize> = Vec::new();
    for op in ops {
        match *op {
            Op::Enter(site) => {
                let site = sites.get(usize::from(site)).ok_or("no such site")?;
                if held.contains(&site.lock) {
                    return Err(format!("{}: its lock is held already", site.name));
                }
                held.push(site.lock);
            }
            Op::Exit => {
                held.pop().ok_or("an end without a section")?;
            }
            Op::Read(at) | Op::Write(at) if at >= words => {
                return Err(format!("there is no word {at}"));
            }
            Op::Sleep(_) if !held.is_empty() => return Err("sleep in a section".to_owned()),
            Op::Io(_) => {
                if let Some(lock) = held.iter().find(|lock| locks[**lock].converted) {
                    return Err(format!("I/O below {}", locks[*lock].name));
                }
            }
            _ => {}
        }
    }
    if held.is_empty() { Ok(()) } else { Err("a section without an end".to_owned()) }
}
