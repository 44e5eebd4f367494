//! In how many places one control call, and one request of the kernel, are written: what has to be
//! touched to add another one.

use crate::source::{Source, each_impl};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// For each entry of the table `calls! { … }`, which is `name(Arguments …) -> …`, the places of the
/// given files that write it: the entry, the methods of its name where a trait of the table is
/// implemented, and paths that name its arguments as those of a call (`call::Arguments`,
/// `Arguments::NAME`), one for each function around them.
#[must_use]
pub fn places<'a>(
    files: impl Iterator<Item = &'a Source> + Clone,
) -> BTreeMap<String, BTreeSet<String>> {
    let (mut found, mut calls) = (BTreeMap::new(), BTreeMap::new());
    for source in files.clone() {
        for item in &source.file.items {
            if let syn::Item::Macro(it) = item
                && it.ident.is_none()
                && it.mac.path.is_ident("calls")
            {
                let place = format!("{}: calls", source.path.display());
                for (name, arguments) in entries(it.mac.tokens.clone()) {
                    found.insert(name.clone(), BTreeSet::from([place.clone()]));
                    calls.insert(arguments, name);
                }
            }
        }
    }
    for source in files {
        let file = source.path.display().to_string();
        let within = Vec::new();
        let mut uses = Uses { file, answers: false, within, calls: &calls, found: &mut found };
        uses.visit_file(&source.file);
    }
    found
}

/// Traits that follow from the table.
const ANSWERING: [&str; 2] = ["Calls", "GuestCalls"];

/// The names of the entries, each with that of its arguments, also of those in groups.
fn entries(tokens: TokenStream) -> Vec<(String, String)> {
    let all: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (n, tree) in all.iter().enumerate() {
        match (tree, all.get(n + 1), all.get(n + 2)) {
            (
                TokenTree::Ident(name),
                Some(TokenTree::Group(arguments)),
                Some(TokenTree::Punct(arrow)),
            ) if arrow.as_char() == '-' => {
                let first = arguments.stream().into_iter().next();
                found.extend(first.map(|first| (name.to_string(), first.to_string())));
            }
            (TokenTree::Group(group), ..) if group.delimiter() == Delimiter::Brace => {
                found.extend(entries(group.stream()));
            }
            _ => {}
        }
    }
    found
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
    file: String,
    /// Here is an implementation of a trait that follows from the table.
    answers: bool,
    /// The functions around what is visited.
    within: Vec<String>,
    /// The names of the calls by those of their arguments.
    calls: &'a BTreeMap<String, String>,
    found: &'a mut BTreeMap<String, BTreeSet<String>>,
}

impl Uses<'_> {
    fn function(&mut self, name: String, body: impl FnOnce(&mut Self)) {
        if self.answers
            && let Some(places) = self.found.get_mut(&name)
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

    fn visit_item_impl(&mut self, it: &syn::ItemImpl) {
        let of = it.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        self.answers = of.is_some_and(|of| ANSWERING.iter().any(|name| of.ident == name));
        visit::visit_item_impl(self, it);
        self.answers = false;
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if let [.., arguments, "NAME"] | [.., "call", arguments] = names[..]
            && let Some(call) = self.calls.get(arguments)
            && let Some(places) = self.found.get_mut(call)
        {
            let within = self.within.last().map_or("", String::as_str);
            places.insert(format!("{}: fn {within}", self.file));
        }
        visit::visit_path(self, path);
    }
}
