//! Options of the processes: flags override a file, the file overrides defaults.

use super::period::Period;
use crate::service::{TRANSFER_MAX, WORKERS_MAX};
use anyhow::{Result, bail};
use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use xgvmi_daemon::config::{read_toml, within};

/// Default of `--target-timeout`.
const TARGET_TIMEOUT: Duration = Duration::from_secs(5);
/// Default of `--outage-limit`.
const OUTAGE_LIMIT: Duration = Duration::from_secs(20);
/// Longest of both.
const PERIOD_MAX: Duration = Duration::from_mins(10);

/// A number of bytes: `4096`, `64K`, `10G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl From<Size> for u64 {
    fn from(size: Size) -> Self {
        size.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, shift) = match text.char_indices().last() {
            Some((at, 'K' | 'k')) => (&text[..at], 10),
            Some((at, 'M' | 'm')) => (&text[..at], 20),
            Some((at, 'G' | 'g')) => (&text[..at], 30),
            Some((at, 'T' | 't')) => (&text[..at], 40),
            _ => (text, 0),
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "give a number of bytes, or with K, M, G, T")?;
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or_else(|| "the number is too large".to_owned())
    }
}

impl<'de> Deserialize<'de> for Size {
    /// An integer, or a text with a suffix.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// How targets are opened. Each flag has its namesake in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct OpenArgs {
    /// Maximum bytes of data in each target file, or with K, M, G, T.
    #[arg(long)]
    pub capacity: Option<Size>,
    /// File with the secret of targets at tcp: addresses.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Longest wait for an answer of a target at a tcp: address, as 200ms, 5s or 2m. A slower one counts as absent if the
    /// two others hold everything [default: 5s].
    #[arg(long, value_name = "TIME")]
    pub target_timeout: Option<Period>,
    /// Longest wait of a request for targets that it cannot do without, as 200ms, 5s or 2m: for a slow one, and for one
    /// that returns. Then the request fails. 0s: requests do not wait [default: 20s].
    #[arg(long, value_name = "TIME")]
    pub outage_limit: Option<Period>,
    /// Open the volume also if another process is connected to targets at tcp: addresses and owns them. All requests of
    /// the other process fail from then on.
    #[arg(long)]
    #[serde(skip)]
    pub take_over: bool,
}

impl OpenArgs {
    /// These options, else those of the file.
    fn or(self, file: Self) -> Self {
        Self {
            capacity: self.capacity.or(file.capacity),
            secret_file: self.secret_file.or(file.secret_file),
            target_timeout: self.target_timeout.or(file.target_timeout),
            outage_limit: self.outage_limit.or(file.outage_limit),
            take_over: self.take_over,
        }
    }

    /// Longest wait of a request for targets that it cannot do without.
    ///
    /// # Errors
    /// It is out of range.
    pub fn outage_limit(&self) -> Result<Duration> {
        let limit = self.outage_limit.map_or(OUTAGE_LIMIT, |limit| limit.0);
        period("outage-limit", limit, Duration::ZERO)
    }

    /// Longest time that a request waits for targets: it may begin to wait for a silent one just before it waits for one
    /// that returns, and once more for its answer.
    ///
    /// # Errors
    /// A limit is out of range.
    pub fn longest_wait(&self) -> Result<Duration> {
        Ok(2 * (self.outage_limit()? + self.target_limit()?))
    }

    /// Longest wait for an answer of a target.
    ///
    /// # Errors
    /// It is out of range.
    pub fn target_limit(&self) -> Result<Duration> {
        let limit = self.target_timeout.map_or(TARGET_TIMEOUT, |limit| limit.0);
        period("target-timeout", limit, Duration::from_millis(1))
    }
}

/// Options of `xgvmi-blk target`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct TargetArgs {
    /// File of the target.
    pub file: Option<PathBuf>,
    /// A file with any of these options, as `capacity = "10G"`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address and port; port 0 chooses one [default: 127.0.0.1:7710].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// File with the secret of both sides, 16 to 4,096 bytes, which other users cannot read. Required unless --listen is
    /// a loopback address. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret: for networks in which each process is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
    /// Maximum bytes of data, or with K, M, G, T.
    #[arg(long)]
    pub capacity: Option<Size>,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-target-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR;
    /// without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

