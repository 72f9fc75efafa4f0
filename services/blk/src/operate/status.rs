//! The state of a running process: `xgvmi-blk status`.

use crate::service::{InitiatorStatus, Right, ServiceStatus};
use crate::volume::{TargetStatus, VolumeStatus};
use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use xgvmi_daemon::status::{Form, Shown};
use xgvmi_daemon::{Lines, Metrics, Row};

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
    /// The form.
    #[command(flatten)]
    pub form: Form,
}

xgvmi_daemon::status! {
    /// State of an export.
    pub struct ExportStatus("xgvmi_blk_") {
        pub value version: String, "Version of the program.";
        pub value pid: u32, "Number of the process.";
        pub gauge uptime_s as "uptime_seconds", "Time since the start.";
        pub value socket: String, "Socket of NBD clients.";
        pub value name: String, "Name of the export.";
        pub gauge clients: usize, "NBD clients.";
        pub counter refused_clients, "NBD clients that had no right to the export, no place, or no end of their handshake.";
        pub gauge buffered_bytes, "Bytes of requests of NBD clients that have no whole reply.";
        #[serde(default, skip_serializing_if = "is_elsewhere")]
        pub value volume: VolumeStatus, "State and counters of the volume.";
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub value volumes: Vec<NamedVolume>, "Those of several.";
    }
}

xgvmi_daemon::status! {
    /// State of a process that serves a target.
    pub struct TargetProcessStatus("xgvmi_blk_") {
        pub value version: String, "Version of the program.";
        pub value pid: u32, "Number of the process.";
        pub gauge uptime_s as "uptime_seconds", "Time since the start.";
        pub value address: String, "Where it listens.";
        pub value file: String, "File of the target.";
        pub value role: String, "Role: `data_1`, `data_2` or `data_p`.";
        pub value volume: String, "Identifier of the volume.";
        pub value epoch: u64, "Number of times that the volume was opened.";
        pub gauge complete: bool, "0 for a new target until it holds everything.";
        #[serde(default)]
        pub gauge encrypted: bool, "1 if the stored bytes are encrypted.";
        pub gauge used as "used_bytes", "Bytes of half blocks.";
        pub gauge damaged as "damaged_slots", "Index slots that were damaged at the start.";
        pub gauge connections: usize, "Connections.";
        pub counter calls, "Calls.";
        pub counter failed_calls, "Calls that were refused or have failed.";
    }
}

xgvmi_daemon::status! {
    /// State of a service.
    pub struct ServiceProcessStatus("xgvmi_blk_") {
        pub value version: String, "Version of the program.";
        pub value pid: u32, "Number of the process.";
        pub gauge uptime_s as "uptime_seconds", "Time since the start.";
        pub value address: String, "Where it listens.";
        pub value transfer: String, "How data moves: `DMA` or `RDMA`.";
        pub value requests: ServiceStatus, "Requests, bytes and aliases.";
        #[serde(default)]
        pub value initiators: Vec<InitiatorStatus>, "Initiators with names.";
        #[serde(default, skip_serializing_if = "is_elsewhere")]
        pub value volume: VolumeStatus, "State and counters of the volume.";
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub value volumes: Vec<NamedVolume>, "Those of several.";
    }
}

/// State of one volume of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedVolume {
    /// Its name.
    pub name: String,
    /// Why it is not open; empty if it is.
    pub error: String,
    /// State and counters.
    pub volume: VolumeStatus,
}

