//! Limits of the device library, by version.

/// Limits of one version of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The macro that selects them when C is compiled; empty: the default.
    pub macro_name: &'static str,
    /// Slots of a port for the user's algorithms, from 0.
    pub slots: u32,
    /// Algorithms, from 0.
    pub algorithms: u32,
    /// Parameters of an algorithm.
    pub parameters: u32,
    /// Counters of an algorithm.
    pub counters: u32,
}

/// Since version 2.10.
pub const CURRENT: Limits = Limits {
    macro_name: "",
    slots: 8,
    algorithms: 8,
    parameters: 38,
    counters: 63,
};

/// Of the first versions.
pub const FIRST: Limits = Limits {
    macro_name: "DOCA_PCC_DEV_LIMITS_2_2",
    slots: 8,
    algorithms: 8,
    parameters: 30,
    counters: 15,
};

/// Slot of flows that the user's algorithms do not control, and index of the library's own algorithm.
pub const INTERNAL: u8 = 15;

/// Bits of a rate: a fraction of the port's speed.
pub const RATE_BITS: u32 = 20;

/// Guess: most words of a custom header of a probe.
pub const HEADER_WORDS: u32 = 16;

/// Most bytes of a printed line, with its end.
pub const TEXT_BYTES: u32 = 512;
