//! Injected faults: rules that select a command or a work request and say how it fails.
//!
//! A rule counts matching events and applies by number or with a seeded probability. The same rules
//! and the same events therefore fail at the same points. The grammar is in [`parse`] and in
//! docs/FAULTS.md. The device file holds the active rules (`fabric::rules`). Rules of `bf-emu
//! fault` apply to every process. Rules of [`ENV_FAULTS`] apply to the process with this
//! environment variable and end with it.

pub mod parse;

use super::names::countable;

/// Environment variable with rules for the process, or with `@FILE` for a file of rules.
pub const ENV_FAULTS: &str = "BFEMU_FAULTS";
/// Largest number of active rules. Each event is compared with all of them.
pub const RULES_MAX: usize = 64;
/// Longest delay: one hour. The action "never" replaces longer delays.
pub const LATE_MAX_NS: u64 = 3_600_000_000_000;

countable! {
    /// Calls into the kernel, by the name of their command.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Call {
        QueryHcaCap = "query_hca_cap",
        CreateMkey = "create_mkey",
        DestroyMkey = "destroy_mkey",
        AllowOtherVhcaAccess = "allow_other_vhca_access",
        CreateGeneralObject = "create_general_object",
        CreateAliasOfFree = "create_alias_of_free",
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
    /// Work requests, by operation.
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum Request {
        Nop = "nop",
        Send = "send",
        RdmaWrite = "rdma_write",
        RdmaRead = "rdma_read",
        Atomic = "atomic",
        DmaMemcpy = "dma_memcpy",
        UmrBind = "umr_bind",
        UmrInvalidate = "umr_invalidate",
        Umr = "umr",
        Any = "any",
    }
}

/// An event, or the selection of events in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Event {
    /// A call into the kernel.
    Call(Call),
    /// A work request, at its execution.
    Request(Request),
}

impl Event {
    /// True if this selection of a rule includes the event `happens`.
    #[must_use]
    pub fn means(self, happens: Self) -> bool {
        match (self, happens) {
            (Self::Call(Call::Any), Self::Call(_))
            | (Self::Request(Request::Any), Self::Request(_))
            | (
                Self::Request(Request::Umr),
                Self::Request(Request::UmrBind | Request::UmrInvalidate),
            )
            | (Self::Call(Call::CreateGeneralObject), Self::Call(Call::CreateAliasOfFree))
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

/// The matching events to which a rule applies. The first matching event is number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum When {
    /// All events.
    Always,
    /// The event with this number.
    Nth(u64),
    /// Events whose number is a multiple of this.
    Every(u64),
    /// All events after this number.
    After(u64),
    /// Each event with this probability, in units of 2^-32.
    Chance {
        /// 0 to 2^32.
        of_2_32: u64,
        /// The same seed selects the same events.
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

/// A pseudo-random number that depends only on both arguments (splitmix64).
pub(crate) fn mixed(seed: u64, number: u64) -> u64 {
    let mut x = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The effect of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Action {
    /// The device refuses the command.
    Status {
        /// One of [`mlx5_prm::cmd::status`].
        status: u8,
        /// The syndrome of the refusal.
        syndrome: u32,
    },
    /// The kernel refuses the call before the device sees it.
    Errno(i32),
    /// The request completes in error and changes nothing. Its queue pair enters the error state.
    Syndrome(u8),
    /// The answer of a call, or the completion of a request, is delayed. Requests behind it wait.
    Late {
        /// Delay in nanoseconds, up to [`LATE_MAX_NS`].
        ns: u64,
    },
    /// The request is executed and never completes. Requests behind it wait.
    Never,
    /// The queue pair enters the error state before the request is executed.
    QpError,
    /// The process ends immediately, like SIGKILL.
    Vanish,
    /// The request completes without error but does something else, as on a defective adapter.
    Wrong(Wrong),
}

/// The wrong effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wrong {
    /// No effect.
    Ignored,
    /// The bind covers [`LONGER_BYTES`] more than requested.
    Longer,
    /// The first entry of the bind's list begins one byte later than requested.
    Shifted,
}

/// Additional bytes of a [`Wrong::Longer`] bind.
pub const LONGER_BYTES: u32 = 4096;

impl Wrong {
    /// All variants and their names in rules.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("ignored", Self::Ignored),
        ("longer", Self::Longer),
        ("shifted", Self::Shifted),
    ];
}

impl Action {
    /// True if this effect is possible for the event.
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
    /// The selected events.
    pub event: Event,
    /// The numbers of the events to which the rule applies.
    pub when: When,
    /// Largest number of applications; 0 for no limit.
    pub times: u64,
    /// The effect.
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
