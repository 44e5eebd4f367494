/* What bench/ldap measures with: threads, each with a connection of its own, that make one kind of
 * request again and again, and look at each answer.
 *
 *   load URL DN PASSWORD PARENT KIND CONNECTIONS REQUESTS
 *
 * KIND: single (one of PARENT's children n0, n1...), subtree (all of PARENT), add or delete (new
 * children of PARENT, the same ones).  Prints requests per second of all together. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#include <ldap.h>

static char **words;
static unsigned connections, requests;
static pthread_barrier_t ready;
static struct { double begun, ended; } times[64];

static void check(int code, const char *what) {
    if (code == LDAP_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", what, ldap_err2string(code));
    exit(1);
}

static LDAP *open_one(void) {
    LDAP *to = NULL;
    int version = LDAP_VERSION3;
    struct berval password = {.bv_len = strlen(words[3]), .bv_val = words[3]};
    check(ldap_initialize(&to, words[1]), words[1]);
    ldap_set_option(to, LDAP_OPT_PROTOCOL_VERSION, &version);
    check(ldap_sasl_bind_s(to, words[2], LDAP_SASL_SIMPLE, &password, NULL, NULL, NULL), "bind");
    return to;
}

static int search(LDAP *to, const char *base, int scope, unsigned least) {
    LDAPMessage *found = NULL;
    struct timeval limit = {.tv_sec = 60};
    int code = ldap_search_ext_s(to, base, scope, "(objectClass=*)", NULL, 0, NULL, NULL, &limit,
                                 LDAP_NO_LIMIT, &found);
    if (code == LDAP_SUCCESS && (unsigned)ldap_count_entries(to, found) < least)
        code = LDAP_NO_SUCH_OBJECT;
    ldap_msgfree(found);
    return code;
}

static int add(LDAP *to, const char *dn, const char *name) {
    char *classes[] = {"inetOrgPerson", NULL}, *names[] = {(char *)name, NULL};
    char *surname[] = {"Surname", NULL}, *mail[] = {"somebody@example.com", NULL};
    char *about[] = {"An entry of the usual size, with a line or two about a person.", NULL};
    LDAPMod mods[] = {{LDAP_MOD_ADD, "objectClass", {classes}}, {LDAP_MOD_ADD, "cn", {names}},
                      {LDAP_MOD_ADD, "sn", {surname}},          {LDAP_MOD_ADD, "mail", {mail}},
                      {LDAP_MOD_ADD, "description", {about}}};
    LDAPMod *all[] = {&mods[0], &mods[1], &mods[2], &mods[3], &mods[4], NULL};
    return ldap_add_ext_s(to, dn, all, NULL, NULL);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *client(void *argument) {
    unsigned number = (unsigned)(size_t)argument;
    const char *parent = words[4], *kind = words[5];
    LDAP *to = open_one();
    pthread_barrier_wait(&ready);
    times[number].begun = now();
    for (unsigned n = 0; n < requests; n++) {
        char name[64], dn[512];
        int single = strcmp(kind, "single") == 0;
        if (single)
            snprintf(name, sizeof name, "n%u", (number * 37 + n) % 100);
        else
            snprintf(name, sizeof name, "c%u-%u", number, n);
        snprintf(dn, sizeof dn, "cn=%s,%s", name, parent);
        if (single)
            check(search(to, dn, LDAP_SCOPE_BASE, 1), dn);
        else if (strcmp(kind, "subtree") == 0)
            check(search(to, parent, LDAP_SCOPE_SUBTREE, 100), parent);
        else if (strcmp(kind, "add") == 0)
            check(add(to, dn, name), dn);
        else
            check(ldap_delete_ext_s(to, dn, NULL, NULL), dn);
    }
    times[number].ended = now();
    ldap_unbind_ext_s(to, NULL, NULL);
    return NULL;
}

int main(int count, char **all) {
    if (count != 8)
        return 2;
    words = all;
    connections = (unsigned)atoi(all[6]), requests = (unsigned)atoi(all[7]);
    pthread_t threads[64];
    if (connections == 0 || connections > 64)
        return 2;
    pthread_barrier_init(&ready, NULL, connections);
    for (size_t n = 0; n < connections; n++)
        if (pthread_create(&threads[n], NULL, client, (void *)n) != 0)
            return 1;
    double begun = 0, ended = 0;
    for (unsigned n = 0; n < connections; n++) {
        pthread_join(threads[n], NULL);
        if (n == 0 || times[n].begun < begun)
            begun = times[n].begun;
        if (times[n].ended > ended)
            ended = times[n].ended;
    }
    printf("%f\n", connections * requests / (ended - begun));
    return 0;
}
