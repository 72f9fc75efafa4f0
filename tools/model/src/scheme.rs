//! The schemes: ways in which a buffer gets a key that the DPU can use, and their names.

use std::fmt;
use std::str::FromStr;

/// How a buffer gets a key that the DPU can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// No keys at all: what the transfer itself takes.
    Free,
    /// A umem key per buffer (BlueField-2's way).
    Umem,
    /// Indirection: a KSM key per buffer.
    Ksm,
    /// A UMR key per buffer, without a pool.
    Umr,
    /// UCX's own pool of UMR keys.
    Stock,
    /// This project's pool.
    Xgvmi(Features),
}

/// Features of this project's pool in addition to UCX's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Keys and aliases are created at connection set-up, so no call creates any, including the first.
    pub announce: bool,
    /// One chain with one completion contains both buffers' binds; the same holds for both invalidations.
    pub batch: bool,
    /// The invalidation does not wait for its completion. It precedes the next call's bind in the same chain.
    pub chain: bool,
}

impl Features {
    /// All features on.
    pub const ALL: Self = Self {
        announce: true,
        batch: true,
        chain: true,
    };
    /// All features off, like UCX's own pool.
    pub const NONE: Self = Self {
        announce: false,
        batch: false,
        chain: false,
    };
}

impl Scheme {
    /// The schemes of a table, with the reference first.
    pub const TABLE: [Self; 5] = [
        Self::Ksm,
        Self::Umem,
        Self::Umr,
        Self::Stock,
        Self::Xgvmi(Features::ALL),
    ];

    /// The pool without each feature, and without all.
    pub const FEATURES: [Self; 4] = [
        Self::Xgvmi(Features {
            announce: false,
            ..Features::ALL
        }),
        Self::Xgvmi(Features {
            batch: false,
            ..Features::ALL
        }),
        Self::Xgvmi(Features {
            chain: false,
            ..Features::ALL
        }),
        Self::Xgvmi(Features::NONE),
    ];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Free => "free",
            Self::Umem => "umem",
            Self::Ksm => "ksm",
            Self::Umr => "umr",
            Self::Stock => "stock",
            Self::Xgvmi(Features::ALL) => "xgvmi",
            Self::Xgvmi(features) => {
                f.write_str("xgvmi")?;
                for (on, name) in [
                    (features.announce, "-announce"),
                    (features.batch, "-batch"),
                    (features.chain, "-chain"),
                ] {
                    if !on {
                        write!(f, "{name}")?;
                    }
                }
                return Ok(());
            }
        };
        f.write_str(name)
    }
}

impl FromStr for Scheme {
    type Err = String;

    /// `xgvmi-announce` is the pool without announcements; the others follow the same form.
    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "no scheme '{text}'; there are free, umem, ksm, umr, stock, xgvmi, and xgvmi less what \
                 it does, as in xgvmi-announce-batch-chain"
            )
        };
        Ok(match text {
            "free" => Self::Free,
            "umem" => Self::Umem,
            "ksm" => Self::Ksm,
            "umr" => Self::Umr,
            "stock" => Self::Stock,
            _ => {
                let mut words = text.split('-');
                if words.next() != Some("xgvmi") {
                    return Err(unknown());
                }
                let mut features = Features::ALL;
                for word in words {
                    match word {
                        "announce" => features.announce = false,
                        "batch" => features.batch = false,
                        "chain" => features.chain = false,
                        _ => return Err(unknown()),
                    }
                }
                Self::Xgvmi(features)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for scheme in Scheme::TABLE.into_iter().chain(Scheme::FEATURES) {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        assert_eq!(
            Scheme::FEATURES[3].to_string(),
            "xgvmi-announce-batch-chain"
        );
        assert!("xgvmi-x".parse::<Scheme>().is_err());
        assert!("pool".parse::<Scheme>().is_err());
    }
}
