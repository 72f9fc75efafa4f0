//! A network that loses, repeats and reorders packets, by the decisions of a seed.

use std::net::{IpAddr, SocketAddr};

use crate::model::faults::mixed;

/// The way of a packet: its source address and its destination.
pub type Way = (IpAddr, SocketAddr);

/// Drops one packet in 100, sends one twice, and lets two be overtaken by the next one on the same way.
#[derive(Debug)]
pub struct Disturbance {
    seed: u64,
    /// Packets so far.
    packets: u64,
    /// A packet that another one shall overtake.
    later: Option<(Way, Vec<u8>)>,
}

impl Disturbance {
    /// The seed chooses the packets.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            packets: 0,
            later: None,
        }
    }

    /// True if a packet waits. [`Disturbance::release`] sends it if no other packet comes.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.later.is_some()
    }

    /// Passes a packet on, and calls `send` for each packet that leaves.
    pub fn pass(&mut self, way: Way, packet: &[u8], mut send: impl FnMut(Way, &[u8])) {
        self.packets += 1;
        match mixed(self.seed, self.packets) % 100 {
            0 => {}
            1 => {
                send(way, packet);
                send(way, packet);
            }
            2 | 3 if self.later.is_none() => self.later = Some((way, packet.to_owned())),
            _ => {
                send(way, packet);
                if self.later.as_ref().is_some_and(|(later, _)| *later == way) {
                    self.release(send);
                }
            }
        }
    }

    /// Sends the packet that waits.
    pub fn release(&mut self, mut send: impl FnMut(Way, &[u8])) {
        if let Some((way, packet)) = self.later.take() {
            send(way, &packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn packets_are_lost_repeated_and_overtaken_as_the_seed_says() {
        let way = (
            IpAddr::from([127, 0, 0, 1]),
            SocketAddr::from(([127, 0, 0, 2], 1)),
        );
        let run = |seed| {
            let mut disturbance = Disturbance::new(seed);
            let mut sent: Vec<u32> = Vec::new();
            let mut note = |_, packet: &[u8]| {
                sent.push(u32::from_be_bytes(packet.try_into().unwrap()));
            };
            for packet in 0..10_000_u32 {
                disturbance.pass(way, &packet.to_be_bytes(), &mut note);
            }
            disturbance.release(&mut note);
            assert!(!disturbance.is_waiting());
            sent
        };
        let sent = run(1);
        let mut count = BTreeMap::new();
        for packet in &sent {
            *count.entry(*packet).or_insert(0) += 1;
        }
        let lost = 10_000 - count.len();
        let twice = count.values().filter(|count| **count == 2).count();
        let late = sent.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(
            (60..140).contains(&lost) && (60..140).contains(&twice),
            "{lost} {twice}"
        );
        assert!((120..280).contains(&late), "{late}");
        assert_eq!(run(1), sent);
        assert_ne!(run(2), sent);
    }
}
