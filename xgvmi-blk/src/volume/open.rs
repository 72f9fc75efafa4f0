//! Opens a volume: checks that the targets belong together, and decides which generation of each block counts.

use super::seats::{Occupant, Seat, Seats};
use super::state::{BlockState, COUNTER_BITS, Counters, LOCKS, Volume, VolumeStatus};
use crate::block::Kind;
use crate::error::{BlkError, Result};
use crate::geometry::{Role, TARGETS};
use crate::say::say;
use crate::store::{Held, Identity, Seating, Target};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

/// Highest epoch: the rest of a generation's 64 bits.
pub(crate) const EPOCH_MAX: u64 = (1 << (u64::BITS - COUNTER_BITS)) - 1;

impl Volume {
    /// Opens the volume on these targets, in any order. Two are enough.
    ///
    /// # Errors
    /// The targets belong to different volumes, two of them have one role, fewer than two are there, or too few of them
    /// hold everything: two, or one if all three are there and none is new.
    pub fn open(targets: Vec<Arc<dyn Target>>) -> Result<Self> {
        Self::open_as(targets, true)
    }

    /// State of the volume on these targets, also while another process uses them. Changes nothing.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn inspect(targets: Vec<Arc<dyn Target>>) -> Result<VolumeStatus> {
        Ok(Self::open_as(targets, false)?.status())
    }

    /// Opens the volume, as its owner or to look at it.
    fn open_as(targets: Vec<Arc<dyn Target>>, as_owner: bool) -> Result<Self> {
        let mut seats: [Option<Arc<dyn Target>>; TARGETS] = [None, None, None];
        let mut first: Option<(String, Identity)> = None;
        for target in targets {
            let identity = target.identity();
            if let Some((name, other)) = &first {
                agree((name, other), (target.name(), &identity))?;
            } else {
                first = Some((target.name().to_owned(), identity));
            }
            let seat = &mut seats[identity.role.index()];
            if let Some(other) = seat {
                return Err(BlkError::Disagree {
                    first: other.name().to_owned(),
                    second: target.name().to_owned(),
                    difference: same_role(&other.identity(), &identity),
                });
            }
            *seat = Some(target);
        }
        let present: Vec<_> = seats.iter().flatten().collect();
        let whole = present
            .iter()
            .filter(|target| target.identity().complete)
            .count();
        // With all three there, one that holds everything is enough: it has the newest generation of each block. The
        // others were taken back by an export that then ended. New ones, which have never been opened, do not count.
        let all_known =
            present.len() == TARGETS && present.iter().all(|seat| seat.identity().epoch > 0);
        let usable = whole >= 2 || (whole == 1 && all_known);
        let Some((_, identity)) = first.filter(|_| usable) else {
            return Err(too_few(&seats));
        };
        let epoch = present
            .iter()
            .map(|target| target.identity().epoch)
            .max()
            .unwrap_or(0)
            + 1;
        if epoch > EPOCH_MAX {
            return Err(BlkError::Epochs(EPOCH_MAX));
        }
        // All are asked before one is changed: an owner that is there loses none of its targets.
        let owned = present.iter().find(|target| as_owner && target.is_owned());
        if let Some(target) = owned {
            return Err(BlkError::Owned {
                target: target.name().to_owned(),
            });
        }
        // First of all: from here on no other process changes them.
        for target in present.iter().filter(|_| as_owner) {
            target.mark(epoch, target.identity().complete)?;
        }
        let blocks = decide(&seats, identity)?;
        let seats = Role::ALL.map(|role| match seats[role.index()].take() {
            Some(target) => Seat::Present(Occupant {
                whole: target.identity().complete,
                target,
                arriving: false,
            }),
            None => Seat::Absent("it was not there when the volume was opened".to_owned()),
        });
        let volume = Self {
            geometry: identity.geometry,
            id: identity.volume,
            epoch,
            counter: AtomicU64::new(0),
            seats: Arc::new(Seats::new(seats)),
            blocks: Mutex::new(blocks.states),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            counters: Counters::default(),
        };
        for role in Role::ALL {
            if let Ok(target) = volume.target(role) {
                target.seated(volume.seating());
            }
        }
        if as_owner {
            volume.settle(&blocks.unsettled)?;
        }
        Ok(volume)
    }

    /// What a target asks before it is given up.
    pub(super) fn seating(&self) -> Weak<dyn Seating> {
        let seats: Weak<Seats> = Arc::downgrade(&self.seats);
        seats
    }

    /// Settles what the last owner of the targets left between two steps.
    fn settle(&self, blocks: &[u64]) -> Result<()> {
        for &block in blocks {
            let _lock = self.lock(block);
            let state = self.state(block);
            // Nothing is decided for a lost block: a target that is absent may bring it back.
            if state.lost {
                continue;
            }
            for role in Role::ALL.into_iter().filter(|role| state.is_held_by(*role)) {
                self.target(role)?.commit(block, state.generation)?;
            }
            if self
                .target(Role::First)
                .and(self.target(Role::Second))
                .and(self.target(Role::Parity))
                .is_ok()
            {
                match self.repair_block(block) {
                    // After a loss of power an entry may be there without its half block. The other blocks are served.
                    Err(error @ BlkError::Lost { .. }) => say(&error),
                    other => other?,
                }
            }
        }
        if blocks.is_empty() {
            Ok(())
        } else {
            self.flush_once()
        }
    }
}

