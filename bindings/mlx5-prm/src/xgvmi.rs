//! Cross-vHCA keys: `ALLOW_OTHER_VHCA_ACCESS` and alias objects.

use crate::field::fields;

/// Object type of an mkey, in both commands (UCX `ib_mlx5_ifc.h`).
pub const OBJECT_TYPE_MKEY: u16 = 0xff01;
/// Bytes of an access key.
pub const ACCESS_KEY_BYTES: usize = 32;

/// `ALLOW_OTHER_VHCA_ACCESS`.
pub mod allow {
    use super::fields;
    /// Bytes of the input.
    pub const IN_BYTES: usize = 64;
    /// Offset of the access key in the input.
    pub const ACCESS_KEY_AT: usize = 0x20;
    fields! {
        /// Type of the object, [`super::OBJECT_TYPE_MKEY`].
        OBJECT_TYPE = 0x090, 16;
        /// Object id: for an mkey the 24-bit index.
        OBJECT_ID = 0x0a0, 32;
    }
}

/// The alias context, which follows the header of `CREATE_GENERAL_OBJECT` and of its output.
pub mod alias {
    use super::fields;
    /// Bytes of the input with header and context.
    pub const IN_BYTES: usize = 80;
    /// Offset of the access key in the input.
    pub const ACCESS_KEY_AT: usize = 0x20;
    fields! {
        /// The vHCA that owns the object.
        VHCA_ID = 0x080, 16;
        /// Output: one of [`status`].
        STATUS = 0x09d, 3;
        /// Id of the object in that vHCA: for an mkey the 24-bit index.
        OBJECT_ID = 0x0a0, 32;
        /// For an mkey: the protection domain of the alias.
        METADATA_1 = 0x200, 32;
    }
    /// Status of an alias.
    pub mod status {
        /// The alias is valid.
        pub const READY: u8 = 0;
        /// The object does not exist, is not allowed, or the access key is wrong.
        pub const ERROR: u8 = 1;
    }
}
