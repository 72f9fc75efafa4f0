//! Cost profiles: durations of operations on hardware. A profile is TOML. It compiles to a
//! [`ProfileTable`] of fixed size in the device file, which the signal handler reads.
//!
//! ```toml
//! source = "where the numbers come from"
//! sizes_bytes = [16384, 1048576]      # the sizes of the columns, ascending
//!
//! [cost_ns]
//! reg_mr = [10125, 22296]             # one time per size, in nanoseconds
//! umr_bind = 1000                     # or one time for all sizes
//!
//! [link]
//! latency_ns = 900                    # per message, 0..=60 s
//! bandwidth_mbit_per_s = 400000       # per port and direction, up to 10 Tbit/s; 0: unlimited
//!
//! [firmware]
//! relaxed_ordering_only = true        # keys must permit relaxed ordering of PCI; default: false
//! dma_mmo_qp = true                   # queue pairs copy memory after a command only; default: false
//! ```
//!
//! The functions of an adapter and all their queues share its port. Messages pass the port one
//! after the other. Ports of different adapters, and the two directions of a port, are independent.
//! A message between two functions of one adapter takes the same time and does not occupy the port.
//!
//! An operation that the profile does not name costs nothing.
//!
//! Firmware with relaxed ordering only reports `mkc_order_write_after_write_ro_only` and refuses
//! each registration and each new key without relaxed ordering. Firmware with `dma_mmo_qp`
//! (BlueField-3) reports it in place of `dma_mmo_sq`; UCX then has its GGA transport.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Largest number of sizes in one profile. Published tables have four to six columns.
pub const POINTS_MAX: usize = 8;
/// Longest time in a profile, in nanoseconds. A minute for one command indicates a wrong unit.
pub const COST_NS_MAX: u64 = 60_000_000_000;
/// Largest size in a profile, in bytes: 128 TiB, the user half of an x86-64 address space.
pub const SIZE_BYTES_MAX: u64 = 1 << 47;
/// Highest bandwidth in a profile, in Mbit/s: 10 Tbit/s.
pub const BANDWIDTH_MBIT_PER_S_MAX: u64 = 10_000_000;
/// Longest name of a profile, in bytes. The device file stores it with the table.
pub const NAME_MAX: usize = 48;
/// Longest profile file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 * 1024;

const BUILT_IN: [(&str, &str); 4] = [
    ("none", include_str!("../../profiles/none.toml")),
    ("bluefield3", include_str!("../../profiles/bluefield3.toml")),
    (
        "relaxed-only",
        include_str!("../../profiles/relaxed-only.toml"),
    ),
    ("gga", include_str!("../../profiles/gga.toml")),
];

/// An operation that takes time on hardware. "Direct", "Ksm" and "Umr" name the kind of mkey:
/// memory translation (MTT), fixed-size KLMs over another key, or a KLM mkey with `umr_en`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
#[non_exhaustive]
pub enum CostKind {
    /// Registering memory (REG_MR), by its length.
    RegMr,
    /// Deregistering memory (DEREG_MR).
    DeregMr,
    /// Registering a DEVX umem.
    UmemReg,
    /// Deregistering a DEVX umem.
    UmemDereg,
    /// CREATE_MKEY with access mode MTT.
    CreateMkeyDirect,
    /// CREATE_MKEY with access mode KSM or KLM and its translation list.
    CreateMkeyKsm,
    /// CREATE_MKEY with `umr_en` and free: a UMR binds it later.
    CreateMkeyUmr,
    /// DESTROY_MKEY of a direct mkey.
    DestroyMkeyDirect,
    /// DESTROY_MKEY of a KSM mkey.
    DestroyMkeyKsm,
    /// DESTROY_MKEY of a UMR mkey.
    DestroyMkeyUmr,
    /// ALLOW_OTHER_VHCA_ACCESS on a KSM (or direct) mkey.
    AllowKsm,
    /// ALLOW_OTHER_VHCA_ACCESS on a UMR mkey.
    AllowUmr,
    /// CREATE_GENERAL_OBJECT of an mkey alias.
    AliasCreate,
    /// DESTROY_GENERAL_OBJECT of an mkey alias.
    AliasDestroy,
    /// One UMR work request that binds a key.
    UmrBind,
    /// One UMR or LOCAL_INV work request that invalidates a key.
    UmrInvalidate,
    /// The fixed part of one RDMA operation.
    RdmaLatency,
    /// The part of one RDMA operation that grows with its length.
    RdmaPerByte,
}

