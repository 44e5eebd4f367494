//! A model of publishing one commit through the kernel's caches, explored state by state:
//! docs/decisions/0003, Choice 5 and 6.
//!
//! The volume has one directory D with two names: *e*, which the commit lets stand for something
//! else, and *f*, a file of which it changes attributes and a page.  The commit is one transaction;
//! beside it there are readers, which choose freely what they look at, and at most one plain mutation.
//!
//! | file | holds |
//! |---|---|
//! | `publication.rs` | the cases, the remedies, what is checked |
//! | `publication/state.rs` | the state, and what readers and the mutation do to it (the kernel's side) |
//! | `publication/daemon.rs` | answers to requests, and the steps of the commit |
//! | `publication/explore.rs` | the search |
//!
//! What is modelled of the kernel (fs/fuse of 6.18): a lookup of an uncached name and a listing hold D's
//! `i_rwsem` shared until their reply has *landed*, a revalidation holds nothing
//! (`fuse_dentry_revalidate`), a mutation and INVAL_ENTRY hold it exclusively, and one that waits for
//! it exclusively keeps new readers of the lock out; the attribute version, by which a reply in flight
//! is not cached if INVAL_INODE found the inode meanwhile (`fuse_change_attributes`); a directory's
//! one dentry, which a second lookup attaches again (`d_splice_alias`); the lock of a page
//! during READ, and during a WRITE of a part of a page that is not up to date
//! (`fuse_fill_write_pages`); stores through a mapping, which send nothing (`fuse_page_mkwrite`); the
//! cached listing, which is filled as the open says, not the reply (`fuse_add_dirent_to_cache`).
//! Readers with an open descriptor and readers of a mapping meet the same page, so one kind of read
//! stands for both.
//!
//! Checked in every state: (a) an access that begins after anybody has seen a new value sees no old
//! one; (b) some step is possible until all have ended, and the end can be reached; and at the end: (c) the mutation is neither lost
//! nor ignored by a commit that should have lost to it; (d) no cache holds an old value as valid.

mod daemon;
mod explore;
mod state;

pub use explore::{Explored, Found, explore};

/// What a plain program does besides the commit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutation {
    /// A change of names in D that conflicts with the commit, as mkdir.
    Directory,
    /// A write(2) of a part of f's page.
    Write,
    /// A store to f's page through a shared mapping.
    Mapped,
}

/// What view 0 has cached to begin with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cache {
    /// Nothing.
    Cold,
    /// Everything.
    Warm,
    /// Everything, but the timeouts of names and attributes have passed.
    Expired,
}

/// A bounded case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The commit changes what *e* stands for, from one file to another.
    pub entry: bool,
    /// *e* stands for a directory.  Counts only with `entry`.
    pub directory: bool,
    /// The commit changes f's attributes.
    pub attr: bool,
    /// The commit changes f's page.
    pub page: bool,
    /// The commit changes the listing of D.
    pub list: bool,
    /// The plain mutation.
    pub mutation: Option<Mutation>,
    /// Number of readers.
    pub readers: usize,
    /// Accesses by each reader.
    pub accesses: u8,
    /// To begin with.
    pub cache: Cache,
    /// INVAL_ENTRY of a name that is not cached returns without taking D's lock (about 6.19).
    pub later_kernel: bool,
}

impl Case {
    /// Somebody outside has f open for writing.
    fn writable(&self) -> bool {
        matches!(self.mutation, Some(Mutation::Write | Mutation::Mapped))
    }

    /// A line for messages.
    pub fn describe(&self) -> String {
        let names = [
            (self.entry && !self.directory, "entry of a file"),
            (self.entry && self.directory, "entry of a directory"),
            (self.attr, "attributes"),
            (self.page, "page"),
            (self.list, "listing"),
        ];
        let changed: Vec<&str> = names.iter().filter(|(on, _)| *on).map(|(_, n)| *n).collect();
        format!(
            "{}; {}; {} readers of {} accesses; {:?} cache; {} kernel",
            changed.join(", "),
            self.mutation.map_or("no mutation".into(), |m| format!("{m:?} mutation")),
            self.readers,
            self.accesses,
            self.cache,
            if self.later_kernel { "later" } else { "this" }
        )
    }
}

