//! Questions about a process, and remote calls.

use std::sync::Arc;

use mlx5_prm::cmd::status;
use mlx5_prm::dpa::{self, MessageHead, ThreadCounters, query as op, state as state_of};

use super::command::{Command, Refused, Result, get16, gone, refused};
use super::congestion::telemetry;
use super::modify::arguments;
use super::tables::{Dpa, Object, What};

pub(super) fn query(command: &Command<'_>, id: u32, object: &Object) -> Result<Vec<u8>> {
    let operation = get16(command.input, dpa::OPERATION);
    if operation == op::REASON {
        let tables = command.runner.tables();
        let open = tables.sessions.get(&command.session);
        let reason = open.map(|open| open.reason.clone()).unwrap_or_default();
        drop(tables);
        return Ok(answer(command, &[], reason.as_bytes()));
    }
    match (&object.what, operation) {
        (What::Process(dpa), op::STATUS) => report(command, dpa),
        (What::Process(dpa), op::MESSAGES) => messages(command, dpa),
        (What::Process(dpa), op::COUNTERS) => counters(command, dpa),
        (What::Process(dpa), op::CORE) => core(command, dpa),
        (What::Process(dpa), op::CALL) => call(command, dpa),
        (What::CommandQueue { process }, op::EMPTY) => {
            let dpa = command.process(*process)?;
            let asked = dpa.worker.ask(move |state| state.os.has_no_tasks(id));
            let is_empty = asked.ok_or_else(gone)??;
            Ok(answer(command, &[(dpa::RESULT, is_empty.into())], &[]))
        }
        (What::Process(dpa), op::CONGESTION) => {
            let (state, reason) = command.runner.congestion_state(id, dpa);
            Ok(answer(
                command,
                &[(dpa::STATE, state.into())],
                reason.as_bytes(),
            ))
        }
        (What::Telemetry { card }, op::VALUE | op::TEXT | op::CLEAR) => {
            let (value, text) = telemetry(command, *card, operation)?;
            Ok(answer(command, &[(dpa::RESULT, value)], &text))
        }
        (_, operation) => refused(
            status::BAD_OP,
            format!("question {operation} of object {id} does not exist"),
        ),
    }
}

/// An answer with a body.
fn answer(command: &Command<'_>, fields: &[(mlx5_prm::Field, u64)], body: &[u8]) -> Vec<u8> {
    let room = command.capacity.saturating_sub(dpa::BODY_AT);
    let body = &body[..body.len().min(room)];
    let mut fields = fields.to_vec();
    fields.push((dpa::BODY_BYTES, body.len() as u64));
    command.output(dpa::BODY_AT, &fields, body)
}

/// State and fault: the function and the text, with a zero byte between them.
fn report(command: &Command<'_>, dpa: &Arc<Dpa>) -> Result<Vec<u8>> {
    let asked = dpa
        .worker
        .ask(|state| (state.os.fault().cloned(), state.os.is_finished()));
    let (fault, is_finished) = asked.ok_or_else(gone)?;
    let Some(fault) = fault else {
        let state = if is_finished {
            state_of::FINISHED
        } else {
            state_of::ALIVE
        };
        return Ok(answer(command, &[(dpa::STATE, state.into())], &[]));
    };
    let fields = [
        (dpa::STATE, u64::from(state_of::FAULT)),
        (dpa::FAULT_THREAD, u64::from(fault.thread)),
        (dpa::FAULT_PC, fault.pc),
        (dpa::FAULT_ADDRESS, fault.address),
    ];
    let body = format!("{}\0{}", fault.function, fault.text);
    Ok(answer(command, &fields, body.as_bytes()))
}

/// Takes messages, as many as fit.
fn messages(command: &Command<'_>, dpa: &Arc<Dpa>) -> Result<Vec<u8>> {
    let room = command.capacity.saturating_sub(dpa::BODY_AT);
    let taken = dpa.worker.ask(move |state| {
        let mut body = Vec::new();
        while let Some(message) = state.device.messages.front() {
            // Texts of the operating system are shorter than 8 KiB.
            let length = u16::try_from(message.text.len()).unwrap_or(u16::MAX);
            let text = message.text.as_bytes();
            if body.len() + MessageHead::BYTES + text.len() > room {
                break;
            }
            let head = MessageHead {
                thread: message.thread,
                stream: message.stream,
                level: message.level,
                bytes: length,
            };
            body.extend_from_slice(&head.to_bytes());
            body.extend_from_slice(text);
            state.device.messages.pop_front();
        }
        body
    });
    Ok(answer(command, &[], &taken.ok_or_else(gone)?))
}

/// Part of a core file, from an offset on. Behind the end there is none.
fn core(command: &Command<'_>, dpa: &Arc<Dpa>) -> Result<Vec<u8>> {
    let room = command.capacity.saturating_sub(dpa::BODY_AT);
    let offset = dpa::QUERY_OFFSET.get(command.input);
    let asked = dpa.worker.ask(move |state| {
        let file = state.os.core_file();
        let mut part = vec![0; room];
        let count = state.os.read_core(&file, offset, &mut part);
        part.truncate(count);
        part
    });
    Ok(answer(command, &[], &asked.ok_or_else(gone)?))
}

/// Counters of each thread.
fn counters(command: &Command<'_>, dpa: &Arc<Dpa>) -> Result<Vec<u8>> {
    let asked = dpa.worker.ask(|state| {
        let counters = state.os.counters();
        counters
            .flat_map(ThreadCounters::to_bytes)
            .collect::<Vec<u8>>()
    });
    Ok(answer(command, &[], &asked.ok_or_else(gone)?))
}

/// A remote call. The process's end, and that of the program, end the wait.
fn call(command: &Command<'_>, dpa: &Arc<Dpa>) -> Result<Vec<u8>> {
    let functions = (
        dpa::UNPACK.get(command.input),
        dpa::KERNEL.get(command.input),
    );
    let arguments = arguments(command.input)?;
    let begun = dpa
        .worker
        .ask(move |state| state.call(functions, arguments));
    let receiver = begun.ok_or_else(gone)??;
    match receiver.recv() {
        Ok(Ok(result)) => Ok(answer(command, &[(dpa::RESULT, result)], &[])),
        Ok(Err(reason)) => Err(Refused(status::BAD_SYS_STATE, reason)),
        Err(_) => Err(gone()),
    }
}
