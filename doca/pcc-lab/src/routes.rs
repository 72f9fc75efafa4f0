//! Shortest paths, and the check that no buffers can wait for each other in a circle.

use crate::refusal::{Refusal, limits, refuse};
use crate::scenario::Network;

/// A node that a search has not reached.
const FAR: u16 = u16::MAX;

/// Shortest paths of a network. Searches are kept, one per receiver.
#[derive(Debug)]
pub(crate) struct Routes<'a> {
    network: &'a Network,
    ports: Vec<Vec<u32>>,
    /// Of each receiver: the distance of each node.
    distances: Vec<Option<Vec<u16>>>,
}

impl<'a> Routes<'a> {
    pub(crate) fn new(network: &'a Network) -> Self {
        Self {
            network,
            ports: network.ports(),
            distances: vec![None; network.hosts as usize],
        }
    }

    fn distances(&mut self, to: u32) -> &[u16] {
        let (network, ports) = (self.network, &self.ports);
        self.distances[to as usize].get_or_insert_with(|| {
            let mut distance = vec![FAR; network.nodes() as usize];
            distance[to as usize] = 0;
            let mut reached = vec![to];
            let mut next = 0;
            while let Some(&node) = reached.get(next) {
                next += 1;
                // A host forwards nothing.
                if node < network.hosts && node != to {
                    continue;
                }
                for &port in &ports[node as usize] {
                    let peer = network.ends(port).1;
                    if distance[peer as usize] == FAR {
                        distance[peer as usize] = distance[node as usize] + 1;
                        reached.push(peer);
                    }
                }
            }
            distance
        })
    }

    /// Whether there is a path, and a short one.
    pub(crate) fn check(&mut self, from: u32, to: u32) -> Result<(), Refusal> {
        match self.distances(to)[from as usize] {
            FAR => refuse(format!(
                "host h{from} is not connected to host h{to}; add a link between their switches"
            )),
            links if usize::from(links) > limits::HOPS_MAX => {
                let limit = limits::HOPS_MAX;
                refuse(format!(
                    "the path from h{from} to h{to} has more than {limit} links"
                ))
            }
            _ => Ok(()),
        }
    }

    /// The ports that a packet of this flow leaves, in order. Of several shortest paths, the flow's number chooses one, as a
    /// switch does by a hash of the addresses.
    pub(crate) fn path(&mut self, from: u32, to: u32, flow: u32) -> Result<Vec<u32>, Refusal> {
        self.check(from, to)?;
        let network = self.network;
        let distance = self.distances(to).to_vec();
        let (mut node, mut path) = (from, Vec::new());
        while node != to {
            let here = distance[node as usize];
            let nearer = |port: &&u32| {
                let peer = network.ends(**port).1;
                distance[peer as usize] < here
            };
            let choices: Vec<u32> = self.ports[node as usize]
                .iter()
                .filter(nearer)
                .copied()
                .collect();
            let hash = mix(u64::from(flow) << 32 | u64::from(node));
            let port = choices[usize::try_from(hash % choices.len() as u64).unwrap_or(0)];
            path.push(port);
            node = network.ends(port).1;
        }
        Ok(path)
    }

    /// Refuses shortest paths whose buffers may wait for each other in a circle, which PFC turns into a standstill.
    pub(crate) fn check_loops(&mut self) -> Result<(), Refusal> {
        let ports = self.network.links.len() * 2;
        let mut waits: Vec<Vec<u32>> = vec![Vec::new(); ports];
        for to in 0..self.network.hosts {
            let distance = self.distances(to).to_vec();
            let leads = |port: u32| {
                let (node, peer) = self.network.ends(port);
                distance[node as usize] != FAR && distance[peer as usize] < distance[node as usize]
            };
            let mut seen = vec![false; ports];
            let hosts = 0..self.network.hosts;
            let mut left: Vec<u32> = hosts
                .filter(|host| *host != to)
                .flat_map(|host| self.ports[host as usize].iter().copied())
                .filter(|port| leads(*port))
                .collect();
            while let Some(port) = left.pop() {
                if std::mem::replace(&mut seen[port as usize], true) {
                    continue;
                }
                let node = self.network.ends(port).1;
                for &next in self.ports[node as usize]
                    .iter()
                    .filter(|port| leads(**port))
                {
                    if !waits[port as usize].contains(&next) {
                        waits[port as usize].push(next);
                    }
                    left.push(next);
                }
            }
        }
        self.circle(&waits)
    }

    /// Depth-first search for a port that waits for itself.
    fn circle(&self, waits: &[Vec<u32>]) -> Result<(), Refusal> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let mut states = vec![State::New; waits.len()];
        for start in (0..).take(waits.len()) {
            let mut path: Vec<(u32, usize)> = vec![(start, 0)];
            if states[start as usize] != State::New {
                continue;
            }
            states[start as usize] = State::Open;
            while let Some((port, next)) = path.last_mut() {
                let Some(&after) = waits[*port as usize].get(*next) else {
                    states[*port as usize] = State::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                match states[after as usize] {
                    State::Done => {}
                    State::New => {
                        states[after as usize] = State::Open;
                        path.push((after, 0));
                    }
                    State::Open => {
                        let circle = path.iter().skip_while(|(port, _)| *port != after);
                        let names =
                            circle.map(|(port, _)| self.network.name(self.network.ends(*port).0));
                        let nodes = names.collect::<Vec<_>>().join(", ");
                        return refuse(format!(
                            "a loop: the shortest paths lead around {nodes}, so pauses may wait for each other for ever; \
                             remove a link"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// A hash of 64 bits: the finalizer of splitmix64.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Topology;
    use std::collections::BTreeSet;

    #[test]
    fn paths_of_a_fat_tree_have_two_four_or_six_links_and_use_all_spines() {
        let topology = Topology::FatTree {
            k: 4,
            gbps: 100,
            delay_ns: 1,
        };
        let network = Network::new(&topology).expect("a tree");
        let mut routes = Routes::new(&network);
        let mut spines = BTreeSet::new();
        for flow in 0..64 {
            for (to, links) in [(1, 2), (2, 4), (15, 6)] {
                let path = routes.path(0, to, flow).expect("connected");
                assert_eq!(path.len(), links, "to {to}");
                assert_eq!(network.ends(path[0]).0, 0);
                assert_eq!(network.ends(path[links - 1]).1, to);
                assert!(
                    path.windows(2)
                        .all(|two| network.ends(two[0]).1 == network.ends(two[1]).0)
                );
                if links == 6 {
                    spines.insert(network.ends(path[2]).1);
                }
            }
        }
        assert_eq!(spines.len(), 4);
        routes.check_loops().expect("up, then down");
    }
}
