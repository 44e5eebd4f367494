//! The graph's file: a page that heads it, then a matrix of bits in pages.
//!
//! Bit `v` of row `u` says whether there is an edge between `u` and `v`. Rows do not cross pages.
//! So the bytes say which edges there are and nothing else, and the hash of the pages is one of the
//! content alone, however the file came to it.

use crate::wrong;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Bytes of a page: what systx tells apart in a file.
pub const PAGE: usize = 4096;
/// A SHA-256.
pub type Hash = [u8; 32];

const MAGIC: [u8; 8] = *b"SYSTXGR1";
/// A row has to fit into a page.
const MOST: u32 = PAGE as u32 * 8;

/// Where what is, for a number of vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many vertices there are, numbered from 0.
    pub vertices: u32,
    /// Bytes of a row.
    pub row: usize,
    per_page: u32,
    /// Pages of the matrix.
    pub pages: u32,
}

impl Layout {
    /// The layout for so many vertices.
    ///
    /// # Errors
    /// None, or more than 32,768.
    pub fn new(vertices: u32) -> io::Result<Layout> {
        if vertices == 0 || vertices > MOST {
            return Err(wrong(format!("{vertices} vertices: a graph has 1 to {MOST}")));
        }
        let row = vertices.div_ceil(8) as usize;
        let per_page = (PAGE / row) as u32;
        Ok(Layout { vertices, row, per_page, pages: vertices.div_ceil(per_page) })
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        (u64::from(self.pages) + 1) * PAGE as u64
    }

    /// The page of a row, and where in it.
    fn place(&self, vertex: u32) -> (u32, usize) {
        (vertex / self.per_page, (vertex % self.per_page) as usize * self.row)
    }
}

/// Where a page of the matrix is.
fn offset(page: u32) -> u64 {
    (u64::from(page) + 1) * PAGE as u64
}

/// What heads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of the matrix.
    pub layout: Layout,
    /// The last block that the graph has.
    pub height: u64,
    /// The number that the next block begins with, in the order of transactions.
    pub next: u64,
    /// [`root`] of the content.
    pub root: Hash,
}

impl Header {
    const SUMMED: usize = 64;

    /// Its bytes.
    pub fn encode(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&self.layout.vertices.to_le_bytes());
        page[16..24].copy_from_slice(&self.height.to_le_bytes());
        page[24..32].copy_from_slice(&self.next.to_le_bytes());
        page[32..64].copy_from_slice(&self.root);
        let sum: Hash = Sha256::digest(&page[..Self::SUMMED]).into();
        page[64..96].copy_from_slice(&sum);
        page
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is not one, or is damaged.
    pub fn read(file: &File) -> io::Result<Header> {
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, 0).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => wrong("not a graph: it is too short"),
            // Says nothing of what is there: the daemon is away, say.
            _ => e,
        })?;
        Header::decode(&page)
    }

    /// From its bytes.
    ///
    /// # Errors
    /// They are none, or damaged.
    pub fn decode(page: &[u8; PAGE]) -> io::Result<Header> {
        if page[..8] != MAGIC {
            return Err(wrong("not a graph: it begins with something else"));
        }
        let sum: Hash = Sha256::digest(&page[..Self::SUMMED]).into();
        if page[64..96] != sum || page[96..].iter().any(|b| *b != 0) || page[12..16] != [0; 4] {
            return Err(wrong("the state is damaged: its first page is not as it was written"));
        }
        let long = |at: usize| u64::from_le_bytes(part(page, at));
        Ok(Header {
            layout: Layout::new(u32::from_le_bytes(part(page, 8)))?,
            height: long(16),
            next: long(24),
            root: part(page, 32),
        })
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file's.
    pub fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.encode(), 0)
    }
}

fn part<const N: usize>(page: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&page[at..at + N]);
    bytes
}

/// The hash of a graph, from those of its pages.
pub fn root(vertices: u32, leaves: &[Hash]) -> Hash {
    let mut sum = Sha256::new();
    sum.update(MAGIC);
    sum.update(vertices.to_le_bytes());
    leaves.iter().for_each(|leaf| sum.update(leaf));
    sum.finalize().into()
}

/// Reads all of a file: what heads it, and the hash of each page.
///
/// # Errors
/// The file's; and if the content is not the one whose hash is in its head.
pub fn load(file: &File) -> io::Result<(Header, Vec<Hash>)> {
    let header = Header::read(file)?;
    let layout = header.layout;
    let size = file.metadata()?.len();
    if size != layout.size() {
        return Err(wrong(format!(
            "the state is damaged: {size} bytes, and a graph of {} vertices has {}",
            layout.vertices,
            layout.size()
        )));
    }
    let mut leaves = Vec::with_capacity(layout.pages as usize);
    let mut pages = vec![0; 64 * PAGE];
    while leaves.len() < layout.pages as usize {
        let left = layout.pages as usize - leaves.len();
        let some = &mut pages[..left.min(64) * PAGE];
        file.read_exact_at(some, offset(leaves.len() as u32))?;
        leaves.extend(some.chunks(PAGE).map(|page| Hash::from(Sha256::digest(page))));
    }
    if root(layout.vertices, &leaves) != header.root {
        return Err(wrong(format!(
            "the state is damaged: its content is not the one that it had at height {}",
            header.height
        )));
    }
    Ok((header, leaves))
}

