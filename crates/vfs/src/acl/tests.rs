//! Our lists beside those of the kernel that the tests run on: the same bytes are set on real
//! files, and mode, list and errors have to be the same as ours.

use super::*;
use proptest::prelude::*;
use rustix::fs::{self as rfs, CWD, Mode, OFlags, XattrFlags};
use std::cell::RefCell;
use std::path::{Path, PathBuf};

fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// u::rwx,u:1000:rw-,g::r-x,m::rwx,o::---
fn sample() -> Vec<u8> {
    raw(&[(1, 7, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 7, NO_ID), (0x20, 0, NO_ID)])
}

#[test]
fn the_mask_stands_for_the_group() {
    assert_eq!(mode(&sample()), Ok(0o770));
    assert_eq!(equiv_mode(&sample()), Ok(None));
    let after = chmod(&sample(), 0o100_641).unwrap();
    assert_eq!(mode(&after), Ok(0o641));
    let expected =
        raw(&[(1, 6, NO_ID), (2, 6, 1000), (4, 5, NO_ID), (0x10, 4, NO_ID), (0x20, 1, NO_ID)]);
    assert_eq!(after, expected);
}

#[test]
fn a_minimal_list_is_a_mode() {
    let minimal = raw(&[(1, 6, 0), (4, 4, 5), (0x20, 0, NO_ID)]);
    assert_eq!(equiv_mode(&minimal), Ok(Some(0o640)));
    let normalised = raw(&[(1, 6, NO_ID), (4, 4, NO_ID), (0x20, 0, NO_ID)]);
    assert_eq!(normal(&minimal), Ok(Some(normalised)));
}

#[test]
fn inheriting_takes_what_was_not_asked_for() {
    let file = inherit(&sample(), 0o2664, false).unwrap();
    assert_eq!((file.mode, file.default), (0o2660, None));
    assert_eq!(mode(&file.access.unwrap()), Ok(0o660));
    let dir = inherit(&sample(), 0o755, true).unwrap();
    assert_eq!((dir.mode, dir.default), (0o750, Some(sample())));
}

#[test]
fn bytes_that_are_no_list_are_refused() {
    let bad = [
        vec![],
        vec![2, 0, 0],
        raw(&[]),
        sample()[..20].to_vec(),
        [&sample()[..], b"1"].concat(),
        raw(&[(1, 7, 0), (4, 7, 0)]),
        raw(&[(1, 7, 0), (0x20, 7, 0)]),
        raw(&[(1, 8, 0), (4, 7, 0), (0x20, 7, 0)]),
        raw(&[(3, 7, 0), (4, 7, 0), (0x20, 7, 0)]),
        raw(&[(1, 7, 0), (2, 7, 5), (4, 7, 0), (0x20, 7, 0)]),
        raw(&[(1, 7, 0), (2, 7, NO_ID), (4, 7, 0), (0x10, 7, 0), (0x20, 7, 0)]),
        raw(&[(1, 7, 0), (4, 7, 0), (0x10, 7, 0), (0x10, 7, 0), (0x20, 7, 0)]),
    ];
    for value in bad {
        assert_eq!(mode(&value), Err(Errno::INVAL), "{value:?}");
        assert_eq!(chmod(&value, 0o777), Err(Errno::INVAL), "{value:?}");
        assert_eq!(inherit(&value, 0o777, true), Err(Errno::INVAL), "{value:?}");
    }
    assert_eq!(normal(&raw(&[])), Ok(None));
    assert_eq!(normal(&[3, 0, 0, 0]), Err(Errno::OPNOTSUPP));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(value in prop::collection::vec(any::<u8>(), 0..60), m in any::<u32>()) {
        let _ = (normal(&value), mode(&value), chmod(&value, m), inherit(&value, m, true));
        let mut value = value;
        value.splice(0..value.len().min(4), [2, 0, 0, 0]);
        let _ = (normal(&value), mode(&value), chmod(&value, m), inherit(&value, m, true));
    }
}

/// A directory on a real file system that keeps lists; removed at the end.
struct Host(PathBuf);

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Host {
    /// `None`, with the reason printed, where the file system keeps no lists.
    fn new(on: &Path, what: &str) -> Option<Host> {
        let dir = on.join(format!("systx-acl-{what}-{}", std::process::id()));
        if let Err(e) = std::fs::create_dir(&dir) {
            println!("skipped: {}: {e}", dir.display());
            return None;
        }
        let host = Host(dir);
        if let Err(e) = set(&host.0, ACCESS, &sample()) {
            println!("skipped: no access control lists on {}: {e}", on.display());
            return None;
        }
        rfs::removexattr(&host.0, ACCESS).unwrap();
        Some(host)
    }
}

fn set(path: &Path, key: &[u8], value: &[u8]) -> Reply<()> {
    rfs::setxattr(path, key, value, XattrFlags::empty())
}

