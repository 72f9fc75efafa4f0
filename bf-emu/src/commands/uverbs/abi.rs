//! Numbers of the uverbs interface: objects, methods and attributes (`ib_user_ioctl_cmds.h`,
//! `mlx5_user_ioctl_cmds.h`), and commands (`ib_user_verbs.h`).

/// First number of a driver's range (`UVERBS_ID_NS_SHIFT`).
pub(crate) const DRIVER: u16 = 1 << 12;

/// Input data of the driver.
pub(crate) const UHW_IN: u16 = DRIVER;
/// Output data of the driver.
pub(crate) const UHW_OUT: u16 = DRIVER + 1;

/// Objects (`enum uverbs_default_objects`, `enum mlx5_ib_objects`).
pub(crate) mod object {
    use super::DRIVER;
    pub(crate) const DEVICE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const CQ: u16 = 3;
    pub(crate) const QP: u16 = 4;
    pub(crate) const SRQ: u16 = 5;
    pub(crate) const AH: u16 = 6;
    pub(crate) const MR: u16 = 7;
    pub(crate) const MW: u16 = 8;
    pub(crate) const XRCD: u16 = 10;
    pub(crate) const DM: u16 = 14;
    pub(crate) const ASYNC_EVENT: u16 = 16;
    pub(crate) const DEVX: u16 = DRIVER;
    pub(crate) const DEVX_OBJ: u16 = DRIVER + 1;
    pub(crate) const DEVX_UMEM: u16 = DRIVER + 2;
    pub(crate) const DEVX_ASYNC_CMD_FD: u16 = DRIVER + 4;
    pub(crate) const DEVX_ASYNC_EVENT_FD: u16 = DRIVER + 5;
    pub(crate) const UAR: u16 = DRIVER + 8;
}

/// Methods of the device.
pub(crate) mod device {
    pub(crate) const INVOKE_WRITE: u16 = 0;
    pub(crate) const QUERY_PORT: u16 = 2;
    pub(crate) const GET_CONTEXT: u16 = 3;
    pub(crate) const QUERY_CONTEXT: u16 = 4;
    pub(crate) const QUERY_GID_TABLE: u16 = 5;
    pub(crate) const QUERY_GID_ENTRY: u16 = 6;
}

/// Commands of the old interface, carried by `INVOKE_WRITE`.
pub(crate) mod write {
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const REREG_MR: u32 = 11;
    pub(crate) const ALLOC_MW: u32 = 14;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const RESIZE_CQ: u32 = 19;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const ATTACH_MCAST: u32 = 30;
    pub(crate) const DETACH_MCAST: u32 = 31;
    pub(crate) const MODIFY_SRQ: u32 = 33;
    pub(crate) const QUERY_SRQ: u32 = 34;
    pub(crate) const OPEN_XRCD: u32 = 37;
    /// Marks a command of the extended form.
    pub(crate) const EXTENDED: u32 = 0x8000_0000;
    pub(crate) const EX_QUERY_DEVICE: u32 = EXTENDED | QUERY_DEVICE;
    pub(crate) const EX_MODIFY_QP: u32 = EXTENDED | MODIFY_QP;
    pub(crate) const EX_MODIFY_CQ: u32 = EXTENDED | 57;
}

/// Attributes of `INVOKE_WRITE`.
pub(crate) mod invoke {
    pub(crate) const CORE_IN: u16 = 0;
    pub(crate) const CORE_OUT: u16 = 1;
    pub(crate) const WRITE_CMD: u16 = 2;
}

/// Attributes of a completion queue's creation.
pub(crate) mod create_cq {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const CQE: u16 = 1;
    pub(crate) const USER_HANDLE: u16 = 2;
    pub(crate) const COMP_CHANNEL: u16 = 3;
    pub(crate) const COMP_VECTOR: u16 = 4;
    pub(crate) const FLAGS: u16 = 5;
    pub(crate) const RESP_CQE: u16 = 6;
    pub(crate) const EVENT_FD: u16 = 7;
    /// Attribute of the driver.
    pub(crate) const UAR_INDEX: u16 = super::DRIVER + 2;
}

