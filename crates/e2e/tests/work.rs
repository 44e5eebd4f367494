//! Real work inside: natively and in a run, compared in every byte and attribute; a kept run shows
//! nothing outside; what was committed can be undone.
//!
//! What differs natively from one time to the next (logs with times, pids, hashes of times) is left
//! out, each with its reason.  Packages come from the registries once and are cached.

use std::path::Path;
use systx_e2e::lab::find_program;
use systx_e2e::twin::Twin;
use systx_e2e::{Tree, cache, lab, skip};

fn named(path: &Path, names: &[&str]) -> bool {
    path.file_name().and_then(|n| n.to_str()).is_some_and(|n| names.contains(&n))
}

/// A C project of several dozen files with a configure script, written by this test.
const PROJECT: &str = include_str!("../data/c-project.sh");

#[test]
fn configure_make_install_of_a_c_project() {
    let lab = lab!();
    for tool in ["cc", "make", "ar"] {
        if find_program(tool).is_none() {
            skip!("no {tool}");
        }
    }
    Twin::new(&lab)
        .option("--private-tmp") // the compiler's temporary files
        .limit(300)
        .undone()
        .check(PROJECT, "set -e; ./configure --prefix=/usr >log 2>&1; make -j2 >>log 2>&1; make check; make install DESTDIR=$PWD/dest >/dev/null; sort -o log log");
}

/// GNU nano, from Debian's source package.
#[test]
fn configure_make_install_of_nano() {
    let lab = lab!();
    if std::env::var_os("SYSTX_LONG").is_none() {
        skip!("takes minutes: set SYSTX_LONG=1 (the generated C project runs always)");
    }
    let source = cache::get("nano-source", |dir| {
        cache::shell(
            dir,
            "sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > src.sources; \
             mkdir lists; o=\"-o Dir::Etc::sourcelist=$PWD/src.sources -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/lists -o APT::Sandbox::User=root\"; \
             apt-get $o update; apt-get $o source --download-only nano; rm -rf lists; mv nano_*.orig.tar.xz nano.tar.xz",
        )
    });
    let source = match source {
        Ok(dir) => dir.join("nano.tar.xz"),
        Err(why) => skip!("the source of nano cannot be had: {why}"),
    };
    Twin::new(&lab)
        .option("--private-tmp")
        .limit(900)
        .any_output()
        .undone()
        // config.log has pids and times in it.
        .ignore(|p| named(p, &["config.log"]))
        .check(
            &format!("tar x --strip-components=1 -f {}", source.display()),
            "set -e; ./configure --prefix=/usr >/dev/null 2>&1; make -j2 >/dev/null 2>&1; make install DESTDIR=$PWD/dest >/dev/null 2>&1; dest/usr/bin/nano --version",
        );
}

const DPKG: &str = "dpkg --root=$PWD/r --log=/dev/null --force-depends --force-script-chrootless --force-not-root --force-bad-path";

fn debs() -> Result<std::path::PathBuf, String> {
    cache::get("debs", |dir| cache::shell(dir, "apt-get download hello tree cowsay nano"))
}

#[test]
fn dpkg_installs_and_removes_packages() {
    let lab = lab!();
    if find_program("dpkg").is_none() {
        skip!("no dpkg");
    }
    let debs = match debs() {
        Ok(debs) => debs,
        Err(why) => skip!("packages cannot be had: {why}"),
    };
    let debs = debs.display();
    Twin::new(&lab)
        .option("--private-tmp")
        .limit(200)
        // update-alternatives writes a log with times.
        .ignore(|p| named(p, &["alternatives.log"]))
        .undone()
        .check(
            &format!("mkdir -p r/var/lib/dpkg/info r/var/lib/dpkg/updates r/var/lib/dpkg/triggers; : > r/var/lib/dpkg/status; {DPKG} -i {debs}/hello_*.deb"),
            &format!(
                "set -e; {DPKG} -i {debs}/tree_*.deb {debs}/cowsay_*.deb; {DPKG} -i {debs}/nano_*.deb; \
                 {DPKG} -r hello; {DPKG} -P cowsay; {DPKG} -l; {DPKG} --verify"
            ),
        );
}

