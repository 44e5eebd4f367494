//! Four files of each thread get new content together.

use crate::{Args, Numbers, check, median, together, wrong};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use systx::Flags;

pub const FILES: usize = 4;

/// A new file over the old one, durable if `sync`, but for the name.
pub fn replace(path: &Path, text: &str, sync: bool) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    if sync {
        file.sync_all()?;
    }
    std::fs::rename(new, path)
}

/// All that a thread does.
struct Client<'a> {
    dir: &'a Path,
    directory: File,
    files: Vec<PathBuf>,
    /// In transactions of this kind; `None`: file by file, durably or not.
    flags: Option<Flags>,
    sync: bool,
}

impl Client<'_> {
    fn update(&self, number: u64) -> io::Result<()> {
        let text = format!("{number:064}");
        if let Some(flags) = self.flags {
            return systx::atomic(self.dir, flags, |_| {
                self.files.iter().try_for_each(|file| std::fs::write(file, &text))
            });
        }
        self.files.iter().try_for_each(|file| replace(file, &text, self.sync))?;
        // The names, once for all of them.
        if self.sync { self.directory.sync_all() } else { Ok(()) }
    }

    fn work(self, until: Instant) -> io::Result<Vec<Duration>> {
        let mut took = Vec::new();
        while Instant::now() < until {
            let begun = Instant::now();
            self.update(took.len() as u64 + 1)?;
            took.push(begun.elapsed());
        }
        let expected = format!("{:064}", took.len());
        for file in &self.files {
            let found = std::fs::read_to_string(file)?;
            check(found == expected, || format!("{}: {found}, not {expected}", file.display()))?;
            std::fs::remove_file(file)?;
        }
        Ok(took)
    }
}

pub fn run(args: &mut Args) -> io::Result<Numbers> {
    let (dir, how) = (args.path()?, args.text()?);
    let (threads, time) = (args.number()?, args.seconds()?);
    let (flags, sync) = match how.as_str() {
        "durable" => (Some(Flags::default()), true),
        "relaxed" => (Some(Flags::RELAXED), false),
        "fsync" => (None, true),
        "nosync" => (None, false),
        _ => return Err(wrong(format!("update: no way {how:?}"))),
    };
    let took: Vec<(Vec<Duration>, Duration)> = together(threads, time, |number| {
        let files = (0..FILES).map(|n| dir.join(format!("update-{number}-{n}"))).collect();
        let client = Client { dir: &dir, directory: File::open(&dir)?, files, flags, sync };
        client.update(0)?;
        Ok(move |until: Instant| {
            let begun = Instant::now();
            let took = client.work(until)?;
            Ok((took, begun.elapsed()))
        })
    })?;
    let lasted = took.iter().map(|t| t.1).max().unwrap_or_default().as_secs_f64();
    let mut all: Vec<f64> =
        took.iter().flat_map(|t| &t.0).map(|t| t.as_secs_f64() * 1000.0).collect();
    all.sort_by(f64::total_cmp);
    let at = |part: usize| all.get(all.len() * part / 100).copied().unwrap_or(f64::NAN);
    Ok(vec![
        ("updates".into(), all.len() as f64),
        ("per second".into(), all.len() as f64 / lasted),
        ("median, ms".into(), median(all.clone())),
        ("99 of 100, ms".into(), at(99)),
    ])
}
