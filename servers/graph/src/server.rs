//! Executes blocks in a guarded directory.
//!
//! Each thread takes a part of a block, in an ordered transaction with a number of its own. The
//! last part has the highest number and does all that changes the file: the graph, the height and
//! the hash. So a block is there as a whole or not at all, and so is its height. The other parts
//! only read the file, as it was before the block; what earlier requests of the block change they
//! do for themselves in memory. A search reads many pages, a change two, so to do changes once more
//! costs next to nothing; and no part waits for what another one finds.

use crate::execute::{Block, Search, execute, parts};
use crate::file::{Edges, Hash, Header, PAGE, load, root};
use crate::request::{Answer, Op, Request};
use crate::wrong;
use rustix::fs::{Advice, fadvise};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use systx::{Begin, Flags};

/// The graph's name in its directory.
pub const NAME: &str = "graph";
/// How long a daemon may be away, or a process that has ended may take to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kernel reads so much at one word, however much it is asked for.
const AHEAD: NonZeroU64 = NonZeroU64::new(128 << 10).unwrap();

/// What a block found, before it is committed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The height of the block.
    pub height: u64,
    /// The hash of the graph after it.
    pub root: Hash,
    /// An answer for each request.
    pub answers: Vec<Answer>,
}

/// Opens the graph in a directory, and reads all of it, in a transaction.
fn load_inside(dir: &Path) -> io::Result<(Header, Vec<Hash>)> {
    systx::atomic(dir, Flags::default(), |_| load(&open(dir, false)?))
}

/// Answers a request that only reads, from the last block that is committed.
///
/// # Errors
/// The request is none that only reads; the file's; the directory is not guarded.
pub fn ask(dir: &Path, request: &[u8]) -> io::Result<Answer> {
    systx::atomic(dir, Flags::READ_ONLY, |_| {
        let file = open(dir, false)?;
        let layout = Header::read(&file)?.layout;
        let request = Request::parse(request, layout.vertices).filter(|r| !r.is_write());
        let request = request.ok_or_else(|| wrong("not a request that only reads"))?;
        let mut edges = Edges::new(&file, layout, true);
        let mut found =
            execute(&mut edges, &mut Search::default(), &[Some(request)], &(0..1), false)?;
        found.pop().map(|(_, answer)| answer).ok_or_else(|| wrong("no answer"))
    })
}

/// The name of the order of a graph's transactions. Orders are of a whole file system, which may
/// have several graphs.
fn order_of(dir: &Path) -> io::Result<String> {
    Ok(format!("{NAME}-{}", std::fs::metadata(dir)?.ino()))
}

fn open(dir: &Path, write: bool) -> io::Result<File> {
    File::options().read(true).write(write).open(dir.join(NAME))
}

/// All bytes of a graph as it is after a block. `begun` is called when what is executed from then
/// on makes no difference.
///
/// # Errors
/// The file's; it is not that block's any more.
pub fn bytes_at(dir: &Path, height: u64, begun: impl Fn()) -> io::Result<Vec<u8>> {
    systx::atomic(dir, Flags::READ_ONLY, |_| {
        begun();
        let found = Header::read(&open(dir, false)?)?.height;
        match found == height {
            true => std::fs::read(dir.join(NAME)),
            false => Err(wrong(format!("the graph has block {found} already"))),
        }
    })
}

/// Reads all of a graph as it is at one moment, also while blocks are executed, and in a directory
/// that is not guarded as it is.
///
/// # Errors
/// The file's; it is damaged.
pub fn check(dir: &Path) -> io::Result<Header> {
    patiently(|| match systx::atomic(dir, Flags::READ_ONLY, |_| load(&open(dir, false)?)) {
        Err(e) if not_guarded(&e) => load(&open(dir, false)?),
        other => other,
    })
    .map(|(header, _)| header)
}

fn not_guarded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error())
}

