//! On-demand paging: advertised capabilities, registrations that request it, and prefetches.
//!
//! The device resolves addresses at each access, for every region. A region with on-demand paging
//! therefore need not be mapped at registration, and an access finds the pages of that moment. A page
//! that the kernel cannot provide then causes an error of the request: the kernel resumes the fault
//! with an error (`mlx5/odp.c`, `mlx5_ib_page_fault_resume`), and firmware chooses the status. That of
//! the requester's own page is a local protection error (ConnectX-4 Lx, pmem/rpma issue 1142). That of
//! a page of the other side has no public source; here it is that of a key that does not permit the
//! access, or a remote operation error of a message's receive entry.

use super::abi::advise_mr;
use super::ioctl::{Fields, Ioctl};
use crate::commands::call::{Call, Kind};
use crate::fabric::counters::Command;
use crate::fabric::numbers::slot_of;
use crate::fabric::objects::{Mkey, MkeyOrigin};
use crate::sys::{Errno, mapping};
use mlx5_prm::umr::access;

/// `enum ib_odp_general_cap_bits`: on-demand paging, and a region of all memory.
pub(super) const GENERAL_CAPS: u64 = 1 << 0 | 1 << 1;
/// `enum ib_odp_transport_cap_bits`: send, receive, write, read, atomic, receive by a shared queue.
pub(super) const RELIABLE_CAPS: u32 = 0x3f;
/// Datagrams support on-demand paging for sends only.
pub(super) const DATAGRAM_CAPS: u32 = 1 << 0;

/// Bytes of a region of all memory of its process: the whole address range of user space.
pub(super) const ALL_BYTES: u64 = 1 << 47;

/// Bytes of `struct ib_uverbs_sge`.
pub(super) const ENTRY_BYTES: u16 = 16;

/// `enum ib_uverbs_advise_mr_advice`.
const PREFETCH_WRITE: u64 = 1;
/// The device learns of the pages that are there.
const PREFETCH_NO_FAULT: u64 = 2;
const ADVICE_MAX: u64 = PREFETCH_NO_FAULT;
/// The call waits for the end of the prefetch.
const FLUSH: u32 = 1 << 0;

/// True if an on-demand registration covers all memory (`ib_umem_odp_alloc_implicit`).
pub(super) fn is_everything(start: u64, length: u64) -> bool {
    start == 0 && length == u64::MAX
}

/// `ADVISE_MR`: the kernel provides pages before the first access (`mlx5_ib_advise_mr_prefetch`).
/// With the flag to wait, it reports a range that it cannot provide.
pub(super) fn advise(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::Other);
    let pd = Kind::Pd.slot(ioctl.number32(advise_mr::PD_HANDLE)?)?;
    let advice = ioctl.number(advise_mr::ADVICE)?;
    let waits = ioctl.flags(advise_mr::FLAGS, FLUSH)? != 0;
    let list = ioctl.input(advise_mr::SGE_LIST, 0)?;
    if advice > ADVICE_MAX {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let entries = list.chunks_exact(usize::from(ENTRY_BYTES));
    if !entries.remainder().is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    let mut ranges = Vec::new();
    for entry in entries {
        let entry = Fields(entry);
        let wanted = Wanted {
            pd,
            advice,
            address: entry.u64(0),
            length: entry.u32(8),
            lkey: entry.u32(12),
        };
        let range = wanted.range(call)?;
        if waits {
            provide(advice, range.ok_or(Errno(libc::EFAULT))?)?;
        } else {
            ranges.extend(range);
        }
    }
    for range in ranges {
        // Nobody waits for the answer.
        let _ = provide(advice, range);
    }
    Ok(())
}

/// Makes the kernel provide the pages of a range of this process.
fn provide(advice: u64, (start, length): (u64, u64)) -> Result<(), Errno> {
    match advice {
        PREFETCH_NO_FAULT => Ok(()),
        _ => mapping::populate(start, length, advice == PREFETCH_WRITE),
    }
}

/// One range of an advice.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    pd: u32,
    advice: u64,
    address: u64,
    length: u32,
    lkey: u32,
}

impl Wanted {
    /// The addresses in this process; None if they are not all in the region.
    fn range(self, call: &Call<'_>) -> Result<Option<(u64, u64)>, Errno> {
        let locked = call.lock();
        let function = locked.peek(call.function());
        function
            .pds
            .owned(self.pd, call.context.number)
            .ok_or(Errno(libc::ENOENT))?;
        let slot = slot_of(self.lkey).ok_or(Errno(libc::ENOENT))?;
        let mkey = function.mkeys.get(slot).ok_or(Errno(libc::ENOENT))?;
        self.check(mkey)?;
        let length = u64::from(self.length);
        if !covers(mkey, self.address, length) {
            return Ok(None);
        }
        // Another process has other pages there.
        let owner = function.mkeys.owner(slot).map(|owner| owner.process);
        let length = match owner == Some(call.owner()?.process) {
            true => length,
            false => 0,
        };
        // Cannot overflow: the key covers the range.
        Ok(Some((mkey.host + (self.address - mkey.start), length)))
    }

