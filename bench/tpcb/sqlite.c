/* SQLite: write-ahead log, synchronous=FULL; a connection for each client, one writer at a time. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tpcb.h"

static struct work work;
static const char *TABLES[] = {"accounts", "tellers", "branches"};

struct client {
    sqlite3 *db;
    sqlite3_stmt *begin, *commit, *update[3], *insert;
};

static sqlite3 *connect_to(void) {
    char path[4096], pragma[200];
    snprintf(path, sizeof path, "%s/db", work.place);
    sqlite3 *db;
    if (sqlite3_open(path, &db))
        fail(path, sqlite3_errmsg(db));
    sqlite3_busy_timeout(db, 120000);
    snprintf(pragma, sizeof pragma,
             "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-%lu",
             work.cache / 1024 / (uint64_t)work.clients);
    if (sqlite3_exec(db, pragma, NULL, NULL, NULL))
        fail("pragma", sqlite3_errmsg(db));
    return db;
}

static sqlite3_stmt *prepare(sqlite3 *db, const char *sql) {
    sqlite3_stmt *s;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL))
        fail(sql, sqlite3_errmsg(db));
    return s;
}

static void step(sqlite3 *db, sqlite3_stmt *s) {
    if (sqlite3_step(s) != SQLITE_DONE)
        fail(sqlite3_sql(s), sqlite3_errmsg(db));
    sqlite3_reset(s);
}

void system_open(const struct work *w) {
    work = *w;
    sqlite3_config(SQLITE_CONFIG_MULTITHREAD);
}

void system_close(void) {}

void system_load(const struct work *w) {
    system_open(w);
    sqlite3 *db = connect_to();
    sqlite3_exec(db, "CREATE TABLE history(account, teller, branch, delta); BEGIN", NULL, NULL,
                 NULL);
    uint64_t counts[] = {w->accounts, TELLERS, BRANCHES};
    char rest[RECORD - 16] = {0};
    for (int t = 0; t < 3; t++) {
        char sql[200];
        snprintf(sql, sizeof sql, "CREATE TABLE %s(id INTEGER PRIMARY KEY, balance, rest)",
                 TABLES[t]);
        if (sqlite3_exec(db, sql, NULL, NULL, NULL))
            fail(sql, sqlite3_errmsg(db));
        snprintf(sql, sizeof sql, "INSERT INTO %s VALUES(?, 0, ?)", TABLES[t]);
        sqlite3_stmt *insert = prepare(db, sql);
        for (uint64_t n = 0; n < counts[t]; n++) {
            sqlite3_bind_int64(insert, 1, (sqlite3_int64)n);
            sqlite3_bind_blob(insert, 2, rest, sizeof rest, SQLITE_STATIC);
            step(db, insert);
        }
        sqlite3_finalize(insert);
    }
    if (sqlite3_exec(db, "COMMIT; PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL))
        fail("commit", sqlite3_errmsg(db));
    sqlite3_close(db);
}

void *client_open(int k) {
    (void)k;
    struct client *c = calloc(1, sizeof *c);
    c->db = connect_to();
    c->begin = prepare(c->db, "BEGIN IMMEDIATE");
    c->commit = prepare(c->db, "COMMIT");
    for (int t = 0; t < 3; t++) {
        char sql[200];
        snprintf(sql, sizeof sql, "UPDATE %s SET balance = balance + ? WHERE id = ?", TABLES[t]);
        c->update[t] = prepare(c->db, sql);
    }
    c->insert = prepare(c->db, "INSERT INTO history VALUES(?, ?, ?, ?)");
    return c;
}

unsigned client_transaction(void *own, const struct history *h) {
    struct client *c = own;
    uint64_t keys[] = {h->account, h->teller, h->branch};
    step(c->db, c->begin);
    for (int t = 0; t < 3; t++) {
        sqlite3_bind_int64(c->update[t], 1, h->delta);
        sqlite3_bind_int64(c->update[t], 2, (sqlite3_int64)keys[t]);
        step(c->db, c->update[t]);
        sqlite3_bind_int64(c->insert, t + 1, (sqlite3_int64)keys[t]);
    }
    sqlite3_bind_int64(c->insert, 4, h->delta);
    step(c->db, c->insert);
    step(c->db, c->commit);
    return 0;
}

void client_close(void *own) {
    struct client *c = own;
    sqlite3_finalize(c->begin);
    sqlite3_finalize(c->commit);
    for (int t = 0; t < 3; t++)
        sqlite3_finalize(c->update[t]);
    sqlite3_finalize(c->insert);
    sqlite3_close(c->db);
    free(c);
}

static int64_t sum(sqlite3 *db, const char *sql, uint64_t *records) {
    sqlite3_stmt *s = prepare(db, sql);
    int64_t all = 0;
    int more;
    while ((more = sqlite3_step(s)) == SQLITE_ROW) {
        all += sqlite3_column_int64(s, 0);
        (*records)++;
    }
    if (more != SQLITE_DONE)
        fail(sql, sqlite3_errmsg(db));
    sqlite3_finalize(s);
    return all;
}

void system_scan(struct sums *s) {
    sqlite3 *db = connect_to();
    s->accounts = sum(db, "SELECT balance FROM accounts ORDER BY id", &s->account_records);
    sqlite3_close(db);
}

void system_sums(struct sums *s) {
    uint64_t n = 0;
    system_scan(s);
    sqlite3 *db = connect_to();
    s->tellers = sum(db, "SELECT balance FROM tellers", &n);
    s->branches = sum(db, "SELECT balance FROM branches", &n);
    s->history = sum(db, "SELECT delta FROM history", &s->history_records);
    sqlite3_close(db);
}
