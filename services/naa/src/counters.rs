//! Counters of the service, and its status.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use xgvmi_daemon::Metrics;

/// Counters since the start. Threads increment them without order.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) connections: AtomicU64,
    pub(crate) sessions: AtomicU64,
    pub(crate) sessions_ended: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) calls_failed: AtomicU64,
    pub(crate) kernels_started: Arc<AtomicU64>,
    pub(crate) kernels_killed: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) zeroing_ns: AtomicU64,
    pub(crate) reading_ns: AtomicU64,
    pub(crate) kernels_ns: AtomicU64,
    pub(crate) writing_ns: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Adds the duration of a step in nanoseconds.
pub(crate) fn timed<T>(counter: &AtomicU64, step: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = step();
    let time = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    add(counter, time);
    result
}

/// State of a service, as `xgvmi-naa status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the service.
    pub version: String,
    /// TCP connections since the start.
    pub connections: u64,
    /// Sessions since the start.
    pub sessions: u64,
    /// Sessions at the moment.
    pub sessions_now: u64,
    /// Refused sessions.
    pub refused: u64,
    /// Calls since the start.
    pub calls: u64,
    /// Calls with a return code other than 0.
    pub calls_failed: u64,
    /// Kernel processes that were started.
    pub kernels_started: u64,
    /// Kernel processes that were killed: time limit, or a caller that died.
    pub kernels_killed: u64,
    /// Bytes read from hosts through aliases.
    pub bytes_read: u64,
    /// Bytes written to hosts through aliases.
    pub bytes_written: u64,
    /// Time to zero memory of sessions.
    pub zeroing_us: u64,
    /// Time to read inputs through aliases.
    pub reading_us: u64,
    /// Time of kernels, with the messages to their processes.
    pub kernels_us: u64,
    /// Time to write outputs through aliases.
    pub writing_us: u64,
    /// Aliases that were created.
    pub aliases_created: u64,
    /// Aliases that were found in the map.
    pub aliases_found: u64,
}

impl Counters {
    /// The state, with the numbers of the alias map.
    #[must_use]
    pub fn status(&self, aliases_created: u64, aliases_found: u64) -> Status {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (sessions, ended) = (get(&self.sessions), get(&self.sessions_ended));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            connections: get(&self.connections),
            sessions,
            sessions_now: sessions.saturating_sub(ended),
            refused: get(&self.refused),
            calls: get(&self.calls),
            calls_failed: get(&self.calls_failed),
            kernels_started: get(&self.kernels_started),
            kernels_killed: get(&self.kernels_killed),
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            zeroing_us: get(&self.zeroing_ns) / 1000,
            reading_us: get(&self.reading_ns) / 1000,
            kernels_us: get(&self.kernels_ns) / 1000,
            writing_us: get(&self.writing_ns) / 1000,
            aliases_created,
            aliases_found,
        }
    }
}

impl Status {
    const ROWS: usize = 16;

    /// Name, help, current value and whether it is a gauge.
    fn rows(&self) -> [(&'static str, &'static str, u64, bool); Self::ROWS] {
        [
            (
                "connections",
                "TCP connections since the start",
                self.connections,
                false,
            ),
            ("sessions", "sessions since the start", self.sessions, false),
            (
                "sessions_now",
                "sessions at the moment",
                self.sessions_now,
                true,
            ),
            ("refused", "refused sessions", self.refused, false),
            ("calls", "calls since the start", self.calls, false),
            (
                "calls_failed",
                "calls with a return code other than 0",
                self.calls_failed,
                false,
            ),
            (
                "kernels_started",
                "kernel processes that were started",
                self.kernels_started,
                false,
            ),
            (
                "kernels_killed",
                "kernel processes that were killed",
                self.kernels_killed,
                false,
            ),
            (
                "bytes_read",
                "bytes read from hosts",
                self.bytes_read,
                false,
            ),
            (
                "bytes_written",
                "bytes written to hosts",
                self.bytes_written,
                false,
            ),
            (
                "zeroing_us",
                "microseconds to zero memory of sessions",
                self.zeroing_us,
                false,
            ),
            (
                "reading_us",
                "microseconds to read inputs",
                self.reading_us,
                false,
            ),
            (
                "kernels_us",
                "microseconds in kernels",
                self.kernels_us,
                false,
            ),
            (
                "writing_us",
                "microseconds to write outputs",
                self.writing_us,
                false,
            ),
            (
                "aliases_created",
                "aliases that were created",
                self.aliases_created,
                false,
            ),
            (
                "aliases_found",
                "aliases that were found in the map",
                self.aliases_found,
                false,
            ),
        ]
    }

    /// In the text format of Prometheus.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut metrics = Metrics::default();
        for (name, help, value, is_gauge) in self.rows() {
            let name = format!("xgvmi_naa_{name}");
            match is_gauge {
                true => metrics.gauge(&name, help, value),
                false => metrics.counter(&format!("{name}_total"), help, value),
            };
        }
        metrics.finish()
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "xgvmi-naa {}", self.version)?;
        for (_, help, value, _) in self.rows() {
            writeln!(f, "{value:>16}  {help}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_shown() {
        let counters = Counters::default();
        add(&counters.calls, 3);
        add(&counters.sessions, 2);
        add(&counters.sessions_ended, 1);
        let status = counters.status(4, 5);
        assert_eq!((status.calls, status.sessions_now), (3, 1));
        let text = status.to_string();
        assert_eq!(text.lines().count(), Status::ROWS + 1);
        assert!(
            text.contains("               3  calls since the start"),
            "{text}"
        );
        assert!(status.prometheus().contains("xgvmi_naa_calls_total 3"));
        let json = serde_json::to_string(&status).expect("plain numbers");
        assert_eq!(serde_json::from_str::<Status>(&json).ok(), Some(status));
    }

    /// Programs read these forms: names, order and types stay.
    #[test]
    fn the_forms_for_programs_stay() {
        let mut values = 1..;
        let mut next = || values.next().expect("endless");
        let status = Status {
            version: "1.2.3".to_owned(),
            connections: next(),
            sessions: next(),
            sessions_now: next(),
            refused: next(),
            calls: next(),
            calls_failed: next(),
            kernels_started: next(),
            kernels_killed: next(),
            bytes_read: next(),
            bytes_written: next(),
            zeroing_us: next(),
            reading_us: next(),
            kernels_us: next(),
            writing_us: next(),
            aliases_created: next(),
            aliases_found: next(),
        };
        let json = serde_json::to_string(&status).expect("plain numbers") + "\n";
        assert_eq!(json, include_str!("../tests/status/naa.json"));
        assert_eq!(
            status.prometheus(),
            include_str!("../tests/status/naa.prom")
        );
        assert_eq!(status.to_string(), include_str!("../tests/status/naa.txt"));
    }
}