/// Item 2: a package whose maintainer script fails half-way.
#[test]
fn a_package_that_fails_half_way_leaves_no_trace() {
    let lab = lab!();
    if find_program("dpkg-deb").is_none() {
        skip!("no dpkg-deb");
    }
    let build = "mkdir -p bad/DEBIAN bad/usr/share/bad bad/etc; for i in $(seq 50); do echo $i > bad/usr/share/bad/$i; done; echo c > bad/etc/bad.conf; \
        printf 'Package: bad\\nVersion: 1\\nArchitecture: all\\nMaintainer: N <n@example.org>\\nDescription: fails\\n' > bad/DEBIAN/control; \
        echo /etc/bad.conf > bad/DEBIAN/conffiles; \
        printf '#!/bin/sh\\necho state > $DPKG_ROOT/var/lib/bad-state\\necho line >> $DPKG_ROOT/etc/shells.local\\nfalse\\n' > bad/DEBIAN/postinst; \
        chmod 755 bad/DEBIAN/postinst; dpkg-deb --root-owner-group -b bad bad.deb >/dev/null; \
        mkdir -p r/etc r/var/lib/dpkg/info r/var/lib/dpkg/updates r/var/lib/dpkg/triggers; : > r/var/lib/dpkg/status; echo first > r/etc/shells.local";
    lab.native(build).ok();
    let before = lab.tree();
    for _ in 0..2 {
        let done = lab.run(&["--private-tmp"], &format!("{DPKG} -i bad.deb"));
        assert!(done.code == 1, "dpkg's own exit code\n{done}");
        before.assert_same(&lab.tree(), "a failed installation");
    }
    // Natively it does leave a trace: the test would notice.
    let done = lab.native(&format!("{DPKG} -i bad.deb"));
    assert_eq!(done.code, 1);
    assert!(before.differences(&lab.tree()).len() > 50);
}

#[test]
fn python_virtual_environment_with_pip() {
    let lab = lab!();
    if !Path::new("/usr/bin/python3").exists() {
        skip!("no /usr/bin/python3");
    }
    if !lab.native("/usr/bin/python3 -c 'import ensurepip'").err.is_empty() {
        skip!("python3-venv is not installed");
    }
    let wheels = cache::get("wheels", |dir| {
        cache::shell(
            dir,
            "/usr/bin/python3 -m venv v && v/bin/pip -q download -d . six==1.16.0 idna==3.6 && rm -rf v",
        )
    });
    let wheels = match wheels {
        Ok(dir) => dir,
        Err(why) => skip!("packages cannot be had: {why}"),
    };
    Twin::new(&lab)
        .option("--private-tmp")
        .limit(300)
        .any_output()
        .undone()
        .env("PIP_NO_INDEX", "1")
        .env("PIP_NO_CACHE_DIR", "1")
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        // Compiled modules have the modification time of their source in them.
        .ignore(|p| p.extension().is_some_and(|e| e == "pyc"))
        .check(
            "true",
            &format!(
                "set -e; /usr/bin/python3 -m venv v; v/bin/pip -q install --find-links {} six idna; v/bin/python -c 'import six, idna; print(six.__version__)'; v/bin/pip -q uninstall -y idna",
                wheels.display()
            ),
        );
}

