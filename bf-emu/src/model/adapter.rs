//! Properties that every emulated adapter reports: identity, capabilities, and sizes of its port
//! tables.

/// PCI vendor of every function.
pub const PCI_VENDOR: u16 = 0x15b3;
/// Reported firmware version, of a BlueField-3 (family 32).
pub const FIRMWARE: [u16; 3] = [32, 40, 1000];
/// Reported board id (PSID).
pub const BOARD_ID: &str = "MT_0000000884";
/// Reported hardware revision.
pub const HW_REV: u32 = 0;
/// Reported LID of the subnet manager. The fabric has none.
pub const SM_LID: u16 = 1;
/// The default partition, full member.
pub const PKEY_DEFAULT: u16 = 0xffff;
/// Number of the only event queue.
pub const EQN: u32 = 1;
