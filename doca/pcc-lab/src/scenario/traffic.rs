//! Traffic: incast, permutation, pairs, published distributions of flow sizes, and rows of a trace.

use super::topology::Topology;
use crate::refusal::{Refusal, limits, refuse};
use crate::units::{PS_PER_NS, PS_PER_US};
use fastrand::Rng;
use serde::Deserialize;

/// A set of flows. Bytes 0 means: until the end of the run.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Traffic {
    /// Many hosts send to one: the hosts after the receiver, in order, and again from the first if there are more flows.
    Incast {
        /// Receiver.
        to: u32,
        /// Number of flows.
        flows: u32,
        /// Bytes of each flow.
        #[serde(default)]
        bytes: u64,
        /// Start.
        #[serde(default)]
        start_us: u64,
        /// Properties of the flows.
        #[serde(default)]
        class: Class,
    },
    /// Each host sends to another one, and each receives from one. The seed chooses.
    Permutation {
        /// Bytes of each flow.
        #[serde(default)]
        bytes: u64,
        /// Start.
        #[serde(default)]
        start_us: u64,
        /// Properties of the flows.
        #[serde(default)]
        class: Class,
    },
    /// Given pairs of hosts; by default those of the dumbbell or the parking lot.
    Pairs {
        /// Sender and receiver of each flow.
        #[serde(default)]
        pairs: Vec<[u32; 2]>,
        /// Bytes of each flow.
        #[serde(default)]
        bytes: u64,
        /// Start.
        #[serde(default)]
        start_us: u64,
        /// Properties of the flows.
        #[serde(default)]
        class: Class,
    },
    /// Flows between random hosts at random times (Poisson), with sizes of a published distribution.
    Poisson {
        /// Distribution of the sizes.
        sizes: Distribution,
        /// Load of the hosts' links, from 0 to 1.
        load: f64,
        /// Properties of the flows.
        #[serde(default)]
        class: Class,
    },
    /// Queue pairs without data of their own, for a program that posts messages while the lab runs
    /// ([`Lab::post_message`](crate::Lab::post_message)).
    Connections {
        /// Sender and receiver of each.
        pairs: Vec<[u32; 2]>,
        /// Properties of the queue pairs.
        #[serde(default)]
        class: Class,
    },
    /// Rows of a trace.
    Replay {
        /// Flows: ns, sender, receiver, bytes.
        rows: Vec<Row>,
        /// Properties of the flows.
        #[serde(default)]
        class: Class,
    },
}

/// One row of a trace: start in ns, sender, receiver, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Row(pub u64, pub u32, pub u32, pub u64);

/// Properties of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Class {
    /// Priority. Default: 3.
    pub priority: u8,
    /// Whether rdma_cm has connected the queue pair. The device binds such a flow to slot 0, and others to its internal
    /// algorithm. Default: true.
    pub rdma_cm: bool,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            priority: 3,
            rdma_cm: true,
        }
    }
}

/// A published distribution of flow sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Web search: Alizadeh et al., DCTCP, SIGCOMM 2010, figure 4, in the points of the evaluation of HPCC (SIGCOMM 2019,
    /// section 5.1).
    WebSearch,
    /// Hadoop: Roy et al., Inside the Social Network's Network, SIGCOMM 2015, figure 6, in the points of the evaluation of
    /// HPCC (SIGCOMM 2019, section 5.1).
    Hadoop,
}

impl Distribution {
    /// Bytes, and the part of flows in thousandths that are not larger.
    fn points(self) -> Vec<(u64, u64)> {
        let list: &[u64] = match self {
            Self::WebSearch => &[
                0, 0, 10_000, 150, 20_000, 200, 30_000, 300, 50_000, 400, 80_000, 530, 200_000,
                600, 1_000_000, 700, 2_000_000, 800, 5_000_000, 900, 10_000_000, 970, 30_000_000,
                1_000,
            ],
            Self::Hadoop => &[
                0, 0, 100, 10, 200, 20, 300, 50, 350, 150, 400, 200, 500, 300, 600, 400, 700, 500,
                1_000, 600, 2_000, 670, 7_000, 700, 30_000, 720, 50_000, 820, 80_000, 870, 120_000,
                900, 300_000, 950, 1_000_000, 975, 2_000_000, 990, 10_000_000, 1_000,
            ],
        };
        list.chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect()
    }

    /// Size at a place between 0 and 1,000,000, by linear interpolation.
    fn size(self, place: u64) -> u64 {
        let points = self.points();
        let above = points
            .iter()
            .position(|(_, part)| part * 1_000 > place)
            .unwrap_or(points.len() - 1);
        let ((low, from), (high, to)) = (points[above - 1], points[above]);
        let size = low + (high - low) * (place - from * 1_000) / ((to - from) * 1_000);
        size.max(1)
    }

