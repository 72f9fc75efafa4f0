//! The table of methods: the attributes of each one, and the function that executes it
//! (`uverbs_std_types_*.c`, `mlx5/devx.c`, `mlx5/main.c`, `mlx5/std_types.c`). The device does not
//! know a method outside of this table.

use super::abi::{
    self, advise_mr, alloc_dm, create_cq, create_qp, create_srq, device, devx, invoke,
    object as class, query_dm, query_mr, query_pd, reg_dm_mr, uar, umem,
};
use super::spec::{
    Known, Method, Run, answer, bytes, capacity, constant, flags, object, structure, value,
};
use super::{channel, context, cq, devx as raw, dm, memory, odp, qp, srq, write, xrcd};

/// Number of a core object's first method.
const CREATE: u16 = 0;
const DESTROY: u16 = 1;
/// Number of an object's only method.
const ONLY: u16 = 0;
const REG_DM_MR: u16 = 0;
const ADVISE_MR: u16 = 2;
const QUERY_MR: u16 = 3;
const DRIVER_CREATE: u16 = abi::DRIVER;
const DRIVER_DESTROY: u16 = abi::DRIVER + 1;
const DRIVER_QUERY_DM: u16 = abi::DRIVER + 1;

/// Smallest output buffer of a query: `struct mlx5_ib_alloc_ucontext_resp` up to the last required
/// field.
const UCONTEXT_BYTES: u16 = 72;
/// Bytes of the header of a command, and of its answer.
const MAILBOX_BYTES: u16 = 16;

/// Attributes of a destruction: the handle of the object.
const DESTROYED: [Known; 1] = [object(0)];

const fn method(object: u16, method: u16, attrs: &'static [Known], run: Run) -> Method {
    Method {
        object,
        method,
        attrs,
        driver_data: false,
        run,
    }
}

const fn with_driver_data(object: u16, number: u16, attrs: &'static [Known], run: Run) -> Method {
    Method {
        driver_data: true,
        ..method(object, number, attrs, run)
    }
}

impl Method {
    /// True if it releases an object.
    pub(super) fn releases(&self) -> bool {
        match self.object {
            class::PD | class::XRCD | class::AH | class::MW => self.method == ONLY,
            class::DM | class::MR | class::CQ | class::QP | class::SRQ => self.method == DESTROY,
            class::UAR | class::DEVX_UMEM => self.method == DRIVER_DESTROY,
            class::DEVX_OBJ => self.method == devx::OBJ_DESTROY,
            _ => false,
        }
    }
}

/// Finds a method.
pub(super) fn find(object: u16, method: u16) -> Option<&'static Method> {
    METHODS
        .iter()
        .find(|known| known.object == object && known.method == method)
}

