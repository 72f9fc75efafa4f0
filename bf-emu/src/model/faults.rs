//! Faults on purpose: rules that say which command or work request is to go wrong, and how.
//!
//! A rule counts the events that it speaks of, and strikes by number or by a seeded chance, so that
//! a run with the same rules and the same events fails in the same places. Rules live in the device
//! file: those of `bf-emu fault` are for every process, those of [`ENV_FAULTS`] for the process that
//! has them in its environment, and go with it. The grammar is in [`parse`], and in docs/FAULTS.md.
//!
//! What strikes is decided here; how a command or a request then fails is the business of
//! `uverbs::fault` and `engine::fault`.

pub mod parse;

use crate::fabric::table::{Owner, Table};
use crate::report::stats::countable;

/// Environment variable with rules for the process, or with `@FILE` that has them.
pub const ENV_FAULTS: &str = "BFEMU_FAULTS";
/// Rules in force at once: every one is looked at for each event.
pub const RULES_MAX: usize = 64;
/// Longest delay: one hour, beyond which "never" says it better.
pub const LATE_MAX_NS: u64 = 3_600_000_000_000;

countable! {
    /// Calls into the kernel, by the name of the command that they become.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Call {
        QueryHcaCap = "query_hca_cap",
        CreateMkey = "create_mkey",
        DestroyMkey = "destroy_mkey",
        AllowOtherVhcaAccess = "allow_other_vhca_access",
        CreateGeneralObject = "create_general_object",
        DestroyGeneralObject = "destroy_general_object",
        CreateCq = "create_cq",
        DestroyCq = "destroy_cq",
        ModifyCq = "modify_cq",
        CreateQp = "create_qp",
        DestroyQp = "destroy_qp",
        ModifyQp = "modify_qp",
        ModifyQpRst = "modify_qp_rst",
        ModifyQpInit = "modify_qp_init",
        ModifyQpRtr = "modify_qp_rtr",
        ModifyQpRts = "modify_qp_rts",
        ModifyQpErr = "modify_qp_err",
        QueryQp = "query_qp",
        CreateSrq = "create_srq",
        DestroySrq = "destroy_srq",
        RegMr = "reg_mr",
        DeregMr = "dereg_mr",
        ReregMr = "rereg_mr",
        AllocMw = "alloc_mw",
        DeallocMw = "dealloc_mw",
        AllocPd = "alloc_pd",
        DeallocPd = "dealloc_pd",
        UmemReg = "umem_reg",
        UmemDereg = "umem_dereg",
        AllocUar = "alloc_uar",
        CreateChannel = "create_channel",
        SubscribeEvent = "subscribe_event",
        QueryPort = "query_port",
        QueryDevice = "query_device",
        OpenContext = "open_context",
        Other = "other",
        Any = "any",
    }
}

countable! {
    /// Work requests, by what they ask for.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Request {
        Nop = "nop",
        Send = "send",
        RdmaWrite = "rdma_write",
        RdmaRead = "rdma_read",
        Atomic = "atomic",
        UmrBind = "umr_bind",
        UmrInvalidate = "umr_invalidate",
        Umr = "umr",
        Any = "any",
    }
}

/// What a rule speaks of, and what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Event {
    /// A call into the kernel.
    Call(Call),
    /// A work request, when its turn has come.
    Request(Request),
}

impl Event {
    /// True if an event that happens is one that this one, in a rule, means.
    #[must_use]
    pub fn means(self, happens: Self) -> bool {
        match (self, happens) {
            (Self::Call(Call::Any), Self::Call(_))
            | (Self::Request(Request::Any), Self::Request(_))
            | (
                Self::Request(Request::Umr),
                Self::Request(Request::UmrBind | Request::UmrInvalidate),
            )
            | (
                Self::Call(Call::ModifyQp),
                Self::Call(
                    Call::ModifyQpRst
                    | Call::ModifyQpInit
                    | Call::ModifyQpRtr
                    | Call::ModifyQpRts
                    | Call::ModifyQpErr,
                ),
            ) => true,
            _ => self == happens,
        }
    }
}

