//! The active messages of a worker that wait for the program, and their limits.
//!
//! A peer that sends faster than the program reads must not exhaust the memory of the process. The bytes of each
//! sender, of each process and the number of messages are limited. The first 16 bytes of a message's header name its
//! sender.
//!
//! A worker has a limit of its own, so that the peers of one worker cannot use the memory of all. Its first bytes do not
//! count for the process: its short messages arrive whatever other workers do.

use super::error::{Result, UcpError};
use super::hash::Map;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum number of waiting messages. More than one message of each rank of the largest job indicate a faulty peer.
const MESSAGES_MAX: usize = 1 << 16;

/// Maximum number of buffers that are kept for later messages, and capacity of each. The allocation of a longer message
/// is cheap per byte.
const SPARES_MAX: usize = 16;
const SPARE_BYTES: usize = 16 << 10;

/// Waiting bytes of each worker that the budget does not count.
const FREE: usize = 1 << 20;

/// Name of a sender: the first bytes of its messages' headers. A shorter header continues with zeros.
pub type Sender = [u8; 16];

/// Limits of a worker's waiting messages.
#[derive(Debug, Clone)]
pub struct InboxLimits {
    /// Maximum bytes of one sender.
    pub bytes_per_sender: usize,
    /// Maximum bytes of one worker.
    pub bytes_per_worker: usize,
    /// Bytes of all workers that share this, beyond 1 MiB of each.
    pub budget: InboxBudget,
}

/// Bytes that the waiting messages of several workers may have together. Clones share it.
#[derive(Debug, Clone)]
pub struct InboxBudget {
    used: Arc<AtomicUsize>,
    max: usize,
}

/// An active message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its identifier.
    pub id: u16,
    /// Its header.
    pub header: Header,
    /// Its data.
    pub data: Vec<u8>,
}

/// The header of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// The header only names the sender.
    Sender(Sender),
    /// Any other header.
    Other(Vec<u8>),
}

impl From<&[u8]> for Header {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        match bytes.try_into() {
            Ok(sender) => Self::Sender(sender),
            Err(_) => Self::Other(bytes.to_vec()),
        }
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Sender(sender) => sender,
            Self::Other(bytes) => bytes,
        }
    }
}

/// Waiting bytes of a sender. A message holds the account of its sender, so that only its arrival looks the sender up.
pub(super) type Account = Rc<Cell<usize>>;

/// The waiting messages of a worker.
#[derive(Debug)]
pub(super) struct Waiting {
    limits: InboxLimits,
    /// Waiting bytes within which no limit of bytes is exceeded.
    quiet: usize,
    /// Each message with the account of its sender.
    queue: VecDeque<(Account, Message)>,
    /// Waiting bytes of all senders.
    bytes: usize,
    /// Accounts of senders with messages, and of expected senders. A number is hashed faster than an array.
    senders: Map<u128, Account>,
    /// Empty buffers for the data of later messages.
    spares: Vec<Vec<u8>>,
    /// Only expected senders may send.
    closed: bool,
    /// Messages of unexpected senders.
    strangers: u64,
    /// The first limit that was exceeded.
    over: Option<(&'static str, usize, usize)>,
}

impl InboxBudget {
    /// A budget of `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            used: Arc::default(),
            max,
        }
    }

    /// The limit.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Counts `bytes` as used. False if they do not fit; nothing is counted then.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    /// Returns bytes of an earlier [`InboxBudget::take`].
    pub fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

impl Default for InboxLimits {
    /// 64 MiB per sender, which exceeds the longest message of a job of 65,536 ranks, and 256 MiB per worker and for all.
    fn default() -> Self {
        Self {
            bytes_per_sender: 64 << 20,
            bytes_per_worker: 256 << 20,
            budget: InboxBudget::new(256 << 20),
        }
    }
}

impl Waiting {
    pub(super) fn new(limits: InboxLimits) -> Self {
        let least = limits.bytes_per_sender.min(limits.bytes_per_worker);
        Self {
            limits,
            quiet: least.min(FREE),
            queue: VecDeque::new(),
            bytes: 0,
            senders: Map::default(),
            spares: Vec::new(),
            closed: false,
            strangers: 0,
            over: None,
        }
    }

    /// From now on, only senders that were passed to this function may send.
    pub(super) fn expect(&mut self, sender: Sender) {
        self.closed = true;
        self.senders.entry(u128::from_le_bytes(sender)).or_default();
    }

