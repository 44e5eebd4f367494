/* Appends FIRST, FIRST + STEP, ... below END to a log; all programs' numbers come in order.
 * cc ordered.c -lsystx; ./a.out DIR FIRST STEP END */
#include <stdio.h>
#include <stdlib.h>
#include <systx.h>
#include <unistd.h>

static int note(unsigned n) {
    FILE *log = fopen("log", "a");
    if (!log) return -1;
    fprintf(log, "%u\n", n);
    return fclose(log);
}

int main(int argc, char **argv) {
    if (argc != 5 || chdir(argv[1])) return 2;
    unsigned step = atoi(argv[3]), end = atoi(argv[4]);
    for (unsigned n = atoi(argv[2]); n < end; n += step) {
        struct systx_status status;
        for (unsigned flags = 0;; flags = SYSTX_RETRY) {
            if (xbegin_ordered(flags, "log", n)) return perror("xbegin_ordered"), 1;
            if (note(n)) xabort();
            else if (!xend()) break;
            if (xstatus(&status) || status.state != SYSTX_LOST) return puts(status.words), 1;
        }
    }
    return 0;
}
