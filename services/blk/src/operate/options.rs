//! Options of the processes. Each has its namesake in the file of `--config`.

use super::common::check_name;
use crate::roles::TARGETS_MAX;
use crate::service::ServiceOptions;
use anyhow::{Result, bail};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::options::{Table, bytes, defaults, parse_words, time, update};

/// Shortest limit of an answer.
const MS: Duration = Duration::from_millis(1);
/// Longest limits.
const MINUTES: Duration = Duration::from_mins(10);
const HOUR: Duration = Duration::from_hours(1);

/// Most volumes of a process.
pub const VOLUMES_MAX: usize = 16;

/// How targets are opened.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct OpenArgs {
    /// Maximum bytes of data in each target file, or with K, M, G, T.
    #[arg(long, value_parser = bytes)]
    pub capacity: Option<u64>,
    /// Use target files and devices past the system's cache (O_DIRECT).
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub direct: Option<bool>,
    /// File with the secret of targets at tcp: and rdma: addresses.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// File with the key of an encrypted volume, 16 to 4,096 bytes, which other users cannot read.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Longest wait for an answer of a target at a tcp: or rdma: address, as 200ms, 5s or 2m. A slower one counts as absent
    /// if the others hold everything.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time(MS..=MINUTES))]
    pub target_timeout: Duration,
    /// Longest wait of a request for targets that it cannot do without, as 200ms, 5s or 2m: for a slow one, and for one
    /// that returns. Then the request fails. 0s: requests do not wait.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = time(Duration::ZERO..=MINUTES))]
    pub outage_limit: Duration,
    /// The RDMA device for targets at rdma: addresses [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
    /// Open the volume also if another process is connected to targets at tcp: and rdma: addresses and owns them. All
    /// requests of the other process fail from then on.
    #[arg(long)]
    pub take_over: bool,
    /// Open a volume of another layout than 2+1 also if absent targets may hold newer data: they count as lost.
    #[arg(long)]
    pub without_absent: bool,
}

impl OpenArgs {
    /// The defaults with another limit of an answer.
    ///
    /// # Errors
    /// The limit is out of range.
    pub fn with_target_timeout(limit: Duration) -> Result<Self> {
        let limit = format!("--target-timeout={}ms", limit.as_millis());
        Ok(parse_words(&[&limit])?)
    }

    /// Longest time that a request waits for targets: it may begin to wait for a silent one just before it waits for one
    /// that returns, and once more for its answer.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        2 * (self.outage_limit + self.target_timeout)
    }
}

/// The defaults.
impl Default for OpenArgs {
    fn default() -> Self {
        defaults()
    }
}

/// Options of `xgvmi-blk target`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct TargetArgs {
    /// File or block device of the target.
    pub file: Option<PathBuf>,
    /// A file with any of these options, as `capacity = "10G"`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Address and port; port 0 chooses one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7710")]
    pub listen: SocketAddr,
    /// Serve volumes that name the target rdma:HOST:PORT also by RDMA: they and the target read half blocks in memory of
    /// the other side. Without a device a volume uses TCP.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub rdma: Option<bool>,
    /// The RDMA device for --rdma [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// File with the secret of both sides, 16 to 4,096 bytes, which other users cannot read. Required unless --listen is
    /// a loopback address. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret: for networks in which each process is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
    /// Maximum bytes of data, or with K, M, G, T.
    #[arg(long, value_parser = bytes)]
    pub capacity: Option<u64>,
    /// Use the file or device past the system's cache (O_DIRECT).
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub direct: Option<bool>,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-target-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR;
    /// without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

impl TargetArgs {
    /// Checks the options. Returns the file of the target.
    ///
    /// # Errors
    /// A necessary option is missing.
    pub fn check(&self) -> Result<PathBuf> {
        if self.device.is_some() && self.rdma != Some(true) {
            bail!("--device is for RDMA: give --rdma, too");
        }
        let Some(file) = self.file.clone() else {
            bail!("no target: give FILE, or file in the file of --config");
        };
        let listen = self.listen;
        if self.secret_file.is_none() && !listen.ip().is_loopback() && self.insecure != Some(true) {
            bail!(
                "{listen}: beyond loopback a target needs a secret: give --secret-file FILE, or --insecure in a network \
                 where every process may be trusted"
            );
        }
        Ok(file)
    }
}

