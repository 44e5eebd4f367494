/* PROGRAM load|scan|check PLACE ACCOUNTS CACHE
 * PROGRAM run PLACE ACCOUNTS CACHE CLIENTS SECONDS SEED [TRANSACTIONS]
 *
 * CACHE in bytes.  run prints: transactions and seconds of the measured part, transactions of all,
 * and how often one was tried again.  check prints how many transactions the history has, and fails
 * if a sum of balances is another one than that.  scan prints the records, and seconds. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tpcb.h"

void fail(const char *what, const char *why) {
    fprintf(stderr, "tpcb: %s: %s\n", what, why);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct work work;
static double length;
static uint64_t seed, most;
static pthread_barrier_t ready, begun;
static double start;
static atomic_uint_fast64_t all, counted, again;

/* A quarter of the time warms up. */
static void *client(void *arg) {
    int k = (int)(intptr_t)arg;
    uint64_t state = seed + 1000003u * (uint64_t)k;
    void *own = client_open(k);
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&begun);
    double from = start + length / 4, until = start + length * 1.25;
    for (uint64_t n = 0;; n++) {
        double at = now();
        if (most ? n >= most / (uint64_t)work.clients : at >= until)
            break;
        uint32_t teller = draw(&state) % TELLERS;
        struct history h = {.number = n + 1, .account = draw(&state) % work.accounts,
                            .teller = teller, .branch = teller / 10,
                            .delta = (int64_t)(draw(&state) % 1999999) - 999999};
        unsigned tries = client_transaction(own, &h);
        again += tries;
        all++;
        double end = now();
        if (most || (end >= from && end < until))
            counted++;
    }
    client_close(own);
    return NULL;
}

static void run(char **argv) {
    work.clients = atoi(argv[0]);
    length = atof(argv[1]) / 1.25;
    seed = strtoull(argv[2], NULL, 10);
    most = argv[3] ? strtoull(argv[3], NULL, 10) : 0;
    system_open(&work);
    pthread_barrier_init(&ready, NULL, (unsigned)work.clients + 1);
    pthread_barrier_init(&begun, NULL, (unsigned)work.clients + 1);
    pthread_t threads[64];
    if (work.clients < 1 || work.clients > 64)
        fail("run", "1 to 64 clients");
    for (int k = 0; k < work.clients; k++)
        if (pthread_create(&threads[k], NULL, client, (void *)(intptr_t)k))
            fail("run", "no thread");
    pthread_barrier_wait(&ready);
    start = now();
    pthread_barrier_wait(&begun);
    for (int k = 0; k < work.clients; k++)
        pthread_join(threads[k], NULL);
    double took = most ? now() - start : length;
    system_close();
    printf("%lu %.6f %lu %lu\n", (unsigned long)counted, took, (unsigned long)all,
           (unsigned long)again);
}

static void check(void) {
    struct sums s = {0};
    system_open(&work);
    system_sums(&s);
    system_close();
    if (s.accounts != s.history || s.tellers != s.history || s.branches != s.history ||
        s.account_records != work.accounts) {
        fprintf(stderr, "tpcb: accounts %ld tellers %ld branches %ld history %ld, %lu accounts\n",
                s.accounts, s.tellers, s.branches, s.history, s.account_records);
        exit(1);
    }
    printf("%lu\n", s.history_records);
}

static void scan(void) {
    struct sums s = {0};
    system_open(&work);
    double from = now();
    system_scan(&s);
    double took = now() - from;
    system_close();
    if (s.account_records != work.accounts)
        fail("scan", "not all accounts are there");
    printf("%lu %.6f\n", s.account_records, took);
}

int main(int argc, char **argv) {
    if (argc < 5)
        fail("main", "load|scan|check|run PLACE ACCOUNTS CACHE ...");
    const char *what = argv[1];
    work = (struct work){.place = argv[2], .accounts = strtoull(argv[3], NULL, 10),
                         .cache = strtoull(argv[4], NULL, 10), .clients = 1};
    if (!strcmp(what, "load"))
        system_load(&work);
    else if (!strcmp(what, "scan"))
        scan();
    else if (!strcmp(what, "check"))
        check();
    else if (!strcmp(what, "run") && argc >= 8)
        run(argv + 5);
    else
        fail("main", "no such command");
    return 0;
}
