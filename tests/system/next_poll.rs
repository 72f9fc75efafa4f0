//! Programs that post a request for each completion between `ibv_start_poll` and `ibv_end_poll`. They
//! find an empty queue in time, and the queue never overruns.

use crate::agent::compile;
use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World};
use anyhow::{Context, Result, ensure};
use std::time::Duration;

const FUNCTION: &str = "node0.host";
/// Number of messages of each case.
const MESSAGES: &str = "XGVMI_POLL_MESSAGES";
const MESSAGES_DEFAULT: &str = "20000";

pub(crate) fn cases() -> Vec<Case> {
    let case = |name, row| Case::new(name, move |world: &World| loops(world, row));
    vec![
        case("next_poll_of_one_queue_pair", "write 1 1 256"),
        case("next_poll_of_a_deep_queue", "write 1 64 128"),
        case("next_poll_of_many_queue_pairs", "write 16 8 128"),
        case("next_poll_of_a_small_queue", "write 2 1 2"),
        case("next_poll_of_both_sides", "send 4 8 128"),
        case("next_poll_of_the_receiver", "receive 1 8 64"),
    ]
}

/// The longest loop reads no more than the entries of the queue: all of them without a look at the
/// program's counter.
fn loops(world: &World, row: &str) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let messages = std::env::var(MESSAGES).unwrap_or_else(|_| MESSAGES_DEFAULT.to_owned());
    // Each message takes some microseconds, and more on a busy machine.
    let limit = LIMIT + Duration::from_micros(500) * messages.parse().context(MESSAGES)?;
    let mut command = testbed.command(FUNCTION, compile("next_poll")?);
    command.args(row.split(' ')).arg(messages);
    let done = process::run(&mut command, limit)?;
    let said = done.output.clone();
    ensure!(done.ok(), "{}: {said}", done.verdict());
    let value = |key: &str| -> Result<u64> {
        let word = said
            .split_whitespace()
            .find_map(|word| word.strip_prefix(key));
        word.context(said.clone())?.parse().context(said.clone())
    };
    let (entries, longest) = (value("entries=")?, value("longest=")?);
    ensure!(longest <= entries, "{longest} of {entries} entries");
    Ok(())
}
