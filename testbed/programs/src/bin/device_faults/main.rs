//! Exports, imports and releases on a failing device. The caller of the program sets up the faults.
//! The pool must keep its promises.
//!
//! ```text
//! device_faults --list
//! device_faults HOST_DEVICE DPU_DEVICE NAME strict|batched|chained [SEED]
//! ```
//!
//! `--list` prints the names of the faults. NAME is the fault of the device; it selects the
//! counters to check. If a promise is broken, the program names round and seed and exits with 1.
#![expect(clippy::print_stdout, reason = "a check says how it went")]

#[path = "../../../../../xgvmi-pool/tests/common/faults.rs"]
#[expect(dead_code, reason = "chances are for those who simulate")]
mod faults;
#[path = "../../../../../xgvmi-pool/examples/common/verbs.rs"]
#[expect(dead_code, reason = "the other examples need more of it")]
mod verbs;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use faults::{FAULTS, Fault, Ground, PLACES, Seen};
use mlx5dv_sys::Mlx5Lib;
use verbs::{Context, Memory, Reader};
use xgvmi_pool::mlx5::{Mlx5Device, Mlx5Options, Prove};
use xgvmi_pool::{AliasPolicy, DpuHooks, HostHooks, Invalidate, Lkey, Region, VirtAddr};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Rounds of a run: each fault occurs a few times, at some milliseconds per read.
const ROUNDS: u32 = 120;
const PAGE: usize = 4096;
/// Time after which a missing completion is abandoned. It is far above the time of a completion on
/// a busy machine, and short enough for a run to meet several.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (host, dpu, name, mode, seed) = match words[..] {
        ["--list"] => {
            FAULTS.iter().for_each(|fault| println!("{}", fault.name));
            return Ok(());
        }
        [host, dpu, name, mode] => (host, dpu, name, mode, 1),
        [host, dpu, name, mode, seed] => (host, dpu, name, mode, seed.parse()?),
        _ => {
            return Err(
                "usage: device_faults --list | HOST_DEVICE DPU_DEVICE NAME MODE [SEED]".into(),
            );
        }
    };
    let invalidate = match mode {
        "strict" => Invalidate::Strict,
        "batched" => Invalidate::Batched,
        "chained" => Invalidate::Chained,
        other => return Err(format!("no mode '{other}'").into()),
    };
    let fault = FAULTS.iter().find(|fault| fault.name == name);
    let fault = fault.ok_or_else(|| format!("no fault '{name}'; try --list"))?;
    let lib = Arc::new(Mlx5Lib::open()?);
    let (host, dpu) = (
        Context::open(&lib, Some(host))?,
        Context::open(&lib, Some(dpu))?,
    );
    check(fault, invalidate, seed, (&host, &dpu))
        .map_err(|broken| format!("{name}, {mode}, seed {seed}: {broken}"))?;
    println!("ok");
    Ok(())
}

struct Real<'a> {
    memory: Memory<'a>,
    /// Target of the importer's reads.
    into: Memory<'a>,
    dpu_context: &'a Context,
    host: HostHooks<Mlx5Device>,
    dpu: DpuHooks<Mlx5Device>,
    invalidate: Invalidate,
}

fn check(
    fault: &Fault,
    invalidate: Invalidate,
    seed: u64,
    (host, dpu): (&Context, &Context),
) -> Outcome<()> {
    let options = Mlx5Options {
        poll_timeout: POLL_TIMEOUT,
        // The faults should affect the pool's own requests. The proofs have a case of their own.
        prove: Prove::No,
        ..Mlx5Options::default()
    };
    let (host_device, dpu_device) = (host.pool_device(options)?, dpu.pool_device(options)?);
    let ground = Real {
        memory: Memory::register(host, PLACES * PAGE, seed)?,
        into: Memory::of(dpu, vec![0; PAGE].into())?,
        dpu_context: dpu,
        host: HostHooks::open(Arc::clone(&host_device), faults::policy(invalidate))?,
        dpu: DpuHooks::open(Arc::clone(&dpu_device), AliasPolicy::default())?,
        invalidate,
    };
    faults::run(&ground, seed, ROUNDS)?;
    faults::check_moved(&ground, fault)?;
    // Objects that the device refuses to destroy now end with its context.
    let _left = (ground.host.close(), ground.dpu.close());
    let _left = (host_device.close(), dpu_device.close());
    Ok(())
}

impl Real<'_> {
    fn bytes(&self, place: usize) -> &[u8] {
        &self.memory.bytes()[place * PAGE..(place + 1) * PAGE]
    }
}

impl Ground for Real<'_> {
    type Device = Mlx5Device;

    fn host(&self) -> &HostHooks<Mlx5Device> {
        &self.host
    }

    fn dpu(&self) -> &DpuHooks<Mlx5Device> {
        &self.dpu
    }

    fn invalidate(&self) -> Invalidate {
        self.invalidate
    }

    fn region(&self, place: usize) -> Region {
        let addr = VirtAddr::new(self.memory.addr() + (place * PAGE) as u64);
        Region::new(addr, PAGE as u64, self.memory.lkey()).expect("a part of memory")
    }

    fn read(&self, key: Lkey, place: usize) -> Result<Seen, String> {
        // A queue pair for each read, because a refusal breaks it.
        let read = || -> Outcome<_> {
            let reader = Reader::connect(self.dpu_context)?;
            reader.read(&self.into, key, self.region(place).addr())
        };
        match read().map_err(|error| error.to_string())? {
            Ok(()) if self.into.bytes() == self.bytes(place) => Ok(Seen::Right),
            Ok(()) => Ok(Seen::Wrong),
            Err(_refused) => Ok(Seen::Nothing),
        }
    }
}
