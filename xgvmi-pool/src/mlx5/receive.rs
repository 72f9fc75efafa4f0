//! Completions that libmlx5 polls, in the adapter's form.

use std::ptr::NonNull;

use mlx5_prm::cqe::{self, Cqe, syndrome};
use mlx5dv_sys::{
    IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_cq, ibv_poll_cq, ibv_wc, ibv_wc_status,
};

use super::send_ring::low16;

/// The next completion from `ibv_poll_cq`. A queue that fails to poll has none, so the wait for it
/// times out.
///
/// # Safety
/// `cq` is a live completion queue.
pub(super) unsafe fn poll(cq: NonNull<ibv_cq>) -> Option<ibv_wc> {
    let mut wc = ibv_wc::default();
    // SAFETY: the queue is live by the caller's promise; there is room for one completion.
    let found = unsafe { ibv_poll_cq(cq.as_ptr(), 1, &raw mut wc) };
    (found == 1).then_some(wc)
}

/// The completion as the adapter wrote it, reduced to the fields that this crate uses. The number
/// of a request is the number of its first building block.
pub(super) fn to_cqe(wc: &ibv_wc) -> Cqe {
    let error = syndrome_of(wc.status);
    let [vendor_syndrome, ..] = wc.vendor_err.to_le_bytes();
    Cqe {
        opcode: match error {
            None => cqe::opcode::REQ,
            Some(_) => cqe::opcode::REQ_ERR,
        },
        wqe_counter: low16(wc.wr_id),
        syndrome: error.unwrap_or_default(),
        vendor_syndrome,
        ..Cqe::default()
    }
}

/// The syndrome from which libmlx5 derives the status (`providers/mlx5/cq.c`,
/// `mlx5_handle_error_cqe`). `None` for success.
pub(super) fn syndrome_of(status: ibv_wc_status) -> Option<u8> {
    /// Syndromes that libmlx5 reports as a general error have no name.
    const OTHER: u8 = 0xff;
    Some(match status {
        IBV_WC_SUCCESS => return None,
        IBV_WC_LOC_LEN_ERR => syndrome::LOCAL_LENGTH_ERR,
        IBV_WC_LOC_QP_OP_ERR => syndrome::LOCAL_QP_OP_ERR,
        IBV_WC_LOC_PROT_ERR => syndrome::LOCAL_PROT_ERR,
        IBV_WC_WR_FLUSH_ERR => syndrome::WR_FLUSH_ERR,
        IBV_WC_MW_BIND_ERR => syndrome::MW_BIND_ERR,
        IBV_WC_BAD_RESP_ERR => syndrome::BAD_RESP_ERR,
        IBV_WC_LOC_ACCESS_ERR => syndrome::LOCAL_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR => syndrome::REMOTE_INVAL_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR => syndrome::REMOTE_ACCESS_ERR,
        IBV_WC_REM_OP_ERR => syndrome::REMOTE_OP_ERR,
        IBV_WC_RETRY_EXC_ERR => syndrome::TRANSPORT_RETRY_EXC_ERR,
        IBV_WC_RNR_RETRY_EXC_ERR => syndrome::RNR_RETRY_EXC_ERR,
        IBV_WC_REM_ABORT_ERR => syndrome::REMOTE_ABORTED_ERR,
        _ => OTHER,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: ibv_wc_status, opcode: u8, syndrome: u8) {
        let wc = ibv_wc {
            wr_id: 0x1_0003,
            status,
            vendor_err: 0x88,
            ..ibv_wc::default()
        };
        let cqe = to_cqe(&wc);
        assert_eq!((cqe.opcode, cqe.syndrome), (opcode, syndrome));
        assert_eq!((cqe.wqe_counter, cqe.vendor_syndrome), (3, 0x88));
    }

    #[test]
    fn a_completion_of_verbs_is_one_of_the_adapter() {
        check(IBV_WC_SUCCESS, cqe::opcode::REQ, 0);
        check(IBV_WC_MW_BIND_ERR, cqe::opcode::REQ_ERR, 0x06);
        check(IBV_WC_WR_FLUSH_ERR, cqe::opcode::REQ_ERR, 0x05);
        check(IBV_WC_REM_ACCESS_ERR, cqe::opcode::REQ_ERR, 0x13);
    }
}
