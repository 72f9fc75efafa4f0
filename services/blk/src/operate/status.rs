//! The state of a running process: `xgvmi-blk status`.

use crate::service::ServiceStatus;
use crate::volume::{TargetStatus, VolumeStatus};
use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use xgvmi_daemon::Metrics;

/// Options of `xgvmi-blk status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The --status-socket of the process [default: that of `xgvmi-blk export` in $RUNTIME_DIRECTORY or
    /// $XDG_RUNTIME_DIR, else that of the one export among the systemd units, in /run/xgvmi-blk-*].
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
    /// The target at this port, in its default socket or that of its systemd unit.
    #[arg(long, value_name = "PORT", conflicts_with = "socket")]
    pub target: Option<u16>,
    /// The service at this port, in its default socket or that of its systemd unit.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["socket", "target"])]
    pub service: Option<u16>,
    /// As JSON.
    #[arg(long, conflicts_with = "prom")]
    pub json: bool,
    /// In the text format of Prometheus.
    #[arg(long)]
    pub prom: bool,
}

/// State of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// Version of the program.
    pub version: String,
    /// Number of the process.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Socket of NBD clients.
    pub socket: String,
    /// Name of the export.
    pub name: String,
    /// NBD clients.
    pub clients: usize,
    /// Bytes of their requests that have no whole reply.
    pub buffered_bytes: u64,
    /// State and counters of the volume.
    pub volume: VolumeStatus,
}

/// State of a process that serves a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetProcessStatus {
    /// Version of the program.
    pub version: String,
    /// Number of the process.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Where it listens.
    pub address: String,
    /// File of the target.
    pub file: String,
    /// Role: `data_1`, `data_2` or `data_p`.
    pub role: String,
    /// Identifier of the volume.
    pub volume: String,
    /// Number of times that the volume was opened.
    pub epoch: u64,
    /// False for a new target of an old volume until it holds everything.
    pub complete: bool,
    /// Bytes of records in use.
    pub used: u64,
    /// Index slots that were damaged when the target was opened.
    pub damaged: u64,
    /// Connections.
    pub connections: usize,
    /// Calls since the start.
    pub calls: u64,
    /// Calls that were refused or have failed.
    pub failed_calls: u64,
}

/// State of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceProcessStatus {
    /// Version of the program.
    pub version: String,
    /// Number of the process.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Where it listens.
    pub address: String,
    /// How data moves: `DMA` or `RDMA`.
    pub transfer: String,
    /// Requests, bytes and aliases.
    pub requests: ServiceStatus,
    /// State and counters of the volume.
    pub volume: VolumeStatus,
}

/// State of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "program", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// Of `xgvmi-blk export`.
    Export(ExportStatus),
    /// Of `xgvmi-blk service`.
    Service(ServiceProcessStatus),
    /// Of `xgvmi-blk target`.
    Target(TargetProcessStatus),
}

impl Status {
    /// Parses the answer of a process.
    ///
    /// # Errors
    /// The defect of the text.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("the answer is no status of xgvmi-blk")
    }

    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // The structure contains only texts and numbers, which JSON has.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// In the text format of Prometheus.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut m = Metrics::default();
        match self {
            Self::Export(export) => export.metrics(&mut m),
            Self::Service(service) => service.metrics(&mut m),
            Self::Target(target) => target.metrics(&mut m),
        }
        m.finish()
    }
}

impl ExportStatus {
    fn metrics(&self, m: &mut Metrics) {
        let volume = &self.volume;
        m.family("xgvmi_blk_info", "Version and volume.", "gauge");
        let labels = [
            ("version", self.version.as_str()),
            ("program", "export"),
            ("volume", &volume.volume),
        ];
        m.sample("xgvmi_blk_info", &labels, 1);
        let uptime = "Time since the start.";
        m.gauge("xgvmi_blk_uptime_seconds", uptime, self.uptime_s);
        m.gauge("xgvmi_blk_clients", "NBD clients.", self.clients as u64);
        let buffered = "Bytes of requests of NBD clients that have no whole reply.";
        m.gauge("xgvmi_blk_buffered_bytes", buffered, self.buffered_bytes);
        volume_metrics(volume, m);
    }
}