impl TargetArgs {
    /// Adds the options of the file.
    ///
    /// # Errors
    /// The file is unreadable or has an unknown option; a necessary option is missing.
    pub fn complete(self) -> Result<Self> {
        let file: Self = match &self.config {
            Some(path) => read_toml(path)?,
            None => Self::default(),
        };
        let all = Self {
            file: self.file.or(file.file),
            config: self.config,
            listen: self.listen.or(file.listen),
            secret_file: self.secret_file.or(file.secret_file),
            insecure: self.insecure.or(file.insecure),
            capacity: self.capacity.or(file.capacity),
            status_socket: self.status_socket.or(file.status_socket),
        };
        if all.file.is_none() {
            bail!("no target: give FILE, or file in the file of --config");
        }
        let listen = all.listen();
        if all.secret_file.is_none() && !listen.ip().is_loopback() && all.insecure != Some(true) {
            bail!(
                "{listen}: beyond loopback a target needs a secret: give --secret-file FILE, or --insecure in a network \
                 where every process may be trusted"
            );
        }
        Ok(all)
    }

    /// Where the target listens.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7710)))
    }
}

/// Options of `xgvmi-blk export`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ExportArgs {
    /// Files, tcp:HOST:PORT, or nbd:SOCKET of an NBD server, in any order. Two are enough.
    #[arg(num_args = 0..=3, value_name = "TARGET")]
    pub targets: Vec<String>,
    /// A file with any of these options, as `socket = "/run/vol.sock"`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// How the targets are opened.
    #[command(flatten)]
    #[serde(flatten)]
    pub open: OpenArgs,
    /// Unix socket of NBD clients. It must not exist, unless no process listens on it.
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
    /// Name of the export [default: the empty name].
    #[arg(long)]
    pub name: Option<String>,
    /// Export the volume of a service on this host's DPU, instead of targets. The secret file is that of initiators.
    #[arg(long, value_name = "HOST:PORT")]
    pub service: Option<String>,
    /// The RDMA device for --service [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Use three targets in memory with this size of the volume. Nothing is kept.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Bytes of a block of a volume in memory [default: 4096].
    #[arg(long, value_name = "SIZE")]
    pub block_size: Option<Size>,
    /// Time for requests under way after SIGTERM, in seconds [default: 10].
    #[arg(long, value_name = "S")]
    pub drain_limit_s: Option<u64>,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-export.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR;
    /// without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

/// Names that the file of an export may have. A flattened structure cannot refuse others by itself.
const EXPORT_NAMES: [&str; 13] = [
    "targets",
    "capacity",
    "secret-file",
    "target-timeout",
    "outage-limit",
    "socket",
    "name",
    "service",
    "device",
    "memory",
    "block-size",
    "drain-limit-s",
    "status-socket",
];

impl ExportArgs {
    /// Adds the options of the file.
    ///
    /// # Errors
    /// The file is unreadable or has an unknown option; a necessary option is missing or two contradict each other.
    pub fn complete(self) -> Result<Self> {
        let file: Self = match &self.config {
            Some(path) => read_named(path, &EXPORT_NAMES)?,
            None => Self::default(),
        };
        let is_named = !self.targets.is_empty() || self.service.is_some();
        let all = Self {
            // Targets of the command line replace a volume in memory of the file, and the reverse.
            targets: match (self.targets.is_empty(), self.memory, &self.service) {
                (true, None, None) => file.targets,
                _ => self.targets.clone(),
            },
            service: match (self.targets.is_empty(), self.memory) {
                (true, None) => self.service.or(file.service),
                _ => self.service,
            },
            device: self.device.or(file.device),
            memory: match is_named {
                false => self.memory.or(file.memory),
                true => self.memory,
            },
            config: self.config,
            open: self.open.or(file.open),
            socket: self.socket.or(file.socket),
            name: self.name.or(file.name),
            block_size: self.block_size.or(file.block_size),
            drain_limit_s: self.drain_limit_s.or(file.drain_limit_s),
            status_socket: self.status_socket.or(file.status_socket),
        };
        if all.socket.is_none() {
            bail!("no socket: give --socket FILE, or socket in the file of --config");
        }
        if all.service.is_some() && (!all.targets.is_empty() || all.memory.is_some()) {
            bail!("--service excludes TARGETs and --memory: the service has them");
        }
        match (all.targets.len(), all.memory) {
            (0, None) if all.service.is_some() => {}
            (0, None) => bail!(
                "no targets: give two or three TARGETs, --memory SIZE, or --service HOST:PORT"
            ),
            (1.., Some(_)) => bail!("TARGETs and --memory exclude each other"),
            (4.., None) => bail!("{} targets: a volume has three", all.targets.len()),
            _ => {}
        }
        all.open.target_limit()?;
        all.open.outage_limit()?;
        all.drain_limit()?;
        Ok(all)
    }

