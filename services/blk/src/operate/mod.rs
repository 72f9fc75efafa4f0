//! The parts of the command `xgvmi-blk`: options, opening of volumes, and the processes that serve them.

mod asking;
mod certificates;
mod common;
mod control;
mod daemon;
mod export;
mod fronts;
mod initiators;
mod keeper;
mod opener;
mod options;
mod service;
mod snapshots;
mod status;
mod target;
mod volumes;

pub use asking::{like, show_status};
pub use common::initiator_secret;
pub use control::{ControlArgs, ctl};
pub use daemon::{ignore_file_size_limit, use_few_heaps};
pub use export::export;
pub use opener::{Opener, create_store, new_id, rebuild};
pub use options::{
    ExportArgs, NbdAddress, OpenArgs, ServiceArgs, TargetArgs, TlsArgs, VOLUMES_MAX, VolumeArgs,
};
pub use service::service;
pub use status::{
    ExportStatus, NamedVolume, ServiceProcessStatus, Status, StatusArgs, TargetProcessStatus,
};
pub use target::target;
