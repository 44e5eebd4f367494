//! Sizes of functions, structs and types.

use crate::source::{Source, each_impl, name_of};
use std::collections::{BTreeMap, BTreeSet};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Something that is larger than agreed on, or the largest of its kind.
pub struct Size {
    /// `crate/file.rs: name`.
    pub what: String,
    /// Lines, or fields.
    pub size: usize,
}

/// Functions with more than so many lines of code, largest first.
#[must_use]
pub fn long_functions(files: &[Source], limit: usize) -> Vec<Size> {
    struct Functions<'a> {
        source: &'a Source,
        limit: usize,
        found: Vec<Size>,
    }
    impl Functions<'_> {
        fn take(&mut self, signature: &syn::Signature, span: proc_macro2::Span) {
            let size = self.source.code_lines_of(span);
            if size > self.limit {
                let what = format!("{}: {}", self.source.path.display(), signature.ident);
                self.found.push(Size { what, size });
            }
        }
    }
    impl Visit<'_> for Functions<'_> {
        fn visit_item_fn(&mut self, it: &syn::ItemFn) {
            self.take(&it.sig, it.sig.span().join(it.block.span()).unwrap_or_else(|| it.span()));
            visit::visit_item_fn(self, it);
        }
        fn visit_impl_item_fn(&mut self, it: &syn::ImplItemFn) {
            self.take(&it.sig, it.sig.span().join(it.block.span()).unwrap_or_else(|| it.span()));
            visit::visit_impl_item_fn(self, it);
        }
    }
    let mut found = Vec::new();
    for source in files {
        let mut functions = Functions { source, limit, found: Vec::new() };
        functions.visit_file(&source.file);
        found.append(&mut functions.found);
    }
    found.sort_by_key(|f| std::cmp::Reverse(f.size));
    found
}

/// Structs with more than so many fields, largest first.
#[must_use]
pub fn wide_structs(files: &[Source], limit: usize) -> Vec<Size> {
    let mut found = Vec::new();
    for source in files {
        for item in &source.file.items {
            let syn::Item::Struct(it) = item else { continue };
            // What the kernel or C lays out is not ours to cut.
            let foreign = it.attrs.iter().any(|a| {
                a.path().is_ident("repr")
                    && a.parse_args::<syn::Path>().is_ok_and(|p| p.is_ident("C"))
            });
            if it.fields.len() > limit && !foreign {
                let what = format!("{}: {}", source.path.display(), it.ident);
                found.push(Size { what, size: it.fields.len() });
            }
        }
    }
    found.sort_by_key(|f| std::cmp::Reverse(f.size));
    found
}

/// The inherent methods of one type.
#[derive(Default)]
pub struct Methods {
    /// How many there are.
    pub methods: usize,
    /// Lines of code of the `impl` blocks.
    pub lines: usize,
    /// The files in which the blocks stand.
    pub files: BTreeSet<String>,
}

/// The types of one crate by name, with their inherent methods.
#[must_use]
pub fn methods(files: &[Source]) -> BTreeMap<String, Methods> {
    let mut found: BTreeMap<String, Methods> = BTreeMap::new();
    for source in files {
        each_impl(&source.file, |it| {
            let Some(name) = name_of(&it.self_ty).filter(|_| it.trait_.is_none()) else { return };
            let methods = found.entry(name).or_default();
            let own = it.items.iter().filter(|i| matches!(i, syn::ImplItem::Fn(_)));
            methods.methods += own.count();
            methods.lines += source.code_lines_of(it.span());
            methods.files.insert(source.path.display().to_string());
        });
    }
    found
}
