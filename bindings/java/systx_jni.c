/* The native half of systx.SystemTransaction.
 * cc -shared -fPIC -I JDK/include -I JDK/include/linux -o libsystx_jni.so systx_jni.c -lsystx */
#include <errno.h>
#include <jni.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systx.h>

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_systx_SystemTransaction_##name

/* Functions return 0 or an errno: the JVM may change errno itself. */
static jint told(int result) { return result == 0 ? 0 : errno; }

/* A string of less than `room` bytes; false if it is longer. */
static int string(JNIEnv *env, jbyteArray from, char *to, size_t room) {
    jsize len = (*env)->GetArrayLength(env, from);
    if (len >= (jsize)room) return 0;
    (*env)->GetByteArrayRegion(env, from, 0, len, (jbyte *)to);
    to[len] = 0;
    return 1;
}

NATIVE(jint, begin0)(JNIEnv *env, jclass class, jbyteArray dir, jint flags) {
    char path[PATH_MAX];
    (void)class;
    if (!string(env, dir, path, sizeof path)) return ENAMETOOLONG;
    return told(systx_begin_at(path, (unsigned)flags));
}

NATIVE(jint, order0)(JNIEnv *env, jclass class, jbyteArray dir, jint flags, jbyteArray order, jlong number) {
    char path[PATH_MAX], name[256];
    struct systx_begin begin = {(uint32_t)flags, 0, name, (uint64_t)number, NULL};
    (void)class;
    if (!string(env, dir, path, sizeof path) || !string(env, order, name, sizeof name)) return ENAMETOOLONG;
    return told(systx_begin_with(path, &begin));
}

NATIVE(jint, next0)(JNIEnv *env, jclass class, jbyteArray dir, jbyteArray order, jlongArray next) {
    char path[PATH_MAX], name[256];
    uint64_t number = 0;
    jlong out;
    int errors;
    (void)class;
    if (!string(env, dir, path, sizeof path) || !string(env, order, name, sizeof name)) return ENAMETOOLONG;
    errors = told(systx_next_order(path, name, &number));
    out = (jlong)number;
    (*env)->SetLongArrayRegion(env, next, 0, 1, &out);
    return errors;
}

NATIVE(jint, reset0)(JNIEnv *env, jclass class, jbyteArray dir, jbyteArray order, jlong next) {
    char path[PATH_MAX], name[256];
    (void)class;
    if (!string(env, dir, path, sizeof path) || !string(env, order, name, sizeof name)) return ENAMETOOLONG;
    return told(systx_reset_order(path, name, (uint64_t)next));
}

NATIVE(jint, scoped0)(JNIEnv *env, jclass class, jbyteArray dir, jint flags, jobjectArray paths, jbooleanArray reads) {
    jsize many = (*env)->GetArrayLength(env, paths);
    struct systx_path *scope = calloc((size_t)many + 1, sizeof *scope);
    char place[PATH_MAX], *names = calloc((size_t)many + 1, PATH_MAX);
    int errors = !scope || !names ? ENOMEM : string(env, dir, place, sizeof place) ? 0 : ENAMETOOLONG;
    (void)class;
    for (jsize i = 0; i < many && !errors; i++) {
        jbyteArray path = (*env)->GetObjectArrayElement(env, paths, i);
        jboolean only = JNI_FALSE;
        char *name = names + (size_t)i * PATH_MAX;
        (*env)->GetBooleanArrayRegion(env, reads, i, 1, &only);
        if (!string(env, path, name, PATH_MAX)) errors = ENAMETOOLONG;
        (*env)->DeleteLocalRef(env, path);
        scope[i] = (struct systx_path){name, only ? SYSTX_READ : SYSTX_WRITE, 0};
    }
    if (!errors) {
        struct systx_begin begin = {(uint32_t)flags, (uint32_t)many, NULL, 0, scope};
        errors = told(systx_begin_with(place, &begin));
    }
    free(scope);
    free(names);
    return errors;
}

NATIVE(jint, end0)(JNIEnv *env, jclass class) {
    (void)env, (void)class;
    return told(xend());
}

NATIVE(jint, abort0)(JNIEnv *env, jclass class) {
    (void)env, (void)class;
    return told(xabort());
}

NATIVE(jlong, id0)(JNIEnv *env, jclass class) {
    (void)env, (void)class;
    return (jlong)xid();
}

NATIVE(jint, state0)(JNIEnv *env, jclass class) {
    struct systx_status status;
    (void)env, (void)class;
    return xstatus(&status) ? SYSTX_NONE : (jint)status.state;
}

/* Modified UTF-8 has no bytes above 0x7f standing alone: others than ASCII become question marks. */
static jstring text(JNIEnv *env, char *words) {
    for (char *c = words; *c; c++)
        if ((unsigned char)*c > 0x7e) *c = '?';
    return (*env)->NewStringUTF(env, words);
}

NATIVE(jstring, conflict0)(JNIEnv *env, jclass class) {
    struct systx_status status;
    char words[2048] = "";
    (void)class;
    if (!xstatus(&status)) snprintf(words, sizeof words, "on %s with %s", status.path, status.words);
    return text(env, words);
}

/* Errors of a begin of which xstatus() tells more: about others it may tell of another transaction. */
static int tells(int number) {
    return number == EBUSY || number == ETIMEDOUT || number == EDEADLK || number == EEXIST || number == EOPNOTSUPP;
}

NATIVE(jstring, words0)(JNIEnv *env, jclass class, jint number, jboolean ends) {
    struct systx_status status;
    char words[1024];
    int told = (ends || tells(number)) && !xstatus(&status) && status.words[0];
    (void)class;
    snprintf(words, sizeof words, "%s%s%s", strerror(number), told ? ": " : "", told ? status.words : "");
    return text(env, words);
}
