//! Device calls of threads, messages and FlexIO. Those of DOCA are in [`crate::doca`].

use crate::congestion;
use crate::context::{Answer, Context};
use crate::doca;
use crate::kernel::OUTBOXES_MAX;
use crate::refusal::Refusal;
use dpa_dev::calls::THREAD_RETURN;

/// What follows a device call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answer(Answer),
    /// The function of the thread has returned this value.
    Return(u64),
    /// The activation ends, and the thread starts again.
    Retrigger,
    /// All threads of the process end.
    EndProcess,
}

/// Results of the functions of FlexIO.
const SUCCESS: u64 = 0;
const FAILED: u64 = 1;
/// The stream to which `printf` writes.
const STREAM: i32 = 0;
/// Level of messages without one.
const LEVEL_PLAIN: u8 = 1;
/// Bytes that a copy between memory and a window moves at once.
const COPY_BYTES: usize = 4096;

/// Serves the device call with this number.
pub(crate) fn serve(number: u64, context: &mut Context<'_, '_>) -> Result<Outcome, Refusal> {
    if let Some(served) = congestion::serve(number, context) {
        return served.map(Outcome::Answer);
    }
    let unknown = || Refusal(format!("device call {number:#x} does not exist"));
    let number = u16::try_from(number).map_err(|_| unknown())?;
    let Some(call) = dpa_dev::calls::find(number) else {
        return Err(unknown());
    };
    let value = |value: u64| Ok(Outcome::Answer(Answer::Value(value)));
    let view = context.thread();
    match (number, call.name) {
        (THREAD_RETURN, _) => Ok(Outcome::Return(context.argument(0)?)),
        (_, "doca_dpa_dev_thread_rank") => value(view.rank.into()),
        (_, "doca_dpa_dev_num_threads") => value(view.count.into()),
        (_, "doca_dpa_dev_thread_get_local_storage" | "flexio_dev_get_thread_local_storage") => {
            value(view.local_storage)
        }
        (_, "doca_dpa_dev_yield") => Ok(Outcome::Answer(Answer::Yield(0))),
        (_, "doca_dpa_dev_thread_reschedule" | "flexio_dev_thread_reschedule") => {
            Ok(Outcome::Answer(Answer::Reschedule))
        }
        (_, "doca_dpa_dev_thread_finish" | "flexio_dev_thread_finish") => {
            Ok(Outcome::Answer(Answer::Finish))
        }
        (_, "flexio_dev_thread_retrigger") => Ok(Outcome::Retrigger),
        (_, "flexio_dev_process_finish") => Ok(Outcome::EndProcess),
        (_, "doca_dpa_dev_printf") => {
            let format = context.argument(0)?;
            let text = context.format(format, 1)?;
            let bytes = text.len() as u64;
            context.message(STREAM, LEVEL_PLAIN, text);
            value(bytes)
        }
        (_, "doca_dpa_dev_log") => {
            let (level, format) = (context.argument(0)?, context.argument(1)?);
            let text = context.format(format, 2)?;
            context.message(STREAM, level.to_le_bytes()[0], text);
            value(0)
        }
        (_, name) if name.starts_with("flexio_") => {
            flexio(name, context).map(|value| Outcome::Answer(Answer::Value(value)))
        }
        _ => doca::call(number, context).map(Outcome::Answer),
    }
}

