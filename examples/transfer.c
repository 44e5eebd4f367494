/* Moves 1 from file a to file b of a guarded directory, N times.  cc transfer.c -lsystx; ./a.out DIR N */
#include <stdio.h>
#include <stdlib.h>
#include <systx.h>
#include <unistd.h>

static int add(const char *name, int n) {
    FILE *f = fopen(name, "r+");
    int value;
    if (!f) return -1;
    if (fscanf(f, "%d", &value) != 1) value = 0;
    rewind(f);
    fprintf(f, "%-12d", value + n);
    return fclose(f);
}

int main(int argc, char **argv) {
    if (argc != 3 || chdir(argv[1])) return 2;
    for (int i = 0; i < atoi(argv[2]); i++) {
        struct systx_status status;
        for (unsigned flags = 0;; flags = SYSTX_RETRY) {
            if (xbegin(flags)) return perror("xbegin"), 1;
            if (add("a", -1) || add("b", 1)) xabort();
            else if (!xend()) break;
            if (xstatus(&status) || status.state != SYSTX_LOST) return fputs("failed\n", stderr), 1;
        }
    }
    return 0;
}
