//! The columns of each report: name of the field, unit, and what people read. Terminal, Markdown and documents show them
//! through [`crate::table`], and the report's file has them as `columns`.

use crate::table::{Column, Form};

const fn us(name: &'static str, text: &'static str) -> Column {
    Column::new(name, "us", text, Form::Fixed(1))
}

const fn whole(name: &'static str, unit: &'static str, text: &'static str) -> Column {
    Column::new(name, unit, text, Form::Fixed(0))
}

const fn ratio(name: &'static str, text: &'static str) -> Column {
    Column::new(name, "", text, Form::Fixed(2))
}

const fn row(width: usize) -> Column {
    Column::text("name", "row", width)
}

const UNIT: Column = Column::text("unit", "unit", 9);
const WANTED: Column = Column::text("wanted", "wanted", 6);

/// Of the offloaded transfer, and of the alltoallv on a terminal.
pub const DEMO: &[Column] = &[
    Column::scheme(15),
    Column::size(),
    us("first_us", "first"),
    us("steady_us.p50", "p50"),
    us("steady_us.p99", "p99"),
    Column::count("iterations", "iters"),
    Column::count("commands_per_iteration.create_mkey", "create"),
    Column::count("commands_per_iteration.destroy_mkey", "destroy"),
    Column::count("commands_per_iteration.allow_other_vhca_access", "allow"),
    Column::count("commands_per_iteration.create_alias", "alias+"),
    Column::count("commands_per_iteration.destroy_alias", "alias-"),
    Column::count("commands_per_iteration.umr_bind", "bind"),
    Column::count("commands_per_iteration.umr_invalidate", "inval"),
    Column::count("commands_per_iteration.doorbells", "doorbells"),
];

/// Columns of the demo that compare its rows.
pub const DEMO_RATIOS: &[Column] = &[
    ratio("of_stock", "p50 against ucx-pool").optional(),
    ratio("of_ksm", "p50 against per-buffer").optional(),
];

/// Of the alltoallv in documents.
pub const ALLTOALLV: &[Column] = &[
    Column::size(),
    Column::scheme(15),
    whole("connect_us", "us", "connect").optional(),
    whole("first_us", "us", "first"),
    whole("steady_us.p50", "us", "steady p50"),
    whole("host_cpu_us", "us", "rank CPU").optional(),
    whole("service_cpu_us", "us", "service CPU").optional(),
];

/// Of the steps of a key's life.
pub const COST: &[Column] = &[
    Column::text("approach", "approach", 13),
    Column::text("step", "step", 28),
    Column::size(),
    Column::new("measured_ns", "ns", "measured", Form::Micro),
    Column::new("own_ns", "ns", "own", Form::Micro),
    Column::new("slide_ns", "ns", "slide", Form::Micro),
    Column::new("residual_ns", "ns", "residual", Form::Micro),
    ratio("ratio", "ratio"),
    Column::new("resolvable", "", "", Form::Unless("not resolvable")),
];

/// Of the pool beside its peers.
pub const POOL: &[Column] = &[
    row(28),
    Column::new("ours", "", "ours", Form::Fixed(1)),
    Column::new("peer", "", "peer", Form::Fixed(1)),
    UNIT,
    ratio("ratio", "times better"),
    Column::new("instructions.ours", "instructions", "ours", Form::Fixed(1)).optional(),
    Column::new("instructions.peer", "instructions", "peer", Form::Fixed(1)).optional(),
];

/// Of the emulated device.
pub const DEVICE: &[Column] = &[row(44), Column::count("measured", "measured"), UNIT, WANTED];

/// Of the library in a process.
pub const LIBRARY: &[Column] = &[row(32), Column::count("value", "value"), UNIT, WANTED];

/// Of the counts by owner.
pub const HOTPATH: &[Column] = &[
    Column::text("what", "count per export and release", 44),
    Column::text("mode", "mode", 8),
    Column::text("owner", "owner", 10),
    Column::count("ours", "ours"),
    Column::count("stock", "stock"),
];

