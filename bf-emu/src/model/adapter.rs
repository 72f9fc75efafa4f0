//! Properties that every emulated adapter reports: identity, capabilities, and sizes of its port tables.

/// PCI vendor of every function.
pub const PCI_VENDOR: u16 = 0x15b3;
/// Firmware version reported: a BlueField-3 one (family 32).
pub const FIRMWARE: [u16; 3] = [32, 40, 1000];
/// Board id (PSID) reported.
pub const BOARD_ID: &str = "MT_0000000884";
/// Hardware revision reported.
pub const HW_REV: u32 = 0;
/// LID of the subnet manager that a fabric without one reports.
pub const SM_LID: u16 = 1;
/// The default partition, full member.
pub const PKEY_DEFAULT: u16 = 0xffff;
/// Number of the one event queue.
pub const EQN: u32 = 1;
