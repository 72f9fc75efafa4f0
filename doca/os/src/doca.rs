//! Device calls of DOCA. Handles are addresses of the objects of [`dpa_dev::objects`] in the memory of the process.

mod buffers;
mod completions;
mod events;
mod object;
mod posts;
mod rdma;
mod send;
mod table;
mod verbs;

use crate::context::{Answer, Context, Refusal};
use dpa_dev::objects::Kind;
use object::Object;

/// Serves a device call of DOCA.
pub(crate) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let name = dpa_dev::calls::find(number).map_or("?", |call| call.name);
    let answer = match number {
        0x010 => device_set(context),
        0x017 => notify(context),
        0x021 => trace(context),
        // Each trace is a message at once.
        0x022 => Ok(Answer::Value(0)),
        0x030..=0x03f => table::call(number, context),
        0x040..=0x04f => completions::call(number, context),
        0x050..=0x05f => buffers::call(number, context),
        0x060..=0x06f => events::call(number, context),
        0x070..=0x08f => posts::call(number, context),
        0x090..=0x09f => verbs::call(number, context),
        0x0a0..=0x0af => rdma::call(number, context),
        _ => Err(Refusal(
            "the host library offers no object for it".to_owned(),
        )),
    };
    answer.map_err(|refusal| Refusal(format!("{name}: {refusal}")))
}

fn device_set(context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    // A process has one device, so a valid handle changes nothing.
    if context.argument(0)? != 0 {
        Object::argument(context, Kind::Context, 0)?;
    }
    Ok(Answer::Value(0))
}

fn notify(context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let completion = Object::argument(context, Kind::Notification, 0)?;
    let thread = completion.word(context, dpa_dev::objects::notification::THREAD)?;
    let thread = u32::try_from(thread)
        .map_err(|_| Refusal("the notification completion names no thread".to_owned()))?;
    context.activate(thread)?;
    Ok(Answer::Value(0))
}

/// Level of trace lines: that of debug lines.
const TRACE: u8 = 60;

fn trace(context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let mut words = [0; 5];
    for (n, word) in (0..).zip(&mut words) {
        *word = context.argument(n)?;
    }
    let text: Vec<String> = words.iter().map(|word| format!("{word:#x}")).collect();
    context.message(0, TRACE, format!("trace {}", text.join(" ")));
    Ok(Answer::Value(0))
}