/// Options of one volume among several.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct VolumeArgs {
    /// Its name.
    #[arg(long)]
    pub name: Option<String>,
    /// Its targets.
    pub targets: Vec<String>,
    /// How they are opened, if otherwise than those of the other volumes.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Refuse what changes it.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub read_only: Option<bool>,
    /// Unix socket of its virtual machine.
    #[arg(long, value_name = "FILE")]
    pub vhost_socket: Option<PathBuf>,
}

/// Volumes with names. `open` has the options that they share. Those of a service have no targets here.
fn volumes(
    tables: &[Table],
    (open, read_only): (&OpenArgs, Option<bool>),
    is_behind: bool,
) -> Result<Vec<VolumeArgs>> {
    let mut all: Vec<VolumeArgs> = Vec::new();
    if tables.len() > VOLUMES_MAX {
        bail!(
            "{} volumes: a process has at most {VOLUMES_MAX}",
            tables.len()
        );
    }
    for table in tables {
        let mut one = VolumeArgs {
            name: None,
            targets: Vec::new(),
            open: open.clone(),
            read_only,
            vhost_socket: None,
        };
        update(&mut one, table, "targets")?;
        // Switches are of the command line only.
        one.open.take_over = open.take_over;
        one.open.without_absent = open.without_absent;
        let name = one.name.as_deref().unwrap_or_default();
        check_name("a volume", name)?;
        if is_behind {
            if !one.targets.is_empty() || one.open != *open {
                bail!(
                    "volume {name} of a service: it has its targets and their options there; here it has its name, and read-only \
                     and vhost-socket in a [[volume]] of the file of --config"
                );
            }
        } else {
            check_targets(
                &one.targets,
                &format!("volume {name} its targets: --volume {name}=TARGET,TARGET,TARGET"),
            )?;
        }
        for other in &all {
            if other.name == one.name {
                bail!("volume {name} is named twice");
            }
            let is_of_other = |target: &&String| other.targets.contains(target);
            if let Some(target) = one.targets.iter().find(is_of_other) {
                let other = other.name.as_deref().unwrap_or_default();
                bail!("{target} is a target of the volumes {other} and {name}: give each its own");
            }
        }
        all.push(one);
    }
    Ok(all)
}

/// Options of `xgvmi-blk export`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ExportArgs {
    /// Files, tcp:HOST:PORT, rdma:HOST:PORT, or nbd:SOCKET of an NBD server, in any order. Two are enough.
    #[arg(value_name = "TARGET", conflicts_with_all = ["memory", "service"])]
    pub targets: Vec<String>,
    /// A file with any of these options, as `socket = "/run/vol.sock"`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// How the targets are opened.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Unix socket of NBD clients. It must not exist, unless no process listens on it.
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
    /// Serve NBD clients over TCP, instead of a socket file; port 0 chooses one. Beyond loopback it needs --tls-client-ca,
    /// or --insecure.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "socket")]
    pub listen: Option<SocketAddr>,
    /// TLS of NBD clients.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Serve NBD clients beyond loopback without certificates: for networks in which each process is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
    /// Unix socket of a virtual machine: a vhost-user-blk device, beside the NBD clients or instead of them. Who may
    /// connect has the rights of a client.
    #[arg(long, value_name = "FILE")]
    pub vhost_socket: Option<PathBuf>,
    /// Most NBD clients at once. Others are told that all places are taken. Each may need 32 MiB and 16 threads.
    #[arg(long, value_name = "N", default_value_t = crate::nbd::CLIENTS as u16, value_parser = clap::value_parser!(u16).range(1..=crate::nbd::CLIENTS_MAX as i64))]
    pub clients: u16,
    /// Most queues of the vhost-user-blk device. Each carries out up to 16 requests at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=crate::vhost::QUEUES_MAX as i64))]
    pub vhost_queues: u8,
    /// Refuse writes, discards and zeros of all clients.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub read_only: Option<bool>,
    /// Name of the export [default: the empty name].
    #[arg(long)]
    pub name: Option<String>,
    /// Export the volume of a service on this host's DPU, instead of targets. The secret file is that of initiators.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["targets", "memory"])]
    pub service: Option<String>,
    /// One of several volumes, which then need no TARGET: NAME=TARGET,TARGET,TARGET. In the file of --config: tables
    /// `[[volume]]` with name, targets, and options of this volume alone. With --service: the NAME of its volume; several are
    /// exports with these names.
    #[arg(long = "volume", value_name = "NAME", conflicts_with_all = ["targets", "memory"])]
    pub volumes: Vec<Table>,
    /// Name by which the service knows this host, with the secret of that name.
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    /// The RDMA device for --service [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Use three targets in memory with this size of the volume. Nothing is kept.
    #[arg(long, value_name = "SIZE", value_parser = bytes, conflicts_with_all = ["targets", "service"])]
    pub memory: Option<u64>,
    /// Bytes of a block of a volume in memory.
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "4096")]
    pub block_size: u64,
    /// Time for requests under way after SIGTERM, as 500ms, 10s or 1m.
    #[arg(long, alias = "drain-limit-s", value_name = "TIME", default_value = "10s", value_parser = time(Duration::ZERO..=HOUR))]
    pub drain_limit: Duration,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-export.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR;
    /// without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

