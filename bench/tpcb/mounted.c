/* The embedded transaction manager through the mount: a transaction of a thread (libsystx) reads
 * and writes pages of B-trees in files.
 *
 * The trees have the bytes of crates/lfs/examples/bench_tpcb.rs: page 0 names the root and how many
 * levels lie above the leaves, pages of records in the order of keys, then the levels above them.
 * Transactions lose over pages, so one teller or branch fills a page, and each client has a part of
 * the history for itself.  A branch is declared to be written (xbegin_scoped): those that want the
 * same one wait for each other and lose nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "systx.h"
#include "tpcb.h"

#define PAGE 4096
#define HEAD 16
#define FAN ((PAGE - HEAD) / 16)

static const char *NAMES[] = {"accounts", "tellers", "branches"};
static const unsigned RECORDS[] = {RECORD, 4000, 4000};
static struct work work;
/* Pages are written in place, without a transaction. */
static int is_plain;

struct client {
    int number;
    uint64_t records; /* of its history */
};

static uint64_t get(const char *page, unsigned at) {
    uint64_t v;
    memcpy(&v, page + at, sizeof v);
    return v;
}

static void put(char *page, unsigned at, uint64_t v) {
    memcpy(page + at, &v, sizeof v);
}

static void name_of(char *to, size_t size, const char *name, int number) {
    if (number < 0)
        snprintf(to, size, "%s/%s", work.place, name);
    else
        snprintf(to, size, "%s/%s-%d", work.place, name, number);
}

static int open_file(const char *name, int number, int flags) {
    char path[4096];
    name_of(path, sizeof path, name, number);
    return open(path, flags | O_CLOEXEC, 0600);
}

static void put_page(FILE *f, const char *page) {
    if (fwrite(page, PAGE, 1, f) != 1)
        fail("load", strerror(errno));
}

/* One level of a tree: n pages, each with so many entries, whose keys are so far apart. */
static void put_level(FILE *f, uint64_t n, uint64_t apart, uint64_t each, uint64_t keys,
                      unsigned record, uint64_t below) {
    for (uint64_t page = 0; page < n; page++) {
        char bytes[PAGE] = {0};
        uint64_t count = 0;
        for (uint64_t e = page * each; e < (page + 1) * each && e * apart < keys; e++, count++) {
            put(bytes, HEAD + (unsigned)count * record, e * apart);
            if (below)
                put(bytes, HEAD + (unsigned)count * record + 8, below + e);
        }
        put(bytes, 0, count);
        put_page(f, bytes);
    }
}

static void load_tree(const char *name, uint64_t keys, unsigned record) {
    char path[4096];
    name_of(path, sizeof path, name, -1);
    FILE *f = fopen(path, "wx");
    if (!f)
        fail(path, strerror(errno));
    setvbuf(f, NULL, _IOFBF, 1 << 20);
    uint64_t per = (PAGE - HEAD) / record, n = (keys + per - 1) / per, all = n, height = 0;
    for (uint64_t m = n; m > 1; height++)
        all += m = (m + FAN - 1) / FAN;
    char top[PAGE] = {0};
    put(top, 0, all);
    put(top, 8, height);
    put(top, 16, record);
    put_page(f, top);
    put_level(f, n, 1, per, keys, record, 0);
    uint64_t first = 1, apart = per;
    while (n > 1) {
        uint64_t above = (n + FAN - 1) / FAN;
        put_level(f, above, apart, FAN, keys, 16, first);
        first += n;
        n = above;
        apart *= FAN;
    }
    if (fflush(f) || fsync(fileno(f)) || fclose(f))
        fail(path, strerror(errno));
}

void system_load(const struct work *w) {
    uint64_t counts[] = {w->accounts, TELLERS, BRANCHES};
    work = *w;
    for (int t = 0; t < 3; t++)
        load_tree(NAMES[t], counts[t], RECORDS[t]);
}

void system_open(const struct work *w) {
    work = *w;
    is_plain = getenv("TPCB_PLAIN") != NULL;
    systx_patience(120000);
}

void system_close(void) {}

void *client_open(int k) {
    struct client *c = calloc(1, sizeof *c);
    c->number = k;
    int fd = open_file("history", k, O_RDWR | O_CREAT);
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        fail("history", strerror(errno));
    c->records = (uint64_t)st.st_size / sizeof(struct history);
    close(fd);
    return c;
}