    /// Whether there is no message, and none was refused.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.over.is_none()
    }

    /// Bytes of the waiting messages of all senders.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of messages of unexpected senders.
    pub(super) fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Reserves space for a message. `None` if the message must be dropped.
    #[inline]
    pub(super) fn reserve(&mut self, header: &[u8], data: usize) -> Option<Account> {
        let sender = sender_of(header);
        let bytes = header.len().saturating_add(data);
        let all = self.bytes.saturating_add(bytes);
        // Those of its sender are among them.
        if all <= self.quiet
            && self.queue.len() < MESSAGES_MAX
            && let Some(account) = self.senders.get(&sender)
        {
            self.bytes = all;
            account.set(account.get() + bytes);
            return Some(Rc::clone(account));
        }
        self.reserve_much(sender, bytes)
    }

    /// As [`Waiting::reserve`], for any message.
    #[inline(never)]
    fn reserve_much(&mut self, sender: u128, bytes: usize) -> Option<Account> {
        let known = self.senders.get(&sender);
        if self.closed && known.is_none() {
            self.strangers += 1;
            return None;
        }
        let before = known.map_or(0, |used| used.get());
        let of_sender = before.saturating_add(bytes);
        let max = self.limits.bytes_per_sender;
        if self.queue.len() >= MESSAGES_MAX {
            let over = ("messages", self.queue.len() + 1, MESSAGES_MAX);
            self.over.get_or_insert(over);
            return None;
        }
        if of_sender > max {
            self.over
                .get_or_insert(("bytes of one sender", of_sender, max));
            return None;
        }
        let of_worker = self.bytes.saturating_add(bytes);
        let max = self.limits.bytes_per_worker;
        if of_worker > max {
            self.over
                .get_or_insert(("bytes of one worker", of_worker, max));
            return None;
        }
        let counted = counted(of_worker) - counted(self.bytes);
        if counted > 0 && !self.limits.budget.take(counted) {
            let used = self.limits.budget.used().saturating_add(counted);
            let over = ("bytes", used, self.limits.budget.max);
            self.over.get_or_insert(over);
            return None;
        }
        self.bytes = of_worker;
        let account = match known {
            Some(account) => Rc::clone(account),
            None => Rc::clone(self.senders.entry(sender).or_default()),
        };
        account.set(of_sender);
        Some(account)
    }

    /// An empty buffer for the data of a message.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Keeps the buffer of a message that has been handled.
    #[inline]
    pub(super) fn reuse(&mut self, mut data: Vec<u8>) {
        if self.spares.len() < SPARES_MAX && (1..=SPARE_BYTES).contains(&data.capacity()) {
            data.clear();
            self.spares.push(data);
        }
    }

    /// Adds a message for which there is space.
    #[inline]
    pub(super) fn push(&mut self, account: Account, message: Message) {
        self.queue.push_back((account, message));
    }

    /// A message was refused for another reason than a limit.
    pub(super) fn exceed(&mut self, what: &'static str, count: usize, max: usize) {
        self.over.get_or_insert((what, count, max));
    }

    /// Takes the oldest message that `wanted` accepts.
    #[inline]
    pub(super) fn take(&mut self, wanted: impl Fn(&Message) -> bool) -> Result<Option<Message>> {
        if let Some((what, count, max)) = self.over {
            return Err(UcpError::InboxFull { what, count, max });
        }
        let wanted = |(_, message): &(Account, Message)| wanted(message);
        let taken = match self.queue.front() {
            None => None,
            // Most callers want the oldest message.
            Some(oldest) if wanted(oldest) => self.queue.pop_front(),
            Some(_) => {
                let index = self.queue.iter().position(wanted);
                index.and_then(|index| self.queue.remove(index))
            }
        };
        let Some((account, message)) = taken else {
            return Ok(None);
        };
        let bytes = message.header.len() + message.data.len();
        let after = self.bytes - bytes;
        if self.bytes > FREE {
            self.limits
                .budget
                .give(counted(self.bytes) - counted(after));
        }
        self.bytes = after;
        let used = account.get().saturating_sub(bytes);
        account.set(used);
        if used == 0 && !self.closed {
            self.senders.remove(&sender_of(&message.header));
        }
        Ok(Some(message))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.limits.budget.give(counted(self.bytes));
    }
}

/// The part of a worker's bytes that the budget counts.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(FREE)
}

