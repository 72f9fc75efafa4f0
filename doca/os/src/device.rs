//! The device below the operating system.

use rv64::Atomic;

/// Why the device refuses an access behind a key, or a doorbell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

/// A line of text from a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Number of the thread.
    pub thread: u32,
    /// The stream that the program names.
    pub stream: i32,
    /// The level that the program names.
    pub level: u8,
    /// The text.
    pub text: String,
}

/// The device. It checks each access by the rules of its memory keys, and each doorbell.
pub trait Device {
    /// Reads memory behind a key.
    ///
    /// # Errors
    /// The key does not allow it, or the memory is gone.
    fn read(&mut self, key: u32, address: u64, bytes: &mut [u8]) -> Result<(), Denied>;

    /// Writes memory behind a key.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn write(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Denied>;

    /// An atomic operation on 4 or 8 aligned bytes behind a key. Returns the old value.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn atomic(
        &mut self,
        key: u32,
        address: u64,
        size: u8,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, Denied>;

    /// Executes the requests of a send queue below the producer index, by a doorbell on a page.
    ///
    /// # Errors
    /// The process has no such queue on this page.
    fn ring_send(&mut self, uar: u32, qpn: u32, index: u16) -> Result<(), Denied>;

    /// Arms a completion queue.
    ///
    /// # Errors
    /// As [`ring_send`](Self::ring_send).
    fn arm(&mut self, uar: u32, cqn: u32, consumer: u32) -> Result<(), Denied>;

    /// Memory of the embedder's process that a doorbell of a send queue lets the device read: the ring, the record, and memory behind
    /// keys. For weakly ordered memory.
    fn sent(&mut self, qpn: u32) -> Vec<(usize, u64)> {
        let _ = qpn;
        Vec::new()
    }

    /// The same of a completion queue: its ring, and its record.
    fn completions(&mut self, cqn: u32) -> Option<[(usize, u64); 2]> {
        let _ = cqn;
        None
    }

    /// Rings of all completion queues.
    fn completion_rings(&mut self) -> Vec<(usize, u64)> {
        Vec::new()
    }

    /// A message of a thread.
    fn message(&mut self, message: Message);

    /// A counter of a port, by the number that congestion control gives it; 0 for one that the device does not have.
    fn port_counter(&mut self, number: u64) -> u64 {
        let _ = number;
        0
    }
}
