//! The command line: makes graphs and recorded blocks, and executes blocks. See README.md.

use clap::{Parser, Subcommand, ValueEnum};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use systx_graph::blocks::{self, Mix};
use systx_graph::executor::{Executor, How};
use systx_graph::file::{Hash, write_new};
use systx_graph::request::Answer;
use systx_graph::serial::Writes;
use systx_graph::server::{NAME, check};

/// A graph in a file, whose blocks of requests are executed in ordered transactions.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a random graph in a directory.
    Create {
        dir: PathBuf,
        #[arg(long)]
        vertices: u32,
        #[arg(long)]
        edges: u64,
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Print random blocks of requests.
    Blocks {
        #[arg(long)]
        vertices: u32,
        #[arg(long)]
        blocks: u32,
        /// Requests of a block.
        #[arg(long)]
        size: u32,
        /// How many of 100 requests change the graph.
        #[arg(long, default_value_t = 0)]
        writes: u32,
        /// How many of 100 others ask for an edge, not for a path.
        #[arg(long, default_value_t = 0)]
        exists: u32,
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Execute recorded blocks, from the next one on; print height, hash of the graph and hash of
    /// the answers after each of them.
    Run {
        dir: PathBuf,
        blocks: PathBuf,
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Without transactions, by one thread.
        #[arg(long)]
        serial: Option<Written>,
        /// Print the answers, too.
        #[arg(long)]
        answers: bool,
        /// Say on stderr how long it took, without opening the graph.
        #[arg(long)]
        time: bool,
    },
    /// Read the whole graph, and print its height and hash, if it has the content that it should.
    Check { dir: PathBuf },
}

/// How the serial program writes.
#[derive(Clone, Copy, ValueEnum)]
enum Written {
    /// Each change by itself, without waiting for the disk.
    AtOnce,
    /// Each block at its end, and waits for the disk.
    Synced,
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn create(dir: &Path, vertices: u32, edges: u64, seed: u64) -> io::Result<()> {
    let edges = blocks::edges(vertices, edges, seed)?;
    let file = File::options().read(true).write(true).create_new(true).open(dir.join(NAME))?;
    let header = write_new(&file, vertices, edges.into_iter())?;
    file.sync_all()?;
    File::open(dir)?.sync_all()?;
    println!("0 {}", hex(&header.root));
    Ok(())
}

fn run(mut executor: Executor, path: &Path, answers: bool, time: bool) -> io::Result<()> {
    let header = *executor.header();
    let blocks = blocks::read(&std::fs::read_to_string(path)?, header.layout.vertices);
    let (mut out, mut requests) = (io::stdout().lock(), 0);
    let begun = Instant::now();
    let mut said = Vec::new();
    for block in blocks.into_iter().skip(header.height as usize) {
        let block = block.into();
        let found = executor.execute(&block)?.answers;
        executor.commit()?;
        requests += found.len();
        let words: Vec<String> = found.iter().map(Answer::to_string).collect();
        let text = words.join("\n");
        let header = executor.header();
        let sum = hex(&Sha256::digest(&text).into());
        writeln!(said, "{} {} {sum}", header.height, hex(&header.root))?;
        if answers {
            writeln!(said, "{text}")?;
        }
        out.write_all(&said)?;
        out.flush()?;
        said.clear();
    }
    if time {
        let (took, lost) = (begun.elapsed().as_secs_f64(), executor.lost());
        eprintln!("{requests} requests, {took:.6} s, {lost} lost");
    }
    Ok(())
}

fn main_or_error() -> io::Result<()> {
    match Args::parse().command {
        Command::Create { dir, vertices, edges, seed } => create(&dir, vertices, edges, seed),
        Command::Blocks { vertices, blocks, size, writes, exists, seed } => {
            let mix = Mix { vertices, blocks, size, writes, exists };
            let mut out = io::BufWriter::new(io::stdout().lock());
            blocks::record(mix, seed, &mut out)?;
            out.flush()
        }
        Command::Run { dir, blocks, threads, serial, answers, time } => {
            let how = match serial {
                Some(Written::AtOnce) => How::Serial(Writes::AtOnce),
                Some(Written::Synced) => How::Serial(Writes::Synced),
                None => How::Threads(threads),
            };
            run(Executor::open(&dir, how)?, &blocks, answers, time)
        }
        Command::Check { dir } => {
            let header = check(&dir)?;
            println!("{} {}", header.height, hex(&header.root));
            Ok(())
        }
    }
}

fn main() -> std::process::ExitCode {
    match main_or_error() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("systx-graph: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
