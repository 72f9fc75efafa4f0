//! `QUERY_HCA_VPORT_CONTEXT`: the InfiniBand port of a function.

use crate::field::fields;

/// Bytes of the output.
pub const QUERY_OUT_BYTES: usize = 0x210;

fields! {
    /// In the command: the port number, from 1, for a function with two ports.
    PORT_NUM = 0x04c, 4;
    /// Each message needs a global route.
    GRH_REQUIRED = 0x183, 1;
    /// Physical state: 5 is link up.
    PORT_PHYSICAL_STATE = 0x190, 4;
    /// State: 4 is active.
    PORT_STATE = 0x198, 4;
    /// State of the virtual port.
    VPORT_STATE = 0x19c, 4;
    /// System image GUID, common to the functions of one adapter.
    SYSTEM_IMAGE_GUID = 0x1c0, 64;
    /// GUID of the port.
    PORT_GUID = 0x200, 64;
    /// GUID of the function.
    NODE_GUID = 0x240, 64;
    /// Capability mask of the port.
    CAP_MASK1 = 0x280, 32;
    /// Local identifier.
    LID = 0x380, 16;
    /// LID of the subnet manager.
    SM_LID = 0x3a0, 16;
}
