//! Remote procedure calls to network-attached accelerators (NAAs), compatible with the NAAICE communication library:
//! its C interface, its wire format, and its software accelerator.
//!
//! # Terms
//! - **NAA**: an accelerator that a host reaches over the network. A **software NAA** is a server that runs kernels.
//! - **session**: a connection, and the regions that both sides announce once ([`Session`]).
//! - **region**: memory of the caller with a counterpart on the NAA. An **input** is written to the NAA, an **output**
//!   is written back, a **single send** region is an input of the first call only.
//! - **call**: inputs, function, outputs. The last input carries an immediate value with the **function code**.
//! - **kernel**: the function of a function code, from a shared object ([`Kernels`]).
//! - **MRSP**: the announcement protocol, one message in each direction ([`wire`]).
//!
//! # Structure
//! [`wire`], [`spec`], [`plan`] and [`machine`] contain the protocol without I/O. The endpoint connects them to an RDMA
//! connection. [`Session`] is the safe interface of a host, [`server`] that of an accelerator. The C interface
//! (`naaice.h`, `naaice_ap2.h`, `naaice_swnaa.h`) translates to the same steps.
//!
//! ```no_run
//! use naaice::Session;
//!
//! // NAA_SPEC=10.0.0.2:12345:1:1
//! let mut session = Session::builder(1).input(vec![1; 4096]).output(vec![0; 4096]).create()?;
//! session.invoke()?;
//! let outcome = session.wait()?;
//! assert!(outcome.is_success());
//! println!("first byte: {:?}", session.region(1).and_then(<[u8]>::first));
//! # Ok::<(), naaice::NaaError>(())
//! ```
//!
//! Thread safety: a session belongs to one thread at a time. Different sessions are independent. After `fork`, the
//! child must not use the parent's sessions.

pub mod abi;
pub mod capi;
pub mod dpu;
mod endpoint;
mod error;
mod host;
pub mod kernels;
mod limits;
pub mod machine;
mod pages;
pub mod plan;
mod reach;
pub mod server;
mod session;
pub mod spec;
mod verbs;
pub mod wire;

pub use endpoint::{ANNOUNCE_LIMIT, CONNECT_LIMIT, PROBE_INTERVAL};
pub use error::{ArgumentError, MessageError, NaaError, Result, SpecError, Wrong};
pub use kernels::Kernels;
pub use limits::CALL_LIMIT;
pub use reach::reach;
pub use session::{LOCAL_IP, Outcome, Session, SessionBuilder};
