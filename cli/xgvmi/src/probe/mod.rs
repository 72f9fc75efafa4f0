//! `xgvmi probe`: tests a device for all requirements of the library, and writes one report that a user can send.
//!
//! On the DPU, `xgvmi probe --serve ADDRESS:PORT` waits for a host. On the host, `xgvmi probe --peer DPU:PORT` exports
//! a buffer to it. Without a peer the probe uses only one function.

mod limits;
mod peer;
mod proofs;
mod report;
mod wire;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bench_report::parse_size;
use cost_table::Approach;
use mlx5dv_sys::Mlx5Lib;
use xgvmi_pool::MkeyDevice as _;
use xgvmi_pool::mlx5::{Function, Mlx5Options};

use crate::capability;
use peer::Dpu;
use report::{Capabilities, Cost, Failure, Limits, Report};

/// Maximum number of objects that `--limit` creates: sixteen times a pool's default size.
pub(crate) const LIMIT_MAX: u32 = 65_536;
/// Maximum length of a buffer of `--sizes`.
const SIZE_MAX: usize = 1 << 34;
/// Maximum of `--wait` in seconds: one day.
const WAIT_MAX_S: u64 = 86_400;
/// Maximum number of measurements per step. The report contains the median.
const REPEATS_MAX: u32 = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The RDMA device, such as mlx5_0 [default: the first mlx5 device]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Write the report as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Export a buffer to the DPU on which `xgvmi probe --serve` runs
    #[arg(long, value_name = "HOST:PORT")]
    peer: Option<String>,
    /// On the DPU: serve the probe of one host at this address
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["peer", "json"])]
    serve: Option<String>,
    /// With --serve: end if no host connects within this time, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// Create at most this many keys, and aliases with --peer, to find limits; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    limit: u32,
    /// Buffer sizes at which the steps are timed
    #[arg(long, value_delimiter = ',', value_parser = parse_size, default_value = "16K,1M,64M,1G")]
    sizes: Vec<usize>,
    /// Number of measurements of each step; the report has the median
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    repeats: u32,
}

/// Identity of the probed device.
#[derive(Debug)]
pub(crate) struct Identity {
    device: String,
    firmware: String,
    link: String,
    vhca_id: u64,
}

/// Runs the probe, prints the report and writes it. Returns false if a requirement of the library is not met.
pub(crate) fn run(arguments: &Arguments) -> bool {
    let done = match &arguments.serve {
        Some(address) => serve(arguments, address),
        None => probe(arguments),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        false
    })
}

fn serve(arguments: &Arguments, address: &str) -> Result<bool> {
    ensure!(
        arguments.wait <= WAIT_MAX_S,
        "--wait {}: at most {WAIT_MAX_S} seconds",
        arguments.wait
    );
    let lib = open_library()?;
    let function = Function::open(&lib, arguments.device.as_deref())?;
    let (identity, _) = identify(&lib, &function)?;
    let wait = Duration::from_secs(arguments.wait);
    function.device(device_options()?)?;
    print!("{}", peer::serve(&function, &identity, (address, wait))?);
    Ok(true)
}

fn probe(arguments: &Arguments) -> Result<bool> {
    ensure!(
        arguments.limit <= LIMIT_MAX,
        "--limit {}: at most {LIMIT_MAX}",
        arguments.limit
    );
    ensure!(
        (1..=REPEATS_MAX).contains(&arguments.repeats),
        "--repeats {}: from 1 to {REPEATS_MAX}",
        arguments.repeats
    );
    if let Some(size) = arguments.sizes.iter().find(|size| **size > SIZE_MAX) {
        anyhow::bail!("--sizes: {size} bytes is above {SIZE_MAX} (16 GiB)");
    }
    let lib = open_library()?;
    let function = Function::open(&lib, arguments.device.as_deref())?;
    // Connect first: a connection error must appear before minutes of work.
    let mut dpu = arguments.peer.as_deref().map(Dpu::connect).transpose()?;
    let report = examine(arguments, (&lib, &function), dpu.as_mut())?;
    print!("{}", report.text());
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(file, text).with_context(|| format!("--json {}", file.display()))?;
        eprintln!("written: {}", file.display());
    }
    let holds = report.holds() && report.proofs.len() == proofs::FORMS;
    if !holds {
        eprintln!("error: this device lacks something that the library needs; see NO above");
    }
    Ok(holds)
}

/// UCX's variable for the GID of a port. The library obeys it, so the probe does as well.
const GID_INDEX: &str = "UCX_IB_GID_INDEX";

