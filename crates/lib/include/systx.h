/* systx.h: system transactions for the threads of a program, on directories that `systx mount` guards.
 *
 * Between xbegin() and xend() all that the calling thread does below the guarded directory, by path or by
 * descriptors that it opens meanwhile, is one transaction: atomic, durable, isolated from everybody else, other
 * threads of the program included.  Link with -lsystx.  See docs/LIBRARY.md.
 *
 * Functions return 0, or -1 with errno, unless told otherwise. */
#ifndef SYSTX_H
#define SYSTX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of xbegin(). */
#define SYSTX_READ_ONLY 1u /* nothing will be committed; what is read is of one moment */
#define SYSTX_SNAPSHOT  2u /* snapshot isolation instead of serializable */
#define SYSTX_RETRY     4u /* another attempt of what this thread lost last: it keeps its age */
#define SYSTX_NONBLOCK  8u /* EAGAIN rather than wait for others: for a thread that holds a lock */
#define SYSTX_RELAXED  64u /* xend() does not wait for the disk: durable a moment later, in the order of the commits */

/* Flags of xbegin() with which system calls of the thread are intercepted (decision 0007): about 2.5 microseconds more for
 * each call, from xbegin() to the end.  Processes that it makes are, too, until they execute a program.  ENOSYS: the kernel cannot.  Not for a thread that changes its thread pointer.
 *
 * SYSTX_DESCRIPTORS: descriptors that were opened before, on the guarded directory, are in the transaction: content,
 * offset, O_APPEND, attributes, mappings, names below a directory.  After a commit their offsets are carried over, after
 * an abort they are as they were.  Descriptors that are made inside are closed by an abort: their owners must
 * not close them again; those of the directory that were closed or replaced inside are back then.  ESTALE: the file
 * has no name in the transaction any more.  In child processes they are the view's, too; a program that is executed makes the
 * transaction depend on the files of those that it gets, which are open without close-on-exec. */
#define SYSTX_DESCRIPTORS 0x00010000u

/* Signals that the thread sends to processes outside, or to sibling threads, wait for the commit and are sent in their
 * order then; an abort drops them.  Whether they may be sent is told at once.  The program itself and processes from
 * inside get theirs at once.  EAGAIN: more than 128 wait. */
#define SYSTX_SIGNALS_HELD 0x00020000u

/* Signals that come to the thread wait for the end of the transaction and are delivered in the order of their arrival then;
 * or they are delivered at once, and again after an abort.  What ends the program by default counts as a handler.  Faults,
 * SIGKILL and SIGSTOP are as ever.  A handler that does its work in a transaction which defers signals is atomic, for
 * itself, for other handlers and for other threads. */
#define SYSTX_SIGNALS_DEFERRED    0x00040000u
#define SYSTX_SIGNALS_SPECULATIVE 0x00080000u

/* What is written to pipes and FIFOs waits for the commit, which then waits for who reads; what is read from them is there
 * again after an abort, for whoever reads.  Not those that pipe() made inside.  OUTPUT_HELD: what is written to terminals, and
 * to files elsewhere that are open for appending, waits for the commit.  At most 64 MiB wait (EAGAIN).  Both include
 * SYSTX_DESCRIPTORS. */
#define SYSTX_PIPES_HELD  0x00100000u
#define SYSTX_OUTPUT_HELD 0x00200000u

/* A system call that has an effect outside which can neither wait nor be undone (`systx syscalls` lists them): the
 * transaction is over, the call fails with ECANCELED and so does xend(); or the call fails with EOPNOTSUPP; or it is made
 * and told of on the standard error output.  Without a flag it is made. */
#define SYSTX_UNSUPPORTED_ABORT 0x00400000u
#define SYSTX_UNSUPPORTED_ERROR 0x00800000u
#define SYSTX_UNSUPPORTED_WARN  0x01000000u

/* systx_status.state */
enum systx_state {
    SYSTX_NONE = 0,      /* there was no transaction yet */
    SYSTX_OPEN = 1,
    SYSTX_LOST = 2,      /* it has lost a conflict: it can only be ended */
    SYSTX_COMMITTED = 3,
    SYSTX_ABORTED = 4,
    SYSTX_FAILED = 5     /* it could not be committed for another reason, see words */
};

struct systx_status {
    uint32_t state;
    uint32_t retries;    /* how often it has lost */
    uint64_t id;
    uint64_t opponent;   /* the transaction it lost to; 0: a program outside, or it has not lost */
    char path[1032];     /* what the conflict was about */
    char words[496];     /* the opponent, why it failed, what xend() waits for, or, if it is committed,
                            what others had changed past the guard of what it has changed */
};

/* The guarded directory (or anything below it) for xbegin(), for the whole process; NULL: that of the
 * environment variable SYSTX_DIR, or else the working directory. */
int systx_use(const char *dir);

