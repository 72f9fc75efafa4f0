//! Device calls: the functions of the API that the device executes.

/// One function that the device executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Value of `t0`.
    pub number: u16,
    /// Name of the C function.
    pub name: &'static str,
    /// Words of arguments; of a function with a variable list, the words before the list. The words of the list follow.
    pub words: u8,
}

const fn call(number: u16, name: &'static str, words: u8) -> Call {
    Call {
        number,
        name,
        words,
    }
}

/// End of a thread whose function has returned, with the result as argument. The entry of the program makes this call.
pub const THREAD_RETURN: u16 = 0x001;

/// All calls, sorted by number. A number is never used again for another function.
pub const CALLS: &[Call] = &[
    call(THREAD_RETURN, "__dpa_thread_return", 1),
    // Threads and their environment.
    call(0x010, "doca_dpa_dev_device_set", 1),
    call(0x011, "doca_dpa_dev_thread_rank", 0),
    call(0x012, "doca_dpa_dev_num_threads", 0),
    call(0x013, "doca_dpa_dev_thread_get_local_storage", 0),
    call(0x014, "doca_dpa_dev_yield", 0),
    call(0x015, "doca_dpa_dev_thread_reschedule", 0),
    call(0x016, "doca_dpa_dev_thread_finish", 0),
    call(0x017, "doca_dpa_dev_thread_notify", 1),
    // Messages.
    call(0x020, "doca_dpa_dev_log", 2),
    call(0x021, "doca_dpa_dev_trace", 5),
    call(0x022, "doca_dpa_dev_trace_flush", 0),
    call(0x023, "doca_dpa_dev_printf", 1),
    // Hash tables.
    call(0x030, "doca_dpa_dev_hash_table_add", 3),
    call(0x031, "doca_dpa_dev_hash_table_remove", 2),
    call(0x032, "doca_dpa_dev_hash_table_find", 3),
    // Completions.
    call(0x040, "doca_dpa_dev_get_completion", 2),
    call(0x041, "doca_dpa_dev_get_completion_type", 1),
    call(0x042, "doca_dpa_dev_get_completion_user_data", 1),
    call(0x043, "doca_dpa_dev_get_completion_immediate", 1),
    call(0x044, "doca_dpa_dev_completion_ack", 2),
    call(0x045, "doca_dpa_dev_completion_request_notification", 1),
    call(0x046, "doca_dpa_dev_completion_element_get_timestamp", 1),
    call(0x047, "doca_dpa_dev_completion_element_get_wqe_counter", 1),
    // Memory.
    call(0x050, "doca_dpa_dev_mmap_get_external_ptr", 2),
    call(0x051, "doca_dpa_dev_post_memcpy", 7),
    call(0x052, "doca_dpa_dev_post_buf_memcpy", 4),
    call(0x053, "doca_dpa_dev_memcpy_nb", 5),
    call(0x054, "doca_dpa_dev_memcpy_transpose2D_nb", 8),
    call(0x055, "doca_dpa_dev_memcpy_synchronize", 0),
    // Events.
    call(0x060, "doca_dpa_dev_sync_event_get", 2),
    call(0x061, "doca_dpa_dev_sync_event_update_add", 2),
    call(0x062, "doca_dpa_dev_sync_event_update_set", 2),
    call(0x063, "doca_dpa_dev_sync_event_wait_gt", 3),
    call(0x064, "doca_dpa_dev_sync_event_post_wait_gt", 3),
    call(0x065, "doca_dpa_dev_sync_event_post_wait_ne", 3),
    // RDMA.
    call(0x070, "doca_dpa_dev_rdma_post_read", 8),
    call(0x071, "doca_dpa_dev_rdma_post_write", 8),
    call(0x072, "doca_dpa_dev_rdma_post_write_imm", 9),
    call(0x073, "doca_dpa_dev_rdma_post_send", 6),
    call(0x074, "doca_dpa_dev_rdma_post_send_imm", 7),
    call(0x075, "doca_dpa_dev_rdma_post_receive", 4),
    call(0x076, "doca_dpa_dev_rdma_post_atomic_fetch_add", 6),
    call(0x077, "doca_dpa_dev_rdma_receive_ack", 2),
    call(0x078, "doca_dpa_dev_rdma_signal_add", 4),
    call(0x079, "doca_dpa_dev_rdma_signal_set", 4),
    // RDMA by buffers.
    call(0x080, "doca_dpa_dev_rdma_post_buf_read", 5),
    call(0x081, "doca_dpa_dev_rdma_post_buf_write", 5),
    call(0x082, "doca_dpa_dev_rdma_post_buf_write_imm", 6),
    call(0x083, "doca_dpa_dev_rdma_post_buf_send", 4),
    call(0x084, "doca_dpa_dev_rdma_post_buf_send_imm", 5),
    call(0x085, "doca_dpa_dev_rdma_post_buf_receive", 2),
    call(0x086, "doca_dpa_dev_rdma_post_buf_atomic_fetch_add", 5),
    // Queue pairs of doca_verbs.
    call(0x090, "doca_dpa_dev_verbs_qp_post_send_wr", 2),
    call(0x091, "doca_dpa_dev_verbs_qp_commit_send", 1),
    call(0x092, "doca_dpa_dev_verbs_qp_post_recv_wr", 2),
    call(0x093, "doca_dpa_dev_verbs_qp_commit_recv", 1),
    // RDMA of version 2.0, by handle, buffer and offset.
    call(0x0a0, "doca_dpa_dev_rdma_read", 6),
    call(0x0a1, "doca_dpa_dev_rdma_write", 6),
    call(0x0a2, "doca_dpa_dev_rdma_atomic_fetch_add", 4),
    call(0x0a3, "__dpa_rdma_signal_add", 3),
    call(0x0a4, "__dpa_rdma_signal_set", 3),
    call(0x0a5, "doca_dpa_dev_rdma_synchronize", 1),
    // FlexIO. What a function shares with one above has a number of its own, because its argument differs.
    call(0x0c0, "flexio_dev_get_thread_ctx", 1),
    call(0x0c1, "flexio_dev_thread_reschedule", 0),
    call(0x0c2, "flexio_dev_thread_finish", 0),
    call(0x0c3, "flexio_dev_thread_retrigger", 0),
    call(0x0c4, "flexio_dev_process_finish", 0),
    call(0x0c5, "flexio_dev_get_thread_id", 1),
    call(0x0c6, "flexio_dev_get_thread_local_storage", 1),
    call(0x0c7, "flexio_dev_event_handler_activate", 1),
    call(0x0c8, "flexio_dev_msg", 3),
    call(0x0c9, "flexio_dev_puts", 2),
    call(0x0ca, "flexio_dev_outbox_config", 2),
    call(0x0cb, "flexio_dev_multi_window_config", 3),
    call(0x0cc, "flexio_dev_multi_window_mkey_config", 2),
    call(0x0cd, "flexio_dev_multi_window_ptr_acquire", 3),
    call(0x0ce, "flexio_dev_multi_window_copy_from_host", 4),
    call(0x0cf, "flexio_dev_multi_window_copy_to_host", 4),
];

/// The call with this number.
#[must_use]
pub fn find(number: u16) -> Option<&'static Call> {
    let at = CALLS.binary_search_by_key(&number, |call| call.number);
    at.ok().map(|at| &CALLS[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_are_sorted_and_names_are_unique() {
        assert!(CALLS.is_sorted_by(|one, next| one.number < next.number));
        let names: BTreeSet<&str> = CALLS.iter().map(|call| call.name).collect();
        assert_eq!(names.len(), CALLS.len());
        for call in CALLS {
            assert_eq!(find(call.number), Some(call));
        }
        assert_eq!(find(0), None);
    }
}
