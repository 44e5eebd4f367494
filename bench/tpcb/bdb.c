/* Berkeley DB: write-ahead log, two-phase locks of pages, B-trees, a queue for the history.
 *
 * Locks are of pages, so tellers and branches lie one in a page, between records that nobody
 * uses. */
#include <db.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tpcb.h"

/* Of pages of 512 bytes: no two records that are so far from each other share one. */
#define APART 8

static DB_ENV *env;
static DB *dbs[4];
static const char *NAMES[] = {"accounts", "tellers", "branches", "history"};
static pthread_t keeper;
static atomic_bool stop;

static void ok(int error, const char *what) {
    if (error)
        fail(what, db_strerror(error));
}

/* Makes a checkpoint for each 4 MiB of log, about as often as SQLite's for 1,000 pages. */
static void *keep(void *arg) {
    (void)arg;
    while (!stop) {
        ok(env->txn_checkpoint(env, 4096, 0, 0), "checkpoint");
        usleep(100000);
    }
    return NULL;
}

static void open_all(const struct work *w, int loading) {
    uint32_t flags = DB_CREATE | DB_INIT_MPOOL | DB_PRIVATE | DB_THREAD;
    uint32_t logged = DB_INIT_TXN | DB_INIT_LOCK | DB_INIT_LOG | DB_RECOVER;
    ok(db_env_create(&env, 0), "env");
    env->set_errfile(env, stderr);
    ok(env->set_cachesize(env, 0, (uint32_t)w->cache, 1), "cache");
    if (!loading) {
        ok(env->set_lg_bsize(env, 1 << 20), "log");
        ok(env->set_lg_max(env, 16 << 20), "log");
        ok(env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1), "log");
        ok(env->set_lk_detect(env, DB_LOCK_DEFAULT), "locks");
        ok(env->set_lk_max_locks(env, 20000), "locks");
        ok(env->set_lk_max_objects(env, 20000), "locks");
    }
    ok(env->open(env, w->place, loading ? flags : flags | logged, 0600), w->place);
    for (int t = 0; t < 4; t++) {
        ok(db_create(&dbs[t], env, 0), NAMES[t]);
        if (t < 3)
            ok(dbs[t]->set_pagesize(dbs[t], t ? 512 : 4096), NAMES[t]);
        else
            ok(dbs[t]->set_re_len(dbs[t], sizeof(struct history)), NAMES[t]);
        uint32_t how = DB_CREATE | DB_THREAD | (loading ? 0 : DB_AUTO_COMMIT);
        ok(dbs[t]->open(dbs[t], NULL, NAMES[t], NULL, t < 3 ? DB_BTREE : DB_QUEUE, how, 0600),
           NAMES[t]);
    }
}

static void close_all(void) {
    for (int t = 0; t < 4; t++)
        ok(dbs[t]->close(dbs[t], 0), NAMES[t]);
    ok(env->close(env, 0), "close");
}

void system_open(const struct work *w) {
    open_all(w, 0);
    stop = 0;
    if (pthread_create(&keeper, NULL, keep, NULL))
        fail("open", "no thread");
}

void system_close(void) {
    stop = 1;
    pthread_join(keeper, NULL);
    ok(env->txn_checkpoint(env, 0, 0, DB_FORCE), "checkpoint");
    close_all();
}

/* So that keys are in order as bytes. */
static uint64_t turned(uint64_t n) {
    return __builtin_bswap64(n);
}

void system_load(const struct work *w) {
    uint64_t counts[] = {w->accounts, TELLERS * APART, BRANCHES * APART};
    open_all(w, 1);
    for (int t = 0; t < 3; t++)
        for (uint64_t n = 0; n < counts[t]; n++) {
            struct record r = {.key = n};
            uint64_t k = turned(n);
            DBT key = {.data = &k, .size = sizeof k}, value = {.data = &r, .size = sizeof r};
            ok(dbs[t]->put(dbs[t], NULL, &key, &value, 0), "load");
        }
    close_all();
    /* What was made without a log is not from one. */
    ok(db_env_create(&env, 0), "env");
    ok(env->open(env, w->place, DB_CREATE | DB_INIT_MPOOL | DB_PRIVATE, 0600), w->place);
    for (int t = 0; t < 4; t++)
        ok(env->lsn_reset(env, NAMES[t], 0), NAMES[t]);
    ok(env->close(env, 0), "close");
}

void *client_open(int k) {
    (void)k;
    return env;
}

void client_close(void *own) {
    (void)own;
}

static int update(DB_TXN *txn, int t, uint64_t n, int64_t delta) {
    struct record r;
    uint64_t k = turned(n);
    DBT key = {.data = &k, .size = sizeof k};
    DBT value = {.data = &r, .size = sizeof r, .ulen = sizeof r, .flags = DB_DBT_USERMEM};
    int error = dbs[t]->get(dbs[t], txn, &key, &value, DB_RMW);
    if (error)
        return error;
    r.balance += delta;
    return dbs[t]->put(dbs[t], txn, &key, &value, 0);
}

static int attempt(const struct history *h) {
    DB_TXN *txn;
    ok(env->txn_begin(env, NULL, &txn, DB_TXN_SYNC), "begin");
    int error = update(txn, 0, h->account, h->delta);
    if (!error)
        error = update(txn, 1, (uint64_t)h->teller * APART, h->delta);
    if (!error)
        error = update(txn, 2, (uint64_t)h->branch * APART, h->delta);
    if (!error) {
        db_recno_t n;
        DBT key = {.data = &n, .ulen = sizeof n, .flags = DB_DBT_USERMEM};
        DBT value = {.data = (void *)h, .size = sizeof *h};
        error = dbs[3]->put(dbs[3], txn, &key, &value, DB_APPEND);
    }
    if (!error)
        return txn->commit(txn, DB_TXN_SYNC);
    ok(txn->abort(txn), "abort");
    return error;
}

unsigned client_transaction(void *own, const struct history *h) {
    (void)own;
    unsigned again = 0;
    int error;
    while ((error = attempt(h)) == DB_LOCK_DEADLOCK)
        again++;
    ok(error, "transaction");
    return again;
}

static int64_t sum(int t, uint64_t *records) {
    DBC *cursor;
    ok(dbs[t]->cursor(dbs[t], NULL, &cursor, 0), NAMES[t]);
    DBT key = {0}, value = {0};
    union {
        struct record r;
        struct history h;
    } u;
    uint64_t k;
    key = (DBT){.data = &k, .ulen = sizeof k, .flags = DB_DBT_USERMEM};
    value = (DBT){.data = &u, .ulen = sizeof u, .flags = DB_DBT_USERMEM};
    int64_t all = 0;
    int error;
    while (!(error = cursor->get(cursor, &key, &value, DB_NEXT))) {
        all += t < 3 ? u.r.balance : u.h.delta;
        (*records)++;
    }
    if (error != DB_NOTFOUND)
        fail("scan", db_strerror(error));
    ok(cursor->close(cursor), "scan");
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
    s->history = sum(3, &s->history_records);
}
