/* Preloaded into the stock Dovecot 2.3: its locks of a guarded mail tree are system transactions.
 *
 * The first lock (the lock file of dovecot-uidlist, the locks of index files) begins one.  When all
 * are given back it can be committed, and it is before anybody can know of it: before the process
 * writes to what is no file, waits, forks or ends.  Its scope is a name that all processes of one
 * mail user share, so a begin waits for the end of the others', as the lock would, and none loses
 * to another.  Descriptors from before take part.
 *
 *   import_environment = $import_environment LD_PRELOAD=.../libsystx_dovecot.so SYSTX_MAIL=DIR
 *
 * With SYSTX_RELAXED=1, too, a commit waits for the disk only if Dovecot has synced something
 * inside.
 *
 * What is not below SYSTX_MAIL, and locks of other files, are as ever.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <systx.h>

struct master_service;
struct dotlock;
struct dotlock_settings;
struct file_lock;
struct file_lock_settings;
struct file_create_settings;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) {
        fprintf(stderr, "systx: there is no %s: %s\n", name, dlerror());
        abort();
    }
    return found;
}

/* ---- the transaction ---- */

static unsigned locks;    /* how many are held */
static int is_open;
static int wants_disk;    /* something inside was to be made durable */

static int is_cur_changed; /* see stat() */

static void learn_numbers(void);
static void forget_moves(void);

static const char *tree(void) {
    const char *at = getenv("SYSTX_MAIL");
    return at != NULL && at[0] == '/' ? at : NULL;
}

static int below(const char *path, const char *dir) {
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/';
}

/* From the last slash on.  Dovecot asks for the path of an index in memory, too: there is none. */
static const char *last(const char *path) {
    /* Headers promise of stat() that there is one, so compilers leave the question out. */
    __asm__("" : "+r"(path));
    return path != NULL ? strrchr(path, '/') : NULL;
}

/* The session ends without an answer: what it has in memory is not on the disk. */
static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *how, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, how);
    vsnprintf(text, sizeof text, how, arguments);
    va_end(arguments);
    void (*fatal)(const char *, ...) = (void (*)(const char *, ...))dlsym(RTLD_DEFAULT, "i_fatal");
    if (fatal != NULL)
        fatal("%s", text);
    fprintf(stderr, "%s\n", text);
    _exit(75);
}

static const char *reason(int error) {
    static char text[1600];
    struct systx_status status;
    if (error == ENOTCONN || error == ECONNABORTED || xstatus(&status) != 0)
        status = (struct systx_status){.state = SYSTX_NONE};
    snprintf(text, sizeof text, "%s%s%s%s%s", strerror(error), status.path[0] ? ": " : "",
             status.path, status.words[0] ? ": " : "", status.words);
    return text;
}

/* A name that nothing has, the same for all mailboxes of a user: they may be changed together. */
static void turn(const char *path, char *to, size_t room) {
    const char *home = getenv("HOME");
    if (home != NULL && below(path, home)) {
        snprintf(to, room, "%s/.systx-turn", home);
        return;
    }
    snprintf(to, room - sizeof "/.systx-turn", "%s", path);
    *strrchr(to, '/') = 0;
    char *folder = strrchr(to, '/'); /* Maildir++: folders are beside each other */
    if (folder != NULL && folder[1] == '.' && below(to, tree()))
        *folder = 0;
    strcat(to, "/.systx-turn");
}

/* -1 with errno: nothing is open. */
static int begin(const char *path) {
    if (is_open)
        return 0;
    char name[PATH_MAX + 32];
    turn(path, name, sizeof name);
    struct systx_path scope = {.path = name, .access = SYSTX_WRITE};
    struct systx_begin how = {.flags = SYSTX_DESCRIPTORS, .paths = 1, .scope = &scope};
    if (getenv("SYSTX_RELAXED") != NULL)
        how.flags |= SYSTX_RELAXED;
    if (systx_begin_with(tree(), &how) != 0)
        return -1;
    is_open = 1;
    wants_disk = is_cur_changed = 0;
    forget_moves();
    return 0;
}

