//! Compares the committed bindings with the installed headers: the test compiles a C probe, which prints the compiler's
//! values for `rdma_cma.h` and `verbs.h`. Each value must equal the bindings' value.
#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so on standard output"
)]

use testbed::headers::{Headers, Values};
use testbed::{c_layout as layout, c_values as values};

use rdmacm_sys::*;

fn expected() -> Values {
    let mut to = Values::new();
    layout! { to:
        "struct rdma_cm_id" rdma_cm_id { verbs, channel, context, qp, ps, port_num, event, pd, qp_type }
        "struct rdma_event_channel" rdma_event_channel { fd }
        "struct rdma_cm_event" rdma_cm_event { id, listen_id, event, status, param }
        "struct rdma_conn_param" rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        "struct ibv_context" ibv_context { device, ops, cmd_fd, async_fd }
        "struct ibv_context_ops" ibv_context_ops { poll_cq, req_notify_cq, post_send, post_recv }
        "struct ibv_pd" ibv_pd { context, handle }
        "struct ibv_mr" ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct ibv_comp_channel" ibv_comp_channel { context, fd }
        "struct ibv_cq" ibv_cq { context, channel, cq_context, handle, cqe }
        "struct ibv_qp" ibv_qp { context, pd, send_cq, recv_cq, qp_num, state, qp_type }
        "struct ibv_qp_init_attr" ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        "struct ibv_qp_cap" ibv_qp_cap {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        "struct ibv_device_attr" ibv_device_attr { max_qp_wr, max_sge, max_cqe }
        "struct ibv_sge" ibv_sge { addr, length, lkey }
        "struct ibv_send_wr" ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr.rdma }
        "struct ibv_recv_wr" ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct ibv_wc" ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, wc_flags }
    }
    values! { to:
        RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_ACK_TIMEOUT,
        RDMA_PS_TCP, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED,
        RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL,
        RDMA_CM_EVENT_TIMEWAIT_EXIT, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QPT_RC,
        IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED,
        IBV_SEND_SOLICITED, IBV_SEND_INLINE, IBV_WC_SUCCESS, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
        IBV_WC_RECV_RDMA_WITH_IMM,
    }
    to
}

#[test]
fn bindings_agree_with_the_installed_headers() {
    let headers = Headers {
        names: &["rdma/rdma_cma.h"],
        directory: None,
    };
    if let Some(reason) = headers.missing().expect("the compiler runs") {
        println!("SKIP bindings_agree_with_the_installed_headers: {reason}; run cargo xtask setup");
        return;
    }
    if let Err(error) = headers.compare(&expected()) {
        panic!("{error:#}");
    }
}
