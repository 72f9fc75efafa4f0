//! The rules of the vendor's public template `rtt_template`, on the lab: the regime in which they work, and the one in which
//! they do not. A fluid model of the same rules gave the figures.

use crate::{run, star};
use pcc_lab::algorithm::{Port, TX_PROBE_SENT};
use pcc_lab::{
    Algorithm, Context, Decision, Detail, Event, EventType, Failure, Lab, RATE_MAX, Report,
};

/// 5 % of the line rate.
const STEP: u32 = RATE_MAX / 20;

/// Rates by the round-trip time: 10 % less if it is 13 us above its least value, 5 % of the port more otherwise.
#[derive(Debug)]
struct Rules;

impl Algorithm for Rules {
    fn name(&self) -> &str {
        "rtt rules"
    }

    fn disabled_events(&self) -> u32 {
        EventType::Ack.mask()
    }

    fn handle(
        &mut self,
        context: &mut Context,
        event: &Event,
        _: &Port,
    ) -> Result<Decision, Failure> {
        let [rate, least, has_cnp, is_sent, waited, ..] = context;
        if *rate == 0 {
            (*rate, *least) = (RATE_MAX, 200_000);
            return Ok(Decision::rate(RATE_MAX).and_probe());
        }
        match event.detail {
            Detail::Rtt { request_sent, .. } => {
                let rtt = event.timestamp.wrapping_sub(request_sent);
                *least = if event.timestamp & 0xff == 0 {
                    rtt
                } else {
                    rtt.min(*least)
                };
                *rate = if rtt - *least > 13_000 {
                    *rate / 10 * 9
                } else {
                    *rate + STEP
                };
                if std::mem::take(has_cnp) > 0 {
                    *rate = *rate / 10 * 8;
                }
                *rate = (*rate).clamp(64, RATE_MAX);
                (*is_sent, *waited) = (0, 0);
                Ok(Decision::rate(*rate).and_probe())
            }
            Detail::Tx { .. } => {
                // Without a response, the probe is asked for again. The count begins with the event that says that it was sent.
                *is_sent |= u32::from(event.flags & TX_PROBE_SENT != 0);
                *waited += *is_sent;
                let probe = *waited > 300;
                *waited %= 301;
                Ok(Decision {
                    probe,
                    ..Decision::default()
                })
            }
            Detail::Ack { .. } => {
                *has_cnp |= u32::from(event.kind == EventType::Cnp);
                Ok(Decision::default())
            }
        }
    }
}

/// A base round trip of 8 us: four links of 1.8 us, twice the switch, and some serializations.
fn incast(flows: u32, rest: &str) -> Report {
    let text = format!(
        "warmup_us = 5000\nguesses.response_ns = 0\n{rest}\ntraffic = [{{ kind = 'incast', to = 0, flows = {flows} }}]"
    );
    let mut scenario = star(flows + 1, 15_000, &text);
    if let pcc_lab::scenario::Topology::Star { delay_ns, .. } = &mut scenario.topology {
        *delay_ns = 1_800;
    }
    run(&mut Lab::with_algorithm(&scenario, &|_| Box::new(Rules)).expect("accepted"))
}

/// Time that the mean queue needs at 200 Gb/s, in us.
fn queue_us(report: &Report) -> u64 {
    report.queue_bytes.mean / 25_000
}

#[test]
fn two_flows_agree_with_a_fluid_model_of_the_same_rules() {
    // The model, without marks, losses, pauses and priorities: 99 % of the port, a mean queue of 49 us, fair.
    let two = incast(2, "switch = { ecn = false, pfc_xoff_kib = 30000 }");
    assert!(
        (0.98..1.0).contains(&two.utilisation),
        "{}",
        two.utilisation
    );
    assert!((44..=54).contains(&queue_us(&two)), "{:?}", two.queue_bytes);
    assert!(two.jain.is_some_and(|jain| jain > 0.98), "{:?}", two.jain);
}

#[test]
fn eight_flows_fill_any_buffer_without_marks_and_keep_a_queue_with_them() {
    // The model: from eight flows on, 5 % per round trip and flow fill any buffer.
    let lossy = incast(
        8,
        "switch = { ecn = false, buffer_kib = 5000, pfc_priorities = [] }",
    );
    assert!(
        lossy.packets.dropped * 3 > lossy.packets.sent,
        "{:?}",
        lossy.packets
    );
    let lossless = incast(8, "switch.ecn = false");
    let marked = incast(8, "");
    assert_eq!((lossless.packets.dropped, marked.packets.dropped), (0, 0));
    assert!(
        queue_us(&marked) * 2 < queue_us(&lossless),
        "{:?}",
        marked.queue_bytes
    );
    assert!(
        marked.counters.pauses < lossless.counters.pauses,
        "{:?}",
        marked.counters
    );
    assert!(
        marked.utilisation > 0.98 && marked.jain.is_some_and(|jain| jain > 0.99),
        "{marked:?}"
    );
}
