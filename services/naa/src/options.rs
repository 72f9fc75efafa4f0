//! Options of the service.

use clap::Args;
use naaice::server::MemoryLimit;
use std::path::PathBuf;
use std::time::Duration;
use xgvmi_daemon::config::port_of;
use xgvmi_daemon::options::{count, defaults, mebibytes, time};
use xgvmi_daemon::{DaemonError, LogLevel};

/// Options of the service. Each has its namesake in the file.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ServiceOptions {
    /// A file with any of these options, as `sessions = 8`; flags override it.
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// The shared object with the kernels: it exports match_function_code. Required.
    #[arg(long, value_name = "FILE.so")]
    pub kernels: Option<PathBuf>,
    /// Address for the host of this DPU.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7800")]
    pub listen: String,
    /// Address for other hosts, which connect over RDMA [default: nowhere].
    #[arg(long, value_name = "ADDR:PORT")]
    pub verbs_listen: Option<String>,
    /// Sessions at a time, for each of both ways.
    #[arg(long, value_name = "N", default_value = "4", value_parser = count(1..=1024))]
    pub sessions: usize,
    /// Memory of a session's regions.
    #[arg(long = "session-mib", value_name = "MIB", default_value = "256", value_parser = mebibytes(1..=128 << 10))]
    pub session_bytes: usize,
    /// Memory of the regions of all sessions, on both ways together; it is locked in RAM [default: half of the machine's
    /// memory].
    #[arg(long = "memory-mib", value_name = "MIB", value_parser = mebibytes(1..=128 << 20))]
    pub memory_bytes: Option<usize>,
    /// Memory of a kernel's process, without the regions [default: half of the machine's memory divided by --sessions].
    #[arg(long = "kernel-mib", value_name = "MIB", value_parser = mebibytes(KERNEL_MIB_MIN as u64..=128 << 20))]
    pub kernel_bytes: Option<usize>,
    /// Ends a session that makes no call for this time, as 500ms, 30s or 5m [default: no limit].
    #[arg(long, alias = "idle-limit-s", value_name = "TIME", value_parser = time(MS..=8760 * HOUR))]
    pub idle_limit: Option<Duration>,
    /// Time limit of a kernel, as 500ms, 30s or 5m.
    #[arg(long, alias = "kernel-limit-ms", value_name = "TIME", default_value = "60s", value_parser = time(MS..=24 * HOUR))]
    pub kernel_limit: Duration,
    /// A file with a secret, 16 to 4096 bytes: only hosts with the same secret are served. Required unless --listen is
    /// a loopback address. SIGHUP reads it again.
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
    /// Log level on standard error.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: LogLevel,
}

const MIB: usize = 1 << 20;
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_hours(1);
/// The least memory of a kernel's process: the process itself needs some.
const KERNEL_MIB_MIN: usize = 16;

impl ServiceOptions {
    /// Checks the options that depend on each other.
    ///
    /// # Errors
    /// [`DaemonError::Options`] with the options.
    pub fn check(&self) -> xgvmi_daemon::Result<()> {
        let refused = |what: &str| Err(DaemonError::Options(what.to_owned()));
        if self.kernels.is_none() {
            return refused(
                "--kernels FILE.so is missing: a shared object that exports match_function_code",
            );
        }
        let (host, _) = port_of(&self.listen)?;
        let is_loopback = host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        if !is_loopback && self.secret_file.is_none() && self.insecure != Some(true) {
            return refused(
                "--listen is no loopback address: give --secret-file FILE, or --insecure if every process of the \
                 network may be trusted",
            );
        }
        if let Some(address) = &self.verbs_listen {
            port_of(address)?;
        }
        let (session, memory) = (self.session_bytes / MIB, self.memory_bytes() / MIB);
        if session > memory {
            return refused(&format!(
                "--session-mib {session} exceeds the memory of all sessions, {memory} MiB (--memory-mib)"
            ));
        }
        Ok(())
    }

    /// Bytes of the regions of all sessions.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.unwrap_or_else(|| half().max(MIB))
    }

    /// Bytes of a kernel's process, without the regions.
    #[must_use]
    pub fn kernel_bytes(&self) -> usize {
        let share = || half() / self.sessions / MIB * MIB;
        self.kernel_bytes
            .unwrap_or_else(|| share().max(KERNEL_MIB_MIN * MIB))
    }
}

/// The defaults, without kernels.
impl Default for ServiceOptions {
    fn default() -> Self {
        defaults()
    }
}

/// Half of the machine's memory, in whole MiB.
fn half() -> usize {
    let half = usize::try_from(MemoryLimit::half_of_machine()).unwrap_or(usize::MAX);
    half / MIB * MIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use xgvmi_daemon::options::parse_words;

    fn options(words: &[&str]) -> xgvmi_daemon::Result<ServiceOptions> {
        let options: ServiceOptions = parse_words(words)?;
        options.check().map(|()| options)
    }

    #[test]
    fn defaults_are_in_force() {
        let options = options(&["--kernels", "k.so"]).expect("they are valid");
        assert_eq!(options.listen, "127.0.0.1:7800");
        assert_eq!((options.sessions, options.session_bytes), (4, 256 * MIB));
        assert_eq!(options.kernel_limit, Duration::from_secs(60));
        assert!(options.kernel_bytes() >= 16 * MIB && options.memory_bytes() >= MIB);
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        let check = |words: &[&str], expect: &str| {
            let words = [&["--kernels", "k.so"], words].concat();
            let error = options(&words).expect_err(expect).to_string();
            assert!(error.contains(expect), "{error}");
        };
        let error = options(&[]).unwrap_err().to_string();
        assert!(error.contains("--kernels"), "{error}");
        check(&["--listen", "10.0.0.1:7800"], "--secret-file");
        check(&["--listen", "10.0.0.1"], "10.0.0.1");
        check(&["--verbs-listen", "10.0.0.1"], "10.0.0.1");
        check(&["--sessions", "0"], "--sessions");
        let too_long = ["--session-mib", "4096", "--memory-mib", "2048"];
        check(&too_long, "--memory-mib");
        check(&["--kernel-mib", "1"], "--kernel-mib");
        check(&["--idle-limit", "0s"], "--idle-limit");
        check(&["--kernel-limit", "0ms"], "--kernel-limit");
        // The former names and the form without a unit.
        check(&["--idle-limit-s", "60"], "60 has no unit: give 60us");
        check(&["--kernel-limit-ms", "1000"], "1000 has no unit");
    }

    #[test]
    fn the_example_file_is_valid() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/xgvmi-naa.toml");
        assert!(options(&["--config", file]).is_ok());
        // The commented-out options are valid too.
        let text = std::fs::read_to_string(file).expect("the example");
        let all = text.replace("\n# ", "\n");
        let named: Vec<&str> = all.lines().filter(|line| line.contains(" = ")).collect();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), named.join("\n")).expect("written");
        let found = options(&["--config", file.path().to_str().expect("UTF-8")]);
        assert_eq!(found.expect("valid").idle_limit, Some(HOUR));
    }
}
