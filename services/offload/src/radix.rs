//! The radix of the trees of a job's service processes.

/// Branches of a tree at each of its places; 0 stands for the defaults. All SPs of a job have the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Radix(pub(super) u32);

/// The smallest and the largest one: beyond it, a tree of the largest job has two levels.
pub(super) const RADIX: std::ops::RangeInclusive<i64> = 2..=128;

/// Branches of the tree of a broadcast by default.
pub const BROADCAST: usize = 2;

impl Radix {
    /// The radix of a broadcast's tree: an SP has one branch less on each level.
    pub(super) fn of_broadcast(self) -> usize {
        self.or(BROADCAST)
    }

    /// The branches of an SP in a gather or scatter. With as many other SPs or fewer, each offer goes straight to its SP.
    pub(super) fn of_relay(self) -> usize {
        self.or(4)
    }

    /// Most SPs to which an SP passes a broadcast on.
    pub(super) fn most_below(self, services: usize) -> usize {
        let radix = self.of_broadcast();
        let mut levels = 0;
        let mut reached = 1_usize;
        while reached < services {
            reached = reached.saturating_mul(radix);
            levels += 1;
        }
        levels * (radix - 1)
    }

    fn or(self, default: usize) -> usize {
        match self.0 {
            0 => default,
            // A number below the smallest one comes from no SP.
            radix => (radix as usize).max(2),
        }
    }
}
