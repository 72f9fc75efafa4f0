//! Status of an SP: its counters, and the state of its jobs.

use super::counters::{Moved, Queues};
use super::state::{STRANGER, Sp};
use super::transport::Fabric;
use crate::library::Library;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use xgvmi_daemon::status::Shown;
use xgvmi_daemon::{Histogram, Lines, Metrics};

/// A job, as `xgvmi-sp status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

xgvmi_daemon::status! {
    /// The state of an SP.
    pub struct Status("xgvmi_sp_") {
        value address: String, "Address.";
        value version: String, "Version.";
        value ucx: String, "Version of UCX.";
        value pid: u32, "Number of the process.";
        gauge uptime_s as "uptime_seconds", "Time since the start.";
        gauge draining: bool, "1 while it ends when its jobs are done.";
        gauge connections: usize, "TCP connections.";
        gauge callers: usize, "Unidentified connections.";
        gauge buffered_bytes: usize, "Bytes of frames and UCP messages that wait.";
        gauge call_bytes: usize, "Bytes that outstanding calls keep.";
        counter processor_us as "processor_microseconds", "Processor time of the serving thread.";
        counter callers_us as "callers_microseconds", "The part of it for connections of no job.";
        gauge longest_gap_us as "longest_gap_microseconds",
            "Longest time between two looks of the main loop at its timers.";
        counter jobs_done, "Jobs that have ended well.";
        counter jobs_failed, "Jobs that have failed.";
        value refusals: BTreeMap<String, u64>, "Refused peers by reason.";
        value moved: Moved, "Counters of all jobs, including completed ones.";
        value setup: Histogram, "Time from a job's first rank until all are connected.";
        value aliases: Option<u64>, "Aliases of hosts' keys; nothing without this project's library.";
        value jobs: Vec<JobStatus>, "The jobs.";
    }
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
            uptime_s: self.daemon.uptime_s(),
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
        // The structure contains only strings and numbers; JSON represents both.
        let json = || serde_json::to_string(&self.status()).expect("plain data");
        self.daemon.answer(json);
    }
}

impl Shown for Status {
    fn prometheus(&self) -> String {
        let mut m = Metrics::default();
        m.family("xgvmi_sp_info", "Versions of the service process.", "gauge");
        let labels = [("version", self.version.as_str()), ("ucx", &self.ucx)];
        m.sample("xgvmi_sp_info", &labels, 1);
        m.rows(&self.rows()).rows(&self.moved.rows());
        if let Some(aliases) = self.aliases {
            m.family("xgvmi_sp_aliases", "Aliases of hosts' keys.", "gauge");
            m.sample("xgvmi_sp_aliases", &[], aliases);
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
}

impl Status {
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
            for queue in job.queues.rows() {
                let labels = [("job", job.job.as_str()), ("queue", queue.name)];
                m.sample("xgvmi_sp_queue_length", &labels, queue.value);
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
        write!(f, "{}{}", Lines(&self.rows()), Lines(&self.moved.rows()))?;
        let latency = &self.moved.call_latency;
        writeln!(
            f,
            "call: p50 {}, p99 {}",
            us(latency, 0.5),
            us(latency, 0.99)
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
            for queue in job.queues.rows() {
                write!(f, " {} {}", queue.name, queue.value)?;
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
        let read: Status = serde_json::from_str(&text).expect("a status");
        assert_eq!(read.to_string(), status().to_string());
        assert!(read.to_string().contains("refused: 2 for secret"), "{read}");
        let gap = "          650000  Longest time between two looks";
        assert!(read.to_string().contains(gap), "{read}");
        assert!(serde_json::from_str::<Status>("{}").is_err());
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
