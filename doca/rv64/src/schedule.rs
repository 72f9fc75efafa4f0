//! Which hart runs next, and for how many instructions. The same seed gives the same order on every machine.

use crate::trap::HartId;

/// How harts take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// One after the other, each for this number of instructions (at least 1).
    RoundRobin(u32),
    /// Any ready hart, for 1 to `longest` instructions, both drawn from a sequence that the seed determines.
    Random {
        /// The seed.
        seed: u64,
        /// Instructions, at least 1.
        longest: u32,
    },
}

/// The ready harts in their order.
#[derive(Debug)]
pub(crate) struct Turns {
    schedule: Schedule,
    state: u64,
    ready: Vec<HartId>,
    next: usize,
}

impl Turns {
    pub(crate) fn new(schedule: Schedule) -> Self {
        let state = match schedule {
            Schedule::RoundRobin(_) => 0,
            Schedule::Random { seed, .. } => seed,
        };
        Self {
            schedule,
            state,
            ready: Vec::new(),
            next: 0,
        }
    }

    pub(crate) fn add(&mut self, hart: HartId) {
        if !self.ready.contains(&hart) {
            self.ready.push(hart);
        }
    }

    pub(crate) fn remove(&mut self, hart: HartId) {
        if let Some(at) = self.ready.iter().position(|other| *other == hart) {
            self.ready.remove(at);
            if at < self.next {
                self.next -= 1;
            }
        }
    }

    /// The next hart and the instructions of its turn.
    pub(crate) fn next(&mut self) -> Option<(HartId, u64)> {
        let count = self.ready.len() as u64;
        if count == 0 {
            return None;
        }
        match self.schedule {
            Schedule::RoundRobin(slice) => {
                let at = if self.next < self.ready.len() {
                    self.next
                } else {
                    0
                };
                self.next = at + 1;
                Some((self.ready[at], slice.max(1).into()))
            }
            Schedule::Random { longest, .. } => {
                let at = usize::try_from(self.random() % count).unwrap_or_default();
                let slice = 1 + self.random() % u64::from(longest.max(1));
                Some((self.ready[at], slice))
            }
        }
    }

    /// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_round() {
        let mut turns = Turns::new(Schedule::RoundRobin(5));
        assert_eq!(turns.next(), None);
        for hart in [3, 1, 2, 1] {
            turns.add(hart);
        }
        let mut order = |count| {
            (0..count)
                .map(|_| turns.next().unwrap().0)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(4), [3, 1, 2, 3]);
        turns.remove(3);
        let mut order = |count| {
            (0..count)
                .map(|_| turns.next().unwrap().0)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(3), [1, 2, 1]);
    }

    #[test]
    fn the_sequence_is_the_published_one() {
        // The first outputs for the seed 1234567, as in the reference implementation's test vectors.
        let mut turns = Turns::new(Schedule::Random {
            seed: 1_234_567,
            longest: 1,
        });
        assert_eq!(turns.random(), 6_457_827_717_110_365_317);
        assert_eq!(turns.random(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seeds_determine_turns() {
        let order = |seed| {
            let mut turns = Turns::new(Schedule::Random { seed, longest: 100 });
            (0..8).for_each(|hart| turns.add(hart));
            (0..64).map(|_| turns.next().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert!(
            order(1)
                .iter()
                .all(|(hart, slice)| *hart < 8 && (1..=100).contains(slice))
        );
    }
}