/// Of new buffers.
pub const FRESH: &[Column] = &[
    Column::text("allocator", "from", 6),
    Column::size(),
    Column::scheme(10),
    us("us.p50", "whole"),
    us("host_us.p50", "host"),
    us("keys_us.p50", "keys"),
    Column::count("registrations", "registrations"),
    Column::count("commands", "commands"),
    Column::count("page_faults", "page faults"),
    Column::count("instructions", "instructions"),
];

/// Of an offloaded call's instructions.
pub const OFFLOAD: &[Column] = &[
    Column::size(),
    Column::text("process", "process", 7),
    Column::scheme(19),
    Column::text("owner", "owner", 20),
    Column::count("instructions", "instructions"),
    Column::new("of_stock", "", "of ucx-pool", Form::Fixed(3)).optional(),
    Column::new("of_before", "", "of before", Form::Fixed(3)).optional(),
];

/// Of a rank's own instructions.
pub const OVERLAP: &[Column] = &[
    Column::text("what", "part", 22),
    Column::text("owner", "owner", 10),
    Column::count("instructions", "instructions"),
];

/// Of the overlap that a call leaves.
pub const OVERLAP_BOUNDS: &[Column] = &[
    Column::size(),
    whole("call_us", "us", "call"),
    us("registration_us", "registration"),
    us("instructions_us", "instructions"),
    Column::new(
        "overlap_most_percent",
        "%",
        "overlap at most",
        Form::Fixed(1),
    ),
];

/// Of a block in the service process.
pub const SERVICE: &[Column] = &[
    Column::count("ranks", "ranks"),
    Column::count("services_per_node", "services per node"),
    Column::text("transport", "transport", 9),
    whole("instructions_per_block", "", "instructions per block"),
    whole("instructions_of.ucx", "", "of UCX"),
    whole("instructions_of.driver", "", "of driver"),
    whole("instructions_of.device", "", "of device"),
    Column::new("us_per_block.ours", "us", "block", Form::Fixed(3)),
    ratio("us_per_block.ucx", "in UCX"),
    ratio("us_per_block.driver", "in driver"),
    ratio("us_per_block.device", "in device"),
    ratio("us_per_block.kernel", "in kernel"),
    whole("bytes_per_rank", "", "bytes per rank"),
    whole("connect_ms", "ms", "connect"),
];

/// Numbers of [`SCALE`] that grow with the ranks.
pub const OF_SCALE: [&str; 5] = [
    "bytes_per_rank",
    "messages_per_sp",
    "instructions_per_block",
    "memory_per_rank",
    "memory_per_sp",
];

/// Of a call of many light ranks.
pub const SCALE: &[Column] = &[
    Column::count("ranks", "ranks"),
    Column::count("nodes", "nodes"),
    Column::text("collective", "collective", 12),
    whole("bytes_per_rank", "", "bytes per rank"),
    whole("bytes_to_service", "", "to the service"),
    whole("bytes_of_offers", "", "of offers"),
    whole("messages_per_sp", "", "messages per service"),
    whole("instructions_per_block", "", "instructions per block"),
    whole("memory_per_rank", "", "memory per rank"),
    whole("memory_per_sp", "", "memory per service"),
    whole("connect_ms", "ms", "connect"),
];

/// Of NBD servers.
pub const STORAGE: &[Column] = &[
    Column::text("backend", "server", 28),
    Column::text("op", "op", 5),
    Column::size(),
    whole("mib_s", "", "MiB/s"),
    whole("p50_us", "us", "p50"),
    whole("p99_us", "us", "p99"),
    Column::new(
        "server_cpu_s_per_gib",
        "s/GiB",
        "server CPU",
        Form::Fixed(2),
    ),
    ratio("of_nbdkit", "of nbdkit"),
    ratio("of_qemu_nbd", "of qemu-nbd"),
];