    /// Mean size in bytes.
    #[must_use]
    pub fn mean(self) -> u64 {
        let points = self.points();
        let parts = points.windows(2).map(|pair| {
            let ((low, from), (high, to)) = (pair[0], pair[1]);
            (low + high) * (to - from)
        });
        parts.sum::<u64>() / 2_000
    }
}

/// A flow to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowSpec {
    pub(crate) start_ps: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// 0: without end.
    pub(crate) bytes: u64,
    /// Its data are messages that a program posts.
    pub(crate) has_messages: bool,
    pub(crate) class: Class,
}

impl FlowSpec {
    fn check(&self, hosts: u32) -> Result<(), Refusal> {
        known_host(self.from, hosts)?;
        known_host(self.to, hosts)?;
        if self.from == self.to {
            return refuse(format!(
                "traffic from host {} to itself; name two hosts",
                self.from
            ));
        }
        Ok(())
    }
}

/// Reads a trace: one flow per line, `ns sender receiver bytes`, with spaces or commas between. Lines that begin with `#` are
/// comments.
///
/// # Errors
/// A line has another form, or there are too many.
pub fn parse_rows(text: &str) -> Result<Vec<Row>, Refusal> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fault = || {
            let text: String = line.chars().take(60).collect();
            let number = number + 1;
            Refusal(format!(
                "line {number} of the trace: '{text}' is not 'ns sender receiver bytes'"
            ))
        };
        let words: Vec<u64> = line
            .split([',', ' ', '\t'])
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().map_err(|_| fault()))
            .collect::<Result<_, _>>()?;
        let [ns, from, to, bytes] = words[..] else {
            return Err(fault());
        };
        let host = |number: u64| u32::try_from(number).map_err(|_| fault());
        rows.push(Row(ns, host(from)?, host(to)?, bytes));
        limits::at_most("rows", rows.len() as u64, u64::from(limits::FLOWS_MAX))?;
    }
    Ok(rows)
}

impl Traffic {
    /// Appends the flows. `hosts` is the number of hosts, `mbps` the speed of the first one's link.
    pub(crate) fn flows(
        &self,
        topology: &Topology,
        (hosts, mbps): (u32, u64),
        duration_ps: u64,
        random: &mut Rng,
        into: &mut Vec<FlowSpec>,
        flows_max: u32,
    ) -> Result<(), Refusal> {
        let all = |more: u64, into: &[FlowSpec]| {
            limits::at_most("flows", into.len() as u64 + more, u64::from(flows_max))
        };
        let flow = |start_ps, (from, to), bytes, class| FlowSpec {
            start_ps,
            from,
            to,
            bytes,
            has_messages: false,
            class,
        };
        match self {
            Self::Incast {
                to,
                flows,
                bytes,
                start_us,
                class,
            } => {
                all(u64::from(*flows), into)?;
                known_host(*to, hosts)?;
                let start = start_us.saturating_mul(PS_PER_US);
                into.extend((0..*flows).map(|number| {
                    let from = (to + 1 + number % (hosts - 1).max(1)) % hosts;
                    flow(start, (from, *to), *bytes, *class)
                }));
            }
            Self::Permutation {
                bytes,
                start_us,
                class,
            } => {
                all(u64::from(hosts), into)?;
                let mut order: Vec<u32> = (0..hosts).collect();
                random.shuffle(&mut order);
                // Each host sends to its successor in a random circle, so none sends to itself.
                let next = order.iter().cycle().skip(1);
                let start = start_us.saturating_mul(PS_PER_US);
                into.extend(
                    order
                        .iter()
                        .zip(next)
                        .map(|(from, to)| flow(start, (*from, *to), *bytes, *class)),
                );
            }
            Self::Pairs {
                pairs,
                bytes,
                start_us,
                class,
            } => {
                let pairs = match pairs.is_empty() {
                    true => own_pairs(topology, hosts)?,
                    false => pairs.clone(),
                };
                all(pairs.len() as u64, into)?;
                let start = start_us.saturating_mul(PS_PER_US);
                into.extend(
                    pairs
                        .iter()
                        .map(|[from, to]| flow(start, (*from, *to), *bytes, *class)),
                );
            }
            Self::Poisson { sizes, load, class } => {
                let gap_ps = mean_gap_ps(*sizes, *load, hosts, mbps);
                let mut at = 0.0;
                loop {
                    at -= gap_ps * (1.0 - random.f64()).ln();
                    let Some(start) = whole(at).filter(|start| *start < duration_ps) else {
                        break;
                    };
                    all(1, into)?;
                    let from = random.u32(0..hosts);
                    let to = (from + random.u32(1..hosts)) % hosts;
                    let size = sizes.size(random.u64(0..1_000_000));
                    into.push(flow(start, (from, to), size, *class));
                }
            }
            Self::Connections { pairs, class } => {
                all(pairs.len() as u64, into)?;
                into.extend(pairs.iter().map(|[from, to]| FlowSpec {
                    has_messages: true,
                    ..flow(0, (*from, *to), 0, *class)
                }));
            }
            Self::Replay { rows, class } => {
                all(rows.len() as u64, into)?;
                into.extend(rows.iter().map(|Row(ns, from, to, bytes)| {
                    flow(ns.saturating_mul(PS_PER_NS), (*from, *to), *bytes, *class)
                }));
            }
        }
        into.iter().try_for_each(|flow| flow.check(hosts))
    }

