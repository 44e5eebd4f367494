/* LMDB: one writer at a time, each commit synced; the file is mapped. */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tpcb.h"

static MDB_env *env;
static MDB_dbi dbis[4];
static const char *NAMES[] = {"accounts", "tellers", "branches", "history"};

static void ok(int error, const char *what) {
    if (error)
        fail(what, mdb_strerror(error));
}

static MDB_txn *begin(unsigned flags) {
    MDB_txn *txn;
    ok(mdb_txn_begin(env, NULL, flags, &txn), "begin");
    return txn;
}

void system_open(const struct work *w) {
    ok(mdb_env_create(&env), "env");
    ok(mdb_env_set_maxdbs(env, 4), "env");
    ok(mdb_env_set_mapsize(env, (size_t)(w->accounts * 400 + (1u << 30))), "env");
    ok(mdb_env_open(env, w->place, 0, 0600), w->place);
    MDB_txn *txn = begin(0);
    for (int t = 0; t < 4; t++)
        ok(mdb_dbi_open(txn, NAMES[t], MDB_CREATE | MDB_INTEGERKEY, &dbis[t]), NAMES[t]);
    ok(mdb_txn_commit(txn), "commit");
}

void system_close(void) {
    mdb_env_close(env);
}

void system_load(const struct work *w) {
    system_open(w);
    uint64_t counts[] = {w->accounts, TELLERS, BRANCHES};
    for (int t = 0; t < 3; t++) {
        MDB_txn *txn = begin(0);
        for (uint64_t n = 0; n < counts[t]; n++) {
            struct record r = {.key = n};
            MDB_val key = {sizeof n, &n}, value = {sizeof r, &r};
            ok(mdb_put(txn, dbis[t], &key, &value, MDB_APPEND), "load");
        }
        ok(mdb_txn_commit(txn), "load");
    }
    system_close();
}

void *client_open(int k) {
    (void)k;
    return env;
}

void client_close(void *own) {
    (void)own;
}

static void update(MDB_txn *txn, int t, uint64_t n, int64_t delta) {
    MDB_val key = {sizeof n, &n}, value;
    ok(mdb_get(txn, dbis[t], &key, &value), "get");
    struct record r;
    memcpy(&r, value.mv_data, sizeof r);
    r.balance += delta;
    value = (MDB_val){sizeof r, &r};
    ok(mdb_put(txn, dbis[t], &key, &value, 0), "put");
}

unsigned client_transaction(void *own, const struct history *h) {
    (void)own;
    MDB_txn *txn = begin(0);
    update(txn, 0, h->account, h->delta);
    update(txn, 1, h->teller, h->delta);
    update(txn, 2, h->branch, h->delta);
    MDB_cursor *cursor;
    ok(mdb_cursor_open(txn, dbis[3], &cursor), "history");
    MDB_val key, value;
    uint64_t last = 0;
    if (!mdb_cursor_get(cursor, &key, &value, MDB_LAST))
        memcpy(&last, key.mv_data, sizeof last);
    mdb_cursor_close(cursor);
    last++;
    key = (MDB_val){sizeof last, &last};
    value = (MDB_val){sizeof *h, (void *)h};
    ok(mdb_put(txn, dbis[3], &key, &value, MDB_APPEND), "history");
    ok(mdb_txn_commit(txn), "commit");
    return 0;
}

static int64_t sum(int t, uint64_t *records) {
    MDB_txn *txn = begin(MDB_RDONLY);
    MDB_cursor *cursor;
    ok(mdb_cursor_open(txn, dbis[t], &cursor), NAMES[t]);
    MDB_val key, value;
    int64_t all = 0;
    int error;
    while (!(error = mdb_cursor_get(cursor, &key, &value, MDB_NEXT))) {
        struct record r;
        struct history h;
        if (t < 3) {
            memcpy(&r, value.mv_data, sizeof r);
            all += r.balance;
        } else {
            memcpy(&h, value.mv_data, sizeof h);
            all += h.delta;
        }
        (*records)++;
    }
    if (error != MDB_NOTFOUND)
        fail("scan", mdb_strerror(error));
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
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
