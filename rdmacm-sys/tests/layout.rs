//! Compares the committed bindings with the installed headers: the test compiles a C probe, which prints the compiler's
//! values for `rdma_cma.h` and `verbs.h`. Each value must equal the bindings' value.
#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so on standard output"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::mem::{align_of, offset_of, size_of};
use std::process::Command;

use rdmacm_sys::*;

/// Queries for the C compiler and expected values: C expression -> value.
type Expected = BTreeMap<String, i128>;

fn answer(value: impl TryInto<i128>) -> i128 {
    value
        .try_into()
        .unwrap_or_else(|_| panic!("a number of at most 64 bits"))
}

macro_rules! layout {
    ($to:ident: $($c:literal $type:ident { $($($field:ident).+),* $(,)? })*) => {$(
        $to.insert(format!("sizeof({})", $c), answer(size_of::<$type>()));
        $to.insert(format!("_Alignof({})", $c), answer(align_of::<$type>()));
        $($to.insert(
            format!("offsetof({}, {})", $c, concat!($(".", stringify!($field)),+).trim_start_matches('.')),
            answer(offset_of!($type, $($field).+)),
        );)*
    )*};
}

macro_rules! values {
    ($to:ident: $($name:ident),* $(,)?) => {$($to.insert(stringify!($name).to_owned(), answer($name));)*};
}

fn expected() -> Expected {
    let mut to = Expected::new();
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
    let expected = expected();
    let answers = match ask_compiler(expected.keys()) {
        Ok(answers) => answers,
        Err(reason) => {
            println!("SKIP bindings_agree_with_the_installed_headers: {reason}");
            return;
        }
    };
    assert_eq!(
        answers.len(),
        expected.len(),
        "the probe answers every question"
    );
    let wrong: Vec<String> = expected
        .iter()
        .filter(|(expression, value)| answers[*expression] != **value)
        .map(|(expression, value)| {
            format!(
                "{expression}: ours {value}, headers {}",
                answers[expression]
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The C compiler's values, or why the machine cannot provide them.
fn ask_compiler<'a>(expressions: impl Iterator<Item = &'a String>) -> Result<Expected, String> {
    let headers = "#include <rdma/rdma_cma.h>\n";
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (file, program) = (dir.path().join("probe.c"), dir.path().join("probe"));

    fs::write(&file, headers).expect("the probe is written");
    let preprocessed = Command::new("cc").arg("-E").arg(&file).output();
    match preprocessed {
        Err(error) => return Err(format!("no C compiler: cc: {error}")),
        Ok(output) if !output.status.success() => {
            return Err("no headers of librdmacm and libibverbs; run cargo xtask setup".to_owned());
        }
        Ok(_) => {}
    }

    let mut source =
        format!("#include <stddef.h>\n#include <stdio.h>\n{headers}int main(void) {{\n");
    for expression in expressions {
        writeln!(
            source,
            "printf(\"%lld %s\\n\", (long long)({expression}), \"{expression}\");"
        )
        .expect("a String takes all");
    }
    source.push_str("return 0; }\n");
    fs::write(&file, &source).expect("the probe is written");
    let compiled = Command::new("cc")
        .arg("-o")
        .args([&program, &file])
        .output()
        .expect("cc runs");
    assert!(
        compiled.status.success(),
        "cc:\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let run = Command::new(&program).output().expect("the probe runs");
    let text = String::from_utf8(run.stdout).expect("the probe prints ASCII");
    let parse = |line: &str| {
        let (value, expression) = line.split_once(' ').expect("value, then expression");
        (expression.to_owned(), value.parse().expect("a number"))
    };
    Ok(text.lines().map(parse).collect())
}
