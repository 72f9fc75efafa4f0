//! Compares the structures of the library with its C headers: a C program consists of static assertions, and the
//! compiler must accept it, as C and as C++.
#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so on standard output"
)]

use naaice::abi::{
    CONNECTIONS_MAX, CommContext, CommContext2, ConnectionManagement, MrInternal, MrLocal, MrPeer,
    NaaHandle, NaaParam, NaaStatus, ServerContext, WorkerArgs, code,
};
use naaice::machine::State;
use naaice::wire;
use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

macro_rules! layout {
    ($to:ident: $($c:literal $type:ident { $($field:ident),* $(,)? })*) => {$(
        $to.push((format!("sizeof({})", $c), size_of::<$type>()));
        $to.push((format!("ALIGNOF({})", $c), align_of::<$type>()));
        $($to.push((format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($type, $field)));)*
    )*};
}

/// The layouts that differ between the interfaces of the original.
fn of_interface(interface: u32) -> Vec<(String, usize)> {
    let mut to = Vec::new();
    if interface == 1 {
        layout! { to:
            "struct naaice_communication_context" CommContext {
                id, ev_channel, ibv_ctx, pd, comp_channel, cq, qp, timeout, retry_count, max_inline_data, state,
                mr_local_data, no_local_mrs, mr_return_idx, mr_peer_data, no_peer_mrs, mr_local_message,
                mr_internal, no_internal_mrs, fncode, naa_returncode, rdma_writes_done, bytes_received,
                no_input_mrs, no_output_mrs, no_rpc_calls, immediate, connection_id,
            }
            "naa_status" NaaStatus { state, naa_error, bytes_received }
        }
    } else {
        layout! { to:
            "struct naaice_communication_context" CommContext2 {
                id, ev_channel, ibv_ctx, pd, comp_channel, cq, qp, timeout, retry_count, max_inline_data, state,
                mr_local_data, no_local_mrs, mr_return_idx, mr_peer_data, no_peer_mrs, mr_local_message,
                mr_internal, no_internal_mrs, fncode, response_user_immediate, rdma_writes_done,
                response_received, bytes_received, no_input_mrs, no_output_mrs, no_rpc_calls, immediate,
                connection_id,
            }
            "naa_status" NaaStatus { state, bytes_received }
        }
        let at = std::mem::offset_of!(NaaStatus, naa_error);
        to.push(("offsetof(naa_status, user_immediate)".to_owned(), at));
    }
    to
}

fn expected(interface: u32) -> Vec<(String, usize)> {
    let mut to = of_interface(interface);
    layout! { to:
        "struct naaice_mr_local" MrLocal { ibv, addr, size, to_write, single_send }
        "struct naaice_mr_peer" MrPeer { addr, rkey, size, to_write, single_send }
        "struct naaice_mr_internal" MrInternal { addr, size }
        "naa_param_t" NaaParam { addr, size, single_send }
        "naa_handle" NaaHandle { function_code, comm_ctx }
        "struct connection_management" ConnectionManagement { connections, top }
        "struct context" ServerContext {
            lock, total_connections_lifetime, master, con_mng, worker, worker_threads,
        }
        "struct worker_args" WorkerArgs { ctx, worker_id }
    }
    let values = [
        ("MAX_CONNECTIONS", CONNECTIONS_MAX),
        ("MAX_MRS", wire::REGIONS_MAX),
        ("MR_SIZE_MRSP", wire::MESSAGE_BYTES_MAX),
        (
            "sizeof(struct naaice_mr_advertisement_request)",
            wire::REQUEST_BYTES,
        ),
        ("sizeof(struct naaice_mr_advertisement)", wire::GRANT_BYTES),
        (
            "sizeof(struct naaice_mr_hdr) + sizeof(struct naaice_mr_dynamic_hdr)",
            wire::HEADER_BYTES,
        ),
        ("MRFLAG_INTERNAL", usize::from(wire::flag::INTERNAL)),
        ("MRFLAG_SINGLESEND", usize::from(wire::flag::SINGLE_SEND)),
        ("MRFLAG_INPUT", usize::from(wire::flag::INPUT)),
        ("MRFLAG_OUTPUT", usize::from(wire::flag::OUTPUT)),
        (
            "SERVER_CONNECTION_PORT",
            usize::from(naaice::spec::DEFAULT_PORT),
        ),
        ("NAA_SUCCESS", usize::from(code::SUCCESS)),
        ("SOCKET_UNAVAIL", usize::from(code::SOCKET_UNAVAIL)),
        ("KERNEL_TIMEOUT", usize::from(code::KERNEL_TIMEOUT)),
        ("NAA_UNKNOWN_FUNCTION", usize::from(code::UNKNOWN_FUNCTION)),
        ("NAA_KERNEL_CRASHED", usize::from(code::KERNEL_CRASHED)),
        ("NAA_KERNEL_CODE", usize::from(code::KERNEL_CODE)),
        ("NAA_MEMORY", usize::from(code::MEMORY)),
    ];
    to.extend(values.map(|(name, value)| (name.to_owned(), value)));
    let states = (0..=40).filter_map(State::from_number);
    to.extend(states.map(|state| (state.name().to_owned(), state as usize)));
    to
}

/// A program that the compiler accepts if the headers have the library's layouts.
fn program(interface: u32) -> String {
    let mut c = format!("#define NAAICE_INTERFACE {interface}\n");
    c.push_str(
        "#include <naaice_ap2.h>\n#include <naaice_swnaa.h>\n#ifdef __cplusplus\n#define ALIGNOF alignof\n#else\n\
         #define ALIGNOF _Alignof\n#define static_assert _Static_assert\n#endif\n",
    );
    for (expression, value) in expected(interface) {
        writeln!(
            c,
            "static_assert(({expression}) == {value}, \"{expression}\");"
        )
        .expect("a String takes all");
    }
    c
}

#[test]
fn c_and_cxx_programs_see_the_layouts_of_the_library() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let has = |header: &str| {
        let probe = dir.path().join("probe.c");
        std::fs::write(&probe, format!("#include <{header}>\n")).expect("the probe is written");
        let ran = Command::new("cc").arg("-fsyntax-only").arg(&probe).output();
        ran.is_ok_and(|output| output.status.success())
    };
    if !has("rdma/rdma_cma.h") {
        println!(
            "SKIP c_and_cxx_programs_see_the_layouts_of_the_library: no headers of librdmacm; run cargo xtask setup"
        );
        return;
    }
    let kinds = [("cc", "layout.c", "gnu17"), ("c++", "layout.cc", "gnu++17")];
    let kinds = [1, 2]
        .iter()
        .flat_map(|interface| kinds.map(|kind| (*interface, kind)));
    for (interface, (compiler, name, standard)) in kinds {
        let source = dir.path().join(name);
        std::fs::write(&source, program(interface)).expect("the program is written");
        let run = Command::new(compiler)
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"])
            .arg(format!("-std={standard}"))
            .arg("-I")
            .arg(&include)
            .arg(&source)
            .output();
        let Ok(output) = run else {
            println!("SKIP c_and_cxx_programs_see_the_layouts_of_the_library: no {compiler}");
            continue;
        };
        assert!(
            output.status.success(),
            "{compiler}:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
