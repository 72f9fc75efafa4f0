//! Compares the committed bindings with the installed headers: the test compiles a C probe, which prints the compiler's
//! values for `verbs.h` and `mlx5dv.h`. Each value must equal the bindings' value.
#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so on standard output"
)]

use testbed::headers::{Headers, Values};
use testbed::{c_layout as layout, c_values as values};

use mlx5dv_sys::*;

fn expected() -> Values {
    let mut to = Values::new();
    layout! { to:
        "struct ibv_context" ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        "struct ibv_context_ops" ibv_context_ops { poll_cq, post_send, post_recv }
        "struct ibv_pd" ibv_pd { context, handle }
        "struct ibv_mr" ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct ibv_cq" ibv_cq { context, channel, cq_context, handle, cqe }
        "struct ibv_qp" ibv_qp { context, pd, send_cq, recv_cq, handle, qp_num, state, qp_type }
        "struct ibv_qp_cap" ibv_qp_cap {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        "struct ibv_qp_init_attr" ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        "struct ibv_qp_attr" ibv_qp_attr {
            qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, pkey_index,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        }
        "struct ibv_ah_attr" ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct ibv_global_route" ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        "union ibv_gid" ibv_gid { raw }
        "struct ibv_port_attr" ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, lid, sm_lid, link_layer, flags,
        }
        "struct ibv_sge" ibv_sge { addr, length, lkey }
        "struct ibv_send_wr" ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags }
        "struct ibv_mw" ibv_mw { context, pd, rkey, handle }
        "struct ibv_mw_bind_info" ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        "struct ibv_wc" ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, wc_flags }
        "struct ibv_device_attr" ibv_device_attr { fw_ver, vendor_part_id, hw_ver }
        "struct ibv_gid_entry" ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        "struct ibv_td" ibv_td { context }
        "struct ibv_td_init_attr" ibv_td_init_attr { comp_mask }
        "struct ibv_parent_domain_init_attr" ibv_parent_domain_init_attr { pd, td, comp_mask }
        "struct verbs_context" verbs_context {
            alloc_parent_domain, dealloc_td, alloc_td, sz, context,
        }
        "struct ibv_qp_init_attr_ex" ibv_qp_init_attr_ex {
            send_cq, recv_cq, cap, qp_type, comp_mask, pd, send_ops_flags,
        }
        "struct ibv_qp_ex" ibv_qp_ex { qp_base, wr_id, wr_flags, wr_start, wr_complete, wr_abort }
        "struct mlx5dv_qp_init_attr" mlx5dv_qp_init_attr { comp_mask, send_ops_flags }
        "struct mlx5dv_qp_ex" mlx5dv_qp_ex { wr_raw_wqe }
        "struct mlx5dv_qp" mlx5dv_qp {
            dbrec, sq.buf, sq.wqe_cnt, sq.stride, rq.buf, bf.reg, bf.size, comp_mask, sqn, tir_icm_addr,
        }
        "struct mlx5dv_cq" mlx5dv_cq { buf, dbrec, cqe_cnt, cqe_size, cq_uar, cqn, comp_mask }
        "struct mlx5dv_pd" mlx5dv_pd { pdn, comp_mask }
        "struct mlx5dv_obj" mlx5dv_obj { qp.in_, qp.out, cq.in_, cq.out, pd.in_, pd.out }
        "struct mlx5dv_context_attr" mlx5dv_context_attr { flags, comp_mask }
    }
    values! { to:
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
        IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_QP_INIT_ATTR_PD,
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
        MLX5DV_QP_EX_WITH_RAW_WQE, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE,
        IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR, IBV_MTU_512,
        IBV_QP_STATE, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_PATH_MTU,
        IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
        IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
        IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR,
        MLX5DV_CONTEXT_FLAGS_DEVX,
        MLX5DV_OBJ_QP, MLX5DV_OBJ_CQ, MLX5DV_OBJ_PD,
    }
    to
}

#[test]
fn bindings_agree_with_the_installed_headers() {
    let headers = Headers {
        names: &["infiniband/verbs.h", "infiniband/mlx5dv.h"],
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