/// Attributes of a queue pair's creation.
pub(crate) mod create_qp {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const XRCD_HANDLE: u16 = 1;
    pub(crate) const PD_HANDLE: u16 = 2;
    pub(crate) const SRQ_HANDLE: u16 = 3;
    pub(crate) const SEND_CQ_HANDLE: u16 = 4;
    pub(crate) const RECV_CQ_HANDLE: u16 = 5;
    pub(crate) const IND_TABLE_HANDLE: u16 = 6;
    pub(crate) const USER_HANDLE: u16 = 7;
    pub(crate) const CAP: u16 = 8;
    pub(crate) const TYPE: u16 = 9;
    pub(crate) const FLAGS: u16 = 10;
    pub(crate) const SOURCE_QPN: u16 = 11;
    pub(crate) const EVENT_FD: u16 = 12;
    pub(crate) const RESP_CAP: u16 = 13;
    pub(crate) const RESP_QP_NUM: u16 = 14;
}

/// Attributes of a shared receive queue's creation.
pub(crate) mod create_srq {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const PD_HANDLE: u16 = 1;
    pub(crate) const XRCD_HANDLE: u16 = 2;
    pub(crate) const CQ_HANDLE: u16 = 3;
    pub(crate) const USER_HANDLE: u16 = 4;
    pub(crate) const MAX_WR: u16 = 5;
    pub(crate) const MAX_SGE: u16 = 6;
    pub(crate) const LIMIT: u16 = 7;
    pub(crate) const NUM_TAGS: u16 = 8;
    pub(crate) const TYPE: u16 = 9;
    pub(crate) const EVENT_FD: u16 = 10;
    pub(crate) const RESP_MAX_WR: u16 = 11;
    pub(crate) const RESP_MAX_SGE: u16 = 12;
    pub(crate) const RESP_SRQ_NUM: u16 = 13;
}

/// Attributes of a protection domain's query.
pub(crate) mod query_pd {
    use super::DRIVER;
    pub(crate) const HANDLE: u16 = DRIVER;
    pub(crate) const RESP_PDN: u16 = DRIVER + 1;
}

/// Attributes of advice on regions.
pub(crate) mod advise_mr {
    pub(crate) const PD_HANDLE: u16 = 0;
    pub(crate) const ADVICE: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const SGE_LIST: u16 = 3;
}

/// Attributes of a region's query.
pub(crate) mod query_mr {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const RESP_LKEY: u16 = 1;
    pub(crate) const RESP_RKEY: u16 = 2;
    pub(crate) const RESP_LENGTH: u16 = 3;
    pub(crate) const RESP_IOVA: u16 = 4;
}

/// Attributes of device memory's allocation.
pub(crate) mod alloc_dm {
    use super::DRIVER;
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const LENGTH: u16 = 1;
    pub(crate) const ALIGNMENT: u16 = 2;
    pub(crate) const RESP_START_OFFSET: u16 = DRIVER;
    pub(crate) const RESP_PAGE_INDEX: u16 = DRIVER + 1;
    pub(crate) const TYPE: u16 = DRIVER + 2;
}

/// Attributes of device memory's query.
pub(crate) mod query_dm {
    use super::DRIVER;
    pub(crate) const HANDLE: u16 = DRIVER;
    pub(crate) const RESP_START_OFFSET: u16 = DRIVER + 1;
    pub(crate) const RESP_PAGE_INDEX: u16 = DRIVER + 2;
    pub(crate) const RESP_LENGTH: u16 = DRIVER + 3;
}

