//! `systx-replicate DIR SOCKET ADDRESS ENGINE`: the certifier of DIR at SOCKET, which is the
//! application of a CometBFT that calls it at ADDRESS and is asked at ENGINE.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systx_protocol::certify::Verdict;
use systx_replicate::replica::{Replica, Request, Waiting};
use systx_replicate::socket;
use tendermint_abci::{Application, ServerBuilder};
use tendermint_proto::v0_38::abci::{
    ExecTxResult, RequestCheckTx, RequestFinalizeBlock, RequestInfo, RequestInitChain,
    ResponseCheckTx, ResponseCommit, ResponseFinalizeBlock, ResponseInfo, ResponseInitChain,
};

/// The engine has several connections to it.
#[derive(Clone)]
struct App(Arc<Mutex<Replica>>);

/// The engine has no answer for a state that cannot be gone on with: it has to see that its
/// application is away.
fn give_up(why: impl std::fmt::Display) -> ! {
    eprintln!("systx-replicate: {why}");
    std::process::exit(1)
}

impl App {
    fn replica(&self) -> MutexGuard<'_, Replica> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Application for App {
    fn info(&self, _: RequestInfo) -> ResponseInfo {
        let (height, root) = self.replica().head();
        ResponseInfo {
            data: "systx-replicate".into(),
            last_block_height: height as i64,
            last_block_app_hash: root.to_vec().into(),
            ..ResponseInfo::default()
        }
    }

    fn init_chain(&self, _: RequestInitChain) -> ResponseInitChain {
        let app_hash = self.replica().head().1.to_vec().into();
        ResponseInitChain { app_hash, ..ResponseInitChain::default() }
    }

    fn check_tx(&self, request: RequestCheckTx) -> ResponseCheckTx {
        let wrong = Request::decode(&request.tx).is_none();
        ResponseCheckTx { code: wrong.into(), ..ResponseCheckTx::default() }
    }

    fn finalize_block(&self, request: RequestFinalizeBlock) -> ResponseFinalizeBlock {
        let txs: Vec<&[u8]> = request.txs.iter().map(|tx| &tx[..]).collect();
        let done = self.replica().execute(request.height as u64, &txs);
        let (verdicts, root) = done.unwrap_or_else(|e| give_up(e));
        let result = |verdict: &Verdict| ExecTxResult {
            code: (*verdict != Verdict::Committed).into(),
            data: verdict.encode().into(),
            ..ExecTxResult::default()
        };
        ResponseFinalizeBlock {
            tx_results: verdicts.iter().map(result).collect(),
            app_hash: root.to_vec().into(),
            ..ResponseFinalizeBlock::default()
        }
    }

    fn commit(&self) -> ResponseCommit {
        self.replica().commit().unwrap_or_else(|e| give_up(e));
        ResponseCommit::default()
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, at, address, engine] = &words[..] else {
        give_up("usage: systx-replicate DIR SOCKET ADDRESS ENGINE")
    };
    // What an earlier one has left; nobody listens at it.
    let _ = std::fs::remove_file(at);
    let listener = UnixListener::bind(at).unwrap_or_else(|e| give_up(format!("{at}: {e}")));
    let waiting = Arc::new(Waiting::default());
    let replica =
        Replica::open(Path::new(dir), Arc::clone(&waiting)).unwrap_or_else(|e| give_up(e));
    let app = App(Arc::new(Mutex::new(replica)));
    let bound = ServerBuilder::default().bind(address, app);
    let bound = bound.unwrap_or_else(|e| give_up(format!("{address}: {e}")));
    let engine = engine.clone();
    std::thread::spawn(move || {
        let done = socket::serve(listener, engine, waiting);
        give_up(done.err().map_or_else(|| "the socket has ended".into(), |e| e.to_string()));
    });
    println!("answers at {address}");
    if let Err(e) = bound.listen() {
        give_up(e);
    }
}
