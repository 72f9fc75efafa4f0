//! Which queue of a switch's port may transmit next: by priority, and by weights among those that have one (IEEE 802.1Qaz,
//! enhanced transmission selection), as deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).

/// Queues with a priority.
const QUEUES: u8 = 8;
/// Bytes per round and unit of weight.
const QUANTUM: u64 = 1_024;

/// State of the weighted queues of a port.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Turn {
    /// The queue that transmits, and the bytes that each one may still transmit in its turn.
    queue: u8,
    deficits: [u64; QUEUES as usize],
}

impl Turn {
    /// The queue that transmits next, of those in the mask `ready`; `first` has the bytes of the first packet of a queue. Queues
    /// without a weight come first, the higher one before the lower one.
    pub(crate) fn choose(
        &mut self,
        ready: u16,
        weights: &[u8; QUEUES as usize],
        first: impl Fn(u8) -> u64,
    ) -> Option<u8> {
        let shared = (0..QUEUES).filter(|queue| weights[usize::from(*queue)] > 0);
        let shared = shared.fold(0_u16, |all, queue| all | 1 << queue);
        let strict = (QUEUES..=QUEUES).chain((0..QUEUES).rev());
        let mut strict = strict.filter(|queue| ready & !shared & 1 << queue != 0);
        if let Some(queue) = strict.next() {
            return Some(queue);
        }
        if ready == 0 {
            return None;
        }
        // A queue without packets keeps nothing for later.
        for queue in 0..QUEUES {
            if ready & 1 << queue == 0 {
                self.deficits[usize::from(queue)] = 0;
            }
        }
        loop {
            let queue = self.queue;
            let deficit = &mut self.deficits[usize::from(queue)];
            if ready & 1 << queue != 0
                && let Some(rest) = deficit.checked_sub(first(queue))
            {
                *deficit = rest;
                return Some(queue);
            }
            self.queue = (queue + 1) % QUEUES;
            let next = usize::from(self.queue);
            if ready & 1 << self.queue != 0 {
                self.deficits[next] += u64::from(weights[next]) * QUANTUM;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shared_by_weight_after_the_queues_without_one() {
        let weights = [0, 0, 3, 0, 1, 0, 0, 0];
        let first = |queue| if queue == 2 { 4_000 } else { 1_000 };
        let (mut turn, mut bytes) = (Turn::default(), [0_u64; 9]);
        for number in 0..2_000 {
            // Queue 6 has a hundred packets, and pause frames come before them.
            let more = match number {
                0 => 1 << 8 | 1 << 6,
                1..=100 => 1 << 6,
                _ => 0,
            };
            let ready = 1 << 2 | 1 << 4 | more;
            let queue = turn.choose(ready, &weights, first).expect("packets wait");
            bytes[usize::from(queue)] += first(queue);
            assert_eq!(queue > 4, number <= 100, "without a weight first");
        }
        assert_eq!((bytes[8], bytes[6]), (1_000, 100_000));
        let ratio = 100 * bytes[2] / bytes[4];
        assert!((295..=305).contains(&ratio), "{bytes:?}");
    }

    #[test]
    fn a_queue_alone_gets_all_and_saves_nothing_for_later() {
        let mut turn = Turn::default();
        for _ in 0..4 {
            assert_eq!(turn.choose(1 << 4, &[1; 8], |_| 9_000), Some(4));
        }
        assert_eq!(turn.choose(0, &[1; 8], |_| 9_000), None);
        assert!(turn.deficits[4] < 9_000 + QUANTUM, "{turn:?}");
    }
}
