//! Gives the library the name by which UCX and the loader know it, and binds it to itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // UCX asks for modules by a name that ends like the file name of its own libucs; the installed
    // files are links to this name.
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
