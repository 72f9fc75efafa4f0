//! Sessions of other hosts over RDMA connections.

use crate::counters::add;
use crate::kernel::{KernelProcess, Place, Stopped, is_dead};
use crate::shared::Shared;
use naaice::abi::{CommContext, code};
use naaice::server::{Accepted, Block, Listener, ListenerOptions};
use naaice::wire::flag;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use xgvmi_daemon::config::port_of;

/// Interval at which the listener looks whether the service ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Kernel processes that are started before the first session. Sessions leave theirs to the next ones.
const PROCESSES_AHEAD: usize = 2;
/// Stack of a session's thread.
const STACK: usize = 256 << 10;

/// Listens for RDMA connections.
pub(crate) fn bind(shared: &Shared, address: &str) -> anyhow::Result<Listener> {
    let (host, port) = port_of(address)?;
    let options = ListenerOptions {
        sessions_max: shared.options.sessions,
        session_bytes_max: shared.options.session_bytes as u64,
    };
    Ok(Listener::bind(
        host.trim_matches(['[', ']']),
        port,
        options,
        Arc::clone(&shared.memory),
    )?)
}

/// Accepts sessions until the service ends. Then all sessions end, and their kernels.
pub(crate) fn serve(shared: &Arc<Shared>, mut listener: Listener) {
    if let Err(error) = shared.stock.fill(&shared.kernels, PROCESSES_AHEAD) {
        shared.error(&format!("no process for kernels: {error}"));
    }
    let mut threads = Vec::new();
    while !shared.is_ending() {
        threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
        let mut report = |text: String| {
            add(&shared.counters.refused, 1);
            shared.info(&text);
        };
        match listener.accept(LOOK_INTERVAL, &mut report) {
            Ok(Some(accepted)) => threads.extend(start(shared, accepted)),
            Ok(None) => {}
            Err(error) => {
                shared.fail(format!("the RDMA listener has failed: {error}"));
                break;
            }
        }
    }
    listener.end_sessions();
    for thread in threads {
        // A panic of the thread has been reported by its hook.
        let _ = thread.join();
    }
}

fn start(shared: &Arc<Shared>, accepted: Accepted) -> Option<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().stack_size(STACK);
    let spawned = thread.spawn({
        let shared = Arc::clone(&shared);
        move || {
            let Accepted { worker, slot } = accepted;
            add(&shared.counters.sessions, 1);
            let mut kernel = None;
            let ended = worker.watch();
            let caller_gone = || ended() || shared.is_ending();
            let idle_limit = shared.options.idle_limit;
            let served = worker.serve(true, idle_limit, |context, block, function| {
                let call = Call {
                    context,
                    function,
                    caller_gone: &caller_gone,
                };
                run(&shared, &mut kernel, call, block)
            });
            if let Some(process) = kernel {
                shared.stock.put(process);
            }
            if let Err(error) = served {
                shared.info(&format!("a session over RDMA has ended: {error}"));
            }
            add(&shared.counters.sessions_ended, 1);
            drop(slot);
        }
    });
    spawned
        .inspect_err(|error| shared.error(&format!("no thread for a session: {error}")))
        .ok()
}

/// A call of a session.
struct Call<'a> {
    context: &'a CommContext,
    function: u8,
    caller_gone: &'a dyn Fn() -> bool,
}

/// Runs a function on a session's memory.
fn run(
    shared: &Shared,
    kernel: &mut Option<KernelProcess>,
    call: Call<'_>,
    block: Option<&Block>,
) -> u8 {
    add(&shared.counters.calls, 1);
    let code = match block {
        Some(block) => run_in_process(shared, kernel, call, block),
        None => code::MEMORY,
    };
    if code != code::SUCCESS {
        add(&shared.counters.calls_failed, 1);
    }
    if code == code::KERNEL_TIMEOUT {
        add(&shared.counters.kernels_killed, 1);
    }
    code
}

fn run_in_process(
    shared: &Shared,
    kernel: &mut Option<KernelProcess>,
    call: Call<'_>,
    block: &Block,
) -> u8 {
    let places = places(call.context, block);
    let process = kernel
        .take()
        .map_or_else(|| shared.stock.take(&shared.kernels, block), Ok);
    let mut process = match process {
        Ok(process) => process,
        Err(error) => {
            shared.error(&format!("no process for a kernel: {error}"));
            return code::KERNEL_CRASHED;
        }
    };
    let user = u32::from_le_bytes(call.context.immediate);
    let limit = shared.kernels.limit;
    match process.run((call.function, user), &places, limit, call.caller_gone, -1) {
        Ok(code) => {
            if !is_dead(code) {
                *kernel = Some(process);
            }
            code
        }
        Err(Stopped::CallerGone) => {
            add(&shared.counters.kernels_killed, 1);
            // Nobody receives the code, unless the service ends.
            code::SOCKET_UNAVAIL
        }
    }
}

/// The session's regions by their offsets.
fn places(context: &CommContext, block: &Block) -> Vec<Place> {
    let base = block.as_ptr() as usize;
    let mut places = Vec::new();
    for index in 0..usize::from(context.no_local_mrs) {
        // SAFETY: the structure's arrays have these lengths.
        let (region, peer) = unsafe {
            (
                *context.mr_local_data.add(index),
                *context.mr_peer_data.add(index),
            )
        };
        let mut flags = 0;
        for (is, bit) in [
            (region.to_write, flag::OUTPUT),
            (peer.to_write, flag::INPUT),
            (region.single_send, flag::SINGLE_SEND),
        ] {
            if is {
                flags |= bit;
            }
        }
        places.push(Place {
            offset: region.addr as usize - base,
            size: region.size,
            flags,
        });
    }
    for index in 0..usize::from(context.no_internal_mrs) {
        // SAFETY: the structure's array has this length.
        let region = unsafe { *context.mr_internal.add(index) };
        places.push(Place {
            offset: usize::try_from(region.addr).expect("64-bit platforms only") - base,
            size: region.size,
            flags: flag::INTERNAL,
        });
    }
    places
}
