//! `libuct_ib_mlx5_xgvmi.so`: replaces six operations of UCX's mlx5 memory domains and serves
//! cross-GVMI exports and imports from a key pool and an alias map. This file contains the entry
//! points only.
//!
//! UCX calls the library in one of three ways. With a preload, the library defines UCX's symbol
//! names and the dynamic loader selects them; if UCX's own references are bound inside, UCX's call
//! to open a memory domain (`md_open`) reaches the library, which patches UCX's operations table. As
//! a plugin, the library loads after UCX's module, and its constructor patches the table
//! (`entry_point`). In a UCX with the patches of
//! `patches/`, the library registers a table of operations (`key_provider`). If the library does not
//! serve a call, it passes the call with its original arguments to UCX's own function.
//!
//! | operation | action |
//! |---|---|
//! | `md_query` | inspect a memory domain, serve it from then on |
//! | `mem_reg` | memory of the arena: a handle with the slab's key; otherwise UCX registers; record address and length |
//! | `mkey_pack` | export: a key of the pool; import: the alias's rkey; exported memory: its rkey without a key for atomics; otherwise UCX's function |
//! | `mem_attach` | pooled key: an alias from the map; otherwise UCX's function |
//! | `mem_dereg` | invalidate the pool's key or unpin the alias; then UCX's function, unless the registration stays |
//! | `md_close` | close pool and map; then UCX's function |
//!
//! Programs can also call the library's own C interface (`include/xgvmi.h`):
//!
//! ```
//! # extern crate uct_ib_mlx5_xgvmi;
//! unsafe extern "C" {
//!     fn xgvmi_version() -> *const std::ffi::c_char;
//! }
//! // SAFETY: the function has no preconditions and returns a constant string.
//! let version = unsafe { std::ffi::CStr::from_ptr(xgvmi_version()) };
//! assert!(version.to_str().is_ok());
//! ```
//!
//! Terms: *mkey*, a memory key; *export*, a key that another function (DPU) may use; *gvmi* or
//! *vhca_id*, a function; *alias*, a local key for another function's key; *memh*, UCX's memory
//! handle; *MD*, UCX's memory domain.

mod abi;
mod allocator;
mod announce;
mod api;
mod arena;
mod calls;
mod check;
mod chunks;
mod config;
mod counter_file;
mod domains;
mod entry_point;
mod event_lock;
mod export;
mod first;
mod forked;
mod hot;
mod import;
mod kept;
mod key_file;
mod key_provider;
mod log;
mod md;
mod md_open;
mod memh;
mod module;
mod numbers;
mod opened;
mod operations;
mod original;
mod owner;
mod panic;
mod registrations;
mod release;
mod rkey;
mod serve;
mod system_pages;
mod ucm;
mod ucp;
mod ucs_config;
mod vfs;

use panic::guard;

/// Runs when the library is loaded: as a preload, as a plugin of UCX or by `dlopen`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    #[cfg(debug_assertions)]
    allocator::injected::arm();
    let _done = guard("the constructor", || {
        entry_point::look_around(&operations::entries());
    });
}

/// Runs when the process ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn destructor() {
    let _told = guard("the destructor", || {
        entry_point::tell_if_unused(md_open::address());
    });
    let _done = guard("the destructor", counter_file::remove);
}
