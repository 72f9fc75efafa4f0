//! An outstanding get and the objects that it uses.

use super::endpoint::get_param;
use super::request::{Progress, is_complete};
use super::{ImportedMemory, RemoteKey, Result, Waiter};
use std::mem::ManuallyDrop;
use std::time::Duration;
use ucx_sys::Ucp;

/// A get that UCP has accepted. It is separate from [`Request`](super::Request) because it is smaller: there is one for each block.
///
/// It owns the objects that the operation uses. If it is dropped before completion, it leaks them,
/// because UCX or the device may still use them.
#[derive(Debug)]
pub struct Get {
    progress: Progress,
    /// Dropped only after completion.
    holds: ManuallyDrop<Transfer>,
}

/// The objects that a get uses.
#[derive(Debug)]
struct Transfer {
    _into: ImportedMemory,
    from: RemoteKey,
}

impl Get {
    const CALL: &'static str = "ucp_get_nbx";

    /// RDMA READ of one block, see [`Gets::start`](super::Gets::start).
    ///
    /// # Errors
    /// As [`Gets::start`](super::Gets::start).
    pub fn start(
        from: &RemoteKey,
        remote_address: u64,
        into: &ImportedMemory,
        address: u64,
        length: usize,
    ) -> Result<Self> {
        let mut param = get_param(None);
        param.memh = into.access_run(address, 0, length, 1)?;
        let answer = from.get(remote_address, address, length, &param)?;
        Ok(Self {
            progress: Progress::new(answer),
            holds: ManuallyDrop::new(Transfer {
                _into: into.clone(),
                from: from.clone(),
            }),
        })
    }

    #[inline]
    fn ucp(&self) -> &'static Ucp {
        self.holds.from.endpoint().worker().ucp()
    }

    /// As [`Request::wait`](super::Request::wait).
    ///
    /// # Errors
    /// As [`Request::wait`](super::Request::wait).
    pub fn wait(self, waiter: &Waiter, limit: Duration) -> Result<()> {
        let worker = self.holds.from.endpoint().worker().clone();
        waiter.until(&worker, limit, Self::CALL, || {
            Ok(self.test()?.then_some(()))
        })
    }

    /// As [`Request::test`](super::Request::test).
    ///
    /// # Errors
    /// As [`Request::test`](super::Request::test).
    #[inline]
    pub fn test(&self) -> Result<bool> {
        let ucp = self.ucp();
        is_complete(ucp, Self::CALL, self.progress.poll(ucp))
    }

    /// As [`Request::was_complete`](super::Request::was_complete).
    ///
    /// # Errors
    /// As [`Request::was_complete`](super::Request::was_complete).
    #[inline]
    pub fn was_complete(&self) -> Result<bool> {
        is_complete(self.ucp(), Self::CALL, self.progress.known())
    }
}

impl Drop for Get {
    #[inline]
    fn drop(&mut self) {
        let ucp = self.ucp();
        if self.progress.poll(ucp).is_none() {
            return self.progress.abandon(ucp);
        }
        // SAFETY: the objects are dropped once, here, and nothing uses them afterwards; the operation is complete.
        unsafe { ManuallyDrop::drop(&mut self.holds) };
    }
}
