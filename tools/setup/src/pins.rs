//! The pinned requirements of the demo beyond rust, gcc and python3.

/// Debian packages. `rdma-core` is excluded: it installs udev, and no test needs its daemons.
pub const APT_PACKAGES: &[&str] = &[
    "libibverbs1",
    "ibverbs-providers",
    "libibverbs-dev",
    "librdmacm-dev",
    "ibverbs-utils",
    "perftest",
];

/// Debian packages of the storage suite: block clients, a file system's tools, and libraries that judge the formats.
pub const STORAGE_PACKAGES: &[&str] = &[
    "libnbd-bin",
    "python3-libnbd",
    "nbdkit",
    "qemu-utils",
    "fio",
    "dmsetup",
    "e2fsprogs",
    "openssl",
    "liblz4-1",
    "libisal2",
];

/// Debian packages of a virtual machine: an emulator, a kernel, and a user's programs. They are unpacked, not installed.
pub const MACHINE_PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "linux-image-cloud-amd64",
];

/// Debian packages of a boot loader and of the kernel's client of NBD, for the virtual machine. They are unpacked.
pub const GUEST_PACKAGES: &[&str] = &[
    "syslinux",
    "syslinux-common",
    "mtools",
    "dosfstools",
    "nbd-client",
];

/// Debian packages of the tests of device code: compilers for RISC-V, their C library, an emulator and a debugger.
pub const RISCV_PACKAGES: &[&str] = &[
    "gcc-riscv64-unknown-elf",
    "binutils-riscv64-unknown-elf",
    "picolibc-riscv64-unknown-elf",
    "clang-19",
    "lld-19",
    "qemu-user",
    "gdb-multiarch",
];

/// Added to [`APT_PACKAGES`] if the installed python cannot create a virtual environment with pip.
pub const APT_VENV: &str = "python3-venv";

/// The package whose pip runs directly from its wheel, for a machine with neither pip nor root privileges.
pub const APT_PIP_WHEEL: &str = "python3-pip-whl";

/// A set of pinned wheels with its own virtual environment.
#[derive(Debug, Clone, Copy)]
pub struct WheelSet {
    /// First part of the directory's name in the cache.
    pub name: &'static str,
    /// Description for the user.
    pub what: &'static str,
    /// Size of the download.
    pub megabytes: u32,
    /// Pins with the hashes of both architectures, in pip's own format.
    pub lock: &'static str,
}

impl WheelSet {
    /// Its first package.
    pub(crate) fn package(&self) -> &'static str {
        let mut pins = self.lock.lines().filter_map(|line| line.split_once("=="));
        pins.next().map_or(self.name, |(package, _)| package)
    }
}

/// The UCX version in the wheels of [`UCX`].
pub const UCX_VERSION: &str = "1.20.1";

/// Stock UCX with the mlx5 module, its tools and its headers.
pub const UCX: WheelSet = WheelSet {
    name: "venv",
    what: "stock UCX 1.20.1",
    megabytes: 35,
    lock: include_str!("../requirements.lock"),
};

/// libclang for bindgen. The pin makes the output equal for all maintainers.
pub const LIBCLANG: WheelSet = WheelSet {
    name: "libclang",
    what: "libclang 18.1.1 for bindgen",
    megabytes: 25,
    lock: include_str!("../bindgen.lock"),
};

/// NIXL with its own UCX and libmlx5, for Debian 12's Python.
pub const NIXL: WheelSet = WheelSet {
    name: "nixl",
    what: "NIXL 1.5.1",
    megabytes: 69,
    lock: include_str!("../nixl.lock"),
};

/// Intel MPI, of which only the built Intel MPI Benchmarks are kept.
pub const IMB: WheelSet = WheelSet {
    name: "imb",
    what: "the Intel MPI Benchmarks of Intel MPI 2021.19.0",
    megabytes: 129,
    lock: include_str!("../imb.lock"),
};

/// MPI for Python.
pub const MPI4PY: WheelSet = WheelSet {
    name: "mpi4py",
    what: "mpi4py 4.1.2",
    megabytes: 2,
    lock: include_str!("../mpi4py.lock"),
};

/// Its source, of which only the tests are used.
pub const MPI4PY_SOURCE: WheelSet = WheelSet {
    name: "mpi4py-source",
    what: "the tests of mpi4py 4.1.2",
    megabytes: 1,
    lock: include_str!("../mpi4py-source.lock"),
};

/// Version of bindgen-cli.
pub const BINDGEN_VERSION: &str = "0.73.2";

/// Version of fsx, in Rust.
pub const FSX_VERSION: &str = "0.3.2";

/// Disk space of a filled cache with a margin for a second generation of the wheels, in MiB.
pub const CACHE_MIB: u64 = 600;
