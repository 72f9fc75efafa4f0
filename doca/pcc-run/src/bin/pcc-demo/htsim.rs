//! The speed of another simulator with the same incast: csg-htsim, as a program of its own that the user has built.

use crate::programs::Contender;
use crate::runs::timed;
use anyhow::{Context as _, Result, ensure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Variable with the directory of its program `htsim_roce`.
const VARIABLE: &str = "XGVMI_HTSIM";
/// File with the flows of the incast.
const MATRIX: &str = "incast.cm";
/// Flows, and bytes of each: what a port of 200 Gb/s carries in 10 ms.
const FLOWS: u32 = 128;
const BYTES: u64 = 1_953_125;
/// Hosts of a fat tree with switches of eight ports, and the first sender: without the receiver's neighbours.
const HOSTS: u32 = 128;

/// Seconds of the lab and of htsim for one incast on a fat tree without control.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside {
    pub(crate) lab: f64,
    pub(crate) htsim: f64,
}

/// None if the variable names no directory, which is said.
pub(crate) fn beside(none: &Contender, place: &Path) -> Result<Option<Beside>> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let Some(folder) = named.map(PathBuf::from) else {
        eprintln!("note: {VARIABLE} names no directory with htsim_roce; its speed is left out");
        return Ok(None);
    };
    // All hosts but the receiver, and one of them twice.
    let senders = (1..HOSTS).chain([HOSTS - 1]);
    let (mut matrix, mut pairs) = (
        format!("Nodes {HOSTS}\nConnections {FLOWS}\n"),
        String::new(),
    );
    for (number, from) in senders.enumerate() {
        let _ = writeln!(matrix, "{from}->0 id {} start 0 size {BYTES}", number + 1);
        let _ = write!(pairs, "[{from}, 0], ");
    }
    let text = format!(
        "duration_us = 1000000\nlimits.trace = 0\nguesses.rate_initial = 1048576
topology = {{ shape = 'fat_tree', k = 8, gbps = 200, delay_ns = 1000 }}
switch = {{ pfc_xoff_kib = 60, pfc_xon_kib = 12, ecn = false }}
host.header_bytes = 64
traffic = [{{ kind = 'pairs', pairs = [{pairs}], bytes = {BYTES} }}]"
    );
    let (_, lab) = timed(none, &text)?;
    std::fs::create_dir_all(place)?;
    std::fs::write(place.join(MATRIX), matrix)?;
    let mut command = Command::new(std::path::absolute(folder.join("htsim_roce"))?);
    // It also writes files of its own to the directory in which it runs.
    command.current_dir(place);
    command.args(["-linkspeed", "200000", "-mtu", "4096", "-hop_latency", "1"]);
    command.args([
        "-switch_latency",
        "0.3",
        "-strat",
        "ecmp_host",
        "-paths",
        "16",
    ]);
    command.args(["-end", "20000", "-q", "8000", "-pfc_thresholds", "12", "15"]);
    command.args(["-nodes", &HOSTS.to_string()]);
    command.args(["-tm", MATRIX, "-o", "htsim.dat"]);
    let begin = Instant::now();
    let output = command.output();
    let htsim = begin.elapsed().as_secs_f64();
    let output = output.with_context(|| format!("{VARIABLE}: {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let done = said.matches(" finished at ").count();
    ensure!(
        done == FLOWS as usize,
        "{VARIABLE}: {done} of {FLOWS} flows have finished in {command:?}"
    );
    Ok(Some(Beside { lab, htsim }))
}