static METHODS: &[Method] = &[
    with_driver_data(
        class::DEVICE,
        device::INVOKE_WRITE,
        &[
            constant(invoke::WRITE_CMD),
            bytes(invoke::CORE_IN, 4).optional(),
            capacity(invoke::CORE_OUT, 0).optional(),
        ],
        write::invoke,
    ),
    method(
        class::DEVICE,
        device::QUERY_PORT,
        &[
            constant(context::attr::PORT_NUM),
            capacity(context::attr::PORT_RESP, context::PORT_BYTES),
        ],
        context::query_port,
    ),
    with_driver_data(
        class::DEVICE,
        device::GET_CONTEXT,
        &[
            answer(context::attr::NUM_COMP_VECTORS, 4).optional(),
            answer(context::attr::CORE_SUPPORT, 8).optional(),
        ],
        context::get_context,
    ),
    method(
        class::DEVICE,
        device::QUERY_CONTEXT,
        &[
            answer(context::attr::NUM_COMP_VECTORS, 4).optional(),
            answer(context::attr::CORE_SUPPORT, 8).optional(),
            capacity(context::attr::QUERY_CONTEXT_UCTX, UCONTEXT_BYTES),
        ],
        context::query_context,
    ),
    method(
        class::DEVICE,
        device::QUERY_GID_TABLE,
        &[
            constant(context::attr::GID_TABLE_ENTRY_SIZE),
            flags(context::attr::GID_TABLE_FLAGS).optional(),
            capacity(context::attr::GID_TABLE_RESP_ENTRIES, 0),
            answer(context::attr::GID_TABLE_RESP_COUNT, 8),
        ],
        context::query_gid_table,
    ),
    method(
        class::DEVICE,
        device::QUERY_GID_ENTRY,
        &[
            constant(context::attr::GID_PORT),
            constant(context::attr::GID_INDEX),
            flags(context::attr::GID_FLAGS),
            capacity(context::attr::GID_RESP, context::GID_ENTRY_BYTES),
        ],
        context::query_gid_entry,
    ),
    method(
        class::ASYNC_EVENT,
        CREATE,
        &[object(channel::ASYNC_HANDLE)],
        channel::create_async,
    ),
    method(class::PD, ONLY, &DESTROYED, memory::dealloc_pd),
    method(
        class::PD,
        abi::DRIVER,
        &[object(query_pd::HANDLE), answer(query_pd::RESP_PDN, 4)],
        memory::query_pd,
    ),
    method(class::XRCD, ONLY, &DESTROYED, xrcd::close),
    method(class::AH, ONLY, &DESTROYED, context::destroy_ah),
    method(
        class::DM,
        CREATE,
        &[
            object(alloc_dm::HANDLE),
            value(alloc_dm::LENGTH, 8),
            value(alloc_dm::ALIGNMENT, 4),
            answer(alloc_dm::RESP_START_OFFSET, 8).optional(),
            answer(alloc_dm::RESP_PAGE_INDEX, 2).optional(),
            constant(alloc_dm::TYPE).optional(),
        ],
        dm::alloc,
    ),
    method(class::DM, DESTROY, &DESTROYED, dm::free),
    method(
        class::DM,
        DRIVER_QUERY_DM,
        &[
            object(query_dm::HANDLE),
            answer(query_dm::RESP_START_OFFSET, 8),
            answer(query_dm::RESP_PAGE_INDEX, 2),
            answer(query_dm::RESP_LENGTH, 8),
        ],
        dm::query,
    ),
    method(
        class::MR,
        REG_DM_MR,
        &[
            object(reg_dm_mr::HANDLE),
            value(reg_dm_mr::OFFSET, 8),
            value(reg_dm_mr::LENGTH, 8),
            object(reg_dm_mr::PD_HANDLE),
            flags(reg_dm_mr::ACCESS_FLAGS),
            object(reg_dm_mr::DM_HANDLE),
            answer(reg_dm_mr::RESP_LKEY, 4),
            answer(reg_dm_mr::RESP_RKEY, 4),
        ],
        dm::reg_mr,
    ),
    method(class::MR, DESTROY, &DESTROYED, memory::dereg_mr),
    method(
        class::MR,
        ADVISE_MR,
        &[
            object(advise_mr::PD_HANDLE),
            constant(advise_mr::ADVICE),
            flags(advise_mr::FLAGS),
            bytes(advise_mr::SGE_LIST, odp::ENTRY_BYTES),
        ],
        odp::advise,
    ),
    method(
        class::MR,
        QUERY_MR,
        &[
            object(query_mr::HANDLE),
            answer(query_mr::RESP_LKEY, 4),
            answer(query_mr::RESP_RKEY, 4),
            answer(query_mr::RESP_LENGTH, 8),
            answer(query_mr::RESP_IOVA, 8).optional(),
        ],
        memory::query_mr,
    ),
    method(class::MW, ONLY, &DESTROYED, memory::dealloc_mw),
    with_driver_data(
        class::CQ,
        CREATE,
        &[
            object(create_cq::HANDLE),
            value(create_cq::CQE, 4),
            value(create_cq::USER_HANDLE, 8),
            object(create_cq::COMP_CHANNEL).optional(),
            value(create_cq::COMP_VECTOR, 4),
            flags(create_cq::FLAGS).optional(),
            answer(create_cq::RESP_CQE, 4),
            object(create_cq::EVENT_FD).optional(),
            value(create_cq::UAR_INDEX, 4).optional(),
        ],
        cq::create,
    ),
    method(
        class::CQ,
        DESTROY,
        &[object(0), answer(1, cq::DESTROYED_BYTES)],
        cq::destroy,
    ),
    with_driver_data(
        class::QP,
        CREATE,
        &[
            object(create_qp::HANDLE),
            object(create_qp::XRCD_HANDLE).optional(),
            object(create_qp::PD_HANDLE).optional(),
            object(create_qp::SRQ_HANDLE).optional(),
            object(create_qp::SEND_CQ_HANDLE).optional(),
            object(create_qp::RECV_CQ_HANDLE).optional(),
            object(create_qp::IND_TABLE_HANDLE).optional(),
            value(create_qp::USER_HANDLE, 8),
            structure(create_qp::CAP, qp::CAP_BYTES),
            constant(create_qp::TYPE),
            flags(create_qp::FLAGS).optional(),
            value(create_qp::SOURCE_QPN, 4).optional(),
            object(create_qp::EVENT_FD).optional(),
            capacity(create_qp::RESP_CAP, qp::CAP_BYTES),
            answer(create_qp::RESP_QP_NUM, 4),
        ],
        qp::create,
    ),
    method(class::QP, DESTROY, &[object(0), answer(1, 4)], qp::destroy),
    with_driver_data(
        class::SRQ,
        CREATE,
        &[
            object(create_srq::HANDLE),
            object(create_srq::PD_HANDLE),
            constant(create_srq::TYPE),
            value(create_srq::USER_HANDLE, 8),
            value(create_srq::MAX_WR, 4),
            value(create_srq::MAX_SGE, 4),
            value(create_srq::LIMIT, 4),
            object(create_srq::XRCD_HANDLE).optional(),
            object(create_srq::CQ_HANDLE).optional(),
            value(create_srq::NUM_TAGS, 4).optional(),
            object(create_srq::EVENT_FD).optional(),
            answer(create_srq::RESP_MAX_WR, 4),
            answer(create_srq::RESP_MAX_SGE, 4),
            answer(create_srq::RESP_SRQ_NUM, 4).optional(),
        ],
        srq::create,
    ),
    method(
        class::SRQ,
        DESTROY,
        &[object(0), answer(1, 4)],
        srq::destroy,
    ),
    method(
        class::UAR,
        DRIVER_CREATE,
        &[
            object(uar::HANDLE),
            constant(uar::TYPE),
            answer(uar::MMAP_OFFSET, 8),
            answer(uar::MMAP_LENGTH, 4),
            answer(uar::PAGE_ID, 4),
        ],
        context::alloc_uar,
    ),
    method(
        class::UAR,
        DRIVER_DESTROY,
        &[object(uar::HANDLE)],
        context::dealloc_uar,
    ),
    method(
        class::DEVX,
        devx::OTHER,
        &[
            bytes(devx::OTHER_CMD_IN, MAILBOX_BYTES),
            capacity(devx::OTHER_CMD_OUT, MAILBOX_BYTES),
        ],
        raw::general,
    ),
    method(
        class::DEVX,
        devx::QUERY_UAR,
        &[value(devx::UAR_USER_IDX, 4), answer(devx::UAR_DEV_IDX, 4)],
        raw::query_uar,
    ),
    method(
        class::DEVX,
        devx::QUERY_EQN,
        &[value(devx::EQN_VECTOR, 4), answer(devx::EQN_DEV, 4)],
        raw::query_eqn,
    ),
    method(
        class::DEVX,
        devx::SUBSCRIBE_EVENT,
        &[
            object(devx::EVENT_FD_HANDLE),
            object(devx::EVENT_OBJ_HANDLE).optional(),
            bytes(devx::EVENT_TYPE_LIST, 2),
            value(devx::EVENT_COOKIE, 8).optional(),
            value(devx::EVENT_FD_NUM, 4).optional(),
        ],
        raw::subscribe,
    ),
    method(class::DEVX_OBJ, devx::OBJ_CREATE, &MAILBOXES, raw::create),
    method(
        class::DEVX_OBJ,
        devx::OBJ_DESTROY,
        &[object(devx::OBJ_HANDLE)],
        raw::destroy,
    ),
    method(class::DEVX_OBJ, devx::OBJ_MODIFY, &MAILBOXES, raw::modify),
    method(class::DEVX_OBJ, devx::OBJ_QUERY, &MAILBOXES, raw::query),
    method(
        class::DEVX_OBJ,
        devx::OBJ_ASYNC_QUERY,
        &[
            object(devx::OBJ_HANDLE),
            bytes(devx::OBJ_CMD_IN, MAILBOX_BYTES),
            object(devx::ASYNC_FD),
            value(devx::ASYNC_WR_ID, 8),
            constant(devx::ASYNC_OUT_LEN),
        ],
        raw::query_async,
    ),
    method(
        class::DEVX_UMEM,
        DRIVER_CREATE,
        &[
            object(umem::HANDLE),
            value(umem::ADDR, 8),
            value(umem::LEN, 8),
            flags(umem::ACCESS).optional(),
            answer(umem::OUT_ID, 4),
            constant(umem::PGSZ_BITMAP).optional(),
            object(umem::DMABUF_FD).optional(),
        ],
        memory::reg_umem,
    ),
    method(
        class::DEVX_UMEM,
        DRIVER_DESTROY,
        &[object(umem::HANDLE)],
        memory::dereg_umem,
    ),
    method(
        class::DEVX_ASYNC_CMD_FD,
        DRIVER_CREATE,
        &[object(devx::FD_ALLOC_HANDLE)],
        channel::create_devx_answers,
    ),
    method(
        class::DEVX_ASYNC_EVENT_FD,
        DRIVER_CREATE,
        &[object(devx::FD_ALLOC_HANDLE), flags(devx::FD_ALLOC_FLAGS)],
        channel::create_devx_events,
    ),
];

const MAILBOXES: [Known; 3] = [
    object(devx::OBJ_HANDLE),
    bytes(devx::OBJ_CMD_IN, MAILBOX_BYTES),
    capacity(devx::OBJ_CMD_OUT, MAILBOX_BYTES),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_is_there_once() {
        for (index, method) in METHODS.iter().enumerate() {
            let same =
                |other: &&Method| (other.object, other.method) == (method.object, method.method);
            assert_eq!(METHODS.iter().filter(same).count(), 1, "{index}");
        }
        assert!(find(class::DEVICE, 99).is_none() && find(0x7777, 0).is_none());
    }
}
