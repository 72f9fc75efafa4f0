//! Jobs of light ranks with several services per node: the connections and the messages of a service, with lanes and without.

use super::*;
use crate::client::services_used;

/// A call of all ranks on nodes with several services each.
#[derive(Debug, Clone, Copy)]
pub struct Several {
    /// Total number of ranks, a power of two of at least 64.
    pub ranks: u32,
    /// Number of nodes, which divides the ranks.
    pub nodes: u32,
    /// Number of services of each node.
    pub services: u32,
    /// Minimum number of ranks of a service.
    pub least: u32,
    /// The call.
    pub pattern: Pattern,
}

/// What a service has; the one with most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// Number of lanes.
    pub lanes: usize,
    /// Connections to other services, and to ranks.
    pub to_services: u64,
    pub to_ranks: u64,
    /// Messages that it sends to other services and gets from them, and those from and to ranks.
    pub messages: u64,
    pub of_ranks: u64,
    /// Blocks that were compared, of all services.
    pub blocks: u64,
}

/// Runs a call in the lanes that the ranks choose, or without lanes.
///
/// # Errors
/// Errors of the data path. They occur only if the data path has a defect.
pub fn run(of: &Several, has_lanes: bool) -> Result<Most> {
    let per_node = of.ranks / of.nodes;
    let plan = Plan {
        ranks: of.ranks,
        nodes: of.nodes,
        pattern: of.pattern,
        rounds: 1,
    };
    let places = (0..of.ranks).map(|rank| (u64::from(rank / per_node), of.services, of.least));
    let lanes = Lanes::of_nodes(places);
    if !has_lanes || lanes.count() == 1 {
        let used = services_used(per_node as usize, of.services as usize, of.least as usize);
        let used = u32::try_from(used).expect("a few");
        let service_of = (0..of.ranks).map(|rank| rank / per_node * used + rank % per_node % used);
        let layout = Layout {
            services: used * of.nodes,
            service_of: service_of.collect(),
            lane: None,
            radix: Radix::default(),
            sends: SENDS,
        };
        let wire = Wire::over(plan, layout);
        whole(&wire, Memory::NONE)?;
        return Ok(most(&wire, 1, per_node / used));
    }
    let count = lanes.count();
    let mut all: Option<Most> = None;
    for lane in 0..count {
        let layout = Layout {
            lane: Some((lanes.clone(), lane)),
            ..Layout::of(&plan)
        };
        let wire = Wire::over(plan, layout);
        in_lane(&wire)?;
        let found = most(&wire, count, per_node);
        all = Some(match all {
            None => found,
            Some(other) => Most {
                messages: other.messages.max(found.messages),
                of_ranks: other.of_ranks.max(found.of_ranks),
                blocks: other.blocks + found.blocks,
                ..found
            },
        });
    }
    all.ok_or_else(|| failed("no lane"))
}

fn most(wire: &Wire, lanes: usize, ranks: u32) -> Most {
    let tallies = wire.tallies.borrow();
    let most = |of: fn(&Tally) -> u64| tallies.iter().map(of).max().unwrap_or(0);
    Most {
        lanes,
        to_services: u64::from(wire.layout.services - 1),
        to_ranks: ranks.into(),
        messages: most(|tally| tally.messages),
        of_ranks: most(|tally| tally.of_ranks),
        blocks: wire.blocks.get(),
    }
}

/// The message of a rank in a lane, as `client::launch` makes it; `None` if the rank does not enter the call there.
fn message_in(plan: &Plan, rank: u32, (lanes, lane): &(Lanes, usize)) -> Option<(Kind, Vec<u8>)> {
    if !matches!(plan.pattern, Pattern::Alltoall | Pattern::Halo) {
        let (kind, data, _) = message(plan, rank);
        return (lanes.turn(COLLECTIVE) == *lane).then_some((kind, data));
    }
    let part = lanes.part(&blocks(sends(plan, rank)), *lane);
    let is_own = lanes.of(rank) == *lane;
    if !is_own && part.len() == 0 {
        return None;
    }
    let contents = part
        .iter()
        .map(|block| content(rank, block.peer).to_le_bytes());
    let arrive = HostArrive {
        collective: COLLECTIVE,
        rank,
        together: plan.ranks / plan.nodes,
        send_memory: None,
        receive_memory: None,
        short: contents.flatten().collect(),
        sends: part,
        receives: match is_own {
            true => blocks(receives(plan, rank)),
            false => blocks(std::iter::empty()),
        },
        route: Route::Direct,
    };
    Some((Kind::HostArrive, arrive.to_bytes()))
}

/// Runs the services of a lane.
fn in_lane(wire: &Wire) -> Result<()> {
    let (plan, layout) = (wire.plan, &wire.layout);
    let lane = layout.lane.as_ref().ok_or_else(|| failed("no lane"))?;
    let mut movers: Vec<Mover<Wire>> = (0..layout.services).map(|me| mover(layout, me)).collect();
    let mut expect = 0;
    for rank in 0..plan.ranks {
        let Some((kind, data)) = message_in(&plan, rank, lane) else {
            continue;
        };
        expect += 1;
        let of = layout.service_of[rank as usize];
        wire.acting.set(of);
        wire.tallies.borrow_mut()[of as usize].of_ranks += 1;
        let mover = &mut movers[of as usize];
        mover.receive(wire, kind, &rank_token(rank).0, &data)?;
        mover.act(wire)?;
        pass(wire, &mut movers)?;
    }
    for (me, mover) in (0..).zip(&mut movers) {
        wire.acting.set(me);
        mover.settle(wire)?;
    }
    pass(wire, &mut movers)?;
    assert_eq!(wire.completed.get(), expect, "each rank completes once");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections and messages of a service follow the nodes and their ranks, and not the services of other nodes.
    #[test]
    fn a_service_in_a_lane_meets_its_ranks_and_one_service_of_each_node() {
        for (nodes, pattern) in [
            (16, Pattern::Alltoall),
            (16, Pattern::Allreduce),
            (64, Pattern::Halo),
            (64, Pattern::Broadcast),
            (64, Pattern::Barrier),
        ] {
            let of = Several {
                ranks: nodes * 8,
                nodes,
                services: 4,
                least: 2,
                pattern,
            };
            let (before, after) = (run(&of, false), run(&of, true));
            let (before, after) = (before.expect("runs"), after.expect("runs"));
            let nodes = u64::from(nodes);
            assert_eq!((before.lanes, after.lanes), (1, 4));
            assert_eq!((before.to_services, before.to_ranks), (4 * nodes - 1, 2));
            assert_eq!((after.to_services, after.to_ranks), (nodes - 1, 8));
            assert_eq!(before.blocks, after.blocks);
            let logarithm = 2 * u64::from(nodes.ilog2()) + 2;
            let messages = match pattern {
                Pattern::Broadcast | Pattern::Barrier => logarithm,
                _ => 4 * (nodes - 1),
            };
            assert!(after.messages <= messages, "{after:?}");
            assert!(after.messages < before.messages, "{before:?} {after:?}");
            assert!(after.of_ranks <= 16, "{after:?}");
        }
    }

    #[test]
    fn few_nodes_have_no_lanes() {
        let of = Several {
            ranks: 128,
            nodes: 4,
            services: 4,
            least: 8,
            pattern: Pattern::Alltoall,
        };
        let (before, after) = (run(&of, false), run(&of, true));
        assert_eq!(before.expect("runs"), after.expect("runs"));
    }
}
