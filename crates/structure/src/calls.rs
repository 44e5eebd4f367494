//! In how many places one control call, and one request of the kernel, are written: what has to be
//! touched to add another one.

use crate::source::{Source, each_impl};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// For each variant of the enum `name`, the places of the given files that write it: its
/// definition, functions of its name (`BeginOpen`: `begin_open`), and arms and expressions that
/// name the variant, one for each function around them.
#[must_use]
pub fn places<'a>(
    files: impl Iterator<Item = &'a Source> + Clone,
    name: &str,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut variants = BTreeMap::new();
    for source in files.clone() {
        for item in &source.file.items {
            if let syn::Item::Enum(it) = item
                && it.ident == name
            {
                for variant in &it.variants {
                    let place = format!("{}: enum {name}", source.path.display());
                    variants.insert(variant.ident.to_string(), BTreeSet::from([place]));
                }
            }
        }
    }
    let snakes: BTreeMap<String, String> = variants.keys().map(|v| (snake(v), v.clone())).collect();
    for source in files {
        let file = source.path.display().to_string();
        let mut uses =
            Uses { name, file, within: Vec::new(), snakes: &snakes, found: &mut variants };
        uses.visit_file(&source.file);
    }
    variants
}

/// For each trait of the given name: the files with an implementation of it.
#[must_use]
pub fn implementations(files: &[Source], name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for source in files {
        each_impl(&source.file, |it| {
            let of = it.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
            if of.is_some_and(|s| s.ident == name) {
                found.push(source.path.display().to_string());
            }
        });
    }
    found
}

struct Uses<'a> {
    name: &'a str,
    file: String,
    /// The functions around what is visited.
    within: Vec<String>,
    snakes: &'a BTreeMap<String, String>,
    found: &'a mut BTreeMap<String, BTreeSet<String>>,
}

impl Uses<'_> {
    fn function(&mut self, name: String, body: impl FnOnce(&mut Self)) {
        if let Some(variant) = self.snakes.get(&name)
            && let Some(places) = self.found.get_mut(variant)
        {
            places.insert(format!("{}: fn {name}", self.file));
        }
        self.within.push(name);
        body(self);
        self.within.pop();
    }
}

impl Visit<'_> for Uses<'_> {
    fn visit_item_fn(&mut self, it: &syn::ItemFn) {
        self.function(it.sig.ident.to_string(), |this| visit::visit_item_fn(this, it));
    }

    fn visit_impl_item_fn(&mut self, it: &syn::ImplItemFn) {
        self.function(it.sig.ident.to_string(), |this| visit::visit_impl_item_fn(this, it));
    }

    fn visit_trait_item_fn(&mut self, it: &syn::TraitItemFn) {
        self.function(it.sig.ident.to_string(), |this| visit::visit_trait_item_fn(this, it));
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let mut segments = path.segments.iter().rev();
        if let (Some(variant), Some(of)) = (segments.next(), segments.next())
            && of.ident == self.name
            && let Some(places) = self.found.get_mut(&variant.ident.to_string())
        {
            let within = self.within.last().map_or("", String::as_str);
            places.insert(format!("{}: fn {within}", self.file));
        }
        visit::visit_path(self, path);
    }
}

/// `BeginOpen` as a function is called: `begin_open`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}
