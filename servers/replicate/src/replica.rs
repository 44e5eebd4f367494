//! One replica: what it has, and what a block does to it.

use crate::install::install;
use crate::model::{Applied, Changed, Failed, Hash, Model, combined, shown};
use crate::snapshot::{Checked, State};
use crate::versions::{Versions, WINDOW};
use crate::{OWN, wrong};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use systx::Flags;
use systx_protocol::certify::{Key, Offer, Verdict};
use systx_snapshots::{Kept, step};

/// How long the daemon may be away.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request of the order: a number that nobody else uses, the height that was read, and the offer.
pub struct Request {
    /// The number.
    pub number: u64,
    /// The height.
    pub read_at: u64,
    /// What is to be done.
    pub offer: Offer,
}

impl Request {
    /// From bytes; `None`: they are none.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let number = bytes.get(..8)?.try_into().ok().map(u64::from_le_bytes)?;
        let read_at = bytes.get(8..16)?.try_into().ok().map(u64::from_le_bytes)?;
        Some(Request { number, read_at, offer: Offer::decode(&bytes[16..]).ok()? })
    }

    /// As bytes, of an offer as it came.
    pub fn encode(number: u64, read_at: u64, offer: &[u8]) -> Vec<u8> {
        [&number.to_le_bytes()[..], &read_at.to_le_bytes()[..], offer].concat()
    }
}

/// What clients of this replica wait for, by the numbers of their requests.
#[derive(Default)]
pub struct Waiting {
    senders: Mutex<HashMap<u64, Sender<Verdict>>>,
    /// The last block that is in place.
    height: AtomicU64,
}

impl Waiting {
    fn senders(&self) -> MutexGuard<'_, HashMap<u64, Sender<Verdict>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last block that is in place.
    pub fn height(&self) -> u64 {
        self.height.load(Ordering::Acquire)
    }

    /// One more.
    pub fn add(&self, number: u64, to: Sender<Verdict>) {
        self.senders().insert(number, to);
    }

    /// One less.
    pub fn remove(&self, number: u64) {
        self.senders().remove(&number);
    }

    fn tell(&self, number: u64, verdict: Verdict) {
        if let Some(to) = self.senders().remove(&number) {
            // Who has gone away does not want to know.
            let _ = to.send(verdict);
        }
    }
}

/// A block that is executed and not in place.
struct Ready {
    /// The hash of its requests.
    of: Hash,
    accepted: Vec<(Offer, Changed)>,
    /// Of those that are requests, by their numbers.
    verdicts: Vec<(u64, Verdict)>,
    /// Of all.
    answers: Vec<Verdict>,
}

/// See the module.
pub struct Replica {
    dir: PathBuf,
    model: Model,
    versions: Versions,
    /// The last block that is in place, and the hash after it.
    placed: (u64, Hash),
    /// The last block that was executed.
    height: u64,
    root: Hash,
    ready: Option<Ready>,
    /// The last block that has changed something.
    last: u64,
    /// Where others get what they begin with.
    kept: Option<Arc<Kept>>,
    waiting: Arc<Waiting>,
}

/// The hash of the requests of a block.
fn hash_of(txs: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for tx in txs {
        hash.update((tx.len() as u64).to_le_bytes());
        hash.update(tx);
    }
    hash.finalize().into()
}

/// What a block has left in its slot: its height, the hash, and what it changed.
type Left = (u64, Hash, Vec<Key>);

fn slot(dir: &Path, height: u64) -> PathBuf {
    dir.join(OWN).join((height % WINDOW).to_string())
}

fn read_slot(path: &Path) -> io::Result<Left> {
    let bytes = fs::read(path)?;
    let damaged = || wrong(format!("{} is damaged", path.display()));
    let (root, keys) = bytes.split_at_checked(32).ok_or_else(damaged)?;
    let keys = Offer::decode(keys).map_err(|_| damaged())?;
    Ok((keys.txn, root.try_into().map_err(|_| damaged())?, keys.reads))
}

/// What the last blocks have left, by their heights.
fn slots(dir: &Path) -> io::Result<Vec<Left>> {
    let mut slots = Vec::new();
    for n in 0..WINDOW {
        match read_slot(&slot(dir, n)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => slots.push(other?),
        }
    }
    slots.sort_by_key(|(height, ..)| *height);
    Ok(slots)
}

