//! Properties of the device that no document states. Each is a parameter, and each default is a guess.

use serde::Deserialize;

macro_rules! guesses {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr,)+) => {
        /// Properties of the device that no document states. All defaults are guesses; whoever measures one, sets it.
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Guesses {
            $($(#[doc = $text])+ pub $name: $kind,)+
        }

        impl Default for Guesses {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        /// All guesses: name, default, and meaning.
        pub const GUESSES: &[(&str, &str, &str)] = &[
            $((stringify!($name), stringify!($default), concat!($($text),+)),)+
        ];
    };
}

guesses! {
    /// Guess: time from a packet's arrival or departure to the start of the handler, in ns.
    event_latency_ns: u64 = 500,
    /// Guess: time of one handler on its thread, in ns, if the algorithm does not count instructions.
    handler_ns: u64 = 600,
    /// Guess: threads that run handlers.
    handler_threads: u64 = 48,
    /// Guess: instructions of one thread per microsecond, if the algorithm counts them. 0: counted instructions take
    /// `handler_ns` as well, so that two builds of one algorithm see the same times.
    handler_mips: u64 = 1_800,
    /// Guess: events in the queue above which new ones may be dropped.
    event_queue_min: u32 = 512,
    /// Guess: events in the queue above which all new ones are dropped.
    event_queue_max: u32 = 1_024,
    /// Guess: probability of a drop just below the upper limit.
    event_drop: f64 = 0.1,
    /// Guess: events in the queue above which the handler sees the overload bit.
    overload_events: u32 = 256,
    /// Guess: most events of one flow and type that one call may stand for. They merge while they wait.
    coalesced_max: u16 = 64,
    /// Guess: packets of a flow per TX event. A packet with a probe, and the first of a flow, cause one at once.
    tx_event_packets: u16 = 8,
    /// Guess: bytes of a probe or its response on the wire, without what switches append.
    probe_bytes: u16 = 128,
    /// Guess: bytes that each switch appends to an IFA probe.
    ifa_hop_bytes: u16 = 32,
    /// Guess: priority of the responses of probes. The requests have the priority of their flow, and so see its queues.
    response_priority: u8 = 6,
    /// Guess: time of the receiver between probe and response, in ns.
    response_ns: u64 = 1_000,
    /// Guess: time after which the port forgets a probe without response, and accepts the next request, in us.
    probe_timeout_us: u64 = 500,
    /// Guess: time between a marked packet and its CNP, in us. Measurements suggest up to 55.
    cnp_delay_us: u64 = 0,
    /// Guess: the limiter rounds rates down to multiples of this fraction.
    rate_granularity: u32 = 1,
    /// Guess: rate of a flow before the first decision.
    rate_initial: u32 = 4_096,
    /// Guess: lowest rate of the limiter. Rate 0 becomes this one.
    rate_floor: u32 = 64,
    /// Guess: packets that a flow may send ahead of its rate, after it was late.
    burst_packets: u64 = 1,
    /// Guess: whether the limiter counts headers, preamble and gap as well.
    rate_counts_headers: bool = true,
    /// Guess: time from the failure of the active process to the first event of the next one, in us.
    takeover_us: u64 = 100,
    /// Guess: the algorithm of slot 15, for flows that rdma_cm has not connected and after the last process has failed.
    internal: String = "dcqcn".to_owned(),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guess_says_that_it_is_one() {
        assert!(!GUESSES.is_empty());
        for (name, default, text) in GUESSES {
            assert!(
                text.trim().starts_with("Guess: "),
                "{name} = {default}: {text}"
            );
        }
    }

    #[test]
    fn what_the_facts_leave_open_is_a_parameter() {
        // Coalescing and spacing of events, drop rules, time-out of probes, overload bit, granularity of the limiter,
        // internal algorithm, and the suspected delay of CNPs.
        let open = [
            "coalesced_max",
            "tx_event_packets",
            "event_queue_min",
            "event_queue_max",
            "event_drop",
            "probe_timeout_us",
            "overload_events",
            "rate_granularity",
            "internal",
            "cnp_delay_us",
        ];
        for name in open {
            assert!(GUESSES.iter().any(|(known, ..)| *known == name), "{name}");
        }
    }
}
