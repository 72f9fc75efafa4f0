//! Topologies: star, dumbbell, parking lot, fat tree, or links one by one.

use crate::refusal::{Refusal, limits, refuse};
use crate::units::PS_PER_NS;
use serde::Deserialize;

/// Hosts, switches and links. Delays are of one link, in one direction.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "shape", rename_all = "snake_case", deny_unknown_fields)]
pub enum Topology {
    /// All hosts at one switch.
    Star {
        /// Number of hosts.
        hosts: u32,
        /// Speed of the links.
        gbps: u64,
        /// Delay of the links.
        delay_ns: u64,
    },
    /// Two switches, each with the same number of hosts. Host `i` has its partner `pairs + i` behind the other switch.
    Dumbbell {
        /// Hosts of each side.
        pairs: u32,
        /// Speed of the hosts' links.
        gbps: u64,
        /// Speed of the link between the switches.
        trunk_gbps: u64,
        /// Delay of the links.
        delay_ns: u64,
    },
    /// Switches in a line. Hosts 0 and 1 are at its ends; the hosts `2 + 2i` and `3 + 2i` are at the ends of trunk `i`.
    ParkingLot {
        /// Links between switches.
        trunks: u32,
        /// Speed of all links.
        gbps: u64,
        /// Delay of the links.
        delay_ns: u64,
    },
    /// Three layers of switches with `k` ports, and `k * k * k / 4` hosts.
    FatTree {
        /// Ports of a switch, an even number.
        k: u32,
        /// Speed of all links.
        gbps: u64,
        /// Delay of the links.
        delay_ns: u64,
    },
    /// Any links between `h0`, `h1`, ... and `s0`, `s1`, ...
    Custom {
        /// Number of hosts.
        hosts: u32,
        /// Number of switches.
        switches: u32,
        /// Links.
        link: Vec<LinkSpec>,
    },
}

/// One link of a custom topology.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// One end: `h` or `s` and a number.
    pub a: String,
    /// The other end.
    pub b: String,
    /// Speed.
    pub gbps: u64,
    /// Delay.
    pub delay_ns: u64,
}

/// A link between two nodes. Link `n` has the ports `2n`, at `a`, and `2n + 1`, at `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) mbps: u64,
    pub(crate) delay_ps: u64,
}

/// Nodes and links: hosts first, then switches.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) hosts: u32,
    pub(crate) switches: u32,
    pub(crate) links: Vec<Link>,
}

impl Network {
    pub(crate) fn new(topology: &Topology) -> Result<Self, Refusal> {
        let network = match topology {
            Topology::Star {
                hosts,
                gbps,
                delay_ns,
            } => {
                limits::at_most("hosts", u64::from(*hosts), u64::from(limits::HOSTS_MAX))?;
                let mut network = Self::empty(*hosts, 1);
                (0..*hosts).for_each(|host| network.join(host, *hosts, *gbps, *delay_ns));
                network
            }
            Topology::Dumbbell {
                pairs,
                gbps,
                trunk_gbps,
                delay_ns,
            } => {
                limits::at_most("pairs", u64::from(*pairs), u64::from(limits::HOSTS_MAX / 2))?;
                let hosts = pairs * 2;
                let mut network = Self::empty(hosts, 2);
                for host in 0..hosts {
                    network.join(host, hosts + host / pairs, *gbps, *delay_ns);
                }
                network.join(hosts, hosts + 1, *trunk_gbps, *delay_ns);
                network
            }
            Topology::ParkingLot {
                trunks,
                gbps,
                delay_ns,
            } => {
                limits::at_most("trunks", u64::from(*trunks), u64::from(limits::TRUNKS_MAX))?;
                let hosts = 2 + 2 * trunks;
                let mut network = Self::empty(hosts, trunks + 1);
                network.join(0, hosts, *gbps, *delay_ns);
                network.join(1, hosts + trunks, *gbps, *delay_ns);
                for host in 2..hosts {
                    network.join(host, hosts + (host - 1) / 2, *gbps, *delay_ns);
                }
                for trunk in 0..*trunks {
                    network.join(hosts + trunk, hosts + trunk + 1, *gbps, *delay_ns);
                }
                network
            }
            Topology::FatTree { k, gbps, delay_ns } => Self::fat_tree(*k, *gbps, *delay_ns)?,
            Topology::Custom {
                hosts,
                switches,
                link,
            } => Self::custom(*hosts, *switches, link)?,
        };
        Ok(network)
    }

    fn empty(hosts: u32, switches: u32) -> Self {
        Self {
            hosts,
            switches,
            links: Vec::new(),
        }
    }

    fn join(&mut self, a: u32, b: u32, gbps: u64, delay_ns: u64) {
        self.links.push(Link {
            a,
            b,
            mbps: gbps.saturating_mul(1_000),
            delay_ps: delay_ns.saturating_mul(PS_PER_NS),
        });
    }

