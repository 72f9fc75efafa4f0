//! The same incasts as in other simulators, whose figures, sources and bands are in `peers.toml`.

use crate::{lab, run, scenario};
use pcc_lab::report::{jain, percentile};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Peers {
    /// Time from the last packet to the last acknowledgement in csg-htsim.
    return_us: f64,
    incast: Vec<Incast>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Simulator {
    Htsim,
    /// Hosts at one switch, with a buffer that holds all packets.
    Ns3Star,
    /// The same with half of the senders behind a second switch.
    Ns3Dumbbell,
}

#[derive(Debug, Deserialize)]
struct Incast {
    simulator: Simulator,
    algorithm: String,
    flows: u32,
    first: u32,
    fct_us: Times,
    jain: f64,
    queue: Option<Queue>,
    bands: Bands,
}

#[derive(Debug, Deserialize)]
struct Times {
    mean: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

#[derive(Debug, Deserialize)]
struct Queue {
    mean: f64,
    peak: f64,
}

#[derive(Debug, Deserialize)]
struct Bands {
    mean: f64,
    tail: f64,
    jain: f64,
    queue: f64,
}

/// Switches of ns-3: no pauses, no marks, no latency.
const UNPAUSED: &str =
    "latency_ns = 0, pfc_priorities = [], ecn = false, buffer_kib = 1048576, headroom_bytes = 0";

impl Incast {
    fn text(&self, seed: u32) -> String {
        let senders = (self.first..).take(self.flows as usize);
        let pairs: String = senders.map(|from| format!("[{from}, 0], ")).collect();
        let (name, probe, xoff, xon) = match self.algorithm.as_str() {
            "none" => ("none", "ccmad", 60, 12),
            name => (name, "ifa2", 600, 120),
        };
        let (topology, switch) = match self.simulator {
            Simulator::Htsim => (
                "shape = 'fat_tree', k = 8".to_owned(),
                format!(
                    "latency_ns = 300, pfc_xoff_kib = {xoff}, pfc_xon_kib = {xon}, ecn = false"
                ),
            ),
            Simulator::Ns3Star => (
                format!("shape = 'star', hosts = {}", self.flows + 1),
                UNPAUSED.to_owned(),
            ),
            Simulator::Ns3Dumbbell => (
                format!(
                    "shape = 'dumbbell', trunk_gbps = 200, pairs = {}",
                    self.flows / 2 + 1
                ),
                UNPAUSED.to_owned(),
            ),
        };
        format!(
            "seed = {seed}\nduration_us = 100000\nalgorithm.name = '{name}'\nguesses.rate_initial = 1048576
topology = {{ {topology}, gbps = 200, delay_ns = 1000 }}
switch = {{ {switch} }}
host = {{ mtu = 4096, header_bytes = 64, probe = '{probe}' }}
traffic = [{{ kind = 'pairs', pairs = [{pairs}], bytes = 2002944 }}]"
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "times and sizes of a run")]
fn measure(incast: &Incast) -> (Times, f64, Queue) {
    const SEEDS: u32 = 5;
    let mut sum = [0.0; 8];
    for seed in 1..=SEEDS {
        let report = run(&mut lab(&scenario(&incast.text(seed))));
        assert_eq!(report.packets.dropped, 0);
        let done = report.per_flow.iter().map(|flow| flow.duration_ps);
        let mut us: Vec<f64> = done.map(|ps| ps.expect("done") as f64 / 1e6).collect();
        us.sort_by(f64::total_cmp);
        let rates: Vec<f64> = us.iter().map(|us| 1.0 / us).collect();
        let queue = report.queue_bytes;
        let row = [
            us.iter().sum::<f64>() / f64::from(incast.flows),
            percentile(&us, 50),
            percentile(&us, 95),
            percentile(&us, 99),
            percentile(&us, 100),
            jain(&rates).expect("rates"),
            queue.mean as f64,
            queue.peak as f64,
        ];
        sum = std::array::from_fn(|at| sum[at] + row[at] / f64::from(SEEDS));
    }
    let [mean, p50, p95, p99, max, jain, queue, peak] = sum;
    let times = Times {
        mean,
        p50,
        p95,
        p99,
        max,
    };
    (times, jain, Queue { mean: queue, peak })
}

#[track_caller]
fn near(what: &str, found: f64, expect: f64, band: f64) {
    let distance = (found - expect).abs() / expect;
    assert!(distance <= band, "{what}: {found}, there {expect}");
}

#[test]
fn incasts_take_the_times_of_other_simulators_and_keep_their_queues() {
    let peers: Peers = toml::from_str(include_str!("peers.toml")).expect("the file");
    for incast in &peers.incast {
        let (found, fairness, queue) = measure(incast);
        let (there, bands) = (&incast.fct_us, &incast.bands);
        let name = |what: &str| {
            let Incast {
                simulator,
                algorithm,
                flows,
                ..
            } = incast;
            format!("{simulator:?} {algorithm} {flows} flows: {what}")
        };
        let behind = match incast.simulator {
            Simulator::Htsim => peers.return_us,
            Simulator::Ns3Star | Simulator::Ns3Dumbbell => 0.0,
        };
        for (what, found, there, band) in [
            ("mean", found.mean, there.mean, bands.mean),
            ("50 %", found.p50, there.p50, bands.mean.max(0.1)),
            ("95 %", found.p95, there.p95, bands.tail),
            ("99 %", found.p99, there.p99, bands.tail),
            ("last", found.max, there.max, bands.tail),
        ] {
            near(&name(what), found + behind, there, band);
        }
        near(&name("Jain's index"), fairness, incast.jain, bands.jain);
        if let Some(expect) = &incast.queue {
            near(&name("mean queue"), queue.mean, expect.mean, bands.queue);
            near(&name("longest queue"), queue.peak, expect.peak, bands.queue);
        }
    }
    assert_eq!(peers.incast.len(), 10);
}
