//! Linker option: fio closes an engine after each job, and the adapter stays open until the process ends.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
