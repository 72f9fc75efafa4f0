//! Regions and spans of arbitrary numbers. They are refused, or their pieces cover every byte once
//! and in order, each with the key of its region and short enough for an entry of a key.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use xgvmi_pool::{Lkey, Region, Span, VirtAddr};

#[derive(Arbitrary, Debug)]
struct Part {
    /// Zero: continue at the end of the previous region.
    gap: u64,
    len: u64,
    /// Makes lengths that fit more likely.
    shift: u8,
    lkey: u32,
}

/// Maximum number of checked pieces: lengths of 2^62 have billions.
const PIECES_MAX: u64 = 4096;

fuzz_target!(|input: (u64, Vec<Part>)| {
    let (start, parts) = input;
    let mut next = start;
    let mut regions = Vec::new();
    let mut is_span = true;
    for part in parts {
        let addr = next.wrapping_add(part.gap);
        let len = part.len >> (part.shift % 64);
        let region = Region::new(VirtAddr::new(addr), len, Lkey::from_raw(part.lkey));
        let fits = len > 0 && addr.checked_add(len).is_some();
        assert_eq!(region.is_ok(), fits);
        let Ok(region) = region else {
            continue;
        };
        is_span &= regions.is_empty() || addr == next;
        regions.push(region);
        next = addr + len;
    }
    let span = Span::of(&regions);
    assert_eq!(span.is_ok(), is_span && !regions.is_empty());
    let Ok(span) = span else {
        return;
    };
    assert_eq!(span.addr().get() + span.len(), next);
    if span.klm_entries() > PIECES_MAX {
        return;
    }
    let mut at = span.addr().get();
    let mut entries = 0;
    for (addr, len, lkey) in span.klm_pieces() {
        let owner = regions
            .iter()
            .find(|region| addr.get() - region.addr().get().min(addr.get()) < region.len())
            .filter(|region| region.addr() <= addr);
        let owner = owner.expect("a piece of some region");
        assert_eq!(lkey, owner.lkey());
        assert!(addr.get() + u64::from(len) <= owner.addr().get() + owner.len());
        assert_eq!(addr.get(), at);
        assert!(len > 0 && u64::from(len) <= Region::KLM_BYTES_MAX);
        at += u64::from(len);
        entries += 1;
    }
    assert_eq!((at, entries), (next, span.klm_entries()));
});
