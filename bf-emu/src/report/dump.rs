//! The live objects, one line each: `bf-emu dump`.

use std::fmt;
use std::net::Ipv6Addr;

use mlx5_prm::qp::{service, state};
use serde::Serialize;

use crate::fabric::numbers::key_of;
use crate::fabric::objects::{Cq, Mkey, MkeyKind, Qp, Srq};
use crate::fabric::table::Owner;
use crate::fabric::{Fabric, Identity, Locked, NUMBER_BASE, QPN_BASE};

/// An object: its owner, its kind, and its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Object {
    /// Name of its function; "-" for an identifier of the connection manager on no or several
    /// functions.
    pub function: String,
    /// "mkey", "qp", "cq", "srq", "umem", "device_memory", "pd", "channel", "multicast" (a queue pair
    /// attached to a group), "rdma_cm_id" or "rdma_cm_member" (of a multicast group).
    pub kind: &'static str,
    /// Its number on the device; for an mkey, the whole key.
    pub number: u32,
    /// Process number of its owner; None if the process has ended.
    pub pid: Option<i32>,
    /// Other attributes, by name.
    pub fields: Fields,
}

/// Named values in display order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(&'static str, String)>);

impl Fields {
    fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    fn hex(self, name: &'static str, value: impl Into<u64>) -> Self {
        let value = value.into();
        self.with(name, format_args!("{value:#x}"))
    }

    fn flag(self, name: &'static str, set: bool) -> Self {
        if set { self.with(name, "yes") } else { self }
    }
}

impl Serialize for Fields {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:#x}", self.function, self.kind, self.number)?;
        match self.pid {
            Some(pid) => write!(f, " pid {pid}")?,
            None => write!(f, " pid gone")?,
        }
        let mut fields = self.fields.0.iter();
        fields.try_for_each(|(name, value)| write!(f, " {name} {value}"))
    }
}

/// Every object of every function. The device's lock is held during the call.
#[must_use]
pub fn objects(fabric: &Fabric) -> Vec<Object> {
    let mut locked = fabric.lock();
    let mut objects = Vec::new();
    identifiers(&mut locked, &mut objects);
    memberships(&mut locked, &mut objects);
    for (index, identity) in fabric.identities().iter().enumerate() {
        let tables = locked.peek(index);
        let mut add = |kind, number, owner: Owner, fields| {
            objects.push(Object {
                function: identity.name().to_owned(),
                kind,
                number,
                pid: locked.pid(owner.process),
                fields,
            });
        };
        for (slot, owner, _) in tables.pds.iter() {
            add("pd", slot + NUMBER_BASE, owner, Fields::default());
        }
        for (slot, owner, channel) in tables.channels.iter() {
            let kind = Fields::default().with("kind", format_args!("{:?}", channel.kind));
            add("channel", slot, owner, kind.with("fd", channel.read_fd));
        }
        for (slot, owner, cq) in tables.cqs.iter() {
            add("cq", slot + NUMBER_BASE, owner, cq_fields(cq));
        }
        for (slot, owner, srq) in tables.srqs.iter() {
            add("srq", slot + NUMBER_BASE, owner, srq_fields(srq));
        }
        for (slot, owner, qp) in tables.qps.iter() {
            add("qp", slot + QPN_BASE, owner, qp_fields(&locked, qp));
        }
        for (slot, owner, attachment) in tables.attachments.iter() {
            let group = tables.groups.get(attachment.group);
            let gid = Ipv6Addr::from(group.map_or([0; 16], |group| group.gid));
            let fields = Fields::default().hex("qp", attachment.qp + QPN_BASE);
            let fields = fields.with("gid", gid).hex("lid", attachment.lid);
            add("multicast", slot, owner, fields);
        }
        for (slot, owner, umem) in tables.umems.iter() {
            let fields = Fields::default().hex("address", umem.address);
            let fields = fields.with("bytes", umem.length);
            let kind = match umem.device_page {
                0 => "umem",
                _ => "device_memory",
            };
            add(kind, slot + NUMBER_BASE, owner, fields);
        }
        for (slot, owner, mkey) in tables.mkeys.iter() {
            let key = key_of(slot, mkey.variant);
            add("mkey", key, owner, mkey_fields(&locked, mkey));
        }
    }
    objects
}

/// The identifiers of the connection manager.
fn identifiers(locked: &mut Locked<'_>, objects: &mut Vec<Object>) {
    let fabric = locked.fabric();
    let ids = locked.common().rdma_cm.ids.iter();
    let ids: Vec<_> = ids.map(|(slot, owner, id)| (slot, owner, *id)).collect();
    for (slot, owner, id) in ids {
        let identity = id
            .local
            .place()
            .and_then(|place| fabric.identity(place.function));
        let mut fields = Fields::default()
            .with("stage", format_args!("{:?}", id.stage))
            .with("exchange", format_args!("{:?}", id.exchange));
        if id.service != 0 {
            fields = fields.hex("service", id.service);
        }
        if let Some(peer) = locked.cm_peer(slot) {
            fields = fields.hex("peer", peer);
        }
        objects.push(Object {
            function: identity.map_or("-", Identity::name).to_owned(),
            kind: "rdma_cm_id",
            number: slot,
            pid: locked.pid(owner.process),
            fields,
        });
    }
}