#[test]
fn npm_install() {
    let lab = lab!();
    if find_program("npm").is_none() {
        skip!("no npm");
    }
    let packed = cache::get("npm", |dir| {
        cache::shell(
            dir,
            "export npm_config_cache=$PWD/cache; mkdir p; cd p; npm init -y >/dev/null; npm install --no-audit --no-fund is-odd@3.0.1 mkdirp@1.0.4 >/dev/null; cd ..; rm -rf p",
        )
    });
    let packed = match packed {
        Ok(dir) => dir,
        Err(why) => skip!("packages cannot be had: {why}"),
    };
    Twin::new(&lab)
        .option("--private-tmp")
        .limit(300)
        .any_output()
        .undone()
        // npm's own cache and logs have times in them.
        .ignore(|p| p.starts_with("cache"))
        .check(
            &format!("cp -r {}/cache cache; mkdir p; cd p; echo '{{\"name\":\"p\",\"version\":\"1.0.0\"}}' > package.json", packed.display()),
            "cd p; export npm_config_cache=$PWD/../cache npm_config_update_notifier=false; \
             npm install --offline --no-audit --no-fund --logs-max=0 is-odd@3.0.1 mkdirp@1.0.4 && node -e 'console.log(require(\"is-odd\")(3))' && ls node_modules/.bin",
        );
}

#[test]
fn cargo_build() {
    let lab = lab!();
    if find_program("cargo").is_none() {
        skip!("no cargo");
    }
    let rustup = std::env::var("RUSTUP_HOME")
        .unwrap_or_else(|_| format!("{}/.rustup", std::env::var("HOME").unwrap_or_default()));
    Twin::new(&lab)
        .option("--private-tmp")
        .limit(300)
        .any_output()
        .undone()
        .env("RUSTUP_HOME", rustup)
        .env("CARGO_INCREMENTAL", "0") // names of incremental directories are random
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TARGET_DIR", "target")
        // Fingerprints hash times; cargo's home has a lock with its times and a database.
        .ignore(|p| p.starts_with("home") || p.components().any(|c| c.as_os_str() == ".fingerprint") || p.starts_with("target/.rustc_info.json"))
        .check(
            "mkdir -p lib/src src home; printf '[package]\\nname=\"small\"\\nversion=\"0.1.0\"\\nedition=\"2021\"\\n[dependencies]\\nlib={path=\"lib\"}\\n' > Cargo.toml; \
             printf '[package]\\nname=\"lib\"\\nversion=\"0.1.0\"\\nedition=\"2021\"\\n' > lib/Cargo.toml; \
             echo 'pub fn seven() -> u32 { 7 }' > lib/src/lib.rs; echo 'fn main() { println!(\"{}\", lib::seven()); }' > src/main.rs; \
             mkdir -p tests; echo '#[test] fn it_works() { assert_eq!(lib::seven(), 7); }' > tests/t.rs",
            "export CARGO_HOME=$PWD/home; cargo build -q --offline && ./target/debug/small",
        );
}

#[test]
fn git_clone_commit_switch() {
    let lab = lab!();
    if find_program("git").is_none() {
        skip!("no git");
    }
    Twin::new(&lab)
        .limit(200)
        .undone()
        .env("GIT_AUTHOR_NAME", "n")
        .env("GIT_AUTHOR_EMAIL", "n@example.org")
        .env("GIT_COMMITTER_NAME", "n")
        .env("GIT_COMMITTER_EMAIL", "n@example.org")
        .env("GIT_AUTHOR_DATE", "2000-01-01T00:00:00Z")
        .env("GIT_COMMITTER_DATE", "2000-01-01T00:00:00Z")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        // The index has inode numbers and times in it.
        .ignore(|p| named(p, &["index"]))
        .check(
            "git init -q -b main o; cd o; for i in $(seq 300); do mkdir -p d$((i % 17)); seq $i > d$((i % 17))/$i; done; git add .; git commit -qm first; \
             git switch -qc other; git mv d1 moved; for i in 2 4 6; do echo changed >> d$i/$i; done; git commit -qam second; git switch -q main",
            "set -e; git clone -q o c; cd c; git status --short; git switch -q other; git status --short; ls | cksum; git log --oneline; \
             echo new > new; git add new; git commit -qm third; git switch -q main; git merge -q -m merged other; git rm -qr d3; git commit -qm fourth; \
             git stash list; git -c pack.threads=1 gc -q; git fsck; git ls-files -s | cksum; git status --short; cd ../o; git worktree add -q ../w other; git worktree list | wc -l; git status --short",
        );
}

