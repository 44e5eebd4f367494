//! What applications of CometBFT have in common that keep snapshots: their last words, the calls
//! of state sync, how they listen, and how they end.

use crate::{Coming, Hash, Kept};
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tendermint_abci::{Application, ServerBuilder};
use tendermint_proto::v0_38::abci::{
    RequestApplySnapshotChunk, RequestLoadSnapshotChunk, RequestOfferSnapshot,
    ResponseApplySnapshotChunk, ResponseCommit, ResponseListSnapshots, ResponseLoadSnapshotChunk,
    ResponseOfferSnapshot,
};

/// What others may begin with, and what has come from others. The engine has several connections
/// to one application, so each of them has a copy of this.
#[derive(Clone, Default)]
pub struct Exchange {
    coming: Arc<Mutex<Coming>>,
    kept: Option<Arc<Kept>>,
    prunes: bool,
}

impl Exchange {
    /// As the last words of a command line say: `[SNAPSHOTS EVERY [prune]]`. `None`: these are
    /// none.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn of(words: &[String]) -> io::Result<Option<Exchange>> {
        let (dir, every, prunes) = match words {
            [] => return Ok(Some(Exchange::default())),
            [dir, every] => (dir, every, false),
            [dir, every, word] if word == "prune" => (dir, every, true),
            _ => return Ok(None),
        };
        let Ok(every) = every.parse() else { return Ok(None) };
        let kept = Some(Arc::new(Kept::open(Path::new(dir), every)?));
        Ok(Some(Exchange { kept, prunes, ..Exchange::default() }))
    }

    /// What is kept for others, if anything is.
    pub fn kept(&self) -> Option<&Arc<Kept>> {
        self.kept.as_ref()
    }

    /// What is said of a block that is in place: which blocks nobody needs any more.
    pub fn committed(&self) -> ResponseCommit {
        let oldest = self.kept.as_ref().filter(|_| self.prunes).and_then(|kept| kept.oldest());
        ResponseCommit { retain_height: oldest.unwrap_or(0) as i64 }
    }

    /// See [`Kept::list`].
    pub fn list(&self) -> ResponseListSnapshots {
        self.kept.as_ref().map(|kept| kept.list()).unwrap_or_default()
    }

    /// See [`Kept::load`].
    pub fn load(&self, wanted: &RequestLoadSnapshotChunk) -> ResponseLoadSnapshotChunk {
        self.kept.as_ref().map(|kept| kept.load(wanted)).unwrap_or_default()
    }

    /// See [`Coming::offer`].
    pub fn offer(&self, offer: &RequestOfferSnapshot) -> ResponseOfferSnapshot {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner).offer(offer)
    }

    /// See [`Coming::chunk`].
    pub fn chunk(
        &self,
        chunk: &RequestApplySnapshotChunk,
        restore: impl FnOnce(u64, &Hash, &[u8]) -> io::Result<()>,
    ) -> ResponseApplySnapshotChunk {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner).chunk(chunk, restore)
    }
}

/// Says why, and ends the program. The engine has no answer for a state that cannot be gone on
/// with: it has to see that its application is away.
pub fn give_up(why: impl Display) -> ! {
    let program = std::env::args().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().display();
    eprintln!("{name}: {why}");
    std::process::exit(1)
}

/// Answers the engine for ever, or says why not.
pub fn serve(address: &str, application: impl Application) -> ! {
    let bound = ServerBuilder::default().bind(address, application);
    let bound = bound.unwrap_or_else(|e| give_up(format!("{address}: {e}")));
    println!("answers at {address}");
    match bound.listen() {
        Ok(()) => give_up(format!("{address}: nobody listens any more")),
        Err(e) => give_up(format!("{address}: {e}")),
    }
}
