//! Places of a team's ranks in UCC's context. They identify the processes, so a team whose ranks all belong to one job
//! joins it without a message: UCC's out-of-band allgather has one tag for all teams (`tl_ucp_tag.h`,
//! `UCC_TL_UCP_SERVICE_TAG`) and mixes up teams that threads create at the same time.

use crate::bindings as b;
use crate::bindings::{ucc_ep_map_t, ucc_team_params_t};
use std::ffi::c_void;

/// A team as all its ranks know it before they communicate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// UCC's number of the team. Teams of a process that exist at the same time have different ones.
    pub(crate) id: u16,
    /// The ranks' places in the context.
    pub(crate) places: Vec<u32>,
}

impl Identity {
    /// `None` if the program has not described the team by places in the context, or if these are not plausible.
    ///
    /// # Safety
    /// The parameters are those of a team that UCC creates now.
    pub(crate) unsafe fn of(params: &ucc_team_params_t, id: u16, size: u32) -> Option<Self> {
        if params.mask & u64::from(b::UCC_TEAM_PARAM_FIELD_EP_MAP) == 0 {
            return None;
        }
        let map = &params.ep_map;
        if map.ep_num != u64::from(size) {
            return None;
        }
        // SAFETY: the caller upholds the contract.
        let places: Option<Vec<u32>> = (0..size).map(|rank| unsafe { place(map, rank) }).collect();
        let places = places.filter(|places| are_distinct(places))?;
        Some(Self { id, places })
    }
}

/// The place of a rank.
///
/// # Safety
/// The map is one of UCC, and the rank is below its number of ranks.
unsafe fn place(map: &ucc_ep_map_t, rank: u32) -> Option<u32> {
    let place = match map.type_ {
        b::UCC_EP_MAP_FULL => u64::from(rank),
        b::UCC_EP_MAP_STRIDED => {
            // SAFETY: the type names the member of the union.
            let strided = unsafe { map.__bindgen_anon_1.strided };
            let step = strided.stride.checked_mul(i64::from(rank))?;
            strided.start.checked_add_signed(step)?
        }
        b::UCC_EP_MAP_ARRAY => {
            // SAFETY: the type names the member of the union.
            let array = unsafe { map.__bindgen_anon_1.array };
            let at: *const c_void = array.map;
            if at.is_null() {
                return None;
            }
            let at = at.wrapping_byte_add(array.elem_size.checked_mul(rank as usize)?);
            match array.elem_size {
                // SAFETY: the array has an element of this size for each rank.
                4 => u64::from(unsafe { at.cast::<u32>().read_unaligned() }),
                // SAFETY: the same.
                8 => unsafe { at.cast::<u64>().read_unaligned() },
                _ => return None,
            }
        }
        b::UCC_EP_MAP_CB => {
            // SAFETY: the type names the member of the union.
            let callback = unsafe { map.__bindgen_anon_1.cb };
            // SAFETY: the program's function with its argument, which UCC itself calls for each rank.
            unsafe { callback.cb?(u64::from(rank), callback.cb_ctx) }
        }
        _ => return None,
    };
    u32::try_from(place).ok()
}

