use super::*;
use systx_protocol::HostPath;

fn side(mode: u32, size: u64) -> Side {
    Side {
        mode,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        size,
        mtime: systx_base::Time { secs: 0, nanos: 0 },
        target: None,
        rdev: 0,
    }
}

fn change(kind: ChangeKind, path: &str, old: Option<Side>, new: Option<Side>) -> Change {
    Change {
        kind,
        path: path.into(),
        from: None,
        old,
        new,
        content: false,
        bytes: 0,
        xattrs: vec![],
        dropped: false,
    }
}

fn link(target: &str) -> Side {
    Side { target: Some(target.into()), ..side(0o120777, target.len() as u64) }
}

fn text(change: &Change) -> String {
    let mut contents = Contents { client: None, target: None };
    String::from_utf8(unified(change, &mut contents).unwrap()).unwrap()
}

#[test]
fn links_modes_and_renames_have_git_headers() {
    let c = change(ChangeKind::Added, "/w/l", None, Some(link("to")));
    assert_eq!(
        text(&c),
        "diff --git a/w/l b/w/l\nnew file mode 120000\n--- /dev/null\n+++ b/w/l\n\
         @@ -0,0 +1 @@\n+to\n\\ No newline at end of file\n"
    );
    let c =
        change(ChangeKind::Attributes, "/w/f", Some(side(0o100644, 1)), Some(side(0o100755, 1)));
    assert_eq!(text(&c), "diff --git a/w/f b/w/f\nold mode 100644\nnew mode 100755\n");
    let mut c =
        change(ChangeKind::Renamed, "/w/new", Some(side(0o100644, 1)), Some(side(0o100644, 1)));
    c.from = Some("/w/old".into());
    assert_eq!(
        text(&c),
        "diff --git a/w/old b/w/new\nsimilarity index 100%\nrename from w/old\nrename to w/new\n"
    );
    assert_eq!(name_status(&[c.clone()], false), b"R\t/w/old\t/w/new\n");
    assert_eq!(name_status(&[c], true), b"R\0/w/old\0/w/new\0");
}

#[test]
fn an_empty_new_file_is_not_lost() {
    let c = change(ChangeKind::Added, "/w/e", None, Some(side(0o100600, 0)));
    assert_eq!(text(&c), "diff --git a/w/e b/w/e\nnew file mode 100600\n");
}

#[test]
fn what_git_does_not_know_is_remarked() {
    let c = change(ChangeKind::Added, "/w/d", None, Some(side(0o040750, 4096)));
    assert_eq!(text(&c), "# /w/d: new directory (mode 0750)\n");
    let mut c = change(
        ChangeKind::Attributes,
        "/w/f",
        Some(side(0o100644, 1)),
        Some(Side { uid: 5, gid: 5, ..side(0o104644, 1) }),
    );
    c.old = c.old.map(|old| Side { uid: 0, gid: 0, ..old });
    c.xattrs = vec!["user.x".into()];
    let said = text(&c);
    assert!(said.contains("# /w/f: mode 0644 -> 4644\n"), "{said}");
    assert!(said.contains("# /w/f: owner 0:0 -> 5:5\n"), "{said}");
    assert!(said.contains("extended attribute user.x differs"), "{said}");
}

/// What matters of a new object is what matters of one that is changed.
#[test]
fn what_a_new_object_may_do_and_whose_it_is_are_told() {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let told = |mode, uid, gid, rdev| {
        let new = Side { uid, gid, rdev, ..side(mode, 0) };
        text(&change(ChangeKind::Added, "/w/x", None, Some(new)))
    };
    let git = "diff --git a/w/x b/w/x\nnew file mode 100755\n";
    for special in [0o1000, 0o2000, 0o4000, 0o6000] {
        let said = format!("# /w/x: mode {:04o}\n{git}", special | 0o755);
        assert_eq!(told(0o100_755 | special, uid, gid, 0), said);
    }
    assert_eq!(told(0o100_755, uid, gid, 0), git);
    assert_eq!(told(0o100_755, uid + 1, gid, 0), format!("# /w/x: owner {}:{gid}\n{git}", uid + 1));
    for (kind, name) in [(0o040_000, "directory"), (0o010_000, "fifo"), (0o140_000, "socket")] {
        let said = format!("# /w/x: new {name} (mode 0700)\n# /w/x: owner {uid}:{}\n", gid + 1);
        assert_eq!(told(kind | 0o700, uid, gid + 1, 0), said);
    }
    let rdev = rustix::fs::makedev(8, 17);
    let said = told(0o060_600, uid, gid, rdev);
    assert_eq!(said, "# /w/x: new block device 8:17 (mode 0600)\n");
}

