//! Device calls of DOCA.

use crate::context::{Answer, Context, Refusal};

/// What a thread keeps between two calls.
#[derive(Debug, Default)]
pub struct State {}

/// Serves a device call of DOCA.
pub(crate) fn call(number: u16, context: &mut Context<'_, '_>) -> Result<Answer, Refusal> {
    let _ = context;
    let name = dpa_dev::calls::find(number).map_or("?", |call| call.name);
    Err(Refusal(format!(
        "device call {number:#x} ({name}) is not available"
    )))
}
