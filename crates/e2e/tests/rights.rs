//! Who may less than root: what is out of reach of an ordinary user, and what root in a container may not.

use systx_e2e::lab::find_program;
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Finished, Lab, lab, skip};

/// An id that no machine has.
const ANN: u32 = 12041;

/// A script of root in a mount namespace of its own, with all that it starts; `$SYSTX` is the program, `$U` in front of a
/// command has an ordinary user do it.
fn apart(lab: &Lab, script: &str) -> Finished {
    let mut command = lab.command("unshare");
    let user = format!("setpriv --reuid={ANN} --regid={ANN} --clear-groups --");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", script])
        .env("SYSTX", lab.binary())
        .env("U", user)
        .env("SYSTX_RUNTIME_DIR", lab.root().with_file_name("run"));
    finish(command, Limits::default(), lab)
}

#[test]
fn mounts_out_of_reach_keep_nobody_from_a_run() {
    let lab = lab!();
    if find_program("setpriv").is_none() || find_program("unshare").is_none() {
        skip!("no setpriv or no unshare (package util-linux)");
    }
    let own = lab.root().with_file_name("run");
    // Root's mounts behind a closed door, as those of container engines: of other file systems, and of parts of the volume.
    let script = format!(
        "set -e; mkdir -p -m 700 closed; mkdir -p closed/tmpfs closed/part closed/self closed/other part mine; echo in > closed/in; \
         cp \"$SYSTX\" systx; chmod 755 systx; chown {ANN} mine . {own}; \
         mount -t tmpfs none closed/tmpfs; mount --bind part closed/part; mount --bind closed/self closed/self; mount --bind /proc/sys closed/other; \
         for only in 1 ''; do export SYSTX_ONE_FILE_SYSTEM=$only; \
           $U ./systx run -- sh -c 'echo new > mine/new; ! ls closed 2>&1'; \
           test \"$(cat mine/new)\" = new; rm mine/new; \
         done",
        own = own.display()
    );
    let done = apart(&lab, &script).ok();
    assert!(done.out.contains("Permission denied"), "{done}");
    lab.kill_all();
}
