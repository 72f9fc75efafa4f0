//! Options of the service: flags override a file, the file overrides defaults.

use clap::Args;
use naaice::server::MemoryLimit;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::config::{port_of, read_toml, within};
use xgvmi_daemon::{DaemonError, LogLevel};

/// Options of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceOptions {
    /// `host:port` for hosts of this DPU. Port 0 selects a free port.
    pub listen: String,
    /// `host:port` for RDMA connections of other hosts; `None` for none.
    pub verbs_listen: Option<String>,
    /// The shared object with the kernels.
    pub kernels: PathBuf,
    /// Maximum number of sessions at a time, on each of both ways.
    pub sessions_max: usize,
    /// Bytes of a session's regions.
    pub session_bytes_max: usize,
    /// Bytes of the regions of all sessions.
    pub memory_max: u64,
    /// Time limit of a kernel.
    pub kernel_limit: Duration,
    /// Bytes of a kernel's process, without the regions.
    pub kernel_memory: u64,
    /// Sessions that make no call for this time end; `None`: they do not.
    pub idle_limit: Option<Duration>,
    /// File with the secret.
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret on addresses other than loopback.
    pub insecure: bool,
    /// RDMA device; `None` for the first one.
    pub device: Option<String>,
    /// Socket of `xgvmi-naa status`.
    pub status_socket: Option<PathBuf>,
    /// Log level.
    pub log: LogLevel,
}

/// The flags. Each has its namesake in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ServiceArgs {
    /// A file with any of these options, as `sessions = 8`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// The shared object with the kernels: it exports match_function_code. Required.
    #[arg(long, value_name = "FILE.so")]
    pub kernels: Option<PathBuf>,
    /// Address for the host of this DPU [default: 127.0.0.1:7800].
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Address for other hosts, which connect over RDMA [default: nowhere].
    #[arg(long, value_name = "ADDR:PORT")]
    pub verbs_listen: Option<String>,
    /// Sessions at a time, for each of both ways [default: 4].
    #[arg(long, value_name = "N")]
    pub sessions: Option<usize>,
    /// Memory of a session's regions [default: 256].
    #[arg(long, value_name = "MIB")]
    pub session_mib: Option<usize>,
    /// Memory of the regions of all sessions, on both ways together; it is locked in RAM [default: half of the machine's
    /// memory].
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<usize>,
    /// Memory of a kernel's process, without the regions [default: half of the machine's memory divided by --sessions].
    #[arg(long, value_name = "MIB")]
    pub kernel_mib: Option<usize>,
    /// Ends a session that makes no call for this time in seconds [default: no limit].
    #[arg(long, value_name = "S")]
    pub idle_limit_s: Option<u64>,
    /// Time limit of a kernel in milliseconds [default: 60000].
    #[arg(long, value_name = "MS")]
    pub kernel_limit_ms: Option<u64>,
    /// A file with a secret, 16 to 4096 bytes: only hosts with the same secret are served. Required unless --listen is
    /// a loopback address.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Serve without a secret: for networks in which each process is trusted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
    /// The RDMA device [default: the first one].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// The socket of `xgvmi-naa status` [default: xgvmi-naa-PORT.sock in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR;
    /// without either, none].
    #[arg(long, value_name = "FILE")]
    pub status_socket: Option<PathBuf>,
    /// Log level on standard error [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<LogLevel>,
}

const MIB: usize = 1 << 20;
/// The least memory of a kernel's process: the process itself needs some.
const KERNEL_MIB_MIN: usize = 16;

