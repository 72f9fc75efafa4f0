//! `QUERY_HCA_CAP`: capabilities of a function.
//!
//! `op_mod` of the command is `type << 1 | current`; the capability page follows the header.

use crate::field::fields;

/// Bytes of one capability page.
pub const PAGE_BYTES: usize = 256;

/// Capability pages, the `type` of a query.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod page {
    pub const GENERAL: u16 = 0x00;
    pub const ODP: u16 = 0x02;
    pub const ATOMIC: u16 = 0x03;
    pub const ROCE: u16 = 0x04;
    pub const GENERAL_2: u16 = 0x20;
}

/// Fields of the general page.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod general {
    use super::fields;
    fields! {
        HCA_CAP_2 = 0x020, 1;
        VHCA_ID = 0x030, 16;
        LOG_DMA_MMO_MAX_SIZE = 0x06b, 5;
        LOG_MAX_SRQ_SZ = 0x080, 8;
        LOG_MAX_QP_SZ = 0x088, 8;
        LOG_MAX_QP = 0x09b, 5;
        LOG_MAX_SRQ = 0x0ab, 5;
        LOG_MAX_CQ_SZ = 0x0c8, 8;
        LOG_MAX_CQ = 0x0db, 5;
        LOG_MAX_EQ_SZ = 0x0e0, 8;
        LOG_MAX_MKEY = 0x0ea, 6;
        LOG_MAX_EQ = 0x0fc, 4;
        MAX_INDIRECTION = 0x100, 8;
        FIXED_BUFFER_SIZE = 0x108, 1;
        LOG_MAX_MRW_SZ = 0x109, 7;
        UMR_EXTENDED_TRANSLATION_OFFSET = 0x118, 1;
        NULL_MKEY = 0x119, 1;
        LOG_MAX_KLM_LIST_SIZE = 0x11a, 6;
        LOG_MAX_RA_REQ_DC = 0x12a, 6;
        LOG_MAX_RA_RES_DC = 0x13a, 6;
        LOG_MAX_RA_REQ_QP = 0x14a, 6;
        RTS2RTS_QP_UDP_SPORT = 0x151, 1;
        DMA_MMO_SQ = 0x153, 1;
        LOG_MAX_RA_RES_QP = 0x15a, 6;
        CACHE_LINE_128BYTE = 0x164, 1;
        GID_TABLE_SIZE = 0x170, 16;
        PKEY_TABLE_SIZE = 0x190, 16;
        PORT_TYPE = 0x1b6, 2;
        NUM_PORTS = 0x1b8, 8;
        LOG_MAX_MSG = 0x1c3, 5;
        CQE_VERSION = 0x1fc, 4;
        COMPACT_ADDRESS_VECTOR = 0x200, 1;
        UMR_MODIFY_ENTITY_SIZE_DISABLED = 0x207, 1;
        UMR_MODIFY_ATOMIC_DISABLED = 0x208, 1;
        UMR_INDIRECT_MKEY_DISABLED = 0x209, 1;
        UMR_FENCE = 0x20a, 2;
        SCTR_DATA_CQE = 0x215, 1;
        DCT = 0x21a, 1;
        ROCE = 0x21d, 1;
        ATOMIC = 0x21e, 1;
        CQ_RESIZE = 0x221, 1;
        CQ_MODERATION = 0x222, 1;
        PG = 0x227, 1;
        BLOCK_LB_MC = 0x228, 1;
        IMAICL = 0x231, 1;
        QKV = 0x236, 1;
        PKV = 0x237, 1;
        XRC = 0x23c, 1;
        UD = 0x23d, 1;
        UC = 0x23e, 1;
        RC = 0x23f, 1;
        UAR_4K = 0x240, 1;
        UAR_SZ = 0x24a, 6;
        LOG_PG_SZ = 0x258, 8;
        BF = 0x260, 1;
        LOG_BF_REG_SIZE = 0x26b, 5;
        LAG_DCT = 0x276, 2;
        MAX_WQE_SZ_SQ = 0x290, 16;
        MAX_WQE_SZ_RQ = 0x2b0, 16;
        MAX_WQE_SZ_SQ_DC = 0x2d0, 16;
        MAX_QP_MCG = 0x2e7, 25;
        LOG_MAX_MCG = 0x318, 8;
        LOG_MAX_PD = 0x32b, 5;
        LOG_MAX_XRCD = 0x33b, 5;
        BASIC_CYCLIC_RCV_WQE = 0x380, 1;
        LOG_MAX_RMP = 0x383, 5;
        MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY = 0x3a9, 1;
        LOG_MAX_WQ_SZ = 0x3db, 5;
        LOG_UAR_PAGE_SZ = 0x490, 16;
        DEVICE_FREQUENCY_KHZ = 0x4e0, 32;
        NUM_OF_UARS_PER_PAGE = 0x520, 32;
        CROSSING_VHCA_MKEY = 0x5b2, 1;
        DMA_MMO_QP = 0x748, 1;
    }
}

