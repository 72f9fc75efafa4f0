//! Cost profiles: any text is a profile or an error, and the times of a profile are within their
//! limits.
#![no_main]

use bf_emu::model::profile::{COST_NS_MAX, CostKind, Profile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, u64)| {
    let (text, bytes) = input;
    if let Ok(profile) = Profile::parse("fuzzed", text) {
        for kind in CostKind::ALL {
            let cost = profile.table().cost_ns(kind, bytes);
            assert!(bytes > 1 << 47 || cost <= COST_NS_MAX, "{kind:?}: {cost}");
        }
        let again = Profile::parse("fuzzed", profile.text()).expect("what was kept");
        assert_eq!(again.table(), profile.table());
    }
});
