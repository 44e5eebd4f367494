//! What a section does its work through.

use crate::base::Base;
use crate::cause::Cause;
use crate::condvar::Parking;
use crate::hardware::{Hardware, Place};
use crate::sync::AtomicU64;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Deref;

/// How a section runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As a transaction: it may be undone and start again at any access.
    Optimistic,
    /// With the lock held: it runs once.
    Exclusive,
    /// With the lock held against writers only ([`crate::CxRwLock::read`]).
    Shared,
}

/// Words and values, in order: of a transaction what is to be written, of an exclusive section what
/// was there before.
type Log<'t> = SmallVec<[(Place<'t>, u64); 8]>;

/// Reading in a section.
pub struct Reader<'t, H: Hardware> {
    hardware: &'t H,
    mode: Mode,
    log: RefCell<Log<'t>>,
}

impl<'t, H: Hardware> Reader<'t, H> {
    pub(crate) fn new(hardware: &'t H, mode: Mode) -> Self {
        Self { hardware, mode, log: RefCell::default() }
    }

    /// How the section runs, this time.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Does what cannot be undone: system calls, output, whatever waits.
    ///
    /// A section that runs as a transaction aborts here and starts again with the lock held, so
    /// `act` runs once.  The call site remembers it for some time, and takes the lock at once then.
    pub fn io<R>(&self, act: impl FnOnce() -> R) -> R {
        if self.mode == Mode::Optimistic {
            self.hardware.abort(Cause::NeedExclusive);
        }
        act()
    }

    #[inline]
    pub(crate) fn load(&self, word: &AtomicU64) -> u64 {
        let place = Place(word);
        let memory = self.hardware.load(place);
        if !H::BUFFERS || self.mode != Mode::Optimistic {
            return memory;
        }
        let log = self.log.borrow();
        log.iter().rev().find(|(of, _)| same(*of, place)).map_or(memory, |(_, value)| *value)
    }

    pub(crate) fn commit(&self) {
        self.hardware.commit(&self.log.borrow());
    }
}

fn same(a: Place<'_>, b: Place<'_>) -> bool {
    std::ptr::eq(a.0, b.0)
}

/// Reading and writing in a section, and entering others.
///
/// `'t` is the section, `'env` is what outlives it.  All that was written is undone if the section
/// panics, and if it starts again.
pub struct Tx<'t, 'env: 't, H: Hardware> {
    reader: Reader<'t, H>,
    own: &'t Base<H>,
    /// Locks of inner sections, held until the outermost section ends.
    held: RefCell<SmallVec<[&'t Base<H>; 2]>>,
    wakes: RefCell<Wakes<'t>>,
    nested: Cell<u32>,
    env: PhantomData<Cell<&'env ()>>,
}

/// Whom to wake once the section has ended.
pub(crate) type Wakes<'t> = SmallVec<[&'t Parking; 2]>;

impl<'t, H: Hardware> Deref for Tx<'t, '_, H> {
    type Target = Reader<'t, H>;

    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl<'t, H: Hardware> Tx<'t, '_, H> {
    pub(crate) fn new(own: &'t Base<H>, mode: Mode) -> Self {
        Self {
            reader: Reader::new(&own.hardware, mode),
            own,
            held: RefCell::default(),
            wakes: RefCell::default(),
            nested: Cell::new(0),
            env: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn store(&self, word: &'t AtomicU64, value: u64) {
        let (place, hardware) = (Place(word), self.reader.hardware);
        if self.mode == Mode::Optimistic {
            hardware.store(place, value);
            if H::BUFFERS {
                self.remember(place, value, true);
            }
            return;
        }
        let before = hardware.load(place);
        self.remember(place, before, false);
        hardware.store(place, value);
    }

    /// Notes a value of a word; the latest one counts, or the first one.
    fn remember(&self, place: Place<'t>, value: u64, latest: bool) {
        let mut log = self.reader.log.borrow_mut();
        // A model's log must stay exact; before-images may be noted more than once, since they go
        // back in reverse order: only the usual case, one word again and again, is kept short.
        let near = if latest { log.len() } else { 8.min(log.len()) };
        let known = log.iter().rev().take(near).position(|(of, _)| same(*of, place));
        match known {
            Some(back) if latest => {
                let at = log.len() - 1 - back;
                log[at].1 = value;
            }
            Some(_) => {}
            None => log.push((place, value)),
        }
    }

    /// Enters the section of another lock as a part of this one.
    pub(crate) fn enter(&self, inner: &'t Base<H>) {
        self.nested.set(self.nested.get() + 1);
        if self.mode == Mode::Optimistic {
            if !inner.is_free() {
                self.reader.hardware.abort(Cause::Locked);
            }
        } else if !std::ptr::eq(inner, self.own)
            && !self.held.borrow().iter().any(|held| std::ptr::eq(*held, inner))
        {
            inner.take();
            self.held.borrow_mut().push(inner);
        }
    }

    pub(crate) fn wake_later(&self, parking: &'t Parking) {
        self.wakes.borrow_mut().push(parking);
    }

    pub(crate) fn nested(&self) -> u32 {
        self.nested.get()
    }

    pub(crate) fn into_wakes(self) -> Wakes<'t> {
        self.wakes.into_inner()
    }

    /// Puts back what an exclusive section has written, the latest first.
    pub(crate) fn undo(&self) {
        let log = std::mem::take(&mut *self.reader.log.borrow_mut());
        for (place, before) in log.iter().rev() {
            self.reader.hardware.store(*place, *before);
        }
    }

    /// Lets the locks of inner sections go, the latest first.
    pub(crate) fn let_go(&self) {
        while let Some(inner) = self.held.borrow_mut().pop() {
            inner.release();
        }
    }
}
