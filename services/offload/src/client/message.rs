//! Messages between two ranks: exchanges of which one rank has a block to send, and another one a block to receive.
//!
//! Each sender, receiver and tag have a communicator of their own, whose number all ranks can compute. Its calls have numbers as
//! those of any other, so the messages match in the order in which both ends have posted them.

use super::call::area;
use super::state::{Client, arguments};
use super::types::{Call, Memory, Request};
use super::waiting::{Part, Work};
use crate::error::Result;
use crate::wire::{Block, BlockList, Message, Route};
use std::ptr::null_mut;

impl Client {
    /// Starts to send a message to another rank of the job, by its number in the job. The SPs move the bytes when the other rank
    /// has posted the [`Client::recv`].
    ///
    /// Messages of the same two ranks and the same tag match in the order in which both have posted them; those with different tags
    /// are independent of each other. A message may be shorter or longer than its receive: see [`Request::message_length`]. Many
    /// messages under way let further ones wait at the rank, but never the oldest one of its ranks and tag.
    ///
    /// # Errors
    /// [`OffloadError::Arguments`](crate::OffloadError::Arguments) for this rank itself, an unknown rank, a tag of 2^30 or more, an
    /// empty message, and too many tags; nothing has started then. Otherwise as for [`Client::alltoallv`].
    ///
    /// # Safety
    /// As for the send buffer of [`Client::alltoallv`].
    pub unsafe fn send(&mut self, to: u32, tag: u32, memory: Memory<'_>) -> Result<Request> {
        let message = Message {
            from: self.rank,
            to,
            tag,
        };
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin_message(message, to, memory) }
    }

    /// Starts to receive a message of another rank: see [`Client::send`].
    ///
    /// # Errors
    /// As for [`Client::send`].
    ///
    /// # Safety
    /// As for the receive buffer of [`Client::alltoallv`].
    pub unsafe fn recv(&mut self, from: u32, tag: u32, memory: Memory<'_>) -> Result<Request> {
        let message = Message {
            from,
            to: self.rank,
            tag,
        };
        // SAFETY: the caller upholds the contract.
        unsafe { self.begin_message(message, from, memory) }
    }

    /// # Safety
    /// As for [`Client::alltoallv`].
    unsafe fn begin_message(
        &mut self,
        message: Message,
        peer: u32,
        memory: Memory<'_>,
    ) -> Result<Request> {
        self.check()?;
        let (start, length) = memory.range();
        let size = self.communicators[&0].members.len();
        let communicator = message.communicator().filter(|_| {
            let is_other = peer != self.rank && (peer as usize) < size;
            is_other && length > 0
        });
        let Some(communicator) = communicator else {
            return Err(arguments(format!(
                "{message} of {size} with {length} bytes: messages go to other ranks, have tags below {}, and are not empty",
                Message::TAGS
            )));
        };
        let none = || Part {
            area: area(&Memory::Temporary {
                start: null_mut(),
                length: 0,
            }),
            blocks: BlockList::Runs(Vec::new()),
        };
        let block = Block {
            peer,
            offset: 0,
            length: length as u64,
        };
        let part = Part {
            area: area(&memory),
            blocks: vec![block].into(),
        };
        let is_sent = message.from == self.rank;
        let (send, receive) = if is_sent {
            (part, none())
        } else {
            (none(), part)
        };
        let received = if is_sent {
            (null_mut(), 0)
        } else {
            (start, length)
        };
        let work = Work::Exchange {
            send,
            receive,
            in_place: false,
            is_spread: self.lanes.count() > 1,
            route: Route::Direct,
        };
        let call = &mut self.messages.number(communicator)?;
        self.enter(Call::Numbered(call), received, work)
    }
}
