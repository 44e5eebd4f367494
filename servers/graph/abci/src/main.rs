//! The graph behind CometBFT 0.38: `systx-graph-abci DIR ADDRESS [THREADS [SNAPSHOTS EVERY
//! [prune]]]` answers its calls. In SNAPSHOTS it keeps what others may begin with, after each EVERY
//! blocks; with `prune` the engine keeps no blocks before the oldest of these.
//!
//! In place of THREADS there may be `at-once` or `synced`, for a comparison: one thread without
//! transactions, which the engine cannot bring back to what it knows after a crash.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use systx_graph::executor::{Executor, How};
use systx_graph::file::Hash;
use systx_graph::request::{Answer, Request};
use systx_graph::server::{ask, bytes_at};
use systx_snapshots::{Coming, Kept};
use tendermint_abci::{Application, ServerBuilder};
use tendermint_proto::v0_38::abci::{
    ExecTxResult, RequestApplySnapshotChunk, RequestCheckTx, RequestFinalizeBlock, RequestInfo,
    RequestInitChain, RequestLoadSnapshotChunk, RequestOfferSnapshot, RequestQuery,
    ResponseApplySnapshotChunk, ResponseCheckTx, ResponseCommit, ResponseFinalizeBlock,
    ResponseInfo, ResponseInitChain, ResponseListSnapshots, ResponseLoadSnapshotChunk,
    ResponseOfferSnapshot, ResponseQuery,
};

/// One graph; the engine has several connections to it.
#[derive(Clone)]
struct Graph {
    dir: PathBuf,
    vertices: u32,
    server: Arc<Mutex<Executor>>,
    coming: Arc<Mutex<Coming>>,
    kept: Option<Arc<Kept>>,
    prunes: bool,
}

/// The engine has no answer for a state that cannot be gone on with: it has to see that its
/// application is away.
fn give_up(why: impl std::fmt::Display) -> ! {
    eprintln!("systx-graph-abci: {why}");
    std::process::exit(1)
}

impl Graph {
    fn coming(&self) -> MutexGuard<'_, Coming> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a snapshot of the graph as it is; blocks wait only until its moment is fixed.
    fn snapshot(&self, kept: Arc<Kept>, height: u64) {
        let dir = self.dir.clone();
        let (begun, is_begun) = channel();
        std::thread::spawn(move || {
            let bytes = bytes_at(&dir, height, || {
                // Who waits for it may have gone on.
                let _ = begun.send(());
            });
            if let Err(why) = bytes.and_then(|bytes| kept.keep(height, &bytes)) {
                eprintln!("systx-graph-abci: no snapshot of block {height}: {why}");
            }
        });
        let _ = is_begun.recv_timeout(Duration::from_secs(60));
    }

    fn server(&self) -> MutexGuard<'_, Executor> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Application for Graph {
    fn info(&self, _: RequestInfo) -> ResponseInfo {
        let header = *self.server().header();
        ResponseInfo {
            data: "systx-graph".into(),
            last_block_height: header.height as i64,
            last_block_app_hash: header.root.to_vec().into(),
            ..ResponseInfo::default()
        }
    }

    fn init_chain(&self, _: RequestInitChain) -> ResponseInitChain {
        let app_hash = self.server().header().root.to_vec().into();
        ResponseInitChain { app_hash, ..ResponseInitChain::default() }
    }

    fn check_tx(&self, request: RequestCheckTx) -> ResponseCheckTx {
        let wrong = Request::parse(&request.tx, self.vertices).is_none();
        ResponseCheckTx { code: wrong.into(), ..ResponseCheckTx::default() }
    }

    fn query(&self, request: RequestQuery) -> ResponseQuery {
        let height = self.server().header().height as i64;
        match ask(&self.dir, &request.data) {
            Ok(answer) => {
                let value = answer.to_string().into_bytes().into();
                ResponseQuery { value, height, ..ResponseQuery::default() }
            }
            Err(e) => ResponseQuery { code: 1, log: e.to_string(), ..ResponseQuery::default() },
        }
    }

