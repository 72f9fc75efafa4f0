//! Linker option: the library's SONAME, which is also its file name when it is installed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libxgvmi_blk.so.0");
}
