//! The report of a probe: one JSON document that a user can send, and the same as a table. It holds no key, no access
//! key and no address of memory.

use std::fmt::Write as _;

use bench_report::format_size;
use serde::Serialize;

/// The JSON document. A change of meaning makes `schema` one more.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    /// Version of the library.
    pub(crate) version: &'static str,
    /// Name of the RDMA device.
    pub(crate) device: String,
    pub(crate) firmware: String,
    /// `infiniband` or `ethernet`.
    pub(crate) link: String,
    pub(crate) capabilities: Capabilities,
    pub(crate) proofs: Vec<Proof>,
    pub(crate) limits: Limits,
    pub(crate) costs: Vec<Cost>,
    /// Of `--peer` only.
    pub(crate) peer: Option<Peer>,
}

/// Capability bits and numbers that the library relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Capabilities {
    /// The function's GVMI.
    pub(crate) vhca_id: u64,
    /// `hca_cap_2`: the second capability page is there.
    pub(crate) second_page: bool,
    /// `cross_vhca_object_to_object_supported`, local to remote mkeys.
    pub(crate) alias: bool,
    /// `allowed_object_for_other_vhca_access`, mkeys.
    pub(crate) allow: bool,
}

/// Whether binds of one form work on this device, step by step. A step after the first failure is `false` too.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Proof {
    pub(crate) form: String,
    pub(crate) bound: bool,
    /// The bytes came back through the key.
    pub(crate) read: bool,
    /// A read of one byte more was refused.
    pub(crate) beyond_refused: bool,
    /// A read through the invalidated key was refused.
    pub(crate) invalid_refused: bool,
    pub(crate) us: f64,
    /// Why a step failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

impl Proof {
    pub(crate) fn holds(&self) -> bool {
        self.bound && self.read && self.beyond_refused && self.invalid_refused
    }
}

/// What the device allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Limits {
    /// Regions that one bind can describe.
    pub(crate) klm_entries_max: u32,
    /// UMR keys of this function.
    pub(crate) mkeys: Found,
    /// Aliases on the DPU of `--peer`.
    pub(crate) aliases: Option<Found>,
}

/// Objects created until the device refused one, or until the bound of the probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub(crate) struct Found {
    /// Created, and destroyed again.
    pub(crate) created: u32,
    /// How many the probe would have created at most (`--limit`).
    pub(crate) tried: u32,
    /// The device's refusal, if it refused one.
    pub(crate) refusal: Option<String>,
}

/// Median time of one step in the life of a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Cost {
    pub(crate) approach: String,
    pub(crate) step: String,
    /// Bytes of the buffer.
    pub(crate) size: usize,
    pub(crate) measured_us: f64,
    /// The published time for the same step and size, where there is one.
    pub(crate) slide_us: Option<f64>,
}

/// What the DPU of `--peer` did with a key of this host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Peer {
    pub(crate) address: String,
    pub(crate) device: String,
    pub(crate) firmware: String,
    pub(crate) link: String,
    /// The DPU function's GVMI.
    pub(crate) vhca_id: u64,
    /// Bytes that the DPU read from the host's memory through an alias.
    pub(crate) bytes: u64,
    /// Whether they were the host's bytes.
    pub(crate) verified: bool,
    /// Whether the same read was refused once the host had invalidated the key.
    pub(crate) invalid_refused: bool,
    pub(crate) alias_create_us: f64,
    pub(crate) read_us: f64,
    pub(crate) alias_destroy_us: f64,
}

impl Peer {
    pub(crate) fn holds(&self) -> bool {
        self.verified && self.invalid_refused
    }
}

