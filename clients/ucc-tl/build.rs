//! Sets the component's soname, its symbol binding and its nodelete flag.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libucc_tl_xgvmi.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // The C interfaces of the crates below are not the component's.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    // UCC keeps pointers into the component's configuration tables, and the exit handler lies in the component.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Function names stay in the file for profilers and stack traces.
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--strip-debug");
    }
}
