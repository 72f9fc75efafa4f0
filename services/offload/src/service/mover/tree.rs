//! Broadcasts and barriers of a job at one SP: the messages of an SP grow with the logarithm of the number of SPs.
//!
//! A broadcast is a tree of the members' SPs, binomial by default. At each SP one rank stands for the others: the root, or else the
//! lowest member. It gets the data from the rank of the SP above, and then passes it on to the ranks of the SPs below and to
//! the other members of its own SP. The levels of the tree are collectives of the ledger, with the level as their step.
//!
//! A barrier begins at an SP when all members there have entered it. In round *k* the SP sends a note to the SP 2^k places
//! ahead, and waits for that of the SP 2^k places behind; after the last round it has heard of all.

use super::{Buffers, Entered, From, Mover, Receive, failed, packed};
use crate::error::Result;
use crate::service::actions::Short;
use crate::service::imports::Lent;
use crate::service::ledger::Ledger;
use crate::service::spacing::{Member, place_of};
use crate::service::transport::Transport;
use crate::service::trees::{Branch, RANK_HELD, Round, Tree, barrier_of};
use crate::service::vectors::Stepped;
use crate::wire::{Block, Blocks, Collective, Delivered, DpuNote, Entry, Kind, TREE_STEP, Wide};
use std::rc::Rc;

impl<T: Transport> Mover<T> {
    /// A local rank enters a broadcast or a barrier.
    pub(super) fn tree(&mut self, transport: &T, entry: &Entry<'_>) -> Result<()> {
        let (collective, rank) = (entry.collective, entry.rank);
        let wrong = |what: &str| {
            failed(format!(
                "rank {rank} breaks the protocol in {collective}: {what}"
            ))
        };
        let local = self.ledger.local(rank);
        let local = local.ok_or_else(|| wrong("it is not this service's"))?;
        let members = self.ledger.members(entry.members).map_err(wrong)?;
        let place = place_of(&members, self.me).ok_or_else(|| wrong("it is not a member"))?;
        if !Ledger::has_member(entry.members, rank) {
            return Err(wrong("it is not a member"));
        }
        if entry.is_barrier {
            return self.enter_barrier(transport, collective, local, members, place);
        }
        let is_short = entry.length < self.limits.direct_min;
        let expect = if is_short && rank == entry.root {
            entry.length
        } else {
            0
        };
        if entry.short.len() as u64 != expect {
            return Err(wrong("it has sent another number of bytes than expected"));
        }
        if entry.memory.map_or(0, |memory| memory.length) < if is_short { 0 } else { entry.length }
        {
            return Err(wrong("its buffer is shorter than its data"));
        }
        if self.trees.broadcasts.contains_key(&(collective, local)) {
            return Err(wrong("it entered the call twice"));
        }
        let position = self.ledger.service_of(entry.root);
        let position = position.filter(|_| Ledger::has_member(entry.members, entry.root));
        let top = position.and_then(|service| place_of(&members, service));
        let top = top.ok_or_else(|| wrong("its root is not a member"))?;
        let tree = Tree {
            members: &members,
            top,
            root: entry.root,
            radix: self.limits.radix.of_broadcast(),
        };
        let place = tree.place_of(place);
        let memory = self.import(transport, rank, entry.memory)?;
        packed(transport, memory.as_ref())?;
        let stands = tree.stands_for(place) == rank;
        let level = tree.level(place);
        let mut branch = Branch {
            rank,
            memory,
            base: entry.memory.map_or(0, |export| export.address),
            length: entry.length,
            whole: entry.whole,
            short: entry.short.to_vec(),
            level,
            below: Vec::new(),
            is_root: rank == entry.root,
            since: self.now(),
            held: 0,
        };
        let above = if stands {
            branch.below = tree
                .below(place)
                .map(|below| tree.stands_for(below))
                .collect();
            let others = self.ledger.local_members(entry.members).into_iter();
            branch.below.extend(others.filter(|other| *other != rank));
            let above = tree.above(place).map(|above| tree.stands_for(above));
            if above.is_none() {
                branch.level = 0;
            }
            above
        } else {
            branch.level += 1;
            Some(tree.stands_for(place))
        };
        // The data is here when it has come, and once for each rank below.
        let copies = if is_short { branch.below.len() + 2 } else { 0 };
        let data = usize::try_from(entry.length).unwrap_or(usize::MAX);
        branch.held = RANK_HELD + 4 * branch.below.len() + copies.saturating_mul(data);
        self.trees.bytes += branch.held;
        if branch.length == 0 {
            return self.end_broadcast(transport, collective, local, branch);
        }
        match above {
            Some(above) => self.get_from(collective, local, branch, above),
            None => self.pass_on(transport, collective, local, branch),
        }
    }

