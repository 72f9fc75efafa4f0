//! Sets the library's soname: programs that are linked by the library's path load it by its name.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnaaice.so");
    println!("cargo::rerun-if-changed=build.rs");
}
