//! The active fault rules, in shared memory, and the events to which they apply.

use super::table::{Owner, Table};
use crate::model::faults::{Action, Event, RULES_MAX, Rule};

/// An active rule.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Armed {
    /// The rule.
    pub rule: Rule,
    /// Number of matching events.
    pub seen: u64,
    /// Number of events to which the rule was applied.
    pub struck: u64,
}

/// The active rules. The owner's process is the process to which a rule applies; 0 for all.
pub type Rules = Table<Armed, RULES_MAX>;

/// Activates a rule for one process, or with 0 for all. Returns its number; None if [`RULES_MAX`]
/// rules are active.
pub fn arm(rules: &mut Rules, process: u32, rule: Rule) -> Option<u32> {
    let owner = Owner {
        process,
        context: 0,
    };
    let armed = Armed {
        rule,
        seen: 0,
        struck: 0,
    };
    rules.insert(owner, armed)
}

/// Counts an event for every matching rule. Returns the action of the first rule that applies.
pub fn decide(rules: &mut Rules, function: usize, process: u32, happens: Event) -> Option<Action> {
    let mut action = None;
    let mut from = 0;
    while let Some(index) = rules.next(from, |owner, armed| {
        let here = armed.rule.function == 0 || armed.rule.function as usize == function + 1;
        let ours = owner.process == 0 || owner.process == process;
        here && ours && armed.rule.event.means(happens)
    }) {
        from = index + 1;
        let Some(armed) = rules.get_mut(index) else {
            continue;
        };
        armed.seen = armed.seen.saturating_add(1);
        let left = armed.rule.times == 0 || armed.struck < armed.rule.times;
        if action.is_none() && left && armed.rule.when.strikes(armed.seen) {
            armed.struck += 1;
            action = Some(armed.rule.action);
        }
    }
    action
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::faults::{Call, Request, When};

    fn rule(event: Event, when: When) -> Rule {
        Rule {
            function: 0,
            event,
            when,
            times: 0,
            action: Action::Vanish,
        }
    }

    fn rules(armed: &[(u32, Rule)]) -> Box<Rules> {
        // SAFETY: all zeroes is an empty table.
        let mut rules: Box<Rules> = unsafe { crate::fabric::zeroed() };
        for (process, rule) in armed {
            arm(&mut rules, *process, *rule).unwrap();
        }
        rules
    }

    const MKEY: Event = Event::Call(Call::CreateMkey);

    #[test]
    fn rules_strike_by_number() {
        let struck = |when, times| {
            let mut rules = rules(&[(
                0,
                Rule {
                    times,
                    ..rule(MKEY, when)
                },
            )]);
            (1..=12)
                .filter(|_| decide(&mut rules, 0, 1, MKEY).is_some())
                .collect::<Vec<u64>>()
        };
        for (when, times, expect) in [
            (When::Always, 3, &[1, 2, 3][..]),
            (When::Nth(7), 0, &[7]),
            (When::Every(4), 0, &[4, 8, 12]),
            (When::Every(4), 2, &[4, 8]),
            (When::After(10), 0, &[11, 12]),
        ] {
            assert_eq!(struck(when, times), expect, "{when:?}");
        }
        let chance = |of_2_32, seed| struck(When::Chance { of_2_32, seed }, 0);
        assert_eq!(chance(0, 1), [0; 0]);
        assert_eq!(chance(1 << 32, 1).len(), 12);
        assert_eq!(chance(1 << 31, 5), chance(1 << 31, 5));
        assert_ne!(chance(1 << 31, 5), chance(1 << 31, 6));
    }

    #[test]
    fn rules_hold_where_and_for_whom_they_are_made() {
        let there = Rule {
            function: 2,
            ..rule(MKEY, When::Always)
        };
        let mut rules = rules(&[
            (7, there),
            (0, rule(Event::Request(Request::Umr), When::Always)),
        ]);
        for (function, process, event, strikes) in [
            (1, 7, MKEY, true),
            (0, 7, MKEY, false),
            (1, 8, MKEY, false),
            (1, 7, Event::Call(Call::CreateQp), false),
            (0, 1, Event::Request(Request::UmrBind), true),
            (3, 9, Event::Request(Request::UmrInvalidate), true),
            (3, 9, Event::Request(Request::Send), false),
        ] {
            let action = decide(&mut rules, function, process, event);
            assert_eq!(action.is_some(), strikes, "{function} {process} {event:?}");
        }
    }

    #[test]
    fn one_event_is_struck_once_and_counted_by_all() {
        let late = Rule {
            action: Action::Late { ns: 1 },
            ..rule(MKEY, When::Nth(1))
        };
        let mut rules = rules(&[(0, late), (0, rule(MKEY, When::Nth(1)))]);
        assert_eq!(decide(&mut rules, 0, 1, MKEY), Some(Action::Late { ns: 1 }));
        let seen: Vec<_> = rules.iter().map(|(_, _, armed)| armed.seen).collect();
        assert_eq!(seen, [1, 1]);
        assert_eq!(decide(&mut rules, 0, 1, MKEY), None);
    }
}
