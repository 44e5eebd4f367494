//! The memory that the kernel writes requests to, and the submissions that lend it out.
//!
//! Ownership protocol of one [`Slot`]:
//! 1. *ours*: header and payload may be touched through [`Slot::parts`];
//! 2. [`Ring::register`] and [`Ring::commit`] lend it to the kernel: `parts` gives nothing;
//! 3. a completion ([`Ring::next`]) gives it back.
//!
//! The kernel copies a request into a lent slot in the context of the thread that submitted it, at
//! any time at which that thread enters the kernel. So a lent slot must not be unmapped while that
//! thread lives, even after the ring is closed. [`Ring::drop`] therefore closes the ring first, and
//! unmaps lent slots only if the submitting thread is gone; otherwise it leaks them (a ring is
//! dropped by the crew after the join, so this does not happen in practice).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::wire::{RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeader};

/// `user_data` of the poll for the stop descriptor; slots count from 0.
const STOP: u64 = u64::MAX;
const PAGE: usize = 4096;
/// `IORING_ENTER_GETEVENTS`: wait, and run what is to be run in this thread.
const GETEVENTS: u32 = 1 << 0;
/// `IORING_ENTER_NO_IOWAIT` (Linux 6.15). A worker that waits for requests does not wait for a
/// disk; without this the time of an idle CPU on which it fell asleep counts as "waiting for I/O".
const NO_IOWAIT: u32 = 1 << 7;
/// Where in the header page the two `iovec`s of a registration lie.
const IOVECS_AT: usize = 1024;

/// Header and payload buffer of one ring entry.
struct Slot {
    base: NonNull<u8>,
    payload: usize,
    queue: u16,
    lent: bool,
}

// SAFETY: the mapping is owned by the slot alone and tied to no thread.
unsafe impl Send for Slot {}

impl Slot {
    fn map(queue: u16, payload: usize) -> io::Result<Self> {
        let len = PAGE.checked_add(payload).ok_or(io::ErrorKind::InvalidInput)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Slot { base, payload, queue, lent: false })
    }

    /// The `iovec`s that describe this slot, at a stable address inside it.
    fn iovecs(&mut self) -> *const libc::iovec {
        // SAFETY: the mapping has PAGE + payload bytes; IOVECS_AT is aligned, lies behind the
        // RingHeader (288 bytes), and two iovecs fit into the rest of the page.  The slot is ours
        // (`&mut self`, called before it is lent).
        unsafe {
            let at: *mut libc::iovec = self.base.as_ptr().add(IOVECS_AT).cast();
            let head = self.base.as_ptr().cast();
            at.write(libc::iovec { iov_base: head, iov_len: size_of::<RingHeader>() });
            let body = self.base.as_ptr().add(PAGE).cast();
            at.add(1).write(libc::iovec { iov_base: body, iov_len: self.payload });
            at
        }
    }

    fn parts(&mut self) -> Option<(&mut RingHeader, &mut [u8])> {
        if self.lent {
            return None;
        }
        // SAFETY: the mapping is page-aligned, so fit for RingHeader, initialised (anonymous memory
        // is zero, later whatever the kernel wrote; every bit pattern is valid for both types),
        // lives as long as `self`, and is not lent.  The two references do not overlap: the header
        // takes 288 bytes of the first page, the payload begins at the second.
        unsafe {
            let header = &mut *self.base.as_ptr().cast::<RingHeader>();
            let body = self.base.as_ptr().add(PAGE);
            Some((header, std::slice::from_raw_parts_mut(body, self.payload)))
        }
    }

    fn unmap(&mut self) {
        // SAFETY: exactly the mapping made in `map`; the caller is `Ring::drop`, which has made
        // sure that neither the kernel nor anybody else uses it any longer.
        let result = unsafe { munmap(self.base.as_ptr().cast(), PAGE + self.payload) };
        debug_assert_eq!(result, Ok(()));
    }
}

/// What a completion says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The slot is ours again and holds a request (`Ok`), or the kernel gave it back (`Err`).
    Slot(usize, Result<(), i32>),
    /// The crew was dismissed.
    Stop,
}

/// One io_uring instance with its slots.  Used by one thread at a time.
pub(crate) struct Ring {
    // `Option` only so that `drop` can close it first.
    ring: Option<IoUring<squeue::Entry128, cqueue::Entry>>,
    slots: Vec<Slot>,
    device: Device,
    /// The thread that lends slots, see [`Ring::adopt`].
    submitter: Option<rustix::thread::Pid>,
    /// [`NO_IOWAIT`], or 0 if the kernel does not know it.
    no_iowait: u32,
}

impl Ring {
    /// A ring with one slot for each of `queues`.
    pub fn new(device: Device, queues: &[u16], payload: usize) -> io::Result<Self> {
        // One more for the poll on the stop descriptor.
        let entries = u32::try_from(queues.len() + 1).map_err(|_| io::ErrorKind::InvalidInput)?;
        let entries = entries.next_power_of_two();
        // One thread submits and waits, and enters the kernel again soon: the kernel then needs
        // neither locks nor interruptions of that thread. It is not this thread, so the ring starts
        // disabled. Older than FUSE over io_uring: Linux 6.0. Not DEFER_TASKRUN: a request that is
        // on its way to a thread that was killed would stay there until the last thread of the
        // process lets go of the ring, and no abort of the connection (fuse_uring_abort(), Linux 6.18)
        // ends it; with one that waits for it, that is never.
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_r_disabled()
            .setup_submit_all()
            .build(entries)?;
        let slots = queues.iter().map(|q| Slot::map(*q, payload)).collect::<io::Result<_>>()?;
        Ok(Ring { ring: Some(ring), slots, device, submitter: None, no_iowait: NO_IOWAIT })
    }

