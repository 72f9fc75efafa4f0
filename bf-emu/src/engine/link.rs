//! The link model: a message takes time according to the bandwidth of its ports and the latency of
//! its path, if the cost profile names them.
//!
//! The functions of an adapter share its ports. Ports are full-duplex and independent of each
//! other. A message occupies the outgoing side of one port and the incoming side of another for its
//! length divided by the bandwidth, in order of arrival. It arrives after the latency. A message
//! within one port of an adapter takes the same time and occupies no port. Requests of one queue
//! follow each other without a gap, so a chain of them has the latency once. The waiting thread
//! then executes the message.

use mlx5_prm::qp::service;

use super::access::Need;
use super::access::Side;
use super::list::List;
use super::peer::destination;
use super::work::{self, Operation};
use crate::fabric::link;
use crate::fabric::numbers::qp_slot;
use crate::fabric::objects::Qp;
use crate::fabric::{Fabric, Locked, Place};
use crate::model::profile::CostKind;
use crate::sys;

/// Time at which the next request of a queue pair arrives. The bytes are those of its ring. None if
/// the request has arrived or takes no time.
pub(super) fn arrives_at(
    locked: &mut Locked<'_>,
    (function, qpn): (usize, u32),
    qp: &Qp,
    bytes: &[u8],
) -> Option<u64> {
    let fabric = locked.fabric();
    if !fabric.profile().has_link() {
        return None;
    }
    if qp.arrives_at_ns != 0 {
        return (qp.arrives_at_ns > sys::now_ns()).then_some(qp.arrives_at_ns);
    }
    let (from, to, length) = way(fabric, function, qp, bytes)?;
    // A request posted behind another one leaves directly after it.
    let from_ns = match qp.left_at_ns {
        0 => sys::now_ns(),
        left_at_ns => left_at_ns,
    };
    let transfer_ns = fabric.profile().cost_ns(CostKind::RdmaPerByte, length);
    let latency_ns = fabric.profile().cost_ns(CostKind::RdmaLatency, length);
    let (out, into) = (fabric.link(from)?, fabric.link(to)?);
    let left_at_ns = if std::ptr::eq(out, into) {
        from_ns.saturating_add(transfer_ns)
    } else {
        link::pass((out, into), transfer_ns, from_ns)
    };
    fabric.counters(function).link(transfer_ns);
    let arrives_at_ns = left_at_ns.saturating_add(latency_ns).max(1);
    if let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn)) {
        qp.left_at_ns = left_at_ns;
        qp.arrives_at_ns = arrives_at_ns;
    }
    Some(arrives_at_ns)
}

/// Source port, destination port and length of a request's data. None for a request without data
/// for another queue pair (NOP, UMR, memcpy), and for a request that will be refused.
pub(super) fn way(
    fabric: &Fabric,
    function: usize,
    qp: &Qp,
    bytes: &[u8],
) -> Option<(Place, Place, u64)> {
    let work = work::parse(bytes, qp.service).ok()?;
    let here = Place {
        function,
        port: qp.port(),
    };
    let there = match &work.address {
        Some(to) if matches!(qp.service, service::UD | service::DCI) => {
            destination(fabric, here, to)?
        }
        _ => qp.remote()?,
    };
    let side = Side {
        function,
        pd: qp.pd,
        qpn: 0,
    };
    let data = bytes.get(work.data_at..work.end)?;
    let mut list = List::new(side, Need::LocalRead);
    match work.operation {
        Operation::Nop | Operation::Umr { .. } | Operation::Memcpy { .. } => None,
        Operation::Send { .. } | Operation::Write { .. } => {
            list.gather(data).ok()?;
            Some((here, there, list.length()))
        }
        Operation::Read { .. } | Operation::Atomic { .. } => {
            list.scatter(data).ok()?;
            Some((there, here, list.length()))
        }
    }
}