impl CostKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [CostKind; 18] = [
        CostKind::RegMr,
        CostKind::DeregMr,
        CostKind::UmemReg,
        CostKind::UmemDereg,
        CostKind::CreateMkeyDirect,
        CostKind::CreateMkeyKsm,
        CostKind::CreateMkeyUmr,
        CostKind::DestroyMkeyDirect,
        CostKind::DestroyMkeyKsm,
        CostKind::DestroyMkeyUmr,
        CostKind::AllowKsm,
        CostKind::AllowUmr,
        CostKind::AliasCreate,
        CostKind::AliasDestroy,
        CostKind::UmrBind,
        CostKind::UmrInvalidate,
        CostKind::RdmaLatency,
        CostKind::RdmaPerByte,
    ];

    /// The key under `[cost_ns]`; None for the kinds in `[link]`.
    #[must_use]
    pub fn key(self) -> Option<&'static str> {
        Some(match self {
            CostKind::RegMr => "reg_mr",
            CostKind::DeregMr => "dereg_mr",
            CostKind::UmemReg => "umem_reg",
            CostKind::UmemDereg => "umem_dereg",
            CostKind::CreateMkeyDirect => "create_mkey_direct",
            CostKind::CreateMkeyKsm => "create_mkey_ksm",
            CostKind::CreateMkeyUmr => "create_mkey_umr",
            CostKind::DestroyMkeyDirect => "destroy_mkey_direct",
            CostKind::DestroyMkeyKsm => "destroy_mkey_ksm",
            CostKind::DestroyMkeyUmr => "destroy_mkey_umr",
            CostKind::AllowKsm => "allow_ksm",
            CostKind::AllowUmr => "allow_umr",
            CostKind::AliasCreate => "alias_create",
            CostKind::AliasDestroy => "alias_destroy",
            CostKind::UmrBind => "umr_bind",
            CostKind::UmrInvalidate => "umr_invalidate",
            CostKind::RdmaLatency | CostKind::RdmaPerByte => return None,
        })
    }
}

/// Number of cost kinds that have a row in the table.
const ROWS: usize = CostKind::ALL.len() - 2;

// The rows of the table are indexed by the kind's number, and the link's kinds come last.
const _: () = {
    let mut i = 0;
    while i < CostKind::ALL.len() {
        assert!(CostKind::ALL[i] as usize == i);
        i += 1;
    }
    assert!(CostKind::RdmaLatency as usize == ROWS);
};

/// A compiled profile: plain data of fixed size without pointers, valid for any bit pattern.
/// Several processes may map it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileTable {
    /// Sizes of the columns in bytes. Only the first `points` are valid.
    sizes_bytes: [u64; POINTS_MAX],
    /// Columns in use.
    points: u64,
    /// One row per kind: the cost in nanoseconds at each size.
    rows_ns: [[u64; POINTS_MAX]; ROWS],
    latency_ns: u64,
    /// 0 for unlimited.
    bandwidth_mbit_per_s: u64,
    /// 0 if all costs above are zero. Each doorbell checks it.
    costs: u64,
    /// Not 0 if each key must permit relaxed ordering.
    relaxed_ordering_only: u64,
    /// Not 0 if a command permits a queue pair to copy memory.
    dma_mmo_qp: u64,
}