/// Of fio's own memory through the DPU.
pub const STORAGE_ENGINE: &[Column] = &[
    Column::scheme(10),
    Column::text("op", "op", 5),
    Column::size(),
    us("p50_us", "p50"),
    us("p99_us", "p99"),
];

/// Of volumes on memory, files, TCP and RDMA targets beside a mirrored pair of disks.
pub const STORAGE_DISKS: &[Column] = &[
    Column::text("peer", "targets", 30),
    Column::text("pattern", "pattern", 25),
    Column::new("block", "B", "request", Form::Size),
    whole("mib_per_s", "", "MiB/s"),
    Column::new("cpu_s_per_gib", "s/GiB", "server CPU", Form::Fixed(2)),
    Column::count("sends_per_group", "sends per group").optional(),
    Column::count("reads_per_group", "RDMA reads per group").optional(),
    Column::count("flushes", "flushes"),
    whole("disk_mib_per_cpu_s", "", "MiB to disks per CPU s"),
];

/// Of transfers between a volume and fresh memory.
pub const VOLUME: &[Column] = &[
    Column::size(),
    Column::scheme(10),
    us("us.p50", "p50"),
    us("us.p99", "p99"),
    us("write_us", "write"),
    us("read_us", "read"),
    ratio("of_stock", "of ucx-pool"),
    Column::count("key_commands", "key and alias commands"),
    Column::count("commands_per_io.umr_bind", "bind"),
    Column::count("commands_per_io.umr_invalidate", "inval"),
];

/// Of calls to accelerators.
pub const NAAICE: &[Column] = &[
    Column::size(),
    Column::text("way", "way", 8),
    us("create_us", "create"),
    us("call_us", "invoke + wait"),
    us("one_shot_us", "one shot"),
    Column::count("commands_per_one_shot.create_mkey", "create").optional(),
    Column::count("commands_per_one_shot.destroy_mkey", "destroy").optional(),
    Column::count("commands_per_one_shot.allow_other_vhca_access", "allow").optional(),
    Column::count("commands_per_one_shot.create_alias", "alias+").optional(),
    Column::count("commands_per_one_shot.destroy_alias", "alias-").optional(),
    Column::count("commands_per_one_shot.umr_bind", "bind").optional(),
    Column::count("commands_per_one_shot.umr_invalidate", "inval").optional(),
    Column::count("commands_per_one_shot.doorbells", "doorbells").optional(),
];

/// Of the parts of one call to an accelerator with its set-up.
pub const NAAICE_PARTS: &[Column] = &[
    Column::size(),
    Column::text("way", "way", 8),
    us("create_us", "create"),
    us("parts.first_call_us", "first call"),
    us("parts.finalize_us", "finalize"),
    us("parts.service.zero_us", "zero"),
    us("parts.service.read_us", "read"),
    us("parts.service.kernel_us", "kernel"),
    us("parts.service.write_us", "write"),
    ratio("at_most_times_faster", "at most").optional(),
];

/// Of a computation during a call to an accelerator.
pub const NAAICE_OVERLAP: &[Column] = &[
    Column::size(),
    Column::text("way", "way", 8),
    us("call_us", "call"),
    us("compute_us", "computation"),
    us("both_us", "both"),
    Column::new("hidden_percent", "%", "hidden", Form::Fixed(1)),
];

/// Of collectives of MPI programs.
pub const UCC: &[Column] = &[
    Column::text("program", "program", 17),
    Column::text("backend", "backend", 7),
    Column::scheme(10),
    Column::size(),
    Column::new("spread_ms", "ms", "spread", Form::Fixed(0)).optional(),
    us("us", "time").optional(),
    Column::new("overlap_percent", "%", "overlap", Form::Fixed(1)),
    us("host_cpu_us_per_call", "host CPU").optional(),
    Column::count("commands_per_call.create_mkey", "create").optional(),
    Column::count("commands_per_call.destroy_mkey", "destroy").optional(),
    Column::count("commands_per_call.allow_other_vhca_access", "allow").optional(),
    Column::count("commands_per_call.create_alias", "alias+").optional(),
    Column::count("commands_per_call.destroy_alias", "alias-").optional(),
    Column::count("commands_per_call.umr_bind", "bind").optional(),
    Column::count("commands_per_call.umr_invalidate", "inval").optional(),
    Column::count("verified_bytes", "verified"),
];

