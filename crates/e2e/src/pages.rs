//! Man pages: what the formatter has to say about them.

use crate::lab::find_program;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What groff warns of; without groff nothing is looked at.
pub fn complaints(pages: &[PathBuf]) -> String {
    assert!(!pages.is_empty());
    if find_program("groff").is_none() {
        eprintln!("left out: man pages are not formatted, there is no groff");
        return String::new();
    }
    let mut groff = Command::new("groff");
    groff
        .args(["-man", "-Tutf8", "-z", "-wmac", "-wescape", "-wmissing", "-wdelim", "-wnumber"])
        .args(pages)
        .stdin(Stdio::null());
    let out = groff.output().expect("groff starts");
    let mut said = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() {
        said.push_str(&format!("groff: {}", out.status));
    }
    said
}