impl ProfileTable {
    /// The table with zero costs.
    pub const NONE: ProfileTable = ProfileTable {
        sizes_bytes: [0; POINTS_MAX],
        points: 0,
        rows_ns: [[0; POINTS_MAX]; ROWS],
        latency_ns: 0,
        bandwidth_mbit_per_s: 0,
        costs: 0,
        relaxed_ordering_only: 0,
        dma_mmo_qp: 0,
    };

    /// The time in nanoseconds of `kind` for `bytes`. It is exact at the profile's sizes and linear
    /// between them. It is constant below the first size. Above the last size it continues the line
    /// through the last two (never below 0).
    ///
    /// Async-signal-safe: integer arithmetic only, no allocation, no panic for any table contents.
    #[must_use]
    pub fn cost_ns(&self, kind: CostKind, bytes: u64) -> u64 {
        match kind {
            CostKind::RdmaLatency => self.latency_ns,
            CostKind::RdmaPerByte => transfer_ns(bytes, self.bandwidth_mbit_per_s),
            row => self
                .rows_ns
                .get(row as usize)
                .map_or(0, |costs| self.interpolate(costs, bytes)),
        }
    }

    /// True if messages take time on the link.
    #[must_use]
    pub fn has_link(&self) -> bool {
        self.latency_ns != 0 || self.bandwidth_mbit_per_s != 0
    }

    /// True if all costs are zero, so that callers need not read the clock.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.costs == 0
    }

    /// True if the firmware refuses keys without relaxed ordering of PCI.
    #[must_use]
    pub fn is_relaxed_ordering_only(&self) -> bool {
        self.relaxed_ordering_only != 0
    }

    /// True if a queue pair copies memory only after a command permits it. False if each RC and DCI
    /// queue pair does.
    #[must_use]
    pub fn is_dma_mmo_qp(&self) -> bool {
        self.dma_mmo_qp != 0
    }

    fn interpolate(&self, costs_ns: &[u64; POINTS_MAX], bytes: u64) -> u64 {
        let points = usize::try_from(self.points).map_or(POINTS_MAX, |n| n.min(POINTS_MAX));
        let columns = || {
            self.sizes_bytes
                .iter()
                .copied()
                .zip(costs_ns.iter().copied())
                .take(points)
        };
        let Some(first) = columns().next() else {
            return 0;
        };
        // The segment up to the first column at or above `bytes`, or the last segment.
        let mut low = first;
        let mut high = first;
        for column in columns() {
            low = high;
            high = column;
            if bytes <= high.0 {
                break;
            }
        }
        if bytes <= first.0 || high.0 <= low.0 {
            return high.1;
        }
        let offset = i128::from(bytes) - i128::from(low.0);
        let width = i128::from(high.0) - i128::from(low.0);
        let rise = i128::from(high.1) - i128::from(low.1);
        // The product of two differences of u64 fits in i128 unless both are extreme. Only a
        // damaged table has such values. The product then saturates.
        let cost = i128::from(low.1).saturating_add(rise.saturating_mul(offset) / width);
        u64::try_from(cost.max(0)).unwrap_or(u64::MAX)
    }
}

fn transfer_ns(bytes: u64, mbit_per_s: u64) -> u64 {
    // bytes * 8 bits / (mbit_per_s * 1e6 bits/s) in ns = bytes * 8000 / mbit_per_s.
    u128::from(bytes)
        .saturating_mul(8000)
        .checked_div(u128::from(mbit_per_s))
        .map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
}

/// A checked profile: its compiled table and its text.
#[derive(Clone, Debug)]
pub struct Profile {
    name: String,
    source: String,
    text: String,
    table: ProfileTable,
}

