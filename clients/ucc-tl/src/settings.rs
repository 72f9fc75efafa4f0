//! Validates the user's options and explains each invalid one.

use crate::bindings as b;
use crate::bindings::ucc_coll_type_t;
use crate::config::Raw;
use crate::wait::Wait;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use xgvmi_offload::{ClientArgs, ClientOptions, Scheme, library_is_loaded, time};

/// A rank's reaction to the failure of a service process during one of its collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Abort,
    Error,
    Host,
}

/// What becomes of a team that cannot be offloaded. The variants are in ascending order of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Fallback {
    Host,
    Error,
    Abort,
}

impl Fallback {
    /// Parses the option. It has to be known where other options are invalid.
    ///
    /// # Errors
    /// A text with the option's name and its valid values.
    pub(crate) fn new(raw: &Raw) -> Result<Self, String> {
        match raw.fallback.to_lowercase().as_str() {
            "host" => Ok(Self::Host),
            "error" => Ok(Self::Error),
            "abort" => Ok(Self::Abort),
            other => Err(format!(
                "UCC_TL_XGVMI_FALLBACK: '{other}' is none of host, error, abort"
            )),
        }
    }
}

/// A served collective and its range of message sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) kind: ucc_coll_type_t,
    pub(crate) first: usize,
    /// Exclusive upper bound, as in UCC's ranges; `usize::MAX` for no bound.
    pub(crate) end: usize,
}

/// The validated options.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) client: ClientOptions,
    pub(crate) served: Vec<Served>,
    /// `UCC_TL_XGVMI_TUNE`: changes of scores in UCC's own syntax, and the collectives that it may name.
    pub(crate) tune: String,
    pub(crate) kinds: u64,
    pub(crate) on_failure: OnFailure,
    pub(crate) wait: Wait,
    fallback: Fallback,
    pub(crate) score: u32,
}

/// Time after which a node without a service process has none. The program starts without the offload then.
const ABSENT_LIMIT: Duration = Duration::from_secs(2);

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// Names of the collectives, and whether the default includes them.
const NAMES: [(&str, ucc_coll_type_t, bool); 14] = [
    ("alltoall", b::UCC_COLL_TYPE_ALLTOALL, true),
    ("alltoallv", b::UCC_COLL_TYPE_ALLTOALLV, true),
    ("allgather", b::UCC_COLL_TYPE_ALLGATHER, true),
    ("allgatherv", b::UCC_COLL_TYPE_ALLGATHERV, true),
    ("bcast", b::UCC_COLL_TYPE_BCAST, true),
    ("gather", b::UCC_COLL_TYPE_GATHER, true),
    ("gatherv", b::UCC_COLL_TYPE_GATHERV, true),
    ("scatter", b::UCC_COLL_TYPE_SCATTER, true),
    ("scatterv", b::UCC_COLL_TYPE_SCATTERV, true),
    ("allreduce", b::UCC_COLL_TYPE_ALLREDUCE, true),
    ("reduce", b::UCC_COLL_TYPE_REDUCE, true),
    ("reduce_scatter", b::UCC_COLL_TYPE_REDUCE_SCATTER, true),
    ("reduce_scatterv", b::UCC_COLL_TYPE_REDUCE_SCATTERV, true),
    ("barrier", b::UCC_COLL_TYPE_BARRIER, false),
];

/// Collectives of which UCC does not know the message size at all ranks. It looks them up with size 0.
const WITHOUT_SIZE: [ucc_coll_type_t; 3] = [
    b::UCC_COLL_TYPE_ALLTOALLV,
    b::UCC_COLL_TYPE_GATHERV,
    b::UCC_COLL_TYPE_SCATTERV,
];

/// First sizes of the default: from these on, a call takes less processor time of the hosts than with UCC's own
/// components (docs/UCC.md). UCC counts the blocks of all ranks, so that the size of an alltoall is that of four measured
/// blocks. The others, which are not measured, start like it.
const ALLREDUCE_FROM: usize = 4 << 10;
const EXCHANGES_FROM: usize = 32 << 10;

