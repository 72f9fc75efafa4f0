//! The entries of ranks that are like their last ones: most programs make the same call again and again. Such an entry differs
//! in its call only, and is neither parsed nor checked again.

use crate::error::{OffloadError, Result};
use crate::wire::runs::Run;
use crate::wire::{ARRIVAL_RANK, ARRIVAL_REST, Arrival, Blocks, ExportRef, Record};

/// Maximum length of a kept entry. One with a run of blocks for each side and two names takes less.
const BYTES_MAX: usize = 128;

/// The last entries of a service's ranks, by local number.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    of: Vec<Option<Box<Repeat>>>,
}

/// An entry. Its call is that of the last message.
#[derive(Debug)]
pub(super) struct Repeat {
    pub(super) arrival: Arrival<'static>,
    first: u8,
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl Repeats {
    /// Takes the entry in a message, if it is like the last one of its rank, and the rank's local number, which `local` finds.
    /// [`Repeats::put`] gives it back.
    #[inline]
    pub(super) fn take(
        &mut self,
        data: &[u8],
        local: impl FnOnce(u32) -> Option<usize>,
    ) -> Option<(usize, Box<Repeat>)> {
        let (head, rest) = data.split_first_chunk::<ARRIVAL_REST>()?;
        let rank = rest.get(ARRIVAL_RANK)?.first_chunk()?;
        let local = local(u32::from_le_bytes(*rank))?;
        let of = self.of.get_mut(local)?;
        let repeat = of.as_deref()?;
        if head[0] != repeat.first || repeat.bytes.get(..repeat.length)? != rest {
            return None;
        }
        let mut repeat = of.take()?;
        repeat.arrival.set_call(head);
        Some((local, repeat))
    }

    /// Gives back what [`Repeats::take`] has returned.
    #[inline]
    pub(super) fn put(&mut self, (local, repeat): (usize, Box<Repeat>)) {
        if let Some(of) = self.of.get_mut(local) {
            *of = Some(repeat);
        }
    }

    /// Keeps a checked entry of a local rank, if it needs nothing of its message.
    pub(super) fn keep(&mut self, local: usize, data: &[u8], arrival: &Arrival<'_>) {
        let Some((head, rest)) = data.split_first_chunk::<ARRIVAL_REST>() else {
            return;
        };
        let Some(arrival) = arrival.lasting().filter(|_| rest.len() <= BYTES_MAX) else {
            return;
        };
        if self.of.len() <= local {
            self.of.resize_with(local + 1, || None);
        }
        let repeat = self.of[local].get_or_insert_with(|| {
            Box::new(Repeat {
                arrival,
                first: 0,
                bytes: [0; BYTES_MAX],
                length: 0,
            })
        });
        (repeat.arrival, repeat.first) = (arrival, head[0]);
        repeat.length = rest.len();
        repeat.bytes[..rest.len()].copy_from_slice(rest);
    }

    /// A local rank has left the job.
    pub(super) fn forget(&mut self, local: usize) {
        if let Some(of) = self.of.get_mut(local) {
            *of = None;
        }
    }
}

/// Checks that every block for a device read lies in the exported buffers.
pub(super) fn check(arrive: &Arrival<'_>, direct_min: u64) -> Result<()> {
    check_blocks(arrive, arrive.sends, arrive.send_memory, direct_min)?;
    check_blocks(arrive, arrive.receives, arrive.receive_memory, direct_min)
}

fn check_blocks(
    arrive: &Arrival<'_>,
    blocks: Blocks<'_>,
    memory: Option<ExportRef<'_>>,
    direct_min: u64,
) -> Result<()> {
    fn outside<R: Record>(records: &[R], length: u64, direct_min: u64) -> Option<&R> {
        records.iter().find(|record| {
            let block = record.block();
            let end = block.offset.checked_add(block.length);
            block.length >= direct_min && end.is_none_or(|end| end > length)
        })
    }
    let length = memory.map_or(0, |export| export.length);
    let found = match blocks {
        Blocks::Narrow(records) => outside(records, length, direct_min).map(Record::block),
        Blocks::Wide(records) => outside(records, length, direct_min).map(Record::block),
        Blocks::Runs(runs) => {
            let is_outside = |run: &Run| run.length >= direct_min && run.end() > length;
            let found = match runs.only() {
                Some(run) => Some(*run).filter(is_outside),
                None => runs.iter().find(is_outside),
            };
            found.map(|run| run.block(run.count - 1))
        }
    };
    match found {
        None => Ok(()),
        Some(block) => Err(OffloadError::Failed(format!(
            "{}: rank {} names {} bytes at {} of a buffer of which {length} were exported",
            arrive.collective, arrive.rank, block.length, block.offset
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Block, Collective, Export, HostArrive, Name, Route};

    fn entry(sequence: u32, packed: &[u8]) -> HostArrive {
        let memory = Export {
            address: 1 << 40,
            length: 4 * 4096,
            packed: packed.to_vec(),
            name: Some(Name {
                slot: 1,
                generation: 7,
            }),
        };
        let blocks = (0..4).map(|peer| Block {
            peer,
            offset: u64::from(peer) * 4096,
            length: 4096,
        });
        let blocks: Vec<Block> = blocks.collect();
        HostArrive {
            collective: Collective {
                communicator: 3,
                sequence,
                start: 0,
                step: 0,
            },
            rank: 5,
            together: 4,
            send_memory: Some(memory.clone()),
            receive_memory: Some(memory),
            sends: blocks.clone().into(),
            receives: blocks.into(),
            short: Vec::new(),
            route: Route::Direct,
        }
    }

    impl Repeats {
        fn find(
            &mut self,
            data: &[u8],
            local: impl FnOnce(u32) -> Option<usize>,
        ) -> Option<Arrival<'static>> {
            let taken = self.take(data, local)?;
            let arrival = taken.1.arrival;
            self.put(taken);
            Some(arrival)
        }
    }

    #[test]
    fn an_entry_is_known_if_only_its_call_differs() {
        let local = |rank| (rank == 5).then_some(2);
        let mut repeats = Repeats::default();
        let first = entry(0, &[]).to_bytes();
        repeats.keep(2, &first, &Arrival::parse(&first).expect("valid"));
        let mut next = entry(9, &[]).to_bytes();
        assert_eq!(
            repeats.find(&next, local),
            Some(Arrival::parse(&next).expect("valid"))
        );
        for at in 0..next.len() {
            next[at] ^= 0x10;
            let found = repeats.find(&next, local);
            match at {
                1..ARRIVAL_REST => assert_eq!(found, Arrival::parse(&next).ok(), "byte {at}"),
                _ => assert_eq!(found, None, "byte {at}"),
            }
            next[at] ^= 0x10;
        }
        for length in 0..next.len() {
            assert_eq!(repeats.find(&next[..length], local), None);
        }
        next.push(0);
        assert_eq!(repeats.find(&next, local), None);
        repeats.forget(2);
        assert_eq!(repeats.find(&first, local), None);
    }

    #[test]
    fn an_entry_with_bytes_of_its_message_is_not_kept() {
        let mut repeats = Repeats::default();
        let announced = entry(0, &[1; 40]).to_bytes();
        repeats.keep(2, &announced, &Arrival::parse(&announced).expect("valid"));
        assert_eq!(repeats.find(&announced, |_| Some(2)), None);
    }
}
