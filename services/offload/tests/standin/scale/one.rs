//! One service of an alltoall of so many ranks that all services do not fit in one process.

use super::*;

/// The offers of a service for another one in an alltoall.
fn offers_of(plan: &Plan, from: u32, to: u32) -> Vec<Letter> {
    let per_node = plan.ranks / plan.nodes;
    let run = Run {
        peer: to * per_node,
        step: 1,
        count: per_node,
        offset: u64::from(to * per_node) * BLOCK,
        stride: BLOCK,
        length: BLOCK,
    };
    let mut queue = Queue::new(from, plan.nodes as usize);
    for rank in from * per_node..(from + 1) * per_node {
        let blocks = run.peer..run.peer + run.count;
        let short: Vec<u8> = blocks
            .flat_map(|to| content(rank, to).to_le_bytes())
            .collect();
        queue.outboxes[to as usize]
            .draft
            .runs(rank, 0, &[run], &short, &[]);
        queue.added(to);
    }
    let letter = |offer| {
        let head = RtsHead {
            whole: 0,
            collective: COLLECTIVE,
            from,
            offer,
        };
        let (_, _, data) = queue.take(head, true)?;
        Some(Letter {
            from,
            to,
            kind: Kind::DpuRts,
            token: service_token(from, to),
            data,
        })
    };
    (0..).map_while(letter).collect()
}

/// Runs one service of an alltoall, with the offers of all others. Returns its peak memory.
pub(super) fn run(wire: &Wire, me: u32, memory: Memory<'_>) -> Result<usize> {
    let plan = wire.plan;
    let per_node = plan.ranks / plan.nodes;
    let messages = Messages::new(plan);
    let mut offers: Vec<Letter> = (0..plan.nodes)
        .filter(|other| *other != me)
        .flat_map(|other| offers_of(&plan, other, me))
        .collect();
    let mut arrivals: Vec<(u32, Kind, Vec<u8>)> = (me * per_node..(me + 1) * per_node)
        .map(|rank| {
            let (kind, data) = messages.of(rank);
            (rank, kind, data)
        })
        .collect();
    wire.tallies.borrow_mut().fill(Tally::default());
    wire.acting.set(me);
    (memory.mark)();
    let mut mover = mover(&wire.layout, me);
    let early = offers.len() / 2;
    for round in 0..plan.rounds {
        let mut got = 0;
        let mut offered = |mover: &mut Mover<Wire>, letters: &mut [Letter]| -> Result<()> {
            for letter in letters {
                number(letter.kind, &mut letter.data, round);
                wire.count(letter.from, me, letter.kind, &letter.data)?;
                got += 1;
                mover.receive(wire, letter.kind, &letter.token.0, &letter.data)?;
                mover.act(wire)?;
                answer(wire, mover)?;
            }
            Ok(())
        };
        let (first, last) = offers.split_at_mut(early);
        offered(&mut mover, first)?;
        for (rank, kind, data) in &mut arrivals {
            number(*kind, data, round);
            mover.receive(wire, *kind, &rank_token(*rank).0, data)?;
            mover.act(wire)?;
            answer(wire, &mut mover)?;
        }
        offered(&mut mover, last)?;
    }
    let peak = (memory.peak)();
    let expect = u64::from(plan.rounds) * u64::from(per_node);
    assert_eq!(wire.completed.get(), expect, "each rank completes once");
    Ok(peak)
}

/// Takes the messages of a service and answers its offers, as other services do.
fn answer(wire: &Wire, mover: &mut Mover<Wire>) -> Result<()> {
    let me = wire.acting.get();
    loop {
        let batch = std::mem::take(&mut *wire.letters.borrow_mut());
        if batch.is_empty() {
            return Ok(());
        }
        for letter in batch {
            if letter.kind != Kind::DpuRts {
                continue;
            }
            let rts = DpuRts::parse(&letter.data).map_err(|bad| failed(bad.to_string()))?;
            let fin = DpuFin {
                from: letter.to,
                offers: vec![rts.offer],
            };
            let data = fin.to_bytes();
            wire.count(letter.to, me, Kind::DpuFin, &data)?;
            mover.receive(wire, Kind::DpuFin, &service_token(letter.to, me).0, &data)?;
        }
        mover.act(wire)?;
    }
}
