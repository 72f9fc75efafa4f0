//! Injected faults: rules that select a command or a work request and say how it fails.
//!
//! A rule counts matching events and applies by number or with a seeded probability. The same rules and the same events
//! therefore fail at the same points. The grammar is in [`parse`] and in docs/FAULTS.md. The device file holds the
//! active rules (`fabric::rules`). Rules of `bf-emu fault` apply to every process. Rules of [`ENV_FAULTS`] apply to the
//! process with this environment variable and end with it.

pub mod parse;

use super::names::countable;

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
    pub(crate) fn strikes(self, number: u64) -> bool {
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
    /// A request completes without error and does something else than it says, as on an adapter with
    /// a defect.
    Wrong(Wrong),
}

/// What a request does instead of what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wrong {
    /// Nothing.
    Ignored,
    /// A bind covers [`LONGER_BYTES`] more than it says.
    Longer,
    /// The first entry of a bind's list begins one byte later than it says.
    Shifted,
}

/// How much more a bind covers that is [`Wrong::Longer`].
pub const LONGER_BYTES: u32 = 4096;

impl Wrong {
    /// All, by their names in rules.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("ignored", Self::Ignored),
        ("longer", Self::Longer),
        ("shifted", Self::Shifted),
    ];
}

impl Action {
    /// True if this can happen at such an event.
    #[must_use]
    pub fn fits(self, event: Event) -> bool {
        match self {
            Self::Status { .. } | Self::Errno(_) => matches!(event, Event::Call(_)),
            Self::Syndrome(_) | Self::Never | Self::QpError => matches!(event, Event::Request(_)),
            Self::Late { .. } | Self::Vanish => true,
            Self::Wrong(Wrong::Ignored) => matches!(event, Event::Request(_)),
            Self::Wrong(Wrong::Longer | Wrong::Shifted) => {
                event == Event::Request(Request::UmrBind)
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chance_is_met_about_as_often_as_it_says() {
        let when = When::Chance {
            of_2_32: (1 << 32) / 10,
            seed: 3,
        };
        let struck = (1..=100_000).filter(|number| when.strikes(*number)).count();
        assert!((9_500..10_500).contains(&struck), "{struck}");
    }
}