/// Reason why a profile was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name is neither a built-in profile nor a readable file.
    #[error(
        "no profile {name:?}: the built-in ones are {}; any other name is the path of a file ({source})",
        built_in_names()
    )]
    Read {
        /// The given name or path.
        name: String,
        /// The system's error for the path.
        source: std::io::Error,
    },
    /// The file is too long.
    #[error("profile {name} has {bytes} bytes; at most {FILE_BYTES_MAX} are read")]
    TooLong {
        /// The path.
        name: String,
        /// Its length.
        bytes: u64,
    },
    /// The text is not TOML, has an unknown key, or has a value of the wrong type.
    #[error("profile {name}: {source}")]
    Syntax {
        /// The profile.
        name: String,
        /// The parser's message with line and column.
        source: Box<toml::de::Error>,
    },
    /// The cost is unknown.
    #[error("profile {name}: cost_ns.{key} is not a cost; the costs are {known}")]
    UnknownCost {
        /// The profile.
        name: String,
        /// The unknown key.
        key: String,
        /// The known keys.
        known: String,
    },
    /// A value is outside of its range.
    #[error("profile {name}: {key} is {value}; allowed: {allowed}")]
    Value {
        /// The profile.
        name: String,
        /// The key.
        key: String,
        /// The given value.
        value: String,
        /// The permitted values.
        allowed: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProfile {
    source: String,
    #[serde(default)]
    sizes_bytes: Vec<i64>,
    #[serde(default)]
    cost_ns: BTreeMap<String, RawCost>,
    #[serde(default)]
    link: RawLink,
    #[serde(default)]
    firmware: RawFirmware,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFirmware {
    #[serde(default)]
    relaxed_ordering_only: bool,
    #[serde(default)]
    dma_mmo_qp: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawCost {
    Constant(i64),
    BySize(Vec<i64>),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    #[serde(default)]
    latency_ns: i64,
    #[serde(default)]
    bandwidth_mbit_per_s: i64,
}

impl Profile {
    /// The built-in profile with that name, or else the file at that path. A file's profile has the
    /// file's name: `slow.toml` is "slow".
    ///
    /// # Errors
    /// A [`ProfileError`] that names the profile and the key.
    pub fn load(name_or_path: &str) -> Result<Self, ProfileError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name, text);
        }
        let path = Path::new(name_or_path);
        let read = |source| ProfileError::Read {
            name: name_or_path.to_owned(),
            source,
        };
        let bytes = std::fs::metadata(path).map_err(read)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(ProfileError::TooLong {
                name: name_or_path.to_owned(),
                bytes,
            });
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        let name = PathBuf::from(path.file_stem().unwrap_or(path.as_os_str()));
        Self::parse(&name.to_string_lossy(), &text)
    }

    /// Checks the text of a profile called `name`.
    ///
    /// # Errors
    /// A [`ProfileError`] that names the profile and the key.
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        if name.is_empty() || name.len() > NAME_MAX || name.contains(char::is_control) {
            return Err(ProfileError::Value {
                name: name.to_owned(),
                key: "its name".to_owned(),
                value: format!("{name:?}"),
                allowed: format!("1..={NAME_MAX} bytes on one line; rename the file"),
            });
        }
        let raw: RawProfile = toml::from_str(text).map_err(|source| ProfileError::Syntax {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Profile {
            name: name.to_owned(),
            table: compile(name, &raw)?,
            source: raw.source,
            text: text.to_owned(),
        })
    }

    /// The profile's name, for output and for comparison of states.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The source of its numbers, from the profile's text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The TOML text of the profile.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The compiled form.
    #[must_use]
    pub fn table(&self) -> &ProfileTable {
        &self.table
    }
}

fn built_in_names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