    /// Makes the calling thread the one that uses the ring from here on.
    pub fn adopt(&mut self) -> io::Result<()> {
        self.submitter = Some(rustix::thread::gettid());
        let ring = self.ring.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        ring.submitter().register_enable_rings()
    }

    /// The queue that a slot belongs to.
    pub fn queue(&self, slot: usize) -> Option<u16> {
        self.slots.get(slot).map(|s| s.queue)
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Header and payload of a slot that is ours.
    pub fn parts(&mut self, slot: usize) -> Option<(&mut RingHeader, &mut [u8])> {
        self.slots.get_mut(slot)?.parts()
    }

    /// Offers a slot to the kernel for the first time.
    pub fn register(&mut self, slot: usize) -> io::Result<()> {
        let Some(s) = self.slots.get_mut(slot).filter(|s| !s.lent) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let iovecs = s.iovecs();
        let command = RingCommand { qid: s.queue, ..RingCommand::default() };
        self.lend(slot, RING_REGISTER, command, iovecs as u64)
    }

    /// Commits the answer in a slot and offers the slot for the next request.
    pub fn commit(&mut self, slot: usize, commit_id: u64) -> io::Result<()> {
        let Some(s) = self.slots.get(slot).filter(|s| !s.lent) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let command = RingCommand { qid: s.queue, commit_id, ..RingCommand::default() };
        self.lend(slot, RING_COMMIT_AND_FETCH, command, 0)
    }

    fn lend(&mut self, slot: usize, op: u32, command: RingCommand, addr: u64) -> io::Result<()> {
        let mut area = [0u8; 80];
        area[..size_of::<RingCommand>()].copy_from_slice(command.as_bytes());
        let fd = types::Fd(self.device.as_raw());
        let mut entry = opcode::UringCmd80::new(fd, op).cmd(area).addr(Some(addr)).build();
        entry = entry.user_data(slot as u64);
        if op == RING_REGISTER {
            set_len(&mut entry, 2);
        }
        self.push(&entry)?;
        self.slots[slot].lent = true;
        Ok(())
    }

    /// Has [`Event::Stop`] reported once `stop` becomes readable.
    pub fn watch(&mut self, stop: std::os::fd::BorrowedFd<'_>) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(stop.as_raw_fd()), libc::POLLIN as u32).build();
        self.push(&squeue::Entry128::from(poll).user_data(STOP))
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        let ring = self.ring.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        // SAFETY: the entry refers to a descriptor (kept open by `self.device`, or the crew's) and
        // to memory of a slot, which stays mapped until the kernel has given it back (see above).
        unsafe { ring.submission().push(entry) }
            .map_err(|_| io::Error::other("submission queue full"))
    }

    /// Submits, and waits until there are `want` completions.
    pub fn submit(&mut self, want: u32) -> io::Result<()> {
        let ring = self.ring.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        // At most the few entries of this ring.
        let lent = ring.submission().len() as u32;
        let enter = |flags| {
            // SAFETY: no argument, so the kernel reads nothing beyond the ring's own entries, whose
            // memory is described above.
            unsafe { ring.submitter().enter::<libc::sigset_t>(lent, want, flags, None) }
        };
        let result = match enter(GETEVENTS | self.no_iowait) {
            // It looks at the flags before it takes anything: an older kernel.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.no_iowait != 0 => {
                self.no_iowait = 0;
                enter(GETEVENTS)
            }
            result => result,
        };
        match result {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The next completion, if there is one.
    pub fn next(&mut self) -> Option<Event> {
        let completion = self.ring.as_mut()?.completion().next()?;
        if completion.user_data() == STOP {
            return Some(Event::Stop);
        }
        let slot = completion.user_data() as usize;
        self.slots.get_mut(slot)?.lent = false;
        let result = completion.result();
        Some(Event::Slot(slot, if result < 0 { Err(-result) } else { Ok(()) }))
    }

    fn submitter_lives(&self) -> bool {
        let Some(tid) = self.submitter else { return false };
        // A reused number looks alive: that only leaks.
        std::path::Path::new(&format!("/proc/self/task/{tid}")).exists()
            || !std::path::Path::new("/proc/self/task").exists()
    }
}

/// `sqe->len`, which the crate's builder for this opcode does not offer.
fn set_len(entry: &mut squeue::Entry128, len: u32) {
    const AT: usize = 24;
    // SAFETY: an Entry128 is the kernel's 128-byte `io_uring_sqe` (repr(C), size checked below),
    // whose u32 at offset 24 is `len`; any value of it is valid.
    unsafe {
        let bytes: *mut u8 = std::ptr::from_mut(entry).cast();
        bytes.add(AT).cast::<u32>().write_unaligned(len);
    }
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
const _: () = assert!(size_of::<RingHeader>() == 288 && size_of::<RingHeader>() <= IOVECS_AT);

impl Drop for Ring {
    fn drop(&mut self) {
        drop(self.ring.take());
        let keep_lent = self.submitter_lives();
        for slot in &mut self.slots {
            if !(slot.lent && keep_lent) {
                slot.unmap();
            }
        }
    }
}