/// The memberships of identifiers in multicast groups.
fn memberships(locked: &mut Locked<'_>, objects: &mut Vec<Object>) {
    let fabric = locked.fabric();
    let all = locked.common().rdma_cm.memberships.iter();
    let all: Vec<_> = all
        .map(|(slot, owner, known)| (slot, owner, *known))
        .collect();
    for (slot, owner, known) in all {
        let place = known.port.place();
        let identity = place.and_then(|place| fabric.identity(place.function));
        let fields = Fields::default()
            .hex("id", known.id)
            .with("port", place.map_or(0, |place| place.port))
            .with("gid", Ipv6Addr::from(known.mgid))
            .hex("lid", known.mlid)
            .flag("sends_only", !known.receives)
            .flag("lost", !known.joined);
        objects.push(Object {
            function: identity.map_or("-", Identity::name).to_owned(),
            kind: "rdma_cm_member",
            number: slot,
            pid: locked.pid(owner.process),
            fields,
        });
    }
}

fn cq_fields(cq: &Cq) -> Fields {
    let fields = Fields::default()
        .with("entries", cq.ring.count)
        .with("produced", cq.produced)
        .with("consumed", cq.consumed)
        .with("armed", format_args!("{:?}", cq.armed))
        .flag("overrun", cq.overrun);
    if !cq.moderation.is_on() {
        return fields;
    }
    fields
        .with("event_after", cq.moderation.count)
        .with("or_us", cq.moderation.period_us)
        .flag("event_held", cq.window.due_ns != 0)
}

fn srq_fields(srq: &Srq) -> Fields {
    Fields::default()
        .with("entries", srq.ring.count)
        .with("taken", srq.taken)
        .with("limit", srq.limit)
}

fn qp_fields(locked: &Locked<'_>, qp: &Qp) -> Fields {
    let fields = Fields::default()
        .with("service", service_name(qp.service))
        .with("state", state_name(qp.state))
        .with("port", qp.port())
        .hex("pd", qp.pd + NUMBER_BASE)
        .hex("send_cq", qp.send_cq + NUMBER_BASE)
        .hex("recv_cq", qp.recv_cq + NUMBER_BASE)
        .with("sent", qp.sq_done)
        .with("received", qp.rq_done);
    let peer = qp.remote_function.checked_sub(1);
    let peer = peer.and_then(|function| locked.fabric().identity(function));
    let fields = match peer {
        Some(peer) => fields
            .with("peer", peer.name())
            .with("peer_port", qp.remote_port.max(1))
            .hex("peer_qp", qp.remote_qpn),
        None => fields,
    };
    fields
        .flag("waits", qp.pending)
        .flag("completion_held", qp.held.until_ns != 0)
        .flag("devx", qp.by_command)
}

fn mkey_fields(locked: &Locked<'_>, mkey: &Mkey) -> Fields {
    let fields = Fields::default()
        .with("kind", format_args!("{:?}", mkey.kind))
        .with("origin", format_args!("{:?}", mkey.origin))
        .hex("pd", mkey.pd + NUMBER_BASE)
        .hex("start", mkey.start)
        .with("bytes", mkey.len)
        .hex("access", mkey.access);
    let fields = match mkey.kind {
        MkeyKind::Klm | MkeyKind::Ksm => fields
            .with("entries", mkey.entries)
            .with("room", mkey.list.capacity()),
        MkeyKind::Alias => {
            let there = locked.fabric().identity(mkey.target.function as usize);
            fields
                .with("of", there.map_or("?", |identity| identity.name()))
                .hex("of_index", key_of(mkey.target.index, 0) >> 8)
        }
        MkeyKind::Direct => fields,
    };
    fields
        .flag("free", mkey.free)
        .flag("umr", mkey.umr_enabled)
        .flag("allowed", mkey.allowed)
}

fn service_name(code: u8) -> &'static str {
    match code {
        service::RC => "RC",
        service::UC => "UC",
        service::UD => "UD",
        service::XRC => "XRC",
        service::DCI => "DCI",
        _ => "other",
    }
}

fn state_name(code: u8) -> &'static str {
    match code {
        state::RST => "RESET",
        state::INIT => "INIT",
        state::RTR => "RTR",
        state::RTS => "RTS",
        state::SQER => "SQE",
        state::SQD => "SQD",
        state::ERR => "ERR",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;
    use crate::fabric::objects::Target;
    use crate::model::profile::Profile;
    use crate::model::topology::Topology;

    #[test]
    fn objects_are_shown_with_names() {
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::with_nodes(1).unwrap();
        let profile = Profile::load("none").unwrap();
        let fabric = engine::create(dir.path(), &topology, &profile).unwrap();
        let mut locked = fabric.lock();
        let owner = Owner::default();
        let tables = locked.function(1);
        let qp = Qp {
            service: service::RC,
            state: state::RTS,
            remote_function: 1,
            remote_qpn: 0x4a,
            pending: true,
            ..Qp::default()
        };
        let target = Target {
            function: 0,
            index: 2,
            generation: 1,
        };
        let alias = Mkey {
            kind: MkeyKind::Alias,
            len: 4096,
            target,
            ..Mkey::default()
        };
        assert_eq!(tables.qps.insert(owner, qp), Some(0));
        assert_eq!(tables.mkeys.insert(owner, alias), Some(0));
        drop(locked);
        let shown: Vec<_> = objects(&fabric).iter().map(Object::to_string).collect();
        assert_eq!(
            shown,
            [
                "node0.dpu qp 0x48 pid gone service RC state RTS port 1 pd 0x10 send_cq 0x10 recv_cq 0x10 \
                 sent 0 received 0 peer node0.host peer_port 1 peer_qp 0x4a waits yes",
                "node0.dpu mkey 0x60000 pid gone kind Alias origin Region pd 0x10 start 0x0 bytes \
                 4096 access 0x0 of node0.host of_index 0x602",
            ]
        );
    }
}
