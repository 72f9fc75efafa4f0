//! Contexts: their creation, the port and its addresses, UAR pages.

use super::abi::{self, uar};
use super::address;
use super::ioctl::{Answer, Ioctl};
use crate::bits::{low32, size};
use crate::commands::call::{Call, Kind};
use crate::engine::message::MESSAGE_BYTES_MAX;
use crate::fabric::counters::{Command, PortCounter};
use crate::fabric::{Identity, Place};
use crate::model::adapter::SM_LID;
use crate::model::address::{GidEntry, Link};
use crate::sys::Errno;

/// Interrupt vectors.
pub(super) const COMP_VECTORS: u32 = 4;

/// Attributes of the calls in this file.
pub(super) mod attr {
    pub(in crate::commands::uverbs) const NUM_COMP_VECTORS: u16 = 0;
    pub(in crate::commands::uverbs) const CORE_SUPPORT: u16 = 1;
    pub(in crate::commands::uverbs) const QUERY_CONTEXT_UCTX: u16 = 1 << 12;
    pub(in crate::commands::uverbs) const PORT_NUM: u16 = 0;
    pub(in crate::commands::uverbs) const PORT_RESP: u16 = 1;
    pub(in crate::commands::uverbs) const GID_TABLE_ENTRY_SIZE: u16 = 0;
    pub(in crate::commands::uverbs) const GID_TABLE_FLAGS: u16 = 1;
    pub(in crate::commands::uverbs) const GID_TABLE_RESP_ENTRIES: u16 = 2;
    pub(in crate::commands::uverbs) const GID_TABLE_RESP_COUNT: u16 = 3;
    pub(in crate::commands::uverbs) const GID_PORT: u16 = 0;
    pub(in crate::commands::uverbs) const GID_INDEX: u16 = 1;
    pub(in crate::commands::uverbs) const GID_FLAGS: u16 = 2;
    pub(in crate::commands::uverbs) const GID_RESP: u16 = 3;
}

pub(super) fn get_context(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::OpenContext);
    ioctl.answer(attr::NUM_COMP_VECTORS, &COMP_VECTORS.to_ne_bytes())?;
    ioctl.answer(attr::CORE_SUPPORT, &1u64.to_ne_bytes())?;
    ioctl.answer(abi::UHW_OUT, ucontext(call)?.as_slice())
}

pub(super) fn query_context(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    ioctl.answer(attr::NUM_COMP_VECTORS, &COMP_VECTORS.to_ne_bytes())?;
    ioctl.answer(attr::CORE_SUPPORT, &1u64.to_ne_bytes())?;
    ioctl.answer(attr::QUERY_CONTEXT_UCTX, ucontext(call)?.as_slice())
}

/// `struct mlx5_ib_alloc_ucontext_resp`.
fn ucontext(call: &Call<'_>) -> Result<Answer, Errno> {
    const BYTES: u32 = 80;
    /// Queue pairs have options of connections, see [`super::qp::ece`].
    const MASK_ECE: u32 = 1 << 2;
    /// The caller may change the variant of the kernel's lkeys (`mlx5dv_wr_mr_list` needs it).
    const MASK_MKEY_UPDATE_TAG: u32 = 1 << 5;
    /// CREATE_AH and QUERY_DEVICE have driver data.
    const CMDS_SUPP_UHW: u8 = 3;
    /// The value of BlueField-2 and -3: two halves of 256 bytes.
    const BF_REG_BYTES: u32 = 512;
    /// The context has a clock page, see [`super::clock`].
    const CLOCK_INFO_V1: u8 = 1 << 0;
    let mut answer = Answer::new(BYTES as usize);
    answer
        .u32(0, 1 << 18) // qp_tab_size
        .u32(4, BF_REG_BYTES) // bf_reg_size: two halves that are written in turn
        .u32(8, 0) // tot_bfregs: UAR pages are given out one by one
        .u32(12, 64) // cache_line_size
        .u16(16, 1024) // max_sq_desc_sz
        .u16(18, 512) // max_rq_desc_sz
        .u32(20, 32768) // max_send_wqebb
        .u32(24, 32768) // max_recv_wr
        .u32(28, 32767) // max_srq_recv_wr
        .u16(32, u16::from(*call.identity()?.ports().end())) // num_ports
        .u32(36, MASK_ECE | MASK_MKEY_UPDATE_TAG) // comp_mask
        .u32(40, BYTES) // response_length
        .u8(44, 1) // cqe_version
        .u8(45, CMDS_SUPP_UHW)
        .u8(47, CLOCK_INFO_V1)
        .u32(56, 12) // log_uar_size
        .u32(60, 1); // num_uars_per_page
    Ok(answer)
}

/// Bytes of `struct ib_uverbs_query_port_resp_ex`.
pub(super) const PORT_BYTES: u16 = 48;