impl Report {
    /// Whether the library can serve on this device, as far as the probe can tell.
    pub(crate) fn holds(&self) -> bool {
        self.capabilities.alias
            && self.capabilities.allow
            && self.proofs.iter().all(Proof::holds)
            && self.peer.as_ref().is_none_or(Peer::holds)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, to: &mut String) -> std::fmt::Result {
        let yes = |ok: bool| if ok { "yes" } else { "NO" };
        let caps = &self.capabilities;
        writeln!(
            to,
            "{}: firmware {}, {}, vhca_id {:#x}",
            self.device, self.firmware, self.link, caps.vhca_id
        )?;
        writeln!(to, "  aliases of remote keys: {}", yes(caps.alias))?;
        writeln!(to, "  keys open to other functions: {}", yes(caps.allow))?;
        writeln!(to, "\nproofs")?;
        for proof in &self.proofs {
            writeln!(
                to,
                "  {:<6} bind {}, read {}, refused beyond the end {}, refused when invalid {}; {:.0} us",
                proof.form,
                yes(proof.bound),
                yes(proof.read),
                yes(proof.beyond_refused),
                yes(proof.invalid_refused),
                proof.us
            )?;
            if let Some(failure) = &proof.failure {
                writeln!(to, "         {failure}")?;
            }
        }
        writeln!(to, "\nlimits")?;
        writeln!(to, "  regions of one bind: {}", self.limits.klm_entries_max)?;
        write_found(to, "UMR keys", &self.limits.mkeys)?;
        if let Some(aliases) = &self.limits.aliases {
            write_found(to, "aliases", aliases)?;
        }
        writeln!(
            to,
            "\n{:<13} {:<28} {:>8} {:>14} {:>14}",
            "approach", "step", "size", "measured (us)", "published (us)"
        )?;
        for cost in &self.costs {
            let slide = cost
                .slide_us
                .map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
            writeln!(
                to,
                "{:<13} {:<28} {:>8} {:>14.2} {slide:>14}",
                cost.approach,
                cost.step,
                format_size(cost.size),
                cost.measured_us
            )?;
        }
        if let Some(peer) = &self.peer {
            writeln!(
                to,
                "\npeer {}: {}, firmware {}, {}, vhca_id {:#x}",
                peer.address, peer.device, peer.firmware, peer.link, peer.vhca_id
            )?;
            writeln!(
                to,
                "  read {} bytes of this host: right {}, refused when invalid {}",
                peer.bytes,
                yes(peer.verified),
                yes(peer.invalid_refused)
            )?;
            writeln!(
                to,
                "  alias {:.0} us, read {:.0} us, end of the alias {:.0} us",
                peer.alias_create_us, peer.read_us, peer.alias_destroy_us
            )?;
        }
        Ok(())
    }
}

fn write_found(to: &mut String, what: &str, found: &Found) -> std::fmt::Result {
    match &found.refusal {
        Some(refusal) => writeln!(to, "  {what}: {}, then {refusal}", found.created),
        None => writeln!(to, "  {what}: {} and more", found.created),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Report {
        Report {
            schema: 1,
            version: "0",
            device: "mlx5_0".to_owned(),
            firmware: "32.43.1014".to_owned(),
            link: "ethernet".to_owned(),
            capabilities: Capabilities {
                vhca_id: 7,
                second_page: true,
                alias: true,
                allow: true,
            },
            proofs: vec![Proof {
                form: "stock".to_owned(),
                bound: true,
                read: true,
                beyond_refused: true,
                invalid_refused: true,
                us: 40.0,
                failure: None,
            }],
            limits: Limits {
                klm_entries_max: 16,
                mkeys: Found {
                    created: 100,
                    tried: 100,
                    refusal: None,
                },
                aliases: None,
            },
            costs: vec![Cost {
                approach: "umr".to_owned(),
                step: "host_umr_mkey_creation".to_owned(),
                size: 16 << 10,
                measured_us: 200.0,
                slide_us: Some(218.0),
            }],
            peer: Some(Peer {
                address: "127.0.0.1:1".to_owned(),
                device: "mlx5_1".to_owned(),
                firmware: "32.43.1014".to_owned(),
                link: "ethernet".to_owned(),
                vhca_id: 8,
                bytes: 65536,
                verified: true,
                invalid_refused: true,
                alias_create_us: 200.0,
                read_us: 20.0,
                alias_destroy_us: 100.0,
            }),
        }
    }

    /// Each thing that does not hold makes the whole not hold.
    #[test]
    fn one_failure_is_enough() {
        assert!(sample().holds());
        let without: [fn(&mut Report); 6] = [
            |report| report.capabilities.alias = false,
            |report| report.capabilities.allow = false,
            |report| report.proofs[0].read = false,
            |report| report.proofs[0].invalid_refused = false,
            |report| report.peer.as_mut().expect("a peer").verified = false,
            |report| report.peer.as_mut().expect("a peer").invalid_refused = false,
        ];
        for change in without {
            let mut report = sample();
            change(&mut report);
            assert!(!report.holds(), "{report:?}");
        }
        let mut alone = sample();
        alone.peer = None;
        assert!(alone.holds());
    }

    #[test]
    fn the_table_names_what_failed() {
        let mut report = sample();
        report.proofs[0].read = false;
        report.proofs[0].failure = Some("syndrome 0x13".to_owned());
        report.limits.mkeys.refusal = Some("status 0xb".to_owned());
        let text = report.text();
        for part in ["read NO", "syndrome 0x13", "100, then status 0xb", "16 KiB"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!sample().text().contains("NO"), "{}", sample().text());
    }
}
