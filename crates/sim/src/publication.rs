//! A model of publishing one commit through the kernel's caches, explored state by state:
//! docs/decisions/0003, Choice 5 and 6.
//!
//! The volume has one directory D with two names: *e*, which the commit lets stand for something
//! else, and *f*, a file of which it changes attributes and a page. The commit is one transaction;
//! beside it there are readers, which choose freely what they look at, and at most one plain
//! mutation. From the decision to the release everything about what is marked is held; nothing is
//! invalidated after the decision. The time for which a READ is held before it is any time.
//!
//! | file | holds |
//! |---|---|
//! | `publication.rs` | the cases, the remedies, what is checked |
//! | `publication/state.rs` | the state, and what readers and the mutation do to it (the kernel's side) |
//! | `publication/daemon.rs` | answers to requests, and the steps of the commit |
//! | `publication/explore.rs` | the search |
//!
//! What is modelled of the kernel (fs/fuse of 6.18): a lookup of an uncached name and a listing
//! hold D's `i_rwsem` shared until their reply has *landed*, a revalidation holds nothing
//! (`fuse_dentry_revalidate`), a mutation and INVAL_ENTRY hold it exclusively, and one that waits
//! for it exclusively keeps new readers of the lock out; the attribute version, by which a reply in
//! flight is not cached if INVAL_INODE found the inode meanwhile, or another reply was stored
//! (`fuse_change_attributes`); that attributes are declared valid before they are stored, while
//! stat(2) takes no lock (`fuse_change_attributes_common`); a directory's one dentry, which a
//! second lookup attaches again (`d_splice_alias`); the lock of a page during READ, and during a
//! WRITE of a part of a page that is not up to date (`fuse_fill_write_pages`); stores through a
//! mapping, which send nothing (`fuse_page_mkwrite`); the cached listing, which is filled as the
//! open says, not the reply (`fuse_add_dirent_to_cache`). INC_EPOCH makes all dentries stale, and
//! no revalidation in flight makes one good again. Readers with an open descriptor and readers of a
//! mapping meet the same page, so one kind of read stands for both.
//!
//! Checked in every state: (a) an access that begins after anybody has seen a new value, or the
//! commit has returned, or a mutation that comes after the transaction has, sees no old one, and
//! the installation finds what it relies on; (b) some step is possible until all have ended, and
//! the end can be reached; and at the end: (c) the mutation is neither lost nor ignored by a commit
//! that should have lost to it; (d) no cache holds an old value as valid.

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
    /// A change of something that the transaction has only read; nothing of D or f.
    OnlyRead,
    /// A change of the name in D by which the installation finds f.
    Place,
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
    /// Barrier(D) before INVAL_ENTRY and INVAL_INODE.
    pub barrier: bool,
    /// So in each further round.
    pub barrier_again: bool,
    /// INVAL_ENTRY of a changed name.
    pub names: bool,
    /// INVAL_INODE(f, -1) for the attributes.
    pub attributes: bool,
    /// INVAL_INODE(D, 0) for the listing.
    pub listing: bool,
    /// INVAL_INODE(f, range) for the page.
    pub pages: bool,
    /// The name of a directory that was answered old since its invalidation began is invalidated
    /// again.
    pub names_again: bool,
    /// A listing counts as a look-up of each of its names.
    pub listed_names: bool,
    /// A listing that was answered old since its invalidation began is invalidated again.
    pub listing_again: bool,
    /// So is a page, but for a READ that came before the invalidation began, which waits for it.
    pub pages_again: bool,
    /// Where D is locked for a further round, a name of a directory goes by INC_EPOCH.
    pub epoch: bool,
    /// A READ is not held until the decision, since the invalidation waits for its page.
    pub reads_let_go: bool,
    /// A mutation of D is not held for a transaction that is not decided.
    pub directories_run: bool,
    /// A mutation in the way of a transaction that is not decided makes it lose.
    pub dooms: bool,
    /// A mutation of what a decided one changes waits for its release.
    pub waits: bool,
    /// So does a mutation of what it has only read.  Stricter than the model needs: with all reads
    /// held, who sees such a mutation cannot miss the commit.
    pub only_read: bool,
    /// So does a mutation of the names by which the installation finds things.
    pub places: bool,
    /// Reads about what is marked are held from the decision to the release.
    pub holds: bool,
    /// Answers about marked objects carry timeout 0.
    pub marks: bool,
    /// Who is being answered is waited for when a commit is marked, decided, released.
    pub alone: bool,
    /// What was answered old is invalidated again before the decision, which checks it in the same
    /// step. Without: after the decision.
    pub settled: bool,
    /// After the release attributes are told without validity for a time.
    pub afterwards: bool,
    /// In that time somebody asks for them, and they are stored.  Not a remedy but an assumption:
    /// decision 0003, "Not built".
    pub asked: bool,
}

impl Remedies {
    /// The protocol.
    pub const ALL: Remedies = Remedies {
        barrier: true,
        barrier_again: true,
        names: true,
        attributes: true,
        listing: true,
        pages: true,
        names_again: true,
        listed_names: true,
        listing_again: true,
        pages_again: true,
        epoch: true,
        reads_let_go: true,
        directories_run: true,
        dooms: true,
        waits: true,
        only_read: true,
        places: true,
        holds: true,
        marks: true,
        alone: true,
        settled: true,
        afterwards: true,
        asked: true,
    };

    /// Each remedy that is needed taken away in turn, with its name.
    pub fn each_without() -> Vec<(&'static str, Remedies)> {
        let all = Remedies::ALL;
        vec![
            ("barrier", Remedies { barrier: false, ..all }),
            ("barrier again", Remedies { barrier_again: false, ..all }),
            ("names", Remedies { names: false, ..all }),
            ("attributes", Remedies { attributes: false, ..all }),
            ("listing", Remedies { listing: false, ..all }),
            ("pages", Remedies { pages: false, ..all }),
            ("names again", Remedies { names_again: false, ..all }),
            ("noting listed names", Remedies { listed_names: false, ..all }),
            ("listing again", Remedies { listing_again: false, ..all }),
            ("pages again", Remedies { pages_again: false, ..all }),
            ("epoch", Remedies { epoch: false, ..all }),
            ("letting reads go", Remedies { reads_let_go: false, ..all }),
            ("directories run", Remedies { directories_run: false, ..all }),
            ("dooming", Remedies { dooms: false, ..all }),
            ("waiting", Remedies { waits: false, ..all }),
            ("waiting where it finds things", Remedies { places: false, ..all }),
            ("holding", Remedies { holds: false, ..all }),
            ("marking", Remedies { marks: false, ..all }),
            ("being alone", Remedies { alone: false, ..all }),
            ("settling", Remedies { settled: false, ..all }),
            ("afterwards", Remedies { afterwards: false, ..all }),
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
    let mutations = [
        None,
        Some(Mutation::Directory),
        Some(Mutation::Write),
        Some(Mutation::Mapped),
        Some(Mutation::OnlyRead),
        Some(Mutation::Place),
    ];
    let mut all = Vec::new();
    for [entry, directory, attr, page, list] in changes {
        for mutation in mutations {
            // It has to be in the commit's way.
            let in_the_way = match mutation {
                None | Some(Mutation::OnlyRead) => true,
                Some(Mutation::Place) => attr || page,
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
