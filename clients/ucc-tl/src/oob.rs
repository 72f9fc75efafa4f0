//! UCC's out-of-band allgather of a team, non-blocking, with one operation at a time.

use crate::bindings::{UCC_INPROGRESS, UCC_OK, ucc_oob_coll_t, ucc_status_t};
use std::ffi::c_void;
use std::ptr::null_mut;

/// A team's out-of-band functions. Use them only during the creation of the team: testing a request makes UCC itself
/// progress, which must not happen inside the progress of a task.
#[derive(Clone, Copy)]
pub(crate) struct Oob {
    functions: ucc_oob_coll_t,
}

/// An outstanding operation. A cancelled team leaves it to UCC, which still writes to its buffers.
struct Operation {
    /// Separately allocated: the buffers must not move, and leak with an operation that never completes.
    send: Vec<u8>,
    receive: Vec<u8>,
    request: *mut c_void,
}

/// An allgather of blocks of different lengths: first the lengths, then the blocks.
pub(crate) struct Gather {
    oob: Oob,
    mine: Vec<u8>,
    /// Known after the first allgather.
    lengths: Option<Vec<usize>>,
    operation: Option<Operation>,
}

/// An allgather of one byte.
pub(crate) struct Vote {
    oob: Oob,
    operation: Option<Operation>,
}

/// Maximum length of one rank's block.
const BYTES_MAX: usize = 1 << 26;

impl Oob {
    /// `None` if the functions do not belong to a team of this rank and size.
    pub(crate) fn new(functions: ucc_oob_coll_t, rank: u32, size: u32) -> Option<Self> {
        let there = functions.allgather.is_some()
            && functions.req_test.is_some()
            && functions.req_free.is_some();
        (there && functions.oob_ep == rank && functions.n_oob_eps == size)
            .then_some(Self { functions })
    }

    fn start(&self, send: Vec<u8>) -> Result<Operation, ucc_status_t> {
        let size = self.functions.n_oob_eps as usize;
        let mut operation = Operation {
            receive: vec![0; send.len() * size],
            send,
            request: null_mut(),
        };
        let Some(allgather) = self.functions.allgather else {
            return Err(crate::bindings::UCC_ERR_INVALID_PARAM);
        };
        // SAFETY: UCC's function with UCC's argument; the buffers have the lengths that an allgather needs, and do not
        // move before it completes (Operation).
        let status = unsafe {
            allgather(
                operation.send.as_mut_ptr().cast(),
                operation.receive.as_mut_ptr().cast(),
                operation.send.len(),
                self.functions.coll_info,
                &raw mut operation.request,
            )
        };
        if status < 0 {
            Err(status)
        } else {
            Ok(operation)
        }
    }

    /// The blocks of all ranks; `None` while the operation is outstanding.
    fn test(&self, operation: &mut Option<Operation>) -> Result<Option<Vec<u8>>, ucc_status_t> {
        let (Some(test), Some(free)) = (self.functions.req_test, self.functions.req_free) else {
            return Err(crate::bindings::UCC_ERR_INVALID_PARAM);
        };
        let Some(request) = operation.as_ref().map(|operation| operation.request) else {
            return Err(crate::bindings::UCC_ERR_INVALID_PARAM);
        };
        // SAFETY: the request of an outstanding operation.
        match unsafe { test(request) } {
            UCC_INPROGRESS => Ok(None),
            status => {
                // SAFETY: complete, and freed once because the operation is taken below.
                unsafe { free(request) };
                let done = operation
                    .take()
                    .map(|mut operation| std::mem::take(&mut operation.receive));
                match (status, done) {
                    (UCC_OK, Some(all)) => Ok(Some(all)),
                    (status, _) => Err(status),
                }
            }
        }
    }
}

impl Gather {
    /// Starts an allgather of `mine`.
    pub(crate) fn start(oob: Oob, mine: Vec<u8>) -> Result<Self, ucc_status_t> {
        if mine.len() > BYTES_MAX {
            return Err(crate::bindings::UCC_ERR_INVALID_PARAM);
        }
        let operation = oob.start((mine.len() as u64).to_le_bytes().to_vec())?;
        Ok(Self {
            oob,
            mine,
            lengths: None,
            operation: Some(operation),
        })
    }

    /// The blocks of all ranks, in rank order; `None` while one is missing.
    pub(crate) fn poll(&mut self) -> Result<Option<Vec<Vec<u8>>>, ucc_status_t> {
        let Some(all) = self.oob.test(&mut self.operation)? else {
            return Ok(None);
        };
        let Some(lengths) = &self.lengths else {
            let lengths: Vec<usize> = all
                .chunks_exact(8)
                .map(|chunk| {
                    let bytes = chunk.try_into().unwrap_or([u8::MAX; 8]);
                    usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
                })
                .collect();
            let longest = lengths.iter().copied().max().unwrap_or(0);
            if longest > BYTES_MAX {
                return Err(crate::bindings::UCC_ERR_INVALID_PARAM);
            }
            let mut block = std::mem::take(&mut self.mine);
            // Some implementations do not support an allgather of zero bytes.
            block.resize(longest.max(1), 0);
            self.operation = Some(self.oob.start(block)?);
            self.lengths = Some(lengths);
            return Ok(None);
        };
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let blocks = all.chunks_exact(longest).zip(lengths);
        Ok(Some(
            blocks
                .map(|(block, length)| block[..*length].to_vec())
                .collect(),
        ))
    }
}

impl Vote {
    /// Starts the allgather of a rank's yes or no.
    pub(crate) fn start(oob: Oob, yes: bool) -> Result<Self, ucc_status_t> {
        let operation = Some(oob.start(vec![yes.into()])?);
        Ok(Self { oob, operation })
    }

    /// The votes of all ranks, in rank order; `None` while one is missing.
    pub(crate) fn poll(&mut self) -> Result<Option<Vec<u8>>, ucc_status_t> {
        self.oob.test(&mut self.operation)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.request.is_null() && !self.receive.is_empty() {
            // The operation is outstanding: UCC still reads and writes these buffers.
            std::mem::forget(std::mem::take(&mut self.send));
            std::mem::forget(std::mem::take(&mut self.receive));
        }
    }
}
