//! Options of an SP.

use crate::control::is_tcp_address;
use crate::error::Result;
use crate::radix::{RADIX, Radix};
use crate::scheme::Scheme;
use crate::secret;
use clap::Args;
use clap::builder::ArgPredicate;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::config::{local_rank, port_of, shift_port};
use xgvmi_daemon::options::{count, defaults, mebibytes, time};
use xgvmi_daemon::{DaemonError, LogLevel};
use xgvmi_ucp::Context;

/// Options of an SP. Each has its namesake in the file.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ServiceOptions {
    /// A file with any of these options, as `direct-min = 512`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Address for ranks and other SPs. Port 0 selects a free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7700")]
    pub listen: String,
    /// Address of this SP for other SPs, if it listens on a wildcard or behind another name.
    #[arg(long, value_name = "ADDR:PORT")]
    pub advertise: Option<String>,
    /// Add the launcher's local rank (Open MPI, MPICH, Slurm) to the port: one command line for all SPs of a DPU.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub port_by_local_rank: Option<bool>,
    /// Run this many SPs, at --listen's port and the following ones, under one daemon.
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=WORKERS_MAX))]
    pub workers: u16,
    /// Which of them this is; given by the daemon.
    #[arg(long, hide = true)]
    pub worker_index: Option<u16>,
    /// Serve jobs of this scheme only [default: any].
    #[arg(long)]
    pub scheme: Option<Scheme>,
    /// Offers (DPU_RTS) without an answer in each collective [default: 4, or twice the radix if that is more].
    #[arg(long, value_name = "N", value_parser = count(1..=CREDITS_MAX))]
    pub sends: Option<usize>,
    /// RDMA READs under way; with --dpa 64, which it posts in one batch. 16 of 4 KiB cover a link of 400 Gb/s; more take fewer
    /// instructions each, because more of them end between two polls.
    #[arg(long, value_name = "N", default_value_t = RECEIVES, default_value_if("dpa", ArgPredicate::IsPresent, "64"), value_parser = count(1..=CREDITS_MAX))]
    pub receives: usize,
    /// Shorter blocks travel in messages; at least 256.
    #[arg(long, value_name = "BYTES", default_value_t = DIRECT_LENGTH, value_parser = clap::value_parser!(u64).range(DIRECT_MIN))]
    pub direct_min: u64,
    /// Imports of a rank's buffers that stay for its next calls; the ones used last. None with scheme ksm.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(0..=IMPORTS_MAX))]
    pub imports: u32,
    /// Branches of the trees of a job's SPs, 2 to 128 [default: 2 in a broadcast, 4 in a gather or scatter]. Must be equal at
    /// all SPs of a job.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(RADIX))]
    pub radix: Option<u32>,
    /// Poll for this long before sleeping, as 50us or 1ms; costs a core.
    #[arg(long, alias = "spin-us", value_name = "TIME", default_value = "0s", value_parser = time(Duration::ZERO..=SECOND))]
    pub spin: Duration,
    /// Time limit for all ranks and SPs of a job to connect, as 30s or 5m.
    #[arg(long, alias = "setup-limit-s", value_name = "TIME", default_value = "60s", value_parser = time(SECOND..=24 * HOUR))]
    pub setup_limit: Duration,
    /// An SP counts as dead after this time without a message, as 20s or 1m. Must be equal at all SPs of a job.
    #[arg(long, alias = "silence-limit-s", value_name = "TIME", default_value = "20s", value_parser = time(SECOND..=HOUR))]
    pub silence_limit: Duration,
    /// A file with a secret, 16 to 4096 bytes: only ranks and SPs with the same secret are served. Required unless
    /// --listen is a loopback address. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret: for networks in which each process is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
    /// Time for jobs to finish after SIGTERM, as 30s or 5m; new ones are refused meanwhile.
    #[arg(long, alias = "drain-limit-s", value_name = "TIME", default_value = "60s", value_parser = time(Duration::ZERO..=24 * HOUR))]
    pub drain_limit: Duration,
    /// Maximum memory for the waiting frames of all TCP connections, and the same again for the waiting UCP messages
    /// of all jobs.
    #[arg(long = "buffer-mib", value_name = "MIB", default_value = "256", value_parser = mebibytes(BUFFER_MIB))]
    pub buffer_bytes_max: usize,
    /// Maximum memory for the outstanding calls of all jobs: their blocks, short data and segments. Beyond it the job with
    /// the most ends.
    #[arg(long = "calls-mib", value_name = "MIB", default_value = "1024", value_parser = mebibytes(BUFFER_MIB))]
    pub call_bytes_max: usize,
    /// Maximum number of unidentified connections from one address.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = count(1..=CALLERS_MAX))]
    pub callers_per_address: usize,
    /// The socket of `xgvmi-sp status` [default: xgvmi-sp-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR; without
    /// either, none]. Workers after the first add their number.
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
    /// The libucp to use [default: the loader's search].
    #[arg(long, value_name = "FILE")]
    pub ucx_library: Option<PathBuf>,
    /// Let the DPA post the reads of blocks, by this program: share/xgvmi-offload/reads.c, compiled by dpacc. Without a
    /// usable DPA the service posts them itself.
    #[arg(long, value_name = "FILE")]
    pub dpa: Option<PathBuf>,
    /// End after this many jobs [default: never].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub jobs: Option<u64>,
    /// Log level on standard error.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: LogLevel,
}

