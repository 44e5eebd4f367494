//! The gate: the only code whose system calls are not intercepted, and the handler of those that
//! are.
//!
//! System call user dispatch (prctl(2)) makes every call of an armed thread a SIGSYS, but for those
//! made by the code between `systx_gate_begin` and `systx_gate_end`. That code is
//! - one function that makes a call, for the handler's own needs,
//! - the return from the handler,
//! - *stubs*: a call that is made as it stands is not made by the handler, but by a stub on which
//!   the handler lets the program go on: `syscall`, and a jump to where the program was. So it
//!   happens on the program's stack, with its mask, and may be a vfork(2), a sigaltstack(2) or a
//!   sigreturn(2). Each place in the program that makes system calls gets a stub of its own, with a
//!   word that holds the way back; stubs and words lie equally far apart.
//! - stubs for new processes. A process that has this memory while the thread waits for it first
//!   makes itself intercepted; one that shares it with the running thread first puts the view's
//!   descriptors in place.
//!
//! A process that gets a copy of the memory, as by fork(2), is made by the handler: it goes on
//! there, before any handler of the program can run, and makes itself intercepted.
//!
//! The handler runs with all signals blocked and on the alternate stack, if there is one. It
//! allocates nothing, takes no lock and uses no thread-local variable: what it knows of a thread is
//! found by its thread pointer.

#![allow(unsafe_code)]

use super::kernel;
use super::making::{self, Making};
use super::region::{Plan, Region, Trap};
use super::registry;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering};

/// Places in the program that can make calls by stubs.
const STUBS: usize = 4096;
/// Places that make processes, of each of two kinds.
const FORKS: usize = 16;
/// Bytes of a stub.
const STUB: usize = 8;
/// Bytes of a stub for new processes.
const FORK: usize = 32;

global_asm!(
    ".pushsection .bss.systx_slots,\"aw\",@nobits",
    ".p2align 6",
    ".hidden systx_slots",
    ".globl systx_slots",
    "systx_slots:",
    ".zero {stubs} * 8",
    ".hidden systx_fork_slots",
    ".globl systx_fork_slots",
    "systx_fork_slots:",
    ".zero {forks} * 2 * 32",
    ".popsection",
    ".pushsection .text.systx_gate,\"ax\",@progbits",
    ".p2align 12",
    ".hidden systx_gate_begin",
    ".globl systx_gate_begin",
    "systx_gate_begin:",
    // fn(number, six arguments) -> result
    ".hidden systx_raw",
    ".globl systx_raw",
    "systx_raw:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "mov r8, r9",
    "mov r9, [rsp + 8]",
    "syscall",
    "ret",
    // The return from a handler, in the form by which unwinders know it.
    ".p2align 4",
    "nop",
    ".hidden systx_restore",
    ".globl systx_restore",
    "systx_restore:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0",
    "syscall",
    // What a new process does first, with all registers as they were afterwards: `systx_lent` or
    // `systx_alone`.
    ".p2align 4",
    "systx_fork_lent:",
    "push rdi",
    "lea rdi, [rip + {lent}]",
    "jmp 76f",
    "systx_fork_alone:",
    "push rdi",
    "lea rdi, [rip + {alone}]",
    "76:",
    "push rsi",
    "push rdx",
    "push r8",
    "push r9",
    "push r10",
    "push rbp",
    "push rax",
    "mov rbp, rsp",
    "and rsp, -64",
    "sub rsp, 512",
    "fxsave64 [rsp]",
    "cld",
    "call rdi",
    "fxrstor64 [rsp]",
    "mov rsp, rbp",
    "pop rax",
    "pop rbp",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "ret",
    ".p2align 6",
    ".hidden systx_stubs",
    ".globl systx_stubs",
    "systx_stubs:",
    ".rept {stubs}",
    "syscall",
    // FF /4 with a displacement, which is the same for all.
    ".byte 0xff, 0x25",
    ".long systx_slots - systx_stubs - 8",
    ".endr",
    ".hidden systx_forks",
    ".globl systx_forks",
    "systx_forks:",
    ".rept {forks}",
    "77:",
    "syscall",
    "test eax, eax",
    "jnz 78f",
    // Not where the program may keep something below its stack pointer.
    "lea rsp, [rsp - 128]",
    "call systx_fork_lent",
    "lea rsp, [rsp + 128]",
    "78:",
    ".byte 0xff, 0x25",
    ".long systx_fork_slots - systx_forks - (79f - 77b)",
    "79:",
    ".p2align 5, 0xcc",
    ".endr",
    ".rept {forks}",
    "77:",
    "syscall",
    "test eax, eax",
    "jnz 78f",
    // Not where the program may keep something below its stack pointer.
    "lea rsp, [rsp - 128]",
    "call systx_fork_alone",
    "lea rsp, [rsp + 128]",
    "78:",
    ".byte 0xff, 0x25",
    ".long systx_fork_slots - systx_forks - (79f - 77b)",
    "79:",
    ".p2align 5, 0xcc",
    ".endr",
    ".hidden systx_gate_end",
    ".globl systx_gate_end",
    "systx_gate_end:",
    ".popsection",
    stubs = const STUBS,
    forks = const FORKS,
    lent = sym systx_lent,
    alone = sym systx_alone,
);

