//! Commands: opcodes, status values and the common header of all mailboxes.

use crate::field::fields;

/// Bytes of the header of every command, input and output.
pub const HEADER_BYTES: usize = 16;

fields! {
    /// Input: the command, see [`opcode`].
    OPCODE = 0x00, 16;
    /// Input: user id of the resources. The kernel sets it.
    UID = 0x10, 16;
    /// Input: a variant of the command.
    OP_MOD = 0x30, 16;
    /// Output: 0 or one of [`status`].
    STATUS = 0x00, 8;
    /// Output: a more precise reason for a bad status.
    SYNDROME = 0x20, 32;
    /// Input or output: the 24-bit number of the object (qpn, cqn, rmpn, dctn, mkey index).
    OBJECT_NUMBER = 0x48, 24;
    /// General objects: their type.
    GENERAL_OBJECT_TYPE = 0x30, 16;
    /// General objects: the 32-bit id; input for query, modify and destroy, output for create.
    GENERAL_OBJECT_ID = 0x40, 32;
    /// General objects, create: the object is an alias of another vHCA's object.
    GENERAL_OBJECT_ALIAS = 0x60, 1;
}

/// Command opcodes.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod opcode {
    pub const QUERY_HCA_CAP: u16 = 0x100;
    pub const CREATE_MKEY: u16 = 0x200;
    pub const QUERY_MKEY: u16 = 0x201;
    pub const DESTROY_MKEY: u16 = 0x202;
    pub const CREATE_CQ: u16 = 0x400;
    pub const DESTROY_CQ: u16 = 0x401;
    pub const QUERY_CQ: u16 = 0x402;
    pub const MODIFY_CQ: u16 = 0x403;
    pub const CREATE_QP: u16 = 0x500;
    pub const DESTROY_QP: u16 = 0x501;
    pub const RST2INIT_QP: u16 = 0x502;
    pub const INIT2RTR_QP: u16 = 0x503;
    pub const RTR2RTS_QP: u16 = 0x504;
    pub const RTS2RTS_QP: u16 = 0x505;
    pub const SQERR2RTS_QP: u16 = 0x506;
    pub const TO_ERR_QP: u16 = 0x507;
    pub const TO_RST_QP: u16 = 0x50a;
    pub const QUERY_QP: u16 = 0x50b;
    pub const INIT2INIT_QP: u16 = 0x50e;
    pub const CREATE_DCT: u16 = 0x710;
    pub const DESTROY_DCT: u16 = 0x711;
    pub const DRAIN_DCT: u16 = 0x712;
    pub const QUERY_DCT: u16 = 0x713;
    pub const QUERY_HCA_VPORT_CONTEXT: u16 = 0x762;
    pub const QUERY_HCA_VPORT_GID: u16 = 0x764;
    pub const QUERY_LAG: u16 = 0x842;
    pub const CREATE_RMP: u16 = 0x90c;
    pub const MODIFY_RMP: u16 = 0x90d;
    pub const DESTROY_RMP: u16 = 0x90e;
    pub const QUERY_RMP: u16 = 0x90f;
    pub const CREATE_GENERAL_OBJECT: u16 = 0xa00;
    pub const MODIFY_GENERAL_OBJECT: u16 = 0xa01;
    pub const QUERY_GENERAL_OBJECT: u16 = 0xa02;
    pub const DESTROY_GENERAL_OBJECT: u16 = 0xa03;
    pub const ALLOW_OTHER_VHCA_ACCESS: u16 = 0xb16;
}

/// Command status values.
#[expect(missing_docs, reason = "the PRM's own names say it all")]
pub mod status {
    pub const OK: u8 = 0x00;
    pub const INTERNAL_ERR: u8 = 0x01;
    pub const BAD_OP: u8 = 0x02;
    pub const BAD_PARAM: u8 = 0x03;
    pub const BAD_SYS_STATE: u8 = 0x04;
    pub const BAD_RESOURCE: u8 = 0x05;
    pub const RESOURCE_BUSY: u8 = 0x06;
    pub const LIMITS_EXCEEDED: u8 = 0x08;
    pub const BAD_RES_STATE: u8 = 0x09;
    pub const BAD_INDEX: u8 = 0x0a;
    pub const NO_RESOURCES: u8 = 0x0f;
    pub const BAD_QP_STATE: u8 = 0x10;
    pub const BAD_PACKET: u8 = 0x30;
    pub const BAD_SIZE: u8 = 0x40;
    pub const BAD_INPUT_LEN: u8 = 0x50;
    pub const BAD_OUTPUT_LEN: u8 = 0x51;
}