/// The process has several volumes, whose states are elsewhere.
fn is_elsewhere(volume: &VolumeStatus) -> bool {
    volume.volume.is_empty()
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
    /// As JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // The structure contains only texts and numbers, which JSON has.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Version and labels of the process.
    fn labels(&self) -> Vec<(&'static str, &str)> {
        let (version, program, volume) = match self {
            Self::Export(export) => (&export.version, "export", &export.volume.volume),
            Self::Service(service) => (&service.version, "service", &service.volume.volume),
            Self::Target(target) => (&target.version, "target", &target.volume),
        };
        let role = match self {
            Self::Target(target) => Some(("role", target.role.as_str())),
            _ => None,
        };
        let labels = [
            ("version", version.as_str()),
            ("program", program),
            ("volume", volume),
        ];
        let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
        labels.chain(role).collect()
    }

    /// The numbers of the process, without those of its volume.
    fn rows(&self) -> Vec<Row> {
        match self {
            Self::Export(export) => export.rows(),
            Self::Service(service) => [service.rows(), service.requests.rows()].concat(),
            Self::Target(target) => target.rows(),
        }
    }

    /// Those of several volumes.
    pub(super) fn named(&self) -> &[NamedVolume] {
        match self {
            Self::Export(export) => &export.volumes,
            Self::Service(service) => &service.volumes,
            Self::Target(_) => &[],
        }
    }

    /// State of the only volume, or of the one with this name.
    pub(super) fn volume(&self, name: Option<&str>) -> Result<&VolumeStatus> {
        let of_one = |one: &&NamedVolume| name.is_none_or(|name| one.name == name);
        match (self, self.named(), name) {
            (Self::Target(_), ..) => {
                bail!("a target has no volume: give the socket of an export or a service")
            }
            (Self::Export(export), [], None) => Ok(&export.volume),
            (Self::Service(service), [], None) => Ok(&service.volume),
            (_, [], Some(_)) => bail!("the volume has no name: give no --volume"),
            (_, all, _) => {
                let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
                let found: Vec<_> = all.iter().filter(of_one).collect();
                match found[..] {
                    [one] if one.error.is_empty() => Ok(&one.volume),
                    [one] => bail!("{}", one.error),
                    _ => bail!("give --volume NAME: the process has {}", names.join(", ")),
                }
            }
        }
    }

    /// The volumes with their labels.
    fn volumes(&self) -> Vec<(Vec<(&str, &str)>, &VolumeStatus)> {
        let named = self.named().iter();
        let named = named.map(|one| (vec![("volume", one.name.as_str())], &one.volume));
        let only = self.volume(None).ok().filter(|_| self.named().is_empty());
        only.map(|only| (Vec::new(), only))
            .into_iter()
            .chain(named)
            .collect()
    }
}

impl Shown for Status {
    fn prometheus(&self) -> String {
        let mut m = Metrics::default();
        m.family("xgvmi_blk_info", "Version and volume.", "gauge");
        m.sample("xgvmi_blk_info", &self.labels(), 1);
        gauges_first(&self.rows(), &mut m);
        if let Self::Service(service) = self {
            initiator_metrics(&service.initiators, &mut m);
        }
        if !self.named().is_empty() {
            let name = "xgvmi_blk_volume_open";
            m.family(name, "1 if the volume is open.", "gauge");
            for one in self.named() {
                m.sample(name, &[("volume", &one.name)], one.error.is_empty().into());
            }
        }
        volume_metrics(&self.volumes(), &mut m);
        m.finish()
    }
}

fn gauges_first(rows: &[Row], m: &mut Metrics) {
    m.rows(rows.iter().filter(|row| !row.is_counter));
    m.rows(rows.iter().filter(|row| row.is_counter));
}

fn initiator_metrics(initiators: &[InitiatorStatus], m: &mut Metrics) {
    if initiators.is_empty() {
        return;
    }
    type Value = fn(&InitiatorStatus) -> u64;
    let families: [(&str, &str, &str, Value); 5] = [
        (
            "connections",
            "Connections of an initiator with a name.",
            "gauge",
            |one| one.connections,
        ),
        (
            "requests_total",
            "Requests of an initiator with a name.",
            "counter",
            |one| one.requests,
        ),
        (
            "failed_requests_total",
            "Those that failed or were refused.",
            "counter",
            |one| one.failed,
        ),
        (
            "fetched_bytes_total",
            "Bytes from its memory.",
            "counter",
            |one| one.fetched_bytes,
        ),
        (
            "delivered_bytes_total",
            "Bytes to its memory.",
            "counter",
            |one| one.delivered_bytes,
        ),
    ];
    for (name, help, kind, value) in families {
        let name = format!("xgvmi_blk_initiator_{name}");
        m.family(&name, help, kind);
        for one in initiators {
            m.sample(&name, &[("initiator", one.name.as_str())], value(one));
        }
    }
}

fn show_initiators(f: &mut fmt::Formatter<'_>, initiators: &[InitiatorStatus]) -> fmt::Result {
    for one in initiators {
        let verb = |right| match right {
            Right::Read => "reads",
            Right::Write => "reads and writes",
        };
        let of_one = |(name, right): (&String, &Right)| format!("{} {name}", verb(*right));
        let volumes: Vec<String> = one.volumes.iter().map(of_one).collect();
        let may = match (&volumes[..], one.read_only) {
            ([], true) => verb(Right::Read).to_owned(),
            ([], false) => verb(Right::Write).to_owned(),
            (volumes, _) => volumes.join(", "),
        };
        writeln!(
            f,
            "initiator {} {may}: {} connections, {} requests, {} failed",
            one.name, one.connections, one.requests, one.failed
        )?;
    }
    Ok(())
}

