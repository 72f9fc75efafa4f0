//! The commands that the kernel accepts, by call (`mlx5/devx.c`, `devx_is_general_cmd`,
//! `devx_is_obj_create_cmd`, `devx_is_obj_modify_cmd`, `devx_is_obj_query_cmd`). The kernel refuses
//! any other command with EINVAL. The device itself refuses an accepted command that it does not
//! implement.

use std::ops::Range;

use mlx5_prm::cmd::opcode as op;

/// Opcodes in this range are always commands on the device itself.
const GENERAL_RANGE: Range<u16> = 0xb00..0xd00;

/// Commands on the device itself.
const GENERAL: [u16; 16] = [
    op::QUERY_HCA_CAP,
    0x101, // QUERY_ADAPTER
    0x10a, // QUERY_ISSI
    0x750, // QUERY_VPORT_STATE
    0x752, // QUERY_ESW_VPORT_CONTEXT
    0x754, // QUERY_NIC_VPORT_CONTEXT
    0x760, // QUERY_ROCE_ADDRESS
    op::QUERY_HCA_VPORT_CONTEXT,
    0x76f, // QUERY_VNIC_ENV
    0x770, // QUERY_VPORT_COUNTER
    0x80a, // GET_DROPPED_PACKET_LOG
    0x80d, // NOP
    0x822, // QUERY_CONG_STATUS
    0x824, // QUERY_CONG_PARAMS
    0x826, // QUERY_CONG_STATISTICS
    op::QUERY_LAG,
];

/// Commands that create an object.
const CREATE: [u16; 28] = [
    op::CREATE_MKEY,
    op::CREATE_CQ,
    op::CREATE_QP,
    0x600, // CREATE_PSV
    0x700, // CREATE_SRQ
    0x705, // CREATE_XRC_SRQ
    op::CREATE_DCT,
    0x717, // CREATE_XRQ
    0x771, // ALLOC_Q_COUNTER
    0x782, // CREATE_SCHEDULING_ELEMENT
    0x800, // ALLOC_PD
    0x806, // ATTACH_TO_MCG
    0x80e, // ALLOC_XRCD
    0x816, // ALLOC_TRANSPORT_DOMAIN
    0x827, // ADD_VXLAN_UDP_DPORT
    0x829, // SET_L2_TABLE_ENTRY
    0x900, // CREATE_TIR
    0x904, // CREATE_SQ
    0x908, // CREATE_RQ
    op::CREATE_RMP,
    0x912, // CREATE_TIS
    0x916, // CREATE_RQT
    0x930, // CREATE_FLOW_TABLE
    0x933, // CREATE_FLOW_GROUP
    0x936, // SET_FLOW_TABLE_ENTRY
    0x939, // ALLOC_FLOW_COUNTER
    0x93d, // ALLOC_PACKET_REFORMAT_CONTEXT
    op::CREATE_GENERAL_OBJECT,
];

/// Commands that change an object.
const MODIFY: [u16; 19] = [
    op::MODIFY_CQ,
    op::RST2INIT_QP,
    op::INIT2RTR_QP,
    op::RTR2RTS_QP,
    op::RTS2RTS_QP,
    op::SQERR2RTS_QP,
    op::TO_ERR_QP,
    op::TO_RST_QP,
    op::INIT2INIT_QP,
    0x703, // ARM_RQ
    0x708, // ARM_XRC_SRQ
    0x71a, // ARM_XRQ
    0x901, // MODIFY_TIR
    0x905, // MODIFY_SQ
    0x909, // MODIFY_RQ
    op::MODIFY_RMP,
    0x913, // MODIFY_TIS
    0x917, // MODIFY_RQT
    op::MODIFY_GENERAL_OBJECT,
];

/// Commands that query an object.
const QUERY: [u16; 16] = [
    op::QUERY_MKEY,
    op::QUERY_CQ,
    op::QUERY_QP,
    0x702, // QUERY_SRQ
    0x707, // QUERY_XRC_SRQ
    op::QUERY_DCT,
    0x719, // QUERY_XRQ
    0x773, // QUERY_Q_COUNTER
    0x903, // QUERY_TIR
    0x907, // QUERY_SQ
    0x90b, // QUERY_RQ
    op::QUERY_RMP,
    0x915, // QUERY_TIS
    0x919, // QUERY_RQT
    0x932, // QUERY_FLOW_TABLE
    op::QUERY_GENERAL_OBJECT,
];

/// The calls that carry commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    General,
    Create,
    Modify,
    Query,
}

/// True if the kernel accepts a command in this call.
pub(super) fn passes(call: Call, opcode: u16) -> bool {
    let list: &[u16] = match call {
        Call::General => &GENERAL,
        Call::Create => &CREATE,
        Call::Modify => &MODIFY,
        Call::Query => &QUERY,
    };
    list.contains(&opcode) || call == Call::General && GENERAL_RANGE.contains(&opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(opcode: u16, calls: &[Call]) {
        for call in [Call::General, Call::Create, Call::Modify, Call::Query] {
            let expect = calls.contains(&call);
            assert_eq!(passes(call, opcode), expect, "{opcode:#x} by {call:?}");
        }
    }

    #[test]
    fn commands_come_by_the_call_that_is_for_them() {
        check(op::QUERY_HCA_CAP, &[Call::General]);
        check(op::ALLOW_OTHER_VHCA_ACCESS, &[Call::General]);
        check(0xbff, &[Call::General]);
        check(op::CREATE_MKEY, &[Call::Create]);
        check(op::RST2INIT_QP, &[Call::Modify]);
        check(op::QUERY_QP, &[Call::Query]);
        // Commands reserved for the kernel: INIT_HCA, DESTROY_QP, ACCESS_REG.
        for opcode in [0x102, op::DESTROY_QP, 0x805, 0xd00, 0xffff] {
            check(opcode, &[]);
        }
    }
}
