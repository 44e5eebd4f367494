//! From the paths of a scope to what the conflict engine knows ([`systx_txn::Claim`]).
//!
//! One path is one object: a file is its name, attributes, length and content; a directory is the
//! names in it; what is not there is its name. The way to it is claimed as well, to be read: each
//! name, and the attributes of each directory. That is what looking the path up reads.
//!
//! A scope is found twice. In the committed state, to get in line; there it may be old when the
//! turn comes. And in the view of the transaction, once it has begun: what that has met stays. If
//! the second is not within the first, the transaction has to begin again with what was found.

use crate::api::{Attr, Caller, Reply};
use crate::below::Below;
use crate::reach::is_gone;
use crate::state::State;
use crate::volume::{Volume, errno};
use rustix::io::Errno;
use systx_base::sync::Mutex;
use systx_base::{Kind, NodeId, Oid};
use systx_store::io::Handle;
use systx_txn::{Claim, Part};

/// What is going to be done to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Nothing but to look it up.
    Way,
    /// It is read.
    Read,
    /// It is written, or comes or goes.
    Write,
}

/// A path of a scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declared {
    /// The names that lead to it from the volume's root, none of them a symbolic link.
    pub names: Vec<Vec<u8>>,
    /// What for.
    pub how: How,
}

/// A claim, and which of the declared paths it is for.
pub type Claims = Vec<(Claim, usize)>;

/// Whether all of one are within another.
pub fn within(found: &Claims, claims: &Claims) -> bool {
    let has = |c: &Claim| claims.iter().any(|(o, _)| o.part == c.part && (o.write || !c.write));
    found.iter().all(|(claim, _)| has(claim))
}

/// An object on a way.
struct Met<D> {
    oid: Oid,
    attr: Attr,
    /// By which its names are found, if it is a directory.
    dir: Option<D>,
}

/// Permissions as in a mode.
#[derive(Clone, Copy)]
enum Right {
    Read = 4,
    Write = 2,
    Search = 1,
}

/// Whether an ordinary user may do that; `None`: who may do all. As in such a user's view,
/// supplementary groups do not count.
fn may(who: Option<Caller>, attr: &Attr, right: Right) -> bool {
    let Some(caller) = who else { return true };
    let class = match () {
        () if caller.uid == attr.uid => 6,
        () if caller.gid == attr.gid => 3,
        () => 0,
    };
    attr.mode >> class & right as u32 != 0
}

fn ask(who: Option<Caller>, attr: &Attr, right: Right) -> Reply<()> {
    if may(who, attr, right) { Ok(()) } else { Err(Errno::ACCESS) }
}

/// Goes one way.
fn walk<D>(
    declared: &Declared,
    who: Option<Caller>,
    root: Met<D>,
    mut find: impl FnMut(&D, &[u8]) -> Reply<Option<Met<D>>>,
    mut add: impl FnMut(Part, bool),
) -> Reply<()> {
    let write = declared.how == How::Write;
    let mut at = root;
    add(Part::Inode(at.oid), false);
    let mut rest = declared.names.iter();
    while let Some(name) = rest.next() {
        let dir = at.dir.as_ref().ok_or(Errno::NOTDIR)?;
        ask(who, &at.attr, Right::Search)?;
        let part = Part::Name { dir: at.oid, name: name.as_slice().into() };
        let Some(met) = find(dir, name)? else {
            if write {
                ask(who, &at.attr, Right::Write)?;
            }
            add(part, write);
            return Ok(());
        };
        let file = rest.len() == 0 && met.attr.kind != Kind::Dir;
        // To replace it, who may.
        let replace = write && file && may(who, &at.attr, Right::Write);
        add(part, replace);
        add(Part::Inode(met.oid), write && file);
        if file && write && !replace {
            ask(who, &met.attr, Right::Write)?;
        } else if file && declared.how == How::Read {
            ask(who, &met.attr, Right::Read)?;
        }
        at = met;
    }
    if at.attr.kind == Kind::Dir && declared.how != How::Way {
        ask(who, &at.attr, if write { Right::Write } else { Right::Read })?;
        add(Part::Names(at.oid), write);
    }
    Ok(())
}

impl Volume {
    /// What the paths of a scope are in the committed state, as this user; `None`: with all rights.
    ///
    /// # Errors
    /// `EACCES`: the user may not do that; `ENOTDIR`: a name on the way is no directory; those of
    /// the backing file system.
    pub fn claims(&self, declared: &[Declared], who: Option<Caller>) -> Reply<Claims> {
        let io = &self.tree;
        let mut claims = Claims::new();
        for (of, path) in declared.iter().enumerate() {
            let stat = io.stat(&io.root()).map_err(errno)?;
            let root = Met { oid: stat.id.oid(), attr: Attr::from(&stat), dir: Some(io.root()) };
            let find = |dir: &Handle, name: &[u8]| {
                let above = io.stat(dir).map_err(errno)?.id;
                let stat = match io.stat_at(dir, name) {
                    Ok(stat) if self.is_hidden(above, name, stat.id) => return Ok(None),
                    Ok(stat) => stat,
                    Err(e) if is_gone(&e) => return Ok(None),
                    Err(e) => return Err(errno(e)),
                };
                let open = (stat.kind == Kind::Dir).then(|| io.open_dir(dir, name));
                let dir = match open.transpose() {
                    Ok(dir) => dir,
                    Err(e) if is_gone(&e) => return Ok(None),
                    Err(e) => return Err(errno(e)),
                };
                Ok(Some(Met { oid: stat.id.oid(), attr: Attr::from(&stat), dir }))
            };
            walk(path, who, root, find, |part, write| claims.push((Claim { part, write }, of)))?;
        }
        Ok(claims)
    }
}

