//! `systx-replicate DIR SOCKET ADDRESS ENGINE [SNAPSHOTS EVERY [prune]]`: the certifier of DIR at
//! SOCKET, which is the application of a CometBFT that calls it at ADDRESS and is asked at ENGINE.
//! In SNAPSHOTS it keeps what others may begin with, of one in EVERY blocks; with `prune` the
//! engine keeps no blocks before the oldest of these.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systx_protocol::certify::Verdict;
use systx_replicate::replica::{Replica, Request, Waiting};
use systx_replicate::socket;
use systx_snapshots::{Exchange, give_up, serve};
use tendermint_abci::Application;
use tendermint_proto::v0_38::abci::{
    ExecTxResult, RequestApplySnapshotChunk, RequestCheckTx, RequestFinalizeBlock, RequestInfo,
    RequestInitChain, RequestLoadSnapshotChunk, RequestOfferSnapshot, ResponseApplySnapshotChunk,
    ResponseCheckTx, ResponseCommit, ResponseFinalizeBlock, ResponseInfo, ResponseInitChain,
    ResponseListSnapshots, ResponseLoadSnapshotChunk, ResponseOfferSnapshot,
};

/// The engine has several connections to it.
#[derive(Clone)]
struct App {
    replica: Arc<Mutex<Replica>>,
    others: Exchange,
}

impl App {
    fn replica(&self) -> MutexGuard<'_, Replica> {
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.others
            .chunk(&request, |height, root, bytes| self.replica().restore(height, root, bytes))
    }
}

const USAGE: &str = "usage: systx-replicate DIR SOCKET ADDRESS ENGINE [SNAPSHOTS EVERY [prune]]";

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, at, address, engine, rest @ ..] = &words[..] else { give_up(USAGE) };
    let others = Exchange::of(rest).unwrap_or_else(|e| give_up(e));
    let others = others.unwrap_or_else(|| give_up(USAGE));
    // What an earlier one has left; nobody listens at it.
    let _ = std::fs::remove_file(at);
    let listener = UnixListener::bind(at).unwrap_or_else(|e| give_up(format!("{at}: {e}")));
    let waiting = Arc::new(Waiting::default());
    let mut replica =
        Replica::open(Path::new(dir), Arc::clone(&waiting)).unwrap_or_else(|e| give_up(e));
    others.kept().into_iter().for_each(|kept| replica.keep(Arc::clone(kept)));
    let engine = engine.clone();
    std::thread::spawn(move || {
        let done = socket::serve(listener, engine, waiting);
        give_up(done.err().map_or_else(|| "the socket has ended".into(), |e| e.to_string()));
    });
    serve(address, App { replica: Arc::new(Mutex::new(replica)), others })
}
