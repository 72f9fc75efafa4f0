//! Queue pairs: the context and its offset in the commands.

use crate::field::fields;

/// Offset of the context in `CREATE_QP`, the transitions and the output of `QUERY_QP`, in bytes.
pub const CONTEXT_AT: u32 = 0x18;
/// Bytes of the input of `CREATE_QP` without a page list.
pub const CREATE_IN_BYTES: usize = 0x110;
/// Bytes of the output of `QUERY_QP`.
pub const QUERY_OUT_BYTES: usize = 0x110;

/// Service types (`ST`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod service {
    pub const RC: u8 = 0x0;
    pub const UC: u8 = 0x1;
    pub const UD: u8 = 0x2;
    pub const XRC: u8 = 0x3;
    pub const DCI: u8 = 0x5;
    pub const QP0: u8 = 0x7;
    pub const QP1: u8 = 0x8;
    pub const RAW_ETHERNET: u8 = 0x9;
    pub const REG_UMR: u8 = 0xc;
}

/// States (`STATE`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod state {
    pub const RST: u8 = 0;
    pub const INIT: u8 = 1;
    pub const RTR: u8 = 2;
    pub const RTS: u8 = 3;
    pub const SQER: u8 = 4;
    pub const SQD: u8 = 5;
    pub const ERR: u8 = 6;
}

/// Kinds of receive queue (`RQ_TYPE`).
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod rq_type {
    pub const REGULAR: u8 = 0;
    pub const SRQ_RMP_XRC: u8 = 1;
    pub const ZERO_SIZE: u8 = 3;
}

/// Fields of `CREATE_QP` after the context.
pub mod create {
    use super::fields;
    fields! {
        /// Offset of the rings in their umem.
        WQ_UMEM_OFFSET = 0x800, 64;
        /// umem of the rings.
        WQ_UMEM_ID = 0x840, 32;
        /// `WQ_UMEM_ID` is valid.
        WQ_UMEM_VALID = 0x860, 1;
    }
}

/// The queue pair context, offsets from its own start.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod context {
    use super::fields;
    fields! {
        STATE = 0x000, 4;
        ST = 0x008, 8;
        PM_STATE = 0x013, 2;
        PD = 0x028, 24;
        MTU = 0x040, 3;
        LOG_MSG_MAX = 0x043, 5;
        LOG_RQ_SIZE = 0x049, 4;
        LOG_RQ_STRIDE = 0x04d, 3;
        NO_SQ = 0x050, 1;
        LOG_SQ_SIZE = 0x051, 4;
        UAR_PAGE = 0x068, 24;
        USER_INDEX = 0x088, 24;
        REMOTE_QPN = 0x0a8, 24;
        PKEY_INDEX = 0x0d0, 16;
        GRH = 0x0e8, 1;
        RLID = 0x0f0, 16;
        ACK_TIMEOUT = 0x100, 5;
        SRC_ADDR_INDEX = 0x108, 8;
        HOP_LIMIT = 0x118, 8;
        TCLASS = 0x124, 8;
        FLOW_LABEL = 0x12c, 20;
        RGID_HIGH = 0x140, 64;
        RGID_LOW = 0x180, 64;
        UDP_SPORT = 0x1d0, 16;
        SL = 0x1e4, 4;
        PORT = 0x1e8, 8;
        RMAC_HIGH = 0x1f0, 16;
        RMAC_LOW = 0x200, 32;
        LOG_SRA_MAX = 0x388, 3;
        RETRY_COUNT = 0x38d, 3;
        RNR_RETRY = 0x390, 3;
        NEXT_SEND_PSN = 0x3c8, 24;
        CQN_SND = 0x3e8, 24;
        LOG_RRA_MAX = 0x488, 3;
        ATOMIC_MODE = 0x48c, 4;
        REMOTE_READ = 0x490, 1;
        REMOTE_WRITE = 0x491, 1;
        REMOTE_ATOMIC = 0x492, 1;
        MIN_RNR_NAK = 0x4a3, 5;
        NEXT_RCV_PSN = 0x4a8, 24;
        XRCD = 0x4c8, 24;
        CQN_RCV = 0x4e8, 24;
        DBR_ADDR = 0x500, 64;
        Q_KEY = 0x540, 32;
        RQ_TYPE = 0x565, 3;
        SRQN = 0x568, 24;
        HW_SQ_WQEBB_COUNTER = 0x5a0, 16;
        SW_SQ_WQEBB_COUNTER = 0x5b0, 16;
        HW_RQ_COUNTER = 0x5c0, 32;
        SW_RQ_COUNTER = 0x5e0, 32;
        CS_REQ = 0x630, 8;
        CS_RES = 0x638, 8;
        DC_ACCESS_KEY = 0x640, 64;
        DBR_UMEM_VALID = 0x683, 1;
        DBR_UMEM_ID = 0x720, 32;
    }
}

/// `CREATE_DCT`: the target side of dynamic connections.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod dct {
    use super::fields;
    fields! {
        STATE = 0x084, 4;
        USER_INDEX = 0x0a8, 24;
        CQN = 0x0c8, 24;
        ATOMIC_MODE = 0x0e8, 4;
        REMOTE_READ = 0x0ec, 1;
        REMOTE_WRITE = 0x0ed, 1;
        REMOTE_ATOMIC = 0x0ee, 1;
        CS_RES = 0x108, 8;
        MIN_RNR_NAK = 0x113, 5;
        SRQN = 0x128, 24;
        PD = 0x148, 24;
        DC_ACCESS_KEY = 0x180, 64;
        MTU = 0x1c5, 3;
        PORT = 0x1c8, 8;
        PKEY_INDEX = 0x1d0, 16;
        MY_ADDR_INDEX = 0x1e8, 8;
        HOP_LIMIT = 0x1f8, 8;
    }
}