/// Checks that two targets belong to one volume.
pub(super) fn agree(first: (&str, &Identity), second: (&str, &Identity)) -> Result<()> {
    let ((first, ours), (second, theirs)) = (first, second);
    let difference = if ours.volume != theirs.volume {
        format!("volume {} and {}", ours.volume, theirs.volume)
    } else if ours.geometry != theirs.geometry {
        format!("{} and {}", ours.geometry, theirs.geometry)
    } else {
        return Ok(());
    };
    Err(BlkError::Disagree {
        first: first.to_owned(),
        second: second.to_owned(),
        difference,
    })
}

fn same_role(first: &Identity, second: &Identity) -> String {
    if first.target == second.target {
        "they are the same target".to_owned()
    } else {
        format!("both are {}", first.role)
    }
}

fn too_few(seats: &[Option<Arc<dyn Target>>; TARGETS]) -> BlkError {
    let reason = |role: Role| match &seats[role.index()] {
        None => Some(format!("{role} is absent")),
        Some(target) if !target.identity().complete => Some(format!(
            "{role} ({}) is new and does not hold everything yet",
            target.name()
        )),
        Some(_) => None,
    };
    let reasons: Vec<String> = Role::ALL.into_iter().filter_map(reason).collect();
    BlkError::TooFewTargets {
        usable: TARGETS - reasons.len(),
        reasons: reasons.join(", "),
    }
}

/// The decision about all blocks.
struct Decided {
    states: Vec<BlockState>,
    /// Blocks that some target holds unsettled, or in two generations.
    unsettled: Vec<u64>,
}

fn decide(seats: &[Option<Arc<dyn Target>>; TARGETS], identity: Identity) -> Result<Decided> {
    let mut all: Vec<(Held, Role)> = Vec::new();
    for (role, seat) in Role::ALL.into_iter().zip(seats) {
        if let Some(target) = seat {
            all.extend(target.held()?.into_iter().map(|held| (held, role)));
        }
    }
    // By block, the newest generation first.
    all.sort_unstable_by_key(|(held, role)| {
        (held.block, std::cmp::Reverse(held.generation), *role)
    });
    let blocks = usize::try_from(identity.geometry.blocks()).unwrap_or(usize::MAX);
    let mut states = vec![BlockState::default(); blocks];
    let mut unsettled = Vec::new();
    for of_block in all.chunk_by(|(a, _), (b, _)| a.block == b.block) {
        let Some((held, _)) = of_block.first() else {
            continue;
        };
        let Some(state) = usize::try_from(held.block)
            .ok()
            .and_then(|block| states.get_mut(block))
        else {
            continue;
        };
        *state = decide_block(of_block);
        let holds = |role| of_block.iter().filter(|(_, other)| *other == role).count();
        if of_block.iter().any(|(held, _)| !held.settled)
            || Role::ALL.into_iter().any(|role| holds(role) > 1)
        {
            unsettled.push(held.block);
        }
    }
    Ok(Decided { states, unsettled })
}

/// The generation of a block that counts. The newest is first.
fn decide_block(of_block: &[(Held, Role)]) -> BlockState {
    for of_generation in of_block.chunk_by(|(a, _), (b, _)| a.generation == b.generation) {
        let holders = of_generation
            .iter()
            .fold(0u8, |mask, (_, role)| mask | role.bit());
        let Some((held, _)) = of_generation.first() else {
            continue;
        };
        let state = BlockState {
            generation: held.generation,
            holders,
            zero: held.kind == Kind::Zero,
            lost: false,
        };
        if holders.count_ones() >= 2 {
            return state;
        }
        if of_generation.iter().any(|(held, _)| held.settled) {
            return BlockState {
                lost: true,
                ..state
            };
        }
    }
    // One target has tried a first write, which no other one has.
    BlockState::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generations of the targets, the newest first; a capital S marks a settled one.
    #[track_caller]
    fn check(targets: [&str; TARGETS], generation: u64, holders: u8, lost: bool) {
        let mut held = Vec::new();
        for (role, text) in Role::ALL.into_iter().zip(targets) {
            for word in text.split_whitespace() {
                let (number, settled) = match word.strip_suffix('S') {
                    Some(number) => (number, true),
                    None => (word, false),
                };
                let generation = number.parse().unwrap();
                let kind = Kind::Raw;
                let block = 0;
                held.push((
                    Held {
                        block,
                        generation,
                        kind,
                        settled,
                    },
                    role,
                ));
            }
        }
        held.sort_unstable_by_key(|(held, _)| std::cmp::Reverse(held.generation));
        let state = decide_block(&held);
        assert_eq!(
            (state.generation, state.holders, state.lost),
            (generation, holders, lost),
            "{targets:?}"
        );
    }

    #[test]
    fn the_newest_generation_of_two_targets_counts() {
        check(["1S", "1S", "1S"], 1, 0b111, false);
        check(["2 1S", "1S", "1S"], 1, 0b111, false);
        check(["2 1S", "2 1S", "1S"], 2, 0b011, false);
        check(["2S", "2 1S", "2 1S"], 2, 0b111, false);
        check(["2S", "2S", "1S"], 2, 0b011, false);
        check(["1", "", ""], 0, 0, false);
        check(["1", "1", ""], 1, 0b011, false);
    }

    /// With one target absent, the rule is the same.
    #[test]
    fn an_acknowledged_generation_is_not_replaced_by_an_older_one() {
        check(["", "2S", "1S"], 2, 0b010, true);
        check(["2S", "", "1S"], 2, 0b001, true);
        check(["", "2 1S", "1S"], 1, 0b110, false);
        check(["2 1S", "2 1S", ""], 2, 0b011, false);
        // A target that came back with an old state.
        check(["1S", "2S", "2S"], 2, 0b110, false);
        check(["1S", "1S", "2S"], 2, 0b100, true);
        // A first write that one settled, and the other half is gone.
        check(["1S", "", ""], 1, 0b001, true);
    }
}
