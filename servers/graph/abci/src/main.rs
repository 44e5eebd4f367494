//! The graph behind CometBFT 0.38: `systx-graph-abci DIR ADDRESS [THREADS]` answers its calls.
//!
//! In place of THREADS there may be `at-once` or `synced`, for a comparison: one thread without
//! transactions, which the engine cannot bring back to what it knows after a crash.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systx_graph::executor::{Executor, How};
use systx_graph::request::{Answer, Request};
use systx_graph::server::ask;
use tendermint_abci::{Application, ServerBuilder};
use tendermint_proto::v0_38::abci::{
    ExecTxResult, RequestCheckTx, RequestFinalizeBlock, RequestInfo, RequestInitChain,
    RequestQuery, ResponseCheckTx, ResponseCommit, ResponseFinalizeBlock, ResponseInfo,
    ResponseInitChain, ResponseQuery,
};

/// One graph; the engine has several connections to it.
#[derive(Clone)]
struct Graph {
    dir: PathBuf,
    vertices: u32,
    server: Arc<Mutex<Executor>>,
}

/// The engine has no answer for a state that cannot be gone on with: it has to see that its
/// application is away.
fn give_up(why: impl std::fmt::Display) -> ! {
    eprintln!("systx-graph-abci: {why}");
    std::process::exit(1)
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
        self.server().commit().unwrap_or_else(|e| give_up(e));
        ResponseCommit::default()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (dir, address, how) = match &words[..] {
        [_, dir, address] => (dir, address, Ok(How::Threads(2))),
        [_, dir, address, how] => (dir, address, how.parse()),
        _ => give_up("usage: systx-graph-abci DIR ADDRESS [THREADS]"),
    };
    let how = how.unwrap_or_else(|e: std::io::Error| give_up(e));
    let dir = PathBuf::from(dir);
    let server = Executor::open(&dir, how).unwrap_or_else(|e| give_up(e));
    let vertices = server.header().layout.vertices;
    let graph = Graph { dir, vertices, server: Arc::new(Mutex::new(server)) };
    let bound = ServerBuilder::default().bind(address, graph);
    let bound = bound.unwrap_or_else(|e| give_up(format!("{address}: {e}")));
    println!("answers at {address}");
    if let Err(e) = bound.listen() {
        give_up(e);
    }
}
