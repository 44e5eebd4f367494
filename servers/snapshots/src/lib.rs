//! State sync of CometBFT: snapshots of an application's state in a directory, and one that comes
//! from others.
//!
//! A snapshot is a run of bytes in chunks. Its metadata are the hashes of the chunks, and its hash
//! is the one of these: so each chunk is checked as it comes, and what all of it is has to be
//! checked by the application, against the hash that the engine trusts.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tendermint_proto::v0_38::abci::response_apply_snapshot_chunk::Result as Applied;
use tendermint_proto::v0_38::abci::response_offer_snapshot::Result as Offered;
use tendermint_proto::v0_38::abci::{
    RequestApplySnapshotChunk, RequestLoadSnapshotChunk, RequestOfferSnapshot,
    ResponseApplySnapshotChunk, ResponseListSnapshots, ResponseLoadSnapshotChunk,
    ResponseOfferSnapshot, Snapshot,
};

mod application;
mod steps;

pub use application::{Exchange, give_up, serve};
pub use steps::step;

/// A hash.
pub type Hash = [u8; 32];
/// Bytes of a chunk; the last one has fewer.
pub const CHUNK: usize = 256 << 10;
/// Most chunks: 1 GiB, which is in memory once when it comes.
const CHUNKS_MAX: usize = 4096;
/// How many snapshots are kept.
const KEPT: usize = 3;
/// How snapshots are written.
const FORMAT: u32 = 1;
/// How long blocks wait for the moment of a snapshot.
const PATIENCE: Duration = Duration::from_secs(60);

fn wrong(why: String) -> io::Error {
    io::Error::other(why)
}

