//! Waits of a software accelerator's session: for the host's announcement, and for a call.

use crate::endpoint::{ANNOUNCE_LIMIT, Endpoint};
use crate::error::{NaaError, Result};
use crate::machine::State;
use crate::server::Step;
use std::time::{Duration, Instant};

/// Interval at which a session's thread looks whether its connection has ended, in addition to its events.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Waits for the host's announcement and answers it.
pub(super) fn announce(endpoint: &mut Endpoint) -> Result<()> {
    let began = Instant::now();
    while endpoint.state() < State::Announced {
        let left = ANNOUNCE_LIMIT.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(NaaError::Late {
                step: "the host's announcement",
                limit: ANNOUNCE_LIMIT,
            });
        }
        match endpoint.wait_step(false, left.min(LOOK_INTERVAL))? {
            Step::Ended => return Ok(()),
            Step::Run(start) => endpoint.begin_function(start),
            Step::Wait | Step::Announced => {}
        }
    }
    Ok(())
}

/// Waits until a call begins, or the session ends.
pub(super) fn receive(endpoint: &mut Endpoint) -> Result<()> {
    while !matches!(endpoint.state(), State::Calculating | State::Finished) {
        if let Step::Run(start) = endpoint.wait_step(false, LOOK_INTERVAL)? {
            endpoint.begin_function(start);
        }
    }
    Ok(())
}
