//! Offers that wait until the blocks of earlier offers are read.
//!
//! A block takes 12 bytes in its message and 40 when it is ready to be read. Only a limited number of blocks
//! is ready at once; the messages of the others wait here. They count as waiting UCP messages.

use crate::error::{OffloadError, Result};
use std::collections::VecDeque;
use xgvmi_ucp::InboxBudget;

/// Capacity that the empty queue keeps.
const KEPT: usize = 64;

/// Share of the memory for waiting messages that the offers of one job may use. The rest is for other jobs.
const JOBS: usize = 4;

/// The waiting offers of a job, the oldest first.
#[derive(Debug)]
pub(super) struct Late {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The bytes of all jobs' waiting messages.
    budget: InboxBudget,
}

impl Late {
    pub(super) fn new(budget: InboxBudget) -> Self {
        Self {
            messages: VecDeque::new(),
            bytes: 0,
            budget,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Adds an offer.
    ///
    /// # Errors
    /// The memory for waiting messages is exhausted.
    pub(super) fn push(&mut self, message: Vec<u8>) -> Result<()> {
        let of_job = self.bytes.saturating_add(message.len());
        if of_job > self.budget.max() / JOBS || !self.budget.take(message.len()) {
            return Err(OffloadError::Failed(format!(
                "offers of {} bytes wait for earlier reads, and one of {} bytes exceeds the memory for waiting messages: \
                 raise --buffer-mib",
                self.bytes,
                message.len()
            )));
        }
        self.bytes += message.len();
        self.messages.push_back(message);
        Ok(())
    }

    /// Takes the oldest offer.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.len();
        self.budget.give(message.len());
        if self.messages.is_empty() {
            self.messages.shrink_to(KEPT);
        }
        Some(message)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_leave_in_their_order_and_give_their_bytes_back() {
        let budget = InboxBudget::new(400);
        let mut late = Late::new(budget.clone());
        for number in 0..3 {
            late.push(vec![number; 30]).expect("within the budget");
        }
        let error = late.push(vec![9; 30]).unwrap_err().to_string();
        assert!(error.contains("offers of 90 bytes wait"), "{error}");
        assert_eq!(late.pop(), Some(vec![0; 30]));
        late.push(vec![3; 30]).expect("within the budget");
        assert_eq!((late.pop(), budget.used()), (Some(vec![1; 30]), 60));
        drop(late);
        assert_eq!(budget.used(), 0);
    }
}
