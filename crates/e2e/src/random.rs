//! Seeded choices for randomised tests.

/// xorshift64*: enough for picking moments and names, and the same everywhere.
pub struct Random(u64);

impl Random {
    /// From `SYSTX_SEED`, else always the same; printed, so that a failure of another one can be
    /// repeated.
    pub fn from_environment() -> Random {
        let seed = std::env::var("SYSTX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        eprintln!("SYSTX_SEED={seed}");
        Random::new(seed)
    }

    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.word() >> 16) % end
    }

    /// So many bytes that do not compress.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.word() as u8).collect()
    }
}
