//! Decides which generation of a block counts, from what the targets hold. Does no I/O.
//!
//! The newest generation counts that two targets hold. A newer one that one target alone has settled was acknowledged, and
//! the other half of it may be at a target that is absent: the block is then lost, and no older generation is shown. If
//! all three targets are there, nobody else has it: it was never made durable, or an opening without this target has
//! decided against it, and the generation counts that two others hold. Only targets count there that were in use when
//! the newer generation was written, or later.
//!
//! A record that cannot be read beside an older generation is torn: a loss of power has left its entry alone, or it was
//! damaged. If all three are there and none has a whole one, it does not count. Otherwise it may have been flushed: the two
//! others overrule it as above, or the block is lost. For the same reason such a target does not overrule another one that
//! alone has a newer generation.
//!
//! The oldest record of an entry was durable. If it cannot be read, its target only knows of the generation: the block is lost
//! unless two others hold this one or a newer one.
//!
//! A hole counts also if one target alone has it: before it was written, two others had made the data durable at another place.
//!
//! A target says nothing about a block whose index entry is damaged, or was damaged and has nothing settled and whole since.
//! A new target says nothing about a block of which it holds nothing. Fewer than two targets that say something decide
//! nothing.

use super::state::BlockState;
use crate::block::Kind;
use crate::geometry::{Layout, PerTarget, Role};
use crate::store::{COUNTER_BITS, Held, Identity, Standing};

/// A target that is there, as far as it matters for a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Witness {
    is_new: bool,
    agreed: u64,
}

impl Witness {
    pub(super) fn of(identity: &Identity) -> Self {
        Self {
            is_new: identity.standing == Standing::New,
            agreed: identity.agreed,
        }
    }
}

/// Which targets decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) layout: Layout,
    /// The targets that hold all acknowledged writes. None: those that are there vote.
    pub(super) trusted: Option<u16>,
}

impl Rule {
    /// True if what these targets know tells what the block is, together with others that are there.
    fn is_enough(self, known: u16, witnesses: &Witnesses) -> bool {
        match self.trusted {
            None => !self.layout.is_short(known),
            Some(trusted) => {
                let absent = trusted & !self.deciders(witnesses);
                known != 0 && self.layout.is_short(absent)
            }
        }
    }

    /// The targets that are there and decide.
    fn deciders(self, witnesses: &Witnesses) -> u16 {
        let deciders = self.trusted.unwrap_or(u16::MAX);
        self.layout.mask(|role| {
            let witness = witnesses[role.index()];
            deciders & role.bit() != 0
                && (self.trusted.is_none() || witness.is_some_and(|witness| !witness.is_new))
        })
    }

    /// True if what is durable at all trusted targets stays at each until that is so for something newer: a newer generation
    /// that too few may have was not flushed.
    fn keeps_flushed(self) -> bool {
        self.trusted.is_some() && self.layout.keeps_flushed()
    }

    /// The targets that may have what all known ones have lost. Of parts one that is not trusted any more may have one.
    fn unknown(self, known: u16) -> u16 {
        let all = self.trusted.filter(|_| self.layout.is_mirror());
        all.unwrap_or(self.layout.all()) & !known
    }
}

/// The targets that are there.
pub(super) type Witnesses = PerTarget<Option<Witness>>;

/// What is known of a target's record of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    /// It can be read, or nobody has tried.
    Whole,
    /// It cannot be read, and an older generation is beside it.
    Torn,
    /// It cannot be read, and nothing older is there: it was durable.
    Gone,
}

/// What one generation of a block has.
#[derive(Debug, Clone, Copy, Default)]
struct Votes {
    /// Targets with a half block.
    holders: u16,
    /// Targets that only know of it.
    marked: u16,
    /// Targets whose record is torn.
    torn: u16,
    settled: bool,
    zero: bool,
    hole: bool,
}

impl Votes {
    fn voters(self) -> u16 {
        self.holders | self.marked
    }

