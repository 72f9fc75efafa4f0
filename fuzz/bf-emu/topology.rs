//! Topology files: any text is a topology or an error, and a topology survives a round trip through
//! text.
#![no_main]

use std::path::Path;

use bf_emu::model::topology::Topology;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &str| {
    let file = Path::new("topology.toml");
    if let Ok(topology) = Topology::parse(file, input) {
        let again = Topology::parse(file, &topology.to_toml()).expect("what was written");
        assert_eq!(topology, again);
    }
});
