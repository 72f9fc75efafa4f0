//! Jobs of light ranks with one service per node: the messages and the levels of the services' trees, by their radix.

use super::*;

/// A broadcast, gather or scatter of all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    /// Total number of ranks.
    pub ranks: u32,
    /// Number of nodes, which divides the ranks.
    pub nodes: u32,
    /// The call.
    pub pattern: Pattern,
    /// Branches of the trees; 0 stands for the defaults.
    pub radix: u32,
    /// Offers of a service without an answer, at most.
    pub sends: usize,
}

/// What the tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Messages that a service sends to others and gets from them; the service with most.
    pub messages: u64,
    /// Those of all services; each has a sender and a receiver.
    pub all_messages: u64,
    /// Bytes of offers that a service sends; the service with most.
    pub offers: u64,
    /// Messages that follow each other until the last rank has completed, answers included.
    pub depth: u32,
}

/// Runs a call that all ranks have entered before the services exchange a message.
///
/// # Errors
/// Errors of the data path. They occur only if the data path has a defect.
pub fn run(of: &Tree) -> Result<Levels> {
    let plan = Plan {
        ranks: of.ranks,
        nodes: of.nodes,
        pattern: of.pattern,
        rounds: 1,
    };
    let layout = Layout {
        radix: Radix(of.radix),
        sends: of.sends,
        ..Layout::of(&plan)
    };
    let wire = Wire::over(plan, layout);
    let layout = &wire.layout;
    let mut movers: Vec<Mover<Wire>> = (0..layout.services).map(|me| mover(layout, me)).collect();
    let messages = Messages::new(plan);
    for rank in 0..plan.ranks {
        let of = layout.service_of[rank as usize];
        let (kind, data) = messages.of(rank);
        wire.acting.set(of);
        let mover = &mut movers[of as usize];
        mover.receive(&wire, kind, &rank_token(rank).0, &data)?;
        mover.act(&wire)?;
    }
    let depth = pass(&wire, &mut movers)?;
    for (me, mover) in (0..).zip(&mut movers) {
        wire.acting.set(me);
        mover.settle(&wire)?;
    }
    pass(&wire, &mut movers)?;
    assert_eq!(
        wire.completed.get(),
        u64::from(plan.ranks),
        "each rank completes once"
    );
    let tallies = wire.tallies.borrow();
    let most = |of: fn(&Tally) -> u64| tallies.iter().map(of).max().unwrap_or(0);
    Ok(Levels {
        messages: most(|tally| tally.messages),
        all_messages: tallies.iter().map(|tally| tally.messages).sum::<u64>() / 2,
        offers: most(|tally| tally.offers),
        depth,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(pattern: Pattern, radix: u32, sends: usize) -> Levels {
        let of = Tree {
            ranks: 256,
            nodes: 64,
            pattern,
            radix,
            sends,
        };
        run(&of).expect("carried out")
    }

    /// A larger radix has fewer levels, and more messages at each. They pay only if as many offers may be under way.
    #[test]
    fn a_broadcast_has_as_many_levels_as_digits() {
        for (radix, digits) in [(0, 6), (2, 6), (4, 3), (8, 2), (64, 1)] {
            let found = levels(Pattern::Broadcast, radix, 64);
            // Down to the last service, and its answer to the one above, whose ranks are complete then.
            assert_eq!(found.depth, digits + 1, "{radix}: {found:?}");
            let branches = u64::from(digits * (radix.max(2) - 1));
            assert!(found.messages <= 2 * branches, "{radix}: {found:?}");
            // An offer to each service but the root's, and its answer.
            assert_eq!(found.all_messages, 2 * 63, "{radix}: {found:?}");
        }
        // The default of --sends is twice the radix.
        let few = [4, 16, 64].map(|sends| levels(Pattern::Broadcast, 8, sends));
        assert!(few[0].depth > few[1].depth, "{few:?}");
        assert_eq!(few[1].depth, few[2].depth, "{few:?}");
    }

    #[test]
    fn a_gather_or_scatter_has_fewer_levels_with_a_larger_radix() {
        for pattern in [Pattern::Gather, Pattern::Scatter] {
            let found = [2, 4, 8, 64].map(|radix| levels(pattern, radix, 64));
            assert!(
                found.windows(2).all(|pair| pair[0].depth >= pair[1].depth),
                "{pattern:?}: {found:?}"
            );
            assert!(
                found[0].depth > found[3].depth && found[3].depth <= 2,
                "{found:?}"
            );
            assert!(
                found
                    .windows(2)
                    .all(|pair| pair[0].messages <= pair[1].messages),
                "{pattern:?}: {found:?}"
            );
            assert_eq!(levels(pattern, 0, 64), found[1], "the default is 4");
        }
    }
}
