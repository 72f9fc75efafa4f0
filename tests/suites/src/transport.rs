//! The mlx5 transports of UCX. The suites run each one separately.

/// One transport.
#[derive(Debug)]
pub(super) struct Transport {
    /// UCX's name.
    pub(super) name: &'static str,
    /// Value of `UCX_TLS`: it includes the datagram transport that connects endpoints.
    pub(super) tls: &'static str,
    /// Whether the device executes the atomics. UCX uses the device if it supports all of them, which plain verbs do
    /// not offer; otherwise it sends messages.
    pub(super) has_atomics: bool,
}

pub(super) const TRANSPORTS: &[Transport] = &[
    transport("rc_mlx5", "rc_x", true),
    transport("dc_mlx5", "dc_x", true),
    transport("ud_mlx5", "ud_x", false),
    transport("rc_verbs", "rc_v", false),
    transport("ud_verbs", "ud_v", false),
];

/// Between the functions of one adapter, on firmware that has it: its lanes carry long messages, and those of `ud_mlx5` the
/// others.
pub(super) const GGA: Transport = transport("gga_mlx5", "ud_x,gga", false);

const fn transport(name: &'static str, tls: &'static str, has_atomics: bool) -> Transport {
    Transport {
        name,
        tls,
        has_atomics,
    }
}
