//! The limits of the structure that the project has agreed on.  Each exception stands in a table
//! of `exceptions`; a table may lose rows, and a figure may only become smaller.

use std::collections::{BTreeMap, BTreeSet};
use systx_structure::{calls, cycles, sizes, source};

/// Lines of code in one function.
const LINES: usize = 70;
/// Fields of one struct.
const FIELDS: usize = 12;
/// Files in which the inherent methods of one type stand.
const FILES: usize = 5;
/// Modules that depend on each other in one circle.
const CIRCLE: usize = 4;
/// Places in which a control call is written: its entry, what the daemon does, and what it does for
/// guests.
const PLACES: usize = 3;
/// Columns of a line, of code and of comments.
const COLUMNS: usize = 100;

mod exceptions;
use exceptions::{
    FAR_CALLS, LARGE_CIRCLES, LONG_FUNCTIONS, SCATTERED_TYPES, WIDE_LINES, WIDE_STRUCTS,
};

fn sources(name: &str) -> Vec<source::Source> {
    source::files(&source::workspace(), name).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

fn crates() -> Vec<String> {
    source::crates(&source::workspace()).expect("the crates")
}

/// Compares what was found with the exceptions: each row is needed, and none has grown.
fn agree(what: &str, found: &BTreeMap<String, usize>, exceptions: &[(&str, usize)]) {
    let allowed: BTreeMap<String, usize> =
        exceptions.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    let mut wrong = Vec::new();
    for (name, size) in found {
        match allowed.get(name) {
            None => wrong.push(format!("{name} ({size}) is beyond the limit")),
            Some(allowed) if size > allowed => {
                wrong.push(format!("{name} has grown from {allowed} to {size}"));
            }
            Some(_) => {}
        }
    }
    for name in allowed.keys().filter(|name| !found.contains_key(*name)) {
        wrong.push(format!("{name} is within the limit: take its exception away"));
    }
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

fn by_name(found: Vec<sizes::Size>) -> BTreeMap<String, usize> {
    found.into_iter().map(|f| (f.what, f.size)).collect()
}

#[test]
fn functions_are_short() {
    let all: Vec<_> = crates().iter().flat_map(|name| sources(name)).collect();
    assert!(all.len() > 300, "{} files", all.len());
    agree("lines of a function", &by_name(sizes::long_functions(&all, LINES)), LONG_FUNCTIONS);
}

#[test]
fn structs_are_narrow() {
    let all: Vec<_> = crates().iter().flat_map(|name| sources(name)).collect();
    agree("fields of a struct", &by_name(sizes::wide_structs(&all, FIELDS)), WIDE_STRUCTS);
}

#[test]
fn methods_of_a_type_stand_in_few_files() {
    let mut found = BTreeMap::new();
    for name in crates() {
        for (of, methods) in sizes::methods(&sources(&name)) {
            found.insert(format!("{name}::{of}"), methods.files.len());
        }
    }
    found.retain(|_, files| *files > FILES);
    agree("files of a type", &found, SCATTERED_TYPES);
}

#[test]
fn modules_are_in_small_circles() {
    let mut found = BTreeMap::new();
    for name in crates() {
        let largest = cycles::circles(&sources(&name)).first().map_or(0, Vec::len);
        found.insert(name, largest);
    }
    found.retain(|_, size| *size > CIRCLE);
    agree("modules in a circle", &found, LARGE_CIRCLES);
}

#[test]
fn a_control_call_is_written_in_few_places() {
    let sources: Vec<_> = ["protocol", "daemon"].into_iter().flat_map(sources).collect();
    let places = calls::places(sources.iter());
    assert!(places.len() > 30, "{:?}", places.keys());
    let served = |found: &BTreeSet<String>| found.iter().any(|p| p.contains("/daemon/"));
    let unserved: Vec<&String> =
        places.iter().filter(|(_, p)| !served(p)).map(|(name, _)| name).collect();
    assert_eq!(unserved, ["hello"]);
    let mut found: BTreeMap<String, usize> =
        places.into_iter().map(|(name, places)| (name, places.len())).collect();
    found.retain(|_, places| *places > PLACES);
    agree("places of a control call", &found, FAR_CALLS);
}

/// The interfaces between a view and what is below it: a body in one of them would hide that an
/// implementation has left an operation out.
#[test]
fn interfaces_of_stores_have_no_default_bodies() {
    const INTERFACES: [&str; 4] = ["Io", "Staging", "Store", "Tree"];
    let (mut met, mut wrong) = (Vec::new(), Vec::new());
    for source in sources("store") {
        for item in &source.file.items {
            let syn::Item::Trait(it) = item else { continue };
            let name = it.ident.to_string();
            if !INTERFACES.contains(&name.as_str()) {
                continue;
            }
            for item in &it.items {
                if let syn::TraitItem::Fn(f) = item
                    && f.default.is_some()
                {
                    wrong.push(format!("{name}::{}", f.sig.ident));
                }
            }
            met.push(name);
        }
    }
    met.sort();
    assert_eq!(met, INTERFACES, "they have moved");
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The kind of a store is chosen where it is opened: the daemon opens a volume in one place, the
/// simulator a store in another.  Above that nobody can name a kind, since none is public.
#[test]
fn the_kind_of_a_store_is_chosen_in_one_place() {
    let workspace = source::workspace();
    let opens = |source: &source::Source| {
        let text = std::fs::read_to_string(workspace.join(&source.path)).expect("UTF-8");
        text.contains("systx_store::open(") || text.contains("systx_store::open_among(")
    };
    let mut found: Vec<String> = Vec::new();
    for name in crates() {
        let sources = sources(&name);
        let places = sources.iter().filter(|source| opens(source));
        found.extend(places.map(|source| source.path.display().to_string()));
    }
    found.sort();
    let tests = "crates/commit/src/testing.rs";
    assert_eq!(found, [tests, "crates/daemon/src/volume.rs", "crates/sim/src/suite.rs"]);
}

/// Identity and version of an object are opaque above the stores: there they are compared, kept and
/// handed back.  Nobody looks into one, since the fields are private to the crate of the interface.
/// The other stores make theirs in one place each.
#[test]
fn identities_and_versions_are_made_by_stores() {
    let makes = |source: &source::Source| {
        source.code().any(|line| line.contains("HostId::new(") || line.contains("Stamp::new("))
    };
    let mut above = crates();
    above.retain(|name| name != "store");
    let found: Vec<String> = (above.iter().flat_map(|name| sources(name)).filter(makes))
        .map(|source| source.path.display().to_string())
        .collect();
    assert_eq!(found, ["crates/lfs-store/src/tree.rs", "crates/sim/src/calls.rs"]);
}

/// Files are counted by crate, tests included: a row for each file would be longer than the code.
#[test]
fn lines_are_narrow() {
    let workspace = source::workspace();
    let mut found = BTreeMap::new();
    for name in crates() {
        let mut todo = vec![workspace.join("crates").join(&name)];
        let mut wide = 0;
        while let Some(dir) = todo.pop() {
            for entry in dir.read_dir().expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    todo.push(path);
                } else if path.extension().is_some_and(|e| e == "rs") {
                    let text = std::fs::read_to_string(&path).expect("UTF-8");
                    wide += text.lines().filter(|l| l.chars().count() > COLUMNS).count();
                }
            }
        }
        found.insert(name, wide);
    }
    found.retain(|_, wide| *wide > 0);
    agree("wide lines", &found, WIDE_LINES);
}
