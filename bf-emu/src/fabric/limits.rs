//! Maximum numbers of objects.

/// Largest number of processes that use the device at once.
pub const PROCESSES_MAX: usize = 1024;
/// mkeys of one function, including aliases: 65,536 aliases and as many other keys.
pub const MKEYS_MAX: usize = 128 * 1024;
/// Queue pairs of one function.
pub const QPS_MAX: usize = 16 * 1024;
/// Completion queues of one function.
pub const CQS_MAX: usize = 16 * 1024;
/// Shared receive queues of one function.
pub const SRQS_MAX: usize = 4 * 1024;
/// umems of one function.
pub const UMEMS_MAX: usize = 64 * 1024;
/// Protection domains of one function.
pub const PDS_MAX: usize = 4 * 1024;
/// Channels of one function.
pub const CHANNELS_MAX: usize = 4 * 1024;
/// Multicast groups of one function with attached queue pairs.
pub const MCAST_GROUPS_MAX: usize = 1024;
/// Queue pairs attached to one multicast group, as on ConnectX-6 and BlueField.
pub const MCAST_GROUP_QPS_MAX: usize = 240;
/// Queue pairs attached to the multicast groups of one function.
pub const MCAST_ATTACHMENTS_MAX: usize = MCAST_GROUPS_MAX * MCAST_GROUP_QPS_MAX;
/// Open files of the connection manager, in all processes.
pub const CM_FILES_MAX: usize = 4 * 1024;
/// Identifiers of the connection manager, in all processes.
pub const CM_IDS_MAX: usize = 16 * 1024;
/// Memberships in multicast groups by the connection manager, in all processes. There are more
/// multicast LIDs.
pub const CM_MEMBERSHIPS_MAX: usize = 4 * 1024;
/// Unread events of the connection manager: an identifier has at most one of each kind, and so has
/// a membership.
pub const CM_EVENTS_MAX: usize = 4 * CM_IDS_MAX + 2 * CM_MEMBERSHIPS_MAX;