#[test]
fn sqlite_in_all_journal_modes() {
    let lab = lab!();
    if !Path::new("/usr/bin/python3").exists() {
        skip!("no /usr/bin/python3");
    }
    let program = r#"
import multiprocessing, os, sqlite3, sys
def worker(name, mode, n):
    db = sqlite3.connect(name, timeout=60, isolation_level=None)
    if mode != 'wal': db.execute('pragma journal_mode=' + mode)
    for i in range(10):
        db.execute('begin immediate'); db.execute('update c set n = n + 1'); db.execute('commit')
    db.close()
for mode in ['delete', 'truncate', 'persist', 'memory', 'wal', 'off']:
    name = mode + '.db'
    db = sqlite3.connect(name, isolation_level=None)
    print(mode, db.execute('pragma journal_mode=' + mode).fetchone())
    db.execute('create table t(a integer primary key, b text)'); db.execute('create table c(n)'); db.execute('insert into c values(0)')
    db.execute('begin')
    for i in range(500): db.execute('insert into t values(?, ?)', (i, 'x' * (i % 100)))
    db.execute('commit')
    if mode != 'off':
        db.execute('begin'); db.execute('delete from t'); db.execute('rollback')
    db.execute('delete from t where a % 3 = 0'); db.execute('vacuum')
    if mode in ('delete', 'truncate', 'wal'):
        # Several processes at once: the locks work, and for wal the shared memory.
        ps = [multiprocessing.Process(target=worker, args=(name, mode, n)) for n in range(3)]
        for p in ps: p.start()
        for p in ps: p.join(); assert p.exitcode == 0
    old = sqlite3.connect('old.db'); old.execute('update t set b = ? where a = 5', (mode,)); old.commit(); old.close()
    print(db.execute('select count(*), sum(length(b)), (select n from c) from t').fetchone(), db.execute('pragma integrity_check').fetchone())
    db.close()
"#;
    Twin::new(&lab)
        .limit(200)
        .undone()
        .env("SQLITE_TMPDIR", ".")
        // A kept rollback journal has a random number in its header.
        .ignore(|p| p.to_string_lossy().ends_with("-journal"))
        .check(
            "/usr/bin/python3 -c \"import sqlite3; d=sqlite3.connect('old.db'); d.execute('create table t(a,b)'); d.executemany('insert into t values(?,?)', [(i, 'y'*50) for i in range(2000)]); d.commit()\"",
            &format!("/usr/bin/python3 - <<'SYSTX_END'\n{program}\nSYSTX_END\n"),
        );
}

#[test]
fn archives_and_copies() {
    let lab = lab!();
    Twin::new(&lab).limit(200).undone().check(
        "mkdir -p t/d; for i in $(seq 200); do echo $i > t/d/$i; done; ln t/d/1 t/hard; ln -s d t/soft; mkfifo t/fifo; truncate -s 2M t/sparse; chown 7:8 t/d/5; chmod 4711 t/d/6",
        "set -e; tar cf - t | tar xf - -C . --transform 's,^t,u,'; cp -a t v; tar czf t.tgz --mtime=@0 --sort=name --format=gnu t 2>/dev/null; gzip -l t.tgz | wc -l; rm -rf t; rm t.tgz; \
         find u v | sort; diff -r --no-dereference u/d v/d; mv u/d/* v/; find v -maxdepth 1 | wc -l",
    );
}

#[test]
fn a_killed_build_leaves_nothing() {
    let lab = lab!();
    lab.native(PROJECT).ok();
    let before = Tree::capture(lab.root());
    let done = lab.run(
        &["--private-tmp", "--timeout", "2"],
        "./configure >/dev/null; while :; do make -j2 >/dev/null; rm -r build; done >/dev/null 2>&1",
    );
    assert!(done.code != 0, "{done}");
    before.assert_same(&lab.tree(), "a build that ran out of time");
}
