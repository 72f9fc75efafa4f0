//! `QUERY_HCA_CAP`. The device advertises only what it implements.

use mlx5_prm::cap::{self, atomic, general, general_2, odp, page, roce, umr_fence};
use mlx5_prm::{Field, cmd};

use super::mailbox::{BAD_PARAM, Output, Result, get16};
use crate::commands::call::Call;
use crate::engine::access::DEPTH_MAX;
use crate::engine::memcpy::LENGTH_MAX;
use crate::fabric::counters::Command;
use crate::fabric::{MCAST_GROUP_QPS_MAX, MCAST_GROUPS_MAX, klm};

/// Sizes of atomic operands in bytes.
const ATOMIC_SIZES: u64 = 4 | 8;

/// Operations of a reliable service on regions with on-demand paging.
const ON_DEMAND: u64 =
    (odp::SEND | odp::RECEIVE | odp::WRITE | odp::READ | odp::ATOMIC | odp::SRQ_RECEIVE) as u64;

pub(super) fn query(call: &Call<'_>, input: &[u8], capacity: usize) -> Result {
    call.count(Command::QueryHcaCap);
    let identity = call.fabric().identity(call.function()).ok_or(BAD_PARAM)?;
    let mut output = Output::new(cmd::HEADER_BYTES + cap::PAGE_BYTES, capacity);
    let mut put = |fields: &[(Field, u64)]| {
        for (field, value) in fields {
            output.set(field.within(16), *value);
        }
    };
    let is_ethernet = identity.link(1).is_ethernet();
    let profile = call.fabric().profile();
    let is_relaxed_only = profile.is_relaxed_ordering_only();
    let is_dma_mmo_qp = profile.is_dma_mmo_qp();
    // The lowest bit selects maximum or current values. They are equal here.
    match get16(input, cmd::OP_MOD) >> 1 {
        page::GENERAL => {
            put(&GENERAL);
            put(&[
                (general::VHCA_ID, u64::from(identity.vhca_id)),
                (general::NUM_PORTS, u64::from(*identity.ports().end())),
                (general::PORT_TYPE, u64::from(is_ethernet)),
                (general::ROCE, u64::from(is_ethernet)),
                (general::RTS2RTS_QP_UDP_SPORT, u64::from(is_ethernet)),
                (
                    general::MKC_ORDER_WRITE_AFTER_WRITE_RO_ONLY,
                    u64::from(is_relaxed_only),
                ),
                (general::DMA_MMO_QP, u64::from(is_dma_mmo_qp)),
                (general::DMA_MMO_SQ, u64::from(!is_dma_mmo_qp)),
            ]);
        }
        page::GENERAL_2 => put(&[
            (
                general_2::CROSS_VHCA_OBJECT_TO_OBJECT_SUPPORTED,
                general_2::LOCAL_MKEY_TO_REMOTE_MKEY as u64,
            ),
            (
                general_2::ALLOWED_OBJECT_FOR_OTHER_VHCA_ACCESS,
                general_2::MKEY_OBJECT,
            ),
        ]),
        page::ATOMIC => put(&[
            (atomic::SUPPORTED_REQ_8B_ENDIANNESS_MODE_1, 1),
            (atomic::REQ_8B_ENDIANNESS_MODE, 1),
            (
                atomic::OPERATIONS,
                (atomic::OP_CMP_SWAP
                    | atomic::OP_FETCH_ADD
                    | atomic::OP_MASKED_CMP_SWAP
                    | atomic::OP_MASKED_FETCH_ADD) as u64,
            ),
            (atomic::SIZE_QP, ATOMIC_SIZES),
            (atomic::SIZE_DC, ATOMIC_SIZES),
        ]),
        page::ROCE if is_ethernet => put(&[
            (roce::L3_TYPE, roce::L3_IPV4 | roce::L3_IPV6),
            (roce::ROCE_VERSION, roce::VERSION_1 | roce::VERSION_2),
            (roce::R_ROCE_DEST_UDP_PORT, 4791),
            (roce::R_ROCE_MAX_SRC_UDP_PORT, 0xffff),
            (roce::R_ROCE_MIN_SRC_UDP_PORT, 0xc000),
            (
                roce::ROCE_ADDRESS_TABLE_SIZE,
                u64::from(identity.link(1).gid_table_len()),
            ),
        ]),
        page::ODP => put(&[
            (odp::RC_ODP_CAPS, ON_DEMAND),
            (odp::UD_ODP_CAPS, odp::SEND as u64),
            (odp::XRC_ODP_CAPS, ON_DEMAND),
            (odp::DC_ODP_CAPS, ON_DEMAND),
        ]),
        // Unknown pages: all capabilities are zero.
        _ => {}
    }
    Ok(output.done())
}

