//! Circles among the modules at the root of a crate.
//!
//! One module depends on another if a path in it leads there: `crate::other::…`, `super::…`, or a
//! name that the crate's root exports from it (`pub use other::Name`).  That a module declares its
//! children is no dependency, since children count as part of it.

use crate::source::Source;
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Modules that depend on each other in a circle: each inner list is one, largest first.
#[must_use]
pub fn circles(files: &[Source]) -> Vec<Vec<String>> {
    let arrows = arrows(files);
    let mut graph: DiGraphMap<&str, ()> = DiGraphMap::new();
    for (from, to) in &arrows {
        graph.add_edge(from, to, ());
    }
    let mut circles: Vec<Vec<String>> = tarjan_scc(&graph)
        .into_iter()
        .filter(|circle| circle.len() > 1)
        .map(|circle| circle.into_iter().map(str::to_owned).collect())
        .collect();
    for circle in &mut circles {
        circle.sort();
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}

/// Which module depends on which other one.
#[must_use]
pub fn arrows(files: &[Source]) -> BTreeSet<(String, String)> {
    let modules: BTreeSet<&str> = files.iter().map(|f| f.module.as_str()).collect();
    let exported = exported(files, &modules);
    let mut arrows = BTreeSet::new();
    for source in files.iter().filter(|f| !f.module.is_empty()) {
        let depth = source.path.iter().skip_while(|part| *part != "src").count() - 2;
        let mut paths = Paths { found: Vec::new(), depth: depth + usize::from(!is_mod(source)) };
        paths.visit_file(&source.file);
        for name in paths.found {
            let to =
                if modules.contains(name.as_str()) { Some(&name) } else { exported.get(&name) };
            if let Some(to) = to.filter(|to| **to != source.module) {
                arrows.insert((source.module.clone(), to.clone()));
            }
        }
    }
    arrows
}

fn is_mod(source: &Source) -> bool {
    source.path.file_stem().is_some_and(|stem| stem == "mod")
}

/// Names that the crate's root takes from its modules.
fn exported(files: &[Source], modules: &BTreeSet<&str>) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for source in files.iter().filter(|f| f.module.is_empty()) {
        for item in &source.file.items {
            let syn::Item::Use(it) = item else { continue };
            for path in flat(&it.tree) {
                let path: Vec<&str> =
                    path.iter().map(String::as_str).skip_while(|s| *s == "crate").collect();
                if let [module, .., name] = path[..]
                    && modules.contains(module)
                {
                    exported.insert(name.to_owned(), module.to_owned());
                }
            }
        }
    }
    exported
}

/// The paths of a `use`, each by its segments; a renamed one by its new name.
fn flat(tree: &syn::UseTree) -> Vec<Vec<String>> {
    match tree {
        syn::UseTree::Path(it) => flat(&it.tree)
            .into_iter()
            .map(|rest| std::iter::once(it.ident.to_string()).chain(rest).collect())
            .collect(),
        syn::UseTree::Name(it) => vec![vec![it.ident.to_string()]],
        syn::UseTree::Rename(it) => vec![vec![it.rename.to_string()]],
        syn::UseTree::Glob(_) => vec![vec!["*".into()]],
        syn::UseTree::Group(it) => it.items.iter().flat_map(flat).collect(),
    }
}

/// The names right below the crate's root at which the paths of a file begin.
struct Paths {
    found: Vec<String>,
    /// How many modules are above the items of the file.
    depth: usize,
}

impl Paths {
    fn take(&mut self, segments: &[String]) {
        let supers = segments.iter().take_while(|s| *s == "super").count();
        let rooted = segments.first().is_some_and(|s| s == "crate") || supers == self.depth;
        let first = segments.iter().find(|s| !matches!(s.as_str(), "super" | "crate" | "self"));
        if let Some(first) = first.filter(|_| rooted && supers <= self.depth) {
            self.found.push(first.clone());
        }
    }
}

impl Visit<'_> for Paths {
    fn visit_item_use(&mut self, it: &syn::ItemUse) {
        for path in flat(&it.tree) {
            self.take(&path);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if segments.first().is_some_and(|s| s == "crate" || s == "super") {
            self.take(&segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, it: &syn::ItemMod) {
        let test = it.attrs.iter().any(|a| a.path().is_ident("cfg"));
        if it.content.is_some() && !test {
            self.depth += 1;
            visit::visit_item_mod(self, it);
            self.depth -= 1;
        }
    }
}