/// Algorithms of tl/ucp on memory handles of the caller, which the component refuses.
const FOREIGN_TUNES: [(ucc_coll_type_t, &str); 3] = [
    (b::UCC_COLL_TYPE_ALLTOALL, "@onesided"),
    (b::UCC_COLL_TYPE_ALLTOALLV, "@onesided"),
    (b::UCC_COLL_TYPE_ALLREDUCE, "@sliding_window"),
];

/// The name of a collective.
pub(crate) fn name_of(kind: ucc_coll_type_t) -> &'static str {
    NAMES
        .iter()
        .find(|(_, of, _)| *of == kind)
        .map_or("unknown", |(name, ..)| name)
}

impl Settings {
    /// Whether the user has enabled the component.
    pub(crate) fn wanted(raw: &Raw) -> bool {
        !raw.services.is_empty() || !raw.config.is_empty()
    }

    /// Validates the options. `host_tune` is `UCC_TL_UCP_TUNE`.
    ///
    /// # Errors
    /// A text with the option's name and its valid values.
    pub(crate) fn new(raw: &Raw, host_tune: &str) -> Result<Self, String> {
        let option = |name: &str, why: String| format!("UCC_TL_XGVMI_{name}: {why}");
        let scheme = match (raw.scheme.to_lowercase().as_str(), library_is_loaded()) {
            ("auto", true) | ("xgvmi", _) => Scheme::Xgvmi,
            ("auto", false) | ("stock", _) => Scheme::Stock,
            ("ksm", _) => Scheme::Ksm,
            (other, _) => {
                let why = format!("'{other}' is none of auto, xgvmi, stock, ksm");
                return Err(option("SCHEME", why));
            }
        };
        let on_failure = match raw.on_failure.to_lowercase().as_str() {
            "abort" => OnFailure::Abort,
            "error" => OnFailure::Error,
            "host" => OnFailure::Host,
            other => {
                let why = format!("'{other}' is none of abort, error, host");
                return Err(option("ON_FAILURE", why));
            }
        };
        let fallback = Fallback::new(raw)?;
        let wait = Wait::new(&raw.wait).map_err(|why| option("WAIT", why))?;
        if raw.score == 0 {
            let why = "0 would never be chosen; to switch the component off, set neither SERVICES nor CONFIG";
            return Err(option("SCORE", why.to_owned()));
        }
        let mut served = from_sizes(|kind| match kind {
            kind if WITHOUT_SIZE.contains(&kind) => 0,
            b::UCC_COLL_TYPE_ALLREDUCE => ALLREDUCE_FROM,
            _ => EXCHANGES_FROM,
        });
        // UCC's fallback after a refusal ignores an algorithm that a tune names. The component therefore must not
        // refuse then.
        let is_taken = |kind| {
            FOREIGN_TUNES.iter().any(|(of, algorithm)| {
                *of == kind
                    && host_tune.split('#').any(|token| {
                        token.contains(algorithm)
                            && token.split(':').any(|word| word == name_of(kind))
                    })
            })
        };
        served.retain(|served| !is_taken(served.kind));
        let free = NAMES.iter().filter(|(_, kind, _)| !is_taken(*kind));
        let kinds = free.fold(0, |kinds, (_, kind, _)| kinds | u64::from(*kind));
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let limit =
            |name, text: &str, least| time(least..=DAY)(text).map_err(|why| option(name, why));
        let connect_limit = limit("CONNECT_LIMIT", &raw.connect_limit, SECOND)?;
        let client = ClientArgs {
            services: raw
                .services
                .split(',')
                .map(|service| service.trim().to_owned())
                .filter(|service| !service.is_empty())
                .collect(),
            node: given(&raw.node),
            offload_config: given(&raw.config).map(Into::into),
            connect_limit: Some(connect_limit),
            absent_limit: Some(connect_limit.min(ABSENT_LIMIT)),
            offload_limit: Some(limit("LIMIT", &raw.limit, Duration::ZERO)?),
            secret_file: given(&raw.secret_file).map(Into::into),
            ..ClientArgs::default()
        }
        .options(scheme)
        .map_err(|error| one_line(&error.to_string()))?;
        Ok(Self {
            client,
            served,
            tune: raw.tune.clone(),
            kinds,
            on_failure,
            wait,
            fallback,
            score: raw.score,
        })
    }

