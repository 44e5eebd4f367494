use super::*;
use crate::protocol::*;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Mutex as StdMutex;
use std::thread::JoinHandle;
use systx_base::TxnId;
use systx_protocol::client::Client;

/// A transaction whose commit waits until somebody notes that it may go on.
const SLOW: TxnId = TxnId(99);

/// Remembers what was asked of it.
#[derive(Debug, Default)]
struct Fake {
    calls: StdMutex<Vec<String>>,
    open: StdMutex<BTreeSet<u64>>,
    bells: StdMutex<Vec<Doorbell>>,
    guarded: StdMutex<Vec<GuardedDir>>,
    gone: std::sync::Condvar,
}

impl Fake {
    fn note(&self, what: impl Into<String>) {
        self.calls.lock().unwrap().push(what.into());
        self.gone.notify_all();
    }
    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
    fn wait_for_call(&self, what: &str) {
        let calls = self.calls.lock().unwrap();
        let limit = Duration::from_secs(300);
        let (_calls, late) = self
            .gone
            .wait_timeout_while(calls, limit, |calls| !calls.iter().any(|c| c == what))
            .unwrap();
        assert!(!late.timed_out(), "no call {what:?}");
    }
}

fn facts() -> VolumeFacts {
    VolumeFacts { root: "/".into(), dev: 1, store: "/s".into(), guarded: vec![] }
}

impl Fake {
    fn begin(&self, asker: &mut Asker, begin: &Begin) -> Result<Begun, Failure> {
        let doorbell = asker.begins()?;
        let id = u64::from(begin.losses);
        self.open.lock().unwrap().insert(id);
        self.bells.lock().unwrap().push(doorbell);
        self.note(format!("begin {id}"));
        asker.runs.insert(TxnId(id));
        Ok(Begun {
            id: TxnId(id),
            timestamp: 1,
            volume: facts(),
            others: vec![],
            notes: vec![],
            details: vec![],
            unprotected: vec![],
        })
    }
    fn attach(&self, asker: &mut Asker, attach: &Attach) -> Result<Attached, Failure> {
        rustix::io::write(asker.descriptor()?, b"served").unwrap();
        self.note(format!("attach {}", attach.pid));
        Ok(Attached { transport: Transport::Dev })
    }
    fn finish(&self, asker: &mut Asker, finish: &Finish) -> Outcome {
        asker.ends();
        self.open.lock().unwrap().remove(&finish.id.0);
        self.note(format!("finish {}", finish.id.0));
        asker.runs.remove(&finish.id);
        Outcome::Aborted { summary: Summary::default() }
    }
    fn commit(&self, id: TxnId) -> Outcome {
        if id == SLOW {
            progress::phase(progress::Phase::Installing, || 3);
            progress::step();
            self.note("installing");
            self.wait_for_call("go on");
        }
        Outcome::Kept { summary: Summary::default() }
    }
    fn enter(&self, asker: &mut Asker, id: TxnId) -> Entered {
        self.note(format!("enter {}", id.0));
        asker.runs.insert(id);
        let volume = facts();
        Entered { volume, others: vec![], live: None, mounted: None, unprotected: vec![] }
    }
}

impl Control for Fake {
    fn answer(&self, asker: &mut Asker, request: &Request) -> Result<Reply, Failure> {
        match request.name {
            Begin::NAME => request.answered(|begin| self.begin(asker, &begin)),
            Attach::NAME => request.answered(|attach| self.attach(asker, &attach)),
            Finish::NAME => request.answered(|finish| Ok(self.finish(asker, &finish))),
            call::List::NAME => request.answered(|_: call::List| Ok(vec![])),
            call::Status::NAME => request.answered(|call: call::Status| {
                let text = format!("no transaction {}", call.id);
                Err(Failure::new(FailureKind::NotFound, text).hint("systx list"))
            }),
            call::Diff::NAME => panic!("as if there were a bug"),
            call::Content::NAME => request.answered(|call: call::Content| {
                asker.beside = vec![7; usize::try_from(call.limit).unwrap()];
                Ok(Content { total: call.limit + 1, ..Content::default() })
            }),
            call::Commit::NAME => request.answered(|call: call::Commit| Ok(self.commit(call.id))),
            call::Enter::NAME => {
                request.answered(|call: call::Enter| Ok(self.enter(asker, call.id)))
            }
            call::Leave::NAME => request.answered(|call: call::Leave| {
                self.note(format!("leave {}", call.id.0));
                asker.runs.remove(&call.id);
                Ok(())
            }),
            Guarded::NAME => {
                request.answered(|_: Guarded| Ok(self.guarded.lock().unwrap().clone()))
            }
            other => Err(Failure::new(FailureKind::Unsupported, other)),
        }
    }
    fn client_gone(&self, id: TxnId) {
        self.open.lock().unwrap().remove(&id.0);
        self.note(format!("gone {}", id.0));
    }
    fn idle(&self) -> bool {
        self.open.lock().unwrap().is_empty() && self.guarded.lock().unwrap().is_empty()
    }
    fn shutdown(&self) {
        self.note("shutdown");
    }
}

