//! What the programs of a run may take, as resource limits of each process (getrlimit(2)).

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Limits for CMD and all that it starts; `None`: as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Address space of each process, in bytes.
    pub memory: Option<u64>,
    /// Processes and threads of the user in the view; root is not bound by it.
    pub processes: Option<u64>,
    /// Processor time of each process.
    pub time: Option<Duration>,
}

impl Limits {
    /// Sets them for this process.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn set(&self) -> Result<(), Errno> {
        let seconds = |t: Duration| t.as_secs().saturating_add(u64::from(t.subsec_nanos() > 0));
        let wanted = [
            (Resource::As, self.memory),
            (Resource::Nproc, self.processes),
            (Resource::Cpu, self.time.map(seconds)),
        ];
        for (resource, most) in wanted {
            let Some(most) = most else { continue };
            let now = getrlimit(resource);
            // Nobody may go beyond what there was.
            let most = now.maximum.map_or(most, |max| most.min(max));
            // A process that is out of time is told first (SIGXCPU), and a second later ended.
            let maximum = match resource {
                Resource::Cpu => now.maximum.map_or(most + 1, |max| max.min(most + 1)),
                _ => most,
            };
            setrlimit(resource, Rlimit { current: Some(most), maximum: Some(maximum) })?;
        }
        Ok(())
    }
}
