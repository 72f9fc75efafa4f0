//! Sets the library's soname. All libraries of the install prefix are this one file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdoca_common.so.2");
}
