//! Cost of the pool on the device of this machine: times per export and release in each mode, for
//! small buffers and one of 4 GiB, and an importer's cost of the first use of 64 keys with and
//! without an announcement.
//!
//! ```text
//! device_bench HOST_DEVICE DPU_DEVICE
//! device_bench proof HOST_DEVICE
//! ```
//!
//! Prints one line per measurement, `NAME NANOSECONDS`, with the best of several runs. The forms of
//! binds are proved only once per process, so they have a run of their own.
#![expect(clippy::print_stdout, reason = "a bench prints its results")]

#[path = "../../../../../xgvmi-pool/examples/common/verbs.rs"]
#[expect(dead_code, reason = "the other examples need more of it")]
mod verbs;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx5dv_sys::Mlx5Lib;
use verbs::{Context, Memory};
use xgvmi_pool::mlx5::{Form, Mlx5Device, Mlx5Options, Prove};
use xgvmi_pool::{
    AccessKey, AliasPolicy, DpuHooks, HostHooks, Invalidate, Mkey, MkeyDevice, MkeySpec, OwnerUuid,
    PoolError, PoolPolicy, Region, RemoteKey, Seal, Tag, VirtAddr,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Keys that are exported together.
const KEYS: usize = 64;
/// Exports and releases of one run: two batches.
const ROUNDS: usize = 128;
/// Number of runs. The best one is printed, because other work on the machine can only add to the
/// time.
const RUNS: usize = 45;
const PAGE: usize = 4096;
/// Bytes of the large buffer.
const LARGE: usize = 4 << 30;

fn main() -> Outcome<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [host, dpu] = names.as_slice() else {
        return Err("usage: device_bench HOST_DEVICE DPU_DEVICE".into());
    };
    let lib = Arc::new(Mlx5Lib::open()?);
    if host == "proof" {
        return proof(&Context::open(&lib, Some(dpu))?);
    }
    let (host, dpu) = (
        Context::open(&lib, Some(host))?,
        Context::open(&lib, Some(dpu))?,
    );
    one_by_one(&host)?;
    together(&host)?;
    large(&host)?;
    first_touch(&host, &dpu)
}

/// Time that the proof of each form of binds adds to an export. The process has registered memory
/// and exported it without a proof before, so that the costs of the first use of libmlx5 and of the
/// device's doorbell do not count as costs of the proof.
fn proof(context: &Context) -> Outcome<()> {
    unproved_export(context)?;
    let device = context.pool_device(Mlx5Options::default())?;
    device.run(&[])?;
    let spec = MkeySpec {
        klm_entries: 4,
        access_key: AccessKey::UCX_COMPATIBLE,
    };
    let key = Mkey::new(device.create_mkey(&spec)?, Tag::UCX_POOLED);
    for form in Form::ALL {
        device.prove(form, key)?;
    }
    for proof in device.proofs() {
        println!("proof_{} {}", proof.form, proof.took.as_nanos());
    }
    device.destroy_mkey(key.index())?;
    device.close();
    Ok(())
}

/// An export and its release on a device that proves nothing.
fn unproved_export(context: &Context) -> Outcome<()> {
    let memory = Memory::register(context, PAGE, 3)?;
    let options = Mlx5Options {
        prove: Prove::No,
        ..Mlx5Options::default()
    };
    let device = context.pool_device(options)?;
    let hooks = HostHooks::open(Arc::clone(&device), PoolPolicy::default())?;
    let region = Region::new(VirtAddr::new(memory.addr()), PAGE as u64, memory.lkey())?;
    hooks.export(region)?.release()?;
    hooks.close();
    device.close();
    Ok(())
}

/// A device and a pool that already has all keys of a run.
fn open(
    context: &Context,
    invalidate: Invalidate,
) -> Outcome<(Arc<Mlx5Device>, HostHooks<Mlx5Device>)> {
    let prefill = u32::try_from(2 * KEYS)?;
    let policy = PoolPolicy {
        invalidate,
        prefill,
        ..PoolPolicy::default()
    };
    let device = context.pool_device(Mlx5Options::default())?;
    let hooks = HostHooks::open(Arc::clone(&device), policy)?;
    Ok((device, hooks))
}

fn regions(memory: &Memory<'_>) -> Outcome<Vec<Region>> {
    let region = |number: usize| {
        let addr = VirtAddr::new(memory.addr() + (number * PAGE) as u64);
        Ok(Region::new(addr, PAGE as u64, memory.lkey())?)
    };
    (0..KEYS).map(region).collect()
}