    fn add(&mut self, held: &Held, role: Role, record: Record) {
        match (record, held.kind) {
            (Record::Torn, _) => self.torn |= role.bit(),
            (Record::Gone, _) | (Record::Whole, Kind::Lost) => self.marked |= role.bit(),
            (Record::Whole, _) => self.holders |= role.bit(),
        }
        self.settled |= held.settled;
        self.zero |= matches!(held.kind, Kind::Zero | Kind::Hole);
        self.hole |= held.kind == Kind::Hole;
    }

    /// True if no flush was about it, and too few may have it: those with a half block, and trusted ones that say nothing
    /// (`absent`). A trusted one with a torn record may have lost a flushed one, but not if another trusted one has neither, or
    /// a second one is torn: all had it.
    fn was_not_flushed(self, absent: u16, known: u16, layout: Layout) -> bool {
        let lacking = known & !(self.voters() | self.torn);
        let torn = match self.torn & known {
            torn if lacking == 0 && torn.is_power_of_two() => torn,
            _ => 0,
        };
        layout.is_short(absent | self.voters() | torn)
    }

    fn state(self, generation: u64, lost: bool) -> BlockState {
        BlockState {
            generation,
            holders: self.holders,
            marked: self.marked,
            zero: self.zero,
            hole: self.hole,
            lost,
        }
    }
}

/// What the targets hold of one block, the newest generation first.
/// `record` says what is known of a record.
pub(super) fn decide_block(
    of_block: &[(Held, Role)],
    witnesses: &Witnesses,
    rule: Rule,
    record: impl Fn(&Held, Role) -> Record,
) -> BlockState {
    let layout = rule.layout;
    let deciders = rule.deciders(witnesses);
    let there = known(of_block, witnesses, layout, &record);
    let known = there & deciders;
    let enough = rule.is_enough(known, witnesses);
    // Others have nothing that was acknowledged, or what was decided against.
    let absent = rule.trusted.unwrap_or(layout.all()) & !there;
    // The newest generation that one target alone has settled, and all targets with such ones.
    let mut alone: Option<(u64, Votes)> = None;
    let mut newer_at = 0;
    // The newest generation that any target has. If too few targets say something, a write must not drop it: the target
    // that has settled it may be absent.
    let mut newest: Option<(u64, Votes)> = None;
    let slots = of_block.iter().filter(|(held, _)| !held.damaged);
    let slots: Vec<(Held, Role)> = slots.copied().collect();
    for of_generation in slots.chunk_by(|(a, _), (b, _)| a.generation == b.generation) {
        let Some((Held { generation, .. }, _)) = of_generation.first().copied() else {
            continue;
        };
        if generation == 0 {
            continue;
        }
        let mut votes = Votes::default();
        for (held, role) in of_generation {
            votes.add(held, *role, record(held, *role));
        }
        if (votes.voters() | votes.torn) & deciders == 0 {
            // What those without a voice have, and no other one, was decided against: unless absent ones may have the rest.
            let may_be_whole = absent != 0 && !layout.is_short(absent | votes.voters());
            let is_short = layout.is_short(votes.voters());
            if rule.keeps_flushed() && votes.settled && is_short && may_be_whole {
                alone.get_or_insert((generation, votes));
            }
            continue;
        }
        if !layout.is_short(votes.voters()) {
            let voters = votes.voters() & known & !newer_at;
            if let Some((newer, its_votes)) = alone
                && (rule.keeps_flushed()
                    || !overrules((newer, its_votes), generation, voters, (witnesses, rule)))
            {
                return its_votes.state(newer, !its_votes.hole);
            }
            return votes.state(generation, !enough || layout.is_short(votes.holders));
        }
        if votes.voters() != 0 {
            newest.get_or_insert((generation, votes));
        }
        // Of one decider nobody else tells whether it was flushed.
        let may_be_damage =
            rule.trusted.is_some() && known & !votes.torn == 0 && known.is_power_of_two();
        let is_nowhere = votes.voters() == 0 && rule.unknown(known) == 0 && !may_be_damage;
        let is_overruled = rule.keeps_flushed() && votes.was_not_flushed(absent, known, layout);
        if votes.settled && !is_nowhere && !is_overruled {
            alone.get_or_insert((generation, votes));
        }
        if votes.settled {
            // One with a torn record may have been flushed, and the others have dropped it for a newer one since.
            newer_at |= votes.voters() | votes.torn;
        }
    }
    let never = never_written(&slots, layout);
    // Each has the origin beside a first write, until something was flushed at all of them.
    let says_nothing = enough && !(rule.keeps_flushed() && known & !never != 0);
    let never = known & never & !newer_at;
    match alone {
        Some(newer) if !rule.keeps_flushed() && overrules(newer, 0, never, (witnesses, rule)) => {
            BlockState::default()
        }
        Some((newer, votes)) => votes.state(newer, !votes.hole),
        None if says_nothing => BlockState::default(),
        None => {
            let (generation, votes) = newest.unwrap_or_default();
            votes.state(generation, true)
        }
    }
}

