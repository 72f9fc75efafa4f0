//! What the main job needs beyond rust, gcc and python3: the one list, with its pins.

/// Debian packages. Not `rdma-core`: it pulls udev, and nothing here needs its daemons.
pub(crate) const APT_PACKAGES: &[&str] = &[
    "libibverbs1",
    "ibverbs-providers",
    "libibverbs-dev",
    "ibverbs-utils",
    "perftest",
];

/// Added to [`APT_PACKAGES`] where this python cannot make a virtual environment with pip in it.
pub(crate) const APT_VENV: &str = "python3-venv";

/// The package whose pip runs straight from its wheel, for a machine with neither pip nor root.
pub(crate) const APT_PIP_WHEEL: &str = "python3-pip-whl";

/// Pinned wheels with the hashes of both architectures, in pip's own format.
pub(crate) const REQUIREMENTS: &str = include_str!("../../requirements.lock");

/// The UCX which those wheels carry.
pub(crate) const UCX_VERSION: &str = "1.20.1";

/// Disk that a filled cache takes, with room for a second generation of the wheels, in MiB.
pub(crate) const CACHE_MIB: u64 = 600;
