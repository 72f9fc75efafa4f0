//! A software accelerator: sessions of hosts, each served by its own thread.

mod block;
mod listener;
mod worker;

pub use block::Block;
pub use listener::{Accepted, Listener, ListenerOptions};
pub use worker::Worker;
pub(crate) use worker::{Step, accept_request};