    /// Checks that the region in the key's slot permits this advice (`get_prefetchable_mr`).
    fn check(self, mkey: &Mkey) -> Result<(), Errno> {
        let [variant, ..] = self.lkey.to_le_bytes();
        if mkey.variant != variant || mkey.origin == MkeyOrigin::Region && !mkey.on_demand {
            return Err(Errno(libc::ENOENT));
        }
        if mkey.origin != MkeyOrigin::Region {
            return Err(Errno(libc::EINVAL));
        }
        let writes = self.advice == PREFETCH_WRITE;
        if mkey.pd != self.pd || writes && mkey.access & access::LOCAL_WRITE == 0 {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }
}

fn covers(mkey: &Mkey, address: u64, length: u64) -> bool {
    // Neither operation can overflow unnoticed: the ranges of keys were checked at their creation.
    address.checked_sub(mkey.start).is_some_and(|from| {
        from.checked_add(length)
            .is_some_and(|behind| behind <= mkey.len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFETCH: u64 = 0;
    const START: u64 = 0x10_0000;
    const BYTES: u64 = 0x3000;

    fn region() -> Mkey {
        Mkey {
            origin: MkeyOrigin::Region,
            on_demand: true,
            pd: 3,
            variant: 0x5a,
            access: access::LOCAL_READ | access::LOCAL_WRITE,
            start: START,
            len: BYTES,
            ..Mkey::default()
        }
    }

    /// Advice on all of [`region`].
    const WHOLE: Wanted = Wanted {
        pd: 3,
        advice: PREFETCH,
        address: START,
        length: 0x3000,
        lkey: 0x70_005a,
    };

    fn check(wanted: Wanted, mkey: Mkey, expect: Result<(), i32>) {
        let answer = wanted.check(&mkey).map_err(|Errno(number)| number);
        assert_eq!(answer, expect, "{wanted:x?} {mkey:x?}");
    }

    #[test]
    fn advice_is_for_regions_on_demand_of_its_domain() {
        for advice in [PREFETCH, PREFETCH_WRITE, PREFETCH_NO_FAULT] {
            check(Wanted { advice, ..WHOLE }, region(), Ok(()));
        }
        let pinned = Mkey {
            on_demand: false,
            ..region()
        };
        let window = Mkey {
            origin: MkeyOrigin::Window,
            ..pinned
        };
        let other_variant = Mkey {
            variant: 0x5b,
            ..region()
        };
        let other_domain = Mkey { pd: 4, ..region() };
        for (mkey, expect) in [
            (pinned, libc::ENOENT),
            (other_variant, libc::ENOENT),
            (window, libc::EINVAL),
            (other_domain, libc::EPERM),
        ] {
            check(WHOLE, mkey, Err(expect));
        }
    }

    #[test]
    fn what_may_not_be_written_is_not_prefetched_for_writing() {
        let read_only = Mkey {
            access: access::LOCAL_READ,
            ..region()
        };
        for (advice, expect) in [
            (PREFETCH, Ok(())),
            (PREFETCH_WRITE, Err(libc::EPERM)),
            (PREFETCH_NO_FAULT, Ok(())),
        ] {
            check(Wanted { advice, ..WHOLE }, read_only, expect);
        }
    }

    #[test]
    fn advice_stays_within_its_region() {
        for (address, length, expect) in [
            (START, 0, true),
            (START + 1, 0x2fff, true),
            (START - 1, 1, false),
            (START, 0x3001, false),
            (START + BYTES, 1, false),
            (START + 1, u64::from(u32::MAX), false),
            (u64::MAX, u64::from(u32::MAX), false),
        ] {
            let covered = covers(&region(), address, length);
            assert_eq!(covered, expect, "{address:#x} {length:#x}");
        }
        // A region of all memory ends only at the end of the address range.
        let all = Mkey {
            start: 0,
            len: ALL_BYTES,
            ..region()
        };
        assert!(covers(&all, ALL_BYTES - 0x3000, 0x3000));
        assert!(!covers(&all, ALL_BYTES - 0x2fff, 0x3000));
    }

    #[test]
    fn all_of_memory_is_asked_for_in_one_way() {
        for (start, length, expect) in [
            (0, u64::MAX, true),
            (0, u64::MAX - 1, false),
            (0, 0, false),
            (0x1000, u64::MAX, false),
        ] {
            assert_eq!(is_everything(start, length), expect, "{start:x} {length:x}");
        }
    }
}
