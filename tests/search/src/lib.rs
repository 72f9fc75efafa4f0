//! Search of the states of a volume: faults between any two steps, and what may be read afterwards.
//!
//! The program drives the product's `Volume` and `Store` over simulated disks with a volatile cache and compares each read
//! with a plain model. It carries out all sequences up to a depth, then random ones.
//!
//! ```
//! use storage_search::{Setting, Stock, parse};
//! let setting = Setting { blocks: 1, layout: Default::default(), block_len: 128, elsewhere: false, settles: false, lies: false, forgets: false };
//! let steps = parse("open 012; write 0; flush; machine none; open 01; read")?;
//! assert_eq!(Stock::default().run(setting, &steps)?, None);
//! # Ok::<(), anyhow::Error>(())
//! ```

mod apart;
mod chance;
mod disk;
mod explore;
mod members;
mod model;
mod node;
mod regressions;
mod report;
mod snapshots;
mod step;
mod world;

use std::os::fd::AsRawFd as _;

pub use chance::{Stock, search, sequence};
pub use disk::{Damage, Keep};
pub use explore::{Alphabet, explore};
pub use regressions::{REGRESSIONS, Regression};
pub use report::{Finding, Report};
pub use step::{Step, parse, to_text};
pub use world::{Fresh, Setting, Violation, World};

/// Discards standard error from here on: what the product says of each fault would be gigabytes.
///
/// # Errors
/// Errors of the system.
pub fn silence() -> std::io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    // SAFETY: both are open files of this process; no memory is involved.
    if unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Threads that search.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
