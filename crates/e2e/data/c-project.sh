# Writes a C project of some eighty files with a configure script into the working directory.
mkdir -p src tests man
cat > configure <<'END'
#!/bin/sh
# Probes as autoconf's do: many small programs compiled, run and removed.
prefix=/usr/local
for arg; do case $arg in --prefix=*) prefix=${arg#--prefix=} ;; esac; done
: > config.h
for header in stdio stdlib string unistd stdint errno limits ctype time signal absent_one absent_two; do
  echo "#include <$header.h>
int main(void) { return 0; }" > conftest.c
  name=$(echo HAVE_${header}_H | tr a-z A-Z)
  if ${CC:-cc} -c conftest.c -o conftest.o 2>conftest.err; then echo "#define $name 1" >> config.h
  else echo "/* #undef $name */" >> config.h; fi
  rm -f conftest.c conftest.o conftest.err
done
echo 'int main(void) { return 0; }' > conftest.c
${CC:-cc} conftest.c -o conftest && ./conftest || exit 1
rm -f conftest conftest.c
sed "s|@prefix@|$prefix|" Makefile.in > Makefile.tmp && mv Makefile.tmp Makefile
echo configured
END
chmod +x configure
cat > Makefile.in <<'END'
prefix = @prefix@
CFLAGS = -O1 -I.
OBJECTS = $(patsubst src/%.c,build/%.o,$(wildcard src/*.c))
all: build/program build/libproject.a
build/%.o: src/%.c config.h
	@mkdir -p build
	$(CC) $(CFLAGS) -MMD -c $< -o $@
build/libproject.a: $(filter-out build/main.o,$(OBJECTS))
	rm -f $@
	ar rcsD $@ $^
build/program: build/main.o build/libproject.a
	$(CC) -o $@ $^
check: all
	./build/program
install: all
	install -d $(DESTDIR)$(prefix)/bin $(DESTDIR)$(prefix)/lib $(DESTDIR)$(prefix)/share/man/man1
	install -m 755 build/program $(DESTDIR)$(prefix)/bin/program
	install -m 644 build/libproject.a $(DESTDIR)$(prefix)/lib/
	for m in man/*.1; do install -m 644 $$m $(DESTDIR)$(prefix)/share/man/man1/; done
	ln -sf program $(DESTDIR)$(prefix)/bin/alias
	ln -f $(DESTDIR)$(prefix)/bin/program $(DESTDIR)$(prefix)/bin/program-1.0
END
{ echo '#include "config.h"'; echo '#include <stdio.h>'; for i in $(seq 40); do echo "int f$i(int);"; done
  echo 'int main(void) { int n = 0;'; for i in $(seq 40); do echo "  n += f$i(n);"; done
  echo '  printf("%d", n); puts(""); return 0; }'; } > src/main.c
for i in $(seq 40); do
  { echo '#include "config.h"'; echo '#include <stdlib.h>'; echo '#include <string.h>'
    echo "static int table[64] = { $i, 2, 3 };"
    echo "int f$i(int n) { int s = $i; for (int k = 0; k < 64; k++) s += table[k] * (n + k); return abs(s) % 1000; }"; } > src/f$i.c
  echo ".TH F$i 1" > man/f$i.1
done
