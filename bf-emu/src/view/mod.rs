//! The device as a process sees it: state directory, sysfs tree, and paths into them.

pub mod diagnostics;
pub mod hw_counters;
pub mod interfaces;
pub mod paths;
pub mod state;
pub mod sysfs;