impl ServiceArgs {
    /// The options of flags, file and defaults.
    ///
    /// # Errors
    /// If the file is unreadable, or a value is out of range.
    pub fn options(self) -> xgvmi_daemon::Result<ServiceOptions> {
        let file: Self = match &self.config {
            Some(path) => read_toml(path)?,
            None => Self::default(),
        };
        let refused = |what: &str| DaemonError::Options(what.to_owned());
        let kernels = self.kernels.or(file.kernels).ok_or_else(|| {
            refused(
                "--kernels FILE.so is missing: a shared object that exports match_function_code",
            )
        })?;
        let listen = self.listen.or(file.listen);
        let listen = listen.unwrap_or_else(|| "127.0.0.1:7800".to_owned());
        let (host, _) = port_of(&listen)?;
        let is_loopback = host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        let secret_file = self.secret_file.or(file.secret_file);
        let insecure = self.insecure.or(file.insecure).unwrap_or(false);
        if !is_loopback && secret_file.is_none() && !insecure {
            return Err(refused(
                "--listen is no loopback address: give --secret-file FILE, or --insecure if every process of the \
                 network may be trusted",
            ));
        }
        let verbs_listen = self.verbs_listen.or(file.verbs_listen);
        if let Some(address) = &verbs_listen {
            port_of(address)?;
        }
        let sessions_max = self.sessions.or(file.sessions).unwrap_or(4);
        within("--sessions", sessions_max, 1..=1024)?;
        let session_mib = self.session_mib.or(file.session_mib).unwrap_or(256);
        within("--session-mib", session_mib, 1..=128 << 10)?;
        let half = usize::try_from(MemoryLimit::half_of_machine()).unwrap_or(usize::MAX) / MIB;
        let memory_mib = self.memory_mib.or(file.memory_mib).unwrap_or(half.max(1));
        within("--memory-mib", memory_mib, 1..=128 << 20)?;
        if session_mib > memory_mib {
            return Err(refused(&format!(
                "--session-mib {session_mib} exceeds the memory of all sessions, {memory_mib} MiB (--memory-mib)"
            )));
        }
        let kernel_mib = self.kernel_mib.or(file.kernel_mib);
        let kernel_mib = kernel_mib.unwrap_or((half / sessions_max).max(KERNEL_MIB_MIN));
        within("--kernel-mib", kernel_mib, KERNEL_MIB_MIN..=128 << 20)?;
        let idle_limit_s = self.idle_limit_s.or(file.idle_limit_s);
        if let Some(seconds) = idle_limit_s {
            within("--idle-limit-s", seconds, 1..=31_536_000)?;
        }
        let kernel_limit_ms = self
            .kernel_limit_ms
            .or(file.kernel_limit_ms)
            .unwrap_or(60_000);
        within("--kernel-limit-ms", kernel_limit_ms, 1..=86_400_000)?;
        Ok(ServiceOptions {
            listen,
            verbs_listen,
            kernels,
            sessions_max,
            session_bytes_max: session_mib * MIB,
            memory_max: memory_mib as u64 * MIB as u64,
            kernel_limit: Duration::from_millis(kernel_limit_ms),
            kernel_memory: kernel_mib as u64 * MIB as u64,
            idle_limit: idle_limit_s.map(Duration::from_secs),
            secret_file,
            insecure,
            device: self.device.or(file.device),
            status_socket: self.status_socket.or(file.status_socket),
            log: self.log.or(file.log).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> ServiceArgs {
        ServiceArgs {
            kernels: Some("k.so".into()),
            ..ServiceArgs::default()
        }
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        let options = args().options().expect("they are valid");
        assert_eq!(options.listen, "127.0.0.1:7800");
        assert_eq!(
            (options.sessions_max, options.session_bytes_max),
            (4, 256 * MIB)
        );
        assert_eq!(options.kernel_limit, Duration::from_secs(60));
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        let check = |args: ServiceArgs, expect: &str| {
            let error = args.options().expect_err(expect).to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(ServiceArgs::default(), "--kernels");
        check(
            ServiceArgs {
                listen: Some("10.0.0.1:7800".to_owned()),
                ..args()
            },
            "--secret-file",
        );
        check(
            ServiceArgs {
                listen: Some("10.0.0.1".to_owned()),
                ..args()
            },
            "10.0.0.1",
        );
        check(
            ServiceArgs {
                sessions: Some(0),
                ..args()
            },
            "--sessions",
        );
        check(
            ServiceArgs {
                session_mib: Some(4096),
                memory_mib: Some(2048),
                ..args()
            },
            "--memory-mib",
        );
        check(
            ServiceArgs {
                kernel_mib: Some(1),
                ..args()
            },
            "--kernel-mib",
        );
        check(
            ServiceArgs {
                idle_limit_s: Some(0),
                ..args()
            },
            "--idle-limit-s",
        );
        check(
            ServiceArgs {
                kernel_limit_ms: Some(0),
                ..args()
            },
            "--kernel-limit-ms",
        );
    }

    #[test]
    fn the_example_file_is_valid() {
        let text = include_str!("../packaging/xgvmi-naa.toml");
        let file: ServiceArgs = toml::from_str(text).expect("it is well-formed");
        assert!(file.options().is_ok());
    }
}