/// TLS of NBD clients, which then need TLS 1.3. SIGHUP reads the files again; open connections stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct TlsArgs {
    /// File with the certificate of the export, and those of authorities between it and the clients' one, in PEM. Clients
    /// must use TLS.
    #[arg(long, value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// File with the private key of the certificate in PEM, which other users cannot read.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// File with certificates of authorities in PEM. Clients need a certificate of one of them.
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve clients without TLS too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub tls_optional: Option<bool>,
}

impl TlsArgs {
    fn check(&self) -> Result<()> {
        match (&self.tls_certificate, &self.tls_key) {
            (Some(_), None) => bail!("a certificate without its key: give --tls-key FILE"),
            (None, Some(_)) => bail!("a key without its certificate: give --tls-certificate FILE"),
            (None, None) if self.tls_client_ca.is_some() || self.tls_optional == Some(true) => {
                bail!("no certificate for TLS: give --tls-certificate FILE and --tls-key FILE")
            }
            _ => Ok(()),
        }
    }

    /// Whether only clients with a certificate are served.
    fn proves_clients(&self) -> bool {
        self.tls_client_ca.is_some() && self.tls_optional != Some(true)
    }
}

/// Where NBD clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    /// A socket file.
    File(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl ExportArgs {
    /// Checks the options. Returns where NBD clients connect, if they may.
    ///
    /// # Errors
    /// A necessary option is missing.
    pub fn check(&self) -> Result<Option<NbdAddress>> {
        self.tls.check()?;
        if self.identity.is_some() && (self.service.is_none() || self.open.secret_file.is_none()) {
            bail!(
                "--identity is the name for a service: give --service HOST:PORT and --secret-file FILE, too"
            );
        }
        if self.open.key_file.is_some() {
            if self.service.is_some() {
                bail!("--key-file and --service: the service has the key of its volume");
            }
            if self.memory.is_some() {
                bail!("--key-file and --memory: a volume in memory is not encrypted");
            }
        }
        let socket = match (self.socket.clone(), self.listen) {
            (Some(socket), None) => Some(NbdAddress::File(socket)),
            (None, Some(listen)) => {
                let is_open = !self.tls.proves_clients() && self.insecure != Some(true);
                if is_open && !listen.ip().is_loopback() {
                    bail!(
                        "{listen}: beyond loopback an export needs certificates: give --tls-certificate, --tls-key and \
                         --tls-client-ca without --tls-optional, or --insecure in a network where every process may be trusted"
                    );
                }
                Some(NbdAddress::Tcp(listen))
            }
            (Some(_), Some(_)) => bail!("--socket and --listen: an export has one of them"),
            (None, None) if self.has_machines()? => None,
            (None, None) => bail!(
                "no socket: give --socket FILE, --listen ADDRESS:PORT or --vhost-socket FILE, or one of them in the file of \
                 --config"
            ),
        };
        if self.service.is_some() {
            self.volume_of_service()?;
            self.named()?;
        } else if self.memory.is_none() && self.volumes.is_empty() {
            check_targets(
                &self.targets,
                "two or three TARGETs, --memory SIZE, or --service HOST:PORT",
            )?;
        }
        Ok(socket)
    }

    /// Volumes with names, if there are any.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn named(&self) -> Result<Vec<VolumeArgs>> {
        let is_behind = self.service.is_some();
        if self.volumes.is_empty() || (is_behind && self.volume_of_service()?.is_some()) {
            return Ok(Vec::new());
        }
        if self.name.is_some() || self.vhost_socket.is_some() {
            bail!(
                "--name and --vhost-socket are of one volume: a [[volume]] in the file of --config has its own"
            );
        }
        volumes(&self.volumes, (&self.open, self.read_only), is_behind)
    }

    fn has_machines(&self) -> Result<bool> {
        let has = |one: &VolumeArgs| one.vhost_socket.is_some();
        Ok(self.vhost_socket.is_some() || self.named()?.iter().any(has))
    }

    /// Name of the service's volume, empty for the only one. `None`: the export has volumes with names.
    ///
    /// # Errors
    /// It is no name.
    pub fn volume_of_service(&self) -> Result<Option<String>> {
        let names: Vec<_> = self.volumes.iter().map(Table::text).collect();
        match names[..] {
            [] => Ok(Some(String::new())),
            [name] if !name.starts_with('{') => {
                check_name("a volume", name)?;
                Ok(Some(name.to_owned()))
            }
            _ => Ok(None),
        }
    }
}