/// Attributes of the registration of device memory.
pub(crate) mod reg_dm_mr {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const OFFSET: u16 = 1;
    pub(crate) const LENGTH: u16 = 2;
    pub(crate) const PD_HANDLE: u16 = 3;
    pub(crate) const ACCESS_FLAGS: u16 = 4;
    pub(crate) const DM_HANDLE: u16 = 5;
    pub(crate) const RESP_LKEY: u16 = 6;
    pub(crate) const RESP_RKEY: u16 = 7;
}

/// Attributes of `UAR ALLOC`.
pub(crate) mod uar {
    use super::DRIVER;
    pub(crate) const HANDLE: u16 = DRIVER;
    pub(crate) const TYPE: u16 = DRIVER + 1;
    pub(crate) const MMAP_OFFSET: u16 = DRIVER + 2;
    pub(crate) const MMAP_LENGTH: u16 = DRIVER + 3;
    pub(crate) const PAGE_ID: u16 = DRIVER + 4;
}

/// Attributes of umem registration.
pub(crate) mod umem {
    use super::DRIVER;
    pub(crate) const HANDLE: u16 = DRIVER;
    pub(crate) const ADDR: u16 = DRIVER + 1;
    pub(crate) const LEN: u16 = DRIVER + 2;
    pub(crate) const ACCESS: u16 = DRIVER + 3;
    pub(crate) const OUT_ID: u16 = DRIVER + 4;
    pub(crate) const PGSZ_BITMAP: u16 = DRIVER + 5;
    pub(crate) const DMABUF_FD: u16 = DRIVER + 6;
}

/// Methods and attributes of DEVX.
pub(crate) mod devx {
    use super::DRIVER;
    pub(crate) const OTHER: u16 = DRIVER;
    pub(crate) const QUERY_UAR: u16 = DRIVER + 1;
    pub(crate) const QUERY_EQN: u16 = DRIVER + 2;
    pub(crate) const SUBSCRIBE_EVENT: u16 = DRIVER + 3;

    pub(crate) const OBJ_CREATE: u16 = DRIVER;
    pub(crate) const OBJ_DESTROY: u16 = DRIVER + 1;
    pub(crate) const OBJ_MODIFY: u16 = DRIVER + 2;
    pub(crate) const OBJ_QUERY: u16 = DRIVER + 3;
    pub(crate) const OBJ_ASYNC_QUERY: u16 = DRIVER + 4;

    pub(crate) const OTHER_CMD_IN: u16 = DRIVER;
    pub(crate) const OTHER_CMD_OUT: u16 = DRIVER + 1;
    pub(crate) const OBJ_HANDLE: u16 = DRIVER;
    pub(crate) const OBJ_CMD_IN: u16 = DRIVER + 1;
    pub(crate) const OBJ_CMD_OUT: u16 = DRIVER + 2;
    pub(crate) const ASYNC_FD: u16 = DRIVER + 2;
    pub(crate) const ASYNC_WR_ID: u16 = DRIVER + 3;
    pub(crate) const ASYNC_OUT_LEN: u16 = DRIVER + 4;
    pub(crate) const UAR_USER_IDX: u16 = DRIVER;
    pub(crate) const UAR_DEV_IDX: u16 = DRIVER + 1;
    pub(crate) const EQN_VECTOR: u16 = DRIVER;
    pub(crate) const EQN_DEV: u16 = DRIVER + 1;
    pub(crate) const EVENT_FD_HANDLE: u16 = DRIVER;
    pub(crate) const EVENT_OBJ_HANDLE: u16 = DRIVER + 1;
    pub(crate) const EVENT_TYPE_LIST: u16 = DRIVER + 2;
    pub(crate) const EVENT_FD_NUM: u16 = DRIVER + 3;
    pub(crate) const EVENT_COOKIE: u16 = DRIVER + 4;
    pub(crate) const FD_ALLOC_HANDLE: u16 = DRIVER;
    pub(crate) const FD_ALLOC_FLAGS: u16 = DRIVER + 1;
}