/// See [`View::claims`](crate::view::View::claims).
pub(crate) fn claims_in(
    below: &Below,
    state: &Mutex<State>,
    declared: &[Declared],
    who: Option<Caller>,
) -> Reply<Claims> {
    let mut claims = Claims::new();
    let met = |st: &State, node: NodeId| {
        let (oid, attr) = (st.base(node)?.oid(), st.node(node)?.attr);
        Ok(Met { oid, attr, dir: (attr.kind == Kind::Dir).then_some(node) })
    };
    for (of, path) in declared.iter().enumerate() {
        let mut st = state.lock();
        let root = met(&st, NodeId::ROOT)?;
        let find = |dir: &NodeId, name: &[u8]| {
            let found = below.find(&mut st, *dir, name)?;
            found.map(|node| met(&st, node)).transpose()
        };
        walk(path, who, root, find, |part, write| claims.push((Claim { part, write }, of)))?;
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::sync::Arc;
    use systx_store::io::Tree as _;
    use systx_store::real::RealIo;

    fn declared(path: &str, how: How) -> Declared {
        let names = path.split('/').filter(|name| !name.is_empty());
        Declared { names: names.map(|name| name.as_bytes().to_vec()).collect(), how }
    }

    fn claims(dir: &Path, who: Option<Caller>, path: &str, how: How) -> Reply<Vec<Claim>> {
        let root = fs::File::open(dir).unwrap().into();
        let io = Arc::new(RealIo::from_dir(root).unwrap());
        let volume = Volume::new(io, Vec::new(), HashSet::new()).unwrap();
        let claims = volume.claims(&[declared(path, how)], who)?;
        Ok(claims.into_iter().map(|(claim, _)| claim).collect())
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), "f").unwrap();
        dir
    }

    #[test]
    fn a_path_is_its_way_and_one_object() {
        let dir = tree();
        let io = RealIo::open(dir.path()).unwrap();
        let oid = |path: &str| io.stat_at(&io.root(), path.as_bytes()).unwrap().id.oid();
        let name = |dir: &str, name: &str, write| {
            let part = Part::Name { dir: oid(dir), name: name.as_bytes().into() };
            Claim { part, write }
        };
        let inode = |path: &str, write| Claim { part: Part::Inode(oid(path)), write };
        let names = |path: &str, write| Claim { part: Part::Names(oid(path)), write };
        let way = vec![inode("", false), name("", "d", false), inode("d", false)];
        let and = |more: Vec<Claim>| Ok([way.clone(), more].concat());
        let claims = |path, how| claims(dir.path(), None, path, how);
        assert_eq!(claims("d", How::Way), and(vec![]));
        assert_eq!(claims("d", How::Read), and(vec![names("d", false)]));
        assert_eq!(claims("d", How::Write), and(vec![names("d", true)]));
        let file = |write| and(vec![name("d", "f", write), inode("d/f", write)]);
        assert_eq!(
            (claims("d/f", How::Read), claims("d/f", How::Write)),
            (file(false), file(true))
        );
        // Of what is missing, the first name.
        assert_eq!(claims("d/no/x", How::Write), and(vec![name("d", "no", true)]));
        assert_eq!(claims("d/no", How::Read), and(vec![name("d", "no", false)]));
        assert_eq!(claims("d/f/x", How::Read), Err(Errno::NOTDIR));
        assert_eq!(claims("", How::Write), Ok(vec![inode("", false), names("", true)]));
    }

    #[test]
    fn nobody_claims_what_he_has_no_right_to() {
        let dir = tree();
        let made = fs::metadata(dir.path()).unwrap();
        let mode = |path: &str, mode| {
            fs::set_permissions(dir.path().join(path), PermissionsExt::from_mode(mode)).unwrap();
        };
        let stranger = Caller { uid: made.uid() + 1, gid: made.gid() + 1, tid: 1 };
        let may =
            |path, how| claims(dir.path(), Some(stranger), path, how).map(|c| c[1..].to_vec());
        let refused = Err(Errno::ACCESS);
        mode("", 0o700);
        assert_eq!(may("d", How::Way), refused);
        mode("", 0o701);
        assert!(may("d", How::Way).is_ok());
        mode("d", 0o701);
        mode("d/f", 0o600);
        for (path, how) in [("d", How::Read), ("d", How::Write), ("d/new", How::Write)] {
            assert_eq!(may(path, how), refused, "{path} {how:?}");
        }
        assert_eq!((may("d/f", How::Read), may("d/f", How::Write)), (refused.clone(), refused));
        mode("d/f", 0o606);
        // It may be written, and not replaced.
        let written = may("d/f", How::Write).unwrap();
        let of = |name: bool| {
            let is = |c: &&Claim| matches!(c.part, Part::Name { .. }) == name;
            written.iter().rfind(is).unwrap().write
        };
        assert!(!of(true) && of(false));
        mode("d", 0o703);
        assert!(may("d/new", How::Write).is_ok() && may("d", How::Read) == Err(Errno::ACCESS));
        let group = Caller { gid: made.gid(), ..stranger };
        assert_eq!(claims(dir.path(), Some(group), "d", How::Way), Err(Errno::ACCESS));
        let owner = Caller { uid: made.uid(), ..stranger };
        assert!(claims(dir.path(), Some(owner), "d", How::Write).is_ok());
    }
}
