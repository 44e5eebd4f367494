//! Programs of others with several processes at work on one database, natively first and then in
//! every place; also with one of the processes killed (`several.py`).  What was acknowledged has
//! to be there, and the program's own check has to be content.

use systx_e2e::others::postgres;
use systx_e2e::spots::{Case, Spot, Work, cases, visit};
use systx_e2e::{long, needs, skip};

const SEVERAL: &str = include_str!("several.py");

/// Somebody else's work.
struct Program {
    name: &'static str,
    /// Acknowledgements of each worker.
    rounds: usize,
    /// What it begins with.
    prepare: String,
    /// What goes before and behind the command.
    around: fn(Case) -> (String, String),
    /// What is looked at on the host afterwards.
    check: &'static str,
}

/// `first`: which of the combinations of users and transports come first.
fn everywhere(program: &Program, first: usize) {
    let rounds = if long() { program.rounds * 2 } else { program.rounds };
    let chosen = std::env::var("SYSTX_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let prepare =
        format!("cat > several.py <<'SYSTX_END'\n{SEVERAL}\nSYSTX_END\n{}", program.prepare);
    for (n, mut case) in cases(first, long()).into_iter().enumerate() {
        // The path of a transaction is its owner's, and PostgreSQL refuses to be root.
        case.user |= program.name == "postgres" && case.spot == Spot::View;
        let seed = 10_000 * chosen + 1000 * (first + 1) + n;
        let (before, behind) = (program.around)(case);
        let name = program.name;
        let script =
            format!("{before} /usr/bin/python3 -B several.py {name} {seed} {rounds} {behind}");
        let work = Work { prepare: &prepare, script: &script, check: program.check, seconds: 600 };
        match visit(case, &work) {
            Ok(done) => eprintln!("{case:?}: {:?}: {}", done.took, done.out.replace('\n', "; ")),
            Err(why) => {
                assert_ne!(case.spot, Spot::Host, "{why}");
                eprintln!("left out: {case:?}: {why}");
            }
        }
    }
}

fn plainly(_: Case) -> (String, String) {
    (String::new(), String::new())
}

#[test]
fn sqlite_with_several_writers() {
    needs!("sqlite3");
    let check = "for db in *.db; do sqlite3 $db 'pragma integrity_check' | grep -qx ok; done";
    let program =
        Program { name: "sqlite", rounds: 5, prepare: String::new(), around: plainly, check };
    everywhere(&program, 0);
}

#[test]
fn git_with_several_committers() {
    needs!("git");
    let check = "export HOME=$PWD; git config --global safe.directory '*'; cd r; \
                 git fsck --strict --no-progress";
    let around = |_| ("HOME=$PWD GIT_CONFIG_NOSYSTEM=1".into(), String::new());
    let program = Program { name: "git", rounds: 5, prepare: String::new(), around, check };
    everywhere(&program, 1);
}

#[test]
fn lmdb_with_several_writers_and_readers() {
    let has = |module: &str| {
        let mut python = std::process::Command::new("/usr/bin/python3");
        python.args(["-c", &format!("import {module}")]);
        systx_e2e::lab::tool(&mut python).is_ok()
    };
    if !has("lmdb") {
        skip!("no lmdb for /usr/bin/python3 (package python3-lmdb)");
    }
    let check = "/usr/bin/python3 -c 'import lmdb\nfor d in \"lmdb-plain\", \"lmdb-writemap\":\n \
                 with lmdb.open(d, readonly=True) as e, e.begin() as t: \
                 assert int(t.get(b\"count\")) == sum(1 for _ in t.cursor()) - 1'";
    let program =
        Program { name: "lmdb", rounds: 12, prepare: String::new(), around: plainly, check };
    everywhere(&program, 0);
}

#[test]
fn mail_with_several_deliveries() {
    let program = Program {
        name: "mail",
        rounds: 10,
        prepare: String::new(),
        around: plainly,
        check: "[ -s mbox ]",
    };
    everywhere(&program, 1);
}

#[test]
fn postgres_with_several_clients() {
    needs!("setpriv");
    let Some(bin) = postgres() else { skip!("no PostgreSQL server below /usr/lib/postgresql") };
    // It refuses to be root, and users without a name.  Its socket and its shared memory are in the
    // directory.
    let prepare = format!(
        "chown postgres:postgres .; \
         exec setpriv --reuid=postgres --regid=postgres --clear-groups -- sh -ec ' \
           export PATH={}:$PATH LC_ALL=C PGHOST=$PWD PGUSER=me PGDATA=$PWD/d; \
           initdb -N -U me -A trust >log; rm log; \
           printf \"listen_addresses=\\047\\047\\ndynamic_shared_memory_type=mmap\\n\
             shared_buffers=16MB\\nmax_connections=20\\nautovacuum=off\\n\" >> d/postgresql.conf; \
           start() {{ pg_ctl -w -l log -o \"-k $PWD\" start >out; }}; \
           start; createdb b; pgbench -q -i -s 1 b 2>out; pg_ctl -w stop >out; rm log out'",
        bin.display()
    );
    let around = |case: Case| {
        let bin = postgres().unwrap_or_default();
        let root = "exec setpriv --reuid=postgres --regid=postgres --clear-groups --";
        let who = if case.user { "exec" } else { root };
        (who.to_owned(), bin.display().to_string())
    };
    let check = "grep -q . d/PG_VERSION; [ ! -e d/postmaster.pid ]";
    everywhere(&Program { name: "postgres", rounds: 10, prepare, around, check }, 0);
}
