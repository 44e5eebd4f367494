//! Conditions on a mode outside of the mode's home: a mode is a value chosen once, so the rest of
//! the code should not ask for it.

use crate::source::Source;
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

/// A mode: the names by which code asks for it, and the files that may.
pub struct Mode {
    /// As the documentation calls it.
    pub name: &'static str,
    asked_by: &'static [&'static str],
    home: &'static [&'static str],
}

/// The modes that are known to be asked for.
pub const MODES: &[Mode] = &[
    Mode {
        name: "fast-open",
        asked_by: &["told", "counts_opens", "fast_open"],
        home: &["guard/src/inode_locks/writers"],
    },
    Mode {
        name: "routed",
        asked_by: &["is_shared", "shared", "routed", "names_go"],
        home: &["guard/src/aliases/routes"],
    },
    Mode {
        name: "overlay",
        asked_by: &["overlay", "is_overlay", "on_overlay"],
        home: &["store/src/overlay", "store/src/install/carry"],
    },
    Mode {
        name: "joint",
        asked_by: &["others", "parts", "is_joint"],
        home: &["store/src/joint", "commit/src"],
    },
    Mode {
        name: "append-merge",
        asked_by: &["growing", "grown", "stop_growing", "is_growing"],
        home: &["vfs/src/growing", "vfs/src/reach/appends"],
    },
    Mode {
        name: "who lives in the view",
        asked_by: &["lives_on", "opaque", "at_once", "read_only", "guest"],
        home: &[],
    },
];

/// Where conditions ask for a mode: `file:line`.
#[must_use]
pub fn asked(files: &[Source], mode: &Mode) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in files {
        let path = source.path.display().to_string();
        if mode.home.iter().any(|home| path.contains(home)) {
            continue;
        }
        let mut conditions = Conditions { names: mode.asked_by, inside: 0, lines: BTreeSet::new() };
        conditions.visit_file(&source.file);
        found.extend(conditions.lines.into_iter().map(|line| format!("{path}:{line}")));
    }
    found
}

struct Conditions<'a> {
    names: &'a [&'a str],
    /// How many conditions are around what is visited.
    inside: usize,
    lines: BTreeSet<usize>,
}

impl Conditions<'_> {
    fn within(&mut self, condition: &syn::Expr) {
        self.inside += 1;
        self.visit_expr(condition);
        self.inside -= 1;
    }

    /// Code that a condition contains but that does not decide it.
    fn apart(&mut self, visit: impl FnOnce(&mut Self)) {
        let inside = std::mem::take(&mut self.inside);
        visit(self);
        self.inside = inside;
    }
}

impl Visit<'_> for Conditions<'_> {
    fn visit_expr_if(&mut self, it: &syn::ExprIf) {
        self.within(&it.cond);
        self.apart(|this| {
            this.visit_block(&it.then_branch);
            if let Some((_, other)) = &it.else_branch {
                this.visit_expr(other);
            }
        });
    }

    fn visit_expr_match(&mut self, it: &syn::ExprMatch) {
        self.within(&it.expr);
        for arm in &it.arms {
            if let Some((_, guard)) = &arm.guard {
                self.within(guard);
            }
            self.apart(|this| this.visit_expr(&arm.body));
        }
    }

    fn visit_expr_binary(&mut self, it: &syn::ExprBinary) {
        if matches!(it.op, syn::BinOp::And(_) | syn::BinOp::Or(_)) {
            self.within(&it.left);
            self.within(&it.right);
        } else {
            visit::visit_expr_binary(self, it);
        }
    }

    fn visit_expr_method_call(&mut self, it: &syn::ExprMethodCall) {
        let decides = matches!(it.method.to_string().as_str(), "then" | "then_some");
        if decides {
            self.within(&it.receiver);
            self.apart(|this| it.args.iter().for_each(|a| this.visit_expr(a)));
        } else {
            visit::visit_expr_method_call(self, it);
        }
    }

    fn visit_ident(&mut self, ident: &syn::Ident) {
        if self.inside > 0 && self.names.iter().any(|name| ident == name) {
            self.lines.insert(ident.span().start().line);
        }
    }
}
