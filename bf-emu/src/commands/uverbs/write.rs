//! The older commands. Their structures are attributes of `INVOKE_WRITE` (`ib_user_verbs.h`).

use super::abi::{UHW_IN, UHW_OUT, invoke, write};
use super::cq::CQES_MAX;
use super::ioctl::{Answer, Fields, Ioctl};
use super::memory::REGION_BYTES_MAX;
use super::qp::{QP_WRS_MAX, RD_ATOMIC_MAX};
use super::srq::{SRQ_SGES_MAX, SRQ_WRS_MAX};
use super::{address, channel, cq, dm, memory, multicast, odp, qp, srq, xrcd};
use crate::bits::{constant, low32};
use crate::commands::call::Call;
use crate::fabric::counters::Command;
use crate::fabric::objects::{ChannelKind, Moderation};
use crate::fabric::{
    CQS_MAX, MCAST_ATTACHMENTS_MAX, MCAST_GROUP_QPS_MAX, MCAST_GROUPS_MAX, MKEYS_MAX, PDS_MAX,
    QPS_MAX, SRQS_MAX,
};
use crate::model::adapter::{FIRMWARE, HW_REV};
use crate::sys::Errno;

/// Largest structure of these commands in bytes.
const INPUT_BYTES: usize = 192;

pub(super) fn invoke(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let number = ioctl.number(invoke::WRITE_CMD)?;
    let command = u32::try_from(number).map_err(|_| Errno(libc::EINVAL))?;
    let (input_bytes, output_bytes) = lengths(command).ok_or(Errno(libc::EOPNOTSUPP))?;
    // A call without input probes for this interface. The error shows that the interface exists and
    // needs input (libibverbs/device.c, has_ioctl_write).
    if ioctl.capacity(invoke::CORE_IN) < input_bytes
        || ioctl.capacity(invoke::CORE_OUT) < output_bytes
    {
        return Err(Errno(libc::ENOSPC));
    }
    let input = ioctl.input(invoke::CORE_IN, INPUT_BYTES)?;
    let input = Fields(&input);
    let answer = |answer: &Answer| ioctl.answer(invoke::CORE_OUT, answer.as_slice());
    match command {
        write::QUERY_DEVICE => {
            call.count(Command::QueryDevice);
            answer(&query_device(call)?)
        }
        write::EX_QUERY_DEVICE => {
            call.count(Command::QueryDevice);
            answer(&query_device_ex(call)?)?;
            ioctl.answer(
                UHW_OUT,
                query_device_driver(ioctl.capacity(UHW_OUT)).as_slice(),
            )
        }
        write::ALLOC_PD => {
            let (core, driver) = memory::alloc_pd(call)?;
            answer(&core)?;
            ioctl.answer(UHW_OUT, driver.as_slice())
        }
        write::CREATE_AH => answer(&address::create_ah(call, input, ioctl)?),
        write::REG_MR => answer(&memory::reg_mr(call, input)?),
        write::REREG_MR => answer(&memory::rereg_mr(call, input)?),
        write::ALLOC_MW => answer(&memory::alloc_mw(call, input)?),
        write::CREATE_COMP_CHANNEL => {
            let fd = channel::create(call, ChannelKind::Completion, false)?;
            answer(Answer::new(4).u32(0, fd.unsigned_abs()))
        }
        write::RESIZE_CQ => {
            // struct mlx5_ib_resize_cq
            let driver = ioctl.input(UHW_IN, 16)?;
            answer(&cq::resize(call, input, Fields(&driver))?)
        }
        write::QUERY_QP => answer(&qp::query(call, input)?),
        write::MODIFY_QP => qp::modify(call, input).map(drop),
        write::EX_MODIFY_QP => {
            let (number, ece) = qp::modify_ex(call, ioctl, input)?;
            answer(Answer::new(8).u32(4, 8))?;
            // struct mlx5_ib_modify_qp_resp: the owner of a DCT receives the DCT's number here.
            let mut driver = Answer::new(16);
            driver.u32(0, 16).u32(4, number).u32(8, ece);
            ioctl.answer(UHW_OUT, driver.as_slice())
        }
        write::EX_MODIFY_CQ => cq::modify(call, input),
        write::OPEN_XRCD => answer(&xrcd::open(call, input)?),
        write::ATTACH_MCAST => multicast::attach(call, input),
        write::DETACH_MCAST => multicast::detach(call, input),
        write::MODIFY_SRQ => srq::modify(call, input),
        write::QUERY_SRQ => answer(&srq::query(call, input)?),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Smallest input and answer of a command in bytes: the structures in `UAPI_DEF_WRITE_IO` and
/// similar macros in `uverbs_cmd.c`.
fn lengths(command: u32) -> Option<(usize, usize)> {
    Some(match command {
        write::QUERY_DEVICE => (8, 176),
        write::EX_QUERY_DEVICE => (8, 184),
        write::ALLOC_PD => (8, 4),
        write::CREATE_AH => (56, 4),
        write::REG_MR => (40, 12),
        write::REREG_MR => (48, 8),
        write::ALLOC_MW => (16, 8),
        write::CREATE_COMP_CHANNEL => (8, 4),
        write::RESIZE_CQ => (16, 4),
        write::QUERY_QP => (16, 128),
        write::MODIFY_QP => (112, 0),
        write::EX_MODIFY_QP => (112, 8),
        write::EX_MODIFY_CQ => (16, 0),
        write::OPEN_XRCD => (16, 4),
        write::ATTACH_MCAST | write::DETACH_MCAST => (24, 0),
        write::MODIFY_SRQ => (16, 0),
        write::QUERY_SRQ => (16, 16),
        _ => return None,
    })
}

/// Capability flags of the device (`enum ibv_device_cap_flags`) as the driver composes them (mlx5/main.c,
/// `mlx5_ib_query_device`): bad pkey and qkey counters, path migration, change of the physical port, port active event, system
/// image GUID, RNR NAK generation, memory windows type 1 and 2B, XRC, memory management extensions, blocking of multicast
/// loopback. Checksums and flow steering are absent.
const DEVICE_CAP_FLAGS: u32 = 1 << 1
    | 1 << 2
    | 1 << 4
    | 1 << 5
    | 1 << 10
    | 1 << 11
    | 1 << 12
    | 1 << 17
    | 1 << 20
    | 1 << 21
    | 1 << 22
    | 1 << 24;

/// `struct ib_uverbs_query_device_resp`, 176 bytes.
fn put_device(call: &Call<'_>, answer: &mut Answer) -> Result<(), Errno> {
    let identity = call.identity()?;
    let [major, minor, sub] = FIRMWARE.map(u64::from);
    let firmware = major << 32 | minor << 16 | sub;
    answer
        .u64(0, firmware)
        .put(8, &identity.node_guid.to_be_bytes())
        .put(16, &identity.sys_image_guid.to_be_bytes())
        .u64(24, REGION_BYTES_MAX)
        .u64(32, 0xffff_ffff_ffff_f000) // page_size_cap
        .u32(40, 0x2c9) // vendor_id
        .u32(44, u32::from(identity.pci_device))
        .u32(48, HW_REV)
        .u32(52, const { constant(QPS_MAX) })
        .u32(56, QP_WRS_MAX)
        .u32(60, DEVICE_CAP_FLAGS)
        .u32(64, 30) // max_sge
        .u32(68, 30) // max_sge_rd
        .u32(72, const { constant(CQS_MAX) })
        .u32(76, CQES_MAX)
        .u32(80, const { constant(MKEYS_MAX) })
        .u32(84, const { constant(PDS_MAX) })
        .u32(88, u32::from(RD_ATOMIC_MAX)) // max_qp_rd_atom
        .u32(96, const { constant(QPS_MAX) } * 16) // max_res_rd_atom
        .u32(100, u32::from(RD_ATOMIC_MAX)) // max_qp_init_rd_atom
        .u32(108, 1) // atomic_cap: HCA
        .u32(120, const { constant(MKEYS_MAX) }) // max_mw
        .u32(132, const { constant(MCAST_GROUPS_MAX) })
        .u32(136, const { constant(MCAST_GROUP_QPS_MAX) })
        .u32(140, const { constant(MCAST_ATTACHMENTS_MAX) })
        .u32(144, u32::MAX >> 1) // max_ah
        .u32(156, const { constant(SRQS_MAX) })
        .u32(160, SRQ_WRS_MAX)
        .u32(164, SRQ_SGES_MAX)
        .u16(168, identity.link(1).pkey_table_len())
        .u8(170, 16) // local_ca_ack_delay
        .u8(171, *identity.ports().end()); // phys_port_cnt
    Ok(())
}

fn query_device(call: &Call<'_>) -> Result<Answer, Errno> {
    let mut answer = Answer::new(176);
    put_device(call, &mut answer)?;
    Ok(answer)
}

/// `struct ib_uverbs_ex_query_device_resp`.
fn query_device_ex(call: &Call<'_>) -> Result<Answer, Errno> {
    const BYTES: u32 = 304;
    let mut answer = Answer::new(BYTES as usize);
    put_device(call, &mut answer)?;
    answer
        .u32(180, BYTES) // response_length
        .u64(184, odp::GENERAL_CAPS)
        .u32(192, odp::RELIABLE_CAPS) // rc_odp_caps
        .u32(200, odp::DATAGRAM_CAPS) // ud_odp_caps
        .u64(208, u64::MAX) // timestamp_mask
        .u64(216, 1_000_000) // hca_core_clock, kHz: time stamps are nanoseconds
        .u64(224, u64::from(DEVICE_CAP_FLAGS)) // device_cap_flags_ex
        .u16(280, Moderation::COUNT_MAX)
        .u16(282, Moderation::PERIOD_US_MAX)
        .u64(288, dm::BYTES_MAX) // max_dm_size
        .u32(296, odp::RELIABLE_CAPS); // xrc_odp_caps
    Ok(answer)
}

/// `struct mlx5_ib_query_device_resp`, cut to the caller's buffer, with padded completions.
fn query_device_driver(capacity: usize) -> Answer {
    const FLAGS: usize = 60;
    const CQE_128B_PAD: u32 = 1 << 1;
    let mut answer = Answer::new(capacity);
    answer.u32(4, low32(capacity as u64));
    if capacity >= FLAGS + 4 {
        answer.u32(FLAGS, CQE_128B_PAD);
    }
    answer
}
