//! Examples of each request's bytes, and random bytes against the decoder and the server behind it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::config::Config;
use crate::dev;
use crate::memfs::Memfs;
use crate::server::{Outcome, Server};
use crate::wire::InHeader;
use systx_vfs::api::{Caller, Calls};

fn ok<'a>(opcode: Opcode, fixed: &impl AsBytes, data: &'a [u8]) -> Operation<'a> {
    decode(opcode, fixed.bytes(), data).unwrap()
}

/// `()` has no bytes; everything else is a wire structure.
trait AsBytes {
    fn bytes(&self) -> &[u8];
}
impl AsBytes for () {
    fn bytes(&self) -> &[u8] {
        &[]
    }
}
macro_rules! as_bytes {
    ($($t:ident)*) => {$(impl AsBytes for wire::$t { fn bytes(&self) -> &[u8] { self.as_bytes() } })*};
}
as_bytes! { MknodIn MkdirIn CreateIn RenameIn Rename2In LinkIn SetattrIn WriteIn SetxattrIn LkIn
FallocateIn LseekIn CopyIn BatchForgetIn ReleaseIn GetxattrIn }

fn refused(opcode: Opcode, fixed: &impl AsBytes, data: &[u8]) -> Refusal {
    decode(opcode, fixed.bytes(), data).unwrap_err()
}

#[test]
fn names_are_single_components() {
    assert_eq!(ok(Opcode::Lookup, &(), b"a b\0"), Operation::Lookup { name: b"a b" });
    let long = [&[b'x'; 255][..], b"\0"].concat();
    assert_eq!(ok(Opcode::Unlink, &(), &long), Operation::Unlink { name: &long[..255] });
    // The node itself, by its number.
    assert_eq!(ok(Opcode::Lookup, &(), b".\0"), Operation::Lookup { name: b"." });
    assert!(matches!(refused(Opcode::Rmdir, &(), b".\0"), Refusal::Malformed(_)));
    for bad in [&b""[..], b"\0", b"..\0", b"a/b\0", b"a", b"a\0b\0", b"a\0\0"] {
        assert!(matches!(refused(Opcode::Lookup, &(), bad), Refusal::Malformed(_)), "{bad:?}");
        assert!(matches!(refused(Opcode::Rmdir, &(), bad), Refusal::Malformed(_)), "{bad:?}");
    }
    let longer = [&[b'x'; 256][..], b"\0"].concat();
    assert_eq!(refused(Opcode::Lookup, &(), &longer), Refusal::Errno(Errno::NAMETOOLONG));
}

#[test]
fn creations_keep_mode_and_umask_apart() {
    let m = wire::MknodIn { mode: 0o064_755, rdev: 0x803, umask: 0o022, padding: 0 };
    let new = NewAttr { mode: 0o4755, umask: 0o022 };
    let expected = Operation::Mknod { name: b"n", kind: Kind::BlockDev, new, rdev: 0x803 };
    assert_eq!(ok(Opcode::Mknod, &m, b"n\0"), expected);
    let odd = wire::MknodIn { mode: 0o030_644, ..m };
    assert_eq!(refused(Opcode::Mknod, &odd, b"n\0"), Refusal::Errno(Errno::INVAL));

    let flags = (libc::O_EXCL | libc::O_TRUNC | libc::O_CREAT) as u32;
    let c = wire::CreateIn { flags, mode: 0o100_644, umask: 0o077, open_flags: 1 };
    let new = NewAttr { mode: 0o644, umask: 0o077 };
    let how = OpenHow { read: true, ..OpenHow::default() };
    let (exclusive, truncate, kill) = (true, true, true);
    assert_eq!(
        ok(Opcode::Create, &c, b"n\0"),
        Operation::Create(Create { name: b"n", new, exclusive, truncate, kill, how })
    );
    let c = wire::CreateIn { flags: (libc::O_RDWR | libc::O_APPEND) as u32, ..c };
    let how = OpenHow { read: true, write: true, append: true, dir: false };
    assert_eq!(ok(Opcode::Tmpfile, &c, b"/\0"), Operation::Tmpfile { new, how });
    let d = wire::MkdirIn { mode: 0o41777, umask: 0 };
    let new = NewAttr { mode: 0o1777, umask: 0 };
    assert_eq!(ok(Opcode::Mkdir, &d, b"d\0"), Operation::Mkdir { name: b"d", new });
    let symlink = ok(Opcode::Symlink, &(), b"name\0../to/it\0");
    assert_eq!(symlink, Operation::Symlink { name: b"name", target: b"../to/it" });
}

