//! The transports of UCX over mlx5, each of which the suites run by itself.

/// One transport.
#[derive(Debug)]
pub(super) struct Transport {
    /// As UCX calls it.
    pub(super) name: &'static str,
    /// What `UCX_TLS` is set to: with it comes the datagram transport that connects endpoints.
    pub(super) tls: &'static str,
}

pub(super) const TRANSPORTS: &[Transport] = &[
    transport("rc_mlx5", "rc_x"),
    transport("dc_mlx5", "dc_x"),
    transport("ud_mlx5", "ud_x"),
    transport("rc_verbs", "rc_v"),
    transport("ud_verbs", "ud_v"),
];

const fn transport(name: &'static str, tls: &'static str) -> Transport {
    Transport { name, tls }
}