/// Maximum polling time, and minimum of the time limits.
const SECOND: Duration = Duration::from_secs(1);

/// Maximum silence of an SP.
const HOUR: Duration = Duration::from_hours(1);

/// Blocks of this length and longer are read.
pub const DIRECT_LENGTH: u64 = 512;

/// Maximum length of a block that travels in messages: beyond it, copying costs more than the device read.
const DIRECT_MIN: RangeInclusive<u64> = Context::DEVICE_ACCESS_MIN as u64..=64 << 10;

/// Maximum number of imports of a rank. Each takes a few hundred bytes, and UCX's objects.
const IMPORTS_MAX: i64 = 4096;

/// Maximum number of credits of a kind: effectively unlimited, and far below the queue limits of UCX.
const CREDITS_MAX: u64 = 4096;
/// READs under way without a DPA.
pub const RECEIVES: usize = 32;
/// Offers without an answer, with trees of few branches.
pub const SENDS: usize = 4;

/// Memory for frames: at least one frame of maximum length.
const BUFFER_MIB: RangeInclusive<u64> = 64..=1 << 20;

/// Maximum number of unidentified connections per address: equals the maximum number of connections.
const CALLERS_MAX: u64 = 1 << 14;

/// Maximum number of SPs under one daemon. A DPU has about ten cores.
const WORKERS_MAX: i64 = 256;

/// The defaults.
impl Default for ServiceOptions {
    fn default() -> Self {
        defaults()
    }
}

impl ServiceOptions {
    /// Offers without an answer. An SP of a tree with many branches has offers for nearly twice as many SPs, on two levels; fewer
    /// credits would make the tree deeper than one of a small radix.
    pub(crate) fn unanswered(&self) -> usize {
        let of_radix = self.radix.map_or(0, |radix| 2 * radix as usize);
        self.sends.unwrap_or(SENDS.max(of_radix))
    }

    /// The radix of the trees.
    pub(crate) fn trees(&self) -> Radix {
        Radix(self.radix.unwrap_or(0))
    }

    /// Checks the options, and gives a worker, or a process of a launcher, its own address and status socket.
    ///
    /// # Errors
    /// [`DaemonError::Options`] with the name of the option.
    pub fn complete(mut self) -> Result<Self> {
        let mut shift = self.worker_index.unwrap_or(0);
        if self.port_by_local_rank == Some(true) {
            shift = local_rank()?
                .checked_mul(self.workers)
                .and_then(|first| first.checked_add(shift))
                .ok_or_else(|| DaemonError::Options("beyond port 65535".to_owned()))?;
        }
        if shift > 0 {
            self.listen = shift_port(&self.listen, shift)?;
            let advertise = self.advertise.map(|a| shift_port(&a, shift));
            self.advertise = advertise.transpose()?;
        }
        if let Some(index) = self.worker_index {
            // Each worker process runs as a single SP.
            self.workers = 1;
            // Each of several workers has its own socket.
            let own = |path: PathBuf| match index {
                0 => path,
                _ => PathBuf::from(format!("{}.{index}", path.display())),
            };
            self.status_socket = self.status_socket.map(own);
        }
        if let Some(path) = &self.secret_file {
            // Reports an unreadable secret before other resources are set up.
            secret::read(path)?;
        }
        port_of(&self.listen)?;
        if let Some(advertise) = &self.advertise {
            check_advertise(advertise)?;
        }
        Ok(self)
    }
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
    use xgvmi_daemon::options::parse_words;

