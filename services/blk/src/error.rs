//! Errors of a store and of a volume.

use crate::geometry::{Geometry, GeometryError, Id, Layout, Role};
use std::io;

/// Result of this crate.
pub type Result<T, E = BlkError> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlkError {
    /// A size that no volume may have, or a range outside the volume.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The volume was opened as often as its format allows.
    #[error("the volume was opened {0} times, and its format allows no more: copy it to a new one")]
    Epochs(u64),
    /// A file that is no target, or whose superblock is damaged.
    #[error("{target}: {fault}")]
    NotATarget {
        /// The target.
        target: String,
        /// The defect.
        fault: String,
    },
    /// Another process uses the target.
    #[error("{target}: another process uses this target")]
    InUse {
        /// The target.
        target: String,
    },
    /// A process that is connected to the target owns it.
    #[error(
        "{target}: another process uses this target, and its connection is open: end that process first, or give \
         --take-over to end its use of the volume"
    )]
    Owned {
        /// The target.
        target: String,
    },
    /// Another process has opened the volume. This one must not use it any more.
    #[error("{target}: another process has opened the volume since: close this one")]
    Superseded {
        /// The target that says so.
        target: String,
    },
    /// Two targets do not belong together.
    #[error("{first} and {second} do not belong to one volume: {difference}")]
    Disagree {
        /// One target.
        first: String,
        /// Another target.
        second: String,
        /// The values that differ.
        difference: String,
    },
    /// A target that is none of the volume's any more.
    #[error(
        "{target}: another target of {role} has taken its place ({by}), and what it holds may be old: give that one, or use this \
         one again by xgvmi-blk ctl replace"
    )]
    Replaced {
        /// The target.
        target: String,
        /// Its role.
        role: Role,
        /// The target in its place.
        by: Id,
    },
    /// A target that cannot be replaced now.
    #[error("{role} cannot be replaced now: {reason}")]
    Needed {
        /// Its role.
        role: Role,
        /// What the others lack, and what to do.
        reason: String,
    },
    /// A target with a volume that has another size, block size or identifier.
    #[error("{target} belongs to another volume: it has {theirs}, the volume has {ours}")]
    OtherVolume {
        /// The target.
        target: String,
        /// Size of the target.
        theirs: Geometry,
        /// Size of the volume.
        ours: Geometry,
    },
    /// The volume may have been used without the targets that are there.
    #[error(
        "{roles} may hold newer data and is not there: give it, or --without-absent if it is lost, which gives up what it alone has"
    )]
    Ahead {
        /// The absent targets.
        roles: String,
    },
    /// Fewer usable targets than the volume needs.
    #[error("{usable} of {} targets are usable; a volume needs {}: {reasons}", .layout.targets(), .layout.needed())]
    TooFewTargets {
        /// The volume's layout.
        layout: Layout,
        /// Number of usable targets.
        usable: usize,
        /// Reason for each other target.
        reasons: String,
    },
    /// Too few parts of a block are left.
    #[error("block {block} is lost: {reason}")]
    Lost {
        /// The block.
        block: u64,
        /// Which halves are missing, and why.
        reason: String,
    },
    /// The bytes of a half block are not those that were written.
    #[error("block {block} of {target}: {fault}")]
    Corrupt {
        /// The target.
        target: String,
        /// The block.
        block: u64,
        /// The defect.
        fault: String,
    },
    /// The disk of a target cannot read a half block: as if its bytes were wrong.
    #[error("block {block} of {target}: its disk cannot read it: {error}")]
    Unreadable {
        /// The target.
        target: String,
        /// The block.
        block: u64,
        /// The error. It is in the text, so it is not named again as the source.
        error: io::Error,
    },
    /// A target has no half block of this generation.
    #[error("block {block} of {target} has no generation {generation:#x}")]
    Absent {
        /// The target.
        target: String,
        /// The block.
        block: u64,
        /// The generation.
        generation: u64,
    },
    /// A target has no space left.
    #[error("{target} is full: {}", space(*.wanted, *.free, *.capacity))]
    Full {
        /// The target.
        target: String,
        /// Bytes wanted.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all. 0: as much as its file system has.
        capacity: u64,
    },
    /// An index without room for a larger volume.
    #[error(
        "{target}: its index has room for {room} blocks, and {blocks} are wanted: copy the volume to a larger one"
    )]
    NoRoom {
        /// The target.
        target: String,
        /// Blocks wanted.
        blocks: u64,
        /// Blocks for which there is room.
        room: u64,
    },
    /// A role without a target.
    #[error("target {0} is absent")]
    Offline(Role),
    /// A target in another process has refused a call.
    #[error("{target}: {reason}")]
    Refused {
        /// The target.
        target: String,
        /// The reason, as the target says.
        reason: String,
    },
    /// A target in another process does not answer, or its connection has failed.
    #[error("{target}: {reason}")]
    Unreachable {
        /// The target.
        target: String,
        /// The reason.
        reason: String,
    },
    /// The DPU cannot move data from or to an initiator's memory.
    #[error("{length} bytes at {address:#x} of the initiator: {reason}")]
    Transfer {
        /// Bytes.
        length: u32,
        /// Address in the initiator's memory.
        address: u64,
        /// The reason.
        reason: String,
    },
    /// A service does not answer, or its connection has failed.
    #[error("service {service}: {reason}")]
    Disconnected {
        /// The service's address.
        service: String,
        /// The reason.
        reason: String,
    },
    /// A service has refused a request.
    #[error("service {service}: {reason}")]
    Service {
        /// The service's address.
        service: String,
        /// The reason.
        reason: String,
    },
    /// A service has no space for the data.
    #[error("service {service}: {reason}")]
    ServiceFull {
        /// The service's address.
        service: String,
        /// The reason, as the service says.
        reason: String,
    },
    /// A service does not let this initiator write.
    #[error("service {service}: {reason}")]
    Denied {
        /// The service's address.
        service: String,
        /// The reason, as the service says.
        reason: String,
    },
    /// The host's adapter cannot give access to memory.
    #[error("keys of the host's memory: {0}")]
    Keys(String),
    /// A write of a snapshot.
    #[error("a snapshot is read-only")]
    ReadOnly,
    /// An argument that cannot be right.
    #[error("{0}")]
    Argument(String),
    /// An error of the system.
    #[error("{target}: {error}")]
    Io {
        /// The target.
        target: String,
        /// The error. It is in the text, so it is not named again as the source.
        error: io::Error,
    },
}

