//! Which CPUs there are, and pinning threads to them.

use rustix::thread::{CpuSet, sched_setaffinity};

/// The machine's CPUs as the kernel counts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// CPUs that could ever be there; one ring queue each.
    pub possible: usize,
    /// Numbers of those that are there now.
    pub online: Vec<usize>,
}

impl Cpus {
    pub fn detect() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).ok()?;
            parse(text.trim()).filter(|list| !list.is_empty())
        };
        let online = read("online").unwrap_or_else(|| (0..count).collect());
        let possible = read("possible").map_or(count, |list| list.len());
        Cpus { possible: possible.max(online.len()), online }
    }
}

/// Parses `0-3,8,10-11`.
fn parse(text: &str) -> Option<Vec<usize>> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // The kernel knows at most 8192 CPUs.
        if last < first || last > 1 << 16 {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

/// Keeps this thread on one CPU.  Where that is not allowed it floats, which is only slower.
pub(crate) fn pin(cpu: usize) {
    if cpu >= CpuSet::MAX_CPU {
        return;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %errno, "thread not pinned");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        for bad in ["", "-", "3-1", "x", "0-99999999999", "1,"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let here = Cpus::detect();
        assert!(here.possible >= here.online.len() && !here.online.is_empty());
    }
}