/// Exports a buffer and releases it at once, repeatedly.
fn one_by_one(context: &Context) -> Outcome<()> {
    let memory = Memory::register(context, KEYS * PAGE, 1)?;
    let regions = regions(&memory)?;
    for (name, invalidate) in MODES {
        let (device, hooks) = open(context, invalidate)?;
        let run = || -> Outcome<Duration> {
            let start = Instant::now();
            for number in 0..ROUNDS {
                hooks.export(regions[number % KEYS])?.release()?;
            }
            Ok(start.elapsed())
        };
        tell(&format!("export_release_{name}"), run, ROUNDS)?;
        hooks.close();
        device.close();
    }
    Ok(())
}

const MODES: [(&str, Invalidate); 3] = [
    ("strict", Invalidate::Strict),
    ("batched", Invalidate::Batched),
    ("chained", Invalidate::Chained),
];

/// All exports in one chain, and then all releases.
fn together(context: &Context) -> Outcome<()> {
    let memory = Memory::register(context, KEYS * PAGE, 2)?;
    let regions = regions(&memory)?;
    for (name, invalidate) in MODES {
        let (device, hooks) = open(context, invalidate)?;
        let chains = hooks.stats().chains;
        let run = || -> Outcome<Duration> {
            let start = Instant::now();
            for _ in 0..ROUNDS / KEYS {
                let exports: Result<Vec<_>, PoolError> =
                    hooks.export_many(&regions).into_iter().collect();
                for export in exports? {
                    export.release()?;
                }
            }
            Ok(start.elapsed())
        };
        tell(&format!("export_release_64_together_{name}"), run, ROUNDS)?;
        let rounds = u64::try_from(RUNS * ROUNDS / KEYS)?;
        println!(
            "doorbells_64_{name} {}",
            (hooks.stats().chains - chains).div_ceil(rounds)
        );
        hooks.close();
        device.close();
    }
    Ok(())
}

/// Exports and releases one buffer after the other that is too long for a single entry of a key.
fn large(context: &Context) -> Outcome<()> {
    // Untouched zero pages of the system take no memory.
    let memory = Memory::of(context, vec![0; LARGE].into_boxed_slice())?;
    let region = Region::new(VirtAddr::new(memory.addr()), LARGE as u64, memory.lkey())?;
    for (name, invalidate) in MODES {
        let (device, hooks) = open(context, invalidate)?;
        let run = || -> Outcome<Duration> {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                hooks.export(region)?.release()?;
            }
            Ok(start.elapsed())
        };
        tell(&format!("export_release_4gib_{name}"), run, ROUNDS)?;
        hooks.close();
        device.close();
    }
    Ok(())
}

/// The first use of 64 keys by an importer.
fn first_touch(host: &Context, dpu: &Context) -> Outcome<()> {
    let (host_device, exporter) = open(host, Invalidate::Strict)?;
    let memory = Memory::register(host, KEYS * PAGE, 3)?;
    let exports: Result<Vec<_>, PoolError> = exporter
        .export_many(&regions(&memory)?)
        .into_iter()
        .collect();
    let owner = OwnerUuid::new(1);
    let keys: Vec<_> = exports?
        .iter()
        .map(|export| RemoteKey {
            gvmi: export.gvmi(),
            mkey: export.mkey(),
            owner,
        })
        .collect();
    let message = exporter.pool().announce(owner, 1).to_bytes(&Seal::OPEN);
    for announced in [false, true] {
        let device = dpu.pool_device(Mlx5Options::default())?;
        let mut announcing = Duration::ZERO;
        let run = || -> Outcome<Duration> {
            let importer = DpuHooks::open(Arc::clone(&device), AliasPolicy::default())?;
            if announced {
                let start = Instant::now();
                let (_, prepared) = importer.receive(&message)?;
                announcing = start.elapsed() / u32::try_from(prepared.ready.max(1))?;
            }
            let start = Instant::now();
            for key in &keys {
                importer.detach(importer.attach(*key)?);
            }
            let time = start.elapsed();
            importer.close();
            Ok(time)
        };
        let name = if announced {
            "first_touch_announced"
        } else {
            "first_touch"
        };
        tell(name, run, KEYS)?;
        if announced {
            println!("announcing_per_key {}", announcing.as_nanos());
        }
        device.close();
    }
    exporter.close();
    host_device.close();
    Ok(())
}

/// Prints the best of several runs, divided by the `parts` of a run.
fn tell(name: &str, mut run: impl FnMut() -> Outcome<Duration>, parts: usize) -> Outcome<()> {
    let times: Outcome<Vec<_>> = (0..RUNS).map(|_| run()).collect();
    let best = times?.into_iter().min().unwrap_or_default();
    println!("{name} {}", best.as_nanos() / u128::try_from(parts)?);
    Ok(())
}
