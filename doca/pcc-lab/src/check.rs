//! What a scenario may not contain: sizes beyond their bounds, and networks that cannot work.

use crate::native;
use crate::refusal::{Refusal, limits, refuse};
use crate::routes::Routes;
use crate::scenario::{Change, Network, Probe, Scenario, Topology, Traffic};

fn at_least(what: &'static str, value: u64, least: u64) -> Result<(), Refusal> {
    if value < least {
        return refuse(format!("{what}: {value} is below the least value, {least}"));
    }
    Ok(())
}

fn in_order((low, a): (&str, u64), (high, b): (&str, u64)) -> Result<(), Refusal> {
    if a > b {
        return refuse(format!("{low} is {a} and must not be above {high}, {b}"));
    }
    Ok(())
}

fn within(what: &'static str, value: f64, least: f64, most: f64) -> Result<(), Refusal> {
    // Not a number is outside as well.
    if (least..=most).contains(&value) {
        return Ok(());
    }
    refuse(format!("{what}: {value} is not between {least} and {most}"))
}

/// Checks a scenario.
///
/// # Errors
/// The lab refuses it.
pub fn check(scenario: &Scenario) -> Result<(), Refusal> {
    limits::at_most("duration_us", scenario.duration_us, limits::DURATION_US_MAX)?;
    at_least("duration_us", scenario.duration_us, 1)?;
    limits::at_most("warmup_us", scenario.warmup_us, scenario.duration_us - 1)?;
    check_limits(scenario)?;
    check_switch(scenario)?;
    check_host(scenario)?;
    check_guesses(scenario)?;
    check_algorithms(&scenario.algorithm.parameters)?;
    for name in [&scenario.algorithm.name, &scenario.guesses.internal] {
        if !native::NAMES.contains(&name.as_str()) {
            let known = native::NAMES.join(", ");
            return refuse(format!(
                "algorithm '{name}' is unknown; the lab has {known}"
            ));
        }
    }
    let is_hpcc = scenario.algorithm.name == "hpcc" || scenario.guesses.internal == "hpcc";
    if is_hpcc && scenario.host.probe == Probe::Ccmad {
        let line = "algorithm 'hpcc' needs what switches write into probes; set host.probe to 'ifa1' or 'ifa2'";
        return refuse(line.to_owned());
    }
    let network = Network::new(&scenario.topology)?;
    check_network(
        &network,
        matches!(scenario.topology, Topology::Custom { .. }),
    )?;
    for traffic in &scenario.traffic {
        limits::at_most("priority", u64::from(traffic.class().priority), 7)?;
        if let Traffic::Poisson { load, .. } = traffic {
            within("load", *load, 0.000_001, 1.0)?;
        }
    }
    for (number, fault) in scenario.fault.iter().enumerate() {
        if fault.link as usize >= network.links.len() {
            let (link, links) = (fault.link, network.links.len());
            return refuse(format!(
                "fault {number} names link {link}; there are {links}, from 0"
            ));
        }
        if fault.change == Change::Speed {
            at_least("gbps of a fault", fault.gbps, 1)?;
            limits::at_most("gbps of a fault", fault.gbps, limits::GBPS_MAX)?;
        }
    }
    Ok(())
}

fn check_limits(scenario: &Scenario) -> Result<(), Refusal> {
    let bounds = &scenario.limits;
    limits::at_most("packets", bounds.packets.into(), limits::PACKETS_MAX.into())?;
    at_least("packets", bounds.packets.into(), 16)?;
    limits::at_most("trace", bounds.trace.into(), limits::TRACE_MAX.into())?;
    limits::at_most("flows", bounds.flows.into(), limits::FLOWS_MAX.into())?;
    limits::at_most("samples", bounds.samples.into(), limits::SAMPLES_MAX.into())?;
    limits::at_most(
        "faults",
        scenario.fault.len() as u64,
        limits::FAULTS_MAX as u64,
    )?;
    limits::at_most(
        "losses",
        scenario.loss.len() as u64,
        limits::FAULTS_MAX as u64,
    )?;
    for loss in &scenario.loss {
        within("probability of a loss", loss.probability, 0.0, 1.0)?;
    }
    let processes = u64::from(scenario.algorithm.processes);
    at_least("processes", processes, 1)?;
    limits::at_most("processes", processes, limits::PROCESSES_MAX.into())
}

