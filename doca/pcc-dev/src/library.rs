//! Headers and sources of the device library, and the numbers that it shares with the device.

#[cfg(test)]
use crate::{fxp, layout, limits};

macro_rules! files {
    ($folder:literal: $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name)))),+]
    };
}

/// Headers of algorithms, beside those of the crate `dpa-dev`: name and text.
pub const HEADERS: &[(&str, &str)] = files!("include":
    "doca_pcc_dev.h",
    "doca_pcc_dev_algo_access.h",
    "doca_pcc_dev_common.h",
    "doca_pcc_dev_data_structures.h",
    "doca_pcc_dev_event.h",
    "doca_pcc_dev_services.h",
    "doca_pcc_dev_utils.h",
    "doca_pcc_np_dev.h",
    "doca_version.h",
    "pcc_dcqcn.h",
);

/// Headers in place of those of the crate `dpa-dev`, for code that runs on the host.
pub const HOST_HEADERS: &[(&str, &str)] = files!("host": "dpaintrin.h");

/// The library: sources and its own headers.
pub const SOURCES: &[(&str, &str)] = files!("lib":
    "pcc_dev.c",
    "pcc_dev.h",
    "pcc_internal.c",
    "pcc_numbers.h",
    "pcc_print.c",
);

/// What a program of a receiver has besides.
pub const NP_SOURCES: &[(&str, &str)] = files!("lib": "pcc_np.c");

/// What a program has besides on the DPA.
pub const DEVICE_SOURCES: &[(&str, &str)] = files!("lib": "pcc_riscv.c");

/// What a program has besides on the host.
pub const HOST_SOURCES: &[(&str, &str)] = files!("host": "pcc_host.c");

/// Names by which programs ask for the library, and whether it is the one of receivers.
pub const LIBRARIES: &[(&str, bool)] = &[
    ("doca_pcc_dev", false),
    ("doca_pcc_dev_bf3", false),
    ("doca_pcc_dev_cx8", false),
    ("doca_pcc_np_dev", true),
    ("doca_pcc_np_dev_bf3", true),
    ("doca_pcc_np_dev_cx8", true),
];

/// What a program asks of the device. Arguments and results are numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Service {
    /// A text: address and bytes.
    Print = 0x400,
    /// A line that states what the library has refused: address and bytes.
    Refuse = 0x401,
    /// An entry of the trace: address of 64-bit words, and their number: the format and five arguments.
    Trace = 0x402,
    /// What waits in the trace is to be sent.
    Flush = 0x403,
    /// The result is the number of the thread.
    Thread = 0x404,
    /// A counter of a port, by number: the result is its value.
    Counter = 0x405,
    /// The custom header of a flow's probes: flow, address and number of the words. The result is a status.
    Header = 0x406,
    /// The priority of a flow's probes: flow, whether it is a custom one, and which. The result is a status.
    Priority = 0x407,
    /// The result is the time in us. On the DPA, programs read the counter `time`.
    Time = 0x408,
    /// A fixed-point function, by number, of a number. On the DPA, these are instructions.
    Intrinsic = 0x409,
}

/// All services, and the macro of each.
const SERVICES: &[(Service, &str)] = &[
    (Service::Print, "PCC_SERVICE_PRINT"),
    (Service::Refuse, "PCC_SERVICE_REFUSE"),
    (Service::Trace, "PCC_SERVICE_TRACE"),
    (Service::Flush, "PCC_SERVICE_FLUSH"),
    (Service::Thread, "PCC_SERVICE_THREAD"),
    (Service::Counter, "PCC_SERVICE_COUNTER"),
    (Service::Header, "PCC_SERVICE_HEADER"),
    (Service::Priority, "PCC_SERVICE_PRIORITY"),
    (Service::Time, "PCC_SERVICE_TIME"),
    (Service::Intrinsic, "PCC_SERVICE_INTRINSIC"),
];

impl Service {
    /// The service with a number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        let all = SERVICES.iter().map(|(service, _)| *service);
        all.into_iter().find(|service| *service as u64 == number)
    }
}

/// A property of a slot, for `__pcc_query`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Query {
    /// Index of its algorithm; [`INTERNAL`](crate::limits::INTERNAL) without one.
    Algorithm = 0,
    /// Whether it is enabled.
    Enabled = 1,
    /// Identifier of its algorithm.
    Id = 2,
    /// Version: the major number above the minor one.
    Version = 3,
    /// Address of the description, with a zero byte at its end.
    Text = 4,
    /// Bytes of the description.
    TextBytes = 5,
    /// Number of parameters.
    Parameters = 6,
    /// Number of counters.
    Counters = 7,
    /// Value of a parameter.
    Parameter = 8,
    /// Its default.
    ParameterFirst = 9,
    /// Its largest value.
    ParameterMost = 10,
    /// Its smallest value.
    ParameterLeast = 11,
    /// 0: nobody may change it.
    ParameterPermissions = 12,
    /// Address of its description.
    ParameterText = 13,
    /// Bytes of its description.
    ParameterTextBytes = 14,
    /// Value of a counter.
    Counter = 15,
    /// Address of its description.
    CounterText = 16,
    /// Bytes of its description.
    CounterTextBytes = 17,
    /// Address of the values of all counters.
    CountersAddress = 18,
}

