//! Exports memory that was registered through its dma-buf. The importer reads its bytes, and
//! nothing after its release.
//!
//! ```text
//! dma_buf HOST_DEVICE DPU_DEVICE
//! ```
//!
//! The dma-buf consists of ordinary memory, through the kernel's `udmabuf`. If the kernel or the
//! device does not support it, the program prints a line and exits with 77.
#![expect(clippy::print_stdout, reason = "a check says how it went")]

mod buffer;
#[path = "../../../../../xgvmi-pool/examples/common/verbs.rs"]
#[expect(dead_code, reason = "the other examples need more of it")]
mod verbs;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use buffer::{Buffer, Unavailable};
use mlx5dv_sys::Mlx5Lib;
use verbs::{Context, Memory, Reader};
use xgvmi_pool::mlx5::Mlx5Options;
use xgvmi_pool::{AliasPolicy, DpuHooks, HostHooks, OwnerUuid, PoolPolicy, RemoteKey};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Exit status of a test that cannot run, as in automake.
const CANNOT: u8 = 77;
const LEN: usize = 1 << 20;

fn main() -> ExitCode {
    match check() {
        Ok(()) => {
            println!("ok");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            let code = if error.is::<Unavailable>() { CANNOT } else { 1 };
            ExitCode::from(code)
        }
    }
}

fn check() -> Outcome<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [host, dpu] = names.as_slice() else {
        return Err("usage: dma_buf HOST_DEVICE DPU_DEVICE".into());
    };
    // First, because it needs no device.
    let mut buffer = Buffer::new(LEN)?;
    buffer.fill(|at| u8::try_from(at * 7 % 251).unwrap_or(0));
    let lib = Arc::new(Mlx5Lib::open()?);
    let (host, dpu) = (
        Context::open(&lib, Some(host))?,
        Context::open(&lib, Some(dpu))?,
    );
    let registered = buffer.register(&host)?;
    let host_device = host.pool_device(Mlx5Options::default())?;
    let dpu_device = dpu.pool_device(Mlx5Options::default())?;
    let pool = HostHooks::open(Arc::clone(&host_device), PoolPolicy::default())?;
    let map = DpuHooks::open(Arc::clone(&dpu_device), AliasPolicy::default())?;
    let into = Memory::of(&dpu, vec![0; LEN].into())?;
    let export = pool.export(registered.region())?;
    let key = RemoteKey {
        gvmi: export.gvmi(),
        mkey: export.mkey(),
        owner: OwnerUuid::new(1),
    };
    let (alias, addr) = (map.attach(key)?, export.addr());
    Reader::connect(&dpu)?.read(&into, alias.lkey(), addr)??;
    if into.bytes() != buffer.bytes() {
        return Err("the importer reads other bytes".into());
    }
    pool.release(export)?;
    if Reader::connect(&dpu)?
        .read(&into, alias.lkey(), addr)?
        .is_ok()
    {
        return Err("the importer reads released memory".into());
    }
    drop(alias);
    let closed = pool.close() && map.close() && host_device.close() && dpu_device.close();
    if closed {
        Ok(())
    } else {
        Err("something is left behind".into())
    }
}