/// The targets that say something about the block.
fn known(
    of_block: &[(Held, Role)],
    witnesses: &Witnesses,
    layout: Layout,
    record: impl Fn(&Held, Role) -> Record,
) -> u16 {
    let mut known = 0;
    for role in layout.roles() {
        let mut entries = of_block.iter().filter(|(_, of)| *of == role);
        let is_damaged = entries.clone().any(|(held, _)| held.damaged);
        let is_unknown = entries.clone().any(|(held, _)| was_damaged(held))
            && !entries.clone().any(|(held, _)| {
                held.generation != 0 && held.settled && record(held, role) != Record::Torn
            });
        let holds = entries.any(|(held, _)| !held.damaged);
        if let Some(witness) = witnesses[role.index()]
            && !is_damaged
            && !is_unknown
            && (!witness.is_new || holds)
        {
            known |= role.bit();
        }
    }
    known
}

/// True for what an entry says that was damaged before its newest generation was written.
fn was_damaged(held: &Held) -> bool {
    !held.damaged && held.generation == 0 && held.kind == Kind::Lost
}

/// Targets for which the block was never written: they hold nothing, or say so beside a first generation.
fn never_written(slots: &[(Held, Role)], layout: Layout) -> u16 {
    layout.mask(|role| {
        let mut of_role = slots.iter().filter(|(_, of)| *of == role);
        let is_never = |(held, _): &(Held, Role)| held.generation == 0 && !was_damaged(held);
        of_role.clone().next().is_none() || of_role.any(is_never)
    })
}

/// True if the targets that hold an older generation overrule those that alone have settled a newer one: all that may have it are
/// too few.
fn overrules(
    (newer, its_votes): (u64, Votes),
    older: u64,
    voters: u16,
    (witnesses, rule): (&Witnesses, Rule),
) -> bool {
    if rule.trusted.is_some() {
        let may_have_it = rule.unknown(voters) | its_votes.voters() | its_votes.torn;
        return rule.layout.is_short(may_have_it);
    }
    let epoch = |generation: u64| generation >> COUNTER_BITS;
    let took_part = rule.layout.mask(|role| {
        let witness = witnesses[role.index()];
        voters & role.bit() != 0
            && witness.is_some_and(|witness| witness.agreed.max(epoch(older)) >= epoch(newer))
    });
    took_part.count_ones() as usize > rule.layout.spare()
}

/// A block, and the targets whose entries say more than what was decided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unclean {
    pub(super) block: u64,
    pub(super) roles: u16,
}

