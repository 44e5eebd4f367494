"""Programs of others with several processes at work on one database, also with one of them killed.

    several.py PROGRAM SEED ROUNDS [PART]...

Works in the current directory.  Each worker is a process that says on its standard output what was
acknowledged to it.  Then everything acknowledged has to be there, and the program's own check of
its data has to be content.  Prints what it counted; ends with 0 if that is so."""

import hashlib, os, random, re, shutil, signal, subprocess, sys, threading, time

PROGRAM, SEED, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
REST = sys.argv[4:]
DICE = random.Random(SEED)
PATIENCE = 120
# For so many seconds nobody has a lock file.
STALE = 4
# Said by who has changed nothing.
READ = 'read'


def fail(*why):
    sys.exit(f'{PROGRAM}, seed {SEED}: ' + ' '.join(str(w) for w in why))


def sh(script, **how):
    done = subprocess.run(['sh', '-ec', script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, **how)
    if done.returncode != 0:
        fail(script, 'ended with', done.returncode, done.stdout[-1500:])
    return done.stdout


# Programs whose workers kill themselves.
SUICIDAL = ['lmdb']


def race(count, victim_at=None, part=''):
    """Runs so many workers.  If one is to be killed: the first one, with all that it has started,
    after so many of its acknowledgements and a moment.  Returns what was acknowledged to each."""
    told, errors = [[] for _ in range(count)], []
    command = [sys.executable, '-B', __file__, PROGRAM + '-worker', str(SEED), str(ROUNDS)]
    ends_at = victim_at if PROGRAM in SUICIDAL else None
    workers = [subprocess.Popen(command + [str(n), part, str(ends_at if n == 0 else None)],
                                stdout=subprocess.PIPE, text=True, start_new_session=True)
               for n in range(count)]

    def listen(n):
        for line in workers[n].stdout:
            told[n].append(line.rstrip('\n'))
            if n == 0 and len(told[0]) == victim_at and PROGRAM not in SUICIDAL:
                time.sleep(moment)
                os.killpg(workers[0].pid, signal.SIGKILL)

    moment = DICE.random() * 0.02
    listeners = [threading.Thread(target=listen, args=(n,)) for n in range(count)]
    [listener.start() for listener in listeners]
    deadline = time.monotonic() + PATIENCE
    for n, worker in enumerate(workers):
        # What waits for what a killed process has left is let go by the program's own means.
        while worker.poll() is None and time.monotonic() < deadline:
            if victim_at is not None and workers[0].poll() is not None:
                abandoned()
            time.sleep(0.02)
        if worker.poll() is None:
            errors.append(f'worker {n} hangs after {len(told[n])}')
            os.killpg(worker.pid, signal.SIGKILL)
        wanted = -signal.SIGKILL if victim_at is not None and n == 0 else 0
        if worker.wait() not in (wanted, 0):
            errors.append(f'worker {n} ended with {worker.returncode}')
    [listener.join() for listener in listeners]
    if errors:
        fail(part, errors)
    return told


# Files whose presence is a lock, of programs that leave them when they are killed.
GIT_LOCKS = ['.git/index.lock', '.git/HEAD.lock', '.git/refs/heads/main.lock']
LOCK_FILES = {'git': ['r/' + lock for lock in GIT_LOCKS], 'mail': ['mbox.lock']}


def abandoned():
    """What users do about a lock file that a killed process has left: one that stays the same for
    longer than anybody needs it."""
    for lock in LOCK_FILES.get(PROGRAM, []):
        now = identity(lock)
        if seen_locks.get(lock, (None, 0))[0] != now:
            seen_locks[lock] = (now, time.monotonic())
        elif now and time.monotonic() - seen_locks[lock][1] > STALE:
            os.unlink(lock)


def identity(path):
    try:
        now = os.stat(path)
        return (now.st_ino, now.st_mtime_ns)
    except FileNotFoundError:
        return None


def rounds_with_and_without_a_kill(check, count, part=''):
    """All workers live; then one is killed after some of its rounds."""
    everything = []
    for victim_at in (None, DICE.randrange(1, max(2, ROUNDS))):
        seen_locks.clear()
        told = race(count, victim_at, part or ('b' if victim_at else 'a'))
        full = told[1:] if victim_at else told
        if any(len(t) != ROUNDS for t in full):
            fail(part, 'acknowledged', [len(t) for t in told], 'of', ROUNDS)
        everything += [line for t in told for line in t if line != READ]
        check(everything)
    return len(everything)


seen_locks = {}


# SQLite: each row by a process of its own, in four modes.
MODES = ['wal', 'wal_mmap', 'rollback', 'rollback_mmap']


def sqlite():
    for mode in MODES:
        journal = 'wal' if mode.startswith('wal') else 'delete'
        sh(f"sqlite3 {mode}.db 'pragma journal_mode={journal}; "
           "create table t(a text primary key, b)'")

        def check(acknowledged):
            said = sh(f"sqlite3 -cmd '.timeout 20000' {mode}.db "
                      "'pragma integrity_check; select a from t'").split('\n')
            if said[0] != 'ok' or set(acknowledged) - set(said):
                fail(mode, said[0], 'missing', sorted(set(acknowledged) - set(said)))
        print(mode, rounds_with_and_without_a_kill(check, 4, mode))


def sqlite_worker(n, mode, _):
    size = 67108864 if mode.endswith('_mmap') else 0
    for i in range(ROUNDS):
        # Of the second race, too.
        row = f'{os.getpid()}-{n}-{i}'
        command = ['sqlite3', '-cmd', '.timeout 60000', '-cmd', f'pragma mmap_size={size}',
                   f'{mode}.db', f"insert into t values('{row}',randomblob(1500)); select count(*)>0 from t;"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f'{row}: {done.returncode}')
        print(row, flush=True)


# git: commits of several processes to one repository.
def git():
    sh('git init -q -b main r; cd r; git config user.email a@b.c; git config user.name n; '
       'git config gc.auto 0; git commit -q --allow-empty -m first')

    def check(acknowledged):
        sh('cd r; rm -f ' + ' '.join(GIT_LOCKS) + '; git fsck --strict --no-progress')
        lines = sh('cd r; git log --format=%s').split('\n')
        if set(acknowledged) - set(lines):
            fail('not reachable', sorted(set(acknowledged) - set(lines)))
        # What was killed may have been between its file and its commit.
        sh('cd r; git add -A; git commit -qm left || true; git status --porcelain')
        for name in {a.split('-')[0] for a in acknowledged}:
            sh(f'cd r; git show HEAD:{name} | cmp - {name}')
    print('commits', rounds_with_and_without_a_kill(check, 3))
    sh('cd r; git gc -q; git fsck --strict --no-progress')


def git_worker(n, part, _):
    os.chdir('r')
    name = f'{part}{n}'
    for i in range(ROUNDS):
        what = f'{name}-{i}'
        with open(name, 'a') as f:
            f.write(what + '\n')
        deadline = time.monotonic() + PATIENCE
        while True:
            commands = ['git', 'add', name], ['git', 'commit', '-qm', what, '--', name]
            for command in commands:
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0: break
            if done.returncode == 0: break
            # Of two that change the index at once one may lose what it has added; natively, too.
            again = re.search(r'\.lock|cannot lock ref|Unable to create|did not match', done.stderr)
            if not again or time.monotonic() > deadline:
                sys.exit(f'{done.args}: {done.returncode} {done.stderr}')
            time.sleep(0.005)
        print(what, flush=True)


# LMDB: writers and readers, with a lock in a shared mapping; also with data written by a mapping.
#
# A writer dies while it holds the lock, which is a robust mutex: the next one gets it.  A writer
# that is killed while it *waits* can take a wake-up with it, natively too: if a third one takes
# the free lock before the kernel looks at what the dead one waited for, nobody is woken again.
def lmdb_environment(part, **how):
    import lmdb
    return lmdb.open('lmdb-' + part, map_size=8 << 20, writemap=part == 'writemap', max_readers=16,
                     **how)


def lmdb():
    for part in ('plain', 'writemap'):
        os.mkdir('lmdb-' + part)

        def check(acknowledged):
            with lmdb_environment(part) as env, env.begin() as txn:
                keys = {key.decode(): value for key, value in txn.cursor()}
                count = int(keys.pop('count'))
            if count != len(keys) or set(acknowledged) - set(keys):
                missing = sorted(set(acknowledged) - set(keys))
                fail(part, count, 'counted', len(keys), 'there, missing', missing)
            for key, value in keys.items():
                if value != hashlib.sha256(key.encode()).digest() * 20:
                    fail(part, key, 'is damaged')
        print(part, rounds_with_and_without_a_kill(check, 4, part))


def lmdb_worker(n, part, ends_at):
    env = lmdb_environment(part)
    for i in range(ROUNDS):
        key = f'{os.getpid()}-{n}-{i}'
        if n != 3:
            with env.begin(write=True) as txn:
                txn.put(key.encode(), hashlib.sha256(key.encode()).digest() * 20)
                if str(i) == ends_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                txn.put(b'count', b'%d' % (int(txn.get(b'count', b'0')) + 1))
        with env.begin() as txn:
            count = sum(1 for _ in txn.cursor())
            if count and int(txn.get(b'count')) != count - 1:
                sys.exit(f'{count} keys, but {txn.get(b"count")}')
        print(key if n != 3 else READ, flush=True)
        if n == 3:
            time.sleep(0.001)


# Mail: a maildir and a mailbox with both kinds of locks, by several deliveries, and one that reads
# and moves.
def mail():
    for directory in ('tmp', 'new', 'cur'):
        os.makedirs('maildir/' + directory)
    open('mbox', 'w').close()

    def check(acknowledged):
        found = {}
        for directory in ('new', 'cur'):
            for name in os.listdir('maildir/' + directory):
                with open(f'maildir/{directory}/{name}') as f:
                    found.setdefault(whole(f.read()), []).append(name)
        if None in found or any(len(names) > 1 for names in found.values()):
            fail('in the maildir', {k: v for k, v in found.items() if k is None or len(v) > 1})
        boxed = open('mbox').read().split('\n\nFrom ')
        boxed = [whole(text.removeprefix('From ')) for text in boxed]
        for what in acknowledged:
            if what not in found or boxed.count(what) != 1:
                fail(what, 'is', len(found.get(what, [])), 'times in the maildir,',
                     boxed.count(what), 'in the mailbox')
    print('mails', rounds_with_and_without_a_kill(check, 4))


def letter(what):
    dice = random.Random(what)
    body = ''.join(dice.choice('abcdefgh \n') for _ in range(700)).replace('\n\n', '\n-')
    digest = hashlib.sha256(body.encode()).hexdigest()
    return (f'me Thu Jan  1 00:00:00 1970\nSubject: {what}\nDigest: {digest}\nBody: {body}\n:end')


def whole(text):
    """The subject of a letter if all of it is there."""
    found = re.match(r'me [^\n]*\nSubject: (.*)\nDigest: (.*)\nBody: (.*)\n:end\n*$', text, re.S)
    return found[1] if found and hashlib.sha256(found[3].encode()).hexdigest() == found[2] else None


def mail_worker(n, part, _):
    import fcntl
    for i in range(ROUNDS):
        what = f'{part}{n}-{i}'
        text = letter(what)
        name = f'{i}.{os.getpid()}.{part}{n}'
        with open('maildir/tmp/' + name, 'x') as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.rename('maildir/tmp/' + name, 'maildir/new/' + name)
        deadline = time.monotonic() + PATIENCE
        own = f'mbox.lock.{os.getpid()}'
        open(own, 'w').close()
        while True:
            try:
                os.link(own, 'mbox.lock')
                break
            except FileExistsError:
                time.sleep(0.002)
                if time.monotonic() > deadline:
                    sys.exit('mbox.lock stays')
        with open('mbox', 'r+') as f:
            fcntl.lockf(f, fcntl.LOCK_EX)
            end = f.seek(0, 2)
            f.write(('\n\nFrom ' if end else 'From ') + text)
            f.flush()
            os.fsync(f.fileno())
        os.unlink('mbox.lock')
        os.unlink(own)
        if n == 1:
            for name in os.listdir('maildir/new'):
                # Nobody else takes them away.
                os.rename('maildir/new/' + name, f'maildir/cur/{name}:2,S')
        print(what, flush=True)


# PostgreSQL: clients of one server, of which a process is killed: the server then starts all anew.
def postgres():
    where, bin = os.getcwd(), REST[0]
    os.environ.update(PATH=bin + ':' + os.environ['PATH'], LC_ALL='C', PGHOST=where, PGUSER='me',
                      PGDATA=where + '/d')
    # The directory has another path in each place.
    start = (f'pg_ctl -w -t 120 -l serverlog -o "-k {where}" start >out 2>&1 || '
             '{ cat out serverlog; exit 1; }; ')
    sh(start)
    try:
        for kill in (False, True):
            before = int(sh("psql -XAt b -c 'select count(*) from pgbench_history'"))
            # They work until the server ends all connections, so there is somebody to kill.
            rounds = '1000000' if kill else str(ROUNDS)
            command = ['pgbench', '-n', '-c', '6', '-j', '2', '-t', rounds, 'b']
            bench = subprocess.Popen(command, text=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT)
            if kill:
                kill_backend(before)
            said = bench.communicate(timeout=PATIENCE)[0]
            done = re.search(r'actually processed: (\d+)', said)
            if not done or (not kill and int(done[1]) != 6 * ROUNDS):
                fail(said)
            sums(before + int(done[1]))
        sh('pg_ctl -w -m immediate stop >out 2>&1')
        sh(start)
        print('transactions', sums(before))
        sh("psql -XAtq b -c 'vacuum full' -c checkpoint "
           "-c 'create extension if not exists amcheck' "
           "-c \"select bt_index_check(oid) from pg_class "
           "where relkind = 'i' and relam = 403 and relname like 'pgbench%'\"")
    finally:
        subprocess.run(['pg_ctl', '-w', '-m', 'immediate', 'stop'], capture_output=True)
    bad = sh("grep -E 'PANIC|invalid page|could not (read|write|fsync)' serverlog || true")
    if bad:
        fail(bad)
    sh('rm serverlog out')


def kill_backend(before):
    for _ in range(1000):
        said = sh("psql -XAt b -c \"select count(*) from pgbench_history\" "
                  "-c \"select pid from pg_stat_activity where backend_type = 'client backend' "
                  "and pid != pg_backend_pid()\"").split()
        if int(said[0]) > before and len(said) > 1:
            return os.kill(int(DICE.choice(said[1:])), signal.SIGKILL)
    fail('nobody to kill')


def sums(least):
    for _ in range(200):
        query = ('select (select sum(abalance) from pgbench_accounts) = '
                 '(select sum(delta) from pgbench_history), '
                 '(select sum(bbalance) from pgbench_branches) = '
                 '(select sum(tbalance) from pgbench_tellers), count(*) from pgbench_history')
        done = subprocess.run(['psql', '-XAt', 'b', '-c', query], capture_output=True, text=True)
        # It may be starting again.
        if done.returncode == 0:
            break
        time.sleep(0.1)
    a, b, count = done.stdout.strip().split('|')
    if (a, b) != ('t', 't') or int(count) < least:
        fail('sums', done.stdout, 'at least', least)
    return int(count)


if PROGRAM.endswith('-worker'):
    globals()[PROGRAM.replace('-', '_')](int(REST[0]), *REST[1:])
else:
    globals()[PROGRAM]()