#[test]
fn a_new_type_is_a_removal_and_a_creation() {
    let c = change(ChangeKind::Retyped, "/w/x", Some(link("a")), Some(link("b")));
    let said = text(&c);
    assert!(said.contains("deleted file mode 120000") && said.contains("new file mode 120000"));
}

#[test]
fn unusual_names_are_quoted() {
    assert_eq!(quote(b"/a b/\xc3\xa9"), "/a b/é");
    assert_eq!(quote(b"/a\n\"\xff"), "\"/a\\n\\\"\\377\"");
    let c = change(ChangeKind::Deleted, "/w", Some(link("t")), None);
    let c = Change { path: HostPath(b"/a\tb".to_vec()), ..c };
    assert!(text(&c).starts_with("diff --git \"a/a\\tb\" \"b/a\\tb\"\n"));
    assert_eq!(name_only(&[c], true), b"/a\tb\0");
}

#[test]
fn stat_counts_lines() {
    let mut c = change(ChangeKind::Modified, "/w/l", Some(link("a")), Some(link("b")));
    c.content = true;
    let d = change(ChangeKind::Added, "/w/dir", None, Some(side(0o040755, 0)));
    let mut contents = Contents { client: None, target: None };
    let said = String::from_utf8(stat(&[c, d], &mut contents).unwrap()).unwrap();
    assert_eq!(said, " /w/l   | 2 +-\n /w/dir | directory\n 2 paths changed, +1 -1 lines\n");
}

/// All texts of up to three of these, which are what ends a line here or there.
fn texts() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut longest = all.clone();
    for _ in 0..3 {
        let longer = |text: &String| ["a", "b", "\n", "\r"].map(|more| format!("{text}{more}"));
        longest = longest.iter().flat_map(longer).collect();
        all.extend(longest.iter().cloned());
    }
    all
}

/// What a reader makes of a patch that knows one end of a line, as git and patch(1) do.
fn patched(old: &str, patch: &str) -> String {
    let mut rest: Vec<&str> = old.split_inclusive('\n').collect();
    let mut out: Vec<String> = Vec::new();
    let lines = patch.split_inclusive('\n').skip_while(|line| !line.starts_with("@@ "));
    let mut before = "";
    for line in lines.skip(1) {
        let (sign, line) = line.split_at(1);
        match sign {
            "+" => out.push(line.into()),
            "\\" if before == "-" => {}
            "\\" => assert_eq!(out.last_mut().and_then(String::pop), Some('\n'), "{patch:?}"),
            " " | "-" => {
                let is = rest.remove(0);
                assert_eq!(is.trim_end_matches('\n'), line.trim_end_matches('\n'), "{patch:?}");
                out.extend((sign == " ").then(|| line.to_owned()));
            }
            _ => panic!("{line:?} in {patch:?}"),
        }
        before = sign;
    }
    out.concat() + &rest.concat()
}

#[test]
fn whatever_ends_a_line_a_patch_gives_the_new_text() {
    for old in texts() {
        for new in texts().iter().filter(|new| **new != old) {
            let (before, after) = (link(&old), link(new));
            let mut c = change(ChangeKind::Modified, "/w/l", Some(before), Some(after));
            c.content = true;
            assert_eq!(patched(&old, &text(&c)), *new, "{old:?}");
        }
    }
}