/// A function of FlexIO.
fn flexio(name: &str, context: &mut Context<'_, '_>) -> Result<u64, Refusal> {
    let number = context.thread().number;
    Ok(match name {
        "flexio_dev_get_thread_ctx" => {
            // The context is the number of the thread, which is never 0.
            let place = context.argument(0)?;
            context.write_u64(place, number.into())?;
            0
        }
        "flexio_dev_get_thread_id" => number.into(),
        "flexio_dev_event_handler_activate" => {
            let handler = word(context, 0)?;
            context.activate(handler)?;
            0
        }
        "flexio_dev_msg" => {
            let (stream, level) = (word(context, 0)?.cast_signed(), context.argument(1)?);
            let format = context.argument(2)?;
            let text = context.format(format, 3)?;
            let bytes = text.len() as u64;
            context.message(stream, level.to_le_bytes()[0], text);
            bytes
        }
        "flexio_dev_puts" => {
            let text = context.argument(1)?;
            let text = context.text(text)?;
            let bytes = text.len() as u64;
            context.message(STREAM, LEVEL_PLAIN, text);
            bytes
        }
        "flexio_dev_outbox_config" => {
            let id = word(context, 1)? & 0xffff;
            debug_assert!(context.kernel.outboxes.len() <= OUTBOXES_MAX);
            let Some(uar) = context.kernel.outboxes.get(&id).copied() else {
                return Ok(FAILED);
            };
            set(context, |thread| thread.uar = Some(uar))
        }
        "flexio_dev_multi_window_config" => {
            let id = word(context, 1)? & 0xffff;
            let key = word(context, 2)?;
            if !context.kernel.window_objects.contains(&id) {
                return Ok(FAILED);
            }
            set_window(context, key)?
        }
        "flexio_dev_multi_window_mkey_config" => {
            let key = word(context, 1)?;
            set_window(context, key)?
        }
        "flexio_dev_multi_window_ptr_acquire" => {
            let Some(base) = window(context)? else {
                return Ok(FAILED);
            };
            let (address, place) = (context.argument(1)?, context.argument(2)?);
            let Some(pointer) = pointer(base, address) else {
                return Ok(FAILED);
            };
            context.write_u64(place, pointer)?;
            SUCCESS
        }
        "flexio_dev_multi_window_copy_from_host" => {
            let (to, from) = (context.argument(1)?, context.argument(2)?);
            let bytes = word(context, 3)?;
            match window(context)?.and_then(|base| pointer(base, from)) {
                Some(from) => copy(context, to, from, bytes)?,
                None => FAILED,
            }
        }
        "flexio_dev_multi_window_copy_to_host" => {
            let (to, from) = (context.argument(1)?, context.argument(2)?);
            let bytes = word(context, 3)?;
            match window(context)?.and_then(|base| pointer(base, to)) {
                Some(to) => copy(context, to, from, bytes)?,
                None => FAILED,
            }
        }
        other => return Err(Refusal(format!("{other} is not available"))),
    })
}

/// The lower half of an argument.
fn word(context: &Context<'_, '_>, n: u8) -> Result<u32, Refusal> {
    let [a, b, c, d, ..] = context.argument(n)?.to_le_bytes();
    Ok(u32::from_le_bytes([a, b, c, d]))
}

/// Changes the calling thread.
fn set(context: &mut Context<'_, '_>, change: impl FnOnce(&mut crate::thread::Thread)) -> u64 {
    match context.kernel.thread_mut(context.hart) {
        Some(thread) => {
            change(thread);
            SUCCESS
        }
        None => FAILED,
    }
}

/// Index of the window entity in argument 0.
fn entity(context: &Context<'_, '_>) -> Result<Option<usize>, Refusal> {
    let entity = usize::try_from(word(context, 0)?).unwrap_or(usize::MAX);
    Ok((entity < 2).then_some(entity))
}

fn set_window(context: &mut Context<'_, '_>, key: u32) -> Result<u64, Refusal> {
    let Some(entity) = entity(context)? else {
        return Ok(FAILED);
    };
    Ok(set(context, |thread| thread.windows[entity] = Some(key)))
}

/// Base of the thread's window.
fn window(context: &mut Context<'_, '_>) -> Result<Option<u64>, Refusal> {
    let Some(entity) = entity(context)? else {
        return Ok(None);
    };
    let thread = context.kernel.thread(context.hart);
    match thread.and_then(|thread| thread.windows[entity]) {
        Some(key) => context.window(key).map(Some),
        None => Ok(None),
    }
}

/// The pointer to an address of a window.
fn pointer(base: u64, address: u64) -> Option<u64> {
    (address < crate::window::WINDOW_BYTES).then_some(base + address)
}

fn copy(context: &mut Context<'_, '_>, to: u64, from: u64, bytes: u32) -> Result<u64, Refusal> {
    let mut buffer = [0; COPY_BYTES];
    let mut done = 0;
    while done < u64::from(bytes) {
        let left = usize::try_from(u64::from(bytes) - done).unwrap_or(COPY_BYTES);
        let part = &mut buffer[..left.min(COPY_BYTES)];
        context.read_bytes(from.wrapping_add(done), part)?;
        context.write_bytes(to.wrapping_add(done), part)?;
        done += part.len() as u64;
    }
    Ok(SUCCESS)
}