fn volume_metrics(volumes: &[(Vec<(&str, &str)>, &VolumeStatus)], m: &mut Metrics) {
    if volumes.is_empty() {
        return;
    }
    m.family("xgvmi_blk_size_bytes", "Size of the volume.", "gauge");
    for (labels, volume) in volumes {
        m.sample("xgvmi_blk_size_bytes", labels, volume.size);
    }
    type Value = fn(&TargetStatus) -> u64;
    let families: [(&str, &str, Value); 4] = [
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
        (
            "xgvmi_blk_target_complete",
            "1 if the target was completed since it is in use.",
            |target| target.complete.into(),
        ),
    ];
    for (name, help, value) in families {
        m.family(name, help, "gauge");
        for (labels, volume) in volumes {
            for target in &volume.targets {
                let labels = [&labels[..], &[("role", target.role.as_str())]].concat();
                m.sample(name, &labels, value(target));
            }
        }
    }
    let all: Vec<_> = volumes
        .iter()
        .map(|(labels, volume)| (labels, volume.rows()))
        .collect();
    // The same numbers of each.
    let rows = |is_counter| {
        let kinds = all[0].1.iter().enumerate();
        kinds.filter(move |(_, row)| row.is_counter == is_counter)
    };
    for (at, row) in rows(false).chain(rows(true)) {
        m.family(
            row.name,
            row.help,
            if row.is_counter { "counter" } else { "gauge" },
        );
        for (labels, rows) in &all {
            m.sample(row.name, labels, rows[at].value);
        }
    }
}