/// Text of the C header with the numbers that the library shares with the device.
#[cfg(test)]
fn numbers() -> String {
    use std::fmt::Write as _;
    let mut text = String::from(
        "/* Numbers that the library shares with the device. A test of doca/pcc-dev makes the text from the crate's tables. */\n\
         #ifndef PCC_NUMBERS_H\n#define PCC_NUMBERS_H\n\n",
    );
    let queries = [
        (Query::Algorithm, "ALGORITHM"),
        (Query::Enabled, "ENABLED"),
        (Query::Id, "ID"),
        (Query::Version, "VERSION"),
        (Query::Text, "TEXT"),
        (Query::TextBytes, "TEXT_BYTES"),
        (Query::Parameters, "PARAMETERS"),
        (Query::Counters, "COUNTERS"),
        (Query::Parameter, "PARAMETER"),
        (Query::ParameterFirst, "PARAMETER_FIRST"),
        (Query::ParameterMost, "PARAMETER_MOST"),
        (Query::ParameterLeast, "PARAMETER_LEAST"),
        (Query::ParameterPermissions, "PARAMETER_PERMISSIONS"),
        (Query::ParameterText, "PARAMETER_TEXT"),
        (Query::ParameterTextBytes, "PARAMETER_TEXT_BYTES"),
        (Query::Counter, "COUNTER"),
        (Query::CounterText, "COUNTER_TEXT"),
        (Query::CounterTextBytes, "COUNTER_TEXT_BYTES"),
        (Query::CountersAddress, "COUNTERS_ADDRESS"),
    ];
    let services = SERVICES
        .iter()
        .map(|(service, name)| (*name, *service as u64));
    let sizes = [
        ("PCC_BLOCK_BYTES", layout::BLOCK_BYTES as u64),
        ("PCC_BLOCK_EVENT", layout::BLOCK_EVENT as u64),
        ("PCC_BLOCK_ATTR", layout::BLOCK_ATTR as u64),
        ("PCC_BLOCK_RESULTS", layout::BLOCK_RESULTS as u64),
        ("PCC_PROBE_BYTES", layout::PROBE_BYTES as u64),
        ("PCC_RESPONSE_BYTES", layout::RESPONSE_BYTES as u64),
        ("PCC_TEXT_BYTES", u64::from(limits::TEXT_BYTES)),
        ("PCC_HEADER_WORDS", u64::from(limits::HEADER_WORDS)),
    ];
    let intrinsics = [
        ("PCC_INTRINSIC_POW2", fxp::POW2),
        ("PCC_INTRINSIC_LOG2", fxp::LOG2),
    ];
    for (name, value) in services.chain(intrinsics).chain(sizes) {
        let _ = writeln!(text, "#define {name} {value:#x}");
    }
    for (query, name) in queries {
        let _ = writeln!(text, "#define PCC_QUERY_{name} {}", query as u16);
    }
    text.push_str("\n#endif\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_committed_header_has_the_numbers_of_the_tables() {
        let committed = include_str!("../lib/pcc_numbers.h");
        assert_eq!(
            committed,
            numbers(),
            "write this text to doca/pcc-dev/lib/pcc_numbers.h"
        );
    }

    #[test]
    fn each_file_of_the_folders_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["include", "lib", "host"] {
            for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
                let name = entry.expect("an entry").file_name();
                let lists = [
                    HEADERS,
                    HOST_HEADERS,
                    SOURCES,
                    NP_SOURCES,
                    DEVICE_SOURCES,
                    HOST_SOURCES,
                ];
                let is_listed = |(known, _): &(&str, &str)| name.to_str() == Some(known);
                assert!(lists.iter().copied().flatten().any(is_listed), "{name:?}");
            }
        }
    }

    #[test]
    fn the_limits_of_c_are_those_of_the_crate() {
        let header = include_str!("../include/doca_pcc_dev.h");
        let (first, current) = (limits::FIRST, limits::CURRENT);
        assert!(header.contains(&format!("#ifdef {}\n", first.macro_name)));
        for limits in [first, current] {
            for (name, value) in [
                ("USER_SLOTS", limits.slots),
                ("ALGOS", limits.algorithms),
                ("PARAMS_PER_ALGO", limits.parameters),
                ("COUNTERS_PER_ALGO", limits.counters),
            ] {
                let line = format!("#define DOCA_PCC_DEV_MAX_NUM_{name} ({value})\n");
                assert!(header.contains(&line), "{line}");
            }
        }
    }

    #[test]
    fn services_are_found_by_number() {
        assert_eq!(Service::from_number(0x404), Some(Service::Thread));
        assert_eq!(Service::from_number(0x3ff), None);
    }
}