/* Begins a transaction of this thread.  Inside a transaction it only counts.
 * ENOTTY: not in a guarded directory.  EPERM: no right to change the thread's mount namespace (CAP_SYS_ADMIN, CAP_SYS_CHROOT): start the program by
 * `systx exec`, or have the directory mounted by `systx mount --routed`.
 * EINVAL: unknown flags.  EAGAIN: it would have to wait (SYSTX_NONBLOCK).  EBUSY: one is paused.  EDEADLK, once: attempts lose again and again while the thread sleeps
 * inside for what others have.  EPROTO: a daemon of another version.  EOPNOTSUPP: the process has a
 * root directory of its own, or a pid namespace that the daemon does not see; or the directory is routed, and the flags need intercepted calls. */
int xbegin(unsigned flags);
int systx_begin_at(const char *dir, unsigned flags);

/* In an order: transactions that name the same order commit one after another with rising numbers from 0 on, whenever and
 * by whichever thread or process of the user they are begun, and of two that are in conflict the lower number wins.
 * They run side by side, and xend() waits for the lower numbers.  A number is used up by a commit, also of nothing; after an
 * abort or a lost conflict it is still to come.  Inside a transaction: EINVAL.  EEXIST: the number is used up.  EBUSY: another
 * transaction has it.  EDQUOT: too many orders.  EINVAL: a name of no or more than 64 bytes. */
int xbegin_ordered(unsigned flags, const char *order, uint64_t number);

/* With a scope: the paths that the transaction will touch, at most 256.  The call waits until no other transaction that runs, or that
 * has been in line longer, has one of the same to write it, or has to write one that is read here.  From then on this one
 * loses to no transaction on these paths, however old the others are: they lose there.  For callers that cannot try again.
 * Elsewhere, and to plain programs, it loses as an aged one does: they are held for a while where it has only read.
 * A path is one object: a file and its name; a directory: which names are in it; what is not there: its name.
 * ETIMEDOUT: it was not its turn (systx_patience), EDEADLK: and the thread of who has it sleeps; EBUSY: so with SYSTX_NONBLOCK, at
 * once.  Nothing is open, and systx_status.words name who has it.  EXDEV: a path outside of the directory.  EACCES: not with this
 * user's rights.  EINVAL: no path, with an order or SYSTX_READ_ONLY, or inside a transaction. */
enum systx_access {
    SYSTX_WRITE = 0,     /* written, made or removed, and read */
    SYSTX_READ = 1
};

struct systx_path {
    const char *path;    /* as open() takes it */
    uint32_t access;
    uint32_t reserved;   /* 0 */
};

int xbegin_scoped(unsigned flags, const struct systx_path *scope, uint32_t paths);

struct systx_begin {
    uint32_t flags;
    uint32_t paths;      /* how many scope has; 0: there is none, and the member is not looked at */
    const char *order;   /* NULL: in none */
    uint64_t number;
    const struct systx_path *scope;
};

int systx_begin_with(const char *dir, const struct systx_begin *begin);

/* Which number comes next: all lower ones are committed.  Orders go on where they were after the end of any program, of the daemon, or
 * of the machine. */
int systx_next_order(const char *dir, const char *order, uint64_t *next);

/* From now on `next` is the number that comes next; 0 ends the order, which costs nothing any more.  EBUSY: transactions of that order
 * are open. */
int systx_reset_order(const char *dir, const char *order, uint64_t next);

/* How long xend() waits for who takes part and for lower numbers, and xbegin_scoped() for its turn, in all threads of the process; at
 * first 30000. */
int systx_patience(unsigned milliseconds);

/* Ends the innermost xbegin(); the last one commits: on return, changes are durable and visible.  It waits until threads and
 * processes that were made inside have ended, or have stepped out.
 * ECANCELED: it has lost a conflict, nothing is committed; begin again with SYSTX_RETRY; or, with SYSTX_ABORTED, a process
 * inside was killed.  EBUSY: with SYSTX_NONBLOCK at the begin, others are inside, the transaction stays open.  EINVAL: there is
 * none, or it is paused.  EPERM: it is the parent's.  ETIMEDOUT: who is inside did not end in time, or a lower number of its
 * order was not committed, see systx_status.words; EDEADLK: and its thread sleeps; the transaction stays
 * open.  ENOSPC, EIO and others: nothing is committed. */
int xend(void);

/* Drops the transaction, however deep it is nested.  EINVAL, EPERM as above. */
int xabort(void);

/* Steps out of the transaction, which stays open, and back.  xpause() returns its id, or 0 with errno.  A thread that was made
 * inside another one's transaction does so for itself, and gets out by xpause() also after the end.
 * EINVAL: there is none, or it is (not) paused.  EPERM: it is not this thread's.  Of a thread that was made inside, ECANCELED: it is over;
 * EBUSY: it is being ended. */
uint64_t xpause(void);
int xresume(uint64_t id);

/* The id of this thread's transaction, 0 if there is none. */
uint64_t xid(void);

/* Tells of this thread's transaction, or of its last one.  EINVAL: it has not begun any. */
int xstatus(struct systx_status *status);

#ifdef __cplusplus
}
#endif
#endif
