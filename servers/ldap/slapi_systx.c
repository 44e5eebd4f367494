/* A SLAPI plugin by which each update of slapd's LDIF back end is one durable system transaction.
 *
 * A worker thread of slapd carries an operation from its begin to its answer.  The plugin begins
 * before the back end works, with the files of the operation as the scope, and ends when the answer
 * is about to be sent: an operation that succeeded is committed, any other is dropped.  A commit
 * that fails turns the answer into "busy".
 *
 *   plugin preoperation /usr/lib/ldap/slapi_systx.so systx_init DIRECTORY SUFFIX
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <ldap.h>
#include <slapi-plugin.h>
#include <systx.h>

#define LDIF ".ldif"

/* One for each line of the configuration; the list only grows, while slapd reads that. */
struct database {
    char *directory;
    char *suffix; /* normalized, as the back end names files by it */
    struct database *next;
};
static struct database *databases;

/* The operation whose transaction this thread has open.  What overlays do inside of it has another
 * pblock. */
static __thread struct {
    Slapi_PBlock *of; /* NULL: none */
    unsigned long connection, message;
    int broken;       /* an operation inside failed halfway */
} mine;

/* What the answer says beside its number; slapd copies it only as it sends it. */
static __thread char words[1600];

/* The files of an operation: at most two entries with their directories, and the new parent with
 * its own. */
struct scope {
    struct systx_path paths[6];
    char text[6][PATH_MAX];
    unsigned count;
};

static unsigned long number(Slapi_PBlock *pb, int which) {
    /* Some of these are an int, some a long. */
    union { int i; long l; unsigned long long room; } value = {.room = 0};
    return slapi_pblock_get(pb, which, &value) == 0 ? (unsigned long)value.room : 0;
}

static char *string(Slapi_PBlock *pb, int which) {
    char *value = NULL;
    return slapi_pblock_get(pb, which, &value) == 0 ? value : NULL;
}

static const struct database *database_of(const char *dn) {
    const struct database *found = NULL;
    for (const struct database *db = databases; db != NULL; db = db->next) {
        size_t all = strlen(dn), end = strlen(db->suffix);
        int below = all == end || (all > end && dn[all - end - 1] == ',');
        if (below && strcmp(dn + all - end, db->suffix) == 0 &&
            (found == NULL || end > strlen(found->suffix)))
            found = db;
    }
    return found;
}

/* Where the back end keeps an entry: a directory of each parent's name, from the suffix on; without
 * ".ldif".  -1: too long. */
static int place(const struct database *db, const char *dn, char *to, size_t room) {
    const char *end = dn + strlen(dn), *from = end - strlen(db->suffix);
    size_t used = (size_t)snprintf(to, room, "%s", db->directory);
    for (;;) {
        if (used + 3 * (size_t)(end - from) + sizeof "/" LDIF > room)
            return -1;
        to[used++] = '/';
        for (const char *c = from; c < end; c++)
            if (strchr("/:.", *c) != NULL)
                used += (size_t)sprintf(to + used, "\\%02X", (unsigned)(unsigned char)*c);
            else
                to[used++] = *c;
        to[used] = 0;
        if (from == dn)
            return 0;
        end = from - 1;
        for (from = end; from > dn && from[-1] != ',' && from[-1] != ';';)
            from--;
    }
}

static void declare(struct scope *scope, const char *path, const char *ending, unsigned access) {
    unsigned n = scope->count++;
    snprintf(scope->text[n], sizeof scope->text[n], "%s%s", path, ending);
    scope->paths[n] = (struct systx_path){.path = scope->text[n], .access = access};
}

/* What an operation does to an entry. */
enum {
    SUBTREE = 1, /* the directory of its children comes or goes with it */
    BELOW = 2    /* it is made, so its parent must stay */
};

/* Declares the file of an entry, and what else is said.  The parent's directory is written only for
 * its first child, so children of one parent are made side by side.  -1: the name is too long. */
static int declare_entry(struct scope *scope, const struct database *db, const char *dn, int how) {
    char path[PATH_MAX - sizeof LDIF];
    struct stat there;
    if (place(db, dn, path, sizeof path) != 0)
        return -1;
    declare(scope, path, LDIF, SYSTX_WRITE);
    if (how & SUBTREE)
        declare(scope, path, "", SYSTX_WRITE);
    if (!(how & BELOW) || strcmp(dn, db->suffix) == 0)
        return 0;
    *strrchr(path, '/') = 0;
    declare(scope, path, LDIF, SYSTX_READ);
    if (stat(path, &there) != 0 && errno == ENOENT)
        declare(scope, path, "", SYSTX_WRITE);
    return 0;
}

