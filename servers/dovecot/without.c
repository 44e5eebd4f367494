/* For a test: Dovecot's uidlist without its lock file, and without transactions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

struct dotlock;

static char none;
#define NONE ((struct dotlock *)&none)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int file_dotlock_create(const void *set, const char *path, unsigned flags,
                        struct dotlock **dotlock_r) {
    const char *name = strrchr(path, '/');
    if (name == NULL || strcmp(name, "/dovecot-uidlist") != 0)
        return REAL(file_dotlock_create)(set, path, flags, dotlock_r);
    *dotlock_r = NONE;
    return 1;
}

int file_dotlock_delete(struct dotlock **dotlock) {
    if (*dotlock != NONE)
        return REAL(file_dotlock_delete)(dotlock);
    *dotlock = NULL;
    return 1;
}

int file_dotlock_touch(struct dotlock *dotlock) {
    return dotlock == NONE ? 0 : REAL(file_dotlock_touch)(dotlock);
}

_Bool file_dotlock_is_locked(struct dotlock *dotlock) {
    return dotlock == NONE ? 1 : REAL(file_dotlock_is_locked)(dotlock);
}

const char *file_dotlock_get_lock_path(struct dotlock *dotlock) {
    return dotlock == NONE ? "" : REAL(file_dotlock_get_lock_path)(dotlock);
}