/// The sender's name, as a number.
#[inline]
fn sender_of(header: &[u8]) -> u128 {
    let mut sender = Sender::default();
    match header.first_chunk() {
        Some(all) => sender = *all,
        None => sender[..header.len()].copy_from_slice(header),
    }
    u128::from_le_bytes(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits beyond the free bytes of a worker.
    fn waiting(bytes_per_sender: usize, budget: &InboxBudget) -> Waiting {
        Waiting::new(InboxLimits {
            bytes_per_sender: FREE + bytes_per_sender,
            bytes_per_worker: FREE + 250,
            budget: budget.clone(),
        })
    }

    fn send(waiting: &mut Waiting, sender: u8, data: usize) -> bool {
        let header = vec![sender; 16];
        let Some(account) = waiting.reserve(&header, data) else {
            return false;
        };
        let message = Message {
            id: 0,
            header: header.as_slice().into(),
            data: vec![0; data],
        };
        waiting.push(account, message);
        true
    }

    fn error(waiting: &mut Waiting) -> String {
        waiting.take(|_| true).unwrap_err().to_string()
    }

    #[test]
    fn a_sender_has_its_limit_and_all_have_one() {
        let budget = InboxBudget::new(300);
        let mut first = waiting(150, &budget);
        assert!(send(&mut first, 1, FREE + 100));
        assert_eq!(budget.used(), 116);
        assert!(first.take(|_| true).expect("within").is_some());
        assert_eq!(budget.used(), 0);
        assert!(send(&mut first, 1, FREE + 100));
        assert!(!send(&mut first, 1, 100));
        assert_eq!(
            error(&mut first),
            "1048808 bytes of one sender wait in the inbox; the most is 1048726"
        );
        // Another sender of the same worker.
        let mut second = waiting(150, &budget);
        assert!(send(&mut second, 2, FREE + 50) && send(&mut second, 3, 100));
        assert!(!send(&mut second, 4, 100));
        assert_eq!(
            error(&mut second),
            "1048874 bytes of one worker wait in the inbox; the most is 1048826"
        );
        // Another worker of the same budget, until that is used up. Its short messages arrive.
        let mut third = waiting(150, &budget);
        assert!(send(&mut third, 2, FREE - 100) && !send(&mut third, 3, 100));
        assert_eq!(
            error(&mut third),
            "330 bytes wait in the inbox; the most is 300"
        );
        // The bytes of a worker that ends are free.
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn limits_below_the_free_bytes_hold() {
        let limits = |bytes_per_sender, bytes_per_worker| InboxLimits {
            bytes_per_sender,
            bytes_per_worker,
            budget: InboxBudget::new(0),
        };
        let mut of_sender = Waiting::new(limits(100, 1000));
        for sender in 1..=9 {
            assert!(send(&mut of_sender, sender, 84), "{sender}");
        }
        assert!(!send(&mut of_sender, 9, 0));
        assert_eq!(
            error(&mut of_sender),
            "116 bytes of one sender wait in the inbox; the most is 100"
        );
        let mut of_worker = Waiting::new(limits(1000, 100));
        assert!(send(&mut of_worker, 1, 34) && send(&mut of_worker, 2, 34));
        assert!(!send(&mut of_worker, 1, 0));
        assert_eq!(
            error(&mut of_worker),
            "116 bytes of one worker wait in the inbox; the most is 100"
        );
    }

    #[test]
    fn unexpected_senders_cost_nothing() {
        let budget = InboxBudget::new(1000);
        let mut waiting = waiting(500, &budget);
        waiting.expect([1; 16]);
        for stranger in 2..100 {
            assert!(!send(&mut waiting, stranger, usize::MAX / 2));
        }
        assert_eq!((waiting.strangers(), budget.used()), (98, 0));
        assert!(send(&mut waiting, 1, 10));
        assert_eq!(
            waiting
                .take(|_| true)
                .expect("within")
                .expect("one")
                .data
                .len(),
            10
        );
        // It stays expected.
        assert!(send(&mut waiting, 1, 10));
    }

    #[test]
    fn buffers_are_kept_up_to_a_number_and_a_size() {
        let budget = InboxBudget::new(1 << 20);
        let mut waiting = waiting(1 << 20, &budget);
        waiting.reuse(Vec::new());
        waiting.reuse(Vec::with_capacity(SPARE_BYTES + 1));
        assert_eq!(waiting.buffer().capacity(), 0);
        for _ in 0..=SPARES_MAX {
            waiting.reuse(vec![1; 100]);
        }
        assert_eq!(waiting.spares.len(), SPARES_MAX);
        let buffer = waiting.buffer();
        assert!(buffer.is_empty() && buffer.capacity() >= 100);
    }
}