#[test]
fn renames_of_both_opcodes() {
    let to = NodeId(9);
    let plain = ok(Opcode::Rename, &wire::RenameIn { newdir: 9 }, b"a\0b\0");
    let how = RenameHow::Replace;
    assert_eq!(plain, Operation::Rename { name: b"a", to, to_name: b"b", how });
    let cases = [
        (0, RenameHow::Replace),
        (1, RenameHow::NoReplace),
        (2, RenameHow::Exchange),
        (4, RenameHow::Whiteout),
        (5, RenameHow::WhiteoutNoReplace),
    ];
    for (flags, how) in cases {
        let r = wire::Rename2In { newdir: 9, flags, padding: 0 };
        let expected = Operation::Rename { name: b"a", to, to_name: b"b", how };
        assert_eq!(ok(Opcode::Rename2, &r, b"a\0b\0"), expected);
    }
    let both = wire::Rename2In { newdir: 9, flags: 3, padding: 0 };
    assert_eq!(refused(Opcode::Rename2, &both, b"a\0b\0"), Refusal::Errno(Errno::INVAL));
    let r = wire::RenameIn { newdir: 9 };
    for bad in [&b"a\0"[..], b"a\0b", b"a\0..\0", b"\0b\0", b"a\0b\0c"] {
        assert!(matches!(refused(Opcode::Rename, &r, bad), Refusal::Malformed(_)), "{bad:?}");
    }
}

