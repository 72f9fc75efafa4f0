//! The ranks of a team that take part in a call, if they are not all, and the calls among which it matches: the ranks of an active
//! set start calls that the others of the team do not count, and calls with a tag match those with the same one.
//!
//! Each set and tag of a team have a communicator, whose number all members compute. Its calls match in the order of their starts,
//! as UCC's own transport matches them (`tl_ucp_task.h`, `tl_ucp_tag.h`).

use crate::bindings as b;
use crate::bindings::ucc_coll_args_t;
use crate::places::hash;
use crate::plan::Refused;

/// Numbers of these communicators: no other one begins with these bits. The rest is a hash of 61 bits, so two of 65,536 are equal
/// once in 10^9 jobs.
const BITS: u64 = 0b001 << BITS_AT;
const BITS_AT: u32 = 61;

/// The participants of a call and its tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    /// Their ranks in the team, ascending.
    pub(crate) ranks: Vec<u32>,
    /// `None` without a set.
    is_active: bool,
    tag: Option<u16>,
}

/// A call of a set, as a call of a team that has no other ranks.
pub(crate) struct Within {
    pub(crate) args: ucc_coll_args_t,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl Set {
    /// `None` for a call of all ranks without a tag.
    ///
    /// # Errors
    /// Not a set of different ranks of the team with a broadcast.
    pub(crate) fn of(args: &ucc_coll_args_t, size: u32) -> Result<Option<Self>, Refused> {
        let has = |field| args.mask & u64::from(field) != 0;
        let tag = has(b::UCC_COLL_ARGS_FIELD_TAG).then_some(args.tag);
        if !has(b::UCC_COLL_ARGS_FIELD_ACTIVE_SET) {
            return Ok(tag.map(|tag| Self {
                ranks: (0..size).collect(),
                is_active: false,
                tag: Some(tag),
            }));
        }
        if args.coll_type != b::UCC_COLL_TYPE_BCAST {
            return Err(Refused(
                "an active set of a collective other than a broadcast",
            ));
        }
        let set = args.active_set;
        let ranks = (0..set.size.min(u64::from(size) + 1)).map(|at| {
            let step = set.stride.checked_mul(i64::try_from(at).ok()?)?;
            let rank = u32::try_from(set.start.checked_add_signed(step)?).ok()?;
            (rank < size).then_some(rank)
        });
        let ranks: Option<Vec<u32>> = ranks.collect();
        let mut ranks = ranks.ok_or(Refused("an active set with ranks outside the team"))?;
        // The members of a pair may each begin with themselves.
        ranks.sort_unstable();
        if ranks.is_empty() || ranks.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Refused("an active set without ranks, or with one twice"));
        }
        Ok(Some(Self {
            ranks,
            is_active: true,
            tag,
        }))
    }

    /// The call of `rank` in the numbering of the set.
    ///
    /// # Errors
    /// This rank or the root of a broadcast is not in the set.
    pub(crate) fn within(&self, args: &ucc_coll_args_t, rank: u32) -> Result<Within, Refused> {
        let place = |rank: u64| {
            let rank = u32::try_from(rank).ok()?;
            self.ranks.binary_search(&rank).ok()
        };
        let mut within = *args;
        within.mask &= !u64::from(b::UCC_COLL_ARGS_FIELD_ACTIVE_SET | b::UCC_COLL_ARGS_FIELD_TAG);
        if self.is_active {
            let root = place(args.root).ok_or(Refused("a root outside the active set"))?;
            within.root = root as u64;
        }
        Ok(Within {
            args: within,
            rank: place(rank.into()).ok_or(Refused("a rank outside its active set"))?,
            size: self.ranks.len(),
        })
    }

    /// The number of the communicator for this set of a team with that communicator.
    pub(crate) fn number(&self, team: u64) -> u64 {
        let tag = self.tag.map_or(u32::MAX, u32::from).to_le_bytes();
        let ranks = self.is_active.then_some(&self.ranks).into_iter().flatten();
        let ranks = ranks.flat_map(|rank| rank.to_le_bytes());
        let bytes = team.to_le_bytes().into_iter().chain(tag).chain(ranks);
        BITS | hash(bytes) & ((1 << BITS_AT) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn set(start: u64, stride: i64, size: u64, tag: Option<u16>) -> ucc_coll_args_t {
        let mut args = ucc_coll_args_t {
            mask: b::UCC_COLL_ARGS_FIELD_ACTIVE_SET.into(),
            coll_type: b::UCC_COLL_TYPE_BCAST,
            ..Default::default()
        };
        args.active_set.start = start;
        args.active_set.stride = stride;
        args.active_set.size = size;
        if let Some(tag) = tag {
            args.mask |= u64::from(b::UCC_COLL_ARGS_FIELD_TAG);
            args.tag = tag;
        }
        args
    }

    #[test]
    fn both_ends_of_a_pair_name_the_same_set() {
        let [mut one, mut other] = [set(3, 4, 2, Some(9)), set(7, -4, 2, Some(9))];
        for args in [&mut one, &mut other] {
            args.root = 7;
        }
        let of = |args: &_| Set::of(args, 8).expect("a set").expect("not all ranks");
        assert_eq!(of(&one), of(&other));
        assert_eq!(of(&one).ranks, [3, 7]);
        for (args, rank, place) in [(&one, 3, 0), (&other, 7, 1)] {
            let within = of(args).within(args, rank).expect("a member");
            assert_eq!((within.rank, within.size, within.args.root), (place, 2, 1));
            assert_eq!(within.args.mask, 0);
        }
        assert!(of(&one).within(&one, 4).is_err());
        one.root = 6;
        assert!(of(&one).within(&one, 3).is_err());
    }

    #[test]
    fn a_tag_alone_is_for_all_ranks() {
        let mut args = set(0, 0, 0, Some(5));
        args.mask = b::UCC_COLL_ARGS_FIELD_TAG.into();
        args.coll_type = b::UCC_COLL_TYPE_REDUCE;
        args.root = 2;
        let all = Set::of(&args, 4).expect("served").expect("a tag");
        let within = all.within(&args, 3).expect("a member");
        assert_eq!((within.rank, within.size, within.args.root), (3, 4, 2));
        args.mask = 0;
        assert_eq!(Set::of(&args, 4), Ok(None));
    }

    #[test]
    fn what_is_no_set_of_the_team_is_refused() {
        for (start, stride, size) in [
            (0, 1, 9),
            (4, -5, 2),
            (8, 1, 1),
            (2, 0, 2),
            (0, 1, 0),
            (u64::MAX, 1, 2),
            (1, i64::MAX, 3),
            (0, 1, u64::MAX),
        ] {
            let args = set(start, stride, size, None);
            assert!(Set::of(&args, 8).is_err(), "{start} {stride} {size}");
        }
        let mut args = set(0, 1, 2, None);
        args.coll_type = b::UCC_COLL_TYPE_BARRIER;
        assert!(Set::of(&args, 8).is_err());
    }

    #[test]
    fn sets_have_numbers_of_their_own() {
        let mut numbers = BTreeSet::new();
        let mut count = 0;
        for team in [0, 5, 1 << 63 | 77] {
            for tag in [None, Some(0), Some(1), Some(u16::MAX)] {
                for from in 0..128 {
                    for stride in 1..128 - from {
                        let args = set(from, stride.cast_signed(), 2, tag);
                        let set = Set::of(&args, 128).expect("a set").expect("a pair");
                        assert!(numbers.insert(set.number(team)));
                        count += 1;
                    }
                }
            }
        }
        assert_eq!(numbers.len(), count);
        assert!(numbers.iter().all(|number| number >> BITS_AT == 0b001));
    }
}