/// Options of the device: the first opening decides.
fn device_options() -> Result<Mlx5Options> {
    let gid_index = std::env::var(GID_INDEX).ok();
    let gid_index = match gid_index.as_deref().map(str::trim) {
        None | Some("" | "auto") => None,
        Some(index) => {
            let bad = || format!("{GID_INDEX}={index}: a number from 0 to 255, or auto");
            Some(index.parse().with_context(bad)?)
        }
    };
    Ok(Mlx5Options {
        gid_index,
        ..Mlx5Options::default()
    })
}

fn open_library() -> Result<Arc<Mlx5Lib>> {
    let lib =
        Mlx5Lib::open().context("rdma-core is needed, with its mlx5 provider (libmlx5.so.1)")?;
    Ok(Arc::new(lib))
}

fn examine(
    arguments: &Arguments,
    (lib, function): (&Arc<Mlx5Lib>, &Function),
    mut dpu: Option<&mut Dpu>,
) -> Result<Report> {
    let (identity, capabilities) = identify(lib, function)?;
    let device = function.device(device_options()?)?;
    let limits_of_device = device.limits();
    // A refusal ends its part of the report and no other part: the first report of an unknown device needs all of them.
    let mut failures = Vec::new();
    let mut failed = |part, needed, error: &anyhow::Error| {
        failures.push(Failure {
            part,
            reason: format!("{error:#}"),
            needed,
        });
    };
    let proofs = proofs::run(function, &device);
    let proofs = proofs.inspect_err(|error| failed("proofs", true, error));
    let proofs = proofs.unwrap_or_default();
    let mkeys = limits::mkeys(&device, 1, arguments.limit);
    // A device that fails the proof of the stock form refuses every bind.
    let binds = proofs.first().is_some_and(report::Proof::holds);
    let aliases = dpu.as_deref_mut().and_then(|dpu| {
        let aliases = dpu.limit(function, binds, arguments.limit);
        aliases
            .inspect_err(|error| failed("aliases", true, error))
            .ok()
    });
    let peer = dpu.as_deref_mut().filter(|_| binds).and_then(|dpu| {
        let peer = dpu.exchange(function);
        peer.inspect_err(|error| failed("exchange", true, error))
            .ok()
    });
    let approaches: &[Approach] = match binds {
        true => &Approach::ALL,
        false => &[Approach::Umem, Approach::Indirection],
    };
    let mut costs = Vec::new();
    for approach in approaches {
        let dpu = dpu.as_deref_mut().map(|dpu| cost_table::Dpu::Other(dpu));
        let wanted = (&[*approach][..], &arguments.sizes[..], arguments.repeats);
        match cost_table::measure(function, dpu, wanted) {
            Ok(document) => costs.extend(document.rows.into_iter().map(cost)),
            // The library has no key over a umem, and no key of the KSM form.
            Err(error) => failed(
                approach.name(),
                matches!(approach, Approach::Umr | Approach::UmrPoolHit),
                &error,
            ),
        }
    }
    Ok(Report {
        schema: report::SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        device: identity.device,
        firmware: identity.firmware,
        link: identity.link,
        capabilities,
        proofs,
        limits: Limits {
            klm_entries_max: limits_of_device.klm_entries_max,
            mkeys,
            aliases,
        },
        costs,
        peer,
        failures,
    })
}

/// A row of the report for a row of the cost table.
fn cost(row: cost_table::Row) -> Cost {
    Cost {
        approach: row.approach,
        step: row.step,
        size: row.size,
        measured_us: row.measured_ns / 1e3,
        slide_us: row.slide_ns.map(|ns| ns / 1e3),
    }
}

/// Name, firmware, link layer and capability bits of the function's device.
fn identify(lib: &Mlx5Lib, function: &Function) -> Result<(Identity, Capabilities)> {
    let name = function.name();
    let devices = capability::devices(lib);
    let device = devices.into_iter().find(|device| device.name == name);
    let device = device.with_context(|| format!("{name} is no longer there"))?;
    let answer = device
        .answer
        .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    let capabilities = Capabilities {
        vhca_id: answer.vhca_id,
        second_page: answer.second_page,
        alias: answer.alias,
        allow: answer.allow,
    };
    let identity = Identity {
        device: device.name,
        firmware: device.firmware,
        link: link_layer(name),
        vhca_id: answer.vhca_id,
    };
    Ok((identity, capabilities))
}

/// Link layer of the first port, in lower case.
fn link_layer(device: &str) -> String {
    let file = format!("/sys/class/infiniband/{device}/ports/1/link_layer");
    fs::read_to_string(file).map_or_else(
        |_| "unknown".to_owned(),
        |text| text.trim().to_ascii_lowercase(),
    )
}
