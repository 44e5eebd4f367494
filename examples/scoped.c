/* Moves 1 from file a to file b of a guarded directory, N times, and never has to try again.
 * cc scoped.c -lsystx; ./a.out DIR N */
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
    const struct systx_path scope[] = {{"a", SYSTX_WRITE, 0}, {"b", SYSTX_WRITE, 0}};
    if (argc != 3 || chdir(argv[1])) return 2;
    for (int i = 0; i < atoi(argv[2]); i++) {
        if (xbegin_scoped(0, scope, 2)) return perror("xbegin_scoped"), 1;
        if (add("a", -1) || add("b", 1) || xend()) return perror("transfer"), 1;
    }
    return 0;
}