fn check_switch(scenario: &Scenario) -> Result<(), Refusal> {
    let switch = &scenario.switch;
    limits::at_most("latency_ns", switch.latency_ns, limits::DELAY_NS_MAX)?;
    limits::at_most("buffer_kib", switch.buffer_kib, limits::BUFFER_KIB_MAX)?;
    limits::at_most("pfc_xoff_kib", switch.pfc_xoff_kib, switch.buffer_kib)?;
    limits::at_most("pfc_xon_kib", switch.pfc_xon_kib, switch.buffer_kib)?;
    limits::at_most("kmax_kib", switch.kmax_kib, limits::BUFFER_KIB_MAX)?;
    in_order(("kmin_kib", switch.kmin_kib), ("kmax_kib", switch.kmax_kib))?;
    if let Some(headroom) = switch.headroom_bytes {
        limits::at_most("headroom_bytes", headroom, switch.buffer_kib * 1_024)?;
    }
    within("pmax", switch.pmax, 0.0, 1.0)?;
    within("mark_all", switch.mark_all, 0.0, 1.0)?;
    within("pfc_alpha", switch.pfc_alpha, 0.001, 64.0)?;
    within("drop_alpha", switch.drop_alpha, 0.001, 64.0)?;
    at_least("telemetry_window_ns", switch.telemetry_window_ns, 100)?;
    limits::at_most(
        "telemetry_window_ns",
        switch.telemetry_window_ns,
        limits::STEP_NS_MAX,
    )?;
    for weight in switch.weights.iter().flatten() {
        limits::at_most("weights", u64::from(*weight), 100)?;
    }
    for priority in &switch.pfc_priorities {
        limits::at_most("pfc_priorities", u64::from(*priority), 7)?;
    }
    Ok(())
}

fn check_host(scenario: &Scenario) -> Result<(), Refusal> {
    let host = &scenario.host;
    at_least("mtu", u64::from(host.mtu), 64)?;
    let wire = u64::from(host.mtu) + u64::from(host.header_bytes);
    limits::at_most("mtu and header_bytes", wire, limits::WIRE_MAX)?;
    at_least("control_bytes", u64::from(host.control_bytes), 64)?;
    limits::at_most(
        "control_bytes",
        u64::from(host.control_bytes),
        limits::WIRE_MAX,
    )?;
    at_least("ack_every", u64::from(host.ack_every), 1)?;
    for (what, value) in [
        ("timeout_us", host.timeout_us),
        ("starvation_us", host.starvation_us),
    ] {
        at_least(what, value, 1)?;
        limits::at_most(what, value, limits::DURATION_US_MAX)?;
    }
    limits::at_most(
        "cnp_interval_us",
        host.cnp_interval_us,
        limits::DURATION_US_MAX,
    )?;
    limits::at_most("retries_max", u64::from(host.retries_max), 1_000)?;
    limits::at_most("ack_priority", u64::from(host.ack_priority), 7)?;
    limits::at_most("cnp_priority", u64::from(host.cnp_priority), 7)
}

fn check_guesses(scenario: &Scenario) -> Result<(), Refusal> {
    let guesses = &scenario.guesses;
    for (what, value) in [
        ("event_latency_ns", guesses.event_latency_ns),
        ("handler_ns", guesses.handler_ns),
        ("response_ns", guesses.response_ns),
        ("probe_timeout_us", guesses.probe_timeout_us),
        ("cnp_delay_us", guesses.cnp_delay_us),
        ("takeover_us", guesses.takeover_us),
    ] {
        limits::at_most(what, value, limits::DURATION_US_MAX)?;
    }
    at_least("handler_threads", guesses.handler_threads, 1)?;
    limits::at_most("handler_threads", guesses.handler_threads, 1_024)?;
    let (low, high) = (guesses.event_queue_min, guesses.event_queue_max);
    at_least("event_queue_max", u64::from(high), 1)?;
    limits::at_most("event_queue_max", u64::from(high), 1 << 16)?;
    in_order(
        ("event_queue_min", low.into()),
        ("event_queue_max", high.into()),
    )?;
    within("event_drop", guesses.event_drop, 0.0, 1.0)?;
    at_least("coalesced_max", u64::from(guesses.coalesced_max), 1)?;
    at_least("tx_event_packets", u64::from(guesses.tx_event_packets), 1)?;
    let probe =
        u64::from(guesses.probe_bytes) + limits::HOPS_MAX as u64 * u64::from(guesses.ifa_hop_bytes);
    at_least("probe_bytes", u64::from(guesses.probe_bytes), 64)?;
    limits::at_most(
        "probe_bytes and what the switches append",
        probe,
        limits::WIRE_MAX,
    )?;
    limits::at_most("response_priority", u64::from(guesses.response_priority), 7)?;
    let rate_max = u64::from(crate::units::RATE_MAX);
    for (what, rate) in [
        ("rate_granularity", guesses.rate_granularity),
        ("rate_initial", guesses.rate_initial),
        ("rate_floor", guesses.rate_floor),
    ] {
        at_least(what, u64::from(rate), 1)?;
        limits::at_most(what, u64::from(rate), rate_max)?;
    }
    limits::at_most("burst_packets", guesses.burst_packets, 1_024)
}

