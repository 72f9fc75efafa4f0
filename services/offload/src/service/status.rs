//! Status of an SP: its counters, and the state of its jobs.

use super::counters::{Moved, Queues};
use super::state::{STRANGER, Sp};
use super::transport::Fabric;
use crate::error::Result;
use crate::library::Library;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use xgvmi_daemon::{Histogram, Metrics};

/// A job, as `xgvmi-sp status` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct JobStatus {
    job: String,
    size: u32,
    scheme: String,
    state: String,
    age_s: u64,
    /// Ranks of this SP.
    ranks: usize,
    queues: Queues,
    moved: Moved,
}

/// The state of an SP.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    address: String,
    version: String,
    ucx: String,
    pid: u32,
    uptime_s: u64,
    draining: bool,
    connections: usize,
    /// Connections of unidentified peers.
    callers: usize,
    buffered_bytes: usize,
    /// Bytes that the outstanding calls of all jobs keep, about.
    call_bytes: usize,
    /// Processor time of the serving thread, and the part of it for connections of no job.
    processor_us: u64,
    callers_us: u64,
    /// Longest time between two looks of the main loop at its timers.
    longest_gap_us: u64,
    jobs_done: u64,
    jobs_failed: u64,
    refusals: BTreeMap<String, u64>,
    /// Counters of all jobs, including completed ones.
    moved: Moved,
    setup: Histogram,
    /// Announced or imported keys that have an alias in this process; `None` without this project's library.
    aliases: Option<u64>,
    jobs: Vec<JobStatus>,
}

impl<F: Fabric> Sp<F> {
    /// The current state.
    pub(super) fn status(&self) -> Status {
        let now = Instant::now();
        let mut moved = self.counters.past.clone();
        let jobs = self.jobs.iter().map(|(id, entry)| {
            moved.add(entry.job.moved());
            let state = match (&entry.suspect, entry.is_ready) {
                (Some(_), _) => "failing",
                (None, true) => "ready",
                (None, false) => "connecting",
            };
            JobStatus {
                job: id.to_string(),
                size: entry.job.size,
                scheme: entry.job.scheme.to_string(),
                state: state.to_owned(),
                age_s: (now - entry.since).as_secs(),
                ranks: entry.ranks.len(),
                queues: entry.job.queues(),
                moved: entry.job.moved().clone(),
            }
        });
        let jobs = jobs.collect();
        let (connections, callers) = self.connections.counts();
        let mut refusals = self.counters.refusals.clone();
        let strangers: u64 = self.jobs.values().map(|entry| entry.job.strangers()).sum();
        if strangers > 0 {
            *refusals.entry(STRANGER).or_default() += strangers;
        }
        Status {
            address: self.advertise.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ucx: F::version(self.library).to_owned(),
            pid: std::process::id(),
            uptime_s: (now - self.started).as_secs(),
            draining: self.draining.is_some(),
            connections,
            callers,
            buffered_bytes: self.connections.buffered() + self.inbox.used(),
            call_bytes: self.jobs.values().map(|entry| entry.job.bytes()).sum(),
            processor_us: micros(xgvmi_daemon::thread_time()),
            callers_us: micros(self.counters.on_callers),
            longest_gap_us: micros(self.pulse.most()),
            jobs_done: self.counters.jobs_done,
            jobs_failed: self.counters.jobs_failed,
            refusals: refusals
                .into_iter()
                .map(|(why, n)| (why.to_owned(), n))
                .collect(),
            moved,
            setup: self.counters.setup.clone(),
            aliases: Library::find().map(|library| library.stats().aliases),
            jobs,
        }
    }

    /// Answers pending status requests.
    pub(super) fn tell_status(&self) {
        if let Some(socket) = &self.status_socket {
            // The structure contains only strings and numbers; JSON represents both.
            socket.answer(|| serde_json::to_string(&self.status()).expect("plain data"));
        }
    }
}