/// Whether a further attempt may succeed: the daemon is away, or who is gone is not yet.
fn passes(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let passing = [Errno::NOTCONN, Errno::CONNABORTED, Errno::BUSY, Errno::CANCELED, Errno::NOTTY];
    error.raw_os_error().is_some_and(|code| passing.iter().any(|e| e.raw_os_error() == code))
}

fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(e) if passes(&e) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// A block that threads execute.
struct Work {
    dir: PathBuf,
    order: Arc<str>,
    block: Arc<Block>,
    parts: Vec<Range<usize>>,
    /// As the block begins.
    header: Header,
    leaves: Arc<Vec<Hash>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    answers: Vec<Option<Answer>>,
    /// The parts that have ended.
    ended: usize,
    /// What the last part found, when it has written all.
    ready: Option<(Header, Vec<Hash>)>,
    /// Whether it shall commit.
    go: Option<bool>,
    /// The first error, until it is told.
    error: Option<io::Error>,
    failed: bool,
}

impl Work {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is so.
    fn wait(&self, so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_while(self.state(), |state| !so(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// What a part does; how often it was begun counts in `attempts`.
    fn part(&self, n: usize, search: &mut Search, attempts: &AtomicU64) -> io::Result<()> {
        let last = n + 1 == self.parts.len();
        let mut how = Begin::ordered(&self.order, self.header.next + n as u64);
        if !last {
            how.flags = Flags::RELAXED;
        }
        systx::atomic(&self.dir, how, |_| {
            attempts.fetch_add(1, Relaxed);
            let file = open(&self.dir, last)?;
            if Header::read(&file)? != self.header {
                return Err(wrong("somebody else has changed the graph's file"));
            }
            self.prefetch(n, &file)?;
            let mut edges = Edges::new(&file, self.header.layout, true);
            let found = execute(&mut edges, search, &self.block, &self.parts[n], last)?;
            let mut state = self.state();
            for (n, answer) in found {
                state.answers[n] = Some(answer);
            }
            drop(state);
            if last { self.end(&file, edges) } else { Ok(()) }
        })
    }

    /// Each transaction has pages of its own, which come by one message each unless they are asked
    /// for together. A search goes through most of them.
    fn prefetch(&self, n: usize, file: &File) -> io::Result<()> {
        let end = self.parts[n].end;
        let mut part = self.block[self.parts[n].clone()].iter().flatten();
        let many = end as u64 > u64::from(self.header.layout.pages) / 32;
        if many || part.any(|request| request.op == Op::Path) {
            for at in (0..self.header.layout.size()).step_by(AHEAD.get() as usize) {
                fadvise(file, at, Some(AHEAD), Advice::WillNeed)?;
            }
        }
        Ok(())
    }

    /// The last part, when it has executed all: writes it, and waits for the word to commit.
    fn end(&self, file: &File, mut edges: Edges<'_>) -> io::Result<()> {
        let mut leaves = (*self.leaves).clone();
        for (page, leaf) in edges.leaves()? {
            leaves[page as usize] = leaf;
        }
        let header = Header {
            layout: self.header.layout,
            height: self.header.height + 1,
            next: self.header.next + self.parts.len() as u64,
            root: root(self.header.layout.vertices, &leaves),
        };
        // What it writes others have read, and they would win: they are before it in the order.
        let others = self.wait(|state| state.failed || state.ended + 1 == self.parts.len());
        if others.failed {
            return Err(wrong("another part of the block has failed"));
        }
        drop(others);
        edges.flush()?;
        header.write(file)?;
        self.state().ready = Some((header, leaves));
        self.changed.notify_all();
        match self.wait(|state| state.go.is_some()).go {
            Some(true) => Ok(()),
            _ => Err(wrong("the block was dropped")),
        }
    }

    fn ended(&self, result: io::Result<()>) {
        let mut state = self.state();
        state.ended += 1;
        if let Err(e) = result {
            state.failed = true;
            state.error.get_or_insert(e);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// When it has failed, and all its threads are out of it: why.
    fn failure(&self) -> io::Error {
        let all = self.parts.len();
        let mut state = self.wait(|state| state.ended == all);
        state.error.take().unwrap_or_else(|| wrong("the block has failed"))
    }
}

/// A thread that lives as long as the server: a thread's first transaction is dear.
struct Worker {
    work: Sender<(Arc<Work>, usize)>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn start(attempts: &Arc<AtomicU64>) -> Worker {
        let (work, mine): (Sender<(Arc<Work>, usize)>, Receiver<_>) = channel();
        let attempts = Arc::clone(attempts);
        let thread = std::thread::spawn(move || {
            let mut search = Search::default();
            while let Ok((work, n)) = mine.recv() {
                let done = work.part(n, &mut search, &attempts);
                work.ended(done);
            }
        });
        Worker { work, thread }
    }
}

/// The graph of a guarded directory.
pub struct Server {
    dir: PathBuf,
    order: Arc<str>,
    header: Header,
    leaves: Arc<Vec<Hash>>,
    workers: Vec<Worker>,
    attempts: Arc<AtomicU64>,
    parts: u64,
    /// What is executed and not committed.
    work: Option<Arc<Work>>,
}

impl Server {
    /// Opens the graph, which reads all of it.
    ///
    /// # Errors
    /// The directory is not guarded; the file's; it is damaged.
    pub fn open(dir: &Path, threads: usize) -> io::Result<Server> {
        systx::set_patience(PATIENCE);
        let (header, leaves) = load_inside(dir).map_err(|e| match e.raw_os_error() {
            Some(code) if code == rustix::io::Errno::NOTTY.raw_os_error() => {
                let dir = dir.display();
                wrong(format!("{dir} is not guarded, so nothing is done there: systx mount {dir}"))
            }
            _ => wrong(format!("{}: {e}", dir.join(NAME).display())),
        })?;
        let attempts = Arc::default();
        let workers = (0..threads.max(1)).map(|_| Worker::start(&attempts)).collect();
        let leaves = Arc::new(leaves);
        let dir = dir.to_owned();
        let order = order_of(&dir)?.into();
        let mut server =
            Server { dir, order, header, leaves, workers, attempts, parts: 0, work: None };
        server.reopen()?;
        Ok(server)
    }

    /// Begins with what is committed; waits for a daemon that is away.
    ///
    /// # Errors
    /// As [`Server::open`].
    pub fn reopen(&mut self) -> io::Result<()> {
        self.drop_block();
        let (header, leaves) = patiently(|| load_inside(&self.dir))?;
        (self.header, self.leaves) = (header, Arc::new(leaves));
        // Parts of a block that was not committed have used numbers up. Nothing else is left.
        let dir = Some(self.dir.as_path());
        patiently(|| match systx::next_order(dir, &self.order)? == header.next {
            true => Ok(()),
            false => systx::reset_order(dir, &self.order, header.next),
        })
    }

    /// Begins with what others have, all of it in one transaction. `step` is called between what
    /// it does: a test ends it there.
    ///
    /// # Errors
    /// It is not a graph of as many vertices with this hash, and nothing has changed; the file's.
    pub fn restore(
        &mut self,
        height: u64,
        hash: &Hash,
        bytes: &[u8],
        step: &dyn Fn(),
    ) -> io::Result<()> {
        let layout = self.header.layout;
        let (page, matrix) = bytes.split_first_chunk().ok_or_else(|| wrong("it is too short"))?;
        if Header::decode(page)?.layout != layout || bytes.len() as u64 != layout.size() {
            return Err(wrong(format!("it is not a graph of {} vertices", layout.vertices)));
        }
        let leaves: Vec<Hash> =
            matrix.chunks(PAGE).map(|page| Sha256::digest(page).into()).collect();
        if root(layout.vertices, &leaves) != *hash {
            return Err(wrong("it is not the graph that all others have at that height"));
        }
        self.drop_block();
        let header = Header { height, root: *hash, ..self.header };
        patiently(|| {
            systx::atomic(&self.dir, Flags::default(), |_| {
                let file = open(&self.dir, true)?;
                step();
                file.write_all_at(matrix, PAGE as u64)?;
                step();
                header.write(&file)?;
                step();
                Ok(())
            })
        })?;
        step();
        self.reopen()
    }

    /// What heads the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How often a part of a block was begun anew, since it had lost a conflict.
    pub fn lost(&self) -> u64 {
        self.attempts.load(Relaxed).saturating_sub(self.parts)
    }

    /// Executes the next block, and again if the daemon ends meanwhile. Nothing of it is there
    /// before [`Server::commit`].
    ///
    /// # Errors
    /// Any that does not pass; then nothing of the block is there.
    pub fn execute(&mut self, block: &Arc<Block>) -> io::Result<Outcome> {
        let end = Instant::now() + PATIENCE;
        let height = self.header.height;
        loop {
            match self.try_to_execute(Arc::clone(block)) {
                Err(e) if passes(&e) && Instant::now() < end => self.reopen()?,
                other => return other,
            }
            // This block is the one after `height`, and no other one.
            if self.header.height != height {
                return Err(wrong("somebody else has executed blocks of the graph"));
            }
        }
    }

    fn try_to_execute(&mut self, block: Arc<Block>) -> io::Result<Outcome> {
        self.drop_block();
        let parts = parts(&block, self.workers.len());
        let state = State { answers: vec![None; block.len()], ..State::default() };
        let work = Arc::new(Work {
            dir: self.dir.clone(),
            order: Arc::clone(&self.order),
            block,
            parts,
            header: self.header,
            leaves: Arc::clone(&self.leaves),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        self.parts += work.parts.len() as u64;
        for (n, worker) in self.workers.iter().enumerate().take(work.parts.len()) {
            let sent = worker.work.send((Arc::clone(&work), n));
            sent.map_err(|_| wrong("a thread has ended"))?;
        }
        let state = work.wait(|state| state.failed || state.ready.is_some());
        let Some((header, _)) = state.ready.as_ref().filter(|_| !state.failed) else {
            drop(state);
            return Err(work.failure());
        };
        let (height, root) = (header.height, header.root);
        let answers = state.answers.iter().flatten().cloned().collect();
        drop(state);
        self.work = Some(work);
        Ok(Outcome { height, root, answers })
    }

    /// Commits the block that was executed: when this returns it is on the disk. If the daemon ends
    /// meanwhile, the next one tells whether it is; if not, it is executed and committed again.
    ///
    /// # Errors
    /// Those that do not pass; the block may be there or not, as a whole.
    pub fn commit(&mut self) -> io::Result<()> {
        let height = self.header.height + 1;
        let end = Instant::now() + PATIENCE;
        loop {
            let work = self.work.take().ok_or_else(|| wrong("no block was executed"))?;
            match self.try_to_commit(&work) {
                Err(e) if passes(&e) && Instant::now() < end => self.reopen()?,
                other => return other,
            }
            if self.header.height >= height {
                return Ok(());
            }
            self.execute(&work.block)?;
        }
    }

    fn try_to_commit(&mut self, work: &Work) -> io::Result<()> {
        work.state().go = Some(true);
        work.changed.notify_all();
        let all = work.parts.len();
        let mut state = work.wait(|state| state.ended == all);
        if state.failed {
            drop(state);
            return Err(work.failure());
        }
        let (header, leaves) = state.ready.take().ok_or_else(|| wrong("nothing was found"))?;
        (self.header, self.leaves) = (header, Arc::new(leaves));
        Ok(())
    }

    fn drop_block(&mut self) {
        if let Some(work) = self.work.take() {
            work.state().go = Some(false);
            work.changed.notify_all();
            drop(work.wait(|state| state.ended == work.parts.len()));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.drop_block();
        for worker in std::mem::take(&mut self.workers) {
            drop(worker.work);
            let _ = worker.thread.join();
        }
    }
}