struct Running {
    fake: Arc<Fake>,
    path: std::path::PathBuf,
    thread: Option<JoinHandle<std::io::Result<Ended>>>,
}

impl Running {
    fn start(name: &str, idle: Duration, stop: Option<OwnedFd>) -> Running {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("systx-server-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let fake = Arc::new(Fake::default());
        let control: Arc<dyn Control> = fake.clone();
        let thread = std::thread::spawn(move || serve(listener, control, &Config { idle, stop }));
        Running { fake, path, thread: Some(thread) }
    }
    fn raw(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }
    fn client(&self) -> Client {
        Client::new(self.raw()).unwrap()
    }
    fn ended(&mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn begin(id: u32) -> Begin {
    Begin {
        place: Place { cwd: "/".into(), root: None, store: None },
        argv: vec!["true".into()],
        isolation: Isolation::default(),
        read_only: false,
        policy: None,
        losses: id,
        timestamp: None,
        rules: vec![],
        limit_bytes: None,
        transport: Transport::Auto,
        others: vec![],
    }
}

fn finish(id: TxnId) -> Finish {
    Finish { id, end: End::Abort, code: None, deferred: Vec::new() }
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_whole_run_and_descriptors_arrive() {
    let mut server = Running::start("run", LONG, None);
    let mut client = server.client();
    let bell = bell();
    let begun = client.ask_with(&begin(4), &[bell.as_fd()]).unwrap();
    assert_eq!(begun.id, TxnId(4));
    let (r, w) = rustix::pipe::pipe().unwrap();
    let attach =
        Attach { id: begun.id, volume: 0, pid: 5, mnt_ns: 6, connection: 7, rules: vec![] };
    client.ask_with(&attach, &[w.as_fd()]).unwrap();
    let mut buf = [0; 6];
    rustix::io::read(&r, &mut buf).unwrap();
    assert_eq!(&buf, b"served");
    server.fake.bells.lock().unwrap()[0].ring();
    let mut count = [0; 8];
    rustix::io::read(&bell, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    client.ask(&finish(begun.id)).unwrap();
    drop(client);
    server.client().ask(&Shutdown { force: false }).unwrap();
    assert_eq!(server.ended(), Ended::Asked);
    assert_eq!(server.fake.calls(), ["begin 4", "attach 5", "finish 4", "shutdown"]);
}

#[test]
fn a_client_that_vanishes_aborts_its_runs_and_visits() {
    let server = Running::start("gone", LONG, None);
    let mut client = server.client();
    client.ask_with(&begin(1), &[bell().as_fd()]).unwrap();
    client.ask_with(&begin(2), &[bell().as_fd()]).unwrap();
    client.ask(&finish(TxnId(1))).unwrap();
    client.ask(&call::Enter { id: TxnId(3) }).unwrap();
    client.ask(&call::Enter { id: TxnId(4) }).unwrap();
    client.ask(&call::Leave { id: TxnId(4) }).unwrap();
    drop(client);
    server.fake.wait_for_call("gone 2");
    server.fake.wait_for_call("gone 3");
    let calls = server.fake.calls();
    assert!(!calls.contains(&"gone 1".into()) && !calls.contains(&"gone 4".into()), "{calls:?}");
}

#[test]
fn the_daemon_ends_when_idle_but_not_before() {
    let mut server = Running::start("idle", Duration::from_millis(30), None);
    let mut client = server.client();
    client.ask_with(&begin(1), &[bell().as_fd()]).unwrap();
    // Several idle times pass with a connection and an open run; the answer proves it lives.
    let until = Instant::now() + Duration::from_millis(120);
    while Instant::now() < until {
        client.ask(&call::List).unwrap();
    }
    drop(client);
    assert_eq!(server.ended(), Ended::Idle);
    assert_eq!(server.fake.calls(), ["begin 1", "gone 1", "shutdown"]);
}

#[test]
fn a_stop_descriptor_ends_it() {
    let (r, w) = rustix::pipe::pipe().unwrap();
    let mut server = Running::start("stop", LONG, Some(r));
    rustix::io::write(&w, b"x").unwrap();
    assert_eq!(server.ended(), Ended::Stopped);
}

#[test]
fn shutdown_is_refused_while_something_is_open_unless_forced() {
    let mut server = Running::start("busy", LONG, None);
    let mut client = server.client();
    client.ask_with(&begin(1), &[bell().as_fd()]).unwrap();
    let refused = client.ask(&Shutdown { force: false }).unwrap_err();
    assert_eq!(refused.kind, FailureKind::State);
    client.ask(&Shutdown { force: true }).unwrap();
    assert_eq!(server.ended(), Ended::Asked);
}

#[test]
fn shutdown_is_refused_while_directories_are_guarded_unless_forced() {
    let mut server = Running::start("guarded", LONG, None);
    let mut client = server.client();
    *server.fake.guarded.lock().unwrap() = vec![GuardedDir {
        dir: "/g".into(),
        volume: "/".into(),
        store: "/.systx".into(),
        dev: 1,
        transport: Transport::Dev,
        stall_ms: 500,
        policy: Policy::default(),
        routed: false,
        fast_open: false,
        certifier: None,
        past: vec![],
        notes: vec![],
    }];
    let refused = client.ask(&Shutdown { force: false }).unwrap_err();
    assert_eq!((refused.kind, refused.paths), (FailureKind::State, vec!["/g".into()]));
    assert!(refused.message.contains("guarded"), "{}", refused.message);
    client.ask(&Shutdown { force: true }).unwrap();
    assert_eq!(server.ended(), Ended::Asked);
}

#[test]
fn a_failure_travels_whole_and_a_panic_fails_only_its_request() {
    let server = Running::start("fail", LONG, None);
    let mut client = server.client();
    let failure = client.ask(&call::Status { id: TxnId(0xab) }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert_eq!(failure.message, "no transaction 000000ab");
    assert_eq!(failure.hint.as_deref(), Some("systx list"));
    let target = Target::Open { id: TxnId(1) };
    let failure = client.ask(&call::Diff { target, paths: vec![] }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Internal);
    assert_eq!(client.ask(&call::List).unwrap(), vec![]);
}

#[test]
fn content_travels_beside_the_json() {
    let server = Running::start("content", LONG, None);
    let mut client = server.client();
    let target = Target::Open { id: TxnId(1) };
    let (path, version, limit) = ("/f".into(), Version::New, 3_000_000);
    let got = client.content(&call::Content { target, path, version, limit }).unwrap();
    assert_eq!((got.bytes.len(), got.total), (3_000_000, 3_000_001));
    assert!(got.bytes.iter().all(|b| *b == 7));
}

#[test]
fn another_version_is_told_apart_and_served_nothing() {
    let server = Running::start("version", LONG, None);
    let stream = server.raw();
    let hello = Request::new(&Hello { version: VERSION + 1, release: "9".into() }).unwrap();
    wire::send(&stream, &hello, &[], &[]).unwrap();
    let frame = wire::receive::<Reply>(&stream).unwrap();
    assert_eq!(frame.message.read::<Hello>().unwrap().version, VERSION);
    assert!(matches!(wire::receive::<Reply>(&stream), Err(WireError::Closed)));

    // And the client, when the daemon is the other one.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let answer = std::thread::spawn(move || {
        wire::receive::<Request>(&theirs).unwrap();
        let theirs_is =
            Greeting { version: VERSION + 1, release: "9.9".into(), pid: 77, connection: 0 };
        let hello = Reply::new::<Hello>(&theirs_is).unwrap();
        wire::send(&theirs, &hello, &[], &[]).unwrap();
    });
    let failure = Client::new(ours).unwrap_err();
    answer.join().unwrap();
    assert_eq!(failure.kind, FailureKind::Version);
    assert!(failure.message.contains("9.9") && failure.hint.unwrap().contains("kill 77"));
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    use std::io::{Read, Write};
    let server = Running::start("garbage", LONG, None);
    let cases: [&[u8]; 4] = [
        &[0xff; 8],
        &[4, 0, 0, 0, 0, 0, 0, 0, b'n', b'o', b'p', b'e'],
        &[1, 2, 3],
        &[0xff, 0xff, 0xff, 0x03, 0, 0, 0, 0, b'{'],
    ];
    for bytes in cases {
        let mut stream = server.raw();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let mut fine = server.client();
    assert_eq!(fine.ask(&call::List).unwrap(), vec![]);
    // A request without its descriptor, after a good hello.
    let stream = server.raw();
    wire::send(&stream, &Request::new(&Hello::ours()).unwrap(), &[], &[]).unwrap();
    wire::receive::<Reply>(&stream).unwrap();
    wire::send(&stream, &Request::new(&begin(1)).unwrap(), &[], &[]).unwrap();
    let frame = wire::receive::<Reply>(&stream).unwrap();
    assert_eq!(frame.message.read::<Begin>().unwrap_err().kind, FailureKind::Invalid);
}

/// Lets the commit go on as soon as it was told how far it is.
#[derive(Debug)]
struct Told {
    path: std::path::PathBuf,
    fake: Arc<Fake>,
}

impl systx_protocol::client::Watcher for Told {
    fn connect(&mut self) -> Option<Client> {
        Client::new(UnixStream::connect(&self.path).ok()?).ok()
    }
    fn at(&mut self, progress: crate::protocol::Progress) {
        self.fake.note(format!("{:?} {} of {}", progress.phase, progress.done, progress.total));
        self.fake.note("go on");
    }
    fn over(&mut self) {
        self.fake.note("over");
    }
}

#[test]
fn a_second_connection_is_told_how_far_a_request_is() {
    let daemon = Running::start("progress", Duration::from_secs(300), None);
    let mut client = daemon.client();
    let none = client.ask(&call::Progress { connection: 12345 });
    assert_eq!(none, Ok(None), "there is no such connection");
    client.watch(Box::new(Told { path: daemon.path.clone(), fake: daemon.fake.clone() }));
    client.ask(&call::Commit { id: TxnId(1), paths: vec![] }).unwrap();
    assert!(!daemon.fake.calls().iter().any(|c| c == "over"), "{:?}", daemon.fake.calls());
    client.ask(&call::Commit { id: SLOW, paths: vec![] }).unwrap();
    let calls = daemon.fake.calls();
    let told: Vec<&String> = calls.iter().filter(|c| *c != "go on").collect();
    assert_eq!(told[..2], ["installing", "Installing 1 of 3"], "{calls:?}");
    assert_eq!(told.last().unwrap().as_str(), "over");
    // What has been answered is under way no more.
    let mut other = daemon.client();
    assert!((0..10).all(|connection| other.ask(&call::Progress { connection }) == Ok(None)));
}

#[test]
fn what_is_left_of_a_view_is_let_go_of_when_its_client_is_gone() {
    let server = Running::start("views", LONG, None);
    let mut client = server.client();
    client.ask_with(&begin(1), &[bell().as_fd()]).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    client.ask_with(&finish(TxnId(1)), &[write.as_fd()]).unwrap();
    drop(write);
    // The daemon alone has the other end of the pipe now, as long as the client is there.
    let at_end = |limit: i64| {
        let mut fds = [rustix::event::PollFd::new(&read, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: limit, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    client.ask(&call::List).unwrap();
    assert!(!at_end(0));
    drop(client);
    assert!(at_end(300));
}
