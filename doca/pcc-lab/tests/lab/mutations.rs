//! Scenarios with extreme numbers and damaged text: each is refused in one line, or runs and accounts for its packets.

use crate::check;
use pcc_lab::{Lab, Refusal, Scenario};

const NUMBERS: [&str; 20] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "64",
    "255",
    "256",
    "1000",
    "65535",
    "65536",
    "1048576",
    "16777216",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-1",
    "0.5",
    "nan",
    "1e300",
];

/// All properties with a number, so that each can become an extreme one.
const ALL: &str = "
[switch]\nlatency_ns = 300\nbuffer_kib = 4096\nkmin_kib = 10\nkmax_kib = 50\npmax = 0.2\npfc_alpha = 0.1\npfc_xoff_kib = 20
pfc_xon_kib = 4\nheadroom_bytes = 90000\ndrop_alpha = 1.0\nweights = [0, 1, 2, 3, 0, 0, 0, 100]\ntelemetry_window_ns = 10000
[host]\nmtu = 1024\nheader_bytes = 82\ncontrol_bytes = 84\nack_every = 2\ntimeout_us = 100\nretries_max = 7
cnp_interval_us = 4\nack_priority = 6\ncnp_priority = 6\nprobe = 'ifa1'\nstarvation_us = 20
[limits]\npackets = 4000\ntrace = 1000\nflows = 1000\nsamples = 100
[guesses]\nevent_latency_ns = 500\nhandler_ns = 600\nhandler_threads = 48\nhandler_mips = 1800\nevent_queue_min = 5
event_queue_max = 90\nevent_drop = 0.1\noverload_events = 10\ncoalesced_max = 64\ntx_event_packets = 8\nprobe_bytes = 128
ifa_hop_bytes = 32\nresponse_priority = 6\nresponse_ns = 1000\nprobe_timeout_us = 50\ncnp_delay_us = 1
rate_granularity = 16\nrate_initial = 4096\nrate_floor = 64\nburst_packets = 1\ntakeover_us = 10
[algorithm]\nname = 'ALGORITHM'\nprocesses = 2\nparameters.constant_rate = 5\n[algorithm.parameters.dcqcn]\ngain_shift = 8
alpha_timer_us = 5\nincrease_timer_us = 55\nincrease_kib = 100\nfast_recovery = 5\nadditive_mbps = 200\nhyper_mbps = 1000
minimum_mbps = 50\ndecrease_us = 50\n[algorithm.parameters.swift]\ntarget_ns = 25000\nflow_scaling_ns = 25000
scaling_window_min_milli = 100\nscaling_window_max = 100\nadditive_milli = 500\nbeta_percent = 40\ndecrease_max_percent = 50
[algorithm.parameters.hpcc]\ntarget_percent = 95\nstages = 5\nadditive_mbps = 200
[[traffic]]\nkind = 'incast'\nto = 0\nflows = 4\nbytes = 30000\nstart_us = 3\nclass = { priority = 3 }
[[traffic]]\nkind = 'permutation'\nbytes = 0\nstart_us = 1
[[traffic]]\nkind = 'poisson'\nsizes = 'hadoop'\nload = 0.2
[[traffic]]\nkind = 'replay'\nrows = [[1000, 0, 1, 65536]]
[[fault]]\nat_us = 30\nlink = 1\nchange = 'speed'\ngbps = 10\n[[fault]]\nat_us = 40\nlink = 2\nchange = 'down'
[[loss]]\nkind = 'ack'\nprobability = 0.1\nfrom_us = 1\nto_us = 50\n";

const SHAPES: [&str; 4] = [
    "shape = 'star'\nhosts = 5\ngbps = 100\ndelay_ns = 500",
    "shape = 'dumbbell'\npairs = 3\ngbps = 100\ntrunk_gbps = 40\ndelay_ns = 500",
    "shape = 'parking_lot'\ntrunks = 2\ngbps = 100\ndelay_ns = 500",
    "shape = 'fat_tree'\nk = 2\ngbps = 100\ndelay_ns = 500",
];

fn try_run(text: &str) -> Result<(), Refusal> {
    let mut scenario = Scenario::from_toml(text)?;
    // Long runs are for other tests.
    scenario.duration_us = scenario.duration_us.min(100);
    scenario.warmup_us = scenario.warmup_us.min(50);
    let mut lab = Lab::new(&scenario)?;
    check(&lab.run());
    Ok(())
}

/// The scenario with some of its numbers replaced.
fn mutated(random: &mut fastrand::Rng) -> String {
    let name = pcc_lab::native::NAMES[random.usize(0..5)];
    let shape = SHAPES[random.usize(0..4)];
    let text =
        format!("duration_us = 100\nwarmup_us = 50\nsample_us = 10\n[topology]\n{shape}{ALL}");
    let mut lines: Vec<String> = text
        .replace("ALGORITHM", name)
        .lines()
        .map(str::to_owned)
        .collect();
    for _ in 0..random.u32(1..4) {
        let at = random.usize(0..lines.len());
        if let Some((key, value)) = lines[at].split_once(" = ")
            && value.parse::<f64>().is_ok()
        {
            lines[at] = format!("{key} = {}", NUMBERS[random.usize(0..NUMBERS.len())]);
        }
    }
    lines.join("\n")
}

#[test]
fn extreme_numbers_are_refused_or_run() {
    let (mut ran, mut refused) = (0, 0);
    for seed in 0..300 {
        let text = mutated(&mut fastrand::Rng::with_seed(seed));
        match try_run(&text) {
            Ok(()) => ran += 1,
            Err(refusal) => {
                refused += 1;
                let line = refusal.to_string();
                assert!(
                    !line.contains('\n') && !line.is_empty(),
                    "seed {seed}: {line}"
                );
            }
        }
    }
    assert!(
        ran > 50 && refused > 50,
        "{ran} ran, {refused} were refused"
    );
}

#[test]
fn damaged_text_is_refused_or_runs() {
    let mut random = fastrand::Rng::with_seed(99);
    for _ in 0..200 {
        let mut bytes = mutated(&mut random).into_bytes();
        for _ in 0..random.u32(1..4) {
            let at = random.usize(0..bytes.len());
            match random.u32(0..3) {
                0 => bytes[at] = random.u8(..),
                1 => drop(bytes.remove(at)),
                _ => bytes.truncate(bytes.len() - at / 50),
            }
        }
        // What the text says is of no interest here, only that there is an answer.
        let _ = try_run(&String::from_utf8_lossy(&bytes));
        let _ = pcc_lab::scenario::parse_rows(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn flows_and_faults_after_the_end_do_not_happen() {
    let text = format!(
        "duration_us = 100\n[host]\nstarvation_us = 10\n[topology]\n{}\n[[traffic]]\nkind = 'permutation'
start_us = 9223372036854775807\n[[traffic]]\nkind = 'replay'\nrows = [[0, 0, 1, 500000]]
[[fault]]\nat_us = 9223372036854775807\nlink = 0\nchange = 'down'\n",
        SHAPES[0]
    );
    let scenario = Scenario::from_toml(&text).expect("a scenario");
    let mut lab = Lab::new(&scenario).expect("accepted");
    let report = lab.run();
    check(&report);
    let delivered: Vec<u64> = report
        .per_flow
        .iter()
        .map(|flow| flow.delivered_bytes)
        .collect();
    assert_eq!(delivered, [0, 0, 0, 0, 0, 500_000]);
    assert_eq!(crate::count(&lab, pcc_lab::RecordKind::PortDown), 0);
    assert!(report.time_ns < 100_000, "ends with the last flow");
}