/* Sends the answer, with the words that are there, and tells slapd not to go on. */
static int refuse(Slapi_PBlock *pb, int code) {
    slapi_log_error(SLAPI_LOG_FATAL, "systx", "%s\n", words);
    slapi_send_ldap_result(pb, code, NULL, words, 0, NULL);
    return -1;
}

/* After a call that failed with `error`: the path and the opponent of a lost conflict, or what else
 * is known. */
static const char *reason(int error) {
    static __thread char text[1560];
    struct systx_status status;
    if (error == ENOTCONN || error == ECONNABORTED || xstatus(&status) != 0)
        status = (struct systx_status){.state = SYSTX_NONE};
    snprintf(text, sizeof text, "%s%s%s%s%s", strerror(error), status.path[0] ? ": " : "",
             status.path, status.words[0] ? ": " : "", status.words);
    return text;
}

static void drop(void) {
    if (mine.of != NULL)
        xabort();
    mine.of = NULL;
    mine.broken = 0;
}

static int begin(Slapi_PBlock *pb, const struct database *db, const struct scope *scope) {
    const char *at = db->directory;
    struct systx_begin how = {.paths = scope->count, .scope = scope->paths};
    if (systx_begin_with(at, &how) != 0) {
        int error = errno, code = LDAP_UNWILLING_TO_PERFORM;
        if (error == ENOTTY)
            snprintf(words, sizeof words, "%s is not guarded: systx mount %s", at, at);
        else if (error == EPERM)
            snprintf(words, sizeof words, "slapd may not begin transactions: see systx exec");
        else
            snprintf(words, sizeof words, "not begun: %s", reason(error));
        /* These will be the same at each attempt. */
        if (error != ENOTTY && error != EPERM && error != ENAMETOOLONG && error != EACCES)
            code = LDAP_BUSY;
        return refuse(pb, code);
    }
    mine.of = pb;
    mine.connection = number(pb, SLAPI_CONN_ID);
    mine.message = number(pb, SLAPI_OPERATION_MSGID);
    return 0;
}

/* The normalized name of the entry that a rename makes; NULL: the request has none. */
static char *renamed(Slapi_PBlock *pb, const char *dn) {
    char *rdn = string(pb, SLAPI_MODRDN_NEWRDN), *above = string(pb, SLAPI_MODRDN_NEWSUPERIOR);
    char *parent = above != NULL ? slapi_ch_strdup(above) : slapi_dn_parent(dn);
    char *whole = rdn != NULL && parent != NULL ? slapi_dn_plus_rdn(parent, rdn) : NULL;
    char *normal = whole != NULL ? slapi_dn_normalize_case(whole) : NULL;
    slapi_ch_free_string(&parent);
    slapi_ch_free_string(&whole);
    return normal;
}

enum kind { MODIFIED = 0, DELETED = SUBTREE, ADDED = BELOW, MOVED = SUBTREE | BELOW };

static int before(Slapi_PBlock *pb, enum kind kind) {
    if (mine.of != NULL) {
        if (mine.connection == number(pb, SLAPI_CONN_ID) &&
            mine.message == number(pb, SLAPI_OPERATION_MSGID))
            return 0; /* an overlay's, inside of the client's */
        drop();       /* of one that another plugin stopped */
    }
    char *target = string(pb, SLAPI_TARGET_DN);
    char *dn = target != NULL ? slapi_dn_normalize_case(target) : NULL;
    const struct database *db = dn != NULL ? database_of(dn) : NULL;
    struct scope scope;
    scope.count = 0;
    int done = 0;
    if (db == NULL) {
        /* Without a transaction nothing is changed. */
        snprintf(words, sizeof words, "slapi_systx.so is configured for another suffix");
        done = refuse(pb, LDAP_UNWILLING_TO_PERFORM);
    } else {
        char *to = kind == MOVED ? renamed(pb, dn) : NULL;
        int long_name = declare_entry(&scope, db, dn, kind == MOVED ? SUBTREE : (int)kind);
        if (to != NULL && strcmp(to, dn) != 0 && database_of(to) == db)
            long_name |= declare_entry(&scope, db, to, MOVED);
        snprintf(words, sizeof words, "the name is too long for a path");
        done = long_name ? refuse(pb, LDAP_UNWILLING_TO_PERFORM) : begin(pb, db, &scope);
        slapi_ch_free_string(&to);
    }
    slapi_ch_free_string(&dn);
    return done;
}