fn show_targets(f: &mut fmt::Formatter<'_>, targets: &[TargetStatus]) -> fmt::Result {
    for target in targets {
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
    Ok(())
}

fn served(volume: &VolumeStatus, several: &[NamedVolume]) -> String {
    match several.len() {
        0 => format!("volume {}", volume.volume),
        count => format!("{count} volumes"),
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Export(export) => writeln!(
                f,
                "export of {} on {}, process {}",
                served(&export.volume, &export.volumes),
                export.socket,
                export.pid
            ),
            Self::Service(service) => writeln!(
                f,
                "service of {} at {} by {}, process {}",
                served(&service.volume, &service.volumes),
                service.address,
                service.transfer,
                service.pid
            ),
            Self::Target(target) => writeln!(
                f,
                "target {} ({}) of volume {} at {}, process {}",
                target.role, target.file, target.volume, target.address, target.pid
            ),
        }?;
        for one in self.named() {
            match one.error.as_str() {
                "" => writeln!(f, "volume {} is {}", one.name, one.volume.volume)?,
                error => writeln!(f, "{error}")?,
            }
            show_targets(f, &one.volume.targets)?;
        }
        if let (Ok(volume), []) = (self.volume(None), self.named()) {
            show_targets(f, &volume.targets)?;
        }
        if let Self::Service(service) = self {
            show_initiators(f, &service.initiators)?;
        }
        write!(f, "{}", Lines(&self.rows()))?;
        for (labels, volume) in self.volumes() {
            if let [(_, name)] = labels[..] {
                writeln!(f, "volume {name}:")?;
            }
            write!(f, "{}", Lines(&volume.rows()))?;
        }
        Ok(())
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
            complete: absent.is_empty(),
        };
        Status::Export(ExportStatus {
            version: "v".to_owned(),
            pid: 1,
            uptime_s: 2,
            socket: "s".to_owned(),
            name: String::new(),
            clients: 3,
            refused_clients: 25,
            buffered_bytes: 4,
            volume: VolumeStatus {
                volume: "id".to_owned(),
                size: 4096,
                block_size: 512,
                encrypted: true,
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
                replacements: 19,
                scrubbing: 1,
                scrubs: 20,
                scrubbed_blocks: 21,
                scrub_bad_halves: 22,
                scrub_lost_blocks: 23,
                flush_groups: 24,
            },
            volumes: Vec::new(),
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
            initiators: vec![InitiatorStatus {
                name: "db1".to_owned(),
                read_only: true,
                volumes: BTreeMap::new(),
                connections: 1,
                requests: 41,
                failed: 42,
                fetched_bytes: 43,
                delivered_bytes: 44,
            }],
            volume,
            volumes: Vec::new(),
        })
    }

    /// An export of two volumes, one of which is not open.
    fn several() -> Status {
        let Status::Export(one) = export() else {
            unreachable!("an export");
        };
        let named = |name: &str, error: &str, volume| NamedVolume {
            name: name.to_owned(),
            error: error.to_owned(),
            volume,
        };
        Status::Export(ExportStatus {
            volume: VolumeStatus::default(),
            volumes: vec![
                named("a", "", one.volume),
                named("b", "volume b is not open: why", VolumeStatus::default()),
            ],
            ..one
        })
    }

    /// Each family has one sample of each volume, the text names both, and a command must name one.
    #[test]
    fn each_of_several_volumes_has_its_label() {
        let status = several();
        assert_eq!(
            serde_json::from_str::<Status>(&status.to_json()).unwrap(),
            status
        );
        let found = samples(&status.prometheus());
        let get = |name: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter();
            let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            found
                .get(&(format!("xgvmi_blk_{name}"), labels.collect()))
                .copied()
        };
        let (a, b) = (("volume", "a"), ("volume", "b"));
        assert_eq!(get("volume_open", &[a]), Some(1));
        assert_eq!(get("volume_open", &[b]), Some(0));
        assert_eq!(get("size_bytes", &[a]), Some(4096));
        assert_eq!(get("flushes_total", &[a]), Some(17));
        assert_eq!(get("flushes_total", &[b]), Some(0));
        assert_eq!(get("target_present", &[a, ("role", "data_2")]), Some(0));
        assert_eq!(get("flushes_total", &[]), None);
        assert_eq!(get("clients", &[]), Some(3));
        let text = status.to_string();
        for words in [
            "export of 2 volumes on s",
            "volume a is id",
            "volume b is not open: why",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert_eq!(status.volume(Some("a")).unwrap().flushes, 17);
        for (name, expect) in [
            (None, "give --volume NAME: the process has a, b"),
            (Some("c"), "the process has a, b"),
            (Some("b"), "volume b is not open: why"),
        ] {
            let error = status.volume(name).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
        assert!(export().volume(Some("a")).is_err());
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
            (export(), "target_complete", &[("role", "data_1")], 1),
            (export(), "target_complete", &[("role", "data_2")], 0),
            (service(), "requests_total", &[], 31),
            (service(), "failed_requests_total", &[], 32),
            (service(), "initiators", &[], 4),
            (
                service(),
                "initiator_failed_requests_total",
                &[("initiator", "db1")],
                42,
            ),
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

    #[test]
    fn rights_of_an_initiator_are_shown_by_volume() {
        let Status::Service(mut service) = service() else {
            unreachable!("a service");
        };
        let rights = [("a", Right::Read), ("b", Right::Write)];
        service.initiators[0].volumes = rights.map(|(name, right)| (name.to_owned(), right)).into();
        let shown = Status::Service(service).to_string();
        let expect = "initiator db1 reads a, reads and writes b: 1 connections, ";
        assert!(shown.contains(expect), "{shown}");
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
            encrypted: false,
            used: 6,
            damaged: 0,
            connections: 1,
            calls: 21,
            failed_calls: 22,
        })
    }

    #[test]
    fn a_status_reads_back_and_each_form_names_what_matters() {
        let parse = |text: &str| serde_json::from_str::<Status>(text);
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
                    "xgvmi_blk_refused_clients_total 25",
                    "xgvmi_blk_buffered_bytes 4",
                ][..],
                &[
                    "absent: it is gone, lacks 9 blocks",
                    "              15  Half blocks that were written again.",
                    "              18  Index entries that could not be read",
                ][..],
            ),
            (
                service(),
                &[
                    "xgvmi_blk_requests_total 31",
                    "xgvmi_blk_alias_hits_total 33",
                ],
                &[
                    "by DMA",
                    "               4  Initiators.",
                    "initiator db1 reads: 1 connections, 41 requests, 42 failed",
                    "              32  Requests that failed.",
                ],
            ),
            (
                target(),
                &["xgvmi_blk_complete 0", "xgvmi_blk_failed_calls_total 22"],
                &[
                    "               0  0 for a new target until",
                    "               6  Bytes of half blocks.",
                    "              22  Calls that were refused",
                ],
            ),
        ] {
            assert_eq!(parse(&status.to_json()).unwrap(), status);
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
            assert!(parse(text).is_err(), "{text}");
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
