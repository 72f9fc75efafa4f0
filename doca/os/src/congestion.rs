//! Device calls of congestion-control programs, with the numbers of [`pcc_dev::Service`].

use crate::context::{Answer, Context};
use crate::refusal::Refusal;
use pcc_dev::{Service, limits};

/// Streams of messages: what the library refuses, and entries of the trace. Texts of the program have stream 0.
pub const STREAM_REFUSED: i32 = -1;
/// See [`STREAM_REFUSED`]. The text is the format's number and five arguments in hexadecimal digits, with spaces.
pub const STREAM_TRACE: i32 = -2;
/// Level of these messages.
const LEVEL: u8 = 1;
/// Words of an entry of the trace.
const TRACE_WORDS: u64 = 6;

/// Serves a call of the library; None if the number is not one of its.
pub(crate) fn serve(number: u64, context: &mut Context<'_, '_>) -> Option<Result<Answer, Refusal>> {
    Some(act(Service::from_number(number)?, context).map(Answer::Value))
}

fn act(service: Service, context: &mut Context<'_, '_>) -> Result<u64, Refusal> {
    let (first, second) = (context.argument(0)?, context.argument(1)?);
    Ok(match service {
        Service::Print => text(context, 0, (first, second))?,
        Service::Refuse => text(context, STREAM_REFUSED, (first, second))?,
        Service::Trace => {
            let mut words = Vec::new();
            for at in 0..TRACE_WORDS {
                let word = context.read_u64(first.wrapping_add(8 * at))?;
                words.push(format!("{word:x}"));
            }
            context.message(STREAM_TRACE, LEVEL, words.join(" "));
            0
        }
        Service::Thread => context.thread().rank.into(),
        Service::Counter => context.port_counter(first),
        // The device's probes carry no header of the program: the result is a failure.
        Service::Header => 1,
        Service::Time => context.now_us(),
        Service::Intrinsic => {
            let operand = u32::try_from(second).unwrap_or(u32::MAX);
            pcc_dev::fxp::by_number(first, operand).map_or(0, u64::from)
        }
        // The device has one queue for all priorities, and keeps no entries of the trace.
        Service::Priority | Service::Flush => 0,
    })
}

fn text(
    context: &mut Context<'_, '_>,
    stream: i32,
    (address, bytes): (u64, u64),
) -> Result<u64, Refusal> {
    let bytes = usize::try_from(bytes.min(u64::from(limits::TEXT_BYTES))).unwrap_or_default();
    let mut text = vec![0; bytes];
    context.read_bytes(address, &mut text)?;
    context.message(stream, LEVEL, String::from_utf8_lossy(&text).into_owned());
    Ok(0)
}
