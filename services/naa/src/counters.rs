//! Counters of the service, and its status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use xgvmi_daemon::status::Shown;
use xgvmi_daemon::{Lines, Metrics};

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

xgvmi_daemon::status! {
    /// State of a service, as `xgvmi-naa status` shows it.
    #[derive(Default)]
    pub struct Status("xgvmi_naa_") {
        pub value version: String, "version of the service";
        pub counter connections, "TCP connections since the start";
        pub counter sessions, "sessions since the start";
        pub gauge sessions_now, "sessions at the moment";
        pub counter refused, "refused sessions";
        pub counter calls, "calls since the start";
        pub counter calls_failed, "calls with a return code other than 0";
        pub counter kernels_started, "kernel processes that were started";
        pub counter kernels_killed, "kernel processes that were killed";
        pub counter bytes_read, "bytes read from hosts";
        pub counter bytes_written, "bytes written to hosts";
        pub counter zeroing_us, "microseconds to zero memory of sessions";
        pub counter reading_us, "microseconds to read inputs";
        pub counter kernels_us, "microseconds in kernels";
        pub counter writing_us, "microseconds to write outputs";
        pub counter aliases_created, "aliases that were created";
        pub counter aliases_found, "aliases that were found in the map";
    }
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

impl Shown for Status {
    fn prometheus(&self) -> String {
        let mut metrics = Metrics::default();
        metrics.rows(&self.rows());
        metrics.finish()
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "xgvmi-naa {}\n{}", self.version, Lines(&self.rows()))
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
        assert_eq!(text.lines().count(), status.rows().len() + 1);
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
