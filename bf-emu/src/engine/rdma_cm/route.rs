//! The path of a connection: its record as the subnet administrator would give it, and the address
//! handle attributes that follow from it.

use crate::fabric::rdma_cm::CmId;
use crate::fabric::{Fabric, Place};
use crate::model::adapter::PKEY_DEFAULT;
use crate::model::address::{Gid, GidType};

/// Bytes of a path record on the wire (Linux `core/sa_query.c`, `path_rec_table`).
pub(crate) const RECORD_BYTES: usize = 64;
/// Bytes of `struct ib_uverbs_ah_attr`.
pub(crate) const ADDRESS_BYTES: usize = 32;

/// 400 Gb/s (`enum ib_rate`).
const RATE: u8 = 21;
/// Packet lifetime: 4.096 us << 18 (core/cma.c, `CMA_IBOE_PACKET_LIFETIME`).
const LIFETIME: u8 = 18;
/// Hop limit of RoCE v2 packets.
const HOPS_ETHERNET: u8 = 64;
/// "Exactly", the selector of MTU, rate and lifetime.
const EXACTLY: u8 = 2 << 6;

/// A path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) sgid: Gid,
    pub(crate) dgid: Gid,
    pub(crate) slid: u16,
    pub(crate) dlid: u16,
    /// `enum ib_mtu`.
    pub(crate) mtu: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    /// The address needs a global route.
    pub(crate) is_global: bool,
    pub(crate) sgid_index: u8,
    pub(crate) port: u8,
}

impl Route {
    /// The path of an identifier; None before its addresses are resolved.
    pub(crate) fn of(fabric: &Fabric, id: &CmId) -> Option<Self> {
        let (local, remote) = (id.local.place()?, id.remote.place()?);
        let identity = |place: Place| fabric.identity(place.function);
        let (here, there) = (identity(local)?, identity(remote)?);
        let ethernet = fabric.link_of(local).is_ethernet();
        let needs_grh = fabric.link_of(local).needs_grh() || fabric.link_of(remote).needs_grh();
        let mtu = here
            .active_mtu(local.port)
            .min(there.active_mtu(remote.port));
        let mut route = Self {
            sgid: fabric.cm_gid(id.local),
            dgid: fabric.cm_gid(id.remote),
            slid: here.lid(local.port),
            dlid: there.lid(remote.port),
            mtu,
            hop_limit: match ethernet {
                true => HOPS_ETHERNET,
                false => u8::from(needs_grh),
            },
            traffic_class: id.service_type,
            sl: if ethernet { id.service_type >> 5 } else { 0 },
            is_global: needs_grh,
            sgid_index: id.local.sgid_index,
            port: local.port,
        };
        if id.has_path {
            route.change_to(&record_bytes(&id.path));
        }
        Some(route)
    }

    /// Applies a record that the user has set (core/sa_query.c, `ib_sa_unpack_path`).
    fn change_to(&mut self, record: &[u8; RECORD_BYTES]) {
        let half = |at: usize| u16::from_be_bytes([record[at], record[at + 1]]);
        self.dgid.copy_from_slice(&record[8..24]);
        self.sgid.copy_from_slice(&record[24..40]);
        self.dlid = half(40);
        self.slid = half(42);
        self.hop_limit = record[47];
        self.traffic_class = record[48];
        self.sl = record[53] & 0xf;
        self.mtu = record[54] & 0x3f;
        self.is_global |= self.hop_limit > 1;
    }

    /// The record.
    pub(crate) fn record(&self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        let mut put = |at: usize, value: &[u8]| {
            record[at..at + value.len()].copy_from_slice(value);
        };
        put(8, &self.dgid);
        put(24, &self.sgid);
        put(40, &self.dlid.to_be_bytes());
        put(42, &self.slid.to_be_bytes());
        put(47, &[self.hop_limit, self.traffic_class]);
        // Reversible, one path.
        put(49, &[0x81]);
        put(50, &PKEY_DEFAULT.to_be_bytes());
        put(52, &[0, self.sl]);
        put(
            54,
            &[EXACTLY | self.mtu, EXACTLY | RATE, EXACTLY | LIFETIME],
        );
        record
    }

    /// The record in the words of a call.
    pub(crate) fn words(&self) -> [u32; 16] {
        let mut words = [0; 16];
        for (to, from) in words.iter_mut().zip(self.record().as_chunks::<4>().0) {
            *to = u32::from_ne_bytes(*from);
        }
        words
    }

    /// The same in the form of older kernels (`struct ib_user_path_rec`).
    pub(crate) fn user_record(&self) -> [u8; 68] {
        let mut record = [0; 68];
        let mut put = |at: usize, value: &[u8]| {
            record[at..at + value.len()].copy_from_slice(value);
        };
        put(0, &self.dgid);
        put(16, &self.sgid);
        put(32, &self.dlid.to_be_bytes());
        put(34, &self.slid.to_be_bytes());
        put(44, &1u32.to_ne_bytes()); // reversible
        put(48, &u32::from(self.mtu).to_ne_bytes());
        put(52, &PKEY_DEFAULT.to_be_bytes());
        put(54, &[self.hop_limit, self.traffic_class, 1, self.sl]);
        // mtu_selector, rate_selector, rate, packet_life_time_selector, packet_life_time
        put(58, &[2, 2, RATE, 2, LIFETIME]);
        record
    }

    /// The address of a multicast group, for an identifier with a device (core/multicast.c,
    /// `ib_init_ah_from_mcmember`).
    pub(crate) fn to_group(fabric: &Fabric, id: &CmId, mgid: Gid, mlid: u16) -> Option<Self> {
        let local = id.local.place()?;
        let here = fabric.identity(local.function)?;
        let own = fabric.gid_entry(local, id.local.sgid_index)?;
        Some(Self {
            sgid: own.gid,
            dgid: mgid,
            slid: here.lid(local.port),
            dlid: mlid,
            mtu: here.active_mtu(local.port),
            hop_limit: match own.kind {
                GidType::Infiniband => 0,
                GidType::RoceV1 => 1,
                GidType::RoceV2 => HOPS_ETHERNET,
            },
            traffic_class: 0,
            sl: 0,
            is_global: true,
            sgid_index: id.local.sgid_index,
            port: local.port,
        })
    }

    /// Attributes of an address handle (`struct ib_uverbs_ah_attr`).
    pub(crate) fn address(&self) -> [u8; ADDRESS_BYTES] {
        let mut address = [0; ADDRESS_BYTES];
        if self.is_global {
            address[..16].copy_from_slice(&self.dgid);
            address[20..23].copy_from_slice(&[self.sgid_index, self.hop_limit, self.traffic_class]);
        }
        address[24..26].copy_from_slice(&self.dlid.to_ne_bytes());
        address[26] = self.sl;
        address[28] = RATE;
        address[29] = u8::from(self.is_global);
        address[30] = self.port;
        address
    }
}

/// The bytes of a record in the words of a call.
fn record_bytes(words: &[u32; 16]) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    bytes
}