    /// A rank waits for the data of a rank above it.
    fn get_from(
        &mut self,
        collective: Collective,
        local: usize,
        branch: Branch<T>,
        above: u32,
    ) -> Result<()> {
        let receive = branch.memory.clone().map(Receive::Shared);
        let entered = Entered::new(None, receive, branch.since);
        let blocks = [block(above, branch.length).wide()];
        let (rank, level) = (branch.rank, branch.level);
        self.agree(at_level(collective, level), branch.whole)?;
        self.trees.broadcasts.insert((collective, local), branch);
        self.enter(
            at_level(collective, level),
            (rank, 0),
            (Blocks::Wide(&[]), Blocks::Wide(&blocks).into()),
            &[],
            From::Other(Buffers { base: 0, key: &[] }),
            entered,
        )
        .map(drop)
    }

    /// A rank has the data and passes it on.
    fn pass_on(
        &mut self,
        transport: &T,
        collective: Collective,
        local: usize,
        mut branch: Branch<T>,
    ) -> Result<()> {
        let below = std::mem::take(&mut branch.below);
        if below.is_empty() {
            return self.end_broadcast(transport, collective, local, branch);
        }
        branch.level += 1;
        let mut sends: Vec<Block> = below.iter().map(|to| block(*to, branch.length)).collect();
        sends.sort_unstable_by_key(|block| block.peer);
        let sends: Vec<Wide> = sends.iter().map(Block::wide).collect();
        let short = branch.short.repeat(below.len());
        let entered = Entered::new(None, None, branch.since);
        self.agree(at_level(collective, branch.level), branch.whole)?;
        self.enter(
            at_level(collective, branch.level),
            (branch.rank, 0),
            (Blocks::Wide(&sends), Blocks::Wide(&[]).into()),
            &short,
            From::Other(Buffers {
                base: branch.base,
                key: branch.memory.as_ref().map_or(&[], Lent::key),
            }),
            entered,
        )?;
        self.trees.broadcasts.insert((collective, local), branch);
        Ok(())
    }

    /// A level of a broadcast is complete for a rank.
    pub(super) fn climbed(&mut self, transport: &T, stepped: Stepped) -> Result<()> {
        let collective = Collective {
            step: 0,
            ..stepped.collective
        };
        let branch = self.trees.broadcasts.remove(&(collective, stepped.local));
        let Some(mut branch) = branch else {
            return Err(failed(format!(
                "{collective} is complete, but not under way"
            )));
        };
        if !stepped.bytes.is_empty() {
            branch.short = stepped.bytes;
        }
        self.pass_on(transport, collective, stepped.local, branch)
    }

    /// A rank has the data, and so have those below it.
    fn end_broadcast(
        &mut self,
        transport: &T,
        collective: Collective,
        local: usize,
        branch: Branch<T>,
    ) -> Result<()> {
        self.trees.bytes -= branch.held;
        let now = self.now();
        self.moved.completed(now, branch.since);
        if let Some(memory) = branch.memory {
            memory.release(transport)?;
        }
        let bytes = if branch.is_root {
            Vec::new()
        } else {
            branch.short
        };
        let short = (!bytes.is_empty()).then(|| {
            let blocks = vec![Delivered::one(0, bytes.len() as u64)];
            Box::new(Short {
                blocks,
                bytes,
                message: None,
            })
        });
        self.complete(transport, collective, local, short)
    }

