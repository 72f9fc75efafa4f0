//! Keys across vHCAs: `ALLOW_OTHER_VHCA_ACCESS` and alias objects.

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
    /// Where the access key lies in the input.
    pub const ACCESS_KEY_AT: usize = 0x20;
    fields! {
        /// Type of the object, [`super::OBJECT_TYPE_MKEY`].
        OBJECT_TYPE = 0x090, 16;
        /// Its id: for an mkey the 24-bit index.
        OBJECT_ID = 0x0a0, 32;
    }
}

/// The alias context, behind the header of `CREATE_GENERAL_OBJECT` and of its answer.
pub mod alias {
    use super::fields;
    /// Bytes of the input with header and context.
    pub const IN_BYTES: usize = 80;
    /// Where the access key lies in the input.
    pub const ACCESS_KEY_AT: usize = 0x20;
    fields! {
        /// The vHCA that owns the object.
        VHCA_ID = 0x080, 16;
        /// Out: one of [`status`].
        STATUS = 0x09d, 3;
        /// Id of the object there: for an mkey the 24-bit index.
        OBJECT_ID = 0x0a0, 32;
        /// For an mkey: the protection domain of the alias.
        METADATA_1 = 0x200, 32;
    }
    /// Status of an alias.
    pub mod status {
        /// The alias stands for its object.
        pub const READY: u8 = 0;
        /// The object is not there, not opened, or the access key is wrong.
        pub const ERROR: u8 = 1;
    }
}
