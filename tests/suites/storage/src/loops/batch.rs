//! A batch of writes under way, and what the ledger learns from each answer.

use super::client::{Client, Heard, SECTOR};
use super::ledger::{Ledger, Write};
use anyhow::{Context as _, Result};

/// What became of a batch meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// One write more was answered.
    Answer,
    /// A write was answered with this error.
    Refused(Write, u32),
    /// Nothing for a while.
    Silence,
    /// The server is gone.
    End,
    /// All that was sent is answered; true if all was sent.
    Done(bool),
}

pub(crate) struct Batch {
    writes: Vec<Write>,
    sent: usize,
    pub(crate) answers: usize,
    /// Of writes that were answered without an error.
    pub(crate) bytes: u64,
}

impl Batch {
    /// Sends new writes, as long as there is a server.
    pub(crate) fn post(
        client: &mut Client,
        ledger: &mut Ledger,
        count: usize,
        random: &mut fastrand::Rng,
    ) -> Self {
        let writes = ledger.batch(count, random);
        let sends = |(cookie, write): &(u64, &Write)| {
            client.write(*cookie, (write.first * SECTOR) as u64, &write.bytes())
        };
        let sent = (0..).zip(&writes).take_while(sends).count();
        Self {
            writes,
            sent,
            answers: 0,
            bytes: 0,
        }
    }

    /// Waits for what comes next.
    pub(crate) fn next(&mut self, client: &mut Client, ledger: &mut Ledger) -> Result<Event> {
        if self.answers == self.sent {
            let unsent = self.writes.split_off(self.sent);
            unsent.iter().for_each(|write| ledger.unsent(write));
            return Ok(Event::Done(unsent.is_empty()));
        }
        Ok(match client.hear()? {
            Heard::Answer(cookie, error) => {
                let at = usize::try_from(cookie)?;
                let write = self.writes.get(at).context("an answer to nothing")?;
                self.answers += 1;
                if error != 0 {
                    return Ok(Event::Refused(*write, error));
                }
                ledger.done(write);
                self.bytes += (write.count * SECTOR) as u64;
                Event::Answer
            }
            Heard::Silence => Event::Silence,
            Heard::End => Event::End,
        })
    }
}
