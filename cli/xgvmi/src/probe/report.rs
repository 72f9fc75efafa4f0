//! The report of a probe: one JSON document that a user can send, and the same content as a table. It contains no key,
//! no access key and no memory address.

use std::fmt::Write as _;

use bench_report::format_size;
use serde::Serialize;

/// Version of the JSON document. A change of meaning increments it.
pub(crate) const SCHEMA: u32 = 2;

/// The JSON document.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// [`SCHEMA`].
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
    /// Present only with `--peer`.
    pub(crate) peer: Option<Peer>,
    /// Parts that an error ended. The other parts of the report are complete.
    pub(crate) failures: Vec<Failure>,
}

/// A part of the probe that an error ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    /// `proofs`, `aliases`, `exchange`, or the approach of `costs`.
    pub(crate) part: &'static str,
    /// The call, the object and the answer of the device.
    pub(crate) reason: String,
    /// Whether the library uses the calls of this part.
    pub(crate) needed: bool,
}

/// Capability bits and values that the library requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Capabilities {
    /// The function's GVMI.
    pub(crate) vhca_id: u64,
    /// `hca_cap_2`: the device has the second capability page.
    pub(crate) second_page: bool,
    /// `cross_vhca_object_to_object_supported`, local to remote mkeys.
    pub(crate) alias: bool,
    /// `allowed_object_for_other_vhca_access`, mkeys.
    pub(crate) allow: bool,
}

/// Results of the steps that prove one form of bind on this device. Steps after the first failure are `false` too.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Proof {
    pub(crate) form: String,
    pub(crate) bound: bool,
    /// A read through the key returned the expected bytes.
    pub(crate) read: bool,
    /// The device refused a read of one byte more.
    pub(crate) beyond_refused: bool,
    /// The device refused a read through the invalidated key.
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

/// Limits of the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Limits {
    /// Maximum number of regions of one bind.
    pub(crate) klm_entries_max: u32,
    /// UMR keys on this function.
    pub(crate) mkeys: Found,
    /// Aliases on the DPU of `--peer`.
    pub(crate) aliases: Option<Found>,
}

/// Objects created until the device refused one, or until the bound of the probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub(crate) struct Found {
    /// Objects that were created and destroyed again.
    pub(crate) created: u32,
    /// Maximum number of objects that the probe creates (`--limit`).
    pub(crate) tried: u32,
    /// The device's error, if it refused an object.
    pub(crate) refusal: Option<String>,
}

/// Median time of one step of a key's life cycle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Cost {
    pub(crate) approach: String,
    pub(crate) step: String,
    /// Length of the buffer in bytes.
    pub(crate) size: usize,
    pub(crate) measured_us: f64,
    /// The published time for the same step and size, if there is one.
    pub(crate) slide_us: Option<f64>,
}

/// Results of the DPU of `--peer` with a key of this host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Peer {
    pub(crate) address: String,
    pub(crate) device: String,
    pub(crate) firmware: String,
    pub(crate) link: String,
    /// The DPU function's GVMI.
    pub(crate) vhca_id: u64,
    /// Bytes that the DPU read from each of the host's two buffers, through one alias of one key.
    pub(crate) bytes: u64,
    /// Whether the bytes of the first buffer were right.
    pub(crate) verified: bool,
    /// Whether the device refused the same read after the host had invalidated the key.
    pub(crate) invalid_refused: bool,
    /// Whether the bytes of the second buffer were right, after the host had bound the key to it.
    pub(crate) rebound: bool,
    /// Why the device refused a second alias, of the invalid key. The library creates such aliases only for
    /// announcements, and works without them.
    pub(crate) alias_of_invalid_refusal: Option<String>,
    pub(crate) alias_create_us: f64,
    pub(crate) read_us: f64,
    pub(crate) alias_destroy_us: f64,
}

impl Peer {
    pub(crate) fn holds(&self) -> bool {
        self.verified && self.invalid_refused && self.rebound
    }
}

impl Report {
    /// Whether the library can serve on this device, according to the probe.
    pub(crate) fn holds(&self) -> bool {
        self.capabilities.alias
            && self.capabilities.allow
            && self.proofs.iter().all(Proof::holds)
            && self.peer.as_ref().is_none_or(Peer::holds)
            && self.peer.as_ref().is_none_or(|peer| self.is_another(peer))
            && self.failures.iter().all(|failure| !failure.needed)
    }

    /// Whether the peer uses another function than this side. Aliases are between two functions of one adapter, whose
    /// numbers differ.
    fn is_another(&self, peer: &Peer) -> bool {
        peer.vhca_id != self.capabilities.vhca_id
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
            writeln!(to, "  another function: {}", yes(self.is_another(peer)))?;
            writeln!(
                to,
                "  {} bytes through one alias: read {}, refused when invalid {}, read after the next bind {}",
                peer.bytes,
                yes(peer.verified),
                yes(peer.invalid_refused),
                yes(peer.rebound)
            )?;
            match &peer.alias_of_invalid_refusal {
                None => writeln!(to, "  another alias of the invalid key: yes")?,
                Some(refusal) => writeln!(
                    to,
                    "  another alias of the invalid key: no, which only announcements need\n    {refusal}"
                )?,
            }
            writeln!(
                to,
                "  alias {:.0} us, read {:.0} us, end of the alias {:.0} us",
                peer.alias_create_us, peer.read_us, peer.alias_destroy_us
            )?;
        }
        for failure in &self.failures {
            let part = match failure.needed {
                true => "NO",
                false => "no, which the library does not need",
            };
            writeln!(to, "\n{}: {part}\n  {}", failure.part, failure.reason)?;
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
            schema: SCHEMA,
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
                rebound: true,
                alias_of_invalid_refusal: None,
                alias_create_us: 200.0,
                read_us: 20.0,
                alias_destroy_us: 100.0,
            }),
            failures: Vec::new(),
        }
    }

    /// Each requirement that is not met makes the whole report negative.
    #[test]
    fn one_failure_is_enough() {
        assert!(sample().holds());
        let failure = |needed| Failure {
            part: "umr",
            reason: "CREATE_MKEY refused".to_owned(),
            needed,
        };
        let without: [fn(&mut Report); 8] = [
            |report| report.capabilities.alias = false,
            |report| report.capabilities.allow = false,
            |report| report.proofs[0].read = false,
            |report| report.proofs[0].invalid_refused = false,
            |report| report.peer.as_mut().expect("a peer").verified = false,
            |report| report.peer.as_mut().expect("a peer").invalid_refused = false,
            |report| report.peer.as_mut().expect("a peer").rebound = false,
            |report| report.peer.as_mut().expect("a peer").vhca_id = 7,
        ];
        for change in without {
            let mut report = sample();
            change(&mut report);
            assert!(!report.holds(), "{report:?}");
        }
        for needed in [true, false] {
            let mut report = sample();
            report.failures.push(failure(needed));
            assert_eq!(report.holds(), !needed);
            assert_eq!(report.text().contains("NO"), needed, "{}", report.text());
        }
        let mut alone = sample();
        alone.peer = None;
        assert!(alone.holds());
    }

    /// The library keeps its alias across binds, so a device that refuses a new alias of an invalid key is good.
    #[test]
    fn only_announcements_need_an_alias_of_an_invalid_key() {
        let mut report = sample();
        let peer = report.peer.as_mut().expect("a peer");
        peer.alias_of_invalid_refusal = Some("status 0x5".to_owned());
        assert!(report.holds());
        let text = report.text();
        assert!(
            text.contains("status 0x5") && !text.contains("NO"),
            "{text}"
        );
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