pub(super) fn query_port(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    call.count(Command::QueryPort);
    let number = ioctl.number(attr::PORT_NUM)?;
    let identity = call.identity()?;
    let port = u8::try_from(number)
        .ok()
        .filter(|port| identity.ports().contains(port))
        .ok_or(Errno(libc::EINVAL))?;
    let state = call.fabric().port_state(Place {
        function: call.function(),
        port,
    });
    /// `IB_UVERBS_QPF_GRH_REQUIRED`.
    const GRH_REQUIRED: u8 = 1 << 0;
    let link = identity.link(port);
    let (layer, sm_lid) = match link {
        Link::Ethernet => (2, 0),
        Link::Infiniband | Link::InfinibandGrh => (1, SM_LID),
    };
    // The counters of `PortInfo` have 16 bits and stay at their maximum.
    let violations = |counter| {
        let count = call.counters().of_port(port, counter);
        u32::from(u16::try_from(count).unwrap_or(u16::MAX))
    };
    let mut answer = Answer::new(PORT_BYTES.into());
    answer
        .u32(0, link.capabilities())
        .u32(4, MESSAGE_BYTES_MAX)
        .u32(8, violations(PortCounter::BadPkey))
        .u32(12, violations(PortCounter::QkeyViolations))
        .u32(16, u32::from(link.gid_table_len()))
        .u16(20, link.pkey_table_len())
        .u16(22, identity.lid(port))
        .u16(24, sm_lid)
        .u8(26, state.code())
        .u8(27, 5) // max_mtu: 4096
        .u8(28, identity.active_mtu(port))
        .u8(30, 4) // max_vl_num
        .u8(32, 18) // subnet_timeout
        .u8(34, 2) // active_width: 4X
        .u8(35, 128) // active_speed: NDR
        .u8(36, state.physical_code())
        .u8(37, layer)
        .u8(38, if link.needs_grh() { GRH_REQUIRED } else { 0 });
    ioctl.answer(attr::PORT_RESP, answer.as_slice())
}

/// Bytes of `struct ib_uverbs_gid_entry`.
pub(super) const GID_ENTRY_BYTES: u16 = 32;

fn gid_entry(identity: &Identity, port: u8, (index, entry): (usize, GidEntry)) -> Answer {
    let mut answer = Answer::new(GID_ENTRY_BYTES.into());
    answer
        .put(0, &entry.gid)
        .u32(16, low32(index as u64))
        .u32(20, u32::from(port))
        .u32(24, entry.kind.code())
        .u32(28, identity.ndev(port).index());
    answer
}

pub(super) fn query_gid_table(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    ioctl.flags(attr::GID_TABLE_FLAGS, 0)?;
    let entry_bytes = ioctl.number(attr::GID_TABLE_ENTRY_SIZE)?;
    let entry_bytes = size(entry_bytes);
    if entry_bytes < usize::from(GID_ENTRY_BYTES) {
        return Err(Errno(libc::EINVAL));
    }
    let identity = call.identity()?;
    let found: Vec<Answer> = identity
        .ports()
        .flat_map(|port| {
            let entries = identity.gid_entries(port);
            entries.map(move |entry| gid_entry(identity, port, entry))
        })
        .collect();
    if ioctl.capacity(attr::GID_TABLE_RESP_ENTRIES) / entry_bytes < found.len() {
        return Err(Errno(libc::EINVAL));
    }
    // The caller sets the entry size, and may use longer entries. The entries must fit its buffer.
    let mut entries = vec![0; entry_bytes * found.len()];
    for (entry, found) in entries.chunks_exact_mut(entry_bytes).zip(&found) {
        entry[..GID_ENTRY_BYTES.into()].copy_from_slice(found.as_slice());
    }
    ioctl.answer(attr::GID_TABLE_RESP_ENTRIES, &entries)?;
    let count = found.len() as u64;
    ioctl.answer(attr::GID_TABLE_RESP_COUNT, &count.to_ne_bytes())
}

pub(super) fn query_gid_entry(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    ioctl.flags(attr::GID_FLAGS, 0)?;
    let (port, index) = (
        ioctl.number32(attr::GID_PORT)?,
        ioctl.number32(attr::GID_INDEX)?,
    );
    let identity = call.identity()?;
    let port = u8::try_from(port)
        .ok()
        .filter(|port| identity.ports().contains(port))
        .ok_or(Errno(libc::EINVAL))?;
    let index = index as usize;
    let entry = address::entry(identity, port, index)?;
    let answer = gid_entry(identity, port, (index, entry));
    ioctl.answer(attr::GID_RESP, answer.as_slice())
}

pub(super) fn alloc_uar(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    // MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF and _NC
    const TYPES: u64 = 2;
    call.count(Command::AllocUar);
    if ioctl.number(uar::TYPE)? >= TYPES {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let (offset, number) = call.process.take_uar(call.context)?;
    ioctl.answer_handle(uar::HANDLE, u64::from(Kind::Uar.handle(number)))?;
    ioctl.answer(uar::MMAP_OFFSET, &offset.to_ne_bytes())?;
    ioctl.answer(uar::MMAP_LENGTH, &4096u32.to_ne_bytes())?;
    ioctl.answer(uar::PAGE_ID, &number.to_ne_bytes())
}

pub(super) fn dealloc_uar(call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    let number = Kind::Uar.slot(ioctl.number32(uar::HANDLE)?)?;
    call.process.drop_uar(call.context, number)
}

/// libmlx5 creates address handles itself on an InfiniBand port. The kernel only counts them.
pub(super) fn destroy_ah(_call: &Call<'_>, ioctl: &Ioctl) -> Result<(), Errno> {
    Kind::Ah.slot(ioctl.number32(0)?).map(drop)
}