/// What closes the windows; each can be taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remedies {
    /// A page that was answered old since its invalidation began is invalidated again in the fence.
    pub pages_again: bool,
    /// Barrier(D) before INVAL_ENTRY and INVAL_INODE.
    pub barrier: bool,
    /// The name of a directory that was answered old since its invalidation began is invalidated
    /// again.
    pub names_again: bool,
    /// INVAL_INODE(D, 0) for the listing.
    pub listing: bool,
    /// A listing that was answered old to a descriptor that may fill the cache is invalidated again,
    /// after another Barrier.
    pub listing_again: bool,
    /// A mutation of D is not held for a transaction that is not decided.
    pub directories_run: bool,
    /// A held READ that an invalidation is stuck behind is answered old, and its page queued again.
    pub spare_way: bool,
    /// Mapped pages are flushed at the first transactional access and at validation.
    pub flush: bool,
    /// A mutation in the way of a transaction that is not decided makes it lose.
    pub dooms: bool,
    /// A mutation in the way of a decided one waits for its release.
    pub waits: bool,
    /// Requests on marked objects are held while the installation goes through them one by one.
    pub holds: bool,
    /// Answers about marked objects carry timeout 0.
    pub marks: bool,
    /// What a held mutation can lock out (names and listing of D, pages of files that somebody has
    /// open for writing) is invalidated to the end before the decision, which checks it in one step,
    /// and lookups, listings and reads of it are held from then on.  Without: in the fence.
    pub settled: bool,
}

impl Remedies {
    /// The protocol.
    pub const ALL: Remedies = Remedies {
        pages_again: true,
        barrier: true,
        names_again: true,
        listing: true,
        listing_again: true,
        directories_run: true,
        spare_way: true,
        flush: true,
        dooms: true,
        waits: true,
        holds: true,
        marks: true,
        settled: true,
    };

    /// Each remedy taken away in turn, with its name.
    pub fn each_without() -> Vec<(&'static str, Remedies)> {
        let all = Remedies::ALL;
        vec![
            ("pages again", Remedies { pages_again: false, ..all }),
            ("barrier", Remedies { barrier: false, ..all }),
            ("names again", Remedies { names_again: false, ..all }),
            ("listing", Remedies { listing: false, ..all }),
            ("listing again", Remedies { listing_again: false, ..all }),
            ("directories run", Remedies { directories_run: false, ..all }),
            ("spare way", Remedies { spare_way: false, ..all }),
            ("flush", Remedies { flush: false, ..all }),
            ("dooming", Remedies { dooms: false, ..all }),
            ("waiting", Remedies { waits: false, ..all }),
            ("holding", Remedies { holds: false, ..all }),
            ("marking", Remedies { marks: false, ..all }),
            ("settled", Remedies { settled: false, ..all }),
        ]
    }
}

/// All cases that change two things and have a mutation or none, for so many readers and accesses.
pub fn cases(readers: usize, accesses: u8) -> Vec<Case> {
    let changes = [
        // entry, directory, attr, page, list
        [true, false, true, false, false],
        [true, true, true, false, false],
        [true, true, false, true, false],
        [true, true, false, false, true],
        [false, false, true, true, false],
        [false, false, true, false, true],
        [false, false, false, true, true],
    ];
    let mutations =
        [None, Some(Mutation::Directory), Some(Mutation::Write), Some(Mutation::Mapped)];
    let mut all = Vec::new();
    for [entry, directory, attr, page, list] in changes {
        for mutation in mutations {
            // It has to be in the commit's way.
            let in_the_way = match mutation {
                None => true,
                Some(Mutation::Directory) => entry || list,
                Some(Mutation::Write | Mutation::Mapped) => page,
            };
            let caches = [Cache::Cold, Cache::Warm, Cache::Expired];
            for (cache, later_kernel) in caches.into_iter().flat_map(|c| [(c, false), (c, true)]) {
                // Only INVAL_ENTRY differs between the kernels.
                if in_the_way && (entry || !later_kernel) {
                    all.push(Case {
                        entry,
                        directory,
                        attr,
                        page,
                        list,
                        mutation,
                        readers,
                        accesses,
                        cache,
                        later_kernel,
                    });
                }
            }
        }
    }
    all
}