    /// The default options with these services, for tests.
    #[cfg(test)]
    pub(crate) fn of_services(services: &str) -> Self {
        let raw = Raw {
            services: services.to_owned(),
            ..tests::raw()
        };
        Self::new(&raw, "").expect("valid")
    }

    /// The collectives of a team with invalid options, whose sizes are unknown.
    pub(crate) fn default_collectives() -> Vec<Served> {
        from_sizes(|_| 0)
    }

    /// Settings that must be equal at all ranks, as a text to compare.
    pub(crate) fn agreement(&self) -> String {
        let mut text = format!(
            "SCHEME={} ON_FAILURE={:?} FALLBACK={:?} SCORE={} serves ",
            self.client.scheme, self.on_failure, self.fallback, self.score
        );
        // An algorithm of UCC_TL_UCP_TUNE may have removed some.
        for Served { kind, first, end } in &self.served {
            text += &format!("{}:{first}-{end},", name_of(*kind));
        }
        text + " TUNE=" + &self.tune
    }

    /// Maximum time to connect.
    pub(crate) fn connect_limit(&self) -> Duration {
        self.client.connect_limit
    }
}

/// An error as one line of the log. The parser of the file shows the place in lines that begin with a line number and a bar.
fn one_line(text: &str) -> String {
    let is_excerpt = |line: &&str| {
        let rest = line.trim_start_matches(|first: char| first.is_ascii_digit() || first == ' ');
        rest.starts_with('|')
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_excerpt(line)).collect();
    lines.join(": ")
}