impl ServiceProcessStatus {
    fn metrics(&self, m: &mut Metrics) {
        m.family("xgvmi_blk_info", "Version and volume.", "gauge");
        let labels = [
            ("version", self.version.as_str()),
            ("program", "service"),
            ("volume", &self.volume.volume),
        ];
        m.sample("xgvmi_blk_info", &labels, 1);
        let uptime = "Time since the start.";
        m.gauge("xgvmi_blk_uptime_seconds", uptime, self.uptime_s);
        let requests = &self.requests;
        m.gauge("xgvmi_blk_initiators", "Initiators.", requests.initiators);
        for (name, help, value) in [
            ("requests", "Requests.", requests.requests),
            ("failed_requests", "Requests that failed.", requests.failed),
            (
                "fetched_bytes",
                "Bytes from initiators' memory.",
                requests.fetched_bytes,
            ),
            (
                "delivered_bytes",
                "Bytes to initiators' memory.",
                requests.delivered_bytes,
            ),
            (
                "aliases_created",
                "Aliases that were created.",
                requests.aliases_created,
            ),
            (
                "alias_hits",
                "Requests whose alias existed.",
                requests.alias_hits,
            ),
        ] {
            m.counter(&format!("xgvmi_blk_{name}_total"), help, value);
        }
        volume_metrics(&self.volume, m);
    }
}

fn volume_metrics(volume: &VolumeStatus, m: &mut Metrics) {
    m.gauge("xgvmi_blk_size_bytes", "Size of the volume.", volume.size);
    type Value = fn(&TargetStatus) -> u64;
    let families: [(&str, &str, Value); 3] = [
        (
            "xgvmi_blk_target_present",
            "1 if the target is in use.",
            |target| target.absent.is_empty().into(),
        ),
        (
            "xgvmi_blk_target_used_bytes",
            "Bytes of half blocks.",
            |target| target.used,
        ),
        (
            "xgvmi_blk_target_missing_blocks",
            "Blocks whose current generation the target lacks.",
            |target| target.missing_blocks,
        ),
    ];
    for (name, help, value) in families {
        m.family(name, help, "gauge");
        for target in &volume.targets {
            m.sample(name, &[("role", target.role.as_str())], value(target));
        }
    }
    let lost = "Blocks that fewer than two targets hold.";
    m.gauge("xgvmi_blk_lost_blocks", lost, volume.lost_blocks);
    let damaged =
        "Index entries that could not be read when their target was opened or has returned.";
    m.gauge("xgvmi_blk_damaged_entries", damaged, volume.damaged_entries);
    for (name, help, value) in [
        ("read_bytes", "Bytes read by clients.", volume.read_bytes),
        (
            "written_bytes",
            "Bytes written by clients.",
            volume.written_bytes,
        ),
        (
            "moved_bytes",
            "Bytes of half blocks sent to targets.",
            volume.moved_bytes,
        ),
        (
            "degraded_reads",
            "Reads of blocks that needed parity.",
            volume.degraded_reads,
        ),
        (
            "repaired_halves",
            "Half blocks that were written again.",
            volume.repaired_halves,
        ),
        (
            "corrupt_halves",
            "Half blocks that were wrong.",
            volume.corrupt_halves,
        ),
        ("flushes", "Flushes.", volume.flushes),
    ] {
        m.counter(&format!("xgvmi_blk_{name}_total"), help, value);
    }
}

impl TargetProcessStatus {
    fn metrics(&self, m: &mut Metrics) {
        m.family("xgvmi_blk_info", "Version and volume.", "gauge");
        let labels = [
            ("version", self.version.as_str()),
            ("program", "target"),
            ("volume", &self.volume),
            ("role", &self.role),
        ];
        m.sample("xgvmi_blk_info", &labels, 1);
        let uptime = "Time since the start.";
        m.gauge("xgvmi_blk_uptime_seconds", uptime, self.uptime_s);
        let complete = "0 for a new target until it holds everything.";
        m.gauge("xgvmi_blk_complete", complete, self.complete.into());
        m.gauge("xgvmi_blk_used_bytes", "Bytes of half blocks.", self.used);
        let damaged = "Index slots that were damaged at the start.";
        m.gauge("xgvmi_blk_damaged_slots", damaged, self.damaged);
        let connections = self.connections as u64;
        m.gauge("xgvmi_blk_connections", "Connections.", connections);
        m.counter("xgvmi_blk_calls_total", "Calls.", self.calls);
        let failed = "Calls that were refused or have failed.";
        m.counter("xgvmi_blk_failed_calls_total", failed, self.failed_calls);
    }
}