    /// Time for requests under way after SIGTERM.
    ///
    /// # Errors
    /// It is out of range.
    pub fn drain_limit(&self) -> Result<Duration> {
        drain_limit(self.drain_limit_s)
    }
}

/// Options of `xgvmi-blk service`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ServiceArgs {
    /// Files, tcp:HOST:PORT, or nbd:SOCKET of an NBD server, in any order. Two are enough.
    #[arg(num_args = 0..=3, value_name = "TARGET")]
    pub targets: Vec<String>,
    /// A file with any of these options, as `workers = 8`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// How the targets are opened.
    #[command(flatten)]
    #[serde(flatten)]
    pub open: OpenArgs,
    /// Where initiators connect; port 0 chooses one [default: 127.0.0.1:7720].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// File with the secret of initiators, 16 to 4,096 bytes, which other users cannot read. Required unless --listen is
    /// a loopback address. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub initiator_secret_file: Option<PathBuf>,
    /// The RDMA device [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Requests that are carried out at once, 1 to 64 [default: 4].
    #[arg(long, value_name = "N")]
    pub workers: Option<u64>,
    /// Longest transfer of one request in MiB, 1 to 32. Each worker has a buffer of this size [default: 4].
    #[arg(long, value_name = "MIB")]
    pub transfer_mib: Option<u64>,
    /// Move data by RDMA READ and WRITE instead of the adapter's DMA engine.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub rdma: Option<bool>,
    /// Also serve initiators with keys of stock UCX's own pool. Every process knows their access key, so each initiator
    /// may name the exported memory of programs with stock UCX: for comparisons.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub stock_keys: Option<bool>,
    /// Time for requests under way after SIGTERM, in seconds [default: 10].
    #[arg(long, value_name = "S")]
    pub drain_limit_s: Option<u64>,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-service-PORT.sock in $RUNTIME_DIRECTORY or
    /// $XDG_RUNTIME_DIR; without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

/// Names that the file of a service may have. A flattened structure cannot refuse others by itself.
const SERVICE_NAMES: [&str; 14] = [
    "targets",
    "capacity",
    "secret-file",
    "target-timeout",
    "outage-limit",
    "listen",
    "initiator-secret-file",
    "device",
    "workers",
    "transfer-mib",
    "rdma",
    "stock-keys",
    "drain-limit-s",
    "status-socket",
];

impl ServiceArgs {
    /// Adds the options of the file.
    ///
    /// # Errors
    /// The file is unreadable or has an unknown option; a necessary option is missing or out of range.
    pub fn complete(self) -> Result<Self> {
        let file: Self = match &self.config {
            Some(path) => read_named(path, &SERVICE_NAMES)?,
            None => Self::default(),
        };
        let all = Self {
            targets: if self.targets.is_empty() {
                file.targets
            } else {
                self.targets
            },
            config: self.config,
            open: self.open.or(file.open),
            listen: self.listen.or(file.listen),
            initiator_secret_file: self.initiator_secret_file.or(file.initiator_secret_file),
            device: self.device.or(file.device),
            workers: self.workers.or(file.workers),
            transfer_mib: self.transfer_mib.or(file.transfer_mib),
            rdma: self.rdma.or(file.rdma),
            stock_keys: self.stock_keys.or(file.stock_keys),
            drain_limit_s: self.drain_limit_s.or(file.drain_limit_s),
            status_socket: self.status_socket.or(file.status_socket),
        };
        match all.targets.len() {
            0 => bail!("no targets: give two or three TARGETs, or targets in the file of --config"),
            4.. => bail!("{} targets: a volume has three", all.targets.len()),
            _ => {}
        }
        let listen = all.listen();
        if all.initiator_secret_file.is_none() && !listen.ip().is_loopback() {
            bail!(
                "{listen}: beyond loopback a service needs a secret: give --initiator-secret-file FILE"
            );
        }
        all.open.target_limit()?;
        all.open.outage_limit()?;
        all.drain_limit()?;
        all.workers()?;
        all.transfer_max()?;
        Ok(all)
    }

    /// Where the service listens.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7720)))
    }

    /// Requests that are carried out at once.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn workers(&self) -> Result<usize> {
        let most = WORKERS_MAX as u64;
        let workers = within("workers", self.workers.unwrap_or(4), 1..=most)?;
        Ok(usize::try_from(workers)?)
    }

    /// Longest transfer of one request in bytes.
    ///
    /// # Errors
    /// It is out of range.
    pub fn transfer_max(&self) -> Result<u32> {
        let most = u64::from(TRANSFER_MAX >> 20);
        let mib = within("transfer-mib", self.transfer_mib.unwrap_or(4), 1..=most)?;
        Ok(u32::try_from(mib << 20)?)
    }

    /// Time for requests under way after SIGTERM.
    ///
    /// # Errors
    /// It is out of range.
    pub fn drain_limit(&self) -> Result<Duration> {
        drain_limit(self.drain_limit_s)
    }
}