static int before_add(Slapi_PBlock *pb) { return before(pb, ADDED); }
static int before_delete(Slapi_PBlock *pb) { return before(pb, DELETED); }
static int before_modify(Slapi_PBlock *pb) { return before(pb, MODIFIED); }
static int before_rename(Slapi_PBlock *pb) { return before(pb, MOVED); }

static void busy(Slapi_PBlock *pb, const char *what, int error) {
    int code = LDAP_BUSY;
    snprintf(words, sizeof words, "%s: %s", what, reason(error));
    slapi_log_error(SLAPI_LOG_FATAL, "systx", "%s\n", words);
    slapi_pblock_set(pb, SLAPI_RESULT_CODE, &code);
    slapi_pblock_set(pb, SLAPI_RESULT_TEXT, words);
}

/* Before the answer is sent. */
static int answer(Slapi_PBlock *pb) {
    if (mine.of == NULL)
        return 0;
    int code = (int)number(pb, SLAPI_RESULT_CODE);
    int failed = code == LDAP_OTHER || code == LDAP_OPERATIONS_ERROR || code == LDAP_BUSY;
    if (mine.of != pb) { /* what it refused before it changed anything is the overlay's to judge */
        mine.broken |= failed;
        return 0;
    }
    if (code == LDAP_SUCCESS && !mine.broken) {
        int error = xend() == 0 ? 0 : errno;
        if (error == 0 || error == ESTALE) { /* committed; slapd does not mind where it works */
            mine.of = NULL;
            return 0;
        }
        busy(pb, error == ECONNABORTED ? "look whether it is done" : "not committed", error);
        drop(); /* what failed is over; what would wait is not */
        return 0;
    }
    struct systx_status status;
    int lost = xstatus(&status) == 0 && status.state == SYSTX_LOST;
    int broken = mine.broken;
    if (lost && (failed || broken))
        busy(pb, "not committed", ECANCELED);
    else if (broken && code == LDAP_SUCCESS)
        busy(pb, "not committed, an overlay's operation failed", EIO);
    drop();
    return 0;
}

/* When slapd is done with the operation, also where it sends no answer: of one that was abandoned
 * nothing is done. */
static int after(Slapi_PBlock *pb) {
    if (mine.of == pb)
        drop();
    return 0;
}

int systx_init(Slapi_PBlock *pb);
int systx_init(Slapi_PBlock *pb) {
    static Slapi_PluginDesc about = {"systx", "systx", "1", "an update is a durable transaction"};
    static const struct { int when; int (*what)(Slapi_PBlock *); } hooks[] = {
        {SLAPI_PLUGIN_PRE_ADD_FN, before_add},       {SLAPI_PLUGIN_POST_ADD_FN, after},
        {SLAPI_PLUGIN_PRE_MODIFY_FN, before_modify}, {SLAPI_PLUGIN_POST_MODIFY_FN, after},
        {SLAPI_PLUGIN_PRE_DELETE_FN, before_delete}, {SLAPI_PLUGIN_POST_DELETE_FN, after},
        {SLAPI_PLUGIN_PRE_MODRDN_FN, before_rename}, {SLAPI_PLUGIN_POST_MODRDN_FN, after},
        {SLAPI_PLUGIN_PRE_RESULT_FN, answer},
    };
    char **arguments = NULL;
    unsigned long count = number(pb, SLAPI_PLUGIN_ARGC);
    if (count != 2 || slapi_pblock_get(pb, SLAPI_PLUGIN_ARGV, &arguments) != 0) {
        slapi_log_error(SLAPI_LOG_FATAL, "systx", "systx_init wants a directory and a suffix\n");
        return -1;
    }
    struct database *db = (struct database *)slapi_ch_calloc(1, sizeof *db);
    db->directory = slapi_ch_strdup(arguments[0]);
    db->suffix = slapi_dn_normalize_case(arguments[1]);
    if (db->suffix == NULL || db->directory[0] != '/') {
        slapi_log_error(SLAPI_LOG_FATAL, "systx", "%s is no suffix, or %s no absolute path\n",
                        arguments[1], arguments[0]);
        return -1;
    }
    db->next = databases;
    databases = db;
    int failed = slapi_pblock_set(pb, SLAPI_PLUGIN_VERSION, SLAPI_PLUGIN_VERSION_03) |
                 slapi_pblock_set(pb, SLAPI_PLUGIN_DESCRIPTION, &about);
    for (size_t n = 0; n < sizeof hooks / sizeof *hooks; n++)
        failed |= slapi_pblock_set(pb, hooks[n].when, (void *)hooks[n].what);
    return failed ? -1 : 0;
}
