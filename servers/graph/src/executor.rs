//! Who executes blocks: threads in transactions, or one thread without any.

use crate::execute::Block;
use crate::file::{Hash, Header};
use crate::serial::{Serial, Writes};
use crate::server::{Outcome, Server};
use crate::wrong;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// How blocks are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// By so many threads, in transactions.
    Threads(usize),
    /// By one thread, without.
    Serial(Writes),
}

impl FromStr for How {
    type Err = io::Error;

    /// A number of threads, `at-once` or `synced`.
    fn from_str(word: &str) -> io::Result<How> {
        match word {
            "at-once" => Ok(How::Serial(Writes::AtOnce)),
            "synced" => Ok(How::Serial(Writes::Synced)),
            number => match number.parse() {
                Ok(threads) => Ok(How::Threads(threads)),
                Err(_) => Err(wrong(format!("no number of threads: {number:?}"))),
            },
        }
    }
}

/// A graph that is executed so.
pub enum Executor {
    /// See [`How::Serial`].
    Serial(Box<Serial>),
    /// See [`How::Threads`].
    Threads(Box<Server>),
}

impl Executor {
    /// Opens the graph in a directory, and reads all of it.
    ///
    /// # Errors
    /// The file's; it is damaged; for threads: the directory is not guarded.
    pub fn open(dir: &Path, how: How) -> io::Result<Executor> {
        Ok(match how {
            How::Serial(writes) => Executor::Serial(Serial::open(dir, writes)?.into()),
            How::Threads(threads) => Executor::Threads(Server::open(dir, threads)?.into()),
        })
    }

    /// What heads the file.
    pub fn header(&self) -> &Header {
        match self {
            Executor::Serial(serial) => serial.header(),
            Executor::Threads(server) => server.header(),
        }
    }

    /// Executes the next block. By threads nothing of it is there before [`Executor::commit`].
    ///
    /// # Errors
    /// As [`Server::execute`].
    pub fn execute(&mut self, block: &Arc<Block>) -> io::Result<Outcome> {
        match self {
            Executor::Serial(serial) => {
                let answers = serial.block(block)?;
                let Header { height, root, .. } = *serial.header();
                Ok(Outcome { height, root, answers })
            }
            Executor::Threads(server) => server.execute(block),
        }
    }

    /// See [`Server::commit`].
    ///
    /// # Errors
    /// As there.
    pub fn commit(&mut self) -> io::Result<()> {
        match self {
            Executor::Serial(_) => Ok(()),
            Executor::Threads(server) => server.commit(),
        }
    }

    /// See [`Server::restore`].
    ///
    /// # Errors
    /// As there; without transactions: always.
    pub fn restore(
        &mut self,
        height: u64,
        root: &Hash,
        bytes: &[u8],
        step: &dyn Fn(),
    ) -> io::Result<()> {
        match self {
            Executor::Serial(_) => Err(wrong("without transactions a graph begins with no other")),
            Executor::Threads(server) => server.restore(height, root, bytes, step),
        }
    }

    /// See [`Server::lost`].
    pub fn lost(&self) -> u64 {
        match self {
            Executor::Serial(_) => 0,
            Executor::Threads(server) => server.lost(),
        }
    }
}