fn period(name: &str, time: Duration, least: Duration) -> Result<Duration> {
    if (least..=PERIOD_MAX).contains(&time) {
        return Ok(time);
    }
    bail!("{name} is {time:?}; it must be from {least:?} to {PERIOD_MAX:?}")
}

fn drain_limit(limit_s: Option<u64>) -> Result<Duration> {
    let limit_s = limit_s.unwrap_or(10);
    Ok(Duration::from_secs(within(
        "drain-limit-s",
        limit_s,
        0..=3600,
    )?))
}

/// Reads a file of options that has only these names.
fn read_named<T: DeserializeOwned>(path: &Path, names: &[&str]) -> Result<T> {
    let table: toml::Table = read_toml(path)?;
    if let Some(name) = table.keys().find(|name| !names.contains(&name.as_str())) {
        bail!(
            "{}: unknown option {name}; the options are {}",
            path.display(),
            names.join(", ")
        );
    }
    Ok(read_toml(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Write as _;

    #[derive(Debug, Parser)]
    struct Target {
        #[command(flatten)]
        args: TargetArgs,
    }

    #[derive(Debug, Parser)]
    struct Export {
        #[command(flatten)]
        args: ExportArgs,
    }

    fn target(words: &[&str]) -> Result<TargetArgs> {
        Target::try_parse_from([&["target"], words].concat())?
            .args
            .complete()
    }

    fn export(words: &[&str]) -> Result<ExportArgs> {
        Export::try_parse_from([&["export"], words].concat())?
            .args
            .complete()
    }

    #[derive(Debug, Parser)]
    struct Service {
        #[command(flatten)]
        args: ServiceArgs,
    }

    fn service(words: &[&str]) -> Result<ServiceArgs> {
        Service::try_parse_from([&["service"], words].concat())?
            .args
            .complete()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn path(file: &tempfile::NamedTempFile) -> &str {
        file.path().to_str().unwrap()
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let options =
            file("file = '/a'\nlisten = '127.0.0.1:9'\ncapacity = '1G'\nstatus-socket = '/s'");
        let found = target(&["--config", path(&options), "--capacity", "5M"]).unwrap();
        assert_eq!(found.file, Some("/a".into()));
        assert_eq!(found.listen().port(), 9);
        assert_eq!(found.capacity, Some(Size(5 << 20)));
        assert_eq!(target(&["/b"]).unwrap().listen().port(), 7710);
        let options = file(
            "targets = ['a', 'b']\nsocket = 's'\ncapacity = 4096\ntarget-timeout = '70ms'\noutage-limit = '0s'",
        );
        let found = export(&["--config", path(&options), "--name", "n"]).unwrap();
        assert_eq!(found.targets, ["a", "b"]);
        assert_eq!(found.open.capacity, Some(Size(4096)));
        assert_eq!(
            found.open.target_limit().unwrap(),
            Duration::from_millis(70)
        );
        assert!(found.open.outage_limit().unwrap().is_zero());
        assert_eq!(
            found.open.longest_wait().unwrap(),
            Duration::from_millis(140)
        );
        assert_eq!(found.drain_limit().unwrap(), Duration::from_secs(10));
        let found = export(&["--config", path(&options), "--memory", "1M"]).unwrap();
        assert_eq!(
            (found.targets.len(), found.memory),
            (0, Some(Size(1 << 20)))
        );
        let options = file(
            "targets = ['a', 'b']\nlisten = '127.0.0.1:9'\nworkers = 8\nrdma = true\ncapacity = '1G'",
        );
        let found = service(&["--config", path(&options), "--workers", "64"]).unwrap();
        assert_eq!((found.listen().port(), found.workers().unwrap()), (9, 64));
        assert_eq!(
            (found.rdma, found.open.capacity),
            (Some(true), Some(Size(1 << 30)))
        );
        assert_eq!(found.transfer_max().unwrap(), 4 << 20);
        let found = service(&["--config", path(&options), "--rdma=false", "c"]).unwrap();
        assert_eq!(
            (found.rdma, found.targets),
            (Some(false), vec!["c".to_owned()])
        );
        assert_eq!(service(&["a", "b"]).unwrap().listen().port(), 7720);
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        #[track_caller]
        fn check<T: std::fmt::Debug>(result: Result<T>, expect: &str) {
            let error = format!("{:#}", result.unwrap_err());
            assert!(error.contains(expect), "{error}");
        }
        check(target(&[]), "give FILE");
        check(target(&["a", "--listen", "192.0.2.1:1"]), "needs a secret");
        check(target(&["a", "--listen", "[::]:1"]), "needs a secret");
        check(target(&["a", "--listen", "nowhere"]), "nowhere");
        check(target(&["a", "--capacity", "5X"]), "number of bytes");
        check(target(&["a", "--config", "/nowhere.toml"]), "/nowhere.toml");
        assert!(target(&["a", "--listen", "192.0.2.1:1", "--insecure"]).is_ok());
        assert!(target(&["a", "--listen", "192.0.2.1:1", "--secret-file", "s"]).is_ok());
        check(export(&["a", "b"]), "no socket");
        check(export(&["--socket", "s"]), "no targets");
        check(export(&["a", "--memory", "1M", "--socket", "s"]), "exclude");
        check(
            export(&["a", "b", "--socket", "s", "--target-timeout", "0s"]),
            "target-timeout is 0ns; it must be from 1ms to 600s",
        );
        check(
            export(&["a", "b", "--socket", "s", "--outage-limit", "601s"]),
            "outage-limit is 601s",
        );
        // The form without a unit, which was in milliseconds.
        for option in ["target-timeout", "outage-limit"] {
            let flag = format!("--{option}");
            let expect = "20 has no unit: give 20ms for milliseconds, or 20s for seconds";
            check(export(&["a", "b", "--socket", "s", &flag, "20"]), expect);
            check(service(&["a", "b", &flag, "20"]), expect);
            for value in ["20", "'20'"] {
                let options = file(&format!(
                    "socket = 's'\ntargets = ['a', 'b']\n{option} = {value}"
                ));
                check(export(&["--config", path(&options)]), expect);
                let options = file(&format!("targets = ['a', 'b']\n{option} = {value}"));
                check(service(&["--config", path(&options)]), expect);
            }
        }
        check(
            export(&["a", "b", "--socket", "s", "--drain-limit-s", "3601"]),
            "drain-limit-s is 3601",
        );
        check(service(&[]), "no targets");
        check(service(&["a", "--listen", "192.0.2.1:1"]), "needs a secret");
        check(service(&["a", "--listen", "[::]:1"]), "needs a secret");
        assert!(service(&["a", "--listen", "[::]:1", "--initiator-secret-file", "s"]).is_ok());
        for (option, most) in [("--workers", 64), ("--transfer-mib", 32)] {
            let name = option.trim_start_matches('-');
            for wrong in [0, most + 1] {
                let words = ["a", option, &wrong.to_string()];
                check(service(&words), &format!("{name} is {wrong}"));
            }
            assert!(service(&["a", option, &most.to_string()]).is_ok());
        }
        check(
            service(&["a", "--drain-limit-s", "3601"]),
            "drain-limit-s is 3601",
        );
        let four = file("targets = ['a', 'b', 'c', 'd']\nsocket = 's'");
        check(export(&["--config", path(&four)]), "a volume has three");
        let four = file("targets = ['a', 'b', 'c', 'd']");
        check(service(&["--config", path(&four)]), "a volume has three");
        for options in ["sockt = 's'", "socket = 5", "capacity = '5X'", "="] {
            let options = file(options);
            check(export(&["--config", path(&options)]), path(&options));
            check(target(&["a", "--config", path(&options)]), path(&options));
            check(service(&["a", "--config", path(&options)]), path(&options));
        }
    }

    #[test]
    fn the_examples_are_valid() {
        let example = |name: &str| {
            let path = format!("{}/packaging/{name}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            // The commented-out options are valid too.
            let all = text.replace("\n# ", "\n");
            let named: Vec<&str> = all.lines().filter(|line| line.contains(" = ")).collect();
            (file(&text), file(&named.join("\n")))
        };
        for options in <[_; 2]>::from(example("target.toml")) {
            let found = target(&["--config", path(&options)]).unwrap();
            assert!(found.secret_file.is_some() && !found.listen().ip().is_loopback());
        }
        for options in <[_; 2]>::from(example("service.toml")) {
            let found = service(&["--config", path(&options)]).unwrap();
            assert_eq!(found.targets.len(), 3);
            assert!(found.initiator_secret_file.is_some() && !found.listen().ip().is_loopback());
        }
        for options in <[_; 2]>::from(example("export.toml")) {
            assert_eq!(
                export(&["--config", path(&options)]).unwrap().targets.len(),
                3
            );
        }
    }
}