fn are_distinct(places: &[u32]) -> bool {
    let mut sorted = places.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// Bits of a communicator's number: it has joined without a message; UCC's number of the team; the first member's rank in
/// the job; the other members and the count.
const JOINED: u64 = 1 << 63;
const ID_AT: u32 = 47;
const FIRST_AT: u32 = 31;
const REST: u64 = (1 << FIRST_AT) - 1;

/// A summary of a team's number and its members' ranks in the job.
pub(crate) fn summary(id: u16, members: &[u32]) -> u64 {
    let bytes = id.to_le_bytes().into_iter();
    hash(bytes.chain(members.iter().flat_map(|member| member.to_le_bytes())))
}

/// FNV-1a: all ranks must get the same value, also from builds with another standard library.
pub(crate) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The number of the `count`th communicator of these members whose team has this number of UCC. Its members agree on it
/// without a message, and no other communicator that exists at the same time has it: one of another first member or
/// of another number of UCC has other bits, and a first member has one team of a number at a time.
pub(crate) fn number(id: u16, members: &[u32], count: u64) -> u64 {
    let first = members.first().copied().unwrap_or(0);
    let rest = (summary(id, members) ^ summary(id, members) >> 32).wrapping_add(count) & REST;
    JOINED | u64::from(id) << ID_AT | u64::from(first & 0xffff) << FIRST_AT | rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::{
        UCC_TEAM_PARAM_FIELD_EP_MAP, ucc_ep_map_array, ucc_ep_map_cb, ucc_ep_map_strided,
        ucc_ep_map_t__bindgen_ty_1 as Kind,
    };
    use std::collections::BTreeSet;

    fn of(type_: u32, kind: Kind, size: u32) -> Option<Vec<u32>> {
        let params = ucc_team_params_t {
            mask: u64::from(UCC_TEAM_PARAM_FIELD_EP_MAP),
            ep_map: ucc_ep_map_t {
                type_,
                ep_num: 3,
                __bindgen_anon_1: kind,
            },
            ..Default::default()
        };
        // SAFETY: a valid map of three ranks.
        unsafe { Identity::of(&params, 7, size) }.map(|identity| identity.places)
    }

    unsafe extern "C" fn double(rank: u64, base: *mut c_void) -> u64 {
        // SAFETY: the test's number.
        let base = unsafe { base.cast::<u64>().read() };
        base + 2 * rank
    }

    #[test]
    fn each_kind_of_map_is_read() {
        let strided = |start, stride| Kind {
            strided: ucc_ep_map_strided { start, stride },
        };
        assert_eq!(
            of(b::UCC_EP_MAP_FULL, strided(0, 0), 3),
            Some(vec![0, 1, 2])
        );
        assert_eq!(
            of(b::UCC_EP_MAP_STRIDED, strided(9, -4), 3),
            Some(vec![9, 5, 1])
        );
        assert_eq!(
            of(b::UCC_EP_MAP_STRIDED, strided(1, -1), 3),
            None,
            "below 0"
        );
        assert_eq!(
            of(b::UCC_EP_MAP_STRIDED, strided(1, 0), 3),
            None,
            "one place"
        );
        let (mut short, mut long) = ([4_u32, 2, 0], [5_u64, 3, 1]);
        let array = |map: *mut c_void, elem_size| Kind {
            array: ucc_ep_map_array { map, elem_size },
        };
        let at = short.as_mut_ptr().cast();
        assert_eq!(
            of(b::UCC_EP_MAP_ARRAY, array(at, 4), 3),
            Some(vec![4, 2, 0])
        );
        assert_eq!(of(b::UCC_EP_MAP_ARRAY, array(at, 2), 3), None);
        let at = long.as_mut_ptr().cast();
        assert_eq!(
            of(b::UCC_EP_MAP_ARRAY, array(at, 8), 3),
            Some(vec![5, 3, 1])
        );
        let mut base = 10_u64;
        let cb = ucc_ep_map_cb {
            cb: Some(double),
            cb_ctx: (&raw mut base).cast(),
        };
        assert_eq!(of(b::UCC_EP_MAP_CB, Kind { cb }, 3), Some(vec![10, 12, 14]));
        assert_eq!(of(b::UCC_EP_MAP_CB, Kind { cb }, 2), None, "another size");
        assert_eq!(of(0, Kind { cb }, 3), None);
        // SAFETY: no map is named.
        let none = unsafe { Identity::of(&ucc_team_params_t::default(), 7, 3) };
        assert_eq!(none, None);
    }

    #[test]
    fn teams_that_exist_at_once_or_follow_each_other_have_different_numbers() {
        let mut seen = BTreeSet::new();
        for id in [0, 1, 0x7fff, 0x8001, u16::MAX] {
            for members in [&[0, 1][..], &[0, 1, 2], &[1, 0], &[65_535, 0], &[2, 3]] {
                for count in 0..100 {
                    let number = number(id, members, count);
                    assert!(seen.insert(number), "{id} {members:?} {count}");
                    assert!(
                        number > u64::from(u32::MAX),
                        "not one of an agreement by messages"
                    );
                }
            }
        }
    }
}
