//! Programs and libraries that a test has built.

use super::tool;
use std::path::PathBuf;
use std::process::Command;

/// Builds something of this workspace with the suite's own profile, chosen as by `cargo build`
/// (`--bin systx`); `place`: where it is then, below the profile's directory.
///
/// The features of what is built depend on all packages that cargo is asked for, and on whether a
/// test is. `./test` asks for the same ones, with tests, so each crate is built once.
pub fn built(what: &[&str], place: &str) -> PathBuf {
    // .../target/PROFILE/deps/suite-0123, or a program in .../target/PROFILE
    let exe = std::env::current_exe().expect("own path");
    let dir = exe.parent().expect("a directory");
    let profile = if dir.ends_with("deps") { dir.parent().unwrap_or(dir) } else { dir }.to_owned();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "-q"]).args(SELECTED.map(|package| ["-p", package]).as_flattened());
    cargo.args(["--test", "structure"]).args(what);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(profile.parent().expect("target"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    tool(&mut cargo).unwrap_or_else(|why| panic!("{what:?} must build: {why}"));
    let built = profile.join(place);
    if place == LIBRARY {
        // As it is installed.  Another process may be doing the same.
        let _ = std::os::unix::fs::symlink(LIBRARY, profile.join(SONAME));
    }
    built
}

/// What may be built.
const SELECTED: [&str; 4] = ["systx", "libsystx", "systx-histories", "systx-e2e"];
/// What programs are linked with, and what these then load.
pub const LIBRARY: &str = "libsystx.so";
/// See [`LIBRARY`].
pub const SONAME: &str = "libsystx.so.0";
