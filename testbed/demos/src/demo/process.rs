//! One of the four processes: executes commands from the control channel until it closes.

use super::control::{Batch, Channel, Command, Outcome, Place, Reply};
use super::session::Session;
use super::{dpu, host};
use anyhow::{Context as _, Result};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use ucx_sys::Ucp;
use xgvmi_ucp::Waiter;

/// Start parameters of a process.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// Its role.
    pub place: Place,
    /// The `libucp` to use; the loader's search without it.
    pub ucx_library: Option<PathBuf>,
    /// Polling time before it sleeps.
    pub spin: Duration,
    /// Time limit for a message or an operation.
    pub step_limit: Duration,
}

/// Serves the control channel on standard input until the orchestrator closes it.
///
/// # Errors
/// The error, which the orchestrator has received as well.
pub fn serve(options: &ProcessOptions) -> Result<()> {
    let mut channel = control_channel()?;
    let mut step = "loading UCX";
    let served = run(options, &mut channel, &mut step);
    if let Err(error) = &served {
        let reply = Reply::Failed(format!("{error:#}"));
        // The orchestrator may be gone. The exit code reports the error in that case.
        let _ = channel.send(&reply);
    }
    served.with_context(|| format!("{}, {step}", options.place))
}

fn run(options: &ProcessOptions, channel: &mut Channel, step: &mut &'static str) -> Result<()> {
    let ucp = Ucp::load(options.ucx_library.as_deref())?;
    // A separate descriptor, so that the waiter does not borrow the channel. It is closed at the end of this
    // function.
    let control = channel.as_fd().try_clone_to_owned()?;
    let waiter = Waiter::new(options.spin, control.as_fd());
    let limits = (&waiter, options.step_limit);
    let mut session = None;
    while let Some(command) = channel.receive()? {
        let reply = match command {
            Command::Open => {
                *step = "opening a UCX context";
                let opened = session.insert(Session::open(ucp, options.place, limits)?);
                Reply::Opened {
                    address: opened.address()?,
                    ucx_version: ucp.version().to_owned(),
                }
            }
            Command::Connect(addresses) => {
                *step = "connecting";
                let session = session.as_mut().context("connect before open")?;
                session.connect(&addresses)?;
                Reply::Connected
            }
            Command::Run(batch) => {
                *step = "running a batch";
                let session = session.as_ref().context("run before open")?;
                if options.place != Place::HostA {
                    channel.send(&Reply::Ready)?;
                }
                Reply::Ran(run_batch(options.place, session, &batch)?)
            }
            Command::Close => {
                *step = "closing";
                session.take().context("close before open")?.close()?;
                Reply::Closed
            }
        };
        channel.send(&reply)?;
    }
    Ok(())
}

fn run_batch(place: Place, session: &Session<'_>, batch: &Batch) -> Result<Outcome> {
    match place {
        Place::HostA => host::send(session, batch),
        Place::DpuA => dpu::offer(session, batch),
        Place::DpuB => dpu::transfer(session, batch),
        Place::HostB => host::receive(session, batch),
    }
    .with_context(|| format!("{} bytes", batch.size))
}

fn control_channel() -> Result<Channel> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let stream = UnixStream::from(stdin);
    stream.peer_addr().context(
        "standard input is no control channel: this process is started by `xgvmi-demo orchestrate`",
    )?;
    Ok(Channel::new(stream))
}