#[test]
fn setattr_takes_only_what_is_valid() {
    let s = wire::SetattrIn {
        valid: fattr::MODE | fattr::SIZE | fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW,
        mode: 0o104_755,
        size: 5,
        atime: -3i64 as u64,
        atimensec: 7,
        uid: 1,
        gid: 2,
        ..Default::default()
    };
    let set = SetAttr {
        mode: Some(0o4755),
        size: Some(5),
        atime: Some(SetTime::To(Time { secs: -3, nanos: 7 })),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    assert_eq!(ok(Opcode::Setattr, &s, b""), Operation::Setattr { set });
    let owner = wire::SetattrIn {
        valid: fattr::UID | fattr::GID | fattr::KILL_SUIDGID | fattr::CTIME,
        ctime: 4,
        ..s
    };
    let set = SetAttr {
        uid: Some(1),
        gid: Some(2),
        ctime: Some(Time { secs: 4, nanos: 0 }),
        kill_suidgid: true,
        ..SetAttr::default()
    };
    assert_eq!(ok(Opcode::Setattr, &owner, b""), Operation::Setattr { set });
    let bad = wire::SetattrIn { atimensec: 1_000_000_000, ..s };
    assert_eq!(refused(Opcode::Setattr, &bad, b""), Refusal::Errno(Errno::INVAL));
}

#[test]
fn lengths_must_agree_with_what_is_there() {
    let w = wire::WriteIn { offset: 3, size: 2, write_flags: 4, ..Default::default() };
    let write = Operation::Write { offset: 3, data: b"xy", kill: true, append: false, back: false };
    assert_eq!(ok(Opcode::Write, &w, b"xy"), write);
    let appends = wire::WriteIn { flags: libc::O_APPEND as u32, ..w };
    let append = Operation::Write { offset: 3, data: b"xy", kill: true, append: true, back: false };
    assert_eq!(ok(Opcode::Write, &appends, b"xy"), append);
    for data in [&b"x"[..], b"xyz", b""] {
        assert!(matches!(refused(Opcode::Write, &w, data), Refusal::Malformed(_)));
    }
    let far = wire::WriteIn { offset: i64::MAX as u64 - 1, ..w };
    assert_eq!(refused(Opcode::Write, &far, b"xy"), Refusal::Errno(Errno::FBIG));
    let beyond = wire::WriteIn { offset: u64::MAX, ..w };
    assert_eq!(refused(Opcode::Write, &beyond, b"xy"), Refusal::Errno(Errno::FBIG));

    let s = wire::SetxattrIn { size: 2, flags: 1, setxattr_flags: 1, padding: 0 };
    let how = SetXattr::Create;
    let set = Operation::Setxattr { key: b"user.k", value: b"\0v", how, kill_sgid: true };
    assert_eq!(ok(Opcode::Setxattr, &s, b"user.k\0\0v"), set);
    assert!(matches!(refused(Opcode::Setxattr, &s, b"user.k\0v"), Refusal::Malformed(_)));

    let f = wire::BatchForgetIn { count: 2, dummy: 0 };
    assert!(
        matches!(ok(Opcode::BatchForget, &f, &[1; 40]), Operation::BatchForget { list } if list.len() == 32)
    );
    for count in [3, u32::MAX] {
        let f = wire::BatchForgetIn { count, dummy: 0 };
        assert!(matches!(refused(Opcode::BatchForget, &f, &[1; 40]), Refusal::Malformed(_)));
    }
}

#[test]
fn locks_allocations_seeks_and_copies() {
    let lk = wire::FileLock { start: 1, end: 5, kind: 1, pid: 77 };
    let l = wire::LkIn { fh: 9, owner: 4, lk, lk_flags: 1, ..Default::default() };
    let kind = LockKind::Exclusive;
    let (flock, description) = (true, false);
    let lock = Lock { owner: 4, pid: 77, start: 1, end: 5, kind, flock, description };
    assert_eq!(ok(Opcode::Setlkw, &l, b""), Operation::Setlk { handle: 9, lock, wait: true });
    assert_eq!(ok(Opcode::Getlk, &l, b""), Operation::Getlk { handle: 9, lock });
    let backwards = wire::LkIn { lk: wire::FileLock { start: 6, ..lk }, ..l };
    assert_eq!(refused(Opcode::Setlk, &backwards, b""), Refusal::Errno(Errno::INVAL));

    let f = wire::FallocateIn { offset: 4, length: 6, mode: 3, ..Default::default() };
    let punch = Operation::Fallocate { how: Fallocate::PunchHole, offset: 4, len: 6 };
    assert_eq!(ok(Opcode::Fallocate, &f, b""), punch);
    let f = wire::FallocateIn { mode: 2, ..f };
    assert_eq!(refused(Opcode::Fallocate, &f, b""), Refusal::Errno(Errno::OPNOTSUPP));
    let f = wire::FallocateIn { mode: 0, length: u64::MAX, ..f };
    assert_eq!(refused(Opcode::Fallocate, &f, b""), Refusal::Errno(Errno::FBIG));

    let s = wire::LseekIn { offset: 3, whence: 4, ..Default::default() };
    assert_eq!(ok(Opcode::Lseek, &s, b""), Operation::Lseek { offset: 3, how: Seek::Hole });
    let s = wire::LseekIn { whence: 0, ..s };
    assert_eq!(refused(Opcode::Lseek, &s, b""), Refusal::Errno(Errno::INVAL));

    let c =
        wire::CopyIn { off_in: 1, nodeid_out: 8, off_out: 2, len: 1 << 40, ..Default::default() };
    let copy = |len, wide| Operation::Copy { from: 1, to: NodeId(8), to_offset: 2, len, wide };
    assert_eq!(ok(Opcode::CopyFileRange64, &c, b""), copy(1 << 40, true));
    assert_eq!(ok(Opcode::CopyFileRange, &c, b""), copy(0x7fff_f000, false));
}

fn opcode() -> impl Strategy<Value = Opcode> {
    prop::sample::select(Opcode::ALL)
}

/// Data that looks like names as often as not.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => prop::sample::select(b"ab./\0".to_vec()), 1 => any::<u8>()];
    prop_oneof![
        prop::collection::vec(byte, 0..40),
        prop::collection::vec(any::<u8>(), 0..300),
        Just(b"a\0b\0".to_vec()),
        Just(b"a\0".to_vec()),
    ]
}

/// Structures of small numbers, which pass checks, and of any bytes, which do not.
fn fixed() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![8 => Just(0u8), 1 => 0u8..8, 1 => Just(255u8)];
    prop_oneof![
        prop::collection::vec(small, 0..=128),
        prop::collection::vec(any::<u8>(), 0..=128),
        prop::collection::vec(Just(0u8), 88..=128),
    ]
}

