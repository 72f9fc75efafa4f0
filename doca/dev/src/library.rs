//! Headers, library and linker script of device code, as part of this crate.

use crate::{ENTRY, calls};
#[cfg(test)]
use crate::{intrinsics, outbox};

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
    (
        "libflexio-dev/flexio_dev_endianity.h",
        include_str!("../include/libflexio-dev/flexio_dev_endianity.h"),
    ),
    (
        "libflexio-dev/flexio_dev_queue_access.h",
        include_str!("../include/libflexio-dev/flexio_dev_queue_access.h"),
    ),
    (
        "libflexio-dev/flexio_dev_queue_types.h",
        include_str!("../include/libflexio-dev/flexio_dev_queue_types.h"),
    ),
    (
        "libflexio-libc/stdio.h",
        include_str!("../include/libflexio-libc/stdio.h"),
    ),
    (
        "libflexio-libc/stdlib.h",
        include_str!("../include/libflexio-libc/stdlib.h"),
    ),
    (
        "libflexio-libc/string.h",
        include_str!("../include/libflexio-libc/string.h"),
    ),
    (
        "libflexio-os/flexio_os.h",
        include_str!("../include/libflexio-os/flexio_os.h"),
    ),
    (
        "libflexio-os/flexio_os_mb.h",
        include_str!("../include/libflexio-os/flexio_os_mb.h"),
    ),
    (
        "libflexio-os/flexio_os_syscall.h",
        include_str!("../include/libflexio-os/flexio_os_syscall.h"),
    ),
    (
        "libflexio-dev/flexio_dev_debug.h",
        include_str!("../include/libflexio-dev/flexio_dev_debug.h"),
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

/// Text of the C header with the numbers of intrinsics and of the outbox.
#[cfg(test)]
fn numbers() -> String {
    let mut text = String::from(
        "/* Numbers of intrinsics and of the outbox. A test of doca/dev makes the text from the crate's tables. */\n\
         #ifndef DPA_NUMBERS_H\n#define DPA_NUMBERS_H\n\n",
    );
    let mut define = |name: &str, value: u64| {
        text.push_str(&format!("#define {name} {value:#x}\n"));
    };
    define("DPA_OPCODE", u64::from(intrinsics::OPCODE));
    for (operation, name) in intrinsics::OPERATIONS {
        define(name, u64::from(*operation as u8));
    }
    for (value, name) in intrinsics::SPACES.iter().chain(intrinsics::ACCESSES) {
        define(name, u64::from(*value));
    }
    define("DPA_OUTBOX", outbox::BASE);
    for (offset, name) in outbox::REGISTERS {
        define(name, *offset);
    }
    text.push_str("\n#endif\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_committed_header_has_the_numbers_of_the_tables() {
        let committed = include_str!("../include/dpa_numbers.h");
        assert_eq!(
            committed,
            numbers(),
            "write this text to doca/dev/include/dpa_numbers.h"
        );
    }

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

    /// Lines of a header without comments, preprocessor and what only C++ reads.
    fn code(header: &str) -> String {
        let (mut code, mut rest) = (String::new(), header);
        while let Some((before, after)) = rest.split_once("/*") {
            code.push_str(before);
            rest = after.split_once("*/").map_or("", |(_, after)| after);
        }
        code.push_str(rest);
        let (mut lines, mut in_cxx, mut continued) = (String::new(), false, false);
        for line in code.lines() {
            match line.trim() {
                "#ifdef __cplusplus" => in_cxx = true,
                "#endif" => in_cxx = false,
                text if text.starts_with('#') || continued => continued = text.ends_with('\\'),
                text if !in_cxx => {
                    lines.push_str(text);
                    lines.push(' ');
                }
                _ => {}
            }
        }
        lines
    }

    /// Names of the functions that a header declares without a body, and the number of their parameters.
    fn declared(header: &str) -> Vec<(String, u8)> {
        let (mut depth, mut statement, mut found) = (0_u32, String::new(), Vec::new());
        for c in code(header).chars() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    // The end of a function with a body, or a part of a declaration of a type.
                    if depth == 0 && statement.trim_start().starts_with("DPA_INLINE") {
                        statement.clear();
                    }
                }
                ';' if depth == 0 => {
                    let text = std::mem::take(&mut statement);
                    let (head, list) = text.split_once('(').unwrap_or_default();
                    let is_type = ["typedef", "struct", "union", "enum"]
                        .iter()
                        .any(|word| text.trim_start().starts_with(word));
                    let name = head.rsplit([' ', '*']).next().unwrap_or_default();
                    if is_type || name.is_empty() || name == "_Static_assert" {
                        continue;
                    }
                    let list = list.split_once(')').map_or("", |(list, _)| list);
                    let parameters = list.split(',').map(str::trim);
                    let words = parameters
                        .filter(|text| !["void", "..."].contains(text))
                        .count();
                    found.push((
                        name.to_owned(),
                        u8::try_from(words).expect("few parameters"),
                    ));
                }
                _ if depth == 0 => statement.push(c),
                _ => {}
            }
        }
        found
    }

    #[test]
    fn the_headers_declare_the_calls_of_the_table() {
        let mut declared: Vec<(String, u8)> = HEADERS
            .iter()
            .flat_map(|(_, text)| declared(text))
            .collect();
        let calls = calls::CALLS
            .iter()
            .filter(|call| call.number != calls::THREAD_RETURN);
        let mut listed: Vec<(String, u8)> = calls
            .map(|call| (call.name.to_owned(), call.words))
            .collect();
        declared.sort();
        listed.sort();
        assert_eq!(declared, listed);
    }
}