fn check_algorithms(parameters: &native::Parameters) -> Result<(), Refusal> {
    let (dcqcn, swift, hpcc) = (&parameters.dcqcn, &parameters.swift, &parameters.hpcc);
    // Longest time, and highest rate, of one step of an algorithm.
    let (us, mbps) = (1_000_000, 1_600_000);
    for (what, value, least, most) in [
        (
            "constant_rate",
            parameters.constant_rate,
            0,
            crate::units::RATE_MAX,
        ),
        ("gain_shift", dcqcn.gain_shift, 1, 24),
        ("alpha_timer_us", dcqcn.alpha_timer_us, 1, us),
        ("increase_timer_us", dcqcn.increase_timer_us, 1, us),
        ("increase_kib", dcqcn.increase_kib, 1, 1 << 24),
        ("fast_recovery", dcqcn.fast_recovery, 0, 1_000),
        ("additive_mbps of dcqcn", dcqcn.additive_mbps, 0, mbps),
        ("hyper_mbps", dcqcn.hyper_mbps, 0, mbps),
        ("minimum_mbps", dcqcn.minimum_mbps, 0, mbps),
        ("decrease_us", dcqcn.decrease_us, 0, us),
        ("target_ns", swift.target_ns, 1, us * 1_000),
        ("flow_scaling_ns", swift.flow_scaling_ns, 0, us * 1_000),
        (
            "scaling_window_min_milli",
            swift.scaling_window_min_milli,
            1,
            1 << 20,
        ),
        ("scaling_window_max", swift.scaling_window_max, 1, 1 << 20),
        ("additive_milli", swift.additive_milli, 0, 1 << 20),
        ("beta_percent", swift.beta_percent, 0, 100),
        ("decrease_max_percent", swift.decrease_max_percent, 0, 100),
        ("target_percent", hpcc.target_percent, 1, 100),
        ("stages", hpcc.stages, 0, 1_000),
        ("additive_mbps of hpcc", hpcc.additive_mbps, 0, mbps),
    ] {
        at_least(what, u64::from(value), least)?;
        limits::at_most(what, u64::from(value), u64::from(most))?;
    }
    Ok(())
}

