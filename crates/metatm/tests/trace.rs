//! Recorded traces: read, repeated on more processors, and refused if they are not what they say.

use std::collections::BTreeSet;
use systx_metatm::run;
use systx_metatm::settings::{Kernel, Settings};
use systx_metatm::stats::Spent;
use systx_metatm::workload::trace::{Trace, Unknown};

const HEAD: &str = "thread,begun,held,lock,name,place,io,touched\n";

fn kept() -> Trace {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/sections.csv");
    let text = std::fs::read_to_string(path).expect("the trace that is kept");
    Trace::parse(&text).expect("a trace")
}

#[test]
fn the_trace_that_is_kept_runs_with_locks_and_with_cxspinlocks_on_more_processors() {
    let trace = kept();
    for processors in [2, 8, 32] {
        for kernel in [Kernel::Linux, Kernel::Subsystem, Kernel::Cooperative] {
            for unknown in [Unknown::Same, Unknown::Own] {
                let settings = Settings::new(processors, kernel, 1);
                let outcome = run(&settings, trace.workload(processors, 1, unknown));
                assert_eq!(outcome.broken, [""; 0], "{processors} {kernel:?} {unknown:?}");
                assert!(outcome.units > 500, "{processors} {kernel:?}: {}", outcome.units);
            }
        }
    }
}

#[test]
fn the_trace_that_is_kept_has_the_locks_of_the_daemon() {
    let names: BTreeSet<String> =
        kept().workload(2, 1, Unknown::Own).locks.into_iter().map(|lock| lock.name).collect();
    for name in ["engine", "view", "content"] {
        assert!(names.contains(name), "{names:?}");
    }
}

#[test]
fn what_one_thread_used_is_its_own_in_each_repetition_and_the_rest_is_shared() {
    let lines = "1,0,100,0,a,x:1,0,0!\n1,200,100,1,b,x:2,0,1!\n2,0,100,0,a,x:1,0,2!\n";
    let trace = Trace::parse(&format!("{HEAD}{lines}")).expect("a trace");
    let workload = trace.workload(4, 1, Unknown::Own);
    // Threads 0 and 2 of the model repeat thread 1, threads 1 and 3 thread 2.
    let sites = |n: usize| {
        let used = workload.sites.iter().filter(move |site| site.lock == n);
        used.map(|site| site.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (sites(0), sites(1), sites(3)),
        (vec!["x:1".into()], vec!["x:2".into()], vec!["x:2".into()])
    );
    assert_eq!(sites(2), [""; 0]);
}

/// Threads that meet at a lock wait for it, and not where it is finer than that.
#[test]
fn nobody_meets_at_a_finer_lock() {
    let lines: String =
        (1..=4).map(|t| format!("{t},0,9000,0,a,x:1,0,7!\n{t},9000,9000,1,b,x:2,0,8!\n")).collect();
    let trace = Trace::parse(&format!("{HEAD}{lines}")).expect("a trace");
    let spun = |finer: &[&str]| {
        let workload = trace.finer(4, 1, Unknown::Own, finer);
        let outcome = run(&Settings::new(4, Kernel::Linux, 1), workload);
        assert_eq!(outcome.broken, [""; 0], "{finer:?}");
        outcome.stats.spent[Spent::Spin.index()]
    };
    let (none, one) = (spun(&[]), spun(&["a"]));
    assert!(one < none, "{one} {none}");
    assert_eq!(spun(&["a", "b"]), 0);
}

#[test]
fn nested_sections_are_nested_and_what_ends_too_late_ends_with_the_one_around_it() {
    let lines = "1,0,100,0,a,x:1,0,\n1,10,20,1,b,x:2,0,\n1,50,90,2,c,x:3,1,\n";
    let trace = Trace::parse(&format!("{HEAD}{lines}")).expect("a trace");
    let stats = run(&Settings::new(1, Kernel::Linux, 1), trace.workload(1, 1, Unknown::Own)).stats;
    assert_eq!(stats.locks.iter().map(|lock| lock.acquired).collect::<Vec<_>>(), [1, 1, 1]);
    let stats = Settings::new(1, Kernel::Cooperative, 1);
    let stats = run(&stats, trace.workload(1, 1, Unknown::Own)).stats;
    // I/O in the third one makes the first one take its lock, then the third one.
    assert_eq!((stats.restarts[2], stats.io_depth, stats.commits), (2, 3, 1));
}

#[test]
fn what_is_no_trace_is_refused_with_its_line() {
    for (lines, said) in [
        ("1,0,100,0,a,x:1,0\n", "line 2"),
        ("1,0,100,0,a,x:1,0,\n1,0,-1,0,a,x:1,0,\n", "line 3"),
        ("1,0,18446744073709551615,0,a,x:1,0,\n1,1,18446744073709551615,0,a,x,0,\n", "line 3"),
        ("1,0,1,0,a,x:1,0,1 x!\n", "line 2"),
        ("", "no sections"),
    ] {
        let why = Trace::parse(&format!("{HEAD}{lines}")).expect_err(lines);
        assert!(why.contains(said), "{lines:?}: {why}");
    }
}
