//! What is never committed, and what others may append to: lines in gitignore(5) syntax, as the
//! client makes them absolute.
//!
//! A line stands in a file (or on a command line given in a directory), and means paths below that
//! directory.  [`anchor`] makes it absolute, so that the daemon, which knows neither files nor
//! directories of the client, gets a list of patterns rooted at `/`: one with a slash at its start
//! or middle names a path, one without matches at any depth, a matched directory takes everything
//! below it along, and `!` brings back what no matched directory holds.

use std::path::Path;

/// Makes a pattern of the command line absolute; `None` for an empty one.  A path is the one that
/// any other command would take it for: from `/` if it begins so, else from `dir`.  A name without
/// a slash is meant at any depth of the whole root.
pub fn anchor_argument(pattern: &str, dir: &Path) -> Option<String> {
    let (not, mut path) = match pattern.strip_prefix('!') {
        Some(path) => ("!", path),
        None => ("", pattern),
    };
    if path.starts_with('/') {
        return (!path.trim_matches('/').is_empty()).then(|| format!("{not}{path}"));
    }
    let mut dir = dir;
    let mut plain = false;
    loop {
        if let Some(rest) = path.strip_prefix("./") {
            path = rest;
        } else if let Some(rest) = path.strip_prefix("../") {
            (dir, path) = (dir.parent().unwrap_or(dir), rest);
        } else {
            break;
        }
        plain = true;
    }
    // `./x` is the one here, as in a shell.
    let path = if plain { format!("/{path}") } else { path.to_owned() };
    anchor(&format!("{not}{path}"), dir, true)
}

/// Makes a line absolute; `None` for blank lines and comments.  `everywhere`: a name without a
/// slash is meant at any depth of the whole root, not only below `dir` (options of the command
/// line).
pub fn anchor(line: &str, dir: &Path, everywhere: bool) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let (not, body) = match line.strip_prefix('!') {
        Some(body) => ("!", body),
        None => ("", line),
    };
    // Trailing blanks do not count unless the last is quoted.
    let bare = body.trim_end_matches(' ');
    let quoted = bare.len() < body.len() && bare.ends_with('\\');
    let body = if quoted { &body[..=bare.len()] } else { bare };
    let path = body.trim_start_matches('/');
    if path.is_empty() {
        return None;
    }
    let rooted = body.trim_end_matches('/').contains('/');
    let mut out = String::from(not);
    if rooted || !everywhere {
        for c in dir.to_string_lossy().trim_end_matches('/').chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
    }
    out.push_str(if rooted { "/" } else { "/**/" });
    out.push_str(path);
    Some(out)
}
