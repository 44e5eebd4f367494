//! Prints the measures of the structure: `cargo run -p systx-structure [-- --all]`.
//!
//! `--all` lists every place; without it there are counts, and the largest of each kind.

use anyhow::Result;
use systx_structure::{calls, cycles, modes, sizes, source};

/// Lines of code in one function.
const LINES: usize = 70;
/// Fields of one struct.
const FIELDS: usize = 12;

fn main() -> Result<()> {
    let all = std::env::args().any(|a| a == "--all");
    let shown = if all { usize::MAX } else { 10 };
    let workspace = source::workspace();
    let names = source::crates(&workspace)?;
    let mut files = Vec::new();
    println!("## Lines of code, and modules in circles, by crate");
    for name in &names {
        let own = source::files(&workspace, name)?;
        let lines: usize = own.iter().map(source::Source::code_lines).sum();
        let modules: std::collections::BTreeSet<&str> =
            own.iter().map(|f| f.module.as_str()).filter(|m| !m.is_empty()).collect();
        let circles = cycles::circles(&own);
        let sizes: Vec<usize> = circles.iter().map(Vec::len).collect();
        println!("{name:10} {lines:6} lines, {:2} modules, in circles: {sizes:?}", modules.len());
        if all {
            circles.iter().for_each(|c| println!("           {}", c.join(" ")));
        }
        files.push((name.clone(), own));
    }
    println!("\n## Types with the most inherent methods");
    types(&files, shown);
    let sources: Vec<source::Source> = files.into_iter().flat_map(|(_, own)| own).collect();
    list(
        &format!("Functions of more than {LINES} lines"),
        &sizes::long_functions(&sources, LINES),
        shown,
    );
    list(
        &format!("Structs of more than {FIELDS} fields"),
        &sizes::wide_structs(&sources, FIELDS),
        shown,
    );
    println!("\n## Conditions on a mode outside of its home");
    for mode in modes::MODES {
        let found = modes::asked(&sources, mode);
        println!("{:4} {}", found.len(), mode.name);
        if all {
            found.iter().for_each(|place| println!("       {place}"));
        }
    }
    println!("\n## Places in which one call is written (median, most)");
    let speaks = |file: &&source::Source| file.is_of("daemon") || file.is_of("protocol");
    let control = calls::places(sources.iter().filter(speaks));
    let mut counts: Vec<usize> = control.values().map(std::collections::BTreeSet::len).collect();
    counts.sort_unstable();
    let most = counts.last().copied().unwrap_or(0);
    if all {
        for (name, places) in &control {
            println!("{:4} {name}", places.len());
            places.iter().for_each(|place| println!("       {place}"));
        }
    }
    println!("control calls: {} of them, {:?}, {most}", counts.len(), counts.get(counts.len() / 2));
    let requests = calls::implementations(&sources, "Requests");
    println!(
        "requests of the kernel: the trait `Requests` is implemented {} times",
        requests.len()
    );
    Ok(())
}

fn types(files: &[(String, Vec<source::Source>)], shown: usize) {
    let mut types = Vec::new();
    for (name, own) in files {
        for (of, methods) in sizes::methods(own) {
            types.push((
                methods.methods,
                methods.lines,
                methods.files.len(),
                format!("{name}::{of}"),
            ));
        }
    }
    types.sort_by(|a, b| b.cmp(a));
    for (methods, lines, files, name) in types.into_iter().take(shown) {
        println!("{name:28} {methods:4} methods, {lines:5} lines, {files:3} files");
    }
}

fn list(title: &str, found: &[sizes::Size], shown: usize) {
    println!("\n## {title}: {}", found.len());
    for size in found.iter().take(shown) {
        println!("{:4} {}", size.size, size.what);
    }
}
