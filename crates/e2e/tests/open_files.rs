//! What plain programs have open in a guarded directory while transactions commit changes of it.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use systx_e2e::{Lab, lab};

/// How directories are mounted here.
const WAYS: [&[&str]; 1] = [&[]];

fn mount(lab: &Lab, options: &[&str]) {
    let call: Vec<&str> = [&["mount", "g"], options].concat();
    lab.do_systx(call).ok().says("is guarded");
}

/// The first bytes that a descriptor shows.
fn start_of(file: &File) -> String {
    let mut bytes = [0; 3];
    let n = file.read_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes[..n]).into()
}

fn begin(lab: &Lab) -> (String, std::path::PathBuf) {
    let begun = lab.do_systx(["begin", "g"]).ok();
    let (id, path) = begun.out.trim_end().split_once(' ').expect("an id and a path");
    (id.to_owned(), path.into())
}

fn filled(path: &Path, with: &str, len: usize) {
    std::fs::write(path, with.repeat(len / with.len())).expect("write");
}

/// Files of all sizes, below and above those that are overwritten whoever has them open, and of those that go to the disk while
/// the transaction runs.
#[test]
fn who_has_a_file_open_sees_a_commit_that_rewrites_it() {
    for way in WAYS {
        let lab = lab!();
        std::fs::create_dir(lab.path("g")).expect("mkdir");
        for len in [300, 200_001, 3_000_000] {
            filled(&lab.path(&format!("g/{len}")), "old", len);
            filled(&lab.path(&format!("g/run-{len}")), "old", len);
        }
        lab.native("chmod 755 g/run-*").ok();
        mount(&lab, way);
        for len in [300, 200_001, 3_000_000] {
            let (name, may_run) = (format!("g/{len}"), format!("g/run-{len}"));
            // All of it is in the kernel's cache: nothing that is read through these descriptors asks anybody.
            for name in [&name, &may_run] {
                std::fs::read(lab.path(name)).expect("read");
            }
            let [reader, runner] =
                [&name, &may_run].map(|n| File::open(lab.path(n)).expect("open"));
            let (id, view) = begin(&lab);
            filled(&view.join(len.to_string()), "new", len);
            filled(&view.join(format!("run-{len}")), "new", len);
            assert_eq!((start_of(&reader), start_of(&runner)), ("old".into(), "old".into()));
            lab.do_systx(["commit", &id]).ok();
            assert_eq!(start_of(&reader), "new", "{way:?}: {len} bytes");
            let same = |file: &File, name: &str| {
                let at = lab.path(name).metadata().expect("stat");
                file.metadata().expect("fstat").ino() == at.ino()
            };
            assert!(same(&reader, &name), "{way:?}: {len} bytes");
            assert_eq!(start_of(&File::open(lab.path(&name)).expect("open")), "new");
            // What may be running stays what it is to who has it open, whole, and is another file from then on.
            assert_eq!(start_of(&runner), "old", "{way:?}: {len} bytes");
            assert!(!same(&runner, &may_run));
            assert_eq!(start_of(&File::open(lab.path(&may_run)).expect("open")), "new");
        }
        lab.do_systx(["umount", "g"]).ok();
    }
}
