//! Linker options: the library's SONAME for UCX and the loader, and binding of its own symbols.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // UCX opens modules by a name with the same ending as the file name of its own libucs. The
    // installed files are links to this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuct_ib_mlx5_xgvmi.so.0");
    // The library defines names that UCX defines too. Without this, its own references to them
    // could end up in UCX.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // UCX's operation tables point into the library, so it may never be unmapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Nine tenths of an optimised library are line tables of the standard library. The names of the
    // functions stay, for profilers and stack traces.
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
    }
}