impl Replica {
    /// Reads what is there, and compares it with what the last block has left.
    ///
    /// # Errors
    /// It is damaged; it cannot be read.
    pub fn open(dir: &Path, waiting: Arc<Waiting>) -> io::Result<Replica> {
        systx::set_patience(PATIENCE);
        let mut model = Model::read(dir)?;
        let slots = slots(dir)?;
        let mut versions = Versions::default();
        slots.iter().for_each(|(at, _, keys)| versions.add(*at, keys));
        let root = combined(model.root(), versions.digest());
        let height = match slots.last() {
            Some((at, hash, _)) if *hash != root => {
                return Err(wrong(format!("{} is not what block {at} has left", dir.display())));
            }
            last => last.map_or(0, |(at, ..)| *at),
        };
        waiting.height.store(height, Ordering::Release);
        let placed = (height, root);
        let (dir, ready, last, kept) = (dir.to_owned(), None, height, None);
        Ok(Replica { dir, model, versions, height, root, placed, ready, last, kept, waiting })
    }

    /// Snapshots are kept from now on.
    pub fn keep(&mut self, kept: Arc<Kept>) {
        self.kept = Some(kept);
    }

    /// The last block that is in place, and the hash after it.
    pub fn head(&self) -> (u64, Hash) {
        self.placed
    }

    /// Executes a block in memory; what became of each request, and the hash. An engine that ended
    /// before it had the block put in place asks again.
    ///
    /// # Errors
    /// It is not the next one; this replica cannot tell what it does.
    pub fn execute(&mut self, height: u64, txs: &[&[u8]]) -> io::Result<(Vec<Verdict>, Hash)> {
        let of = hash_of(txs);
        match &self.ready {
            Some(ready) if height == self.height && ready.of == of => {
                return Ok((ready.answers.clone(), self.root));
            }
            None if height > self.height => {}
            _ => return Err(wrong(format!("block {height} after block {}", self.height))),
        }
        let (accepted, verdicts, answers) = Default::default();
        let mut ready = Ready { of, accepted, verdicts, answers };
        for tx in txs {
            let Some(request) = Request::decode(tx) else {
                ready.answers.push(Verdict::Refused { words: "it is no request".into() });
                continue;
            };
            let verdict = match self.certify(height, &request)? {
                Ok(changed) => {
                    ready.accepted.push((request.offer, changed));
                    Verdict::Committed
                }
                Err(verdict) => verdict,
            };
            ready.verdicts.push((request.number, verdict.clone()));
            ready.answers.push(verdict);
        }
        (self.height, self.root) = (height, combined(self.model.root(), self.versions.digest()));
        let answers = ready.answers.clone();
        self.ready = Some(ready);
        Ok((answers, self.root))
    }

    /// What a request changes, or why it is not committed.
    ///
    /// # Errors
    /// This replica cannot tell, and must not say anything else than the others.
    fn certify(&mut self, height: u64, request: &Request) -> io::Result<Result<Changed, Verdict>> {
        let Request { read_at, offer, .. } = request;
        if let Err(Key::At(path) | Key::Names(path)) =
            self.versions.certify(offer, *read_at, height)
        {
            let words = format!("another one was before it: {} has changed", shown(&path));
            return Ok(Err(Verdict::Conflict { path, words }));
        }
        match self.model.apply(offer) {
            Ok(Applied { changed, names }) => {
                self.versions.add(height, &[offer.writes(), names].concat());
                Ok(Ok(changed))
            }
            Err(Failed::Refused(words)) => Ok(Err(Verdict::Refused { words })),
            Err(Failed::Here(error)) => Err(error),
        }
    }

    /// Puts the block that was executed in its place, durably, and tells who waits for it.
    ///
    /// # Errors
    /// It cannot be, within a minute.
    pub fn commit(&mut self) -> io::Result<()> {
        let Some(ready) = self.ready.take() else { return Ok(()) };
        if !ready.accepted.is_empty() {
            self.place(&ready.accepted)?;
            let before = std::mem::replace(&mut self.last, self.height);
            if let Some(kept) = self.kept.clone().filter(|kept| kept.is_due(before, self.height)) {
                self.snapshot(&kept);
            }
        }
        self.model.is_placed();
        self.placed = (self.height, self.root);
        self.waiting.height.store(self.height, Ordering::Release);
        for (number, verdict) in ready.verdicts {
            self.waiting.tell(number, verdict);
        }
        Ok(())
    }

    fn place(&self, accepted: &[(Offer, Changed)]) -> io::Result<()> {
        let keys =
            Offer { txn: self.height, reads: self.versions.of(self.height), ..<_>::default() };
        let left = [&self.root[..], &keys.encode()].concat();
        let place = RefCell::new(Vec::new());
        let done = durably(&self.dir, (self.height, self.root), || {
            fs::create_dir_all(self.dir.join(OWN).join("taken"))?;
            for (offer, changed) in accepted {
                install(&self.dir, offer, changed, &place)?;
            }
            place.borrow_mut().clear();
            fs::write(slot(&self.dir, self.height), &left)
        });
        done.map_err(|e| {
            let (dir, at) = (self.dir.display(), shown(&place.borrow()));
            wrong(format!(
                "block {} cannot be put in its place in {dir}, at {at:?}: {e}; nothing of it is \
                 there, and the others have it: make that possible, and start this one again",
                self.height
            ))
        })
    }
}