    /// A local rank enters a barrier.
    fn enter_barrier(
        &mut self,
        transport: &T,
        collective: Collective,
        local: usize,
        members: Rc<[Member]>,
        place: usize,
    ) -> Result<()> {
        let now = self.now();
        let bytes = &mut self.trees.bytes;
        let barrier = barrier_of(&mut self.trees.barriers, bytes, collective);
        if barrier.entered.iter().any(|(of, _)| *of == local) {
            return Err(failed(format!(
                "local rank {local} entered {collective} twice"
            )));
        }
        barrier.entered.push((local, now));
        match &barrier.round {
            None => {
                barrier.held += size_of_val(&members[..]);
                *bytes += size_of_val(&members[..]);
                barrier.round = Some(Round {
                    members,
                    place,
                    next: 0,
                    is_sent: false,
                });
            }
            Some(round) if Rc::ptr_eq(&members, &round.members) || members == round.members => {}
            Some(_) => return Err(failed(format!("the members of {collective} disagree"))),
        }
        self.advance(transport, collective)
    }

    /// A note of another SP has come.
    pub(super) fn noted(&mut self, transport: &T, note: DpuNote) -> Result<()> {
        let collective = Collective {
            step: 0,
            ..note.collective
        };
        let bytes = &mut self.trees.bytes;
        let barrier = barrier_of(&mut self.trees.barriers, bytes, collective);
        let slot = &mut barrier.notes[note.collective.step as usize];
        if slot.replace(note.from).is_some() {
            return Err(failed(format!(
                "service {} breaks the protocol in {collective}: a second note of round {}",
                note.from, note.collective.step
            )));
        }
        self.advance(transport, collective)
    }

    /// Does the rounds of a barrier that can be done.
    fn advance(&mut self, transport: &T, collective: Collective) -> Result<()> {
        loop {
            let Some(barrier) = self.trees.barriers.get_mut(&collective) else {
                return Ok(());
            };
            let Some(round) = barrier.round.as_mut() else {
                return Ok(());
            };
            if barrier.entered.len() < round.members[round.place].count as usize {
                return Ok(());
            }
            let (count, ahead) = (round.members.len(), 1_usize << round.next);
            if ahead >= count {
                break;
            }
            let to = round.members[(round.place + ahead) % count].service;
            let from = round.members[(round.place + count - ahead) % count].service;
            let step = round.next;
            if !std::mem::replace(&mut round.is_sent, true) {
                let note = DpuNote {
                    collective: Collective { step, ..collective },
                    from: self.me,
                };
                let data = note.to_bytes_in(self.ledger.memory());
                self.tell_service(transport, to, Kind::DpuNote, data)?;
                continue;
            }
            match barrier.notes[step as usize] {
                None => return Ok(()),
                Some(sender) if sender == from => {}
                Some(sender) => {
                    return Err(failed(format!(
                        "service {sender} breaks the protocol in {collective}: a note of round {step}, which service {from} \
                         sends"
                    )));
                }
            }
            (round.next, round.is_sent) = (step + 1, false);
        }
        self.end_barrier(transport, collective)
    }

    /// All members have entered a barrier.
    fn end_barrier(&mut self, transport: &T, collective: Collective) -> Result<()> {
        let Some(barrier) = self.trees.barriers.remove(&collective) else {
            return Ok(());
        };
        self.trees.bytes -= barrier.held;
        let done = barrier.round.map_or(0, |round| round.next as usize);
        if barrier.notes.iter().skip(done).any(Option::is_some) {
            return Err(failed(format!(
                "{collective}: a note of a round that it does not have"
            )));
        }
        let now = self.now();
        for (local, since) in barrier.entered {
            self.moved.completed(now, since);
            self.complete(transport, collective, local, None)?;
        }
        Ok(())
    }
}

fn at_level(collective: Collective, level: u32) -> Collective {
    Collective {
        step: TREE_STEP | level,
        ..collective
    }
}

fn block(peer: u32, length: u64) -> Block {
    Block {
        peer,
        offset: 0,
        length,
    }
}
