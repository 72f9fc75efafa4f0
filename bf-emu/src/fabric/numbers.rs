//! Numbers of objects in work requests and commands, and the table slots that they name.

/// First mkey index. The first numbers are reserved, as by an adapter's firmware. All functions use
/// the same numbers: a number is not unique in the fabric.
pub const MKEY_BASE: u32 = 0x600;
/// First queue pair number.
pub const QPN_BASE: u32 = 0x48;
/// First number of the other objects.
pub const NUMBER_BASE: u32 = 0x10;

/// The slot of a key's mkey; None below the first number.
pub(crate) fn slot_of(key: u32) -> Option<u32> {
    (key >> 8).checked_sub(MKEY_BASE)
}

/// The key for a slot and a variant.
pub(crate) fn key_of(slot: u32, variant: u8) -> u32 {
    (slot + MKEY_BASE) << 8 | u32::from(variant)
}

/// Slot of a queue pair number.
pub(crate) fn qp_slot(qpn: u32) -> u32 {
    qpn.wrapping_sub(QPN_BASE)
}

/// Number of the object in `slot` of any table except those of mkeys and queue pairs.
pub(crate) fn number_of(slot: u32) -> u32 {
    slot + NUMBER_BASE
}

/// Slot of such a number.
pub(crate) fn slot_of_number(number: u32) -> Option<u32> {
    number.checked_sub(NUMBER_BASE)
}
