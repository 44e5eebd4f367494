//! `systx fsck`: what is damaged in a log-structured volume.  Nothing is changed, unless the user
//! gives up what lies behind a break of the log.

use crate::args::Fsck;
use crate::image;
use crate::output::{self, Out};
use crate::problem::{ERROR, Problem};
use serde::Serialize;
use systx_lfs::fsck::{Finding, check};
use systx_protocol::HostPath;

#[derive(Serialize)]
struct Checked {
    file: HostPath,
    objects: u64,
    pages: u64,
    findings: Vec<String>,
}

/// Checks it; 1 if something is damaged.
///
/// # Errors
/// It is no volume, cannot be read, or is in use.
pub fn fsck(args: &Fsck, out: Out) -> Result<i32, Problem> {
    let path = args.image.file.as_path();
    if args.cut_log {
        let cut = image::open_broken(path)?.close();
        cut.map_err(|e| image::cannot(path, e))?;
    }
    let device = image::device_to_read(path)?;
    let found = check(device, image::clock()).map_err(|e| image::cannot(path, e))?;
    let checked = Checked {
        file: HostPath::from(path),
        objects: found.objects,
        pages: found.pages,
        findings: found.findings.iter().map(Finding::to_string).collect(),
    };
    let code = if checked.findings.is_empty() { 0 } else { ERROR };
    if out.json {
        out.json("checked", &checked);
        return Ok(code);
    }
    for finding in &checked.findings {
        output::print(&format!("{}: {finding}\n", checked.file));
    }
    let looked = format!("{} objects, {} pages", found.objects, found.pages);
    match found.findings.len() {
        0 => out.say(&format!("{}: nothing is damaged ({looked})", path.display())),
        n => {
            let s = if n == 1 { "" } else { "s" };
            out.say(&format!("{}: {n} finding{s} ({looked})", path.display()));
            if found.findings.iter().any(|f| matches!(f, Finding::LogBroken { .. })) {
                out.hint(
                    "it is not opened as it is; its snapshots can be sent (systx send); systx fsck \
                     FILE --cut-log gives up what is lost, and it opens again",
                );
            }
            out.hint(
                "a copy of a super block or checkpoint comes back when the volume is next opened; \
                 the rest by systx mkfs and systx receive of the last whole stream and those \
                 after it",
            );
        }
    }
    Ok(code)
}
