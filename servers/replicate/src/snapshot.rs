//! All that a replica has after a block, as one run of bytes: what one begins with that has not
//! executed the blocks before it.

use crate::model::{Hash, Model, combined, join, shown, xattrs};
use crate::versions::Versions;
use crate::{OWN, wrong};
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::{Kind, Time};
use systx_protocol::certify::{Content, Key, Offer, Run, Set, Source};

/// Most bytes of content.
const CONTENT_MAX: u64 = 1 << 30;

/// See the module.
pub struct State {
    /// What the last blocks have changed, by their heights; the last one is that of the state.
    pub blocks: Vec<(u64, Vec<Key>)>,
    /// Makes all that is there in an empty directory.
    pub all: Offer,
}

/// What it comes to.
pub struct Checked {
    /// The content.
    pub model: Model,
    /// Of the last blocks.
    pub versions: Versions,
    /// What is made.
    pub changed: crate::model::Changed,
}

impl State {
    /// Of what is there, at one moment: inside of a transaction.
    ///
    /// # Errors
    /// It cannot be read; it is too much.
    pub fn gather(dir: &Path, blocks: Vec<(u64, Vec<Key>)>) -> io::Result<State> {
        let mut all = Offer::default();
        let (mut links, mut todo) = (Vec::new(), vec![Vec::new()]);
        let mut several: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        let mut room = CONTENT_MAX;
        while let Some(above) = todo.pop() {
            let at = dir.join(std::ffi::OsStr::from_bytes(&above));
            let names = fs::read_dir(&at)?.map(|entry| Ok(entry?.file_name()));
            let mut names = names.collect::<io::Result<Vec<_>>>()?;
            names.sort();
            names.retain(|name| !above.is_empty() || name != OWN);
            for name in names {
                let (path, at) = (join(&above, name.as_bytes()), at.join(&name));
                let meta = fs::symlink_metadata(&at)?;
                if !meta.is_dir() && meta.nlink() > 1 {
                    let known = several.entry((meta.dev(), meta.ino())).or_insert(path.clone());
                    if *known != path {
                        links.push((path, Source::Link(known.clone())));
                        continue;
                    }
                }
                all.placed.push((path.clone(), source(&at, &meta)?));
                room = room.checked_sub(meta.len()).ok_or_else(|| wrong("more than 1 GiB"))?;
                all.set.push(set(&at, &path, &meta)?);
                if meta.is_dir() {
                    todo.push(path);
                }
            }
        }
        all.placed.append(&mut links);
        Ok(State { blocks, all })
    }

    /// The block that it is after.
    pub fn height(&self) -> u64 {
        self.blocks.last().map_or(0, |(height, _)| *height)
    }

    /// Whether it is the state after a block, whose hash is known.
    ///
    /// # Errors
    /// It is another one, or none.
    pub fn check(&self, dir: &Path, height: u64, root: &Hash) -> io::Result<Checked> {
        if self.height() != height || !self.blocks.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err(wrong(format!("it is one of height {}", self.height())));
        }
        let mut model = Model::empty(dir);
        let applied = model.apply(&self.all).map_err(|failed| match failed {
            crate::model::Failed::Refused(why) => wrong(why),
            crate::model::Failed::Here(error) => error,
        })?;
        model.is_placed();
        let mut versions = Versions::default();
        self.blocks.iter().for_each(|(height, keys)| versions.add(*height, keys));
        if combined(model.root(), versions.digest()) != *root {
            return Err(wrong("what is in it is not what all others have at that height"));
        }
        Ok(Checked { model, versions, changed: applied.changed })
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.seq(&self.blocks, |e, (height, keys)| {
            let block = Offer { txn: *height, reads: keys.clone(), ..Offer::default() };
            e.bytes(&block.encode());
        });
        e.bytes(&self.all.encode());
        e.finish()
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn decode(bytes: &[u8]) -> io::Result<State> {
        let read = || -> Result<State, DecodeError> {
            let d = &mut Decoder::new(bytes);
            let blocks = d.seq(|d| {
                let block = Offer::decode(d.bytes()?)?;
                Ok((block.txn, block.reads))
            })?;
            let all = Offer::decode(d.bytes()?)?;
            match d.remaining() {
                0 => Ok(State { blocks, all }),
                more => Err(d.invalid("bytes after the end", more as u64)),
            }
        };
        read().map_err(|e| wrong(format!("it is not the state of a replica: {e}")))
    }
}

fn source(at: &Path, meta: &Metadata) -> io::Result<Source> {
    Ok(match Kind::from_mode(meta.mode()) {
        Some(Kind::File) => Source::File,
        Some(Kind::Dir) => Source::Dir,
        Some(Kind::Symlink) => Source::Symlink(fs::read_link(at)?.as_os_str().as_bytes().to_vec()),
        Some(kind) => Source::Special { kind, rdev: meta.rdev() },
        None => return Err(wrong(format!("{} cannot be replicated", at.display()))),
    })
}

fn set(at: &Path, path: &[u8], meta: &Metadata) -> io::Result<Set> {
    let mut content = None;
    if meta.is_file() && meta.len() > 0 {
        let bytes = fs::read(at).map_err(|e| wrong(format!("{}: {e}", shown(path))))?;
        let len = bytes.len() as u64;
        content = Some(Content { len, keep: 0, runs: vec![Run { offset: 0, bytes }] });
    }
    let mtime = Time { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 };
    let attributes = xattrs(at)?.into_iter().map(|(key, value)| (key, Some(value)));
    Ok(Set {
        path: path.to_vec(),
        mode: (!meta.is_symlink()).then_some(meta.mode() & 0o7777),
        owner: Some((meta.uid(), meta.gid())),
        mtime: (!meta.is_dir()).then_some(mtime),
        xattrs: attributes.collect(),
        content,
    })
}