    fn fat_tree(k: u32, gbps: u64, delay_ns: u64) -> Result<Self, Refusal> {
        limits::at_most("k", u64::from(k), u64::from(limits::FAT_TREE_MAX))?;
        if k < 2 || !k.is_multiple_of(2) {
            return refuse(format!(
                "a fat tree needs an even number of ports per switch, at least 2; k is {k}"
            ));
        }
        let half = k / 2;
        let hosts = k * half * half;
        let mut network = Self::empty(hosts, k * k + half * half);
        let edge = |pod, at| hosts + pod * k + at;
        let aggregation = |pod, at| hosts + pod * k + half + at;
        let core = |at| hosts + k * k + at;
        for host in 0..hosts {
            let (pod, at) = (host / (half * half), host / half % half);
            network.join(host, edge(pod, at), gbps, delay_ns);
        }
        for pod in 0..k {
            for up in 0..half {
                for down in 0..half {
                    network.join(edge(pod, down), aggregation(pod, up), gbps, delay_ns);
                }
                for spine in 0..half {
                    network.join(
                        aggregation(pod, up),
                        core(up * half + spine),
                        gbps,
                        delay_ns,
                    );
                }
            }
        }
        Ok(network)
    }

    fn custom(hosts: u32, switches: u32, links: &[LinkSpec]) -> Result<Self, Refusal> {
        limits::at_most("hosts", u64::from(hosts), u64::from(limits::HOSTS_MAX))?;
        limits::at_most(
            "switches",
            u64::from(switches),
            u64::from(limits::SWITCHES_MAX),
        )?;
        limits::at_most("links", links.len() as u64, u64::from(limits::LINKS_MAX))?;
        let mut network = Self::empty(hosts, switches);
        for (number, link) in links.iter().enumerate() {
            let node = |name: &str| {
                let found = match (name.get(..1), name.get(1..).map(str::parse::<u32>)) {
                    (Some("h"), Some(Ok(at))) if at < hosts => Some(at),
                    (Some("s"), Some(Ok(at))) if at < switches => Some(hosts + at),
                    _ => None,
                };
                found.ok_or_else(|| {
                    Refusal(format!(
                        "link {number}: '{name}' is no node; there are {hosts} hosts (h0, h1, ...) and {switches} switches \
                         (s0, s1, ...)"
                    ))
                })
            };
            network.join(node(&link.a)?, node(&link.b)?, link.gbps, link.delay_ns);
        }
        Ok(network)
    }

    /// Name of a node in messages.
    pub(crate) fn name(&self, node: u32) -> String {
        match node.checked_sub(self.hosts) {
            None => format!("h{node}"),
            Some(switch) => format!("s{switch}"),
        }
    }

    /// The node at a port, and the node at its other end.
    pub(crate) fn ends(&self, port: u32) -> (u32, u32) {
        let link = &self.links[port as usize / 2];
        if port.is_multiple_of(2) {
            (link.a, link.b)
        } else {
            (link.b, link.a)
        }
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.hosts + self.switches
    }

    /// The ports of each node.
    #[expect(clippy::cast_possible_truncation, reason = "limits::LINKS_MAX")]
    pub(crate) fn ports(&self) -> Vec<Vec<u32>> {
        let mut ports = vec![Vec::new(); self.nodes() as usize];
        for (number, link) in self.links.iter().enumerate() {
            ports[link.a as usize].push(number as u32 * 2);
            ports[link.b as usize].push(number as u32 * 2 + 1);
        }
        ports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        let topology: Topology = toml::from_str(text).expect("a topology");
        Network::new(&topology).expect("within the limits")
    }

    #[test]
    fn each_shape_has_its_hosts_switches_and_links() {
        let cases = [
            ("shape='star'\nhosts=9\ngbps=200\ndelay_ns=1", (9, 1, 9)),
            (
                "shape='dumbbell'\npairs=3\ngbps=100\ntrunk_gbps=50\ndelay_ns=1",
                (6, 2, 7),
            ),
            (
                "shape='parking_lot'\ntrunks=2\ngbps=100\ndelay_ns=1",
                (6, 3, 8),
            ),
            ("shape='fat_tree'\nk=4\ngbps=100\ndelay_ns=1", (16, 20, 48)),
            (
                "shape='fat_tree'\nk=16\ngbps=100\ndelay_ns=1",
                (1024, 320, 3072),
            ),
        ];
        for (text, expect) in cases {
            let network = network(text);
            assert_eq!(
                (network.hosts, network.switches, network.links.len()),
                expect,
                "{text}"
            );
            // Hosts have one port each, with the number of the host.
            for (host, ports) in network.ports()[..network.hosts as usize].iter().enumerate() {
                assert_eq!(ports, &[u32::try_from(host).expect("small") * 2], "{text}");
            }
        }
    }

    #[test]
    fn the_parking_lot_has_a_pair_at_the_ends_of_each_trunk() {
        let network = network("shape='parking_lot'\ntrunks=3\ngbps=100\ndelay_ns=1");
        let switch = |host: u32| network.name(network.links[host as usize].b);
        let all: Vec<String> = (0..network.hosts).map(switch).collect();
        assert_eq!(all, ["s0", "s3", "s0", "s1", "s1", "s2", "s2", "s3"]);
    }
}
