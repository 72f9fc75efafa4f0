//! Exports and releases memory with the pool alone between marks, for a tool that counts
//! instructions.
//!
//! ```text
//! pool_hot_path HOST_DEVICE strict|batched|chained BYTES ROUNDS BATCH
//! ```
//!
//! A mark is a system call that no kernel implements, see the crate `step-count`. Sections of a
//! round: 2 the export, 4 the release.

#[path = "../../../../../xgvmi-pool/examples/common/verbs.rs"]
#[expect(dead_code, reason = "the other examples need more of it")]
mod verbs;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use mlx5dv_sys::Mlx5Lib;
use verbs::{Context, Memory};
use xgvmi_pool::mlx5::Mlx5Options;
use xgvmi_pool::{HostHooks, Invalidate, PoolPolicy, Region, VirtAddr};

/// Number of the system call of a mark.
const MARK: i64 = 0x5847_564d;
/// Warm-up rounds, not counted.
const WARM: u64 = 160;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, mode, bytes, rounds, batch] = words.as_slice() else {
        return Err(
            "usage: pool_hot_path HOST_DEVICE strict|batched|chained BYTES ROUNDS BATCH".into(),
        );
    };
    let invalidate = match mode.as_str() {
        "strict" => Invalidate::Strict,
        "batched" => Invalidate::Batched,
        "chained" => Invalidate::Chained,
        other => return Err(format!("no mode {other}").into()),
    };
    let lib = Arc::new(Mlx5Lib::open()?);
    let context = Context::open(&lib, Some(device))?;
    let memory = Memory::register(&context, bytes.parse()?, 1)?;
    let region = Region::new(VirtAddr::new(memory.addr()), bytes.parse()?, memory.lkey())?;
    let device = context.pool_device(Mlx5Options::default())?;
    let policy = PoolPolicy {
        invalidate,
        batch_ops: batch.parse()?,
        // Single-stepping makes a round longer than the time limit of a batch.
        batch_time: Duration::from_secs(3600),
        prefill: 128,
        ..PoolPolicy::default()
    };
    let hooks = HostHooks::open(Arc::clone(&device), policy)?;
    for _ in 0..WARM {
        hooks.unbind(hooks.bind(region)?)?;
    }
    for _ in 0..rounds.parse()? {
        mark(2);
        let bound = hooks.bind(region)?;
        mark(4);
        hooks.unbind(bound)?;
        mark(0);
    }
    hooks.close();
    device.close();
    Ok(())
}

fn mark(label: u64) {
    // SAFETY: no kernel implements this system call: it fails without an effect.
    unsafe { libc::syscall(MARK, label) };
}