/// Fields of the page of RoCE.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod roce {
    use super::fields;
    fields! {
        L3_TYPE = 0x08c, 4;
        ROCE_VERSION = 0x098, 8;
        R_ROCE_DEST_UDP_PORT = 0x0b0, 16;
        R_ROCE_MAX_SRC_UDP_PORT = 0x0c0, 16;
        R_ROCE_MIN_SRC_UDP_PORT = 0x0d0, 16;
        ROCE_ADDRESS_TABLE_SIZE = 0x0f0, 16;
    }
    /// `L3_TYPE`: IPv4 and IPv6.
    pub const L3_IPV4: u64 = 1 << 1;
    pub const L3_IPV6: u64 = 1 << 2;
    /// `ROCE_VERSION`: v1 and v2.
    pub const VERSION_1: u64 = 1 << 0;
    pub const VERSION_2: u64 = 1 << 2;
}

/// Requirement of a request that follows a UMR, the values of [`general::UMR_FENCE`] (Linux `device.h`,
/// `MLX5_CAP_UMR_FENCE_*`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod umr_fence {
    pub const STRONG: u8 = 0;
    pub const SMALL: u8 = 1;
    pub const NONE: u8 = 2;
}

/// Fields of the second general page.
pub mod general_2 {
    use super::fields;
    fields! {
        /// Bit mask of the pairs of objects that may refer to each other across vHCAs, see
        /// [`LOCAL_MKEY_TO_REMOTE_MKEY`].
        CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED = 0x0e0, 32;
        /// Bit mask of the objects that another vHCA may use, see [`MKEY_OBJECT`].
        ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS = 0x100, 64;
    }
    /// A local mkey may refer to a remote mkey (UCX `ib_mlx5_ifc.h`, cross_vhca bits).
    pub const LOCAL_MKEY_TO_REMOTE_MKEY: u32 = 0x100;
    /// Other vHCAs may use an mkey.
    pub const MKEY_OBJECT: u64 = 0x4;
}

/// Fields of the atomic page.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod atomic {
    use super::fields;
    fields! {
        REQ_8B_ENDIANNESS_MODE = 0x040, 2;
        SUPPORTED_REQ_8B_ENDIANNESS_MODE_1 = 0x046, 1;
        OPERATIONS = 0x090, 16;
        SIZE_QP = 0x0b0, 16;
        SIZE_DC = 0x0d0, 16;
        FETCH_ADD_PCI = 0x280, 16;
        SWAP_PCI = 0x290, 16;
        COMPARE_SWAP_PCI = 0x2a0, 16;
    }
    /// `OPERATIONS`: 8-byte compare and swap.
    pub const OP_CMP_SWAP: u16 = 1 << 0;
    /// `OPERATIONS`: 8-byte fetch and add.
    pub const OP_FETCH_ADD: u16 = 1 << 1;
    /// `OPERATIONS`: masked compare and swap.
    pub const OP_MASKED_CMP_SWAP: u16 = 1 << 2;
    /// `OPERATIONS`: masked fetch and add.
    pub const OP_MASKED_FETCH_ADD: u16 = 1 << 3;
}

/// Fields of the page of on-demand paging: a bit mask for each service.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod odp {
    use super::fields;
    fields! {
        RC_ODP_CAPS = 0x080, 32;
        UD_ODP_CAPS = 0x0c0, 32;
        XRC_ODP_CAPS = 0x0e0, 32;
        DC_ODP_CAPS = 0x100, 32;
    }
    /// Operations with on-demand paging (Linux `mlx5_ifc.h`, `mlx5_ifc_odp_per_transport_service_cap_bits`).
    pub const SEND: u32 = 1 << 31;
    pub const RECEIVE: u32 = 1 << 30;
    pub const WRITE: u32 = 1 << 29;
    pub const READ: u32 = 1 << 28;
    pub const ATOMIC: u32 = 1 << 27;
    pub const SRQ_RECEIVE: u32 = 1 << 26;
}
