//! The device library by itself: each getter, each function of arithmetic, limits, parameters, messages.

use crate::common::{builds, image, program, start};
use pcc_dev::layout::{Detail, Event, event_type};
use pcc_dev::{Query, fxp};
use pcc_lab::algorithm::{self, EventType, Port, ProbePriority};
use pcc_lab::{Algorithm, Context};
use pcc_run::{Build, Model, Options, Sources};

fn event(kind: u8, detail: Detail) -> Event {
    Event {
        kind,
        subtype: 2,
        port: 1,
        plane: 0,
        flags: 5,
        flow_tag: 0x8000_0001,
        qpn: 0xfe_dcba,
        hop_limit: 61,
        sn: 0x0123_4567,
        timestamp: 0xfedc_ba98,
        detail,
    }
}

/// An event, and the words of the context from the fourth that `getters.c` writes for it.
fn cases(model: Model) -> Vec<(Event, [u32; 9])> {
    let tx = Detail::Tx {
        first_timestamp: 0x1020_3040,
        sent_32bytes: 0xfffe,
        sent_packets: 0x0102,
    };
    let ack = Detail::Ack {
        first_timestamp: 0x5060_7080,
        first_sn: 0x00ff_00ff,
        coalesced: 0x0304,
    };
    let rtt = Detail::Rtt {
        request_sent: 0x1111_2220,
        request_received: 0x3333_4440,
        response_sent: 0x5555_6660,
        received: (3, 0x0765_4321),
    };
    let raw = Detail::Raw([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let (units, version) = match model {
        Model::Bf3 => (0, 0),
        Model::Cx8 => (0x0765_4321, 3),
    };
    let swapped = [0x2022_1111, 0x4044_3333, 0x6066_5555];
    let times = [0x1111_2220, 0x3333_4440, 0x5555_6660];
    let rtt_words = [
        times[0], times[1], times[2], swapped[0], swapped[1], swapped[2], 12, units, version,
    ];
    let raw_words = [
        0x0102_0304,
        0x0506_0708,
        0x090a_0b0c,
        0x0403_0201,
        0x0807_0605,
        0x0c0b_0a09,
        12,
        0,
        0,
    ];
    let ack_words = [0x5060_7080, 0x00ff_00ff, 0x0304, 0, 0, 0, 0, 0, 0];
    let fw_words = [7, 8, 9, 0, 0, 0, 0, 0, 0];
    vec![
        (
            event(event_type::TX, tx),
            [0x1020_3040, 0xfffe, 0x0102, 0, 0, 0, 0, 0, 0],
        ),
        (event(event_type::ACK, ack), ack_words),
        (event(event_type::NACK, ack), ack_words),
        (event(event_type::CNP, ack), ack_words),
        (event(event_type::RTT, rtt), rtt_words),
        (event(event_type::RTT, raw), raw_words),
        (event(event_type::FW, Detail::Fw([7, 8, 9])), fw_words),
    ]
}

#[test]
fn each_getter_returns_the_field_of_each_model() {
    for build in builds("library::each_getter_returns_the_field_of_each_model") {
        for model in [Model::Bf3, Model::Cx8] {
            let sources = Sources {
                model,
                ..program("getters")
            };
            let process = start(&sources, build);
            assert_eq!(process.disabled_events(), 0x8000_0010);
            for (event, expect) in cases(model) {
                let answer = process
                    .event(&[0; 12], &event, 3, true)
                    .expect("no failure");
                let results = answer.results;
                let kind = u32::from(event.kind);
                assert_eq!(results.rate, kind | 2 << 8 | 1 << 16, "{event:?}");
                assert_eq!((results.probe, results.probe_slot), (5, 3 | 1 << 4));
                let is_tx = event.kind == event_type::TX;
                let (qpn, hops) = match model {
                    Model::Bf3 if is_tx => (0xfe_dcba, 0),
                    Model::Bf3 => (results.credits, 0),
                    Model::Cx8 => (0xfe_dcba, 61),
                };
                assert_eq!((results.credits, results.reload_credits), (qpn, hops));
                assert_eq!(answer.context[..3], [0x8000_0001, 0x0123_4567, 0xfedc_ba98]);
                assert_eq!(answer.context[3..], expect, "{build:?} {model:?} {event:?}");
            }
        }
    }
}

fn port(sent_bytes: u64) -> Port {
    Port {
        slot: 0,
        overload: false,
        mbps: 200_000,
        mtu: 4096,
        time_ps: 7_654_321_000_000_000,
        sent_bytes,
        received_bytes: 99,
    }
}

fn lab_event(a: u32, b: u32) -> algorithm::Event {
    algorithm::Event {
        kind: EventType::Ack,
        subtype: 0,
        flags: 0,
        flow_tag: 12,
        sn: a,
        timestamp: b,
        detail: algorithm::Detail::Ack {
            first_timestamp: 0,
            first_sn: 0,
            coalesced: 1,
        },
    }
}

#[test]
#[expect(clippy::cast_possible_truncation, reason = "the halves of a product")]
fn arithmetic_and_services_are_exact() {
    for build in builds("library::arithmetic_and_services_are_exact") {
        let mut process = start(&program("numbers"), build);
        let mut random = fastrand::Rng::with_seed(5);
        for step in 0..2_000_u32 {
            // Operands of all sizes, and the special ones.
            let mut operand = || match step {
                0 => 0,
                1 => u32::MAX,
                2..34 => 1 << (step - 2),
                _ => random.u32(..) >> random.u32(0..32),
            };
            let (a, b) = (operand(), operand());
            let sent = u64::from(step) << 31;
            let mut context = Context::default();
            let decision = process
                .handle(&mut context, &lab_event(a, b), &port(sent))
                .expect("no failure");
            let product = u64::from(a) * u64::from(b);
            let expect = [
                32 - a.leading_zeros(),
                product as u32,
                (product >> 32) as u32,
                (product >> 16) as u32,
                fxp::recip(a),
                fxp::pow2(a),
                fxp::log2(a),
                99,
                sent as u32,
                7_654_321_000_u64 as u32,
                200 | 1 << 16 | 1 << 24,
                // The second header is too long, and there is no priority 8.
                1 << 1 | 1 << 3,
            ];
            assert_eq!(context, expect, "{build:?}: {a:#x}, {b:#x}");
            assert_eq!(decision.probe_priority, Some(ProbePriority::Own(5)));
            assert_eq!(
                decision.rate,
                Some(4_096),
                "the default is the maximum >> 8"
            );
            assert_eq!(decision.instructions > 0, build == Build::Dpa);
            assert_eq!(process.output().header, Some((12, vec![a, b])));
        }
    }
}

#[test]
fn messages_have_the_form_of_printf() {
    for build in builds("library::messages_have_the_form_of_printf") {
        let process = start(&program("numbers"), build);
        let output = process.output();
        assert_eq!(
            output.printed,
            "doca_pcc_dev_user_init: -7    42|42   |-0042 beef 0XBEEF 1099511627776 -1099511627776 ok abc 0x10 %\n"
        );
        assert_eq!(output.trace, [[3, 1, 2, 3, 4, 1 << 63]]);
    }
}

#[test]
fn the_mailbox_passes_requests_and_refuses_what_the_program_refuses() {
    for build in builds("library::the_mailbox_passes_requests_and_refuses_what_the_program_refuses")
    {
        let process = start(&program("numbers"), build);
        assert_eq!(
            process.mailbox(&[1, 2, 3], 8).expect("a response"),
            [3, 2, 1]
        );
        let refused = |request: &[u8], most| {
            process
                .mailbox(request, most)
                .expect_err("a refusal")
                .to_string()
        };
        assert_eq!(
            refused(&[], 8),
            "numbers: the program refuses a request of 0 bytes"
        );
        assert_eq!(
            refused(&[0; 9], 8),
            "numbers: the program's response has 9 bytes; the limit is 8"
        );
        // A flood: each request has its answer.
        for number in 0..1_000_u32 {
            let request = number.to_be_bytes();
            assert_eq!(
                process.mailbox(&request, 4).expect("a response"),
                number.to_le_bytes()
            );
        }
        let without = start(&program("getters"), build).mailbox(&[1], 1);
        let line = without.expect_err("a refusal").to_string();
        assert_eq!(
            line,
            "getters: the program has no doca_pcc_dev_user_mailbox_handle()"
        );
    }
}

/// A program that lacks a callback; 0: none.
fn limits(lacks: u32, more: &[&str]) -> Sources {
    let mut macros = vec![format!("LACKS={lacks}")];
    macros.extend(more.iter().map(|&name| name.to_owned()));
    Sources {
        macros,
        ..program("limits")
    }
}

#[test]
fn what_the_library_refuses_has_one_clear_line() {
    let cases = [
        (1, "algorithm 8: the last one is 7"),
        (2, "algorithm 0 has 39 parameters; the limit is 38"),
        (3, "algorithm 0 has 64 counters; the limit is 63"),
        (4, "slot 8: the last one of the user is 7"),
        (5, "slot 0 of port 0: algorithm 3 is not declared"),
        (6, "port 4: the last one is 3"),
        (7, "parameter 2: algorithm 0 has 2, from 0"),
        (
            8,
            "parameter 1 of algorithm 0: its default 9 is not between 1 and 8",
        ),
        (9, "counter 1: algorithm 0 has 1, from 0"),
        (10, "algorithm 0 is declared twice"),
    ];
    for build in builds("library::what_the_library_refuses_has_one_clear_line") {
        let image = image(&limits(0, &[]), build);
        for (gbps, expect) in cases {
            let line = image.start(&with(gbps)).expect_err("a refusal").to_string();
            assert_eq!(line, format!("limits: {expect}"), "{build:?}");
        }
    }
}

fn with(gbps: u32) -> Options {
    Options {
        gbps,
        ..Options::default()
    }
}

#[test]
fn a_program_that_lacks_a_callback_is_refused() {
    for build in builds("library::a_program_that_lacks_a_callback_is_refused") {
        for (lacks, name) in [(1, "init"), (2, "algo"), (3, "set_algo_params")] {
            let started = image(&limits(lacks, &[]), build).start(&Options::default());
            let line = started.expect_err("a refusal").to_string();
            assert_eq!(
                line,
                format!("limits: the program has no doca_pcc_dev_user_{name}()")
            );
        }
    }
}

#[test]
fn the_first_versions_have_lower_limits() {
    let first = [pcc_dev::limits::FIRST.macro_name];
    let image = image(&limits(0, &first), Build::Host);
    let started = |gbps| image.start(&with(gbps));
    let line = |case| started(case).expect_err("a refusal").to_string();
    assert_eq!(
        line(2),
        "limits: algorithm 0 has 31 parameters; the limit is 30"
    );
    assert_eq!(
        line(3),
        "limits: algorithm 0 has 16 counters; the limit is 15"
    );
    let process = started(200).expect("all limits are met");
    assert_eq!(process.query(Query::Parameters, 7, 0), Ok(30));
}

#[test]
fn parameters_and_counters_obey_their_limits() {
    for build in builds("library::parameters_and_counters_obey_their_limits") {
        let process = start(&limits(0, &[]), build);
        let query = |what, number| process.query(what, 7, number).expect("a value");
        assert_eq!(query(Query::Algorithm, 0), 7);
        assert_eq!(
            process.query(Query::Algorithm, 6, 0),
            Ok(15),
            "an empty slot"
        );
        assert_eq!(
            (query(Query::Id, 0), query(Query::Version, 0)),
            (7, 1 << 32 | 2)
        );
        assert_eq!(
            (query(Query::Parameters, 0), query(Query::Counters, 0)),
            (38, 63)
        );
        let parameter = [
            Query::Parameter,
            Query::ParameterFirst,
            Query::ParameterMost,
            Query::ParameterLeast,
            Query::ParameterPermissions,
        ];
        assert_eq!(parameter.map(|what| query(what, 0)), [5, 5, 8, 2, 1]);
        let text = |what, number| process.query_text(what, 7, number).expect("a text");
        assert_eq!(
            text((Query::ParameterText, Query::ParameterTextBytes), 0),
            "first"
        );
        assert_eq!(
            text((Query::CounterText, Query::CounterTextBytes), 62),
            "calls"
        );

        assert_eq!(process.set_parameters(7, 0, &[8]), Ok(()));
        assert_eq!(query(Query::Parameter, 0), 8, "the library stores it");
        let refused = |slot, first, values: &[u32]| {
            let done = process.set_parameters(slot, first, values);
            done.expect_err("a refusal").to_string()
        };
        let expect = "limits: parameter 0: 9 is not between 2 and 8";
        assert_eq!(refused(7, 0, &[9]), expect);
        assert_eq!(refused(7, 1, &[7]), "limits: parameter 1 is read-only");
        assert_eq!(
            refused(7, 38, &[7]),
            "limits: parameters 38 to 38: the algorithm has 38, from 0"
        );
        assert_eq!(
            refused(7, 37, &[0, 0]),
            "limits: parameters 37 to 38: the algorithm has 38, from 0"
        );
        assert_eq!(
            refused(6, 0, &[5]),
            "limits: slot 6 of port 0 has no algorithm"
        );
        assert_eq!(
            refused(8, 0, &[5]),
            "limits: slot 8 of port 0 has no algorithm"
        );
        let expect = "limits: the program refuses new values of parameters 0 to 0";
        assert_eq!(refused(7, 0, &[4]), expect);
        assert_eq!(query(Query::Parameter, 0), 8, "nothing has changed");

        let tx = event(event_type::ACK, Detail::Fw([0; 3]));
        for call in 1..=5 {
            let answer = process.event(&[0; 12], &tx, 7, false).expect("no failure");
            assert_eq!(answer.context[..5], [7, 38, 63, call, 0]);
            assert_eq!(
                query(Query::Counter, 62),
                u64::from(call.min(3)),
                "3 is its most"
            );
        }
        let answer = process.event(&[0; 12], &tx, 15, false).expect("no failure");
        assert_eq!(
            answer.context[..5],
            [15, 0, 0, 0, 1],
            "the internal slot has no algorithm of the user"
        );
    }
}