/// Options of `xgvmi-blk service`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ServiceArgs {
    /// Files, tcp:HOST:PORT, rdma:HOST:PORT, or nbd:SOCKET of an NBD server, in any order. Two are enough.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<String>,
    /// A file with any of these options, as `workers = 8`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// One of several volumes, which then need no TARGET: NAME=TARGET,TARGET,TARGET. In the file of --config: tables
    /// `[[volume]]` with name, targets, and options of this volume alone.
    #[arg(
        long = "volume",
        value_name = "NAME=TARGETS",
        conflicts_with = "targets"
    )]
    pub volumes: Vec<Table>,
    /// How the targets are opened.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Where initiators connect; port 0 chooses one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7720")]
    pub listen: SocketAddr,
    /// File with the secret of initiators, 16 to 4,096 bytes, which other users cannot read. Required unless --listen is
    /// a loopback address. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub initiator_secret_file: Option<PathBuf>,
    /// File with initiators that have a name, a secret of their own, and maybe `read-only = true`, or the volumes that they may
    /// use, as `volumes = { a = "write", b = "read" }`. SIGHUP reads it again; the connections of a name that is gone end, and
    /// those of a volume that the name may not use any more.
    #[arg(long, value_name = "FILE.toml")]
    pub initiators: Option<PathBuf>,
    /// How the service works.
    #[command(flatten)]
    pub service: ServiceOptions,
    /// Time for requests under way after SIGTERM, as 500ms, 10s or 1m.
    #[arg(long, alias = "drain-limit-s", value_name = "TIME", default_value = "10s", value_parser = time(Duration::ZERO..=HOUR))]
    pub drain_limit: Duration,
    /// The socket of `xgvmi-blk status` [default: xgvmi-blk-service-PORT.sock in $RUNTIME_DIRECTORY or
    /// $XDG_RUNTIME_DIR; without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
}

impl ServiceArgs {
    /// Checks the options.
    ///
    /// # Errors
    /// A necessary option is missing.
    pub fn check(&self) -> Result<()> {
        if self.volumes.is_empty() {
            check_targets(&self.targets, "TARGETs, or targets in the file of --config")?;
        }
        let (volumes, workers) = (self.named()?.len(), self.service.workers);
        if workers < volumes {
            bail!("{volumes} volumes and {workers} workers: give --workers {volumes} at least");
        }
        let listen = self.listen;
        let is_open = self.initiator_secret_file.is_none() && self.initiators.is_none();
        if is_open && !listen.ip().is_loopback() {
            bail!(
                "{listen}: beyond loopback a service needs a secret: give --initiator-secret-file FILE, or --initiators FILE"
            );
        }
        Ok(())
    }
}