// SAFETY: these are what the assembly above defines.
unsafe extern "C" {
    static systx_slots: [AtomicU64; STUBS];
    static systx_fork_slots: [[[AtomicU64; 4]; FORKS]; 2];
    static systx_gate_begin: u8;
    static systx_gate_end: u8;
    static systx_stubs: u8;
    static systx_forks: u8;
    fn systx_restore();
    fn systx_raw(number: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64;
}

/// Makes a system call past the interception; the result is as the kernel gives it.
///
/// # Safety
/// That of the call.
pub unsafe fn raw(number: i64, args: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's.
    unsafe { systx_raw(number as u64, a, b, c, d, e, f) }
}

/// By which a thread is known: its thread pointer.
pub fn key() -> u64 {
    let key;
    // SAFETY: the word that `fs` points to holds its own address, by the ABI for thread-local
    // storage.
    unsafe { asm!("mov {}, fs:0", out(reg) key, options(nostack, preserves_flags, readonly)) };
    key
}

/// As the kernel has it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Action {
    /// Address, or SIG_DFL (0), SIG_IGN (1).
    pub handler: u64,
    /// `SA_…`
    pub flags: u64,
    /// Where it returns to.
    pub restorer: u64,
    /// Bit n - 1 for signal n.
    pub mask: u64,
}

/// The bit of SIGSYS in masks.
pub const SIGSYS_BIT: u64 = 1 << (libc::SIGSYS - 1);
const SA_RESTORER: u64 = 0x0400_0000;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// What SIGSYS did in this program before, for those that are not of ours.
static BEFORE: AtomicU64 = AtomicU64::new(0);

/// A handler that returns by the gate.
pub fn returning(handler: u64, flags: u64, mask: u64) -> Action {
    let restorer = systx_restore as *const () as u64;
    Action { handler, flags: flags | SA_RESTORER, restorer, mask }
}

/// Reads and sets what a signal does.
pub fn action(signal: i32, new: Option<&Action>) -> Result<Action, i32> {
    let mut old = Action::default();
    let new = new.map_or(0, |new| std::ptr::from_ref(new) as u64);
    let args = [signal as u64, new, &raw mut old as u64, 8, 0, 0];
    // SAFETY: both addresses are of an `Action`, or null; who sets a handler says that it is one.
    match unsafe { raw(libc::SYS_rt_sigaction, args) } {
        0 => Ok(old),
        e => Err(-e as i32),
    }
}

/// Sets the mask of this thread and returns that from before.
pub fn mask(set: u64) -> u64 {
    let mut old = 0u64;
    let args = [libc::SIG_SETMASK as u64, &raw const set as u64, &raw mut old as u64, 8, 0, 0];
    // SAFETY: both addresses are of words of that length.
    unsafe { raw(libc::SYS_rt_sigprocmask, args) };
    old
}

/// From here on the calls of this thread are intercepted, as long as the selector says so.
pub fn arm(region: &Region) -> Result<(), i32> {
    let now = action(libc::SIGSYS, None)?;
    let ours = on_sigsys as *const () as u64;
    if now.handler != ours {
        // A process with handlers of its own may have lost this one; what was before it is known.
        if !region.is_child() {
            BEFORE.store(now.handler, Ordering::Relaxed);
        }
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        action(libc::SIGSYS, Some(&returning(ours, flags as u64, !0)))?;
    }
    let (begin, end) = (&raw const systx_gate_begin as u64, &raw const systx_gate_end as u64);
    let selector = region.selector() as u64;
    let args = [PR_SET_SYSCALL_USER_DISPATCH, 1, begin, end - begin, selector, 0];
    // SAFETY: the selector is of a region, which is never given back; the range is the gate.
    match unsafe { raw(libc::SYS_prctl, args) } {
        0 => Ok(()),
        e => Err(-e as i32),
    }
}

/// Not any more.
pub fn disarm() {
    // SAFETY: takes no address.
    unsafe { raw(libc::SYS_prctl, [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0]) };
}