/// Targets whose entry says more than the decision: it is unsettled, has other generations or newer ones, or is damaged.
pub(super) fn unclean(of_block: &[(Held, Role)], state: BlockState, layout: Layout) -> u16 {
    if state.lost {
        // A target that is absent may bring it back.
        return 0;
    }
    layout.mask(|role| {
        let entries = of_block.iter().filter(|(_, of)| *of == role);
        let entries: Vec<&Held> = entries.map(|(held, _)| held).collect();
        let holds = entries
            .iter()
            .any(|held| !held.damaged && held.generation == state.generation);
        let other = |held: &&&Held| held.damaged || held.generation > state.generation;
        entries.iter().any(|held| other(&held))
            || (holds && (entries.len() > 1 || state.generation == 0 || !entries[0].settled))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generations of the targets, the newest first. A capital S marks a settled one, L a settled one without data, T one
    /// with a torn record, D a damaged entry. "absent", and "new" in front, are what they say; "at2" is the epoch that it has agreed with.
    fn parse(layout: Layout, targets: &[&str]) -> (Vec<(Held, Role)>, Witnesses) {
        let mut held = Vec::new();
        let mut witnesses: Witnesses = layout.map(|_| None);
        for (role, text) in layout.roles().zip(targets) {
            if *text == "absent" {
                continue;
            }
            let mut witness = Witness {
                is_new: false,
                agreed: 9,
            };
            for word in text.split_whitespace() {
                if word == "new" {
                    witness.is_new = true;
                    continue;
                }
                if let Some(agreed) = word.strip_prefix("at") {
                    witness.agreed = agreed.parse().unwrap();
                    continue;
                }
                let number = word.trim_end_matches(['S', 'L', 'T', 'D']);
                let (epoch, count) = number.split_once('.').unwrap_or(("0", number));
                let count: u64 = count.parse().unwrap_or(0);
                held.push((
                    Held {
                        block: 0,
                        generation: epoch.parse::<u64>().unwrap_or(0) << COUNTER_BITS | count,
                        kind: match word.bytes().last() {
                            Some(b'L') => Kind::Lost,
                            Some(b'T') => Kind::Zero,
                            _ => Kind::Raw,
                        },
                        settled: word.ends_with(['S', 'L', 'T']),
                        damaged: word.ends_with('D'),
                    },
                    role,
                ));
            }
            witnesses[role.index()] = Some(witness);
        }
        held.sort_by_key(|(held, role)| (std::cmp::Reverse(held.generation), *role));
        (held, witnesses)
    }

    /// A record with the form of zeros cannot be read here.
    fn decide(all: &[(Held, Role)], witnesses: &Witnesses, rule: Rule) -> BlockState {
        decide_block(all, witnesses, rule, |held, role| {
            let is_older =
                |(other, of): &(Held, Role)| *of == role && other.generation < held.generation;
            match held.kind == Kind::Zero && held.generation != 0 {
                false => Record::Whole,
                true if all.iter().any(is_older) => Record::Torn,
                true => Record::Gone,
            }
        })
    }

    #[track_caller]
    fn check(targets: [&str; 3], generation: u64, holders: u16, lost: bool) {
        check_by(VOTES, &targets, (generation, holders, lost));
    }

    const VOTES: Rule = Rule {
        layout: Layout::HALVES,
        trusted: None,
    };

    #[track_caller]
    fn check_by(rule: Rule, targets: &[&str], expect: (u64, u16, bool)) {
        let (held, witnesses) = parse(rule.layout, targets);
        let state = decide(&held, &witnesses, rule);
        let count = state.generation & ((1 << COUNTER_BITS) - 1);
        assert_eq!(
            (count, state.holders, state.lost),
            expect,
            "{rule:?} {targets:?}"
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
        check(["3 2S 1S", "2S 1S", "absent"], 2, 0b011, false);
    }

    /// With one target absent.
    #[test]
    fn an_acknowledged_generation_is_not_replaced_by_an_older_one() {
        check(["absent", "2S", "1S"], 2, 0b010, true);
        check(["2S", "absent", "1S"], 2, 0b001, true);
        check(["2S 1S", "1S", "absent"], 2, 0b001, true);
        check(["absent", "2 1S", "1S"], 1, 0b110, false);
        check(["2 1S", "2 1S", "absent"], 2, 0b011, false);
        // A target that came back with an old state.
        check(["1S", "2S", "2S"], 2, 0b110, false);
        // A first write that one settled, and the other half is gone.
        check(["1S", "", "absent"], 1, 0b001, true);
    }

    /// With all three there, what one alone has was never made durable.
    #[test]
    fn two_targets_overrule_one() {
        check(["1S", "1S", "2S"], 1, 0b011, false);
        check(["1S", "1S", "2S 1S"], 1, 0b111, false);
        check(["", "", "2S"], 0, 0, false);
        check(["0S", "", "2S 0S"], 0, 0, false);
        // Nothing that two have, or that two have and no newer one.
        check(["1S", "2S 1S", "3S 1S"], 3, 0b100, true);
        check(["1S", "2S", "3S"], 3, 0b100, true);
    }

    /// The third one says nothing, or a record that was flushed may have been damaged since.
    #[test]
    fn one_target_does_not_overrule_another() {
        check(["1T 0S", "at0", "1S 0S"], 1, 0b100, true);
        check(["2S", "1S 0S", ""], 2, 0b001, true);
        check(["2S 1S", "1S", "0S"], 2, 0b001, true);
        check(["2T 1S", "1S", "2S 1S"], 2, 0b100, true);
        // It held 1 as a whole, which the target with 2 has dropped since.
        check(["1T 0S", "", "2S"], 2, 0b100, true);
        check(["2T 1S", "1S", "3S"], 3, 0b100, true);
    }

    /// The target that has settled it may be absent.
    #[test]
    fn a_generation_that_one_of_too_few_targets_has_is_kept() {
        check(["absent", "1", "0D"], 1, 0b010, true);
        check(["absent", "2 1", "0D"], 2, 0b010, true);
        check(["absent", "", "0D"], 0, 0, true);
    }

    /// A loss of power has left entries alone.
    #[test]
    fn a_torn_record_does_not_hide_what_is_older() {
        check(["2T 1S", "2T 1S", "2T 1S"], 1, 0b111, false);
        check(["2T 1S", "1S", "1S"], 1, 0b111, false);
        check(["2T 1S", "2T 1S", "absent"], 2, 0, true);
        check(["1T 0S", "", "absent"], 1, 0, true);
        check(["1T 0S", "1T 0S", ""], 0, 0, false);
        check(["2T 1S", "2S 1S", "2S 1S"], 2, 0b110, false);
    }

    /// The oldest generation of an entry was durable.
    #[test]
    fn a_durable_record_that_cannot_be_read_leaves_its_block_lost() {
        check(["absent", "1S 0S", "2 1T"], 1, 0b010, true);
        check(["2S 0S", "1S 0S", "2 1T"], 2, 0b101, false);
        check(["1T", "1T", ""], 1, 0, true);
        check(["1T", "1S", "1S"], 1, 0b110, false);
        check(["1T", "1S", "2S"], 1, 0b010, true);
        // As if it were whole.
        check(["1T", "", ""], 0, 0, false);
    }

    /// The entry of the target with the torn record is damaged, or was so before.
    #[test]
    fn two_targets_overrule_a_torn_record() {
        check(["1T D", "", ""], 0, 0, false);
        check(["at1 1.1T D", "at2", "at2"], 0, 0, false);
        check(["at1 1.2T D", "at2 1.1S", "at2 1.1S"], 1, 0b110, false);
        check(["at1 1.2T D", "at2 1.1S", "absent"], 2, 0, true);
        check(["at2 2.1T D", "at2", "at1"], 1, 0, true);
    }

    #[test]
    fn an_entry_that_was_damaged_says_nothing_without_its_new_record() {
        check(["1S 0L", "1S", "absent"], 1, 0b011, false);
        check(["2S 0L", "1S", "1S"], 1, 0b110, false);
        check(["1T 0L", "1S", "absent"], 1, 0b010, true);
        check(["1T 0L", "", "absent"], 1, 0, true);
        check(["1T 0L", "", ""], 0, 0, false);
        check(["1 0L", "", "absent"], 1, 0b001, true);
        check(["1 0L", "0S", "new"], 1, 0b001, true);
    }

    /// A later opening does not reverse what an earlier one without this target has decided.
    #[test]
    fn a_target_that_missed_a_decision_does_not_overrule_it() {
        check(["at2 1.1S", "at2 1.1S", "at1 1.2S"], 1, 0b011, false);
        check(["at2", "at2", "at1 1.2S"], 0, 0, false);
        // Targets that were not there when the newer one was written do not overrule it.
        check(["at1 1.1S", "at2 1.1S", "at2 2.2S"], 2, 0b100, true);
        check(["at1 2.1S", "at2 2.1S", "at2 2.2S"], 1, 0b011, false);
    }

    #[test]
    fn a_damaged_entry_says_nothing() {
        check(["D", "1S", "1S"], 1, 0b110, false);
        check(["D", "", ""], 0, 0, false);
        check(["D", "", "absent"], 0, 0, true);
        check(["D", "1S", "absent"], 1, 0b010, true);
        check(["1S D", "1S", "absent"], 1, 0b011, true);
        check(["1S D", "1S", ""], 1, 0b011, false);
        check(["D", "2S", "1S"], 2, 0b010, true);
        // Nor does it vote, but two others overrule it.
        check(["1S D", "1S", "2S"], 2, 0b100, true);
        check(["1S", "2S D", "1S"], 1, 0b101, false);
        check(["", "1S D", ""], 0, 0, false);
        check(["D", "D", "1S"], 1, 0b100, true);
        check(["D", "D", ""], 0, 0, true);
    }

    #[test]
    fn a_new_target_says_nothing_about_what_it_does_not_hold() {
        check(["new", "1S", "1S"], 1, 0b110, false);
        check(["new", "", "1S"], 1, 0b100, true);
        check(["new 1S", "1S", "2S"], 1, 0b011, false);
        check(["new", "1S", "2S 1S"], 2, 0b100, true);
        check(["new", "D", ""], 0, 0, true);
    }

    /// A target that was completed without a block knows of its generation.
    #[test]
    fn a_lost_block_stays_lost_without_the_target_that_has_the_rest() {
        check(["1L", "", "absent"], 1, 0, true);
        check(["1L", "1S", "absent"], 1, 0b010, true);
        check(["1L", "1S", "0S"], 1, 0b010, true);
        check(["1L", "1S", "1S"], 1, 0b110, false);
        check(["2S 1L", "2S", "absent"], 2, 0b011, false);
    }

    #[test]
    fn entries_that_say_more_than_the_decision_are_settled() {
        let unclean_roles = |targets: [&str; 3]| {
            let (held, witnesses) = parse(Layout::HALVES, &targets);
            unclean(&held, decide(&held, &witnesses, VOTES), Layout::HALVES)
        };
        assert_eq!(unclean_roles(["1S", "1S", ""]), 0);
        assert_eq!(unclean_roles(["2S", "2 1S", "1S"]), 0b010);
        assert_eq!(unclean_roles(["2S 1S", "2S", "1S"]), 0b001);
        assert_eq!(unclean_roles(["1S", "1S", "2S"]), 0b100);
        assert_eq!(unclean_roles(["D", "1S", "1S"]), 0b001);
        assert_eq!(unclean_roles(["1S D", "1S", "1S"]), 0b001);
        assert_eq!(unclean_roles(["", "1 0S", ""]), 0b010);
        assert_eq!(unclean_roles(["2S", "1S", "absent"]), 0, "it is lost");
    }

    /// Only trusted targets decide, and one of a mirror is enough.
    #[test]
    fn trusted_targets_decide() {
        let check = |layout: &str, trusted, targets: &[&str], expect| {
            let rule = Rule {
                layout: layout.parse().unwrap(),
                trusted: Some(trusted),
            };
            check_by(rule, targets, expect);
        };
        check("mirror-2", 0b11, &["2S", "1S"], (2, 0b01, false));
        check("mirror-2", 0b11, &["2 1S", "1S"], (2, 0b01, false));
        check("mirror-2", 0b01, &["1S", "2S"], (1, 0b01, false));
        check("mirror-2", 0b01, &["", "2S"], (0, 0, false));
        check("mirror-2", 0b11, &["2T 1S", "1S"], (1, 0b11, false));
        // Nobody else tells whether it was flushed.
        check("mirror-2", 0b01, &["2T 1S", "1S"], (2, 0, true));
        check("mirror-2", 0b11, &["D", "1S"], (1, 0b10, false));
        check("mirror-2", 0b01, &["D", "1S"], (0, 0, true));
        check("mirror-2", 0b11, &["1S", "absent"], (1, 0b01, true));
        check("mirror-2", 0b10, &["new", "1S"], (1, 0b10, false));
        check("2+2", 0b1111, &["2S", "1S", "1S", "1S"], (1, 0b1110, false));
        check(
            "2+2",
            0b1111,
            &["2S", "1S", "1S", "absent"],
            (2, 0b0001, true),
        );
        check("2+2", 0b0111, &["2S", "1S", "1S", "2S"], (2, 0b1001, false));
        check("2+2", 0b0011, &["1S", "1S", "2S", "2S"], (1, 0b0011, false));
        check(
            "4+2",
            0b111111,
            &["2S", "2S", "2S", "1S", "1S", "1S"],
            (2, 0b000111, true),
        );
        check(
            "4+2",
            0b111111,
            &["2S", "1S", "1S", "1S", "1S", "1S"],
            (1, 0b111110, false),
        );
    }

    /// Power was lost during a flush: what was flushed before is still everywhere.
    #[test]
    fn a_generation_that_was_flushed_in_part_does_not_hide_the_one_before() {
        let check = |trusted, targets: [&str; 6], expect| {
            let rule = Rule {
                layout: "4+2".parse().unwrap(),
                trusted: Some(trusted),
            };
            check_by(rule, &targets, expect);
        };
        let [all, four] = [0b11_1111, 0b00_1111];
        let (both, torn) = ("2S 1S", "2T 1S");
        check(all, [both, both, both, "1S", "1S", "1S"], (1, all, false));
        check(all, [both, torn, torn, "1S", "1S", "1S"], (1, all, false));
        check(all, [both, both, both, torn, torn, torn], (1, all, false));
        check(
            all,
            [both, both, both, both, "1S", "1S"],
            (2, 0b1111, false),
        );
        // What the absent one has may be the fourth part.
        let lost = (2, 0b111, true);
        check(all, [both, both, both, "1S", "1S", "absent"], lost);
        // One that is not trusted has nothing that was acknowledged.
        check(
            0b01_1111,
            [both, both, both, "1S", "1S", "absent"],
            (1, 0b1_1111, false),
        );
        // One record is damaged, or was never there.
        check(
            all,
            [both, both, both, both, both, torn],
            (2, 0b1_1111, false),
        );
        check(four, [both, both, both, torn, "", ""], lost);
        check(four, [both, both, both, torn, torn, torn], lost);
        check(four, [both, both, both, "1S", "", ""], (1, 0b1111, false));
        // Those that have it have no voice, and the absent one has one.
        check(
            four,
            ["", "", "absent", "absent", "2S 0S", "2S 0S"],
            (2, 0b11_0000, true),
        );
        check(
            four,
            ["1S", "1S", "1S", "1S", "2S", "2S"],
            (1, 0b1111, false),
        );
        // A first write.
        let first = "1S 0S";
        check(all, [first, first, first, "", "", ""], (0, 0, false));
        // No loss of power leaves this.
        check(all, ["1S", "1S", "1S", "", "", ""], (1, 0b111, true));
        check(all, ["2S", "2S", "2S", "1S", "1S", "1S"], lost);
    }
}
