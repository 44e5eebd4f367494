//! What the end-to-end suites in `tests/` are made of.  Nothing here is part of the product.
//!
//! - [`mod@lab`]: a disposable file system with its own daemon, removed again whatever happens;
//! - [`run`]: starts the built `systx`, with a limit on everything; a shell inside a run that is
//!   driven line by line, so that tests order events by pipes and never by sleeping;
//! - [`tree`]: a whole directory tree as a value, for comparisons;
//! - [`shared`]: a lab with ordinary users beside root's daemon;
//! - [`mod@room`]: a mount namespace with several disposable file systems;
//! - [`confine`]: commands with less than root has;
//! - [`lost`]: a disk that loses what it was not told to keep;
//! - [`stop`]: ends a process at its n-th call that changes a file system;
//! - [`twin`]: does the same work natively and inside a run, and compares;
//! - [`cache`]: things from package registries, fetched once;
//! - [`cases`]: helper programs that use libsystx;
//! - [`open`]: transactions with a path;
//! - [`others`]: test suites of others;
//! - [`places`]: the same work on the host, in a guarded directory, in transactions;
//! - [`spots`]: work that knows itself what is right, in every place, for each user and transport;
//! - [`pages`]: man pages, formatted;
//! - [`signals`]: what no safe function offers of signals;
//! - [`power_cut`]: a machine that loses its power while it commits;
//! - [`soak`]: mixed load for a while, and what grows;
//! - [`begin`]: starts a command in every state that there is;
//! - [`probe`]: a command that tells the state that it was started in;
//! - [`rows`]: the same natively and through `systx run`, and what differs;
//! - [`volume`]: a log-structured volume that is mounted;
//! - [`random`]: seeded choices, the seed printed;
//! - [`driven`]: a program with transactions of threads that does what it is told.
//!
//! The suites drive `systx` as a user does.  They know its command line, its exit codes and its
//! JSON; they do not link any of its crates.

#[path = "begin_unsafe.rs"]
pub mod begin;
pub mod cache;
pub mod cases;
#[path = "confine_unsafe.rs"]
pub mod confine;
pub mod driven;
mod frozen;
pub mod lab;
#[path = "locked_unsafe.rs"]
mod locked;
#[path = "lost_unsafe.rs"]
pub mod lost;
#[path = "mapped_unsafe.rs"]
pub mod mapped;
pub mod open;
pub mod others;
pub mod pages;
pub mod places;
pub mod power_cut;
#[path = "probe_unsafe.rs"]
pub mod probe;
#[path = "processes_unsafe.rs"]
pub mod processes;
pub mod random;
pub mod room;
pub mod rows;
pub mod run;
pub mod shared;
#[path = "signals_unsafe.rs"]
pub mod signals;
pub mod soak;
pub mod spots;
#[path = "stop_unsafe.rs"]
pub mod stop;
pub mod stores;
pub mod tree;
pub mod twin;
pub mod volume;

pub use lab::{Fs, Lab};
pub use run::{Finished, Shell};
pub use tree::Tree;

/// `systx run` lost a conflict and would like to be tried again (EX_TEMPFAIL).
pub const CONFLICT: i32 = 75;
/// Committed, and a change made outside was met and kept.
pub const OUTSIDE: i32 = 76;
/// The time limit passed.
pub const TIMED_OUT: i32 = 124;
/// `systx` itself failed.
pub const FAILED: i32 = 125;
/// The command cannot be executed.
pub const CANNOT_EXEC: i32 = 126;
/// The command was not found.
pub const NOT_FOUND: i32 = 127;

/// Whether the kernel is of this release or a later one.
pub fn kernel_is(major: u32, minor: u32) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// Ends the test early, saying why. A skip is printed in one form, so that `./test` can count it; a
/// part of a test that is left out is printed as `left out: WHY` and does not count.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        eprintln!("SKIPPED: {}", format_args!($($why)*));
        return;
    }};
}

/// The test is skipped where a program is missing.
#[macro_export]
macro_rules! needs {
    ($($program:expr),*) => {
        $(if $crate::lab::find_program($program).is_none() {
            $crate::skip!("no {}", $program);
        })*
    };
}

/// Whether tests take as long as they can make use of.
pub fn long() -> bool {
    std::env::var_os("SYSTX_LONG").is_some()
}

/// A lab on the default file system, or the test is skipped with the reason.
#[macro_export]
macro_rules! lab {
    () => {
        match $crate::Lab::new() {
            Ok(lab) => lab,
            Err(why) => $crate::skip!("{why}"),
        }
    };
    ($fs:expr) => {
        match $crate::Lab::on($fs) {
            Ok(lab) => lab,
            Err(why) => $crate::skip!("{why}"),
        }
    };
}

/// A room on its usual file systems or on the given ones, or the test is skipped with the reason.
#[macro_export]
macro_rules! room {
    () => {
        match $crate::room::Room::new() {
            Ok(room) => room,
            Err(why) => $crate::skip!("{why}"),
        }
    };
    ($kinds:expr) => {
        match $crate::room::Room::on($kinds) {
            Ok(room) => room,
            Err(why) => $crate::skip!("{why}"),
        }
    };
}
