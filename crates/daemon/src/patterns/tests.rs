use super::*;
use systx_protocol::patterns::{anchor, anchor_argument};

fn list(lines: &[&str]) -> Patterns {
    let dir = Path::new("/w/p");
    let wire: Vec<String> = lines.iter().filter_map(|l| anchor(l, dir, false)).collect();
    Patterns::compile(&wire).unwrap()
}

#[track_caller]
fn check(lines: &[&str], dropped: &[&str], kept: &[&str]) {
    let list = list(lines);
    for path in dropped {
        assert!(list.drops(path.as_bytes()), "{path} by {lines:?}");
    }
    for path in kept {
        assert!(!list.drops(path.as_bytes()), "{path} not by {lines:?}");
    }
}

#[test]
fn a_name_matches_at_any_depth_below_its_file() {
    check(&["*.o"], &["/w/p/a.o", "/w/p/x/y/a.o", "/w/p/x.o/inside"], &["/w/a.o", "/w/p/a.oo"]);
    // From the command line: everywhere.
    let wire = anchor("*.o", Path::new("/w/p"), true).unwrap();
    assert!(Patterns::compile(&[wire]).unwrap().drops(b"/elsewhere/a.o"));
}

#[test]
fn a_path_on_the_command_line_is_what_it_is_for_any_other_command() {
    let anchored = |pattern: &str| anchor_argument(pattern, Path::new("/w/p"));
    for (given, meant) in [
        ("/srv/data", "/srv/data"),
        ("/srv/data/*.log", "/srv/data/*.log"),
        ("./x", "/w/p/x"),
        ("./*.o", "/w/p/*.o"),
        ("../q/x", "/w/q/x"),
        ("../../../x", "/x"),
        ("d/x", "/w/p/d/x"),
        ("*.o", "/**/*.o"),
        ("x/", "/**/x/"),
        ("!/srv/data/keep", "!/srv/data/keep"),
    ] {
        assert_eq!(anchored(given).as_deref(), Some(meant), "{given}");
    }
    assert_eq!((anchored(""), anchored("/")), (None, None));
}

#[test]
fn a_path_is_relative_to_its_file() {
    check(
        &["/build", "doc/*.pdf", "a/**/z"],
        &["/w/p/build", "/w/p/build/x", "/w/p/doc/a.pdf", "/w/p/a/z", "/w/p/a/b/c/z"],
        &["/w/p/x/build", "/w/p/doc/x/a.pdf", "/w/p/a", "/w/p/b/z"],
    );
    check(&["out/"], &["/w/p/out", "/w/p/x/out/y"], &["/w/p/outer"]);
}

#[test]
fn the_last_match_decides_but_not_below_a_matched_directory() {
    check(&["*.log", "!keep.log"], &["/w/p/a.log"], &["/w/p/keep.log"]);
    check(&["!keep.log", "*.log"], &["/w/p/keep.log"], &[]);
    check(&["/logs", "!keep.log"], &["/w/p/logs/keep.log"], &[]);
}

#[test]
fn comments_blanks_and_quoting() {
    check(
        &["# no", "", "   ", "\\#yes", "\\!also", "trail   ", "star\\*"],
        &["/w/p/#yes", "/w/p/!also", "/w/p/trail", "/w/p/star*"],
        &["/w/p/# no", "/w/p/starx"],
    );
}

#[test]
fn classes() {
    check(
        &["[a-c]x", "[!0-9]y", "[]]z", "[open"],
        &["/w/p/bx", "/w/p/ay", "/w/p/]z", "/w/p/[open"],
        &["/w/p/dx", "/w/p/5y", "/w/p/az"],
    );
}

#[test]
fn a_directory_with_special_characters_matches_only_itself() {
    let wire = anchor("/x", Path::new("/w/[p]*"), false).unwrap();
    let list = Patterns::compile(&[wire]).unwrap();
    assert!(list.drops(b"/w/[p]*/x"));
    assert!(!list.drops(b"/w/p/x"));
}

#[test]
fn bad_wire_forms_are_refused() {
    for bad in ["", "x", "!x", "/", "//"] {
        assert!(Patterns::compile(&[bad.to_owned()]).is_err(), "{bad:?}");
    }
    assert!(!Patterns::default().drops(b"/x"));
}

#[test]
fn many_stars_take_no_time() {
    let glob = format!("/{}", "*a".repeat(40));
    let list = Patterns::compile(&[glob]).unwrap();
    assert!(!list.drops(format!("/{}", "a".repeat(39)).as_bytes()));
    assert!(list.drops(format!("/{}", "a".repeat(200)).as_bytes()));
}

#[test]
fn where_something_may_match_is_told_by_directory() {
    let lines = ["/var/log/**/*.log", "/var/log/syslog", "/w/logs/", "!/x/y", "/o\\*/a"];
    let patterns = Patterns::compile(&lines.map(str::to_owned)).unwrap();
    for dir in ["/var/log", "/var/log/apt", "/w", "/w/logs/deep", "/anything"] {
        // The last pattern begins with a sign that means another one.
        assert!(patterns.any_in(dir.as_bytes()), "{dir}");
    }
    let patterns = Patterns::compile(&lines[..4].iter().map(|l| (*l).into()).collect::<Vec<_>>());
    let patterns = patterns.unwrap();
    for dir in ["/", "", "/var", "/var/logs", "/x", "/x/y"] {
        assert!(!patterns.any_in(dir.as_bytes()), "{dir}");
    }
    for path in ["/var/log/a.log", "/var/log/apt/history.log", "/var/log/syslog", "/w/logs/x"] {
        let (dir, _) = path.rsplit_once('/').unwrap();
        assert!(patterns.any_in(dir.as_bytes()) && patterns.is_one(path.as_bytes()), "{path}");
    }
    assert!(!patterns.is_one(b"/var/log/wtmp"));
}

#[test]
fn the_pattern_that_decided_is_named_as_it_was_given() {
    let list = list(&["*.o", "/out", "!keep.o", "/a\\ "]);
    let which = |path: &str| list.which(path.as_bytes()).map(str::to_owned);
    assert_eq!(which("/w/p/x/a.o").as_deref(), Some("/w/p/**/*.o"));
    assert_eq!(which("/w/p/out/x/y").as_deref(), Some("/w/p/out"));
    assert_eq!(which("/w/p/a ").as_deref(), Some("/w/p/a\\ "));
    assert_eq!((which("/w/p/keep.o"), which("/w/p/x")), (None, None));
}
