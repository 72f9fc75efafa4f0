//! Operations that change a process or a thread.

use std::sync::Arc;

use dpa_os::{Device as _, Launch};
use mlx5_prm::cmd::status;
use mlx5_prm::dpa::{self, Done, Wait, modify as op};

use super::command::{Command, Refused, Result, get, get8, get16, gone, refused};
use super::create::attributes;
use super::tables::{Dpa, Object, What};
use crate::memory::Space;

/// Bytes that one step of a copy moves.
const STEP_BYTES: usize = 64 << 10;
/// Most threads of a launch: one for each execution unit.
const WIDTH_MAX: u32 = 254;

pub(super) fn modify(command: &Command<'_>, id: u32, object: &Object) -> Result<Vec<u8>> {
    let input = command.input;
    let operation = get16(input, dpa::OPERATION);
    match (&object.what, operation) {
        (What::Process(dpa), op::COPY_IN) => copy(command, dpa, true),
        (What::Process(dpa), op::COPY_OUT) => copy(command, dpa, false),
        (What::Process(dpa), op::FILL) => {
            let byte = get8(input, dpa::BYTE);
            let (address, bytes) = (dpa::COPY_ADDRESS.get(input), dpa::COPY_BYTES.get(input));
            let filled = dpa
                .worker
                .ask(move |state| state.os.fill(address, byte, bytes));
            Ok(filled.ok_or_else(gone)??)
        }
        (What::Process(dpa), op::ARM) => {
            let (cqn, consumer) = (get(input, dpa::ARM_CQ), get(input, dpa::ARM_COUNTER));
            let armed = dpa.worker.ask(move |state| {
                let armed = state.device.arm(0, cqn, consumer);
                armed.map_err(|denied| Refused(status::BAD_RESOURCE, denied.0))
            });
            armed.ok_or_else(gone)?
        }
        (What::Process(dpa), op::LAUNCH) => launch(command, id, dpa),
        (What::Process(dpa), op::ATTACH) => super::congestion::attach(command, id, dpa),
        (What::Process(_), op::DETACH) => {
            command.runner.detach(id);
            Ok(())
        }
        (What::Thread { process }, op::RUN) => {
            let argument = dpa::ARGUMENT.get(input);
            let dpa = command.process(*process)?;
            let run = dpa.worker.ask(move |state| state.os.prepare(id, argument));
            Ok(run.ok_or_else(gone)??)
        }
        (What::Thread { process }, op::ACTIVATE) => {
            let dpa = command.process(*process)?;
            let activated = dpa.worker.ask(move |state| state.os.activate(id));
            Ok(activated.ok_or_else(gone)??)
        }
        (What::Thread { process }, op::SET) => {
            let attributes = attributes(input)?;
            let dpa = command.process(*process)?;
            let set = dpa
                .worker
                .ask(move |state| state.os.set_thread(id, attributes));
            Ok(set.ok_or_else(gone)??)
        }
        (What::CommandQueue { process }, op::TASK) => {
            let (function, argument) = (dpa::FUNCTION.get(input), dpa::ARGUMENT.get(input));
            let dpa = command.process(*process)?;
            let added = dpa
                .worker
                .ask(move |state| state.os.add_task(id, function, argument));
            Ok(added.ok_or_else(gone)??)
        }
        (What::CommandQueue { process }, op::START) => {
            let dpa = command.process(*process)?;
            let runs = dpa.worker.ask(move |state| state.os.run_task_queue(id));
            Ok(runs.ok_or_else(gone)??)
        }
        (_, operation) => refused(
            status::BAD_OP,
            format!("operation {operation} of object {id} does not exist"),
        ),
    }
    .map(|()| command.header())
}

/// Copies between a umem of the program and memory of the process.
fn copy(command: &Command<'_>, dpa: &Arc<Dpa>, is_in: bool) -> Result<()> {
    let input = command.input;
    let (address, bytes) = (dpa::COPY_ADDRESS.get(input), dpa::COPY_BYTES.get(input));
    let umem = get(input, dpa::COPY_UMEM);
    let host = command.in_umem(umem, dpa::COPY_OFFSET.get(input), bytes)?;
    let space = Space::of(command.pid);
    let done = dpa.worker.ask(move |state| {
        let unreadable = |_| {
            let text = "the umem of a copy is not mapped";
            Refused(status::BAD_PARAM, text.to_owned())
        };
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        while at < bytes {
            let left = usize::try_from(bytes - at).unwrap_or(STEP_BYTES);
            let part = &mut buffer[..left.min(STEP_BYTES)];
            if is_in {
                space.read(host + at, part).map_err(unreadable)?;
                state.os.write(address.wrapping_add(at), part)?;
            } else {
                state.os.read(address.wrapping_add(at), part)?;
                space.write(host + at, part).map_err(unreadable)?;
            }
            at += part.len() as u64;
        }
        Ok(())
    });
    done.ok_or_else(gone)?
}

/// The packed arguments of a call or launch.
pub(super) fn arguments(input: &[u8]) -> Result<Vec<u8>> {
    let bytes = get(input, dpa::ARGUMENT_BYTES) as usize;
    let arguments = input.get(dpa::BODY_AT..).and_then(|body| body.get(..bytes));
    match arguments {
        Some(arguments) => Ok(arguments.to_vec()),
        None if bytes == 0 => Ok(Vec::new()),
        None => refused(status::BAD_PARAM, "the arguments exceed the command"),
    }
}

fn launch(command: &Command<'_>, id: u32, dpa: &Arc<Dpa>) -> Result<()> {
    let input = command.input;
    let launch = Launch {
        unpack: dpa::UNPACK.get(input),
        function: dpa::KERNEL.get(input),
        arguments: arguments(input)?,
        threads: get(input, dpa::WIDTH),
        wait: Wait::parse(input)?,
        done: Done::parse(input)?,
    };
    let threads = launch.threads;
    if threads == 0 || threads > WIDTH_MAX {
        let text = format!("a launch of {threads} threads: allowed are 1 to {WIDTH_MAX}");
        return refused(status::LIMITS_EXCEEDED, text);
    }
    let (runner, card) = (command.runner, dpa.card);
    let launched = dpa
        .worker
        .ask(move |state| state.os.launch(launch, || runner.reserve_thread(card, id)));
    Ok(launched.ok_or_else(gone)??)
}