    pub(crate) fn class(&self) -> &Class {
        match self {
            Self::Incast { class, .. }
            | Self::Permutation { class, .. }
            | Self::Pairs { class, .. }
            | Self::Poisson { class, .. }
            | Self::Connections { class, .. }
            | Self::Replay { class, .. } => class,
        }
    }
}

/// Mean time between two flows of the whole network, in ps.
#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn mean_gap_ps(sizes: Distribution, load: f64, hosts: u32, mbps: u64) -> f64 {
    let alone = crate::units::serialize_ps(sizes.mean(), mbps) as f64;
    alone / load / f64::from(hosts)
}

/// A time as an integer, if it is one of a run.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be positive and below 2^53"
)]
fn whole(ps: f64) -> Option<u64> {
    (0.0..9.0e15).contains(&ps).then_some(ps as u64)
}

fn known_host(host: u32, hosts: u32) -> Result<(), Refusal> {
    if host < hosts {
        Ok(())
    } else {
        refuse(format!(
            "traffic names host {host}; there are {hosts}, from 0"
        ))
    }
}

fn own_pairs(topology: &Topology, hosts: u32) -> Result<Vec<[u32; 2]>, Refusal> {
    match topology {
        Topology::Dumbbell { pairs, .. } => Ok((0..*pairs).map(|at| [at, pairs + at]).collect()),
        Topology::ParkingLot { .. } => Ok((0..hosts / 2).map(|at| [2 * at, 2 * at + 1]).collect()),
        _ => refuse(
            "only the dumbbell and the parking lot have pairs of their own; list the pairs"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_published_means_and_quantiles() {
        // The mean of linear pieces, by hand for web search: 1.7 MB.
        assert_eq!(Distribution::WebSearch.mean(), 1_711_250);
        assert_eq!(Distribution::WebSearch.size(0), 1);
        assert_eq!(Distribution::WebSearch.size(400_000), 50_000);
        assert_eq!(Distribution::WebSearch.size(465_000), 65_000);
        assert_eq!(Distribution::Hadoop.size(500_000), 700);
        assert_eq!(Distribution::Hadoop.size(999_999), 9_999_200);
        for sizes in [Distribution::WebSearch, Distribution::Hadoop] {
            let drawn = (0..100_000).map(|place| sizes.size(place * 10));
            let mean = drawn.sum::<u64>() / 100_000;
            assert!(mean.abs_diff(sizes.mean()) < sizes.mean() / 1_000, "{mean}");
        }
    }

    #[test]
    fn the_poisson_process_has_its_load() {
        let topology = Topology::Star {
            hosts: 10,
            gbps: 100,
            delay_ns: 1,
        };
        let traffic = Traffic::Poisson {
            sizes: Distribution::Hadoop,
            load: 0.5,
            class: Class::default(),
        };
        let (mut flows, mut random) = (Vec::new(), Rng::with_seed(5));
        let end = 20_000 * PS_PER_US;
        let place = (10, 100_000);
        let made = traffic.flows(&topology, place, end, &mut random, &mut flows, 60_000);
        made.expect("few enough");
        // Half of ten links of 100 Gb/s for 20 ms, in flows of the mean size.
        let expect = 10 * 100 * 20 * 1_000_000 / 8 / 2 / Distribution::Hadoop.mean();
        let number = flows.len() as u64;
        assert!(
            number.abs_diff(expect) < expect / 20,
            "{number} of {expect}"
        );
        assert!(
            flows
                .iter()
                .all(|flow| flow.from != flow.to && flow.start_ps < end)
        );
    }

    #[test]
    fn a_trace_is_read_and_its_faults_are_named() {
        let rows = parse_rows("# ns from to bytes\n0, 1, 2, 300\n\n5 2 1 7\n").expect("a trace");
        assert_eq!(rows, [Row(0, 1, 2, 300), Row(5, 2, 1, 7)]);
        for text in ["1 2 3", "1 2 3 x", "1 2 3 4 5", "1 99999999999 3 4"] {
            let refusal = parse_rows(text).expect_err("no row").to_string();
            assert!(refusal.starts_with("line 1 of the trace"), "{refusal}");
        }
    }
}