impl Status {
    /// Parses the status of an SP.
    ///
    /// # Errors
    /// The defect of the text.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| {
            crate::OffloadError::Failed(format!("the service's answer is no status: {error}"))
        })
    }

    /// Formats the status in the text format of Prometheus.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut m = Metrics::default();
        m.family("xgvmi_sp_info", "Versions of the service process.", "gauge");
        let labels = [("version", self.version.as_str()), ("ucx", &self.ucx)];
        m.sample("xgvmi_sp_info", &labels, 1);
        m.gauge(
            "xgvmi_sp_uptime_seconds",
            "Time since the start.",
            self.uptime_s,
        );
        m.gauge(
            "xgvmi_sp_draining",
            "1 while it ends when its jobs are done.",
            self.draining.into(),
        );
        m.gauge(
            "xgvmi_sp_connections",
            "TCP connections.",
            self.connections as u64,
        );
        m.gauge(
            "xgvmi_sp_callers",
            "Unidentified connections.",
            self.callers as u64,
        );
        m.gauge(
            "xgvmi_sp_buffered_bytes",
            "Bytes of frames and UCP messages that wait.",
            self.buffered_bytes as u64,
        );
        m.gauge(
            "xgvmi_sp_call_bytes",
            "Bytes that outstanding calls keep.",
            self.call_bytes as u64,
        );
        m.counter(
            "xgvmi_sp_processor_microseconds_total",
            "Processor time of the serving thread.",
            self.processor_us,
        );
        m.counter(
            "xgvmi_sp_callers_microseconds_total",
            "The part of it for connections of no job.",
            self.callers_us,
        );
        m.gauge(
            "xgvmi_sp_longest_gap_microseconds",
            "Longest time between two looks of the main loop at its timers.",
            self.longest_gap_us,
        );
        m.counter(
            "xgvmi_sp_jobs_done_total",
            "Jobs that have ended well.",
            self.jobs_done,
        );
        m.counter(
            "xgvmi_sp_jobs_failed_total",
            "Jobs that have failed.",
            self.jobs_failed,
        );
        m.counter(
            "xgvmi_sp_calls_total",
            "Completed calls of single ranks.",
            self.moved.calls,
        );
        m.counter("xgvmi_sp_blocks_total", "Blocks moved.", self.moved.blocks);
        m.counter("xgvmi_sp_bytes_total", "Bytes moved.", self.moved.bytes);
        m.counter(
            "xgvmi_sp_copies_total",
            "Blocks among them that came from another rank of this service.",
            self.moved.copies,
        );
        m.counter(
            "xgvmi_sp_messages_total",
            "Active messages sent.",
            self.moved.messages,
        );
        if let Some(aliases) = self.aliases {
            m.gauge("xgvmi_sp_aliases", "Aliases of hosts' keys.", aliases);
        }
        m.family(
            "xgvmi_sp_refusals_total",
            "Refused peers by reason.",
            "counter",
        );
        for (reason, count) in &self.refusals {
            m.sample("xgvmi_sp_refusals_total", &[("reason", reason)], *count);
        }
        self.job_metrics(&mut m);
        m.histogram(
            "xgvmi_sp_call_duration_seconds",
            "From a rank's arrival in a call to its completion.",
            &self.moved.call_latency,
        );
        m.histogram(
            "xgvmi_sp_setup_duration_seconds",
            "From a job's first rank until all are connected.",
            &self.setup,
        );
        m.finish()
    }

    fn job_metrics(&self, m: &mut Metrics) {
        m.family(
            "xgvmi_sp_job_ranks",
            "Ranks of this service in each job.",
            "gauge",
        );
        for job in &self.jobs {
            let labels = [
                ("job", job.job.as_str()),
                ("scheme", &job.scheme),
                ("state", &job.state),
            ];
            m.sample("xgvmi_sp_job_ranks", &labels, job.ranks as u64);
        }
        m.family(
            "xgvmi_sp_queue_length",
            "Lengths of the queues of each job.",
            "gauge",
        );
        for job in &self.jobs {
            for (queue, length) in job.queues.named() {
                let labels = [("job", job.job.as_str()), ("queue", queue)];
                m.sample("xgvmi_sp_queue_length", &labels, length as u64);
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Human-readable form.
impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |latency: &Histogram, share| match latency.quantile_us(share) {
            Some(us) => format!("{us} us"),
            None => "-".to_owned(),
        };
        writeln!(
            f,
            "xgvmi-sp {} at {}, UCX {}, process {}, up {} s{}",
            self.version,
            self.address,
            self.ucx,
            self.pid,
            self.uptime_s,
            if self.draining { ", draining" } else { "" }
        )?;
        writeln!(
            f,
            "connections: {} ({} unknown), {} bytes wait; calls keep {} bytes",
            self.connections, self.callers, self.buffered_bytes, self.call_bytes
        )?;
        writeln!(
            f,
            "processor time: {} ms, {} ms of it for connections of no job; longest gap of the main loop: {} ms",
            self.processor_us / 1000,
            self.callers_us / 1000,
            self.longest_gap_us / 1000
        )?;
        writeln!(
            f,
            "jobs: {} now, {} done, {} failed",
            self.jobs.len(),
            self.jobs_done,
            self.jobs_failed
        )?;
        writeln!(
            f,
            "moved: {} calls, {} blocks ({} copies), {} bytes, {} messages; call p50 {}, p99 {}",
            self.moved.calls,
            self.moved.blocks,
            self.moved.copies,
            self.moved.bytes,
            self.moved.messages,
            us(&self.moved.call_latency, 0.5),
            us(&self.moved.call_latency, 0.99)
        )?;
        for (reason, count) in &self.refusals {
            writeln!(f, "refused: {count} for {reason}")?;
        }
        for job in &self.jobs {
            write!(
                f,
                "job {}: {}, {} of {} ranks, scheme {}, {} s, {} blocks;",
                job.job, job.state, job.ranks, job.size, job.scheme, job.age_s, job.moved.blocks
            )?;
            for (queue, length) in job.queues.named() {
                write!(f, " {queue} {length}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn status() -> Status {
        let mut moved = Moved {
            calls: 2,
            blocks: 8,
            bytes: 4096,
            copies: 2,
            copied_bytes: 128,
            messages: 3,
            call_latency: Histogram::default(),
        };
        moved.call_latency.record(Duration::from_micros(70));
        Status {
            address: "dpu0:7700".to_owned(),
            version: "0".to_owned(),
            ucx: "1.20.1".to_owned(),
            pid: 1,
            uptime_s: 5,
            draining: true,
            connections: 4,
            callers: 1,
            buffered_bytes: 0,
            call_bytes: 4096,
            processor_us: 5_000_000,
            callers_us: 70_000,
            longest_gap_us: 650_000,
            jobs_done: 1,
            jobs_failed: 0,
            refusals: [("secret".to_owned(), 2)].into(),
            moved: moved.clone(),
            setup: Histogram::default(),
            aliases: Some(3),
            jobs: vec![JobStatus {
                job: "01234567".to_owned(),
                size: 8,
                scheme: "stock".to_owned(),
                state: "ready".to_owned(),
                age_s: 1,
                ranks: 2,
                queues: Queues::default(),
                moved,
            }],
        }
    }

    /// Parses the text format. Each sample belongs to the family that was declared last, its labels are well formed,
    /// its value is a number, and buckets never decrease.
    fn read(text: &str) -> BTreeMap<String, f64> {
        let mut samples = BTreeMap::new();
        let (mut family, mut kinds) = (String::new(), BTreeSet::new());
        let mut bucket = 0.0;
        for line in text.lines() {
            if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, kind) = declared.split_once(' ').expect("a name and a kind");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(kinds.insert(name.to_owned()), "{name} is declared twice");
                (family, bucket) = (name.to_owned(), 0.0);
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let value: f64 = value.parse().expect("a number");
            let name = series.split('{').next().expect("a name");
            let of_family = name.strip_prefix(&family).expect("of the family");
            assert!(
                ["", "_bucket", "_sum", "_count"].contains(&of_family),
                "{line}"
            );
            let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
            assert!(name.chars().all(letters), "{line}");
            if let Some(labels) = series.strip_prefix(name).and_then(|l| l.strip_prefix('{')) {
                let labels = labels.strip_suffix('}').expect("closed");
                for label in labels.split("\",").map(|label| label.trim_end_matches('"')) {
                    let (key, _) = label.split_once("=\"").expect("a key and a value");
                    assert!(key.chars().all(letters), "{line}");
                }
            }
            if of_family == "_bucket" {
                assert!(value >= bucket, "{line}");
                bucket = value;
            }
            assert!(
                samples.insert(series.to_owned(), value).is_none(),
                "twice: {line}"
            );
        }
        samples
    }

    #[test]
    fn prometheus_reads_all_numbers() {
        let samples = read(&status().prometheus());
        for (series, value) in [
            ("xgvmi_sp_blocks_total", 8.0),
            ("xgvmi_sp_refusals_total{reason=\"secret\"}", 2.0),
            (
                "xgvmi_sp_job_ranks{job=\"01234567\",scheme=\"stock\",state=\"ready\"}",
                2.0,
            ),
            (
                "xgvmi_sp_queue_length{job=\"01234567\",queue=\"reads\"}",
                0.0,
            ),
            ("xgvmi_sp_call_duration_seconds_bucket{le=\"+Inf\"}", 1.0),
            ("xgvmi_sp_call_duration_seconds_count", 1.0),
            ("xgvmi_sp_aliases", 3.0),
            ("xgvmi_sp_call_bytes", 4096.0),
            ("xgvmi_sp_longest_gap_microseconds", 650_000.0),
        ] {
            assert_eq!(samples.get(series), Some(&value), "{series}");
        }
    }

    #[test]
    fn a_status_survives_its_socket() {
        let text = serde_json::to_string(&status()).expect("plain data");
        let read = Status::parse(&text).expect("a status");
        assert_eq!(read.to_string(), status().to_string());
        assert!(read.to_string().contains("refused: 2 for secret"), "{read}");
        let gap = "longest gap of the main loop: 650 ms";
        assert!(read.to_string().contains(gap), "{read}");
        assert!(Status::parse("{}").is_err());
    }

    /// Programs read these forms: names, order and types stay.
    #[test]
    fn the_forms_for_programs_stay() {
        let json = serde_json::to_string(&status()).expect("plain data") + "\n";
        assert_eq!(json, include_str!("../../tests/status/sp.json"));
        let prom = status().prometheus();
        assert_eq!(prom, include_str!("../../tests/status/sp.prom"));
    }
}