/// Columns of collectives that compare them with stock UCC on the hosts.
pub const UCC_RATIOS: &[Column] = &[ratio("of_ucc", "time"), ratio("cpu_of_ucc", "host CPU")];

/// Of programs of others with their collectives executed in four ways.
pub const PROGRAMS: &[Column] = &[
    Column::text("program", "program", 22),
    Column::count("size", "size"),
    Column::text("unit", "unit", 8),
    Column::new("mpi", "", "MPI", Form::Fixed(3)),
    Column::new("ucc", "", "UCC", Form::Fixed(3)),
    Column::new("tuned", "", "UCC tuned", Form::Fixed(3)),
    Column::new("offload", "", "offload", Form::Fixed(3)),
    ratio("of_ucc", "time of UCC's"),
    ratio("of_tuned", "of tuned"),
    ratio("cpu_of_ucc", "host CPU of UCC's"),
    Column::new("overlap_percent.ucc", "%", "overlap of UCC", Form::Fixed(1)).optional(),
    Column::new("overlap_percent.offload", "%", "overlap", Form::Fixed(1)).optional(),
];

/// Of all-to-alls whose blocks are moved by kernels of the DPA, by service processes, or by MPI.
pub const DPA: &[Column] = &[
    Column::scheme(10),
    Column::size(),
    us("us.p50", "p50"),
    Column::count("commands_per_call.create_mkey", "create").optional(),
    Column::count("commands_per_call.destroy_mkey", "destroy").optional(),
    Column::count("commands_per_call.allow_other_vhca_access", "allow").optional(),
    Column::count("commands_per_call.create_alias", "alias+").optional(),
    Column::count("commands_per_call.destroy_alias", "alias-").optional(),
    Column::count("commands_per_call.umr_bind", "bind").optional(),
    Column::count("commands_per_call.umr_invalidate", "inval").optional(),
    whole(
        "dpa_instructions_per_block",
        "",
        "DPA instructions per block",
    )
    .optional(),
    whole("arm_cpu_us_per_call", "us", "Arm CPU").optional(),
];

/// Of launches on the DPA.
pub const DPA_LAUNCH: &[Column] = &[
    Column::text("kind", "launch", 8),
    Column::count("instructions", "instructions"),
    Column::count("doorbells", "doorbells"),
    Column::count("objects", "objects"),
    us("us", "emulator's time"),
];

/// Of predicted calls.
pub const MODEL: &[Column] = &[
    Column::count("nodes", "nodes"),
    Column::count("ppn", "ppn"),
    Column::count("sps", "SPs"),
    Column::count("link_gbps", "Gb/s"),
    Column::size(),
    Column::scheme(31),
    us("us", "time"),
    Column::new("time_saved_percent", "%", "saved", Form::Fixed(1)),
    Column::new("speedup_percent", "%", "speedup", Form::Fixed(1)),
    us("first_us", "first"),
    Column::text("bottleneck", "bottleneck", 10),
];

/// Of the largest blocks for which the service process is the limit.
pub const MODEL_LIMITS: &[Column] = &[
    Column::count("nodes", "nodes"),
    Column::count("sps", "SPs"),
    Column::text("software", "software", 14),
    Column::count("slower", "slower"),
    Column::new("size", "bytes", "block", Form::Size),
];

/// Of sizes at which the offload does not lose.
pub const MODEL_CROSSINGS: &[Column] = &[
    Column::text("collective", "collective", 12),
    Column::count("nodes", "nodes"),
    Column::count("ppn", "ranks each"),
    Column::count("slower", "slower"),
    Column::new("least", "", "least", Form::Fixed(2)),
    Column::new("least_with_overlap", "", "with overlap", Form::Fixed(2)),
    Column::new("from", "", "from", Form::Size),
    Column::new("to", "", "to", Form::Size),
    Column::new("from_with_overlap", "", "overlap: from", Form::Size),
    Column::new("to_with_overlap", "", "to", Form::Size),
];

