//! The same without transactions: one thread, one request after another. What is there after a
//! crash may be anything.

use crate::execute::{Block, Search, execute};
use crate::file::{Edges, Hash, Header, load, root};
use crate::request::Answer;
use crate::wrong;
use std::fs::File;
use std::io;
use std::path::Path;

/// When changes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Each one at once, and the kernel writes them to the disk some time.
    AtOnce,
    /// At the end of the block, each page once, and the block ends when the disk has them.
    Synced,
}

/// A graph that is executed so.
pub struct Serial {
    file: File,
    header: Header,
    leaves: Vec<Hash>,
    writes: Writes,
    search: Search,
}

impl Serial {
    /// Opens the graph in a directory, and reads all of it.
    ///
    /// # Errors
    /// The file's; it is damaged.
    pub fn open(dir: &Path, writes: Writes) -> io::Result<Serial> {
        let path = dir.join(crate::server::NAME);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|e| wrong(format!("{}: {e}", path.display())))?;
        let (header, leaves) = load(&file)?;
        Ok(Serial { file, header, leaves, writes, search: Search::default() })
    }

    /// What heads the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Executes the next block.
    ///
    /// # Errors
    /// The file's.
    pub fn block(&mut self, block: &Block) -> io::Result<Vec<Answer>> {
        let buffered = self.writes == Writes::Synced;
        let mut edges = Edges::new(&self.file, self.header.layout, buffered);
        let answers = execute(&mut edges, &mut self.search, block, &(0..block.len()), true)?;
        for (page, leaf) in edges.leaves()? {
            self.leaves[page as usize] = leaf;
        }
        edges.flush()?;
        self.header.root = root(self.header.layout.vertices, &self.leaves);
        self.header.height += 1;
        self.header.write(&self.file)?;
        if buffered {
            self.file.sync_data()?;
        }
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}