    fn options(words: &[&str]) -> Result<ServiceOptions> {
        parse_words::<ServiceOptions>(words)?.complete()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        file
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let file = file("receives = 8\nsends = 2\nscheme = 'xgvmi'");
        let path = file.path().to_str().expect("UTF-8");
        let found = options(&["--config", path, "--sends", "3"]).expect("valid");
        assert_eq!((found.unanswered(), found.receives), (3, 8));
        assert_eq!(found.scheme, Some(Scheme::Xgvmi));
        let words = [
            "--workers",
            "3",
            "--worker-index",
            "2",
            "--status-socket",
            "s",
        ];
        let worker = options(&words).expect("valid");
        assert_eq!(
            (worker.listen.as_str(), worker.workers),
            ("127.0.0.1:7702", 1)
        );
        assert_eq!(worker.status_socket, Some("s.2".into()));
        let default = options(&[]).expect("valid");
        assert_eq!((default.unanswered(), default.receives), (4, 32));
        for (radix, sends, expect) in [
            ("2", None, 4),
            ("8", None, 16),
            ("128", None, 256),
            ("8", Some("3"), 3),
        ] {
            let mut words = vec!["--radix", radix];
            words.extend(sends.map(|sends| ["--sends", sends]).into_iter().flatten());
            assert_eq!(
                options(&words).expect("valid").unanswered(),
                expect,
                "{words:?}"
            );
        }
        let posted_by_dpa = options(&["--dpa", "reads.elf"]).expect("valid");
        assert_eq!(posted_by_dpa.receives, 64);
        let both = options(&["--dpa", "reads.elf", "--receives", "5"]).expect("valid");
        assert_eq!(both.receives, 5);
        assert_eq!(
            (default.listen.as_str(), default.direct_min),
            ("127.0.0.1:7700", 512)
        );
    }

    #[test]
    fn what_cannot_be_right_is_named() {
        let check = |words: &[&str], expect: &str| {
            let error = options(words).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(&["--sends", "0"], "'--sends <N>': 0 is not in 1..=4096");
        check(&["--direct-min", "255"], "--direct-min <BYTES>");
        check(&["--workers", "0"], "--workers <K>");
        check(&["--listen", "nowhere"], "'nowhere' is no ADDR:PORT");
        check(
            &["--advertise", "dpu 0:7700"],
            "advertise is \"dpu 0:7700\"",
        );
        check(&["--spin", "1001ms"], "it must be from 0ns to 1s");
        check(&["--silence-limit", "0s"], "it must be from 1s to 3600s");
        check(&["--secret-file", "/nowhere"], "/nowhere");
        check(&["--config", "/nowhere.toml"], "/nowhere.toml");
        let file = file("recieves = 8");
        let path = file.path().to_str().expect("UTF-8");
        check(&["--config", path], "recieves");
        // The former names and the form without a unit.
        for option in [
            "spin-us",
            "setup-limit-s",
            "silence-limit-s",
            "drain-limit-s",
        ] {
            let flag = format!("--{option}");
            check(
                &[&flag, "20"],
                "20 has no unit: give 20us, 20ms, 20s or 20m",
            );
            assert!(options(&[&flag, "1s"]).is_ok());
        }
    }

    #[test]
    fn the_example_is_valid() {
        let example = include_str!("../../packaging/xgvmi-sp.toml");
        // The secret's file does not exist in this test.
        let without = file(&example.replace("\nsecret-file", "\n# secret-file"));
        let path = without.path().to_str().expect("UTF-8");
        let options = options(&["--config", path]).expect("valid");
        assert_eq!(
            (options.listen.as_str(), options.workers),
            ("192.168.100.2:7700", 4)
        );
        // The commented-out options are valid too.
        let all = example.replace("\n# ", "\n");
        let named: Vec<&str> = all.lines().filter(|line| line.contains(" = ")).collect();
        let all = file(&named.join("\n"));
        let path = all.path().to_str().expect("UTF-8");
        parse_words::<ServiceOptions>(&["--config", path]).expect("valid");
        assert_eq!(named.len(), 6);
    }
}
