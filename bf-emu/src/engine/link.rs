//! The link model: a message takes the time that the bandwidth of its ports and the latency of its
//! way ask for, if the cost profile names them.
//!
//! Functions of one adapter share its ports; ports are full-duplex and independent. A message occupies
//! the outgoing side of one port and the incoming side of another for its length over the bandwidth,
//! first come, first served, and arrives by the latency later. What stays within a port of an adapter
//! takes the same time and occupies none. Requests of a queue follow each other without a gap, so that a
//! chain of them pays the latency once. Then the message is carried out, by the thread that has waited
//! for it.

use std::sync::atomic::{AtomicU64, Ordering};

use mlx5_prm::qp::service;

use super::access::Need;
use super::access::Side;
use super::complete::qp_slot;
use super::list::List;
use super::peer::destination;
use super::work::{self, Operation};
use crate::fabric::objects::Qp;
use crate::fabric::{Fabric, Locked, Place};
use crate::model::profile::CostKind;
use crate::sys;

/// The two sides of a port. All zeroes is idle. Changed under the device's lock only.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Port {
    out: Line,
    into: Line,
}

/// One direction of a port.
#[derive(Debug, Default)]
#[repr(C)]
struct Line {
    free_at_ns: AtomicU64,
}

/// Sends something that takes `transfer_ns` out of one port and into another, not before `from_ns`.
/// Returns when the last of it has left.
fn pass((out, into): (&Port, &Port), transfer_ns: u64, from_ns: u64) -> u64 {
    let lines = [&out.out.free_at_ns, &into.into.free_at_ns];
    let free_at_ns = lines.map(|line| line.load(Ordering::Relaxed));
    let start_ns = free_at_ns.into_iter().fold(from_ns, u64::max);
    let left_at_ns = start_ns.saturating_add(transfer_ns);
    for line in lines {
        line.store(left_at_ns, Ordering::Relaxed);
    }
    left_at_ns
}

/// When the next request of a queue pair, whose bytes are those of its ring, has arrived; None if it
/// has, or takes no time.
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
    // What was posted behind another request leaves right behind it.
    let from_ns = match qp.left_at_ns {
        0 => sys::now_ns(),
        left_at_ns => left_at_ns,
    };
    let transfer_ns = fabric.profile().cost_ns(CostKind::RdmaPerByte, length);
    let latency_ns = fabric.profile().cost_ns(CostKind::RdmaLatency, length);
    let (out, into) = (fabric.link(from), fabric.link(to));
    let left_at_ns = if std::ptr::eq(out, into) {
        from_ns.saturating_add(transfer_ns)
    } else {
        pass((out, into), transfer_ns, from_ns)
    };
    fabric.counters(function).link(transfer_ns);
    let arrives_at_ns = left_at_ns.saturating_add(latency_ns).max(1);
    if let Some(qp) = locked.function(function).qps.get_mut(qp_slot(qpn)) {
        qp.left_at_ns = left_at_ns;
        qp.arrives_at_ns = arrives_at_ns;
    }
    Some(arrives_at_ns)
}

/// From which port to which the data of a request goes, and how much. None for a request that
/// does not leave, or that will be refused.
fn way(fabric: &Fabric, function: usize, qp: &Qp, bytes: &[u8]) -> Option<(Place, Place, u64)> {
    let work = work::parse(bytes, qp.service).ok()?;
    let there = match &work.address {
        Some(to) if matches!(qp.service, service::UD | service::DCI) => destination(fabric, to)?,
        _ => qp.remote()?,
    };
    let here = Place {
        function,
        port: qp.port(),
    };
    let side = Side {
        function,
        pd: qp.pd,
        qpn: 0,
    };
    let data = bytes.get(work.data_at..work.end)?;
    let mut list = List::new(side, Need::LocalRead);
    match work.operation {
        Operation::Nop | Operation::Umr { .. } => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A message from a port to a port, what it takes, when it is sent and when it has left.
    type Message = ((usize, usize), u64, u64, u64);

    #[track_caller]
    fn check(messages: &[Message]) {
        let ports: [Port; 4] = std::array::from_fn(|_| Port::default());
        for (ways, transfer_ns, from_ns, expect) in messages {
            let way = (&ports[ways.0], &ports[ways.1]);
            assert_eq!(pass(way, *transfer_ns, *from_ns), *expect, "{messages:?}");
        }
    }

    #[test]
    fn two_queues_of_a_port_share_its_bandwidth() {
        // Two that send 3 messages of 100 ns each at the same time, to different ports: 600 ns.
        check(&[
            ((0, 1), 100, 1000, 1100),
            ((0, 2), 100, 1000, 1200),
            ((0, 1), 100, 1100, 1300),
            ((0, 2), 100, 1200, 1400),
            ((0, 1), 100, 1300, 1500),
            ((0, 2), 100, 1400, 1600),
        ]);
        // Two ports into one: the same.
        check(&[((0, 2), 100, 1000, 1100), ((1, 2), 100, 1000, 1200)]);
    }

    #[test]
    fn other_ports_and_the_other_direction_are_independent() {
        check(&[
            ((0, 1), 1000, 1000, 2000),
            ((2, 3), 1000, 1000, 2000),
            ((1, 0), 1000, 1000, 2000),
            ((3, 2), 1000, 1500, 2500),
        ]);
    }

    #[test]
    fn an_idle_port_takes_no_time_and_saves_none() {
        check(&[
            ((0, 1), 100, 1000, 1100),
            ((0, 1), 100, 5000, 5100),
            ((0, 1), 0, 5000, 5100),
            ((0, 1), u64::MAX, 5200, u64::MAX),
        ]);
    }
}