fn show_volume(f: &mut fmt::Formatter<'_>, volume: &VolumeStatus) -> fmt::Result {
    for target in &volume.targets {
        let state = if target.absent.is_empty() {
            format!("{}, {} bytes used", target.name, target.used)
        } else {
            format!("absent: {}", target.absent)
        };
        let missing = match target.missing_blocks {
            0 => String::new(),
            count => format!(", lacks {count} blocks"),
        };
        writeln!(f, "{:<6}  {state}{missing}", target.role)?;
    }
    write!(
        f,
        "{} bytes read, {} written, {} sent to targets; {} degraded reads, {} halves repaired, {} wrong; {} \
         blocks lost, {} index entries damaged",
        volume.read_bytes,
        volume.written_bytes,
        volume.moved_bytes,
        volume.degraded_reads,
        volume.repaired_halves,
        volume.corrupt_halves,
        volume.lost_blocks,
        volume.damaged_entries
    )
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Export(export) => {
                let volume = &export.volume;
                writeln!(
                    f,
                    "export of volume {} on {}, process {}, {} s, {} clients",
                    volume.volume, export.socket, export.pid, export.uptime_s, export.clients
                )?;
                show_volume(f, volume)
            }
            Self::Service(service) => {
                let (requests, volume) = (&service.requests, &service.volume);
                writeln!(
                    f,
                    "service of volume {} at {} by {}, process {}, {} s, {} initiators",
                    volume.volume,
                    service.address,
                    service.transfer,
                    service.pid,
                    service.uptime_s,
                    requests.initiators
                )?;
                show_volume(f, volume)?;
                write!(
                    f,
                    "\n{} requests, {} failed; {} bytes fetched, {} delivered; {} aliases created, {} found",
                    requests.requests,
                    requests.failed,
                    requests.fetched_bytes,
                    requests.delivered_bytes,
                    requests.aliases_created,
                    requests.alias_hits
                )
            }
            Self::Target(target) => write!(
                f,
                "target {} ({}) of volume {} at {}, process {}, {} s\n{}{} bytes used, {} damaged slots, {} connections, \
                 {} calls, {} failed",
                target.role,
                target.file,
                target.volume,
                target.address,
                target.pid,
                target.uptime_s,
                if target.complete { "" } else { "incomplete, " },
                target.used,
                target.damaged,
                target.connections,
                target.calls,
                target.failed_calls
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn export() -> Status {
        let target = |role: &str, absent: &str| TargetStatus {
            role: role.to_owned(),
            name: "f".to_owned(),
            absent: absent.to_owned(),
            used: 7,
            missing_blocks: u64::from(!absent.is_empty()) * 9,
        };
        Status::Export(ExportStatus {
            version: "v".to_owned(),
            pid: 1,
            uptime_s: 2,
            socket: "s".to_owned(),
            name: String::new(),
            clients: 3,
            buffered_bytes: 4,
            volume: VolumeStatus {
                volume: "id".to_owned(),
                size: 4096,
                block_size: 512,
                targets: vec![
                    target("data_1", ""),
                    target("data_2", "it is gone"),
                    target("data_p", ""),
                ],
                lost_blocks: 0,
                read_bytes: 11,
                written_bytes: 12,
                moved_bytes: 13,
                degraded_reads: 14,
                repaired_halves: 15,
                corrupt_halves: 16,
                flushes: 17,
                damaged_entries: 18,
            },
        })
    }

    fn service() -> Status {
        let Status::Export(ExportStatus { volume, .. }) = export() else {
            unreachable!("an export");
        };
        Status::Service(ServiceProcessStatus {
            version: "a \"quoted\" \\ version\n".to_owned(),
            pid: 1,
            uptime_s: 2,
            address: "a".to_owned(),
            transfer: "DMA".to_owned(),
            requests: ServiceStatus {
                requests: 31,
                failed: 32,
                initiators: 4,
                alias_hits: 33,
                ..ServiceStatus::default()
            },
            volume,
        })
    }

    /// Reads a label's text, as Prometheus does. Returns the rest behind the closing quote.
    fn label(text: &str) -> (String, &str) {
        let mut value = String::new();
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return (value, &text[at + 1..]),
                '\\' => value.push(match chars.next().expect("an escape").1 {
                    'n' => '\n',
                    escaped @ ('"' | '\\') => escaped,
                    other => panic!("escape {other}"),
                }),
                c => value.push(c),
            }
        }
        panic!("an open quote: {text}");
    }

    /// A strict reader of the text format: each family once with its help and kind, then its samples, each series once.
    fn samples(text: &str) -> BTreeMap<(String, Vec<(String, String)>), u64> {
        let letters = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        let (mut families, mut found) = (BTreeSet::new(), BTreeMap::new());
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (family, help) = line
                .strip_prefix("# HELP ")
                .unwrap()
                .split_once(' ')
                .unwrap();
            assert!(letters(family) && help.ends_with('.'), "{line}");
            assert!(families.insert(family.to_owned()), "twice: {line}");
            let kind = lines.next().unwrap();
            let kind = kind.strip_prefix(&format!("# TYPE {family} ")).unwrap();
            let is_counter = family.ends_with("_total");
            assert_eq!(
                kind,
                if is_counter { "counter" } else { "gauge" },
                "{family}"
            );
            let before = found.len();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let mut rest = line.strip_prefix(family).unwrap();
                let mut labels = Vec::new();
                while let Some(text) = rest.strip_prefix(['{', ',']) {
                    let (name, text) = text.split_once("=\"").unwrap();
                    assert!(letters(name), "{line}");
                    let (value, text) = label(text);
                    labels.push((name.to_owned(), value));
                    rest = text.strip_prefix('}').unwrap_or(text);
                }
                let value = rest.strip_prefix(' ').unwrap().parse().unwrap();
                let series = (family.to_owned(), labels);
                assert!(found.insert(series, value).is_none(), "twice: {line}");
            }
            assert!(found.len() > before, "{family} has no sample");
        }
        assert!(text.ends_with('\n'));
        found
    }

    #[test]
    fn prometheus_reads_every_number() {
        for (status, series, labels, value) in [
            (export(), "clients", &[][..], 3),
            (export(), "target_present", &[("role", "data_2")], 0),
            (service(), "requests_total", &[], 31),
            (service(), "failed_requests_total", &[], 32),
            (service(), "initiators", &[], 4),
            (service(), "target_missing_blocks", &[("role", "data_2")], 9),
            (target(), "calls_total", &[], 21),
        ] {
            let found = samples(&status.prometheus());
            let labels = labels.iter();
            let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let series = (format!("xgvmi_blk_{series}"), labels.collect());
            assert_eq!(found.get(&series), Some(&value), "{series:?}: {found:?}");
        }
        let found = samples(&service().prometheus());
        let info = found.keys().find(|(name, _)| name == "xgvmi_blk_info");
        let version = ("version".to_owned(), "a \"quoted\" \\ version\n".to_owned());
        assert_eq!(info.unwrap().1[0], version);
    }

    fn target() -> Status {
        Status::Target(TargetProcessStatus {
            version: "v".to_owned(),
            pid: 1,
            uptime_s: 2,
            address: "tcp:a".to_owned(),
            file: "f".to_owned(),
            role: "data_1".to_owned(),
            volume: "id".to_owned(),
            epoch: 5,
            complete: false,
            used: 6,
            damaged: 0,
            connections: 1,
            calls: 21,
            failed_calls: 22,
        })
    }

    #[test]
    fn a_status_reads_back_and_each_form_names_what_matters() {
        for (status, lines, words) in [
            (
                export(),
                &[
                    "xgvmi_blk_target_present{role=\"data_2\"} 0",
                    "xgvmi_blk_target_present{role=\"data_p\"} 1",
                    "xgvmi_blk_target_missing_blocks{role=\"data_2\"} 9",
                    "xgvmi_blk_corrupt_halves_total 16",
                    "xgvmi_blk_damaged_entries 18",
                    "xgvmi_blk_clients 3",
                    "xgvmi_blk_buffered_bytes 4",
                ][..],
                &[
                    "absent: it is gone, lacks 9 blocks",
                    "15 halves repaired",
                    "18 index entries damaged",
                ][..],
            ),
            (
                service(),
                &[
                    "xgvmi_blk_requests_total 31",
                    "xgvmi_blk_alias_hits_total 33",
                ],
                &["by DMA", "4 initiators", "31 requests, 32 failed"],
            ),
            (
                target(),
                &["xgvmi_blk_complete 0", "xgvmi_blk_failed_calls_total 22"],
                &["incomplete, 6 bytes used", "22 failed"],
            ),
        ] {
            assert_eq!(Status::parse(&status.to_json()).unwrap(), status);
            let prometheus = status.prometheus();
            for line in lines {
                assert!(
                    prometheus.lines().any(|found| found == *line),
                    "{line}\n{prometheus}"
                );
            }
            for word in words {
                assert!(status.to_string().contains(word), "{word}\n{status}");
            }
        }
        for text in ["", "{}", "{\"program\":\"other\"}"] {
            assert!(Status::parse(text).is_err(), "{text}");
        }
    }

    /// Programs read these forms: names, order and types stay.
    #[test]
    fn the_forms_for_programs_stay() {
        for (name, status) in [
            ("export", export()),
            ("service", service()),
            ("target", target()),
        ] {
            let path = format!("{}/tests/status/{name}", env!("CARGO_MANIFEST_DIR"));
            for (form, text) in [
                ("json", status.to_json() + "\n"),
                ("prom", status.prometheus()),
            ] {
                let expected = std::fs::read_to_string(format!("{path}.{form}"));
                assert_eq!(text, expected.unwrap(), "{name}.{form}");
            }
        }
    }
}
