//! Headers, library and linker script of device code, as part of this crate.

use crate::{ENTRY, calls};

/// Headers: path below the directory of headers, and text.
pub const HEADERS: &[(&str, &str)] = &[
    ("dpa_numbers.h", include_str!("../include/dpa_numbers.h")),
    ("dpaintrin.h", include_str!("../include/dpaintrin.h")),
    ("doca_dpa_dev.h", include_str!("../include/doca_dpa_dev.h")),
    (
        "doca_dpa_dev_2_0.h",
        include_str!("../include/doca_dpa_dev_2_0.h"),
    ),
    (
        "doca_dpa_dev_buf.h",
        include_str!("../include/doca_dpa_dev_buf.h"),
    ),
    (
        "doca_dpa_dev_buf_array.h",
        include_str!("../include/doca_dpa_dev_buf_array.h"),
    ),
    (
        "doca_dpa_dev_rdma.h",
        include_str!("../include/doca_dpa_dev_rdma.h"),
    ),
    (
        "doca_dpa_dev_sync_event.h",
        include_str!("../include/doca_dpa_dev_sync_event.h"),
    ),
    (
        "doca_dpa_dev_verbs.h",
        include_str!("../include/doca_dpa_dev_verbs.h"),
    ),
    (
        "doca_sync_event.h",
        include_str!("../include/doca_sync_event.h"),
    ),
    (
        "libflexio-dev/flexio_dev.h",
        include_str!("../include/libflexio-dev/flexio_dev.h"),
    ),
    (
        "libflexio-dev/flexio_dev_ver.h",
        include_str!("../include/libflexio-dev/flexio_dev_ver.h"),
    ),
];

/// The script by which device programs are linked.
pub const LINKER_SCRIPT: &str = include_str!("../lib/dpa.ld");

/// The library, in assembly: the entry, and of one function for each device call. The functions are weak: a program that defines one of
/// these names keeps its own.
#[must_use]
pub fn assembly() -> String {
    let mut text = format!(
        "\t.section .text.dpa_entry,\"ax\",@progbits\n\
         \t.globl {ENTRY}\n\t.type {ENTRY}, @function\n{ENTRY}:\n\
         \t.option push\n\t.option norelax\n\tla gp, __global_pointer$\n\t.option pop\n\
         \tmv t1, a0\n\tmv a0, a1\n\tmv a1, a2\n\tjalr t1\n\
         \tli t0, {}\n\tecall\n\tebreak\n\t.size {ENTRY}, . - {ENTRY}\n",
        calls::THREAD_RETURN
    );
    text.push_str("\t.text\n");
    for call in calls::CALLS {
        let (name, number) = (call.name, call.number);
        text.push_str(&format!(
            "\t.weak {name}\n\t.type {name}, @function\n{name}:\n\tli t0, {number}\n\tecall\n\tret\n\
             \t.size {name}, . - {name}\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_header_of_the_folder_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let mut left: Vec<_> = vec![root.clone()];
        let mut found = Vec::new();
        while let Some(dir) = left.pop() {
            for entry in std::fs::read_dir(dir).expect("a folder of headers") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => left.push(path),
                    false => found.push(
                        path.strip_prefix(&root)
                            .expect("below")
                            .display()
                            .to_string(),
                    ),
                }
            }
        }
        let mut listed: Vec<String> = HEADERS.iter().map(|(name, _)| (*name).to_owned()).collect();
        found.sort();
        listed.sort();
        assert_eq!(found, listed);
    }

    #[test]
    fn the_script_has_the_numbers_of_the_crate() {
        assert!(LINKER_SCRIPT.contains(&format!(". = {:#x};", crate::IMAGE_BASE)));
        assert!(LINKER_SCRIPT.contains(&format!("ALIGN({:#x})", crate::PAGE)));
        assert!(LINKER_SCRIPT.contains(&format!("ENTRY({ENTRY})")));
        assert!(LINKER_SCRIPT.contains(&format!("*({})", crate::MARKS)));
    }
}