fn compile(name: &str, raw: &RawProfile) -> Result<ProfileTable, ProfileError> {
    let refuse = |key: &str, value: String, allowed: String| ProfileError::Value {
        name: name.to_owned(),
        key: key.to_owned(),
        value,
        allowed,
    };
    let number = |key: &str, value: i64, max: u64| {
        u64::try_from(value)
            .ok()
            .filter(|number| *number <= max)
            .ok_or_else(|| refuse(key, value.to_string(), format!("0..={max}")))
    };

    let mut table = ProfileTable::NONE;
    let sizes = raw.sizes_bytes.len();
    if sizes > POINTS_MAX {
        return Err(refuse(
            "sizes_bytes",
            format!("{sizes} sizes"),
            format!("at most {POINTS_MAX}"),
        ));
    }
    for (i, size) in raw.sizes_bytes.iter().enumerate() {
        table.sizes_bytes[i] = number(&format!("sizes_bytes[{i}]"), *size, SIZE_BYTES_MAX)?;
        if i > 0 && table.sizes_bytes[i] <= table.sizes_bytes[i - 1] {
            let allowed = "more than the size before it";
            return Err(refuse(
                &format!("sizes_bytes[{i}]"),
                size.to_string(),
                allowed.to_owned(),
            ));
        }
    }
    // A profile without sizes has one column at 0 for its constants.
    let points = sizes.max(1);
    table.points = points as u64;

    for (key, cost) in &raw.cost_ns {
        let kind = CostKind::ALL
            .into_iter()
            .find(|kind| kind.key() == Some(key));
        let Some(row) = kind.and_then(|kind| table.rows_ns.get_mut(kind as usize)) else {
            let known: Vec<&str> = CostKind::ALL.iter().filter_map(|kind| kind.key()).collect();
            return Err(ProfileError::UnknownCost {
                name: name.to_owned(),
                key: key.clone(),
                known: known.join(", "),
            });
        };
        match cost {
            RawCost::Constant(cost) => {
                let cost = number(&format!("cost_ns.{key}"), *cost, COST_NS_MAX)?;
                row[..points].fill(cost);
            }
            RawCost::BySize(costs) if costs.len() == sizes => {
                for (i, cost) in costs.iter().enumerate() {
                    row[i] = number(&format!("cost_ns.{key}[{i}]"), *cost, COST_NS_MAX)?;
                }
            }
            RawCost::BySize(costs) => {
                let allowed = format!("one for each of the {sizes} sizes in sizes_bytes");
                let value = format!("{} times", costs.len());
                return Err(refuse(&format!("cost_ns.{key}"), value, allowed));
            }
        }
    }
    table.latency_ns = number("link.latency_ns", raw.link.latency_ns, COST_NS_MAX)?;
    table.bandwidth_mbit_per_s = number(
        "link.bandwidth_mbit_per_s",
        raw.link.bandwidth_mbit_per_s,
        BANDWIDTH_MBIT_PER_S_MAX,
    )?;
    let free = table.latency_ns == 0
        && table.bandwidth_mbit_per_s == 0
        && table.rows_ns.iter().flatten().all(|cost| *cost == 0);
    table.costs = u64::from(!free);
    table.relaxed_ordering_only = u64::from(raw.firmware.relaxed_ordering_only);
    table.dma_mmo_qp = u64::from(raw.firmware.dma_mmo_qp);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(text: &str) -> ProfileTable {
        *Profile::parse("t", text).unwrap().table()
    }

    fn check_refused(text: &str, parts: &[&str]) {
        let message = match Profile::parse("t", text) {
            Ok(profile) => panic!("{text:?} was accepted as {profile:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }

    #[test]
    fn none_is_free() {
        let none = Profile::load("none").unwrap();
        assert!(none.table().is_free());
        for kind in CostKind::ALL {
            assert_eq!(none.table().cost_ns(kind, 1 << 40), 0, "{kind:?}");
        }
    }

    #[test]
    fn relaxed_only_differs_from_none_in_the_firmware_alone() {
        let [none, relaxed] = ["none", "relaxed-only"].map(|name| Profile::load(name).unwrap());
        assert!(!none.table().is_relaxed_ordering_only());
        assert!(relaxed.table().is_relaxed_ordering_only());
        assert!(relaxed.table().is_free());
        assert_ne!(none.table(), relaxed.table());
    }

    #[test]
    fn gga_differs_from_none_in_the_firmware_alone() {
        let [none, gga] = ["none", "gga"].map(|name| Profile::load(name).unwrap());
        assert!(!none.table().is_dma_mmo_qp());
        assert!(gga.table().is_dma_mmo_qp());
        assert!(gga.table().is_free() && !gga.table().is_relaxed_ordering_only());
    }

    #[test]
    fn bluefield3_is_the_slide() {
        let profile = Profile::load("bluefield3").unwrap();
        assert!(profile.source().contains("Cross-GVMI UMR Mkey Pool"));
        let table = profile.table();
        assert!(!table.is_free());
        let sizes = [16 << 10, 1 << 20, 64 << 20, 1 << 30];
        for (kind, costs) in [
            (CostKind::RegMr, [10125, 22296, 232007, 5823605]),
            (CostKind::DeregMr, [8230, 14073, 28635, 2585700]),
            (CostKind::UmemReg, [165139, 320991, 5833211, 114294081]),
            (CostKind::UmemDereg, [74027, 132564, 386428, 2473056]),
            (CostKind::CreateMkeyKsm, [158753, 159132, 158678, 160000]),
            (CostKind::DestroyMkeyKsm, [137371, 137560, 136885, 138362]),
            (CostKind::CreateMkeyUmr, [217703, 217908, 216900, 218510]),
            (CostKind::DestroyMkeyUmr, [150892, 151781, 151362, 151745]),
            (CostKind::AllowKsm, [94778, 101124, 107185, 185765]),
            (CostKind::AllowUmr, [138253, 147796, 147373, 201466]),
            (CostKind::AliasCreate, [176168, 176198, 176236, 196198]),
            (CostKind::AliasDestroy, [149525, 149585, 149687, 159722]),
            (CostKind::UmrBind, [1022, 1025, 1097, 1080]),
            (CostKind::UmrInvalidate, [973, 1008, 1018, 1030]),
            (CostKind::RdmaLatency, [0; 4]),
            (CostKind::RdmaPerByte, [0; 4]),
        ] {
            for (size, cost) in sizes.into_iter().zip(costs) {
                assert_eq!(table.cost_ns(kind, size), cost, "{kind:?} at {size} bytes");
            }
        }
    }

    #[test]
    fn between_below_and_above_the_points() {
        let table = table(
            "source = \"t\"\nsizes_bytes = [100, 200]\n[cost_ns]\nreg_mr = [10, 30]\ndereg_mr = [30, 10]\numr_bind = 7",
        );
        for (kind, bytes, cost) in [
            (CostKind::RegMr, 0, 10),
            (CostKind::RegMr, 99, 10),
            (CostKind::RegMr, 150, 20),
            (CostKind::RegMr, 300, 50),
            (CostKind::RegMr, u64::MAX, 3_689_348_814_741_910_313),
            (CostKind::DeregMr, 150, 20),
            (CostKind::DeregMr, 1000, 0),
            (CostKind::UmrBind, 0, 7),
            (CostKind::UmrBind, u64::MAX, 7),
            (CostKind::UmrInvalidate, 150, 0),
        ] {
            assert_eq!(table.cost_ns(kind, bytes), cost, "{kind:?} at {bytes}");
        }
    }

    #[test]
    fn link_model() {
        let table =
            table("source = \"t\"\n[link]\nlatency_ns = 900\nbandwidth_mbit_per_s = 400000");
        assert_eq!(table.cost_ns(CostKind::RdmaLatency, 1 << 20), 900);
        // 1 MiB at 400 Gbit/s.
        assert_eq!(table.cost_ns(CostKind::RdmaPerByte, 1 << 20), 20_971);
        assert_eq!(
            table.cost_ns(CostKind::RdmaPerByte, u64::MAX),
            368_934_881_474_191_032
        );
    }

    #[test]
    fn refusals_name_profile_key_and_range() {
        for (text, parts) in [
            ("", &["profile t", "source"][..]),
            ("source = \"\"\nsource2 = 1", &["source2"]),
            (
                "source = \"\"\nsizes_bytes = [2, 2]",
                &["sizes_bytes[1] is 2", "more than"],
            ),
            (
                "source = \"\"\nsizes_bytes = [1,2,3,4,5,6,7,8,9]",
                &["9 sizes", "at most 8"],
            ),
            (
                "source = \"\"\nsizes_bytes = [-1]",
                &["sizes_bytes[0] is -1", "0..="],
            ),
            (
                "source = \"\"\n[cost_ns]\nreg_mr = [1]",
                &["1 times", "each of the 0 sizes"],
            ),
            (
                "source = \"\"\n[cost_ns]\nregmr = 1",
                &["cost_ns.regmr", "the costs are reg_mr, dereg_mr"],
            ),
            (
                "source = \"\"\n[cost_ns]\nreg_mr = 60000000001",
                &["60000000001", "0..=60000000000"],
            ),
            (
                "source = \"\"\n[link]\nlatency_ns = -5",
                &["link.latency_ns is -5"],
            ),
            (
                "source = \"\"\n[link]\nbandwidth_mbit_per_s = 99000000",
                &["0..=10000000"],
            ),
        ] {
            check_refused(text, parts);
        }
        for name in ["", "two\nlines", &"x".repeat(NAME_MAX + 1)] {
            let message = Profile::parse(name, "source = \"\"")
                .unwrap_err()
                .to_string();
            assert!(message.contains("1..=48 bytes"), "{message}");
        }
        let message = Profile::load("bluefield4").unwrap_err().to_string();
        assert!(
            message.contains("the built-in ones are none, bluefield3"),
            "{message}"
        );
    }

    proptest! {
        /// The cost is exact at the points and between two neighbours' values elsewhere. It is
        /// monotone over the whole range if the points are.
        #[test]
        fn interpolation(
            sizes in proptest::collection::btree_set(0..SIZE_BYTES_MAX, 1..=POINTS_MAX),
            costs in proptest::collection::vec(0..=COST_NS_MAX, POINTS_MAX),
            sorted in any::<bool>(),
            probes in proptest::collection::vec(any::<u64>(), 1..20),
        ) {
            let sizes: Vec<u64> = sizes.into_iter().collect();
            let mut costs = costs[..sizes.len()].to_vec();
            if sorted {
                costs.sort_unstable();
            }
            let table = table(&format!(
                "source = \"t\"\nsizes_bytes = {sizes:?}\n[cost_ns]\nreg_mr = {costs:?}"
            ));
            let cost = |bytes| table.cost_ns(CostKind::RegMr, bytes);
            for (size, expected) in sizes.iter().zip(&costs) {
                prop_assert_eq!(cost(*size), *expected);
            }
            for pair in 0..sizes.len() - 1 {
                let middle = sizes[pair].midpoint(sizes[pair + 1]);
                let (a, b) = (costs[pair], costs[pair + 1]);
                prop_assert!((a.min(b)..=a.max(b)).contains(&cost(middle)));
            }
            if sorted {
                let mut probes = probes;
                probes.sort_unstable();
                for pair in probes.windows(2) {
                    prop_assert!(cost(pair[0]) <= cost(pair[1]), "{:?}", pair);
                }
            }
        }

        /// A table of arbitrary bits gives an answer without a panic.
        #[test]
        fn any_bits(
            sizes_bytes in any::<[u64; POINTS_MAX]>(),
            points in any::<u64>(),
            row in any::<[u64; POINTS_MAX]>(),
            link in any::<(u64, u64)>(),
            bytes in any::<u64>(),
        ) {
            let table = ProfileTable {
                sizes_bytes,
                points,
                rows_ns: [row; ROWS],
                latency_ns: link.0,
                bandwidth_mbit_per_s: link.1,
                costs: points,
                relaxed_ordering_only: points,
                dma_mmo_qp: points,
            };
            for kind in CostKind::ALL {
                let _ = table.cost_ns(kind, bytes);
            }
        }

        /// The parser accepts arbitrary text without a panic.
        #[test]
        fn never_panics(text in ".{0,200}") {
            let _ = Profile::parse("t", &text);
        }
    }
}