impl Replica {
    /// Keeps a snapshot of what is in place now. It is read while later blocks are executed; they
    /// wait only until its moment is fixed.
    fn snapshot(&self, kept: &Arc<Kept>) {
        let (dir, height, root) = (self.dir.clone(), self.height, self.root);
        let blocks = self.versions.all();
        kept.gather(height, move |begun| {
            let state = systx::atomic(&dir, Flags::READ_ONLY, |_| {
                begun();
                State::gather(&dir, blocks.clone())
            })?;
            state.check(&dir, height, &root)?;
            Ok(state.encode())
        });
    }

    /// Begins with a snapshot, in place of all that is there.
    ///
    /// # Errors
    /// It is not what all have at that height, and nothing has changed; or it cannot be put in its
    /// place.
    pub fn restore(&mut self, height: u64, root: &Hash, bytes: &[u8]) -> io::Result<()> {
        let tops = self.model.tops();
        if self.placed.0 == 0 && !tops.is_empty() {
            let dir = self.dir.display();
            return Err(wrong(format!(
                "{dir} is neither a replica nor empty: make it empty first"
            )));
        }
        let state = State::decode(bytes)?;
        let Checked { model, versions, changed } = state.check(&self.dir, height, root)?;
        let State { blocks, all } = state;
        let offer = Offer { taken: tops, ..all };
        let place = RefCell::new(Vec::new());
        let own = self.dir.join(OWN);
        durably(&self.dir, (height, *root), || {
            step();
            match fs::remove_dir_all(&own) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
            fs::create_dir_all(own.join("taken"))?;
            install(&self.dir, &offer, &changed, &place)?;
            for (at, keys) in &blocks {
                step();
                let keys = Offer { txn: *at, reads: keys.clone(), ..Offer::default() };
                fs::write(slot(&self.dir, *at), [&root[..], &keys.encode()].concat())?;
            }
            step();
            Ok(())
        })
        .map_err(|e| wrong(format!("at {:?}: {e}", shown(&place.borrow()))))?;
        step();
        (self.model, self.versions, self.ready) = (model, versions, None);
        (self.height, self.root, self.last, self.placed) = (height, *root, height, (height, *root));
        self.waiting.height.store(height, Ordering::Release);
        Ok(())
    }
}

/// Errors that are there again, however often it is tried: the file system's.
fn stays(error: &io::Error) -> bool {
    let stay = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::OPNOTSUPP,
        Errno::NAMETOOLONG,
        Errno::MLINK,
        Errno::INVAL,
        Errno::PERM,
        Errno::RANGE,
        Errno::TOOBIG,
        Errno::FBIG,
    ];
    stay.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Does something in a durable transaction, which leaves this height and hash as the last ones;
/// waits for a daemon that is away.
fn durably(dir: &Path, head: (u64, Hash), act: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let Err(error) = systx::atomic(dir, Flags::default(), |_| act()) else { return Ok(()) };
        // The daemon may have died after the commit, and before it could say so. A slot of that
        // height alone says nothing: what is begun with may be older than what is there.
        let last = slots(dir).ok().and_then(|mut slots| slots.pop());
        if last.is_some_and(|(height, root, _)| (height, root) == head) {
            return Ok(());
        }
        if stays(&error) || Instant::now() > end {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_protocol::certify::Source;

    /// The engine ended between its two calls, and has the same block executed again.
    #[test]
    fn a_block_that_is_executed_again_has_the_same_answers() {
        let dir = std::env::temp_dir().join(format!("systx-again.{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let opened = Replica::open(&dir, Arc::new(Waiting::default()));
        fs::remove_dir_all(&dir).unwrap();
        let mut replica = opened.unwrap();
        let placed = vec![(b"a".to_vec(), Source::File)];
        let tx = Request::encode(7, 0, &Offer { placed, ..Offer::default() }.encode());
        let block: [&[u8]; 3] = [&tx, b"none", &tx];
        let (answers, root) = replica.execute(1, &block).unwrap();
        assert_eq!(answers.len(), 3);
        assert_eq!(answers[0], Verdict::Committed);
        assert_eq!(replica.execute(1, &block).unwrap(), (answers, root));
        assert!(replica.execute(1, &block[..1]).is_err(), "another block");
        assert!(replica.execute(2, &block).is_err(), "the first one is not in place");
    }
}
