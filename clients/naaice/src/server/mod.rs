//! A software accelerator: sessions of hosts, each served by its own thread.

mod block;
mod listener;
mod memory;
mod worker;

pub use block::Block;
pub(crate) use listener::BACKLOG;
pub use listener::{Accepted, Listener, ListenerOptions};
pub use memory::{MemoryLimit, Taken};
pub use worker::Worker;
pub(crate) use worker::{Step, accept_request};