static void commit(void) {
    if (locks > 0 || !is_open)
        return;
    int before = errno;
    is_open = 0;
    if (xend() != 0 && errno != ESTALE) {
        int error = errno;
        const char *why = reason(error);
        die("systx: not committed: %s", why);
    }
    learn_numbers();
    if (wants_disk && getenv("SYSTX_RELAXED") != NULL) {
        /* Of anything on the guarded directory: all that is committed. */
        int fd = open(tree(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || REAL(fsync)(fd) != 0)
            die("systx: not durable: %s", strerror(errno));
        close(fd);
    }
    errno = before;
}

static void complain(const char *path, int error) {
    if (error == ENOTCONN || error == ECONNABORTED)
        die("systx: the daemon has ended, and with it this session");
    void (*say)(const char *, ...) = (void (*)(const char *, ...))dlsym(RTLD_DEFAULT, "i_error");
    const char *at = tree(), *why = error == ENOTTY || error == EPERM ? "" : reason(error);
    if (say == NULL)
        return;
    if (error == ENOTTY)
        say("systx: %s is not guarded: systx mount %s", at, at);
    else if (error == EPERM)
        say("systx: this process may not begin transactions: it is to be started by root, or by "
            "systx exec");
    else
        say("systx: no transaction for %s: %s", path, why);
}

/* -1 with errno: it is not held; the log says why. */
static int take(const char *path) {
    if (begin(path) != 0) {
        int error = errno;
        complain(path, error);
        errno = error;
        return -1;
    }
    locks++;
    return 0;
}

static void give(void) { locks--; }

/* ---- which locks are ours ---- */

static int is_ours(const char *path) {
    const char *dir = tree();
    if (dir == NULL || path == NULL || !below(path, dir))
        return 0;
    const char *name = strrchr(path, '/') + 1;
    return strcmp(name, "dovecot-uidlist") == 0 || strncmp(name, "dovecot.index", 13) == 0 ||
           strncmp(name, "dovecot.list.index", 18) == 0;
}

/* Handles that we have given out; what is none of them is Dovecot's own. */
static struct handle {
    enum { UNUSED, HELD, ENDED } state;
    int fd; /* its close ends the lock; -1: of no file */
    char path[PATH_MAX];
} handles[32];

static struct handle *handle_of(const void *lock) {
    const struct handle *h = lock;
    return h >= handles && h < handles + sizeof handles / sizeof *handles ? (struct handle *)h
                                                                        : NULL;
}

static struct handle *held(const char *path, int fd) {
    for (size_t n = 0; n < sizeof handles / sizeof *handles; n++)
        if (handles[n].state == UNUSED) {
            handles[n].state = HELD;
            handles[n].fd = fd;
            snprintf(handles[n].path, sizeof handles[n].path, "%s", path);
            return &handles[n];
        }
    die("systx: more than %zu locks are held", sizeof handles / sizeof *handles);
}

static void let_go(struct handle *h) {
    int counts = h->state == HELD;
    h->state = UNUSED;
    if (counts)
        give();
}

/* As the kernel has it, the lock of a file ends when that is closed.  After a write that failed
 * Dovecot closes its log, goes on with one in memory, and never gives the lock back.  Counted as
 * held for ever it would keep the commit back, and the client would be told OK without one. */
int close(int fd) {
    int done = REAL(close)(fd), error = errno;
    for (size_t n = 0; n < sizeof handles / sizeof *handles; n++)
        if (handles[n].state == HELD && handles[n].fd == fd) {
            handles[n].state = ENDED; /* not yet another's: Dovecot may have the handle still */
            give();
        }
    errno = error;
    return done;
}

/* ---- which file is which ---- */

/* A file that a transaction makes has its own number only after the commit.  Dovecot remembers
 * numbers of logs, so the logs that this process has made keep one that nothing else has. */
static struct made {
    dev_t dev;
    ino_t now, shown;
    int fd; /* a copy, until the commit; else -1 */
} made[64];
static size_t made_next;

static void note_made(int fd) {
    static ino_t last = (ino_t)1 << 62;
    struct stat there;
    if (REAL(fstat)(fd, &there) != 0)
        return;
    struct made *m = &made[made_next++ % (sizeof made / sizeof *made)];
    *m = (struct made){there.st_dev, there.st_ino, ++last, fcntl(fd, F_DUPFD_CLOEXEC, 3)};
}

static void learn_numbers(void) {
    for (size_t n = 0; n < sizeof made / sizeof *made; n++) {
        struct stat there;
        if (made[n].shown == 0 || made[n].fd < 0)
            continue;
        if (REAL(fstat)(made[n].fd, &there) == 0)
            made[n].now = there.st_ino;
        else
            made[n].shown = 0;
        close(made[n].fd);
        made[n].fd = -1;
    }
}

static int shown(int done, struct stat *to) {
    /* Descriptors of a daemon that has ended stay dead.  Dovecot would go on with what it
     * remembers, and tell that to its client. */
    if (done != 0 && errno == ENOTCONN && tree() != NULL)
        die("systx: the daemon has ended, and with it this session");
    for (size_t n = 0; done == 0 && n < sizeof made / sizeof *made; n++)
        if (made[n].shown != 0 && made[n].now == to->st_ino && made[n].dev == to->st_dev)
            to->st_ino = made[n].shown;
    return done;
}

/* After it has renamed in cur/, Dovecot remembers the directory's time, to see changes by others.
 * Times that nobody has set are those of the commit, so it would see one each time and list all of
 * cur/ again: the time is set. */
static int is_in(const char *dir, const char *path) {
    const char *name = last(path);
    return is_open && name != NULL && name - path >= 4 && strncmp(name - 4, dir, 4) == 0;
}

/* What this transaction has moved into new/ and out of it, see opendir(). */
static struct move {
    char *path;
    int is_there;
} *moves;
static size_t moves_count, moves_room;

static void forget_moves(void) {
    while (moves_count > 0)
        free(moves[--moves_count].path);
}

static void note_move(const char *path, int is_there) {
    if (!is_in("/new", path))
        return;
    if (moves_count == moves_room) {
        moves_room = moves_room * 2 + 16;
        moves = realloc(moves, moves_room * sizeof *moves);
    }
    char *kept = moves == NULL ? NULL : strdup(path);
    if (kept == NULL)
        die("systx: no memory for the name %s", path);
    moves[moves_count++] = (struct move){kept, is_there};
}

int rename(const char *from, const char *to) {
    is_cur_changed |= is_in("/cur", from) || is_in("/cur", to);
    int done = REAL(rename)(from, to), error = errno;
    if (done == 0) {
        note_move(from, 0);
        note_move(to, 1);
    }
    errno = error;
    return done;
}

int unlink(const char *path) {
    is_cur_changed |= is_in("/cur", path);
    int done = REAL(unlink)(path), error = errno;
    if (done == 0)
        note_move(path, 0);
    errno = error;
    return done;
}

int stat(const char *path, struct stat *to) {
    const char *name = last(path);
    if (is_open && is_cur_changed && name != NULL && strcmp(name, "/cur") == 0) {
        static const struct timespec now[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
        is_cur_changed = 0;
        utimensat(AT_FDCWD, path, now, 0); /* else it lists once more */
    }
    return shown(REAL(stat)(path, to), to);
}

int lstat(const char *path, struct stat *to) { return shown(REAL(lstat)(path, to), to); }
int stat64(const char *path, struct stat64 *to) __attribute__((alias("stat")));
int lstat64(const char *path, struct stat64 *to) __attribute__((alias("lstat")));

/* ---- lock files ---- */

int file_dotlock_create(const struct dotlock_settings *set, const char *path, unsigned flags,
                        struct dotlock **dotlock_r) {
    if (!is_ours(path))
        return REAL(file_dotlock_create)(set, path, flags, dotlock_r);
    if (take(path) != 0)
        return errno == ETIMEDOUT || errno == EDEADLK ? (errno = EAGAIN, 0) : -1;
    char dir[PATH_MAX];
    struct stat there;
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    if (stat(dir, &there) != 0) {
        give();
        return -1;
    }
    *dotlock_r = (struct dotlock *)held(path, -1);
    return 1;
}

/* A lock file that becomes the file: made as ever, in a transaction. */
static struct dotlock *replacing[8];

static int was_replacing(const struct dotlock *lock) {
    for (size_t n = 0; lock != NULL && n < sizeof replacing / sizeof *replacing; n++)
        if (replacing[n] == lock) {
            replacing[n] = NULL;
            return 1;
        }
    return 0;
}

int file_dotlock_open(const struct dotlock_settings *set, const char *path, unsigned flags,
                      struct dotlock **dotlock_r) {
    if (!is_ours(path))
        return REAL(file_dotlock_open)(set, path, flags, dotlock_r);
    if (take(path) != 0)
        return -1;
    int fd = REAL(file_dotlock_open)(set, path, flags, dotlock_r);
    if (fd < 0) {
        give();
        return -1;
    }
    note_made(fd);
    for (size_t n = 0; n < sizeof replacing / sizeof *replacing; n++)
        if (replacing[n] == NULL) {
            replacing[n] = *dotlock_r;
            return fd;
        }
    die("systx: too many files are replaced at once");
}

int file_dotlock_replace(struct dotlock **dotlock, unsigned flags) {
    int ours = was_replacing(*dotlock);
    int done = REAL(file_dotlock_replace)(dotlock, flags);
    if (ours)
        give();
    return done;
}

int file_dotlock_delete(struct dotlock **dotlock) {
    struct handle *h = handle_of(*dotlock);
    if (h != NULL) {
        *dotlock = NULL;
        let_go(h);
        return 1;
    }
    int ours = was_replacing(*dotlock);
    int done = REAL(file_dotlock_delete)(dotlock);
    if (ours)
        give();
    return done;
}

int file_dotlock_touch(struct dotlock *dotlock) {
    return handle_of(dotlock) != NULL ? 0 : REAL(file_dotlock_touch)(dotlock);
}

_Bool file_dotlock_is_locked(struct dotlock *dotlock) {
    return handle_of(dotlock) != NULL ? 1 : REAL(file_dotlock_is_locked)(dotlock);
}

const char *file_dotlock_get_lock_path(struct dotlock *dotlock) {
    struct handle *h = handle_of(dotlock);
    return h != NULL ? h->path : REAL(file_dotlock_get_lock_path)(dotlock);
}

/* ---- locks of index files ---- */

int file_wait_lock(int fd, const char *path, int lock_type, const struct file_lock_settings *set,
                   unsigned timeout_secs, struct file_lock **lock_r, const char **error_r) {
    if (!is_ours(path))
        return REAL(file_wait_lock)(fd, path, lock_type, set, timeout_secs, lock_r, error_r);
    if (take(path) != 0) {
        *error_r = "no transaction";
        return errno == ETIMEDOUT || errno == EDEADLK ? 0 : -1;
    }
    *lock_r = (struct file_lock *)held(path, fd);
    return 1;
}

int file_try_lock(int fd, const char *path, int lock_type, const struct file_lock_settings *set,
                  struct file_lock **lock_r, const char **error_r) {
    if (is_ours(path))
        return file_wait_lock(fd, path, lock_type, set, 0, lock_r, error_r);
    return REAL(file_try_lock)(fd, path, lock_type, set, lock_r, error_r);
}

struct file_lock *file_lock_from_dotlock(struct dotlock **dotlock) {
    if (handle_of(*dotlock) == NULL)
        return REAL(file_lock_from_dotlock)(dotlock);
    struct file_lock *same = (struct file_lock *)*dotlock;
    *dotlock = NULL;
    return same;
}

/* A file that is made to be locked is none of a transaction's. */
int file_create_locked(const char *path, const struct file_create_settings *set,
                       struct file_lock **lock_r, _Bool *created_r, const char **error_r) {
    commit();
    return REAL(file_create_locked)(path, set, lock_r, created_r, error_r);
}

void file_unlock(struct file_lock **lock) {
    struct handle *h = handle_of(*lock);
    if (h == NULL) {
        commit();
        REAL(file_unlock)(lock);
        return;
    }
    *lock = NULL;
    let_go(h);
}

void file_lock_free(struct file_lock **lock) {
    struct handle *h = handle_of(*lock);
    if (h == NULL) {
        commit();
        REAL(file_lock_free)(lock);
        return;
    }
    *lock = NULL;
    let_go(h);
}

/* ---- what others can know of ---- */

static int is_file(int fd) {
    struct stat there;
    return REAL(fstat)(fd, &there) == 0 && S_ISREG(there.st_mode);
}

/* What is written while a lock is held is for the log, or asks for patience. */
static void before_output(int fd) {
    if (is_open && locks == 0 && !is_file(fd))
        commit();
}

ssize_t write(int fd, const void *from, size_t n) {
    before_output(fd);
    return REAL(write)(fd, from, n);
}

ssize_t writev(int fd, const struct iovec *from, int n) {
    before_output(fd);
    return REAL(writev)(fd, from, n);
}

ssize_t send(int fd, const void *from, size_t n, int flags) {
    before_output(fd);
    return REAL(send)(fd, from, n, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *from, int flags) {
    before_output(fd);
    return REAL(sendmsg)(fd, from, flags);
}

ssize_t sendfile(int to, int from, off_t *at, size_t n) {
    before_output(to);
    return REAL(sendfile)(to, from, at, n);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t n) __attribute__((alias("sendfile")));

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout) {
    commit();
    return REAL(epoll_wait)(fd, events, n, timeout);
}

int poll(struct pollfd *fds, nfds_t n, int timeout) {
    commit();
    return REAL(poll)(fds, n, timeout);
}

pid_t fork(void) {
    commit();
    return REAL(fork)();
}

/* The end of each program of Dovecot that does not fail.  One that fails leaves nothing. */
void master_service_deinit(struct master_service **service) {
    commit();
    REAL(master_service_deinit)(service);
}

/* ---- what is to be durable ---- */

/* What is synced while no lock is held, such as a message in tmp/, may be from before. */
static int waits_for_commit(int fd) {
    struct stat file, dir;
    commit();
    if (!is_open || fstat(fd, &file) != 0 || stat(tree(), &dir) != 0 || file.st_dev != dir.st_dev)
        return 0;
    wants_disk = 1;
    return 1;
}

int fsync(int fd) { return waits_for_commit(fd) ? 0 : REAL(fsync)(fd); }
int fdatasync(int fd) { return waits_for_commit(fd) ? 0 : REAL(fdatasync)(fd); }

/* ---- deliveries ---- */

/* Programs put messages into new/ at any time.  A transaction that has listed new/ and takes
 * messages from there would lose to them, and need not: it takes each by its name.  So new/ is
 * listed from outside, when it is opened, and its times are from before that; what the transaction
 * itself has moved is then put right. */
static struct listing {
    DIR *dir; /* NULL: none */
    int fd;
    struct stat before;
    struct dirent *entries;
    size_t count, room, next;
} listing;

static void list(const struct dirent *entry) {
    if (listing.count == listing.room) {
        listing.room = listing.room * 2 + 64;
        listing.entries = realloc(listing.entries, listing.room * sizeof *listing.entries);
        if (listing.entries == NULL)
            die("systx: no memory for the names in new/");
    }
    memcpy(&listing.entries[listing.count++], entry, entry->d_reclen);
}

static void list_moves(const char *path) {
    for (size_t n = 0; n < moves_count; n++) {
        if (!below(moves[n].path, path))
            continue;
        const char *name = strrchr(moves[n].path, '/') + 1;
        size_t at = 0;
        while (at < listing.count && strcmp(listing.entries[at].d_name, name) != 0)
            at++;
        if (at < listing.count && !moves[n].is_there)
            listing.entries[at] = listing.entries[--listing.count];
        if (at == listing.count && moves[n].is_there) {
            struct dirent made = {.d_ino = 1, .d_type = DT_REG, .d_reclen = sizeof made};
            snprintf(made.d_name, sizeof made.d_name, "%s", name);
            list(&made);
        }
    }
}

DIR *opendir(const char *path) {
    const char *name = last(path);
    if (!is_open || listing.dir != NULL || name == NULL || strcmp(name, "/new") != 0)
        return REAL(opendir)(path);
    uint64_t id = xpause();
    if (id == 0)
        return NULL;
    int error = 0;
    listing.count = listing.next = 0;
    listing.dir = REAL(opendir)(path);
    if (listing.dir == NULL) {
        error = errno;
    } else {
        listing.fd = REAL(dirfd)(listing.dir);
        if (REAL(fstat)(listing.fd, &listing.before) != 0)
            error = errno;
        struct dirent *entry;
        while (error == 0 && (errno = 0, entry = REAL(readdir)(listing.dir)) != NULL)
            list(entry);
        error = error != 0 ? error : errno;
    }
    if (xresume(id) != 0)
        die("systx: not committed: %s", reason(errno));
    if (error == 0) {
        list_moves(path);
        return listing.dir;
    }
    if (listing.dir == NULL && error == ENOENT) /* a mailbox that this transaction makes */
        return REAL(opendir)(path);
    if (listing.dir != NULL)
        closedir(listing.dir);
    errno = error;
    return NULL;
}

struct dirent *readdir(DIR *dir) {
    if (dir != listing.dir)
        return REAL(readdir)(dir);
    return listing.next < listing.count ? &listing.entries[listing.next++] : NULL;
}

int closedir(DIR *dir) {
    if (dir == listing.dir) {
        free(listing.entries);
        listing = (struct listing){.dir = NULL};
    }
    return REAL(closedir)(dir);
}

/* Others' transactions have replaced a file that this process has open, such as a log: it is not in
 * the transaction any more, and nobody changes it.  Outside it is as it was. */
static uint64_t out_of_it(long done) {
    return done < 0 && errno == ESTALE && is_open ? xpause() : 0;
}

static void back_in_it(uint64_t id) {
    int error = errno;
    if (xresume(id) != 0)
        die("systx: not committed: %s", reason(errno));
    errno = error;
}

ssize_t pread(int fd, void *to, size_t n, off_t at) {
    ssize_t done = REAL(pread)(fd, to, n, at);
    uint64_t id = out_of_it(done);
    if (id != 0) {
        done = REAL(pread)(fd, to, n, at);
        back_in_it(id);
    }
    return done;
}

ssize_t pread64(int fd, void *to, size_t n, off64_t at) __attribute__((alias("pread")));

int fstat(int fd, struct stat *to) {
    if (listing.dir != NULL && fd == listing.fd) {
        *to = listing.before;
        return 0;
    }
    int done = REAL(fstat)(fd, to);
    uint64_t id = out_of_it(done);
    if (id != 0) {
        done = REAL(fstat)(fd, to);
        back_in_it(id);
    }
    return shown(done, to);
}

struct dirent64 *readdir64(DIR *dir) __attribute__((alias("readdir")));
int fstat64(int fd, struct stat64 *to) __attribute__((alias("fstat")));

/* ---- privileges ---- */

/* A process of the mail user keeps the two that a transaction of a thread takes. */
int setuid(uid_t uid) {
    if (tree() == NULL || uid == 0 || geteuid() != 0)
        return REAL(setuid)(uid);
    prctl(PR_SET_KEEPCAPS, 1);
    int done = REAL(setuid)(uid);
    int error = errno;
    prctl(PR_SET_KEEPCAPS, 0);
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    unsigned keep = 1u << CAP_SYS_ADMIN | 1u << CAP_SYS_CHROOT;
    struct __user_cap_data_struct sets[2] = {{.effective = keep, .permitted = keep}};
    if (done == 0 && syscall(SYS_capset, &head, sets) != 0)
        memset(sets, 0, sizeof sets), syscall(SYS_capset, &head, sets);
    errno = error;
    return done;
}
