//! What the user asks for: the fabric's topology, its cost profile, and the faults to inject.

pub mod faults;
pub mod profile;
pub mod topology;
