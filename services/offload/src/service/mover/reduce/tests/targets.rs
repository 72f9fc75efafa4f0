//! Reduces and reduce-scatters: every byte at every rank. And what the network carries.

use super::*;
use crate::wire::DpuRts;

/// The part of the result that a member gets, in elements.
pub(super) type Part = (usize, usize);

impl Job {
    /// A reduction of 32-bit sums over all ranks, whose rank `i` gets the elements of part `i`.
    pub(super) fn check_target(&mut self, elements: usize, target: &Target, parts: &[Part]) {
        let length = elements * 4;
        let is_short = (length as u64) < DIRECT_MIN;
        let members: Vec<u32> = (0..).take(parts.len()).collect();
        let mut receives = Vec::new();
        for (rank, (_, count)) in members.iter().zip(parts) {
            let vector = words(elements, |index| value(*rank, index));
            let send = allocate(length);
            at(send, length).copy_from_slice(&vector);
            let receive = allocate(count * 4);
            receives.push(receive);
            let export = |address, length| Export {
                address,
                length: length as u64,
                packed: vec![1],
                name: None,
            };
            self.enter(&HostReduce {
                whole: 0,
                collective: Collective {
                    communicator: 0,
                    sequence: self.calls,
                    start: 0,
                    step: 0,
                },
                rank: *rank,
                reduction: Reduction::new(Element::U32, Operation::Sum).expect("defined"),
                turn: Some(self.calls),
                open: 0,
                length: length as u64,
                members: members.clone().into(),
                target: target.clone(),
                send_memory: (!is_short).then(|| export(send, length)),
                receive_memory: (!is_short && *count > 0).then(|| export(receive, count * 4)),
                short: if is_short { vector } else { Vec::new() },
            });
        }
        self.calls += 1;
        self.run();
        let answers = self.machine.answers.take();
        assert_eq!(answers.len(), members.len(), "each rank completes once");
        for (rank, fin) in answers {
            let (first, count) = parts[rank as usize];
            let receive = at(receives[rank as usize], count * 4);
            let mut rest = &fin.bytes[..];
            for (offset, length) in fin
                .short
                .iter()
                .flat_map(|of| of.offsets().map(|at| (at, of.length)))
            {
                let number = |number| usize::try_from(number).expect("small");
                let (data, after) = rest.split_at(number(length));
                receive[number(offset)..][..data.len()].copy_from_slice(data);
                rest = after;
            }
            let expect = words(count, |index| {
                let values = members.iter().map(|rank| value(*rank, first + index));
                values.fold(0, u32::wrapping_add)
            });
            assert!(
                *receive == expect,
                "rank {rank}, {elements} elements, {target:?}"
            );
        }
        assert_eq!(self.machine.imports.get(), 0, "all buffers are released");
        assert!(self.movers.iter().all(|mover| mover.reducing.bytes() == 0));
    }
}

const PLACES: [&[u32]; 4] = [&[0, 0], &[0, 1, 1], &[0, 0, 1, 1, 2], &[1, 0, 1, 0]];
const ELEMENTS: [usize; 8] = [0, 1, 127, 129, 1024, 5000, 70_000, 200_000];

#[test]
fn the_root_of_a_reduce_gets_the_sum() {
    for service_of in PLACES {
        let mut job = Job::new(service_of);
        for elements in ELEMENTS {
            for root in 0..service_of.len() {
                let part = |rank| (0, if rank == root { elements } else { 0 });
                let parts: Vec<Part> = (0..service_of.len()).map(part).collect();
                let target = Target::Root(u32::try_from(root).expect("few"));
                job.check_target(elements, &target, &parts);
            }
        }
    }
}

/// Ranges of any length, also none, and shorter than a block for the device.
#[test]
fn each_rank_of_a_reduce_scatter_gets_its_range() {
    for service_of in PLACES {
        let mut job = Job::new(service_of);
        let size = service_of.len();
        for elements in ELEMENTS {
            let even = vec![elements / size; size];
            let mut uneven = vec![elements / (2 * size); size];
            uneven[0] = 0;
            uneven[size - 1] = 3.min(elements);
            for mut counts in [even, uneven] {
                counts[1] += elements - counts.iter().sum::<usize>();
                let mut first = 0;
                let parts = counts.iter().map(|count| {
                    first += count;
                    (first - count, *count)
                });
                let parts: Vec<Part> = parts.collect();
                let ranges = (0..).zip(&parts).map(|(peer, (first, count))| Block {
                    peer,
                    offset: 4 * *first as u64,
                    length: 4 * *count as u64,
                });
                let ranges = ranges.filter(|range| range.length > 0).collect();
                job.check_target(elements, &Target::Ranges(ranges), &parts);
            }
        }
    }
}

/// A node's contributions are reduced before they leave it.
#[test]
fn the_network_carries_a_vector_once_per_service() {
    const ELEMENTS: usize = 40_000;
    let mut bytes = Vec::new();
    for service_of in [&[0, 1, 2][..], &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]] {
        let mut job = Job::new(service_of);
        let all: Vec<u32> = (0..).take(service_of.len()).collect();
        job.check(&all, ELEMENTS, true);
        let offered = job.machine.offered.take();
        bytes.push(offered.iter().map(|data| contributed(data)).sum::<u64>());
    }
    // Two of the three services get a segment from another one.
    let vector = 4 * ELEMENTS as u64;
    assert_eq!(bytes, [2 * vector, 2 * vector]);
}

/// Bytes of contributions in an offer.
fn contributed(data: &[u8]) -> u64 {
    let rts = DpuRts::parse(data).expect("an offer");
    if !rts.collective.is_scatter() {
        return 0;
    }
    let blocks = rts.parts.iter().flat_map(|part| part.blocks.to_vec());
    blocks.map(|block| block.length).sum()
}

#[test]
fn a_result_for_nobody_fails_the_job() {
    let block = |peer, offset, length| Block {
        peer,
        offset,
        length,
    };
    for (target, expect) in [
        (Target::Root(7), "its root is not a member"),
        (Target::Ranges(vec![block(0, 4, 4)]), "does not exist"),
        (Target::Ranges(vec![block(7, 0, 4)]), "does not exist"),
        (
            Target::Ranges(vec![block(0, 0, 1), block(1, 0, 1), block(1, 1, 1)]),
            "more ranges than members",
        ),
    ] {
        let mut job = Job::new(&[0, 1]);
        let message = HostReduce {
            whole: 0,
            target,
            length: 4,
            short: vec![1; 4],
            send_memory: None,
            receive_memory: None,
            ..job.vector(0, &[0, 1], 1, (0, 0))
        };
        let error = job.movers[0]
            .receive(
                &job.machine,
                Kind::HostReduce,
                &token(0).0,
                &message.to_bytes(),
            )
            .expect_err("refused")
            .to_string();
        assert!(error.contains(expect), "{error}");
    }
}
