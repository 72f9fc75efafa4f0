//! How the ranks of the SPs are spaced, and which blocks of a run are for the ranks of an SP.

use crate::wire::runs::Run;
use std::collections::VecDeque;
use std::rc::Rc;

/// Equally spaced ranks: first, distance and number.
pub(in crate::service) type Spaced = (u32, u32, u32);

/// How the ranks of the SPs are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Spacing {
    /// Not equally at one of them.
    None,
    /// Equally at each.
    Even,
    /// Each has neighbouring ranks.
    Neighbours,
}

/// An SP with members of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) struct Member {
    pub(in crate::service) service: u32,
    /// Its lowest rank, and number of its ranks.
    pub(in crate::service) first: u32,
    pub(in crate::service) count: u32,
}

/// Number of communicators whose SPs are kept.
const KEPT: usize = 8;

/// The SPs of the last communicators of equally spaced ranks: all ranks of an SP enter a call with the same members.
#[derive(Debug, Default)]
pub(in crate::service) struct Known(VecDeque<(Spaced, Rc<[Member]>)>);

impl Known {
    pub(in crate::service) fn get(&self, ranks: Spaced) -> Option<Rc<[Member]>> {
        let found = self.0.iter().find(|(of, _)| *of == ranks);
        found.map(|(_, members)| Rc::clone(members))
    }

    /// Keeps the SPs of a communicator in place of those of the oldest one.
    pub(in crate::service) fn keep(&mut self, ranks: Spaced, members: Rc<[Member]>) {
        self.0.truncate(KEPT - 1);
        self.0.push_front((ranks, members));
    }
}

/// The place of an SP among members.
pub(in crate::service) fn place_of(members: &[Member], service: u32) -> Option<usize> {
    let found = members.binary_search_by_key(&service, |member| member.service);
    found.ok()
}

/// The ranks of each SP. An SP without ranks has none.
pub(in crate::service) fn spaced(services: usize, service_of: &[u32]) -> (Spacing, Vec<Spaced>) {
    let mut spaced: Vec<Spaced> = vec![(0, 1, 0); services];
    let mut spacing = Spacing::Neighbours;
    for (rank, of) in (0..).zip(service_of) {
        let (first, step, count) = &mut spaced[*of as usize];
        match count {
            0 => *first = rank,
            1 => *step = rank - *first,
            _ if *first + *step * *count != rank => spacing = Spacing::None,
            _ => {}
        }
        *count += 1;
    }
    if spacing != Spacing::None && spaced.iter().any(|(_, step, _)| *step > 1) {
        spacing = Spacing::Even;
    }
    (spacing, spaced)
}

/// The blocks of a run that are for equally spaced ranks: index of the first one, distance and number. One of both has
/// neighbouring ranks.
pub(in crate::service) fn meet(run: &Run, (first, step, count): Spaced) -> Option<(u32, u32, u32)> {
    if count == 0 {
        return None;
    }
    // Ranks are below RANKS_MAX, so no sum overflows.
    let after = first + step * (count - 1) + 1;
    let (low, high, apart) = if run.step == 1 {
        let low = run.peer.saturating_sub(first).div_ceil(step);
        let end = (run.peer + run.count).saturating_sub(first);
        (low, end.div_ceil(step).min(count), step)
    } else {
        let low = first.saturating_sub(run.peer).div_ceil(run.step);
        let end = after.saturating_sub(run.peer);
        (low, end.div_ceil(run.step).min(run.count), 1)
    };
    if low >= high {
        return None;
    }
    let index = match run.step {
        1 => first + low * step - run.peer,
        _ => low,
    };
    Some((index, apart, high - low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Block;

    /// The blocks of a run for the ranks of each SP, found one by one and at once.
    #[track_caller]
    fn check(run: Run, service_of: &[u32]) {
        let services = service_of.iter().max().map_or(0, |most| *most as usize + 1);
        let (_, spaced) = spaced(services, service_of);
        for (to, spaced) in (0..).zip(spaced) {
            let expect: Vec<Block> = (0..run.count)
                .map(|at| run.block(at))
                .filter(|block| service_of[block.peer as usize] == to)
                .collect();
            let part =
                meet(&run, spaced).map(|(first, apart, count)| run.part(first, apart, count));
            let found: Vec<Block> = part
                .iter()
                .flat_map(|part| (0..part.count).map(|at| part.block(at)))
                .collect();
            assert_eq!(found, expect, "{run:?} at {to}");
        }
    }

    #[test]
    fn runs_are_divided_among_the_services() {
        let neighbours: Vec<u32> = (0..64).map(|rank| rank / 16).collect();
        let dealt: Vec<u32> = (0..64).map(|rank| rank / 32 * 4 + rank % 4).collect();
        assert_eq!(spaced(4, &neighbours).0, Spacing::Neighbours);
        assert_eq!(spaced(8, &dealt).0, Spacing::Even);
        assert_eq!(spaced(2, &[0, 1, 1, 0, 0]).0, Spacing::None);
        for (peer, step, count) in [
            (0, 1, 64),
            (5, 1, 40),
            (63, 1, 1),
            (0, 7, 10),
            (3, 16, 4),
            (17, 2, 20),
        ] {
            let run = Run {
                peer,
                step,
                count,
                offset: 3,
                stride: 8,
                length: 8,
            };
            check(run, &neighbours);
            if step == 1 {
                check(run, &dealt);
            }
        }
    }
}
