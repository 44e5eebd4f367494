//! The source files of the workspace, parsed.

use anyhow::{Context, Result};
use proc_macro2::Span;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// One parsed file of a crate, without its tests.
pub struct Source {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// The module at the root of the crate that the file belongs to; empty for `lib.rs`, `main.rs`.
    pub module: String,
    /// The lines as they stand in the file.
    pub lines: Vec<String>,
    /// What is not compiled for tests only.
    pub file: syn::File,
    /// Lines that hold a token of `file`, counted from one.
    code: BTreeSet<usize>,
}

/// The directory of this workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of the crates below `crates/`, sorted.
///
/// # Errors
/// Those of reading the directory.
pub fn crates(workspace: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in workspace.join("crates").read_dir()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(workspace.join("crates").join(&name).join("src").is_dir().then_some(name));
    }
    names.sort();
    Ok(names)
}

/// The files of one crate's `src`, without files that hold tests only.
///
/// # Errors
/// Those of reading and of parsing.
pub fn files(workspace: &Path, name: &str) -> Result<Vec<Source>> {
    let src = workspace.join("crates").join(name).join("src");
    let mut todo = vec![src.clone()];
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in dir.read_dir()? {
            let path = entry?.path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                todo.extend((stem != "tests").then_some(path));
            } else if path.extension().is_some_and(|e| e == "rs") && stem != "tests" {
                found.push(Source::read(workspace, &src, &path)?);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

impl Source {
    /// Whether the file belongs to the crate in the directory `name`.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        self.path.starts_with(Path::new("crates").join(name))
    }

    fn read(workspace: &Path, src: &Path, path: &Path) -> Result<Source> {
        let named = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(named)?;
        let mut file = syn::parse_file(&text).with_context(named)?;
        file.items.retain(|item| !is_test(item));
        let below = path.strip_prefix(src)?;
        let first = below.iter().next().unwrap_or_default();
        let module = Path::new(first).file_stem().unwrap_or_default().to_string_lossy();
        let module = if matches!(&*module, "lib" | "main") { String::new() } else { module.into() };
        let mut code = BTreeSet::new();
        for span in file.items.iter().map(Spanned::span) {
            code.extend(span.start().line..=span.end().line);
        }
        Ok(Source {
            path: path.strip_prefix(workspace)?.to_owned(),
            module,
            lines: text.lines().map(str::to_owned).collect(),
            file,
            code,
        })
    }

    /// The lines of code: neither blank, nor a comment, nor of a test.
    pub fn code(&self) -> impl Iterator<Item = &str> {
        let code = self.code.iter().filter(|n| self.is_code(**n));
        code.filter_map(|n| self.lines.get(n.wrapping_sub(1)).map(String::as_str))
    }

    /// How many there are.
    #[must_use]
    pub fn code_lines(&self) -> usize {
        self.code().count()
    }

    /// Lines of code within a span.
    #[must_use]
    pub fn code_lines_of(&self, span: Span) -> usize {
        (span.start().line..=span.end().line).filter(|n| self.is_code(*n)).count()
    }

    fn is_code(&self, line: usize) -> bool {
        let text = self.lines.get(line.wrapping_sub(1)).map_or("", |l| l.trim());
        !text.is_empty() && !text.starts_with("//")
    }
}

/// Whether an item is compiled for tests only.
fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        _ => return false,
    };
    attributes.iter().any(|a| {
        a.path().is_ident("cfg")
            && a.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// The last segment of a type's path: its name without module and parameters.
#[must_use]
pub fn name_of(ty: &syn::Type) -> Option<String> {
    match ty {
        syn::Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// Calls a closure with each `impl` of a file that is not for tests.
pub fn each_impl(file: &syn::File, each: impl FnMut(&syn::ItemImpl)) {
    struct Impls<F>(F);
    impl<F: FnMut(&syn::ItemImpl)> Visit<'_> for Impls<F> {
        fn visit_item_impl(&mut self, it: &syn::ItemImpl) {
            (self.0)(it);
            visit::visit_item_impl(self, it);
        }
        fn visit_item_mod(&mut self, it: &syn::ItemMod) {
            if !is_test(&syn::Item::Mod(it.clone())) {
                visit::visit_item_mod(self, it);
            }
        }
    }
    Impls(each).visit_file(file);
}
