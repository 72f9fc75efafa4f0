//! placeholder
pub mod profile;
pub mod state;
pub mod sysfs;
pub mod topology;
pub mod trap;
