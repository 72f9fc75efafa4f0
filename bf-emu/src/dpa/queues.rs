//! Event queues and command queues of a process.

use mlx5_prm::cmd::{self, status};
use mlx5_prm::dpa;

use super::command::{Command, Result, get, get8, get16, gone, no_thread, refused};
use super::tables::What;

/// Most threads of a command queue.
const WORKERS_MAX: u16 = 254;

/// The creation of a queue with this number has failed, or not.
fn created(command: &Command<'_>, id: u32, made: Result<()>) -> Result<(u32, Vec<u8>)> {
    if let Err(error) = made {
        let mut tables = command.runner.tables();
        tables.objects.remove(&id);
        tables.threads.retain(|_, (_, owner)| *owner != id);
        return Err(error);
    }
    let fields = [(cmd::GENERAL_OBJECT_ID, u64::from(id))];
    Ok((id, command.output(dpa::CREATE_OUT_BYTES, &fields, &[])))
}

/// Creates an event queue.
pub(super) fn events(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    let input = command.input;
    let process = get(input, dpa::PROCESS_ID);
    let dpa = command.process(process)?;
    let ring = (
        dpa::EVENT_RING.get(input),
        u32::from(get8(input, dpa::LOG_EVENTS)),
    );
    let thread = Some(get(input, dpa::EVENT_THREAD)).filter(|thread| *thread != 0);
    let id = command.add(What::EventQueue { process })?;
    let made = dpa
        .worker
        .ask(move |state| state.os.add_event_queue(id, ring, thread));
    let made = made.ok_or_else(gone).and_then(|made| Ok(made?));
    created(command, id, made)
}

/// Creates a command queue with its threads.
pub(super) fn commands(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    let input = command.input;
    let process = get(input, dpa::PROCESS_ID);
    let dpa = command.process(process)?;
    let count = get16(input, dpa::WORKERS);
    let batch = get(input, dpa::BATCH) as usize;
    let runs = dpa::RUNS.is_set(input);
    if count == 0 || count > WORKERS_MAX || batch == 0 {
        let text = format!(
            "a command queue of {count} threads that take {batch} tasks: allowed are 1 to {WORKERS_MAX} threads, and 1 task or more"
        );
        return refused(status::BAD_PARAM, text);
    }
    let id = command.add(What::CommandQueue { process })?;
    let mut threads = Vec::new();
    for _ in 0..count {
        match command.runner.reserve_thread(dpa.card, id) {
            Some(number) => threads.push(number),
            None => return created(command, id, no_thread()),
        }
    }
    let made = dpa
        .worker
        .ask(move |state| state.os.add_task_queue(id, &threads, batch, runs));
    let made = made.ok_or_else(gone).and_then(|made| Ok(made?));
    created(command, id, made)
}