fn get(path: &Path, key: &[u8]) -> Option<Vec<u8>> {
    let mut buf = vec![0; 4096];
    match rfs::getxattr(path, key, &mut buf[..]) {
        Ok(n) => Some(buf[..n].to_vec()),
        Err(Errno::NODATA) => None,
        Err(e) => panic!("getxattr {}: {e}", path.display()),
    }
}

fn mode_of(path: &Path) -> u32 {
    rfs::stat(path).unwrap().st_mode & 0o7777
}

/// Lists that are mostly valid, with every kind of mistake now and then.
fn list() -> impl Strategy<Value = Vec<u8>> {
    let id = prop_oneof![9 => 0u32..5, 1 => Just(NO_ID)];
    let named = prop::collection::vec((0u16..8, id), 0..3);
    let perm = prop_oneof![19 => 0u16..8, 1 => any::<u16>()];
    let valid = (perm, named.clone(), 0u16..8, named, prop::option::of(0u16..8), 0u16..8).prop_map(
        |(owner, users, group, groups, mask, others)| {
            let mut all = vec![(1, owner, 7)];
            all.extend(users.iter().map(|(perm, id)| (2, *perm, *id)));
            all.push((4, group, 7));
            all.extend(groups.iter().map(|(perm, id)| (8, *perm, *id)));
            all.extend(mask.map(|perm| (0x10, perm, NO_ID)));
            all.push((0x20, others, 0));
            all
        },
    );
    let spoilt = (valid, 0u8..12, any::<prop::sample::Index>()).prop_map(|(mut all, how, at)| {
        let at = at.index(all.len());
        match how {
            0 => drop(all.remove(at)),
            1 => all.push(all[at]),
            2 => all.swap(0, at),
            3 => all[at].0 ^= 0x03,
            _ => {}
        }
        raw(&all)
    });
    (spoilt, 0u8..30).prop_map(|(mut bytes, how)| {
        match how {
            0 => bytes.truncate(4),
            1 => bytes.truncate(bytes.len() - 3),
            2 => bytes[0] = 1,
            _ => {}
        }
        bytes
    })
}

/// Sets `value` as access list of a file with mode `before`, then changes the mode to `after`.
fn compare_access(host: &Path, value: &[u8], before: u32, after: u32) {
    let path = host.join("file");
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, b"").unwrap();
    rfs::chmod(&path, Mode::from_raw_mode(before)).unwrap();
    let host_says = set(&path, ACCESS, value);
    let ours = normal(value);
    assert_eq!(ours.as_ref().map(|_| ()), host_says.as_ref().copied(), "setxattr {value:?}");
    let (mut mode_now, mut list) = (before, None);
    if let Ok(Some(value)) = ours {
        mode_now = mode(&value).unwrap();
        list = equiv_mode(&value).unwrap().is_none().then_some(value);
    }
    assert_eq!(mode_of(&path), mode_now, "mode after setxattr {value:?}");
    assert_eq!(get(&path, ACCESS), list, "list after setxattr {value:?}");
    rfs::chmod(&path, Mode::from_raw_mode(after)).unwrap();
    let list = list.map(|list| chmod(&list, after).unwrap());
    assert_eq!(get(&path, ACCESS), list, "list after chmod {after:o} of {value:?}");
}

/// Makes a file and a directory with `asked` in a directory with `value` as default list.
fn compare_inherited(host: &Path, value: &[u8], asked: u32) {
    let dir = host.join("dir");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let host_says = set(&dir, DEFAULT, value);
    let ours = normal(value);
    assert_eq!(ours.as_ref().map(|_| ()), host_says.as_ref().copied(), "setxattr {value:?}");
    let Ok(Some(default)) = ours else {
        assert_eq!(get(&dir, DEFAULT), None);
        return;
    };
    assert_eq!(get(&dir, DEFAULT).as_ref(), Some(&default));
    let (file, sub) = (dir.join("file"), dir.join("sub"));
    let bits = Mode::from_raw_mode(asked);
    rfs::openat(CWD, &file, OFlags::CREATE | OFlags::WRONLY, bits).unwrap();
    rfs::mkdir(&sub, bits).unwrap();
    for (path, is_dir) in [(&file, false), (&sub, true)] {
        let got = inherit(&default, asked, is_dir).unwrap();
        assert_eq!(mode_of(path), got.mode, "{asked:o} under {default:?}");
        assert_eq!(get(path, ACCESS), got.access, "{asked:o} under {default:?}");
        assert_eq!(get(path, DEFAULT), got.default, "{asked:o} under {default:?}");
    }
}

#[test]
fn agrees_with_the_kernel() {
    let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    for (i, place) in places.into_iter().enumerate() {
        let Some(host) = Host::new(&place, &i.to_string()) else { continue };
        let host = RefCell::new(host);
        let cases = (list(), 0u32..0o1000, 0u32..0o1000);
        let config = ProptestConfig { cases: 300, ..ProptestConfig::default() };
        proptest!(config, |((value, before, after) in cases)| {
            compare_access(&host.borrow().0, &value, before, after);
            compare_inherited(&host.borrow().0, &value, before);
        });
    }
}
