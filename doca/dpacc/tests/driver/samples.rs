//! Device code of others, unmodified, from a directory that the user names.

use crate::common::{skip, succeed, with_each_compiler};
use std::path::Path;

/// Variable with the directory of NVIDIA's samples of DOCA.
const VARIABLE: &str = "XGVMI_DOCA_SAMPLES";

/// Sources, and how many functions each has for the host.
const SOURCES: &[(&str, usize)] = &[
    (
        "samples/doca_dpa/dpa_kernel_launch/device/dpa_kernel_launch_kernels_dev.c",
        1,
    ),
    (
        "samples/doca_dpa/dpa_ping_pong/device/dpa_ping_pong_kernels_dev.c",
        2,
    ),
    (
        "samples/doca_dpa/dpa_basic_initiator_target/device/dpa_basic_initiator_target_kernels_dev.c",
        3,
    ),
    (
        "samples/doca_dpa/dpa_initiator_target/device/dpa_initiator_target_kernels_dev.c",
        4,
    ),
    (
        "samples/doca_dpa/dpa_nvqual/device/dpa_nvqual_kernels_dev.c",
        3,
    ),
    (
        "samples/doca_dpa/dpa_verbs_initiator_target/device/dpa_verbs_initiator_target_kernels_dev.c",
        4,
    ),
    ("applications/dpa_all_to_all/device/dpa_all_to_all_dev.c", 1),
];

#[test]
fn device_code_of_the_samples_compiles_unmodified() {
    let test = "samples::device_code_of_the_samples_compiles_unmodified";
    let Some(root) = std::env::var_os(VARIABLE).filter(|root| !root.is_empty()) else {
        skip(
            test,
            &format!("{VARIABLE} names no directory of the samples"),
        );
        return;
    };
    let warnings = "-Wno-deprecated-declarations -Werror -Wall -Wextra";
    with_each_compiler(test, |bench| {
        for (source, functions) in SOURCES {
            let mut command = bench.dpacc();
            command.arg(Path::new(&root).join(source)).args([
                "-o",
                "x.a",
                "--keep-dir=kept",
                "--app-name=sample",
            ]);
            command.args([
                "-mcpu=nv-dpa-bf3,nv-dpa-cx7,nv-dpa-cx8,nv-dpa-cx9",
                "-hostcc=gcc",
                "-flto",
            ]);
            command.arg(format!(
                "-hostcc-options={warnings} -DFLEXIO_ALLOW_EXPERIMENTAL_API"
            ));
            command.arg(format!(
                "--devicecc-options={warnings} -DFLEXIO_DEV_ALLOW_EXPERIMENTAL_API -O2"
            ));
            command.arg("-device-libs=-L. -ldoca_dpa_dev -ldoca_dpa_dev_comm -ldoca_dpa_dev_verbs");
            succeed(&mut command);
            let meta = std::fs::read_to_string(bench.path("kept/sample.meta.c")).expect("the file");
            assert_eq!(
                meta.matches("__dpacc_unpack_").count(),
                *functions,
                "{source}"
            );
        }
    });
}
