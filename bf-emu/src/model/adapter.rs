//! What every emulated adapter reports of itself: identity, capabilities, and sizes of its port tables.

/// PCI vendor of every function.
pub const PCI_VENDOR: u16 = 0x15b3;
/// Firmware version reported: a BlueField-3 one (family 32).
pub const FIRMWARE: [u16; 3] = [32, 40, 1000];
/// Board id (PSID) reported.
pub const BOARD_ID: &str = "MT_0000000884";
/// Hardware revision reported.
pub const HW_REV: u32 = 0;
/// Capability mask of a port: extended speeds, connection manager, client reregistration (bits 14,
/// 16 and 25 of `PortInfo:CapabilityMask`, InfiniBand Architecture 1.3, table 155).
pub const PORT_CAPABILITIES: u32 = 0x0201_4000;
/// LID of the subnet manager that a fabric without one reports.
pub const SM_LID: u16 = 1;
/// Entries in a port's GID table; an InfiniBand port has 8.
pub const GID_TABLE_LEN: u16 = 8;
/// Entries in a port's PKEY table.
pub const PKEY_TABLE_LEN: u16 = 128;
/// The default partition, full member.
pub const PKEY_DEFAULT: u16 = 0xffff;
/// Subnet prefix of GID 0: the link-local one, as before a subnet manager sets another.
pub const GID_PREFIX: u64 = 0xfe80_0000_0000_0000;
/// Number of the one event queue.
pub const EQN: u32 = 1;
