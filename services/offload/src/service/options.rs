//! Options of an SP: flags override a file, the file overrides defaults.

use crate::control::is_tcp_address;
use crate::error::Result;
use crate::scheme::Scheme;
use crate::secret;
use clap::Args;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::config::{local_rank, port_of, read_toml, shift_port, within};
use xgvmi_daemon::{DaemonError, LogLevel};
use xgvmi_ucp::Context;

/// Limits of an SP's concurrent work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credits {
    /// Maximum number of unanswered DPU_RTS per collective.
    pub sends: usize,
    /// Maximum number of RDMA READs over all collectives.
    pub receives: usize,
}

/// Options of an SP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceOptions {
    /// `host:port` to listen on. Port 0 selects a free port.
    pub listen: String,
    /// `host:port` at which other SPs reach this one. Default: the listen address, if it is a single address.
    pub advertise: Option<String>,
    /// How keys are created; `None` uses the scheme of each job.
    pub scheme: Option<Scheme>,
    /// Limits of concurrent work.
    pub credits: Credits,
    /// Blocks shorter than this travel in messages, in bytes.
    pub direct_min: u64,
    /// Time to poll after the last event before a sleep.
    pub spin: Duration,
    /// Maximum time of a job's set-up.
    pub setup_limit: Duration,
    /// Maximum silence of another SP. Ranks use the same limit for this SP.
    pub silence_limit: Duration,
    /// File with the secret. Ranks and other SPs must have the same one. It is read at the start and on SIGHUP.
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret on addresses other than loopback.
    pub insecure: bool,
    /// Time for jobs to finish after SIGTERM.
    pub drain_limit: Duration,
    /// Maximum bytes that all TCP connections together may buffer.
    pub buffer_bytes_max: usize,
    /// Maximum bytes that the outstanding calls of all jobs may keep. Beyond it the job with the most ends.
    pub call_bytes_max: usize,
    /// Maximum number of unidentified connections per address.
    pub callers_per_address: usize,
    /// Socket of `xgvmi-sp status`.
    pub status_socket: Option<PathBuf>,
    /// The libucp to use. Default: the loader's search.
    pub ucx_library: Option<PathBuf>,
    /// Number of jobs after which the SP ends; `None` for no limit.
    pub jobs: Option<u64>,
    /// Number of SPs to run. More than one run as separate processes, see [`xgvmi_daemon::supervise`].
    pub workers: u16,
    /// Log level.
    pub log: LogLevel,
}

/// The flags. Each has its namesake in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ServiceArgs {
    /// A file with any of these options, as `direct-min = 512`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address for ranks and other SPs [default: 127.0.0.1:7700].
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Address of this SP for other SPs, if it listens on a wildcard or behind another name.
    #[arg(long, value_name = "ADDR:PORT")]
    pub advertise: Option<String>,
    /// Add the launcher's local rank (Open MPI, MPICH, Slurm) to the port: one command line for all SPs of a DPU.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub port_by_local_rank: Option<bool>,
    /// Run this many SPs, at --listen's port and the following ones, under one daemon [default: 1].
    #[arg(long, value_name = "K")]
    pub workers: Option<u16>,
    /// Which of them this is; given by the daemon.
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub worker_index: Option<u16>,
    /// Serve jobs of this scheme only [default: any].
    #[arg(long)]
    pub scheme: Option<Scheme>,
    /// Offers (DPU_RTS) without an answer in each collective [default: 4].
    #[arg(long, value_name = "N")]
    pub sends: Option<usize>,
    /// RDMA READs under way [default: 4].
    #[arg(long, value_name = "N")]
    pub receives: Option<usize>,
    /// Shorter blocks travel in messages; at least 256 [default: 512].
    #[arg(long, value_name = "BYTES")]
    pub direct_min: Option<u64>,
    /// Poll for this long before sleeping; costs a core [default: 0].
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Time limit for all ranks and SPs of a job to connect [default: 60].
    #[arg(long, value_name = "S")]
    pub setup_limit_s: Option<u64>,
    /// An SP counts as dead after this time without a message. Must be equal at all SPs of a job [default: 20].
    #[arg(long, value_name = "S")]
    pub silence_limit_s: Option<u64>,
    /// A file with a secret, 16 to 4096 bytes: only ranks and SPs with the same secret are served. Required unless
    /// --listen is a loopback address. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret: for networks in which each process is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
    /// Time for jobs to finish after SIGTERM; new ones are refused meanwhile [default: 60].
    #[arg(long, value_name = "S")]
    pub drain_limit_s: Option<u64>,
    /// Maximum memory for the waiting frames of all TCP connections, and the same again for the waiting UCP messages
    /// of all jobs [default: 256].
    #[arg(long, value_name = "MIB")]
    pub buffer_mib: Option<usize>,
    /// Maximum memory for the outstanding calls of all jobs: their blocks, short data and segments. Beyond it the job with
    /// the most ends [default: 1024].
    #[arg(long, value_name = "MIB")]
    pub calls_mib: Option<usize>,
    /// Maximum number of unidentified connections from one address [default: 1024].
    #[arg(long, value_name = "N")]
    pub callers_per_address: Option<usize>,
    /// The socket of `xgvmi-sp status` [default: xgvmi-sp-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR; without
    /// either, none]. Workers after the first add their number.
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
    /// The libucp to use [default: the loader's search].
    #[arg(long, value_name = "FILE")]
    pub ucx_library: Option<PathBuf>,
    /// End after this many jobs [default: never].
    #[arg(long, value_name = "N")]
    pub jobs: Option<u64>,
    /// Log level on standard error [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<LogLevel>,
}

