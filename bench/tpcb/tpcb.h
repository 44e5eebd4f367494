/* TPC-B as the third paper has it: accounts, tellers and branches in B-trees, and a history of
 * fixed records.  Each system fills this in; main.c draws the work, measures and checks. */
#ifndef TPCB_H
#define TPCB_H

#include <stdint.h>

/* As many branches as the most clients, and ten tellers each. */
#define BRANCHES 16
#define TELLERS 160
#define RECORD 100

struct record {
    uint64_t key;
    int64_t balance;
    char rest[RECORD - 16];
};

struct history {
    uint64_t number; /* from 1 on; 0: no record */
    uint64_t account;
    uint32_t teller, branch;
    int64_t delta;
};

struct sums {
    int64_t accounts, tellers, branches, history;
    uint64_t account_records, history_records;
};

struct work {
    const char *place;
    uint64_t accounts;
    uint64_t cache; /* bytes */
    int clients;
};

/* All of these end the program if anything fails. */
void system_load(const struct work *);
void system_open(const struct work *);
void *client_open(int client);
/* One transaction, durable when it returns.  Returns how often it had to be tried again. */
unsigned client_transaction(void *, const struct history *);
void client_close(void *);
/* All accounts in key order. */
void system_scan(struct sums *);
void system_sums(struct sums *);
void system_close(void);

void fail(const char *what, const char *why) __attribute__((noreturn));

#endif
