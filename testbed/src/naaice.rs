//! The C programs `tests/programs/naaice_*`, which call accelerators: options of their compiler, and functions of their kernels.

use crate::workspace;
use std::path::Path;

/// Function codes of the kernels, with their numbers of inputs.
const FUNCTIONS: [(u8, u32); 19] = [
    (1, 1),
    (2, 2),
    (2, 1),
    (2, 31),
    (3, 1),
    (16, 1),
    (17, 1),
    (18, 1),
    (20, 1),
    (21, 1),
    (22, 1),
    (23, 1),
    (24, 1),
    (25, 1),
    (26, 1),
    (27, 1),
    (30, 1),
    (30, 2),
    (99, 1),
];

/// `NAA_SPEC` of a client, with all functions at this address.
#[must_use]
pub fn spec(address: &str) -> String {
    let entries = FUNCTIONS.map(|(code, inputs)| format!("{address}:{code}:{inputs}"));
    entries.join(",")
}

/// Options of the C compiler for this interface of the original library.
#[must_use]
pub fn headers(interface: u32) -> Vec<String> {
    let include = workspace::root().join("clients/naaice/include");
    vec![
        format!("-I{}", include.display()),
        format!("-DNAAICE_INTERFACE={interface}"),
    ]
}

/// Options of the C compiler for a shared object with kernels.
#[must_use]
pub fn kernels(interface: u32) -> Vec<String> {
    let shared = ["-shared", "-fPIC"].map(str::to_owned);
    [headers(interface), shared.to_vec()].concat()
}

/// Options of the C compiler for a program on the library, which is in the directory `built`.
#[must_use]
pub fn program(interface: u32, built: &Path) -> Vec<String> {
    let built = built.display();
    let link = [
        format!("-L{built}"),
        "-lnaaice".to_owned(),
        // Before LD_LIBRARY_PATH, in which cargo names the directory of a debug build.
        format!("-Wl,--disable-new-dtags,-rpath,{built}"),
        "-lpthread".to_owned(),
    ];
    [headers(interface), link.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_names_each_function_at_its_address() {
        let spec = spec("dpu/127.0.0.1:7");
        assert!(spec.starts_with("dpu/127.0.0.1:7:1:1,dpu/127.0.0.1:7:2:2,"));
        assert_eq!(spec.split(',').count(), FUNCTIONS.len());
        let options = program(2, Path::new("/built"));
        assert!(options.contains(&"-L/built".to_owned()));
        assert!(options.starts_with(&headers(2)));
    }
}