/// Which of the events a rule strikes; the first is number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum When {
    /// All.
    Always,
    /// One.
    Nth(u64),
    /// Those whose number is a multiple.
    Every(u64),
    /// All behind this many.
    After(u64),
    /// Each with this probability, in units of 2^-32.
    Chance {
        /// 0 to 2^32.
        of_2_32: u64,
        /// The same events strike for the same seed.
        seed: u64,
    },
}

impl When {
    fn strikes(self, number: u64) -> bool {
        match self {
            Self::Always => true,
            Self::Nth(nth) => number == nth,
            Self::Every(every) => every != 0 && number.is_multiple_of(every),
            Self::After(after) => number > after,
            Self::Chance { of_2_32, seed } => mixed(seed, number) >> 32 < of_2_32,
        }
    }
}

/// A number that looks like chance and depends on both alone (splitmix64).
pub(crate) fn mixed(seed: u64, number: u64) -> u64 {
    let mut x = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// How it goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Action {
    /// A command is refused by the device.
    Status {
        /// One of [`mlx5_prm::cmd::status`].
        status: u8,
        /// The finer reason.
        syndrome: u32,
    },
    /// A call is refused by the kernel, before the device sees it.
    Errno(i32),
    /// A request completes in error and changes nothing; its queue pair goes to the error state.
    Syndrome(u8),
    /// A call is answered, or a request completes, so much later. Requests behind it wait.
    Late {
        /// Nanoseconds, up to [`LATE_MAX_NS`].
        ns: u64,
    },
    /// A request is carried out and never completes; those behind it wait.
    Never,
    /// The queue pair goes to the error state before the request is carried out.
    QpError,
    /// The process ends there and then, as if killed.
    Vanish,
}

impl Action {
    /// True if this can happen at such an event.
    #[must_use]
    pub fn fits(self, event: Event) -> bool {
        match self {
            Self::Status { .. } | Self::Errno(_) => matches!(event, Event::Call(_)),
            Self::Syndrome(_) | Self::Never | Self::QpError => matches!(event, Event::Request(_)),
            Self::Late { .. } | Self::Vanish => true,
        }
    }
}

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Index of the function where the event happens, counted from 1; 0 for any.
    pub function: u32,
    /// What it speaks of.
    pub event: Event,
    /// Which of these events.
    pub when: When,
    /// How often at most; 0 for without limit.
    pub times: u64,
    /// What then.
    pub action: Action,
}

/// A rule in force.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Armed {
    /// The rule.
    pub rule: Rule,
    /// Events that it spoke of.
    pub seen: u64,
    /// Events that it struck.
    pub struck: u64,
}

/// The rules in force. The owner's process is the one for which a rule holds; 0 for all.
pub type Rules = Table<Armed, RULES_MAX>;

/// Puts a rule in force, for one process or, with 0, for all. Returns its number; None if there are
/// [`RULES_MAX`] already.
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

/// Counts an event with every rule that speaks of it. Returns what the first one that strikes asks
/// for.
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
        let mut rules: Box<Rules> = unsafe { Box::new_zeroed().assume_init() };
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
        assert_eq!(chance(0, 1), []);
        assert_eq!(chance(1 << 32, 1).len(), 12);
        assert_eq!(chance(1 << 31, 5), chance(1 << 31, 5));
        assert_ne!(chance(1 << 31, 5), chance(1 << 31, 6));
    }

    #[test]
    fn a_chance_is_met_about_as_often_as_it_says() {
        let when = When::Chance {
            of_2_32: (1 << 32) / 10,
            seed: 3,
        };
        let struck = (1..=100_000).filter(|number| when.strikes(*number)).count();
        assert!((9_500..10_500).contains(&struck), "{struck}");
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
