//! The flows of one host and priority that have packets to send, by the time of their next packet.
//!
//! A heap whose entries know their place, so that a new rate moves a flow at once. It never holds more than one entry per
//! flow.

/// A flow that is in no heap.
pub(crate) const OUT: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Pacer {
    heap: Vec<(u64, u32)>,
}

impl Pacer {
    /// The earliest flow and its time.
    pub(crate) fn first(&self) -> Option<(u64, u32)> {
        self.heap.first().copied()
    }

    /// Inserts or moves a flow. `places` has the position of each flow of the lab.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "positions are below the number of flows"
    )]
    pub(crate) fn set(&mut self, places: &mut [u32], flow: u32, time_ps: u64) {
        let place = places[flow as usize];
        let entry = (time_ps, flow);
        if place == OUT {
            let last = self.heap.len() as u32;
            self.heap.push(entry);
            places[flow as usize] = last;
            self.rise(places, last as usize);
            return;
        }
        let before = std::mem::replace(&mut self.heap[place as usize], entry);
        if entry < before {
            self.rise(places, place as usize);
        } else {
            self.sink(places, place as usize);
        }
    }

    /// Removes a flow, if it is in.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "positions are below the number of flows"
    )]
    pub(crate) fn remove(&mut self, places: &mut [u32], flow: u32) {
        let place = std::mem::replace(&mut places[flow as usize], OUT);
        if place == OUT {
            return;
        }
        let Some(last) = self.heap.pop() else { return };
        let place = place as usize;
        if place < self.heap.len() {
            self.heap[place] = last;
            places[last.1 as usize] = place as u32;
            self.rise(places, place);
            self.sink(places, places[last.1 as usize] as usize);
        }
    }

    fn rise(&mut self, places: &mut [u32], mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(places, at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, places: &mut [u32], mut at: usize) {
        loop {
            let mut least = at;
            for child in [at * 2 + 1, at * 2 + 2] {
                if child < self.heap.len() && self.heap[child] < self.heap[least] {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.swap(places, at, least);
            at = least;
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "positions are below the number of flows"
    )]
    fn swap(&mut self, places: &mut [u32], a: usize, b: usize) {
        self.heap.swap(a, b);
        places[self.heap[a].1 as usize] = a as u32;
        places[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_agrees_with_a_sorted_list() {
        const FLOWS: u32 = 40;
        let mut random = fastrand::Rng::with_seed(3);
        let mut places = vec![OUT; FLOWS as usize];
        let mut pacer = Pacer::default();
        let mut model: Vec<Option<u64>> = vec![None; FLOWS as usize];
        for _ in 0..5_000 {
            let flow = random.u32(0..FLOWS);
            if random.u32(0..4) == 0 {
                pacer.remove(&mut places, flow);
                model[flow as usize] = None;
            } else {
                let time = random.u64(0..100);
                pacer.set(&mut places, flow, time);
                model[flow as usize] = Some(time);
            }
            let expect = (0..FLOWS)
                .filter_map(|flow| model[flow as usize].map(|time| (time, flow)))
                .min();
            assert_eq!(pacer.first(), expect);
        }
    }
}