/// A call that is intercepted, if any is in this thread; it has no effect.
pub fn probe() {
    // SAFETY: asks for a number.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// The handler of SIGSYS.
extern "C" fn on_sigsys(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives both to a handler with SA_SIGINFO.
    let (code, context) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    if code != 2 {
        return pass_on(signal, info, std::ptr::from_mut(context).cast());
    }
    let site = context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    let g = |context: &libc::ucontext_t, r: i32| context.uc_mcontext.gregs[r as usize] as u64;
    let trap = Trap {
        number: g(context, libc::REG_RAX),
        args: [
            g(context, libc::REG_RDI),
            g(context, libc::REG_RSI),
            g(context, libc::REG_RDX),
            g(context, libc::REG_R10),
            g(context, libc::REG_R8),
            g(context, libc::REG_R9),
        ],
        on_signal_stack: {
            let stack = context.uc_stack;
            let from = (stack.ss_sp as u64, stack.ss_size as u64);
            g(context, libc::REG_RSP).wrapping_sub(from.0) < from.1
        },
        // SAFETY: the kernel's mask of 64 bits stands at the beginning of the C library's.
        mask: unsafe { (&raw const context.uc_sigmask).cast::<u64>().read() },
    };
    // The registers of a call that is over; nothing of this thread's state is held here.
    let plan = || registry::with(key(), |region| region.plan(&trap)).unwrap_or(Plan::Pass);
    let mut plan_now = plan();
    while let Plan::Await(epoll) = plan_now {
        mask(trap.mask & !SIGSYS_BIT);
        let woken = kernel::await_edge(epoll);
        mask(!0);
        plan_now = if woken < 0 { Plan::Answer(woken) } else { plan() };
    }
    let answer = match plan_now {
        Plan::Pass => match stub(site) {
            Some(stub) => return go_on(context, stub),
            // SAFETY: what the program asked for, for want of stubs made here.
            None => unsafe { raw(trap.number as i64, trap.args) },
        },
        Plan::Make(Making::Copied) => copy(context, &trap),
        Plan::Make(making) => match fork_stub(site, making) {
            Some(stub) => return go_on(context, stub),
            None => -i64::from(libc::EAGAIN),
        },
        Plan::Answer(answer) => answer,
        Plan::Mask(new, answer) => {
            // SAFETY: as above.
            unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(new) };
            answer
        }
        // Not left over.
        Plan::Await(_) => -i64::from(libc::EINTR),
        Plan::Call { args, wait, then } => {
            if wait {
                // It may take long: the program's signals come through.
                mask(trap.mask & !SIGSYS_BIT);
            }
            // SAFETY: what the program asked for, on another descriptor or mask.
            let result = unsafe { raw(trap.number as i64, args) };
            if wait {
                mask(!0);
            }
            registry::with(key(), |region| region.after(then, result)).unwrap_or(result)
        }
    };
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = answer;
}

/// Lets the program go on at a stub, which makes the call.
fn go_on(context: &mut libc::ucontext_t, stub: u64) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = stub as i64;
}

/// The stub for a place in the program.
fn stub(site: u64) -> Option<u64> {
    // SAFETY: the table is made of atomics, and only so used.
    let slots = unsafe { &systx_slots };
    let at = find(slots.len(), site, |n| &slots[n])?;
    Some(&raw const systx_stubs as u64 + (at * STUB) as u64)
}

fn fork_stub(site: u64, making: Making) -> Option<u64> {
    let kind = usize::from(making == Making::Alone);
    // SAFETY: as above.
    let slots = unsafe { &systx_fork_slots[kind] };
    let at = find(slots.len(), site, |n| &slots[n][0])?;
    Some(&raw const systx_forks as u64 + ((kind * FORKS + at) * FORK) as u64)
}

/// Makes a process that has a copy of the memory, and so goes on here, too.
fn copy(context: &mut libc::ucontext_t, trap: &Trap) -> i64 {
    let mut room = [0; making::WORDS];
    let (args, stack) = Making::on_this_stack(trap, &mut room);
    // SAFETY: what the program asked for, but for the stack, which the copy gets when this handler
    // returns.
    let result = unsafe { raw(trap.number as i64, args) };
    if result == 0 {
        registry::with(key(), Region::forked);
        intercept();
        if let Some(stack) = stack {
            context.uc_mcontext.gregs[libc::REG_RSP as usize] = stack as i64;
        }
    }
    result
}

/// In a new process.
fn intercept() {
    if registry::look(key(), arm).is_none_or(|armed| armed.is_err()) {
        // It would do outside what is to be inside.
        kernel::say(&kernel::Text::new().and(b"systx: calls cannot be intercepted\n"));
        kernel::end_process(127);
    }
}

/// The slot that holds a place, or gets it now.
fn find<'a>(len: usize, site: u64, slot: impl Fn(usize) -> &'a AtomicU64) -> Option<usize> {
    let first = (site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
    for n in 0..len {
        let at = (first + n) % len;
        match slot(at).compare_exchange(0, site, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(at),
            Err(there) if there == site => return Some(at),
            Err(_) => {}
        }
    }
    None
}

/// What a new process does first that has this memory while the thread waits for it.
extern "C" fn systx_lent() {
    let before = mask(!0);
    registry::with(key(), Region::lend);
    intercept();
    mask(before);
}

/// What one does that shares this memory with the running thread: it reads, and changes nothing but
/// its descriptors.
extern "C" fn systx_alone() {
    let _ = registry::look(key(), |region| region.in_child());
}

/// A SIGSYS of something else, such as a filter of the program's own.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    match BEFORE.load(Ordering::Relaxed) {
        0 | 1 => {
            // As it would have been: the default is the end of the process.
            let _ = action(signal, Some(&Action::default()));
            kernel::signal_me(signal);
        }
        handler => run_handler(handler, signal, info, context),
    }
}

/// Runs a handler of the program.
pub fn run_handler(
    handler: u64,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: the program gave it to sigaction(2) as one; one that wants the number alone does not
    // look at the rest.
    let handler: Handler = unsafe { std::mem::transmute::<u64, Handler>(handler) };
    handler(signal, info, context);
}