/// The collectives of the default from their first sizes on.
fn from_sizes(first: impl Fn(ucc_coll_type_t) -> usize) -> Vec<Served> {
    let by_default = NAMES.iter().filter(|(.., by_default)| *by_default);
    let served = by_default.map(|(_, kind, _)| Served {
        kind: *kind,
        first: first(*kind),
        end: usize::MAX,
    });
    served.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_with_an_excerpt_becomes_one_line() {
        let error = "f.toml: TOML parse error at line 1, column 20\n  |\n1 | sp = [\n  |    ^\nunclosed array\n";
        let expect = "f.toml: TOML parse error at line 1, column 20: unclosed array";
        assert_eq!(one_line(error), expect);
        assert_eq!(one_line("cannot read it"), "cannot read it");
    }

    pub(super) fn raw() -> Raw {
        Raw {
            services: "127.0.0.1:1, 127.0.0.1:2".to_owned(),
            config: String::new(),
            node: "n0".to_owned(),
            secret_file: String::new(),
            scheme: "auto".to_owned(),
            on_failure: "abort".to_owned(),
            fallback: "host".to_owned(),
            score: 100,
            connect_limit: "30s".to_owned(),
            limit: "0s".to_owned(),
            wait: "spin".to_owned(),
            tune: String::new(),
        }
    }

    #[test]
    fn the_defaults_are_valid() {
        let settings = Settings::new(&raw(), "").expect("valid");
        assert_eq!(settings.client.services, ["127.0.0.1:1", "127.0.0.1:2"]);
        assert_eq!(settings.served.len(), 13);
        assert_eq!(settings.client.scheme, Scheme::Stock);
        assert_eq!(settings.client.absent_limit, Duration::from_secs(2));
        assert!(settings.agreement().contains("serves alltoall:32768-"));
        let tuned = Raw {
            tune: "allreduce:0".to_owned(),
            ..raw()
        };
        let tuned = Settings::new(&tuned, "").expect("valid");
        assert_ne!(tuned.agreement(), settings.agreement());
        assert!(Settings::wanted(&raw()));
        assert!(!Settings::wanted(&Raw {
            services: String::new(),
            ..raw()
        }));
    }

    #[test]
    fn a_collective_has_no_limit_unless_one_is_set() {
        let limit = |limit: &str| {
            let limit = limit.to_owned();
            let raw = Raw { limit, ..raw() };
            Settings::new(&raw, "").expect("valid").client.limit
        };
        assert_eq!(limit("0s"), None);
        assert_eq!(limit("1500ms"), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn the_default_has_sizes_where_ucc_knows_them() {
        let served = Settings::new(&raw(), "").expect("valid").served;
        assert_eq!(served.len(), Settings::default_collectives().len());
        for Served { kind, first, end } in served {
            assert_eq!(end, usize::MAX);
            assert_eq!(
                first == 0,
                WITHOUT_SIZE.contains(&kind),
                "{}",
                name_of(kind)
            );
        }
    }

    /// From the first sizes of the default on, each measured call takes less processor time of the hosts than with UCC's own
    /// components; the next smaller measured call of one of the programs does not take a tenth less, which is the noise of the
    /// measurement.
    #[test]
    fn the_default_list_starts_at_measured_sizes() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/ucc.json");
        let text = std::fs::read_to_string(file).expect("the committed report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let rows = report["rows"].as_array().expect("rows");
        let cost = |program: &str, backend: &str, size: u64| {
            let row = rows.iter().find(|row| {
                row["program"] == program
                    && row["backend"] == backend
                    && row["size"] == size
                    && (backend == "ucc" || row["scheme"] == "xgvmi")
            });
            row.and_then(|row| row["host_cpu_us_per_call"].as_f64())
        };
        let ranks = report["ranks"].as_u64().expect("ranks");
        for (programs, first, blocks) in [
            (&["mpi_allreduce", "mpi_iallreduce"][..], ALLREDUCE_FROM, 1),
            (&["osu_ialltoallv"], EXCHANGES_FROM, ranks),
        ] {
            let first = first as u64 / blocks;
            let is_cheaper = |program: &str, size: u64, most: f64| {
                let pair = cost(program, "offload", size).zip(cost(program, "ucc", size));
                let (offload, ucc) = pair.unwrap_or_else(|| panic!("no {program} of {size}"));
                offload < most * ucc
            };
            for program in programs {
                for size in (first.ilog2()..=20).map(|log| 1 << log) {
                    assert!(is_cheaper(program, size, 1.0), "{program} of {size}");
                }
            }
            let all_before = programs
                .iter()
                .all(|program| is_cheaper(program, first / 2, 0.9));
            assert!(!all_before, "{programs:?} may start at {}", first / 2);
        }
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let check = |raw: Raw, expect: &str| {
            let error = Settings::new(&raw, "").expect_err("invalid");
            assert!(error.contains(expect), "{error}");
        };
        check(
            Raw {
                scheme: "fast".into(),
                ..raw()
            },
            "SCHEME: 'fast'",
        );
        check(
            Raw {
                on_failure: "ask".into(),
                ..raw()
            },
            "ON_FAILURE: 'ask'",
        );
        check(
            Raw {
                fallback: "no".into(),
                ..raw()
            },
            "FALLBACK: 'no' is none of host, error, abort",
        );
        check(
            Raw {
                limit: "30".into(),
                ..raw()
            },
            "LIMIT: 30 has no unit: give 30us, 30ms, 30s or 30m",
        );
        check(
            Raw {
                connect_limit: "0s".into(),
                ..raw()
            },
            "CONNECT_LIMIT",
        );
        check(Raw { score: 0, ..raw() }, "SCORE: 0");
        check(
            Raw {
                config: "/nowhere".into(),
                ..raw()
            },
            "/nowhere",
        );
    }

    #[test]
    fn a_one_sided_tune_keeps_its_collective() {
        let settings = Settings::new(&raw(), "alltoallv:@onesided:inf").expect("valid");
        assert!(
            settings
                .served
                .iter()
                .all(|served| served.kind != b::UCC_COLL_TYPE_ALLTOALLV)
        );
        assert_eq!(settings.served.len(), 12);
        assert_eq!(settings.kinds & u64::from(b::UCC_COLL_TYPE_ALLTOALLV), 0);
        assert_ne!(settings.kinds & u64::from(b::UCC_COLL_TYPE_BARRIER), 0);
        let settings = Settings::new(&raw(), "allreduce:@sliding_window:inf").expect("valid");
        assert!(
            settings
                .served
                .iter()
                .all(|served| served.kind != b::UCC_COLL_TYPE_ALLREDUCE)
        );
    }
}