const GENERAL: [(Field, u64); 56] = [
    (general::HCA_CAP_2, 1),
    (general::LOG_DMA_MMO_MAX_SIZE, LENGTH_MAX.ilog2() as u64),
    (general::LOG_MAX_SRQ_SZ, 15),
    (general::LOG_MAX_QP_SZ, 15),
    (general::LOG_MAX_QP, 14),
    (general::LOG_MAX_SRQ, 12),
    (general::LOG_MAX_CQ_SZ, 22),
    (general::LOG_MAX_CQ, 14),
    (general::LOG_MAX_EQ_SZ, 16),
    (general::LOG_MAX_MKEY, 17),
    (general::LOG_MAX_EQ, 4),
    (general::MAX_INDIRECTION, DEPTH_MAX as u64),
    (general::FIXED_BUFFER_SIZE, 1),
    (general::LOG_MAX_MRW_SZ, 46),
    (
        general::LOG_MAX_KLM_LIST_SIZE,
        klm::ENTRIES_MAX.ilog2() as u64 - 2,
    ),
    (general::LOG_MAX_RA_REQ_QP, 4),
    (general::LOG_MAX_RA_RES_QP, 4),
    (general::GID_TABLE_SIZE, 0),
    (general::PKEY_TABLE_SIZE, 0),
    (general::LOG_MAX_MSG, 30),
    (general::CQE_VERSION, 1),
    (general::COMPACT_ADDRESS_VECTOR, 1),
    (general::ATOMIC, 1),
    (general::DCT, 1),
    (general::SCTR_DATA_CQE, 1),
    (general::CQ_RESIZE, 1),
    (general::CQ_MODERATION, 1),
    (general::PG, 1),
    (general::LOG_MAX_RA_REQ_DC, 4),
    (general::LOG_MAX_RA_RES_DC, 4),
    (general::MAX_WQE_SZ_SQ_DC, 1024),
    (general::XRC, 1),
    (general::LOG_MAX_XRCD, 12),
    (general::QKV, 1),
    (general::PKV, 1),
    (general::UD, 1),
    (general::UC, 1),
    (general::RC, 1),
    (general::UAR_4K, 1),
    (general::LOG_PG_SZ, 12),
    (general::BF, 1),
    (general::LOG_BF_REG_SIZE, 9),
    (general::BLOCK_LB_MC, 1),
    (general::LOG_MAX_MCG, MCAST_GROUPS_MAX.ilog2() as u64),
    (general::MAX_QP_MCG, MCAST_GROUP_QPS_MAX as u64),
    (general::UMR_FENCE, umr_fence::SMALL as u64),
    (general::MAX_WQE_SZ_SQ, 1024),
    (general::MAX_WQE_SZ_RQ, 512),
    (general::LOG_MAX_PD, 12),
    (general::BASIC_CYCLIC_RCV_WQE, 1),
    (general::LOG_MAX_RMP, 12),
    (general::LOG_MAX_WQ_SZ, 15),
    (general::LOG_UAR_PAGE_SZ, 0),
    (general::DEVICE_FREQUENCY_KHZ, 1_000_000),
    (general::NUM_OF_UARS_PER_PAGE, 1),
    (general::CROSSING_VHCA_MKEY, 1),
];
