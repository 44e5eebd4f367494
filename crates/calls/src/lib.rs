//! The one table of all system calls of Linux on x86-64, and what each of them means inside a
//! transaction of a thread. It drives the interceptor of libsystx, and `systx syscalls` prints it.
//!
//! Numbers are those of Linux 6.18; a number that is not in the table is treated as
//! [`Class::Refused`].

#![forbid(unsafe_code)]

mod table;

pub use table::TABLE;

/// What becomes of a call inside a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// What it does to a guarded directory, to descriptors or to the place of the thread is in the
    /// transaction: isolated, and undone by an abort.
    Transactional,
    /// Its effect outside waits for the commit.
    Held,
    /// It is made as ever, and not undone: it concerns the program alone, or nothing.
    Passes,
    /// It has an effect outside that can neither wait nor be undone: made, or reported, refused, or
    /// the end of the transaction, as the flags of `xbegin` say.
    Refused,
}

impl Class {
    /// All, in the order in which they are told.
    pub const ALL: [Class; 4] = [Class::Transactional, Class::Held, Class::Passes, Class::Refused];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Class::Transactional => "transactional",
            Class::Held => "held back",
            Class::Passes => "passes",
            Class::Refused => "refused",
        }
    }
}

/// The descriptors that a call makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// None, or not by its result.
    Nothing,
    /// Its result is one.
    One,
    /// Two, at the address that this argument has.
    Pair(u8),
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub class: Class,
    /// Why.
    pub why: &'static str,
    /// Bit n: argument n is a descriptor of a file or directory.
    pub fds: u8,
    /// What descriptors it makes.
    pub makes: Makes,
}

/// The call with this number.
pub fn find(number: u64) -> Option<&'static Call> {
    let number = u16::try_from(number).ok()?;
    TABLE.binary_search_by_key(&number, |call| call.number).ok().map(|at| &TABLE[at])
}

/// How many calls are in a class.
pub fn count(class: Class) -> usize {
    TABLE.iter().filter(|call| call.class == class).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_every_number_of_the_kernel() {
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
        // The kernel left out 337 to 423, so that all architectures have the same numbers from
        // there on.
        let all: Vec<u16> = (0..=336).chain(424..=469).collect();
        let ours: Vec<u16> = TABLE.iter().map(|call| call.number).collect();
        assert_eq!(ours, all);
        assert_eq!(Class::ALL.map(count).iter().sum::<usize>(), TABLE.len());
    }

    #[test]
    fn every_number_is_found_and_no_other() {
        for call in TABLE {
            assert_eq!(find(u64::from(call.number)).map(|found| found.name), Some(call.name));
        }
        for none in [337, 423, 470, 65_536, u64::MAX] {
            assert!(find(none).is_none());
        }
    }

    #[test]
    fn names_are_unique_and_reasons_given() {
        let mut names: Vec<&str> = TABLE.iter().map(|call| call.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(TABLE.iter().all(|call| !call.why.is_empty()));
    }

    #[test]
    fn numbers_are_those_of_the_c_library() {
        let known = [
            (libc::SYS_read, "read"),
            (libc::SYS_rt_sigreturn, "rt_sigreturn"),
            (libc::SYS_sendfile, "sendfile"),
            (libc::SYS_clone, "clone"),
            (libc::SYS_kill, "kill"),
            (libc::SYS_getdents, "getdents"),
            (libc::SYS_prctl, "prctl"),
            (libc::SYS_tkill, "tkill"),
            (libc::SYS_tgkill, "tgkill"),
            (libc::SYS_openat, "openat"),
            (libc::SYS_splice, "splice"),
            (libc::SYS_pipe2, "pipe2"),
            (libc::SYS_renameat2, "renameat2"),
            (libc::SYS_rseq, "rseq"),
            (libc::SYS_pidfd_send_signal, "pidfd_send_signal"),
            (libc::SYS_openat2, "openat2"),
        ];
        for (number, name) in known {
            let call = find(u64::try_from(number).expect("a number")).expect("in the table");
            assert_eq!(call.name, name);
        }
    }

    #[test]
    fn names_are_those_of_the_kernel_s_header() {
        let header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
        let Ok(text) = std::fs::read_to_string(header) else {
            return println!("SKIPPED: {header} is not installed");
        };
        let mut seen = 0;
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("#define __NR_") else { continue };
            let Some((name, number)) = rest.split_once(' ') else { continue };
            let Ok(number) = number.trim().parse() else { continue };
            if let Some(call) = find(number) {
                assert_eq!(call.name, name);
                seen += 1;
            }
        }
        assert!(seen > 300, "{seen}");
    }
}
