//! `systx manual`: the man pages of the commands.

use crate::args::{Cli, Manual};
use crate::problem::Problem;
use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::Path;

/// Writes them into a directory, which is made if it is not there.
///
/// # Errors
/// The directory cannot be written to.
pub fn manual(args: &Manual) -> Result<i32, Problem> {
    // What help says at its end stands in sections of its own here.
    let mut command = Cli::command().disable_help_subcommand(true).after_help("");
    command.build();
    std::fs::create_dir_all(&args.dir).and_then(|()| pages(command, &args.dir)).map_err(|e| {
        Problem::new(format!("cannot write man pages to {}: {e}", args.dir.display()))
    })?;
    Ok(0)
}

fn pages(command: clap::Command, dir: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        pages(below.clone(), dir)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = Man::new(command);
    let mut text = Vec::new();
    page.render(&mut text)?;
    let mut more = Roff::default();
    more.control("SH", ["EXIT STATUS"]);
    for (code, what) in exit_status(&name) {
        more.control("TP", []).text([bold(*code)]).text([roman(*what)]);
    }
    more.control("SH", ["EXAMPLES"]);
    for (line, what) in examples(&name) {
        more.control("TP", []).text([bold(*line)]).text([roman(*what)]);
    }
    more.to_writer(&mut text)?;
    std::fs::write(dir.join(page.get_filename()), text)
}

type Rows = &'static [(&'static str, &'static str)];

/// Of the commands that start another one.
const STARTS: Rows = &[
    ("CMD's own", "CMD has ended with it; if a signal ended CMD, that signal ends systx as well."),
    ("75", "A conflict was lost, or somebody else has a file or the store in use: try again."),
    (
        "76",
        "Committed; while it was installed a program outside changed one of its files, and that \
         is kept and named.",
    ),
    ("124", "The time limit has passed; nothing is committed."),
    (
        "125",
        "systx failed, or somebody aborted the transaction; the message says what is committed.",
    ),
    ("126", "CMD cannot be executed."),
    ("127", "CMD was not found."),
];

const OTHERS: Rows = &[
    ("0", "Done."),
    ("1", "Failed; of diff --exit-code: there are changes; of fsck: something is damaged."),
    ("2", "The command line is not understood."),
    ("75", "A conflict was lost, or somebody else has a file or the store in use: try again."),
    (
        "76",
        "Committed; while it was installed a program outside changed one of its files, and that \
         is kept and named.",
    ),
];

fn exit_status(page: &str) -> Rows {
    if ["systx-run", "systx-enter", "systx-exec"].contains(&page) { STARTS } else { OTHERS }
}

/// Command lines with what they do; ID stands for a transaction.
fn examples(page: &str) -> Rows {
    let of = |(name, _): &&(&str, Rows)| *name == page;
    EXAMPLES.iter().find(of).map_or(&[], |(_, rows)| rows)
}

