//! An accelerator as a service on a DPU. Kernels from a shared object run on the memory of the DPU's host.
//!
//! The host exports each region by a key and sends it over TCP ([`naaice::dpu::frames`]). The service reads inputs
//! through an alias of the key into registered memory, runs the kernel in a process of its own, and writes outputs
//! back through the alias. Keys of the host's pool keep their aliases, so a later session issues no command.
//!
//! Hosts of other nodes cannot be reached through an alias. They connect over RDMA ([`ServiceOptions::verbs_listen`])
//! and write their inputs themselves, as to any other accelerator.
//!
//! Threads: one per connection, one for the RDMA listener, and one for everything else.
//!
//! ```no_run
//! let options = xgvmi_naa::ServiceOptions {
//!     kernels: Some("libkernels.so".into()),
//!     ..Default::default()
//! };
//! let service = xgvmi_naa::Service::new(options)?;
//! println!("listens on {}", service.address());
//! service.run()?;
//! # Ok::<(), anyhow::Error>(())
//! ```

mod counters;
mod kernel;
mod options;
mod service;
mod session;
mod shared;
mod slot;
mod verbs;

pub use counters::{Counters, Status};
pub use options::ServiceOptions;
pub use service::Service;

use std::path::Path;

/// The process that runs kernels: loads `kernels`, and serves the requests of the service that has started it. Without
/// `serves` it only loads them.
///
/// # Errors
/// If the kernels cannot be loaded, or a request is damaged.
pub fn run_kernels(kernels: &Path, serves: bool) -> anyhow::Result<()> {
    match serves {
        true => kernel::serve(kernels),
        false => Ok(naaice::Kernels::open(kernels).map(|_| ())?),
    }
}
