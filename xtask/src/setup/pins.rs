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

/// A set of pinned wheels that lives in a virtual environment of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WheelSet {
    /// First part of the directory's name in the cache.
    pub(crate) name: &'static str,
    /// What it is, for the user.
    pub(crate) what: &'static str,
    /// Size of the download.
    pub(crate) megabytes: u32,
    /// Pins with the hashes of both architectures, in pip's own format.
    pub(crate) lock: &'static str,
}

/// The UCX which the wheels of [`UCX`] carry.
pub(crate) const UCX_VERSION: &str = "1.20.1";

/// Stock UCX with the mlx5 module, its tools and its headers.
pub(crate) const UCX: WheelSet = WheelSet {
    name: "venv",
    what: "stock UCX 1.20.1",
    megabytes: 35,
    lock: include_str!("../../requirements.lock"),
};

/// libclang for bindgen; always this one, so that all maintainers get the same output.
pub(crate) const LIBCLANG: WheelSet = WheelSet {
    name: "libclang",
    what: "libclang 18.1.1 for bindgen",
    megabytes: 25,
    lock: include_str!("../../bindgen.lock"),
};

/// Version of bindgen-cli.
pub(crate) const BINDGEN_VERSION: &str = "0.73.2";

/// Disk that a filled cache takes, with room for a second generation of the wheels, in MiB.
pub(crate) const CACHE_MIB: u64 = 600;