fn space(wanted: u64, free: u64, capacity: u64) -> String {
    match capacity {
        0 => "its file system has no space left".to_owned(),
        _ => format!("{wanted} bytes wanted, {free} of {capacity} free"),
    }
}

impl BlkError {
    /// An error of the system at `target`.
    pub(crate) fn io(target: &str, error: io::Error) -> Self {
        Self::Io {
            target: target.to_owned(),
            error,
        }
    }

    /// True if the target has no space: it stays in use, and the block is absent there.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } | Self::ServiceFull { .. } => true,
            Self::Io { error, .. } => {
                matches!(
                    error.raw_os_error(),
                    Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
                )
            }
            _ => false,
        }
    }

    /// True if another process uses the target, so that this one must leave the whole volume alone.
    #[must_use]
    pub fn is_used_elsewhere(&self) -> bool {
        matches!(
            self,
            Self::InUse { .. } | Self::Owned { .. } | Self::Superseded { .. }
        )
    }

    /// True if the return of a target may help.
    #[must_use]
    pub(crate) fn wants_target(&self) -> bool {
        matches!(
            self,
            Self::TooFewTargets { .. } | Self::Lost { .. } | Self::Offline(_)
        )
    }

    /// True if the target does not answer, or its connection or device has failed, so that the same call may succeed later.
    #[must_use]
    pub(crate) fn is_outage(&self) -> bool {
        let has_failed = matches!(self, Self::Unreachable { .. } | Self::Io { .. });
        has_failed && !self.is_full()
    }

    /// True if the target answered and the half block is wrong, unreadable or absent, so that writing it again helps.
    #[must_use]
    pub fn is_repairable(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. } | Self::Unreadable { .. } | Self::Absent { .. }
        )
    }
}