fn sum(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// The snapshots that this machine has, each in two files: `HEIGHT` has its bytes, and
/// `HEIGHT.sums` the hashes of its chunks. That comes last, and one without it does not count.
pub struct Kept {
    dir: PathBuf,
    /// One for each so many blocks.
    every: u64,
    /// One comes at a time: they are gathered beside each other, and share the names of files.
    keeping: Mutex<()>,
}

impl Kept {
    /// Those in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be.
    pub fn open(dir: &Path, every: u64) -> io::Result<Kept> {
        fs::create_dir_all(dir).map_err(|e| wrong(format!("{}: {e}", dir.display())))?;
        Ok(Kept { dir: dir.to_owned(), every: every.max(1), keeping: Mutex::default() })
    }

    /// Whether one is to be made of the state after this block; `before`: the height of the last
    /// block that could have had one.
    pub fn is_due(&self, before: u64, height: u64) -> bool {
        before / self.every < height / self.every
    }

    /// The heights of all, ascending.
    pub fn heights(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        let all = entries.filter_map(name);
        let mut all: Vec<u64> =
            all.filter_map(|name| name.strip_suffix(".sums")?.parse().ok()).collect();
        all.sort_unstable();
        all
    }

    fn at(&self, height: u64) -> PathBuf {
        self.dir.join(height.to_string())
    }

    fn sums(&self, height: u64) -> PathBuf {
        self.dir.join(format!("{height}.sums"))
    }

    /// Keeps one more, and not the oldest any more.
    ///
    /// # Errors
    /// Those of the directory; it is longer than 1 GiB.
    pub fn keep(&self, height: u64, bytes: &[u8]) -> io::Result<()> {
        let chunks = bytes.len().div_ceil(CHUNK);
        if chunks > CHUNKS_MAX {
            return Err(wrong("a snapshot of more than 1 GiB is not kept".into()));
        }
        let sums: Vec<u8> = bytes.chunks(CHUNK).flat_map(sum).collect();
        let _one = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        fs::write(self.at(height), bytes)?;
        let new = self.dir.join("new");
        fs::write(&new, sums)?;
        fs::rename(new, self.sums(height))?;
        let all = self.heights();
        for old in &all[..all.len().saturating_sub(KEPT)] {
            fs::remove_file(self.sums(*old))?;
            fs::remove_file(self.at(*old))?;
        }
        Ok(())
    }

    /// Keeps one more, which `gather` reads while later blocks are executed. They wait only until
    /// it calls what it is given: what is done from then on makes no difference.
    pub fn gather(
        self: &Arc<Kept>,
        height: u64,
        gather: impl FnOnce(&dyn Fn()) -> io::Result<Vec<u8>> + Send + 'static,
    ) {
        let (kept, (begun, is_begun)) = (Arc::clone(self), channel());
        std::thread::spawn(move || {
            let bytes = gather(&|| {
                // Who waits for it may have gone on.
                let _ = begun.send(());
            });
            if let Err(why) = bytes.and_then(|bytes| kept.keep(height, &bytes)) {
                eprintln!("no snapshot of block {height}: {why}");
            }
        });
        let _ = is_begun.recv_timeout(PATIENCE);
    }

    /// The oldest one, if there are as many as are kept: nobody needs earlier blocks.
    pub fn oldest(&self) -> Option<u64> {
        let all = self.heights();
        all.first().copied().filter(|_| all.len() >= KEPT)
    }

    /// What others are told.
    pub fn list(&self) -> ResponseListSnapshots {
        let one = |height: u64| {
            let sums = fs::read(self.sums(height)).ok()?;
            Some(Snapshot {
                height,
                format: FORMAT,
                chunks: (sums.len() / 32) as u32,
                hash: sum(&sums).to_vec().into(),
                metadata: sums.into(),
            })
        };
        ResponseListSnapshots { snapshots: self.heights().into_iter().filter_map(one).collect() }
    }

    /// What others are given; nothing if it is not kept any more.
    pub fn load(&self, wanted: &RequestLoadSnapshotChunk) -> ResponseLoadSnapshotChunk {
        let read = || {
            let file = File::open(self.at(wanted.height)).ok()?;
            let mut chunk = vec![0; CHUNK];
            let at = u64::from(wanted.chunk) * CHUNK as u64;
            let mut len = 0;
            while len < CHUNK {
                match file.read_at(&mut chunk[len..], at + len as u64).ok()? {
                    0 => break,
                    n => len += n,
                }
            }
            chunk.truncate(len);
            Some(chunk)
        };
        let chunk = (wanted.format == FORMAT).then(read).flatten().unwrap_or_default();
        ResponseLoadSnapshotChunk { chunk: chunk.into() }
    }
}

/// The snapshot that comes from others.
#[derive(Default)]
pub struct Coming(Option<Taken>);

struct Taken {
    height: u64,
    /// What the application's state has to have.
    root: Hash,
    sums: Vec<Hash>,
    bytes: Vec<u8>,
    /// How many chunks are there.
    have: usize,
}

fn told(answer: Applied) -> ResponseApplySnapshotChunk {
    ResponseApplySnapshotChunk { result: answer.into(), ..ResponseApplySnapshotChunk::default() }
}

impl Coming {
    /// One is offered; what has come of another one is dropped.
    pub fn offer(&mut self, offer: &RequestOfferSnapshot) -> ResponseOfferSnapshot {
        self.0 = None;
        step();
        let result = match Coming::read(offer) {
            Ok(taken) => {
                println!("takes a snapshot of height {}", taken.height);
                self.0 = Some(taken);
                Offered::Accept
            }
            Err((result, why)) => {
                let height = offer.snapshot.as_ref().map_or(0, |snapshot| snapshot.height);
                eprintln!("the snapshot of height {height} is not taken: {why}");
                result
            }
        };
        ResponseOfferSnapshot { result: result.into() }
    }

    fn read(offer: &RequestOfferSnapshot) -> Result<Taken, (Offered, String)> {
        let no = |why: &str| (Offered::Reject, why.to_owned());
        let snapshot = offer.snapshot.as_ref().ok_or_else(|| no("there is none"))?;
        if snapshot.format != FORMAT {
            let why = format!("its format is {}, not {FORMAT}", snapshot.format);
            return Err((Offered::RejectFormat, why));
        }
        let root = offer.app_hash[..].try_into().map_err(|_| no("the hash has no 32 bytes"))?;
        let (chunks, sums) = (snapshot.chunks as usize, &snapshot.metadata);
        if chunks == 0 || chunks > CHUNKS_MAX || sums.len() != chunks * 32 {
            return Err(no("it has not the hashes of its chunks, or has more than 1 GiB"));
        }
        if sum(sums) != snapshot.hash[..] {
            return Err(no("the hashes of its chunks are not those that its hash is of"));
        }
        let sums = sums.chunks(32).filter_map(|sum| sum.try_into().ok()).collect();
        Ok(Taken { height: snapshot.height, root, sums, bytes: Vec::new(), have: 0 })
    }

    /// One more chunk. With the last one the application is given the height, the hash that its
    /// state has to have, and all bytes, and says whether it has begun with that.
    pub fn chunk(
        &mut self,
        chunk: &RequestApplySnapshotChunk,
        restore: impl FnOnce(u64, &Hash, &[u8]) -> io::Result<()>,
    ) -> ResponseApplySnapshotChunk {
        step();
        let Some(taken) = &mut self.0 else { return told(Applied::RejectSnapshot) };
        let last = taken.have + 1 == taken.sums.len();
        let sound = taken.sums.get(taken.have).is_some_and(|want| sum(&chunk.chunk) == *want)
            && (chunk.chunk.len() == CHUNK || (last && chunk.chunk.len() <= CHUNK));
        if chunk.index as usize != taken.have || !sound {
            // It comes in its order, so it is another one's fault than of who is asked next.
            let (index, sender, height) = (chunk.index, &chunk.sender, taken.height);
            eprintln!(
                "chunk {index} of {sender} is not the one of the snapshot of height {height}: \
                 nothing is taken from that peer any more"
            );
            return ResponseApplySnapshotChunk {
                refetch_chunks: vec![chunk.index],
                reject_senders: vec![chunk.sender.clone()],
                ..told(Applied::Retry)
            };
        }
        taken.bytes.extend_from_slice(&chunk.chunk);
        taken.have += 1;
        if !last {
            return told(Applied::Accept);
        }
        let Some(taken) = self.0.take() else { return told(Applied::RejectSnapshot) };
        match restore(taken.height, &taken.root, &taken.bytes) {
            Ok(()) => told(Applied::Accept),
            Err(why) => {
                eprintln!("the snapshot of height {} is not taken: {why}", taken.height);
                told(Applied::RejectSnapshot)
            }
        }
    }
}

#[cfg(test)]
mod tests;
