//! The types and offsets of `abi` against UCX's headers: a C probe, compiled in the test, prints
//! the compiler's values. The installed headers define a part of them. With a source tree of UCX in
//! `XGVMI_UCX_SRC`, the test checks the others too.

#[allow(dead_code, reason = "each test uses its part of it")]
mod common;

#[expect(dead_code, reason = "it is made for the library")]
#[path = "../src/abi.rs"]
mod abi;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};

use abi::{
    ATOMIC_RKEY_BEFORE_MRS, Completion, EXPORTED_LKEY_BEFORE_MRS, KsmData, MRS_PLACES, MdHead,
    MdOpsEntry, MemAttachParams, MemDeregParams, MemhHead, MkeyPackParams, UcsStatus, md_attr,
    memh_flags, slot,
};

/// C expressions with the library's values of them.
type Expected = Vec<(&'static str, u64)>;

/// Values from the installed headers.
fn public() -> Expected {
    vec![
        ("sizeof(ucs_status_t)", size_of::<UcsStatus>() as u64),
        (
            "UCS_ERR_INVALID_PARAM & 0xff",
            u64::from(UcsStatus::ERR_INVALID_PARAM.0.cast_unsigned()),
        ),
        (
            "UCS_ERR_UNSUPPORTED & 0xff",
            u64::from(UcsStatus::ERR_UNSUPPORTED.0.cast_unsigned()),
        ),
        (
            "offsetof(uct_completion_t, count)",
            offset_of!(Completion, count) as u64,
        ),
        (
            "offsetof(uct_completion_t, status)",
            offset_of!(Completion, status) as u64,
        ),
        ("UCT_MD_FLAG_EXPORTED_MKEY", md_attr::FLAG_EXPORTED_MKEY),
    ]
}

/// Values that need a source tree.
fn internal() -> Expected {
    let mut all = vec![
        ("UCT_MD_MKEY_PACK_FIELD_FLAGS", MkeyPackParams::FIELD_FLAGS),
        (
            "UCT_MD_MKEY_PACK_FLAG_EXPORT",
            MkeyPackParams::FLAG_EXPORT.into(),
        ),
        (
            "UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA | UCT_MD_MKEY_PACK_FLAG_INVALIDATE_AMO",
            MkeyPackParams::FLAGS_INVALIDATE.into(),
        ),
        ("UCT_MD_MEM_DEREG_FIELD_MEMH", MemDeregParams::FIELD_MEMH),
        ("UCT_MD_MEM_DEREG_FIELD_FLAGS", MemDeregParams::FIELD_FLAGS),
        (
            "UCT_MD_MEM_DEREG_FIELD_COMPLETION",
            MemDeregParams::FIELD_COMPLETION,
        ),
        (
            "UCT_MD_MEM_DEREG_FLAG_INVALIDATE",
            MemDeregParams::FLAG_INVALIDATE.into(),
        ),
        ("UCT_IB_MEM_ACCESS_REMOTE_ATOMIC", memh_flags::ATOMIC.into()),
        ("UCT_IB_MEM_MULTITHREADED", memh_flags::MULTITHREADED.into()),
        ("UCT_IB_MEM_IMPORTED", memh_flags::IMPORTED.into()),
        ("UCT_IB_MEM_FLAG_GVA", memh_flags::GVA.into()),
        ("UCT_IB_INVALID_MKEY", abi::INVALID_MKEY.into()),
    ];
    let offsets = offsets_of_fields()
        .into_iter()
        .chain(offsets_of_operations());
    all.extend(offsets.map(|(expression, offset)| (expression, offset as u64)));
    all
}

fn offsets_of_fields() -> Vec<(&'static str, usize)> {
    vec![
        ("offsetof(uct_md_attr_v2_t, flags)", md_attr::FLAGS_OFFSET),
        (
            "offsetof(uct_md_attr_v2_t, exported_mkey_packed_size)",
            md_attr::EXPORTED_MKEY_PACKED_SIZE_OFFSET,
        ),
        (
            "offsetof(uct_md_attr_v2_t, global_id)",
            md_attr::GLOBAL_ID_OFFSET,
        ),
        (
            "sizeof(((uct_md_attr_v2_t*)0)->global_id)",
            md_attr::GLOBAL_ID_BYTES,
        ),
        (
            "offsetof(uct_md_mkey_pack_params_t, flags)",
            offset_of!(MkeyPackParams, flags),
        ),
        (
            "offsetof(uct_md_mem_attach_params_t, flags)",
            offset_of!(MemAttachParams, flags),
        ),
        (
            "offsetof(uct_md_mem_dereg_params_t, flags)",
            offset_of!(MemDeregParams, flags),
        ),
        (
            "offsetof(uct_md_mem_dereg_params_t, memh)",
            offset_of!(MemDeregParams, memh),
        ),
        (
            "offsetof(uct_md_mem_dereg_params_t, comp)",
            offset_of!(MemDeregParams, comp),
        ),
        (
            "offsetof(uct_ib_md_ops_entry_t, ops)",
            offset_of!(MdOpsEntry, ops),
        ),
        ("offsetof(uct_ib_md_t, super.ops)", offset_of!(MdHead, ops)),
        ("offsetof(uct_ib_md_t, pd)", offset_of!(MdHead, pd)),
        (
            "offsetof(uct_ib_md_t, dev.ibv_context)",
            offset_of!(MdHead, context),
        ),
        ("offsetof(uct_ib_mem_t, lkey)", offset_of!(MemhHead, lkey)),
        ("offsetof(uct_ib_mem_t, rkey)", offset_of!(MemhHead, rkey)),
        ("offsetof(uct_ib_mem_t, flags)", offset_of!(MemhHead, flags)),
        ("offsetof(uct_ib_md_packed_mkey_t, vhca_id)", 4),
    ]
}

fn offsets_of_operations() -> Vec<(&'static str, usize)> {
    vec![
        (
            "offsetof(uct_md_ops_t, close)",
            size_of::<usize>() * slot::MD_CLOSE.index,
        ),
        (
            "offsetof(uct_md_ops_t, query)",
            size_of::<usize>() * slot::MD_QUERY.index,
        ),
        (
            "offsetof(uct_md_ops_t, mem_reg)",
            size_of::<usize>() * slot::MEM_REG.index,
        ),
        (
            "offsetof(uct_md_ops_t, mem_dereg)",
            size_of::<usize>() * slot::MEM_DEREG.index,
        ),
        (
            "offsetof(uct_md_ops_t, mkey_pack)",
            size_of::<usize>() * slot::MKEY_PACK.index,
        ),
        (
            "offsetof(uct_md_ops_t, mem_attach)",
            size_of::<usize>() * slot::MEM_ATTACH.index,
        ),
    ]
}

/// Additions of UCX 1.19.
fn internal_with_owner() -> Expected {
    vec![
        (
            "offsetof(uct_md_mem_attach_params_t, mkey_size)",
            offset_of!(MemAttachParams, mkey_size) as u64,
        ),
        (
            "UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE",
            MemAttachParams::FIELD_MKEY_SIZE,
        ),
        ("offsetof(uct_ib_md_packed_mkey_t, md_uuid)", 6),
        ("sizeof(uct_ib_md_packed_mkey_t)", 14),
    ]
}

/// The registrations of a memory handle: facts that hold in every version and build.
fn chunks() -> Expected {
    let places: Vec<String> = MRS_PLACES
        .iter()
        .map(|place| format!("offsetof(uct_ib_mlx5_devx_mem_t, mrs) == {place}"))
        .collect();
    // One of them; the string must outlive the probe.
    let one_of: &'static str = places.join(" || ").leak();
    vec![
        (one_of, 1),
        (
            "offsetof(uct_ib_mlx5_devx_mem_t, mrs) - offsetof(uct_ib_mlx5_devx_mem_t, atomic_rkey)",
            ATOMIC_RKEY_BEFORE_MRS as u64,
        ),
        (
            "offsetof(uct_ib_mlx5_devx_mem_t, mrs) - offsetof(uct_ib_mlx5_devx_mem_t, exported_lkey)",
            EXPORTED_LKEY_BEFORE_MRS as u64,
        ),
        ("offsetof(uct_ib_mlx5_devx_mem_t, super)", 0),
        ("offsetof(uct_ib_mlx5_devx_mr_t, ksm_data)", 0),
        (
            "offsetof(uct_ib_mlx5_devx_ksm_data_t, mr_num)",
            offset_of!(KsmData, mr_num) as u64,
        ),
        (
            "sizeof(((uct_ib_mlx5_devx_ksm_data_t*)0)->mr_num)",
            size_of::<i32>() as u64,
        ),
        (
            "offsetof(uct_ib_mlx5_devx_ksm_data_t, length)",
            offset_of!(KsmData, length) as u64,
        ),
        (
            "offsetof(uct_ib_mlx5_devx_ksm_data_t, mrs)",
            size_of::<KsmData>() as u64,
        ),
    ]
}

#[test]
fn the_interface_agrees_with_the_headers() {
    if let Some(tree) = env::var_os("XGVMI_UCX_SRC").map(PathBuf::from) {
        let source = tree.join("src");
        let headers = "#include <uct/api/v2/uct_v2.h>\n#include <uct/ib/base/ib_md.h>\n";
        let mut expect = public();
        expect.extend(internal());
        let text = fs::read_to_string(source.join("uct/api/v2/uct_v2.h")).expect("a UCX tree");
        if text.contains("MEM_ATTACH_FIELD_MKEY_SIZE") {
            expect.extend(internal_with_owner());
        }
        check(&source, headers, &expect);
        // With and without device memory, which shifts a field.
        for device_memory in ["1", "0"] {
            let headers = format!(
                "#undef HAVE_IBV_DM\n#define HAVE_IBV_DM {device_memory}\n\
                 #include <uct/ib/mlx5/ib_mlx5.h>\n"
            );
            check(&source, &headers, &chunks());
        }
    }
    match common::Stock::find() {
        Some(stock) => check(&stock.include, "", &public()),
        None => common::skip(
            "the_interface_agrees_with_the_headers",
            "no UCX headers: cargo xtask setup",
        ),
    }
}

#[track_caller]
fn check(include: &Path, headers: &str, expect: &Expected) {
    let mut source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <uct/api/uct.h>\n{headers}\
         int main(void) {{\n"
    );
    for (expression, _) in expect {
        writeln!(
            source,
            "printf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .expect("a String takes all");
    }
    source.push_str("return 0; }\n");
    let answers = ask_compiler(&source, include);
    assert_eq!(answers.lines().count(), expect.len());
    let wrong: Vec<String> = expect
        .iter()
        .zip(answers.lines())
        .filter(|((_, ours), theirs)| ours.to_string() != **theirs)
        .map(|((expression, ours), theirs)| format!("{expression}: ours {ours}, UCX's {theirs}"))
        .collect();
    assert!(
        wrong.is_empty(),
        "{}:\n{}",
        include.display(),
        wrong.join("\n")
    );
}

/// Definitions of UCX's configure; none of them shifts a checked field.
const CONFIGURED: [&str; 10] = [
    "-DENABLE_PARAMS_CHECK=1",
    "-DENABLE_DEBUG_DATA=0",
    "-DENABLE_STATS=0",
    "-DUCS_MAX_LOG_LEVEL=UCS_LOG_LEVEL_DEBUG",
    "-DHAVE_IBV_DM=1",
    "-DHAVE_DECL_IBV_ACCESS_RELAXED_ORDERING=1",
    "-DHAVE_DECL_IBV_REG_DMABUF_MR=1",
    "-DHAVE_DECL_IBV_QUERY_GID=1",
    "-DHAVE_DEVX=1",
    "-DHAVE_INFINIBAND_MLX5DV_H=1",
];

fn ask_compiler(source: &str, include: &Path) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // UCX's configure generates this header; it contains none of the checked values.
    let generated = dir.path().join("generated");
    fs::create_dir_all(generated.join("uct/api")).expect("a directory");
    fs::write(generated.join("uct/api/version.h"), "").expect("a header");
    let (file, program) = (dir.path().join("probe.c"), dir.path().join("probe"));
    fs::write(&file, source).expect("the probe is written");
    let [include, generated, file, output] =
        [include, &generated, &file, &program].map(|path| path.to_string_lossy().into_owned());
    let mut arguments = vec![
        "-w",
        "-I",
        &include,
        "-idirafter",
        &generated,
        "-o",
        &output,
        &file,
    ];
    arguments.extend(CONFIGURED);
    common::stdout(Path::new("cc"), &arguments, &[]);
    common::stdout(&program, &[], &[])
}
