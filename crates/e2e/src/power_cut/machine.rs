//! The machine: a small root image, a kernel with its first file system, and QEMU, which emulates
//! the processor.

use super::Res;
use crate::lab::{chmod, systx_binary, tool};
use crate::random::Random;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Size of the file system of the image.
const FS_SIZE: u64 = 64 << 20;
/// Size of the whole image: behind the file system is room for marks.
pub const DISK_SIZE: u64 = FS_SIZE + (1 << 20);
/// Where the machine notes that the run begins, and that it has reported success.
pub const MARKS: [(u64, &[u8]); 2] =
    [(FS_SIZE, b"the run begins"), (FS_SIZE + 4096, b"the run has committed")];

/// Memory of the machine, in MiB.
const MEMORY: u32 = 320;
/// Drivers that a kernel may have as modules.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "ext4", "fuse"];
/// The disk gets recorded with nothing in between.
const FIRST_INIT: &str = r#"#!/bin/busybox sh
busybox mount -t devtmpfs dev /dev
for module in /modules/*; do
    [ -e "$module" ] && busybox insmod "$module"
done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 1200 ]; do
    busybox sleep 0.1
    tries=$((tries + 1))
done
busybox mount -t ext4 /dev/vda /system || echo "power: the disk cannot be mounted"
busybox mount --move /dev /system/dev
exec busybox switch_root /system /sbin/init
"#;

/// What `systx-recover.service` does comes first, as early as there: the file systems are mounted,
/// nothing runs.
const INIT: &str = r#"#!/bin/sh
export PATH=/bin HOME=/root NO_COLOR=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
systx recover --all --json >/run/recovered 2>/run/said
code=$?
echo "power: recovered $code"
cat /run/recovered /run/said
mark() {
    dd if=/marks/$1 of=/dev/vda bs=512 seek=$2 count=1 conv=notrunc oflag=direct 2>/run/said || {
        echo "power: no mark"
        cat /run/said
    }
}
case $(cat /proc/cmdline) in *power=run*)
    # Somebody else syncs now and then, so that what is half done reaches the disk.
    while :; do sync; sleep 0.1; done &
    mark begin @BEGIN@
    if systx run -- sh /marks/change; then
        mark committed @COMMITTED@
        echo "power: committed"
    fi
    sleep 1
    ;;
esac
kill -9 -1
sleep 0.2
mount -o remount,ro / && echo "power: off"
poweroff -f
"#;

/// The work of the run: all kinds of changes, in the order in which the files come.
const CHANGE: &str = r#"cd /data || exit 1
set -e
mkdir new new/sub
i=0
while [ $i -lt 60 ]; do
    cat keep/$i >new/$i
    cat new/$i keep/$i >over/$i
    echo "one more line $i" >>grow/$i
    mv move/$i new/sub/moved$i
    mv swap/$i over/$((i + 60))
    rm gone/$i
    i=$((i + 1))
done
rmdir gone
mv tree elsewhere
mv elsewhere/a tree
chmod 700 over
chmod 600 keep/1 keep/2
ln keep/3 new/hard
ln -s ../keep/4 new/soft
rm keep/5
mkdir keep/5
mv deep/1/2/3/4 deep/top
"#;

/// Everything that a machine is started with.
pub struct Machine {
    dir: PathBuf,
    kernel: PathBuf,
    first: PathBuf,
    /// How long it may take to its end.
    pub limit: Duration,
}

impl Machine {
    /// From an unpacked kernel package; files go to `dir`.
    ///
    /// # Errors
    /// What is missing.
    pub fn new(dir: &Path, kernel: &Path, limit: Duration) -> Res<Machine> {
        let vmlinuz = find(&kernel.join("boot"), |n| n.starts_with("vmlinuz"))
            .ok_or_else(|| format!("{}: no boot/vmlinuz-* there", kernel.display()))?;
        let first = dir.join("first");
        first_file_system(&dir.join("first.d"), kernel, &first)?;
        Ok(Machine { dir: dir.to_owned(), kernel: vmlinuz, first, limit })
    }

    /// Starts the machine with a disk, waits until it is switched off; what it printed. With `log`
    /// all requests of the disk are recorded there.
    ///
    /// # Errors
    /// It did not end in time, or QEMU failed.
    pub fn boot(&self, disk: &Path, log: Option<&Path>, word: &str) -> Res<String> {
        let console = self.dir.join("console");
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-accel", "tcg", "-nodefaults", "-no-reboot", "-display", "none"])
            .args(["-monitor", "none", "-m", &MEMORY.to_string(), "-smp", "1"])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.first)
            .args(["-append", &format!("console=ttyS0 panic=-1 quiet power={word}")])
            // What the machine flushes has no need to reach the disk of this one.
            .arg("-blockdev")
            .arg(format!("raw,node-name=plain,cache.no-flush=on,{}", file(disk)));
        let mut drive = "plain";
        if let Some(log) = log {
            fs::write(log, b"").map_err(|e| format!("{}: {e}", log.display()))?;
            qemu.arg("-blockdev")
                .arg(format!("raw,node-name=log,cache.no-flush=on,{}", file(log)))
                .args(["-blockdev", "blklogwrites,node-name=recorded,file=plain,log=log"]);
            drive = "recorded";
        }
        // A disk with a cache that only flushes make durable.
        qemu.arg("-device").arg(format!("virtio-blk-pci,drive={drive},write-cache=on"));
        let ended = bounded(qemu, self.limit, &self.dir.join("qemu"));
        let said = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
        match ended {
            Ok(()) => Ok(said),
            Err(why) => Err(format!("{why}; the machine said: {}", tail(&said))),
        }
    }
}

fn file(path: &Path) -> String {
    // QEMU takes a comma for the next option.
    let name = path.display().to_string().replace(',', ",,");
    format!("file.driver=file,file.locking=off,file.filename={name}")
}

/// The last of what a machine said.
pub fn tail(said: &str) -> String {
    let lines: Vec<_> = said.lines().rev().take(30).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n  ")
}

/// Runs a program, and ends it if it takes too long.
fn bounded(mut command: Command, limit: Duration, says: &Path) -> Res<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let text = |e: std::io::Error| format!("{name}: {e}");
    let out = fs::File::create(says).map_err(text)?;
    let err = out.try_clone().map_err(text)?;
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().map_err(text)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("{name}: no process"))?;
    let fd = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| format!("{name}: {e}"))?;
    let in_time = crate::run::wait_readable(&fd, Instant::now() + limit);
    if !in_time {
        let _ = pidfd_send_signal(&fd, Signal::KILL);
    }
    let status = child.wait().map_err(text)?;
    if !in_time {
        return Err(format!("{name}: no end within {} s", limit.as_secs()));
    }
    if !status.success() {
        let said = fs::read_to_string(says).unwrap_or_default();
        return Err(format!("{name}: {status}: {}", said.trim()));
    }
    Ok(())
}

fn find(dir: &Path, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)
        .ok()?
        .flatten()
        .filter(|e| wanted(&e.file_name().to_string_lossy()))
        .map(|e| e.path())
        .collect();
    found.sort();
    found.pop()
}

/// The file system in memory that the kernel starts with: busybox, drivers, a script.
fn first_file_system(dir: &Path, kernel: &Path, to: &Path) -> Res<()> {
    for sub in ["bin", "dev", "system", "modules"] {
        fs::create_dir_all(dir.join(sub)).map_err(|e| e.to_string())?;
    }
    copy(&busybox()?, &dir.join("bin/busybox"), 0o755)?;
    put(&dir.join("init"), FIRST_INIT, 0o755)?;
    let modules = ["lib/modules", "usr/lib/modules"].map(|d| kernel.join(d));
    let modules = modules.iter().find_map(|d| find(d, |_| true));
    let mut order = Vec::new();
    if let Some(modules) = modules {
        for name in MODULES {
            with_dependencies(&modules.join("kernel"), name, dir, &mut order)?;
        }
    }
    let archive = format!(
        "cd '{}' && find . | busybox cpio -o -H newc 2>/dev/null >'{}'",
        dir.display(),
        to.display()
    );
    tool(Command::new("sh").args(["-c", &archive])).map(drop)
}

/// Adds a module after those that it needs. One that the package does not have is part of the
/// kernel.
fn with_dependencies(from: &Path, name: &str, dir: &Path, order: &mut Vec<String>) -> Res<()> {
    let name = name.replace('-', "_");
    if order.contains(&name) {
        return Ok(());
    }
    let Some(found) = module(from, &name) else { return Ok(()) };
    let bytes = match found.extension().and_then(|e| e.to_str()) {
        Some("ko") => fs::read(&found).map_err(|e| e.to_string())?,
        Some(packed) => {
            let program = if packed == "xz" { "xz" } else { "zstd" };
            let out = Command::new(program).arg("-dc").arg(&found).output();
            out.map_err(|e| format!("{program}: {e}"))?.stdout
        }
        None => return Ok(()),
    };
    for other in needs(&bytes) {
        with_dependencies(from, &other, dir, order)?;
    }
    let to = dir.join("modules").join(format!("{:02}-{name}.ko", order.len()));
    fs::write(&to, bytes).map_err(|e| format!("{}: {e}", to.display()))?;
    order.push(name);
    Ok(())
}

/// The modules that a module names as its dependencies.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|w| w == KEY) else { return Vec::new() };
    let list = module[at + KEY.len()..].split(|b| *b == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

fn module(from: &Path, name: &str) -> Option<PathBuf> {
    let mut todo = vec![from.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).ok()?.flatten() {
            let file = entry.file_name().to_string_lossy().replace('-', "_");
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                todo.push(entry.path());
            } else if file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".ko")) {
                return Some(entry.path());
            }
        }
    }
    None
}

fn busybox() -> Res<PathBuf> {
    crate::lab::find_program("busybox").ok_or_else(|| "no busybox here".into())
}

fn put(to: &Path, content: impl AsRef<[u8]>, mode: u32) -> Res<()> {
    fs::write(to, content).map_err(|e| format!("{}: {e}", to.display()))?;
    chmod(to, mode);
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Res<()> {
    fs::copy(from, to).map_err(|e| format!("{}: {e}", from.display()))?;
    chmod(to, mode);
    Ok(())
}

/// Makes the root image: busybox, systx with its libraries, and some hundred files to change.
///
/// # Errors
/// A tool is missing or failed.
pub fn make_image(dir: &Path, image: &Path, dice: &mut Random) -> Res<()> {
    let text = |e: std::io::Error| e.to_string();
    for sub in ["bin", "sbin", "dev", "proc", "sys", "run", "tmp", "root", "marks", "data"] {
        fs::create_dir_all(dir.join(sub)).map_err(text)?;
    }
    let busybox = busybox()?;
    copy(&busybox, &dir.join("bin/busybox"), 0o755)?;
    for name in tool(Command::new(&busybox).arg("--list"))?.lines() {
        if name != "busybox" {
            symlink("busybox", dir.join("bin").join(name)).map_err(text)?;
        }
    }
    let systx = dir.join("bin/systx");
    copy(systx_binary(), &systx, 0o755)?;
    // With what debuggers want of it, it may not fit; without strip(1) it is tried as it is.
    let _ = tool(Command::new("strip").arg(&systx));
    for library in tool(Command::new("ldd").arg(&systx))?.split_whitespace() {
        if library.starts_with('/') {
            let to = dir.join(library.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap_or(dir)).map_err(text)?;
            copy(Path::new(library), &to, 0o755)?;
        }
    }
    let sector = |at: u64| (at / super::log::SECTOR as u64).to_string();
    let init = INIT.replace("@BEGIN@", &sector(MARKS[0].0));
    put(&dir.join("sbin/init"), init.replace("@COMMITTED@", &sector(MARKS[1].0)), 0o755)?;
    put(&dir.join("marks/change"), CHANGE, 0o644)?;
    for (name, (_, text)) in ["begin", "committed"].into_iter().zip(MARKS) {
        let mut sector = text.to_vec();
        sector.resize(super::log::SECTOR, b'\n');
        put(&dir.join("marks").join(name), sector, 0o644)?;
    }
    for sub in ["keep", "over", "grow", "move", "swap", "gone"] {
        fs::create_dir(dir.join("data").join(sub)).map_err(text)?;
        for n in 0..60 {
            let len = 20 + dice.below(if n % 8 == 0 { 20_000 } else { 3_000 }) as usize;
            put(&dir.join("data").join(sub).join(n.to_string()), dice.bytes(len), 0o644)?;
        }
    }
    for sub in ["tree/a/b", "deep/1/2/3/4"] {
        fs::create_dir_all(dir.join("data").join(sub)).map_err(text)?;
        put(&dir.join("data").join(sub).join("file"), sub, 0o644)?;
    }
    let file = fs::File::create(image).map_err(text)?;
    file.set_len(DISK_SIZE).map_err(text)?;
    let options = "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    tool(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0", "-b", "4096", "-J", "size=8", "-E", options, "-d"])
            .arg(dir)
            .arg(image)
            .arg((FS_SIZE / 4096).to_string()),
    )
    .map(drop)
}
