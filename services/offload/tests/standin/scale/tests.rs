//! Whole jobs of light ranks: limits of their bytes and messages.

use super::*;

fn outcome(ranks: u32, nodes: u32, pattern: Pattern) -> Outcome {
    let plan = Plan {
        ranks,
        nodes,
        pattern,
        rounds: 2,
    };
    run(&plan, Memory::NONE).expect("carried out")
}

/// The limits are those of 16,384 ranks: the entry of a rank does not grow, and an offer takes less than 128 bytes.
#[test]
fn a_call_takes_few_bytes_and_messages_whatever_the_number_of_ranks() {
    for (ranks, nodes) in [(64, 8), (512, 32)] {
        let dense = outcome(ranks, nodes, Pattern::Alltoall);
        assert_eq!(dense.blocks, u64::from(ranks * ranks));
        assert!(dense.to_service <= 64, "{dense:?}");
        let per_node = f64::from(ranks / nodes);
        let per_offer = dense.offers_per_rank * per_node / f64::from(nodes - 1);
        assert!(per_offer <= 128.0, "{dense:?}");
        let sparse = outcome(ranks, nodes, Pattern::Halo);
        assert_eq!(sparse.blocks, 6 * u64::from(ranks));
        let between = sparse.offers_per_rank + sparse.answers_per_rank;
        assert!(sparse.to_service <= 128 && between <= 896.0, "{sparse:?}");
        let rounds = u64::from(nodes.ilog2());
        for (pattern, more) in [(Pattern::Broadcast, 2), (Pattern::Barrier, 0)] {
            let tree = outcome(ranks, nodes, pattern);
            assert!(tree.messages <= 2 * rounds + more, "{tree:?}");
            assert!(tree.to_service <= 64, "{tree:?}");
        }
        // The tree twice: an SP sends its ranks' sum, and gets that of all.
        let sum = outcome(ranks, nodes, Pattern::Allreduce);
        assert_eq!(sum.blocks, u64::from(ranks));
        assert!(
            sum.to_service <= 64 && sum.messages <= 4 * rounds,
            "{sum:?}"
        );
    }
}

/// The offers of the other services, made for one alone, are those of a whole job.
#[test]
fn one_service_alone_is_as_one_of_all() {
    let plan = Plan {
        ranks: 128,
        nodes: 8,
        pattern: Pattern::Alltoall,
        rounds: 1,
    };
    let (all, alone) = (Wire::new(plan), Wire::new(plan));
    whole(&all, Memory::NONE).expect("carried out");
    one::run(&alone, 4, Memory::NONE).expect("carried out");
    let offers = |wire: &Wire| {
        wire.tallies
            .borrow()
            .iter()
            .map(|of| of.offers)
            .collect::<Vec<u64>>()
    };
    assert_eq!(
        offers(&all)[..4],
        offers(&all)[4..],
        "all services offer the same"
    );
    assert_eq!(
        offers(&all)[0],
        7 * offers(&alone)[0],
        "for each of the others"
    );
    let (all, alone) = (all.tallies.borrow()[4], alone.tallies.borrow()[4]);
    assert_eq!((all.offers, all.answers), (alone.offers, alone.answers));
    assert_eq!(all.messages, alone.messages);
}

/// It travels along a tree of the services, whose first one hears of as many as there are levels.
#[test]
fn a_vector_of_many_services_takes_a_tree() {
    for (ranks, nodes, bytes, levels) in [(256, 64, 32 << 10, 6), (512, 512, 256 << 10, 9)] {
        let plan = Plan {
            ranks,
            nodes,
            pattern: Pattern::Vector(bytes),
            rounds: 1,
        };
        let sum = run(&plan, Memory::NONE).expect("carried out");
        assert_eq!(sum.messages, 4 * levels, "{sum:?}");
        // Its own ranks' vectors, those of the services below, and two sums. A buffer has a power of two.
        let held = bytes * (u64::from(ranks / nodes) + levels + 3);
        assert!(sum.memory_per_service as u64 <= 2 * held, "{sum:?}");
    }
}

/// The result is compared where it arrives. Each service reads the vectors of its own ranks, and a segment of each service's sum; it
/// holds two windows of its ranks at most, and a segment of all services for each.
#[test]
fn a_long_vector_is_reduced_in_the_nodes_and_then_by_all_services() {
    for (ranks, nodes) in [(16, 4), (128, 128)] {
        let plan = Plan {
            ranks,
            nodes,
            pattern: Pattern::Vector(1 << 20),
            rounds: 1,
        };
        let sum = run(&plan, Memory::NONE).expect("carried out");
        assert!(sum.to_service <= 256, "{sum:?}");
        assert!(sum.messages <= 8 * 2 * 2 * u64::from(nodes), "{sum:?}");
        let per_node = (ranks / nodes) as usize;
        let held = 2 * (256 << 10) * (per_node + 2) + 2 * (8 << 10) * nodes as usize;
        assert!(sum.memory_per_service <= 2 * held, "{sum:?}");
    }
}