const EXAMPLES: &[(&str, Rows)] = &[
    (
        "systx",
        &[
            ("systx run -- make install", "All of it, or nothing if it fails."),
            ("systx run --on-exit=keep -- ./migrate", "Look before you commit."),
            ("systx undo", "Take the last one back."),
        ],
    ),
    (
        "systx-run",
        &[
            ("systx run -- apt-get install nano", "All of it, or nothing if it fails."),
            ("systx run --on-exit=ask -- bash", "A shell; at its end the changes are shown."),
            ("systx run --retries 5 -- ./update", "Again, if a conflict is lost."),
            ("systx run --read-only -- tar cf /backup.tar .", "One moment of a tree."),
        ],
    ),
    ("systx-begin", &[("systx begin .", "Prints an id, and the path to work below.")]),
    ("systx-list", &[("systx list --json", "For programs.")]),
    ("systx-status", &[("systx status ID", "What it has changed, and what it may lose by.")]),
    ("systx-top", &[("systx top --once", "One picture, for a log.")]),
    (
        "systx-diff",
        &[
            ("systx diff ID", "As a patch."),
            ("systx diff ID --name-status src", "Letters and paths, of a part."),
        ],
    ),
    ("systx-enter", &[("systx enter ID", "A shell in it."), ("systx enter ID -- make test", "")]),
    (
        "systx-commit",
        &[
            ("systx commit ID", "All of it."),
            ("systx commit ID src README.md", "A part; the rest stays kept."),
        ],
    ),
    ("systx-abort", &[("systx abort ID", "Nothing of it is left.")]),
    ("systx-log", &[("systx log -n 10 /etc", "The latest ten that changed something there.")]),
    ("systx-show", &[("systx show ID --stat", "With the number of changed lines.")]),
    ("systx-services", &[("systx services --run ID", "Carry out what waits of that one.")]),
    ("systx-config", &[("systx config -C /srv/www", "What a run there would isolate.")]),
    (
        "systx-undo",
        &[
            ("systx undo", "The latest one of this directory."),
            ("systx undo -n ID etc/hosts", "What would be undone of a part."),
        ],
    ),
    ("systx-redo", &[("systx redo", "Take the latest undo back.")]),
    ("systx-recover", &[("systx recover --all", "After a crash, on all file systems.")]),
    ("systx-gc", &[("systx gc --max-size 500M", "Keep no more for undos.")]),
    (
        "systx-mount",
        &[
            ("systx mount /srv/mail", "From now on programs there are isolated, too."),
            ("systx mount disk.img /srv/work", "A log-structured volume, for all users."),
            ("systx mount disk.img /mnt --at monday", "A snapshot of it, read-only."),
            ("systx mount disk.img /mnt --at 5f3a9c01", "The last one before a transaction."),
            ("systx mount", "What is guarded, and what is mounted."),
        ],
    ),
    ("systx-umount", &[("systx umount /srv/mail", "It is an ordinary directory again.")]),
    (
        "systx-mkfs",
        &[("systx mkfs disk.img --size 10G --label work", "A new image with an empty volume.")],
    ),
    ("systx-fsck", &[("systx fsck disk.img", "Each damage by name; 1 if there is any.")]),
    (
        "systx-grow",
        &[
            ("systx grow disk.img 20G", "The image and its volume."),
            ("systx grow disk.img +5G", "The same, by so much."),
            ("systx grow /dev/vg/work", "The volume, after lvextend(8)."),
        ],
    ),
    ("systx-df", &[("systx df disk.img --json", "For programs.")]),
    (
        "systx-send",
        &[
            ("systx send disk.img monday", "All of a snapshot, as a stream: > FILE, | ssh …"),
            ("systx send disk.img tuesday --since monday", "What has changed in between."),
        ],
    ),
    ("systx-receive", &[("systx receive copy.img", "Apply a stream: < FILE, ssh … |")]),
    (
        "systx-snapshot",
        &[
            ("systx snapshot disk.img monday", "Keep the tree as it is."),
            ("systx snapshot /srv/work monday", "Of a volume that is mounted there."),
            ("systx snapshot disk.img monday --delete", "Do not keep it any longer."),
        ],
    ),
    (
        "systx-snapshots",
        &[
            ("systx snapshots disk.img", "Names, times, and what they keep."),
            ("systx snapshots /srv/work --prune --daily 30", "One a day stays, for 30 days."),
        ],
    ),
    (
        "systx-protect",
        &[
            ("systx protect off target", "What is done in target is done at once, and stays."),
            ("systx protect target/x.o", "Whether it is protected, and which mark says so."),
            ("systx protect on target", "It is a matter of transactions again."),
        ],
    ),
    (
        "systx-clean",
        &[
            ("systx clean disk.img --until 20%", "Until a fifth of the segments is free."),
            ("systx clean disk.img --policy idle", "Write scattered files again, in order."),
        ],
    ),
    ("systx-doctor", &[("systx doctor", "What this machine allows, and what to do about it.")]),
    ("systx-exec", &[("systx exec -- ./server", "A server that has transactions of threads.")]),
    ("systx-syscalls", &[("systx syscalls", "What becomes of each in a thread's transaction.")]),
    (
        "systx-completions",
        &[("systx completions bash", "To be read by the shell: source <(systx completions bash)")],
    ),
    ("systx-manual", &[("systx manual /usr/local/share/man/man1", "This page, and the others.")]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Every page has examples, and each of them is a command line of that command.
    #[test]
    fn examples_are_command_lines() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        let names = command.get_subcommands().filter(|c| !c.is_hide_set());
        let names = names.map(|c| format!("systx-{}", c.get_name()));
        for page in names.chain(["systx".into()]) {
            assert!(!examples(&page).is_empty(), "{page} has no example");
            for (line, _) in examples(&page) {
                let words: Vec<&str> = line.split(' ').collect();
                assert!(page == "systx" || page == format!("systx-{}", words[1]), "{line}");
                if let Err(e) = Cli::try_parse_from(&words) {
                    panic!("{line}: {e}");
                }
            }
        }
        for (page, _) in EXAMPLES {
            let is_it = |c: &clap::Command| format!("systx-{}", c.get_name()) == *page;
            assert!(*page == "systx" || command.get_subcommands().any(is_it), "no page {page}");
        }
    }
}
