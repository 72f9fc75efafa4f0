//! Messages that a program posts while the lab runs: another simulation that has the lab as its network.

use super::Lab;
use super::flow::State;
use super::messages::Arrival;

impl Lab {
    /// Posts a message to a queue pair of [`Traffic::Connections`](crate::scenario::Traffic::Connections) at the present time.
    /// The lab sends it in packets of the scenario's MTU, the last one filled up. False: the flow is no such queue pair, or
    /// has no numbers left.
    pub fn post_message(&mut self, flow: u32, bytes: u64) -> bool {
        let mtu = u64::from(self.settings.host.mtu);
        let Some(entry) = self.flows.get_mut(flow as usize) else {
            return false;
        };
        let packets = u32::try_from(bytes.div_ceil(mtu).max(1)).unwrap_or(u32::MAX);
        let (true, Some(total)) = (entry.has_messages, entry.total.checked_add(packets)) else {
            return false;
        };
        entry.total = total;
        if entry.state != State::Open {
            entry.state = State::Open;
            self.open_flows += 1;
        }
        self.messages.ends[flow as usize].push_back(total);
        self.resume(flow);
        true
    }

    /// Runs up to this time, or to the first arrival of a message.
    pub fn advance(&mut self, time_ps: u64) -> Option<Arrival> {
        loop {
            if let Some(arrival) = self.messages.arrived.pop_front() {
                return Some(arrival);
            }
            match self.calendar.next_ps() {
                Some(next) if next <= time_ps => self.step(),
                _ => {
                    self.now_ps = self.now_ps.max(time_ps);
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn lab(rest: &str) -> Lab {
        let text = format!(
            "duration_us = 1000000\ntopology = {{ shape = 'star', hosts = 3, gbps = 10, delay_ns = 1000 }}
traffic = [{{ kind = 'connections', pairs = [[1, 0], [2, 0]] }}]\n{rest}"
        );
        Lab::new(&Scenario::from_toml(&text).expect("a scenario")).expect("a lab")
    }

    #[test]
    fn a_message_takes_the_time_of_its_packets_and_the_next_one_follows() {
        // At 10 Gb/s a full packet needs 3342400 ps, and a link with the switch 2300000 ps in all.
        let mut lab = lab("");
        let (full, links) = (3_342_400, 2_000_000 + 300_000);
        assert_eq!(lab.advance(5_000_000), None);
        assert!(lab.post_message(0, 8_192) && lab.post_message(0, 4_096));
        let at = 5_000_000 + links + full;
        let arrival = |packets| {
            Some(Arrival {
                time_ps: at + packets * full,
                flow: 0,
            })
        };
        assert_eq!(lab.advance(u64::MAX), arrival(2));
        assert_eq!(lab.advance(u64::MAX), arrival(3));
        assert!(lab.post_message(0, 1), "after the flow was idle");
        let last = lab.advance(u64::MAX).expect("an arrival");
        assert_eq!(last.time_ps, at + 3 * full + links + 2 * full);
        assert_eq!(lab.advance(u64::MAX), None);
        assert_eq!(lab.report().unaccounted, 0);
    }

    #[test]
    fn two_senders_share_the_receivers_link_and_each_message_arrives_once() {
        let mut lab = lab("algorithm.name = 'swift'");
        for _ in 0..100 {
            assert!(lab.post_message(0, 16_384) && lab.post_message(1, 16_384));
        }
        let mut counts = [0, 0];
        while let Some(arrival) = lab.advance(u64::MAX - 1) {
            counts[arrival.flow as usize] += 1;
        }
        assert_eq!(counts, [100, 100]);
        assert!(!lab.post_message(2, 1), "there is no such queue pair");
    }
}