impl ServiceArgs {
    /// Volumes with names, if there are any.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn named(&self) -> Result<Vec<VolumeArgs>> {
        let all = volumes(&self.volumes, (&self.open, None), false)?;
        if all
            .iter()
            .any(|one| one.vhost_socket.is_some() || one.read_only.is_some())
        {
            bail!("a volume of a service has neither vhost-socket nor read-only");
        }
        Ok(all)
    }
}

fn check_targets(targets: &[String], forms: &str) -> Result<()> {
    match targets.len() {
        0 => bail!("no targets: give {forms}"),
        count if count > TARGETS_MAX => {
            bail!("{count} targets: a volume has {TARGETS_MAX} at most")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn target(words: &[&str]) -> Result<TargetArgs> {
        let args: TargetArgs = parse_words(words)?;
        args.check().map(|_| args)
    }

    fn export(words: &[&str]) -> Result<ExportArgs> {
        let args: ExportArgs = parse_words(words)?;
        args.check().map(|_| args)
    }

    fn service(words: &[&str]) -> Result<ServiceArgs> {
        let args: ServiceArgs = parse_words(words)?;
        args.check().map(|()| args)
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
        assert_eq!(found.listen.port(), 9);
        assert_eq!(found.capacity, Some(5 << 20));
        assert_eq!(target(&["/b"]).unwrap().listen.port(), 7710);
        let options = file(
            "targets = ['a', 'b']\nsocket = 's'\ncapacity = 4096\ntarget-timeout = '70ms'\noutage-limit = '0s'",
        );
        let found = export(&["--config", path(&options), "--name", "n"]).unwrap();
        assert_eq!(found.targets, ["a", "b"]);
        assert_eq!(found.open.capacity, Some(4096));
        assert_eq!(found.open.target_timeout, Duration::from_millis(70));
        assert!(found.open.outage_limit.is_zero());
        assert_eq!(found.open.longest_wait(), Duration::from_millis(140));
        assert_eq!(found.drain_limit, Duration::from_secs(10));
        let found = export(&["--config", path(&options), "--memory", "1M"]).unwrap();
        assert_eq!((found.targets.len(), found.memory), (0, Some(1 << 20)));
        let options = file(
            "targets = ['a', 'b']\nlisten = '127.0.0.1:9'\nworkers = 8\nrdma = true\ndirect = true\ncapacity = '1G'",
        );
        let found = service(&["--config", path(&options), "--workers", "64"]).unwrap();
        assert_eq!((found.listen.port(), found.service.workers), (9, 64));
        assert_eq!(
            (found.service.rdma, found.open.capacity),
            (Some(true), Some(1 << 30))
        );
        assert_eq!(found.open.direct, Some(true));
        // It takes no word that follows.
        assert_eq!(target(&["--direct", "/b"]).unwrap().file, Some("/b".into()));
        assert_eq!(found.service.transfer_max, 4 << 20);
        let found = service(&["--config", path(&options), "--rdma=false", "c"]).unwrap();
        assert_eq!(
            (found.service.rdma, found.targets),
            (Some(false), vec!["c".to_owned()])
        );
        assert_eq!(service(&["a", "b"]).unwrap().listen.port(), 7720);
    }

    #[track_caller]
    fn check<T: std::fmt::Debug>(result: Result<T>, expect: &str) {
        let error = format!("{:#}", result.unwrap_err());
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn sockets_and_certificates_belong_together() {
        assert_eq!(
            export(&["a", "b", "--vhost-socket", "v"])
                .unwrap()
                .check()
                .unwrap(),
            None
        );
        for wrong in ["0", "17"] {
            let words = ["a", "b", "--vhost-socket", "v", "--vhost-queues", wrong];
            check(export(&words), "is not in 1..=16");
        }
        let listens = |words: &[&str]| {
            let all = [&["--memory", "1M", "--listen", "192.0.2.1:1"], words];
            export(&all.concat())
        };
        let tls = ["--tls-certificate", "c", "--tls-key", "k"];
        let proves = [&tls[..], &["--tls-client-ca", "a"]].concat();
        check(listens(&[]), "needs certificates");
        check(listens(&tls), "needs certificates");
        let optional = [&proves[..], &["--tls-optional"]].concat();
        check(listens(&optional), "needs certificates");
        assert!(listens(&proves).is_ok());
        assert!(listens(&["--insecure"]).is_ok());
        assert!(export(&["--memory", "1M", "--listen", "[::1]:0"]).is_ok());
        check(listens(&tls[..2]), "give --tls-key FILE");
        check(listens(&tls[2..]), "give --tls-certificate FILE");
        for words in [&["--tls-client-ca", "a"][..], &["--tls-optional"]] {
            check(listens(words), "no certificate for TLS");
        }
        check(
            export(&["a", "b", "--socket", "s", "--listen", "[::1]:0"]),
            "cannot be used with",
        );
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        check(target(&[]), "give FILE");
        check(target(&["a", "--listen", "192.0.2.1:1"]), "needs a secret");
        check(target(&["a", "--listen", "[::]:1"]), "needs a secret");
        check(target(&["a", "--listen", "nowhere"]), "nowhere");
        check(target(&["a", "--capacity", "5X"]), "number of bytes");
        check(target(&["a", "--config", "/nowhere.toml"]), "/nowhere.toml");
        assert!(target(&["a", "--listen", "192.0.2.1:1", "--insecure"]).is_ok());
        assert!(target(&["a", "--listen", "192.0.2.1:1", "--secret-file", "s"]).is_ok());
        assert!(target(&["a", "--rdma", "--device", "mlx5_1"]).is_ok());
        assert!(target(&["a", "--device", "mlx5_1"]).is_err());
        check(export(&["a", "b"]), "no socket");
        check(export(&["--socket", "s"]), "no targets");
        check(
            export(&["a", "--memory", "1M", "--socket", "s"]),
            "cannot be used with",
        );
        check(
            export(&["a", "b", "--socket", "s", "--target-timeout", "0s"]),
            "'--target-timeout <TIME>': it must be from 1ms to 600s",
        );
        check(
            export(&["a", "b", "--socket", "s", "--outage-limit", "601s"]),
            "'--outage-limit <TIME>': it must be from 0ns to 600s",
        );
        // The form without a unit, also of a former name.
        for option in ["target-timeout", "outage-limit", "drain-limit-s"] {
            let flag = format!("--{option}");
            let expect = "20 has no unit: give 20us, 20ms, 20s or 20m";
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
            export(&["a", "b", "--socket", "s", "--drain-limit", "3601s"]),
            "it must be from 0ns to 3600s",
        );
        check(service(&[]), "no targets");
        check(service(&["a", "--listen", "192.0.2.1:1"]), "needs a secret");
        check(service(&["a", "--listen", "[::]:1"]), "needs a secret");
        assert!(service(&["a", "--listen", "[::]:1", "--initiator-secret-file", "s"]).is_ok());
        for (option, most) in [("--workers", 64), ("--transfer-mib", 32)] {
            for wrong in [0, most + 1] {
                let words = ["a", option, &wrong.to_string()];
                check(service(&words), &format!("{wrong} is not in 1..={most}"));
            }
            assert!(service(&["a", option, &most.to_string()]).is_ok());
        }
        check(
            service(&["a", "--drain-limit", "3601s"]),
            "it must be from 0ns to 3600s",
        );
        let many = ["'a'"; TARGETS_MAX + 1].join(", ");
        let four = file(&format!("targets = [{many}]\nsocket = 's'"));
        check(
            export(&["--config", path(&four)]),
            "a volume has 11 at most",
        );
        let four = file(&format!("targets = [{many}]"));
        check(
            service(&["--config", path(&four)]),
            "a volume has 11 at most",
        );
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
            assert!(found.secret_file.is_some() && !found.listen.ip().is_loopback());
        }
        for options in <[_; 2]>::from(example("service.toml")) {
            let found = service(&["--config", path(&options)]).unwrap();
            assert_eq!(found.targets.len(), 3);
            assert!(found.initiator_secret_file.is_some() && !found.listen.ip().is_loopback());
        }
        for options in <[_; 2]>::from(example("export.toml")) {
            assert_eq!(
                export(&["--config", path(&options)]).unwrap().targets.len(),
                3
            );
        }
    }
}