    fn finalize_block(&self, request: RequestFinalizeBlock) -> ResponseFinalizeBlock {
        let mut server = self.server();
        if request.height != server.header().height as i64 + 1 {
            let have = server.header().height;
            give_up(format!("the engine is at block {}, the graph at {have}", request.height));
        }
        let parse = |tx| Request::parse(tx, self.vertices);
        let block = request.txs.iter().map(|tx| parse(tx)).collect();
        let outcome = server.execute(&block).unwrap_or_else(|e| give_up(e));
        let result = |answer: &Answer| ExecTxResult {
            code: matches!(answer, Answer::Invalid).into(),
            data: answer.to_string().into_bytes().into(),
            ..ExecTxResult::default()
        };
        ResponseFinalizeBlock {
            tx_results: outcome.answers.iter().map(result).collect(),
            app_hash: outcome.root.to_vec().into(),
            ..ResponseFinalizeBlock::default()
        }
    }

    fn commit(&self) -> ResponseCommit {
        let mut server = self.server();
        server.commit().unwrap_or_else(|e| give_up(e));
        let height = server.header().height;
        if let Some(kept) = self.kept.as_ref().filter(|kept| kept.is_due(height - 1, height)) {
            self.snapshot(Arc::clone(kept), height);
        }
        let oldest = self.kept.as_ref().filter(|_| self.prunes).and_then(|kept| kept.oldest());
        ResponseCommit { retain_height: oldest.unwrap_or(0) as i64 }
    }

    fn list_snapshots(&self) -> ResponseListSnapshots {
        self.kept.as_ref().map(|kept| kept.list()).unwrap_or_default()
    }

    fn load_snapshot_chunk(&self, request: RequestLoadSnapshotChunk) -> ResponseLoadSnapshotChunk {
        self.kept.as_ref().map(|kept| kept.load(&request)).unwrap_or_default()
    }

    fn offer_snapshot(&self, request: RequestOfferSnapshot) -> ResponseOfferSnapshot {
        self.coming().offer(&request)
    }

    fn apply_snapshot_chunk(
        &self,
        request: RequestApplySnapshotChunk,
    ) -> ResponseApplySnapshotChunk {
        let restore =
            |height, root: &Hash, bytes: &[u8]| self.server().restore(height, root, bytes);
        self.coming().chunk(&request, restore)
    }
}

const USAGE: &str = "usage: systx-graph-abci DIR ADDRESS [THREADS [SNAPSHOTS EVERY [prune]]]";

fn keep(dir: &str, every: &str) -> Arc<Kept> {
    let every = every.parse().unwrap_or_else(|_| give_up(USAGE));
    Arc::new(Kept::open(Path::new(dir), every).unwrap_or_else(|e| give_up(e)))
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (dir, address, how, rest) = match &words[..] {
        [_, dir, address] => (dir, address, Ok(How::Threads(2)), &[][..]),
        [_, dir, address, how, rest @ ..] => (dir, address, how.parse(), rest),
        _ => give_up(USAGE),
    };
    let (kept, prunes) = match rest {
        [] => (None, false),
        [snapshots, every] => (Some(keep(snapshots, every)), false),
        [snapshots, every, word] if word == "prune" => (Some(keep(snapshots, every)), true),
        _ => give_up(USAGE),
    };
    let how = how.unwrap_or_else(|e: std::io::Error| give_up(e));
    let dir = PathBuf::from(dir);
    let server = Executor::open(&dir, how).unwrap_or_else(|e| give_up(e));
    let vertices = server.header().layout.vertices;
    let (server, coming) = (Arc::new(Mutex::new(server)), Arc::default());
    let graph = Graph { dir, vertices, server, coming, kept, prunes };
    let bound = ServerBuilder::default().bind(address, graph);
    let bound = bound.unwrap_or_else(|e| give_up(format!("{address}: {e}")));
    println!("answers at {address}");
    if let Err(e) = bound.listen() {
        give_up(e);
    }
}
