//! The events that an algorithm gets, and their fields.

use crate::{run, star};
use pcc_lab::algorithm::{NACK_OUT_OF_SEQUENCE, Port, TX_PROBE_SENT};
use pcc_lab::{
    Algorithm, Context, Decision, Detail, Event, EventType, Failure, Lab, RATE_MAX, Report,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Keeps all events, and asks for a probe with the first event of each flow.
#[derive(Debug)]
struct Recorder {
    events: Rc<RefCell<Vec<Event>>>,
    disabled: u32,
}

impl Algorithm for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn disabled_events(&self) -> u32 {
        self.disabled
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        assert_eq!((port.slot, port.mbps, port.mtu), (0, 200_000, 4096));
        self.events.borrow_mut().push(*event);
        let is_first = std::mem::replace(&mut context[11], 1) == 0;
        Ok(Decision {
            rate: Some(RATE_MAX),
            probe: is_first,
            instructions: 7,
            ..Decision::default()
        })
    }
}

fn record(hosts: u32, disabled: u32, text: &str) -> (Vec<Event>, Report) {
    let events = Rc::new(RefCell::new(Vec::new()));
    let make = |_| {
        Box::new(Recorder {
            events: events.clone(),
            disabled,
        }) as Box<dyn Algorithm>
    };
    let mut lab = Lab::with_algorithm(&star(hosts, 20_000, text), &make).expect("accepted");
    let report = run(&mut lab);
    drop(lab);
    (events.take(), report)
}

#[test]
fn tx_events_add_up_to_what_was_sent() {
    let (events, report) = record(
        2,
        0,
        "traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 4096000 }]",
    );
    let (mut packets, mut units, mut probes, mut last) = (0, 0, 0, 0);
    for event in events.iter().filter(|event| event.kind == EventType::Tx) {
        let Detail::Tx {
            first_timestamp,
            sent_32bytes,
            sent_packets,
        } = event.detail
        else {
            panic!("{event:?}");
        };
        assert!(
            first_timestamp <= event.timestamp && last <= first_timestamp,
            "{event:?}"
        );
        last = event.timestamp;
        packets += u32::from(sent_packets);
        units += u32::from(sent_32bytes);
        probes += u32::from(event.flags & TX_PROBE_SENT != 0);
    }
    assert_eq!(packets, 1_000);
    // 4178 bytes per packet, rounded down to 32 per event of at most some packets.
    assert!(
        (1_000 * 4178 / 32 - 400..=1_000 * 4178 / 32).contains(&units),
        "{units}"
    );
    assert_eq!(
        (probes, report.per_flow[0].probes),
        (1, 1),
        "the packet with the probe says so"
    );
    assert_eq!(
        events
            .iter()
            .filter(|event| event.kind == EventType::Rtt)
            .count(),
        1
    );
    assert_eq!(report.instructions_per_event, Some(7.0));
}

#[test]
fn ack_events_have_rising_numbers_and_count_what_they_merged() {
    let text = "host.ack_every = 1\nguesses = { handler_ns = 2000, handler_threads = 1 }
traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 4096000 }]";
    let (events, report) = record(2, EventType::Tx.mask(), text);
    assert!(
        events.iter().all(|event| event.kind != EventType::Tx),
        "disabled"
    );
    let (mut before, mut all) = (0, 0);
    for event in &events {
        let Detail::Ack {
            first_timestamp,
            first_sn,
            coalesced,
        } = event.detail
        else {
            continue;
        };
        assert!(before < first_sn && first_sn <= event.sn && first_timestamp <= event.timestamp);
        assert_eq!(
            event.sn - first_sn + 1,
            u32::from(coalesced),
            "one packet each: {event:?}"
        );
        before = event.sn;
        all += u32::from(coalesced);
    }
    // The last acknowledgement ends the flow and is no event.
    assert_eq!(all, 999);
    assert!(report.control[2].merged > 500, "{:?}", report.control);
}

#[test]
fn a_gap_is_a_nack_event_with_the_number_that_is_missing() {
    let text = "guesses.rate_initial = 1048576
traffic = [{ kind = 'pairs', pairs = [[1, 0]], bytes = 4096000 }]
[[loss]]\nkind = 'data'\nprobability = 1.0\nfrom_us = 50\nto_us = 51";
    let (events, report) = record(2, 0, text);
    let nacks: Vec<&Event> = events
        .iter()
        .filter(|event| event.kind == EventType::Nack)
        .collect();
    assert_eq!((nacks.len() as u64, report.counters.go_backs), (1, 1));
    assert_eq!(nacks[0].subtype, NACK_OUT_OF_SEQUENCE);
    // A packet arrives each 167.12 ns from 2634.24 ns on. The first after 50 us has the number 284.
    assert_eq!(nacks[0].sn, 284);
}

#[test]
fn cnps_have_their_interval_and_their_delay() {
    for interval_us in [4, 50] {
        let text = format!(
            "host.cnp_interval_us = {interval_us}\nswitch = {{ kmin_kib = 0, kmax_kib = 0 }}
traffic = [{{ kind = 'incast', to = 0, flows = 2, bytes = 12500000 }}]"
        );
        let (events, report) = record(3, 0, &text);
        // Both flows together need 1.02 ms, in which all packets that find a queue are marked.
        let expect = 2 * (1_020 / interval_us + 1);
        let cnps = report.counters.cnps;
        assert!(
            (expect * 9 / 10..=expect + 2).contains(&cnps),
            "{interval_us}: {cnps} of {expect}"
        );
        let seen = events.iter().filter(|event| event.kind == EventType::Cnp);
        let seen: u64 = seen
            .map(|event| match event.detail {
                Detail::Ack { coalesced, .. } => u64::from(coalesced),
                _ => 0,
            })
            .sum();
        // The last CNP of each flow can arrive after its end.
        let known = seen + report.control[0].lost;
        assert!((cnps - 2..=cnps).contains(&known), "{known} of {cnps}");
    }
    let first = |delay_us| {
        let text = format!(
            "guesses.cnp_delay_us = {delay_us}\nswitch = {{ kmin_kib = 0, kmax_kib = 0 }}
traffic = [{{ kind = 'incast', to = 0, flows = 2, bytes = 1000000 }}]"
        );
        let (events, _) = record(3, 0, &text);
        events
            .iter()
            .find(|event| event.kind == EventType::Cnp)
            .map_or(0, |event| event.timestamp)
    };
    assert_eq!(first(30) - first(0), 30_000);
}