/// Writes a graph of these edges into an empty file, at height 0.
///
/// # Errors
/// The file's; a vertex that is not there.
pub fn write_new(
    mut file: &File,
    vertices: u32,
    edges: impl Iterator<Item = [u32; 2]>,
) -> io::Result<Header> {
    let layout = Layout::new(vertices)?;
    let mut matrix = vec![0_u8; layout.pages as usize * PAGE];
    for [u, v] in edges {
        if u.max(v) >= vertices || u == v {
            return Err(wrong(format!("no edge of this graph: {u} {v}")));
        }
        for [from, to] in [[u, v], [v, u]] {
            let (page, at) = layout.place(from);
            matrix[page as usize * PAGE + at + to as usize / 8] |= 1 << (to % 8);
        }
    }
    let leaves: Vec<Hash> = matrix.chunks(PAGE).map(|page| Sha256::digest(page).into()).collect();
    let header = Header { layout, height: 0, next: 0, root: root(vertices, &leaves) };
    file.write_all(&[0; PAGE])?;
    file.write_all(&matrix)?;
    header.write(file)?;
    Ok(header)
}

type Page = Box<[u8; PAGE]>;

/// The graph as requests see it, between two states of the file.
pub struct Edges<'f> {
    file: &'f File,
    /// Of the matrix.
    pub layout: Layout,
    /// What is not written yet; without a buffer only which pages have changed.
    changed: BTreeMap<u32, Option<Page>>,
    buffered: bool,
}

impl<'f> Edges<'f> {
    /// With `buffered`, changes stay in memory until [`Edges::flush`]; else each one is written at
    /// once.
    pub fn new(file: &'f File, layout: Layout, buffered: bool) -> Edges<'f> {
        Edges { file, layout, changed: BTreeMap::new(), buffered }
    }

    /// Fills `row` with the edges of a vertex: bit `v % 64` of word `v / 64` for each.
    ///
    /// # Errors
    /// The file's.
    pub fn row(&self, vertex: u32, row: &mut [u64]) -> io::Result<()> {
        let (page, at) = self.layout.place(vertex);
        let mut bytes = [0; PAGE];
        let bytes = &mut bytes[..row.len() * 8];
        match self.changed.get(&page) {
            Some(Some(held)) => {
                bytes[..self.layout.row].copy_from_slice(&held[at..at + self.layout.row]);
            }
            _ => {
                let place = offset(page) + at as u64;
                self.file.read_exact_at(&mut bytes[..self.layout.row], place)?;
            }
        }
        for (word, bytes) in row.iter_mut().zip(bytes.chunks(8)) {
            *word = u64::from_le_bytes(part(bytes, 0));
        }
        Ok(())
    }

    /// Words of a row.
    pub fn words(&self) -> usize {
        self.layout.row.div_ceil(8)
    }

    /// Whether there is an edge.
    ///
    /// # Errors
    /// The file's.
    pub fn has(&self, [u, v]: [u32; 2]) -> io::Result<bool> {
        let (page, at) = self.layout.place(u);
        let at = at + v as usize / 8;
        let byte = match self.changed.get(&page) {
            Some(Some(held)) => held[at],
            _ => self.byte(page, at)?,
        };
        Ok(byte >> (v % 8) & 1 == 1)
    }

    fn byte(&self, page: u32, at: usize) -> io::Result<u8> {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, offset(page) + at as u64)?;
        Ok(byte[0])
    }

    /// Makes or removes an edge; whether that changed anything.
    ///
    /// # Errors
    /// The file's.
    pub fn set(&mut self, [u, v]: [u32; 2], there: bool) -> io::Result<bool> {
        if self.has([u, v])? == there {
            return Ok(false);
        }
        self.flip(u, v)?;
        self.flip(v, u)?;
        Ok(true)
    }

    fn flip(&mut self, from: u32, to: u32) -> io::Result<()> {
        let (page, at) = self.layout.place(from);
        let (at, bit) = (at + to as usize / 8, 1 << (to % 8));
        if !self.buffered {
            self.changed.insert(page, None);
            let byte = self.byte(page, at)? ^ bit;
            return self.file.write_all_at(&[byte], offset(page) + at as u64);
        }
        if let Some(Some(held)) = self.changed.get_mut(&page) {
            held[at] ^= bit;
            return Ok(());
        }
        let mut held = Box::new([0; PAGE]);
        self.file.read_exact_at(&mut held[..], offset(page))?;
        held[at] ^= bit;
        self.changed.insert(page, Some(held));
        Ok(())
    }

    /// The hashes of the pages that have changed.
    ///
    /// # Errors
    /// The file's.
    pub fn leaves(&self) -> io::Result<Vec<(u32, Hash)>> {
        let mut read = [0; PAGE];
        let leaf = |(page, held): (&u32, &Option<Page>)| {
            let bytes = match held {
                Some(held) => held,
                None => {
                    self.file.read_exact_at(&mut read, offset(*page))?;
                    &read
                }
            };
            Ok((*page, Sha256::digest(bytes).into()))
        };
        self.changed.iter().map(leaf).collect()
    }

    /// Writes what has changed: neighbours together.
    ///
    /// # Errors
    /// The file's.
    pub fn flush(&mut self) -> io::Result<()> {
        let (mut first, mut run) = (0, Vec::new());
        for (page, held) in std::mem::take(&mut self.changed) {
            let Some(held) = held else { continue };
            if !run.is_empty() && first as usize + run.len() / PAGE != page as usize {
                self.file.write_all_at(&run, offset(first))?;
                run.clear();
            }
            if run.is_empty() {
                first = page;
            }
            run.extend_from_slice(&held[..]);
        }
        self.file.write_all_at(&run, offset(first))
    }
}