void client_close(void *own) {
    free(own);
}

/* Adds to a balance.  Returns 0, or an errno. */
static int add(int t, uint64_t key, int64_t delta) {
    int fd = open_file(NAMES[t], -1, O_RDWR);
    if (fd < 0)
        return errno;
    /* What the kernel reads ahead counts as read. */
    int error = posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    char page[PAGE];
    if (!error && pread(fd, page, PAGE, 0) != PAGE)
        error = errno;
    uint64_t at = get(page, 0), height = get(page, 8);
    for (; !error && height; height--) {
        if (pread(fd, page, PAGE, (off_t)(at * PAGE)) != PAGE) {
            error = errno;
            break;
        }
        uint64_t low = 0, high = get(page, 0);
        while (high - low > 1) {
            uint64_t middle = (low + high) / 2;
            if (get(page, HEAD + (unsigned)middle * 16) <= key)
                low = middle;
            else
                high = middle;
        }
        at = get(page, HEAD + (unsigned)low * 16 + 8);
    }
    if (!error && pread(fd, page, PAGE, (off_t)(at * PAGE)) != PAGE)
        error = errno;
    if (!error) {
        unsigned i = HEAD;
        while (get(page, i) != key)
            i += RECORDS[t];
        put(page, i + 8, get(page, i + 8) + (uint64_t)delta);
        if (pwrite(fd, page, PAGE, (off_t)(at * PAGE)) != PAGE)
            error = errno;
    }
    close(fd);
    return error;
}

static int attempt(struct client *c, const struct history *h, unsigned flags) {
    char path[4096];
    name_of(path, sizeof path, "branch", (int)h->branch);
    struct systx_path scope = {.path = path, .access = SYSTX_WRITE};
    struct systx_begin begin = {.flags = flags, .paths = 1, .scope = &scope};
    if (!is_plain && systx_begin_with(work.place, &begin))
        return errno;
    int error = add(0, h->account, h->delta);
    if (!error)
        error = add(1, h->teller, h->delta);
    if (!error)
        error = add(2, h->branch, h->delta);
    if (!error) {
        struct history own = *h;
        own.number = c->records + 1;
        int fd = open_file("history", c->number, O_WRONLY);
        if (fd < 0 || pwrite(fd, &own, sizeof own, (off_t)(c->records * sizeof own)) !=
                          sizeof own)
            error = errno;
        if (fd >= 0)
            close(fd);
    }
    if (is_plain)
        return error;
    if (error) {
        xabort();
        return error;
    }
    return xend() ? errno : 0;
}

unsigned client_transaction(void *own, const struct history *h) {
    struct client *c = own;
    unsigned again = 0;
    int error;
    while ((error = attempt(c, h, again ? SYSTX_RETRY : 0)) == ECANCELED)
        again++;
    if (error)
        fail("transaction", strerror(error));
    c->records++;
    return again;
}

static int64_t sum(int t, uint64_t *records) {
    static char pages[PAGE * 32];
    int fd = open_file(NAMES[t], -1, O_RDONLY);
    int64_t all = 0;
    uint64_t n = 0;
    ssize_t got;
    for (off_t at = PAGE; (got = pread(fd, pages, sizeof pages, at)) > 0; at += got)
        for (char *page = pages; page < pages + got; page += PAGE) {
            /* Leaves come first and have their keys in order. */
            if (get(page, HEAD) != n)
                goto end;
            for (uint64_t i = get(page, 0), k = HEAD; i; i--, k += RECORDS[t], n++)
                all += (int64_t)get(page, (unsigned)k + 8);
        }
end:
    if (fd < 0 || got < 0)
        fail(NAMES[t], strerror(errno));
    close(fd);
    *records += n;
    return all;
}

void system_scan(struct sums *s) {
    s->accounts = sum(0, &s->account_records);
}

void system_sums(struct sums *s) {
    uint64_t n = 0;
    system_scan(s);
    s->tellers = sum(1, &n);
    s->branches = sum(2, &n);
    for (int k = 0; k < 64; k++) {
        int fd = open_file("history", k, O_RDONLY);
        struct history h;
        while (fd >= 0 && read(fd, &h, sizeof h) == sizeof h) {
            s->history += h.number ? h.delta : 0;
            s->history_records += h.number ? 1 : 0;
        }
        if (fd >= 0)
            close(fd);
    }
}