fn check_network(network: &Network, may_have_loops: bool) -> Result<(), Refusal> {
    at_least("hosts", u64::from(network.hosts), 2)?;
    for (number, link) in network.links.iter().enumerate() {
        let (a, b) = (network.name(link.a), network.name(link.b));
        if link.a == link.b {
            return refuse(format!(
                "link {number} is a loop: it joins {a} to itself; remove it"
            ));
        }
        if link.mbps == 0 {
            return refuse(format!(
                "link {number}, {a} to {b}, has 0 Gb/s; give it a speed"
            ));
        }
        limits::at_most("gbps", link.mbps / 1_000, limits::GBPS_MAX)?;
        limits::at_most("delay_ns", link.delay_ps / 1_000, limits::DELAY_NS_MAX)?;
    }
    let ports = network.ports();
    for (host, ports) in (0..network.hosts).zip(&ports) {
        match ports.len() {
            0 => return refuse(format!("host h{host} is not connected; add a link to it")),
            1 => {}
            links => {
                return refuse(format!(
                    "host h{host} has {links} links; a host has one port"
                ));
            }
        }
    }
    let mut routes = Routes::new(network);
    for host in 1..network.hosts {
        routes.check(host, 0)?;
    }
    // The paths of the named shapes lead up and then down.
    if may_have_loops {
        routes.check_loops()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAR: &str = "[topology]\nshape = 'star'\nhosts = 4\ngbps = 100\ndelay_ns = 500\n";
    const TRAFFIC: &str = "[[traffic]]\nkind = 'incast'\nto = 0\nflows = 2\n";

    fn refusal(text: &str) -> String {
        let refused = match Scenario::from_toml(text) {
            Ok(scenario) => crate::Lab::new(&scenario).map(drop),
            Err(refusal) => Err(refusal),
        };
        let line = refused.expect_err("refused").to_string();
        assert!(!line.contains('\n'), "one line: {line}");
        line
    }

    fn custom(links: &str, hosts: u32, switches: u32) -> String {
        let link = links
            .split_whitespace()
            .map(|link| {
                let (ends, gbps) = link.split_once('@').unwrap_or((link, "100"));
                let (a, b) = ends.split_once('-').expect("two ends");
                format!("{{a='{a}', b='{b}', gbps={gbps}, delay_ns=1}},")
            })
            .collect::<String>();
        format!(
            "duration_us = 10\n[topology]\nshape = 'custom'\nhosts = {hosts}\nswitches = {switches}\nlink = [{link}]\n{TRAFFIC}"
        )
    }

    #[test]
    fn faulty_networks_are_refused_with_their_place() {
        let cases = [
            (
                "h0-s0@0 h1-s0",
                2,
                1,
                "link 0, h0 to s0, has 0 Gb/s; give it a speed",
            ),
            (
                "h0-s0 h1-s0 s0-s0",
                2,
                1,
                "link 2 is a loop: it joins s0 to itself; remove it",
            ),
            (
                "h0-s0 h1-s0",
                3,
                1,
                "host h2 is not connected; add a link to it",
            ),
            (
                "h0-s0 h1-s1",
                2,
                2,
                "host h1 is not connected to host h0; add a link between their switches",
            ),
            (
                "h0-s0 h1-s1 h1-s0",
                2,
                2,
                "host h1 has 2 links; a host has one port",
            ),
            (
                "h0-s0 h1-s9",
                2,
                1,
                "link 1: 's9' is no node; there are 2 hosts (h0, h1, ...) and 1 switches (s0, s1, ...)",
            ),
            (
                "h0-s0@1601 h1-s0",
                2,
                1,
                "gbps: 1601 is above the limit of 1600",
            ),
        ];
        for (links, hosts, switches, expect) in cases {
            assert_eq!(refusal(&custom(links, hosts, switches)), expect);
        }
    }

    #[test]
    fn a_ring_of_waiting_buffers_is_a_loop_and_a_triangle_is_none() {
        let ring = "h0-s0 h1-s1 h2-s2 h3-s3 h4-s4 s0-s1 s1-s2 s2-s3 s3-s4 s4-s0";
        let line = refusal(&custom(ring, 5, 5));
        assert!(
            line.starts_with("a loop: the shortest paths lead around s"),
            "{line}"
        );
        let triangle = "h0-s0 h1-s1 h2-s2 s0-s1 s1-s2 s2-s0";
        let direct = Scenario::from_toml(&custom(triangle, 3, 3)).expect("a scenario");
        check(&direct).expect("all paths are direct");
    }

    #[test]
    fn unknown_fields_and_names_are_refused_with_their_line() {
        let text = format!("duration_us = 10\nspeed = 3\n{STAR}{TRAFFIC}");
        let line = refusal(&text);
        assert!(
            line.starts_with("line 2 of the scenario: unknown field `speed`"),
            "{line}"
        );
        for (table, field) in [
            ("topology", "gbits"),
            ("switch", "kminimum"),
            ("guesses", "guess"),
            ("algorithm", "rate"),
        ] {
            let header = format!("[{table}]\n");
            let text = format!("duration_us = 10\n{STAR}{TRAFFIC}");
            let text = if table == "topology" {
                text.replace(&header, &format!("{header}{field} = 1\n"))
            } else {
                format!("{text}{header}{field} = 1\n")
            };
            let line = refusal(&text);
            assert!(line.contains(&format!("unknown field `{field}`")), "{line}");
        }
        let line = refusal(&format!("duration_us = 10\n{STAR}{TRAFFIC}rate = 1\n"));
        assert!(line.contains("unknown field `rate`"), "{line}");
        let line = refusal(&format!(
            "duration_us = 10\n{STAR}{TRAFFIC}[algorithm]\nname = 'cubic'\n"
        ));
        assert_eq!(
            line,
            "algorithm 'cubic' is unknown; the lab has none, constant, dcqcn, swift, hpcc"
        );
    }

    #[test]
    fn probabilities_beyond_their_bounds_are_refused() {
        for (field, value, shown) in [
            ("pmax", "1.5", "1.5"),
            ("pmax", "nan", "NaN"),
            ("mark_all", "-0.1", "-0.1"),
        ] {
            let text = format!("duration_us = 10\n{STAR}{TRAFFIC}[switch]\n{field} = {value}\n");
            assert_eq!(
                refusal(&text),
                format!("{field}: {shown} is not between 0 and 1")
            );
        }
    }

    #[test]
    fn sizes_beyond_their_bounds_are_refused() {
        let cases = [
            (
                "duration_us = 0",
                "duration_us: 0 is below the least value, 1",
            ),
            (
                "duration_us = 10000001",
                "duration_us: 10000001 is above the limit of 10000000",
            ),
            (
                "duration_us = 10\nwarmup_us = 10",
                "warmup_us: 10 is above the limit of 9",
            ),
        ];
        for (first, expect) in cases {
            assert_eq!(refusal(&format!("{first}\n{STAR}{TRAFFIC}")), expect);
        }
        let cases = [
            (
                "[limits]\nflows = 65537",
                "flows: 65537 is above the limit of 65536",
            ),
            ("[limits]\nflows = 1", "flows: 2 is above the limit of 1"),
            (
                "[limits]\npackets = 16777217",
                "packets: 16777217 is above the limit of 16777216",
            ),
            (
                "[limits]\ntrace = 4194305",
                "trace: 4194305 is above the limit of 4194304",
            ),
            (
                "[switch]\nkmin_kib = 5\nkmax_kib = 4",
                "kmin_kib is 5 and must not be above kmax_kib, 4",
            ),
            (
                "[switch]\nbuffer_kib = 16",
                "switch s0: the headroom of its ports needs 115472 bytes and its buffer has 16384; raise buffer_kib",
            ),
            (
                "[host]\nmtu = 16000",
                "mtu and header_bytes: 16082 is above the limit of 16000",
            ),
            (
                "[host]\nack_every = 0",
                "ack_every: 0 is below the least value, 1",
            ),
            (
                "[guesses]\nrate_floor = 0",
                "rate_floor: 0 is below the least value, 1",
            ),
            (
                "[algorithm]\nname = 'hpcc'",
                "algorithm 'hpcc' needs what switches write into probes; set host.probe to 'ifa1' or 'ifa2'",
            ),
            (
                "[algorithm]\nprocesses = 9",
                "processes: 9 is above the limit of 8",
            ),
            (
                "[[fault]]\nat_us = 1\nlink = 4\nchange = 'down'",
                "fault 0 names link 4; there are 4, from 0",
            ),
            (
                "[[fault]]\nat_us = 1\nlink = 0\nchange = 'speed'",
                "gbps of a fault: 0 is below the least value, 1",
            ),
            (
                "[[traffic]]\nkind = 'incast'\nto = 4\nflows = 1",
                "traffic names host 4; there are 4, from 0",
            ),
            (
                "[[traffic]]\nkind = 'pairs'\npairs = [[1, 1]]",
                "traffic from host 1 to itself; name two hosts",
            ),
            (
                "[[traffic]]\nkind = 'pairs'",
                "only the dumbbell and the parking lot have pairs of their own; list the pairs",
            ),
            (
                "[[traffic]]\nkind = 'permutation'\nclass = {priority = 8}",
                "priority: 8 is above the limit of 7",
            ),
        ];
        for (rest, expect) in cases {
            assert_eq!(
                refusal(&format!("duration_us = 10\n{STAR}{TRAFFIC}{rest}\n")),
                expect,
                "{rest}"
            );
        }
        let tree =
            "duration_us = 10\n[topology]\nshape = 'fat_tree'\nk = 5\ngbps = 1\ndelay_ns = 1\n";
        let expect = "a fat tree needs an even number of ports per switch, at least 2; k is 5";
        assert_eq!(refusal(&format!("{tree}{TRAFFIC}")), expect);
    }
}
