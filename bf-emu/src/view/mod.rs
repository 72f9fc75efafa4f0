//! What a process sees of the device: the state directory, its sysfs tree, and the paths that lead there.

pub mod paths;
pub mod state;
pub mod sysfs;
