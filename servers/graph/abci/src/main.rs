//! The graph behind CometBFT 0.38: `systx-graph-abci DIR ADDRESS [THREADS [SNAPSHOTS EVERY
//! [prune]]]` answers its calls. In SNAPSHOTS it keeps what others may begin with, after each EVERY
//! blocks; with `prune` the engine keeps no blocks before the oldest of these.
//!
//! In place of THREADS there may be `at-once` or `synced`, for a comparison: one thread without
//! transactions, which the engine cannot bring back to what it knows after a crash.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systx_graph::executor::{Executor, How};
use systx_graph::request::{Answer, Request};
use systx_graph::server::{ask, bytes_at};
use systx_snapshots::{Exchange, give_up, serve, step};
use tendermint_abci::Application;
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
    others: Exchange,
}

impl Graph {
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
        let due = |before| self.others.kept().filter(|kept| kept.is_due(before, height));
        if let Some(kept) = due(height - 1) {
            let dir = self.dir.clone();
            kept.gather(height, move |begun| bytes_at(&dir, height, begun));
        }
        self.others.committed()
    }

    fn list_snapshots(&self) -> ResponseListSnapshots {
        self.others.list()
    }

    fn load_snapshot_chunk(&self, request: RequestLoadSnapshotChunk) -> ResponseLoadSnapshotChunk {
        self.others.load(&request)
    }

    fn offer_snapshot(&self, request: RequestOfferSnapshot) -> ResponseOfferSnapshot {
        self.others.offer(&request)
    }

    fn apply_snapshot_chunk(
        &self,
        request: RequestApplySnapshotChunk,
    ) -> ResponseApplySnapshotChunk {
        self.others.chunk(&request, |height, root, bytes| {
            self.server().restore(height, root, bytes, &step)
        })
    }
}

const USAGE: &str = "usage: systx-graph-abci DIR ADDRESS [THREADS [SNAPSHOTS EVERY [prune]]]";

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (dir, address, how, rest) = match &words[..] {
        [_, dir, address] => (dir, address, Ok(How::Threads(2)), &[][..]),
        [_, dir, address, how, rest @ ..] => (dir, address, how.parse(), rest),
        _ => give_up(USAGE),
    };
    let others = Exchange::of(rest).unwrap_or_else(|e| give_up(e));
    let others = others.unwrap_or_else(|| give_up(USAGE));
    let how = how.unwrap_or_else(|e: std::io::Error| give_up(e));
    let dir = PathBuf::from(dir);
    let server = Executor::open(&dir, how).unwrap_or_else(|e| give_up(e));
    let vertices = server.header().layout.vertices;
    serve(address, Graph { dir, vertices, server: Arc::new(Mutex::new(server)), others })
}