/// Of the offloaded call beside stock UCC's.
pub const MODEL_UCC: &[Column] = &[
    Column::text("collective", "collective", 12),
    Column::count("nodes", "nodes"),
    Column::count("ppn", "ranks each"),
    Column::count("slower", "slower"),
    Column::size(),
    us("us", "offloaded"),
    us("busy_us", "rank busy"),
    us("ucc_us", "UCC"),
    Column::new("of_ucc", "", "of UCC's", Form::Fixed(2)),
    Column::new("of_ucc_with_overlap", "", "with overlap", Form::Fixed(2)),
];

/// Of the schemes on fabrics with and without queues.
pub const MODEL_FABRICS: &[Column] = &[
    Column::count("nodes", "nodes"),
    Column::count("ppn", "ranks each"),
    Column::size(),
    Column::text("fabric", "fabric", 12),
    Column::scheme(10),
    us("us", "call"),
    Column::new("time_saved_percent", "%", "saved", Form::Fixed(1)),
];

/// Of programs for congestion control in the packet-level lab.
pub const CONGESTION: &[Column] = &[
    Column::text("algorithm", "algorithm", 16),
    Column::text("topology", "topology", 12),
    Column::count("flows", "flows"),
    Column::new("utilisation", "", "utilisation", Form::Fixed(3)),
    Column::new("queue_bytes.mean", "bytes", "queue mean", Form::Size),
    Column::new("queue_bytes.p99", "bytes", "queue p99", Form::Size),
    Column::new("jain", "", "Jain", Form::Fixed(3)),
    Column::new("slowdown.p50", "", "slowdown p50", Form::Fixed(1)),
    Column::new("slowdown.p95", "", "p95", Form::Fixed(1)),
    Column::new("slowdown.p99", "", "p99", Form::Fixed(1)),
    Column::new(
        "instructions_per_event",
        "",
        "instructions per event",
        Form::Fixed(0),
    ),
];

/// Of changed inputs of the model.
pub const MODEL_CHANGES: &[Column] = &[
    Column::text("what", "change", 38),
    Column::size(),
    Column::count("slides_percent", "slides, %"),
    whole("ksm_us", "us", "per-buffer"),
    whole("stock_us", "us", "ucx-pool"),
    Column::new("time_saved_percent", "%", "saved", Form::Fixed(1)),
    Column::new("speedup_percent", "%", "speedup", Form::Fixed(1)),
];

/// Of measured and predicted savings.
pub const CHECK: &[Column] = &[
    Column::scheme(18),
    Column::size(),
    whole("measured_saved_us", "us", "measured"),
    whole("predicted_saved_us", "us", "predicted"),
    ratio("ratio", "ratio"),
];

/// Of promises.
pub const JUDGE: &[Column] = &[
    Column::text("promise", "promise", 60),
    Column::text("wanted", "wanted", 12),
    Column::text("found", "found", 12),
    Column::text("verdict", "kept", 12),
    Column::text("command", "measured by", 20),
];

/// Of transfers that UCX copies by the CPU.
pub const MATRIX_COPIED: &[Column] = &[
    Column::text("ucx", "UCX", 8),
    Column::count("put_copied_max_bytes", "longest copied put (bytes)"),
    Column::count("get_copied_max_bytes", "longest copied get (bytes)").optional(),
];

/// Of fuzz targets.
pub const FUZZ: &[Column] = &[
    Column::text("target", "target", 16),
    Column::text("crate", "crate", 18),
    Column::count("runs", "inputs"),
    Column::count("seconds", "seconds"),
    Column::count("coverage", "edges"),
    Column::count("crashes", "crashes"),
];
