//! The memory that a call takes at the SPs, about. Ranks let calls wait whose communicator would keep too much there.
//!
//! An SP cannot refuse a message: it may be the one that all others wait for. So the ranks bound what their SP keeps, and
//! with it what they make other SPs keep: blocks that have arrived before their destinations, and offers that wait for
//! earlier reads. The ordinary calls of a communicator start in the same order at all members, and the oldest one that is
//! not complete always starts, so calls that wait cannot wait for each other.

use crate::control::Table;
use crate::radix::Radix;

/// Bytes of a call at an SP: for each rank of the SP, each SP of the job, and each member, whose offer has a part.
const RANK: usize = 128;
const SERVICE: usize = 256;
const PART: usize = 256;

/// Bytes of a member of the SP in a call, for each block of its own, and for each short byte: with its message, its offer,
/// and in the answer.
const MEMBER: usize = 1024;
const BLOCK: usize = 96;
const SHORT: usize = 3;

/// Bytes of a member of the SP in an allreduce that waits at the SP for its turn, and for each of all members.
const VECTOR: usize = 2048;
const NAME: usize = 8;

/// SPs to which an SP passes a broadcast on: at least the most with the default.
const BELOW: usize = 16;

/// The size of a job's SPs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Ranks of the SP that has most, and number of SPs.
    ranks: usize,
    services: usize,
    /// Most SPs to which an SP passes a broadcast on.
    below: usize,
}

impl Window {
    pub(crate) fn new(table: &Table, radix: Radix) -> Self {
        let mut ranks = vec![0; table.services.len()];
        for of in &table.service_of {
            if let Some(count) = ranks.get_mut(*of as usize) {
                *count += 1;
            }
        }
        Self {
            ranks: ranks.into_iter().max().unwrap_or(0),
            services: table.services.len(),
            below: radix.most_below(table.services.len()).max(BELOW),
        }
    }

    /// Bytes that an exchange of blocks among `members` ranks takes at an SP, if each rank sends `short` bytes in messages.
    pub(crate) fn exchange(self, members: usize, short: usize) -> usize {
        let local = self.ranks.min(members);
        let each = MEMBER
            .saturating_add(members.saturating_mul(BLOCK))
            .saturating_add(short.saturating_mul(SHORT));
        let call = RANK * self.ranks + SERVICE * self.services;
        call.saturating_add(members.saturating_mul(PART))
            .saturating_add(local.saturating_mul(each))
    }

    /// Bytes that a gather takes at the SP of its root, which may be late: the offers of all members.
    pub(crate) fn gather(self, members: usize, short: usize) -> usize {
        let each = PART.saturating_add(short.saturating_mul(SHORT));
        let call = RANK * self.ranks + SERVICE * self.services;
        call.saturating_add(members.saturating_mul(each))
    }

    /// Bytes that a broadcast or a barrier takes at an SP: two levels of a tree, in each of which a member passes the data to
    /// the members of its SP, and to some others.
    pub(crate) fn tree(self, members: usize, short: usize) -> usize {
        let ranks = self.ranks.min(members).saturating_add(self.below);
        self.exchange(ranks, 0)
            .saturating_add(ranks.saturating_mul(short.saturating_mul(SHORT)))
            .saturating_mul(2)
    }

    /// Bytes that an allreduce takes at an SP until its turn. Only the first one of a communicator has its turn: its steps
    /// take as much as four exchanges, beside its segments.
    pub(crate) fn allreduce(self, members: usize, short: usize) -> usize {
        let each = VECTOR
            .saturating_add(members.saturating_mul(NAME))
            .saturating_add(short.saturating_mul(SHORT));
        self.ranks.min(members).saturating_mul(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ServiceAddress;

    #[test]
    fn the_cost_follows_the_largest_service_and_the_members() {
        let service = ServiceAddress {
            unique: 1,
            tcp: "dpu0:7700".to_owned(),
            worker: vec![1],
        };
        let table = Table {
            services: vec![service.clone(), service],
            service_of: vec![0, 1, 1],
        };
        let window = Window::new(&table, Radix::default());
        let call = 2 * RANK + 2 * SERVICE;
        let of = |local: usize, members: usize| {
            call + members * PART + local * (MEMBER + members * BLOCK)
        };
        assert_eq!(window.exchange(3, 0), of(2, 3));
        assert_eq!(window.exchange(1, 0), of(1, 1));
        assert_eq!(window.exchange(3, 10), of(2, 3) + 2 * 10 * SHORT);
        assert_eq!(
            window.allreduce(3, 10),
            2 * (VECTOR + 3 * NAME + 10 * SHORT)
        );
        let gather = 2 * RANK + 2 * SERVICE + 3 * (PART + 10 * SHORT);
        assert_eq!(window.gather(3, 10), gather);
        assert_eq!(window.exchange(usize::MAX, usize::MAX), usize::MAX);
    }
}