fn names<'a>(op: &Operation<'a>) -> Vec<&'a [u8]> {
    match *op {
        Operation::Rename { name, to_name, .. } => vec![name, to_name],
        Operation::Lookup { name }
        | Operation::Symlink { name, .. }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Link { name, .. }
        | Operation::Create(Create { name, .. }) => vec![name],
        _ => vec![],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_decode_or_are_refused(op in opcode(), fixed in fixed(), data in data()) {
        if let Ok(operation) = decode(op, &fixed, &data) {
            prop_assert!(fixed.len() >= wire::fixed_len(op) || matches!(operation,
                Operation::Syncfs));
            for name in names(&operation) {
                prop_assert!(!name.is_empty() && name.len() <= 255);
                prop_assert!(name != b"." && name != b"..");
                prop_assert!(!name.contains(&b'/') && !name.contains(&0));
            }
        }
    }

    #[test]
    fn any_message_is_taken_apart_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200),
                                            op in opcode(), honest in any::<bool>()) {
        let mut bytes = bytes;
        if honest && bytes.len() >= 40 {
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes[4..8].copy_from_slice(&(op as u32).to_ne_bytes());
        }
        let mut buffer = bytes.clone();
        buffer.resize(4096, 0xaa);
        match dev::split(&buffer, bytes.len()) {
            Some(s) => {
                let data = &buffer[16..][s.data.clone()];
                let joined = [s.header.as_bytes(), &s.fixed[..s.fixed_len], data].concat();
                prop_assert_eq!(joined, bytes, "no byte is lost or invented");
            }
            None => prop_assert!(!(honest && bytes.len() >= 40)),
        }
    }

    #[test]
    fn the_server_survives_any_request(
        requests in prop::collection::vec((opcode(), fixed(), data(), 0u64..5), 1..12),
    ) {
        let server = Server::new(Arc::new(Memfs::default()), &Config::default(), Arc::new(NoPages));
        for (unique, (op, fixed, data, nodeid)) in requests.into_iter().enumerate() {
            // Forgetting more than was handed out is not a matter of bytes.
            if matches!(op, Opcode::Forget | Opcode::BatchForget) {
                continue;
            }
            let unique = unique as u64;
            let header = InHeader { opcode: op as u32, unique, nodeid, ..Default::default() };
            let mut payload = vec![0; 8192];
            payload[..data.len()].copy_from_slice(&data);
            let outcome = server.serve(&post(), &header, &fixed, &mut payload, 0..data.len());
            match outcome {
                Outcome::Silence => prop_assert_eq!(op, Opcode::Interrupt),
                Outcome::Reply { error, len } => {
                    prop_assert!(len <= payload.len());
                    prop_assert!(error <= 0 && error > -512, "the kernel refuses {error}");
                    prop_assert!(error == 0 || len == 0);
                }
            }
        }
        prop_assert_eq!(server.counters.snapshot(0).panicked, 0);
    }
}

#[test]
fn data_beyond_the_buffer_is_refused() {
    let server = Server::new(Arc::new(Memfs::default()), &Config::default(), Arc::new(NoPages));
    let header = InHeader { opcode: Opcode::Lookup as u32, nodeid: 1, ..Default::default() };
    for range in [0..101, 99..200, 0..usize::MAX] {
        let outcome = server.serve(&post(), &header, &[], &mut [0; 100], range);
        assert_eq!(outcome, Outcome::Reply { error: -libc::EIO, len: 0 });
    }
    assert_eq!(server.counters.snapshot(0).malformed, 3);
}

/// As when a transaction loses while it lists: what had been listed never reaches the kernel, which
/// so will never say that it has forgotten it.
#[test]
fn what_a_listing_that_fails_had_handed_out_is_taken_back() {
    let fs = Arc::new(Memfs::default());
    let (nobody, new) = (Caller { uid: 0, gid: 0, tid: 0 }, NewAttr { mode: 0o644, umask: 0 });
    for name in ["a", "b", "unlisted", "c"] {
        fs.create(nobody, NodeId::ROOT, name.as_bytes(), new, true).unwrap();
    }
    let before = fs.lookups.load(SeqCst);
    let server = Server::new(fs.clone(), &Config::default(), Arc::new(NoPages));
    let opcode = Opcode::Readdirplus as u32;
    let header = InHeader { opcode, nodeid: NodeId::ROOT.0, ..Default::default() };
    let list = wire::ReadIn { size: 4096, ..Default::default() };
    let outcome = server.serve(&post(), &header, list.as_bytes(), &mut [0; 4096], 0..0);
    assert_eq!(outcome, Outcome::Reply { error: -libc::ECANCELED, len: 0 });
    assert_eq!(fs.lookups.load(SeqCst), before);
}

/// Of nothing the kernel has pages.
struct NoPages;

impl crate::mapped::Pages for NoPages {
    fn forget_attributes(&self, _file: NodeId) -> std::io::Result<()> {
        Ok(())
    }
    fn write_back(&self, _file: NodeId, _range: std::ops::Range<u64>) -> std::io::Result<()> {
        Ok(())
    }
    fn zero(&self, _file: NodeId, _range: std::ops::Range<u64>) -> std::io::Result<()> {
        Ok(())
    }
}

fn post() -> std::sync::Arc<crate::post::Post> {
    crate::post::Posts::new().take(crate::post::Group::Alone)
}