/// Maximum polling time: one second.
const SPIN_US_MAX: u64 = 1_000_000;

/// Maximum length of a block that travels in messages. Beyond it, copying costs more than the device read.
const DIRECT_MIN_MAX: u64 = 64 << 10;

/// Maximum number of credits of a kind: effectively unlimited, and far below the queue limits of UCX.
const CREDITS_MAX: usize = 4096;

/// Minimum memory for frames: one frame of maximum length.
const BUFFER_MIB_MIN: usize = 64;

/// Maximum number of unidentified connections per address: equals the maximum number of connections.
const CALLERS_MAX: usize = 1 << 14;

/// Maximum number of SPs under one daemon. A DPU has about ten cores.
const WORKERS_MAX: u16 = 256;

impl ServiceArgs {
    /// Reads the file, if one is given, and checks all options.
    ///
    /// # Errors
    /// [`DaemonError::Options`] with the name of the option, or with the file and the line.
    pub fn options(self) -> Result<ServiceOptions> {
        let file: Self = self
            .config
            .as_deref()
            .map(read_toml)
            .transpose()?
            .unwrap_or_default();
        let mut listen = self
            .listen
            .or(file.listen)
            .unwrap_or_else(|| "127.0.0.1:7700".to_owned());
        let mut advertise = self.advertise.or(file.advertise);
        let workers = within(
            "workers",
            self.workers.or(file.workers).unwrap_or(1),
            1..=WORKERS_MAX,
        )?;
        let mut shift = self.worker_index.unwrap_or(0);
        if self.port_by_local_rank.or(file.port_by_local_rank) == Some(true) {
            shift = local_rank()?
                .checked_mul(workers)
                .and_then(|first| first.checked_add(shift))
                .ok_or_else(|| DaemonError::Options("beyond port 65535".to_owned()))?;
        }
        if shift > 0 {
            listen = shift_port(&listen, shift)?;
            advertise = advertise.map(|a| shift_port(&a, shift)).transpose()?;
        }
        // Each worker process runs as a single SP.
        let workers = if self.worker_index.is_some() {
            1
        } else {
            workers
        };
        let credits = Credits {
            sends: self.sends.or(file.sends).unwrap_or(4),
            receives: self.receives.or(file.receives).unwrap_or(4),
        };
        let options = ServiceOptions {
            listen,
            advertise,
            scheme: self.scheme.or(file.scheme),
            credits,
            direct_min: self.direct_min.or(file.direct_min).unwrap_or(512),
            spin: Duration::from_micros(within(
                "spin-us",
                self.spin_us.or(file.spin_us).unwrap_or(0),
                0..=SPIN_US_MAX,
            )?),
            setup_limit: Duration::from_secs(within(
                "setup-limit-s",
                self.setup_limit_s.or(file.setup_limit_s).unwrap_or(60),
                1..=86_400,
            )?),
            silence_limit: Duration::from_secs(within(
                "silence-limit-s",
                self.silence_limit_s.or(file.silence_limit_s).unwrap_or(20),
                1..=3600,
            )?),
            secret_file: self.secret_file.or(file.secret_file),
            insecure: self.insecure.or(file.insecure).unwrap_or(false),
            drain_limit: Duration::from_secs(within(
                "drain-limit-s",
                self.drain_limit_s.or(file.drain_limit_s).unwrap_or(60),
                0..=86_400,
            )?),
            buffer_bytes_max: within(
                "buffer-mib",
                self.buffer_mib.or(file.buffer_mib).unwrap_or(256),
                BUFFER_MIB_MIN..=1 << 20,
            )? << 20,
            call_bytes_max: within(
                "calls-mib",
                self.calls_mib.or(file.calls_mib).unwrap_or(1024),
                BUFFER_MIB_MIN..=1 << 20,
            )? << 20,
            callers_per_address: within(
                "callers-per-address",
                self.callers_per_address
                    .or(file.callers_per_address)
                    .unwrap_or(1024),
                1..=CALLERS_MAX,
            )?,
            // Each of several workers has its own socket.
            status_socket: self.status_socket.or(file.status_socket).map(|path| {
                match self.worker_index {
                    None | Some(0) => path,
                    Some(index) => PathBuf::from(format!("{}.{index}", path.display())),
                }
            }),
            ucx_library: self.ucx_library.or(file.ucx_library),
            jobs: self.jobs.or(file.jobs),
            workers,
            log: self.log.or(file.log).unwrap_or_default(),
        };
        check(&options)?;
        Ok(options)
    }
}

/// Checks the secret, the limits of work, and the addresses.
fn check(options: &ServiceOptions) -> Result<()> {
    if let Some(path) = &options.secret_file {
        // Reports an unreadable secret before other resources are set up.
        secret::read(path)?;
    }
    within("sends", options.credits.sends, 1..=CREDITS_MAX)?;
    within("receives", options.credits.receives, 1..=CREDITS_MAX)?;
    let least = Context::DEVICE_ACCESS_MIN as u64;
    within("direct-min", options.direct_min, least..=DIRECT_MIN_MAX)?;
    within("jobs", options.jobs.unwrap_or(1), 1..=u64::MAX)?;
    port_of(&options.listen)?;
    if let Some(advertise) = &options.advertise {
        check_advertise(advertise)?;
    }
    Ok(())
}

/// Checks an address that other SPs and ranks receive.
fn check_advertise(address: &str) -> Result<()> {
    port_of(address)?;
    if is_tcp_address(address) {
        return Ok(());
    }
    Err(DaemonError::Options(format!(
        "advertise is {address:?}; it must be ASCII without spaces: use the host's IP address"
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Write as _;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServiceArgs,
    }

    fn options(arguments: &[&str]) -> Result<ServiceOptions> {
        let words = std::iter::once("sp").chain(arguments.iter().copied());
        Cli::try_parse_from(words)
            .expect("known flags")
            .args
            .options()
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "receives = 8\nsends = 2\nscheme = 'xgvmi'").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let found = options(&["--config", path, "--sends", "3"]).expect("valid");
        assert_eq!(
            found.credits,
            Credits {
                sends: 3,
                receives: 8
            }
        );
        assert_eq!(found.scheme, Some(Scheme::Xgvmi));
        let worker = options(&["--workers", "3", "--worker-index", "2"]).expect("valid");
        assert_eq!(
            (worker.listen.as_str(), worker.workers),
            ("127.0.0.1:7702", 1)
        );
        let default = options(&[]).expect("valid");
        assert_eq!(
            default.credits,
            Credits {
                sends: 4,
                receives: 4
            }
        );
        assert_eq!(
            (default.listen.as_str(), default.direct_min),
            ("127.0.0.1:7700", 512)
        );
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let check = |arguments: &[&str], expect: &str| {
            let error = options(arguments).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&["--sends", "0"], "sends is 0; it must be from 1 to 4096");
        check(&["--direct-min", "255"], "direct-min is 255");
        check(&["--workers", "0"], "workers is 0");
        check(&["--listen", "nowhere"], "'nowhere' is no ADDR:PORT");
        check(
            &["--advertise", "dpu 0:7700"],
            "advertise is \"dpu 0:7700\"",
        );
        check(&["--spin-us", "1000001"], "spin-us");
        check(&["--silence-limit-s", "0"], "silence-limit-s is 0");
        check(&["--secret-file", "/nowhere"], "/nowhere");
        check(&["--config", "/nowhere.toml"], "/nowhere.toml");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "recieves = 8").expect("written");
        check(
            &["--config", file.path().to_str().expect("UTF-8")],
            "recieves",
        );
    }

    #[test]
    fn the_example_is_valid() {
        let example = include_str!("../../packaging/xgvmi-sp.toml");
        // The secret's file does not exist in this test.
        let without = example.replace("\nsecret-file", "\n# secret-file");
        let args: ServiceArgs = toml::from_str(&without).expect("valid");
        let options = args.options().expect("valid");
        assert_eq!(
            (options.listen.as_str(), options.workers),
            ("192.168.100.2:7700", 4)
        );
        // The commented-out options are valid too.
        let all = example.replace("\n# ", "\n");
        let named: Vec<&str> = all.lines().filter(|line| line.contains(" = ")).collect();
        toml::from_str::<ServiceArgs>(&named.join("\n")).expect("valid");
        assert_eq!(named.len(), 5);
    }
}
