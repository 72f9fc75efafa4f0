//! Compares the committed bindings with the installed headers: the test compiles a C probe, which prints the compiler's
//! values for `ucp.h`. Each value must equal the bindings' value. The headers are those of `XGVMI_UCX_INCLUDE`, otherwise
//! those of the set-up's cache.
#![expect(
    clippy::print_stdout,
    reason = "a skipped test says so on standard output"
)]

use std::env;
use std::fs;
use std::mem::{align_of, offset_of, size_of};
use std::path::PathBuf;
use testbed::c_values as values;
use testbed::headers::{Headers, Values, answer};
use ucx_sys::*;

macro_rules! layout {
    ($to:ident: $($type:ident { $($field:ident),* $(,)? })*) => {$(
        $to.insert(format!("sizeof({})", stringify!($type)), answer(size_of::<$type>()));
        $to.insert(format!("_Alignof({})", stringify!($type)), answer(align_of::<$type>()));
        $($to.insert(
            format!("offsetof({}, {})", stringify!($type), stringify!($field)),
            answer(offset_of!($type, $field)),
        );)*
    )*};
}

fn expected() -> Values {
    let mut to = Values::new();
    layout! { to:
        ucs_status_t {}
        ucs_memory_type_t {}
        ucp_params_t {
            field_mask, features, request_size, request_init, request_cleanup, tag_sender_mask,
            mt_workers_shared, estimated_num_eps, estimated_num_ppn, name, node_local_id,
        }
        ucp_worker_params_t {
            field_mask, thread_mode, cpu_mask, events, user_data, event_fd, flags, name, am_alignment, client_id,
        }
        ucp_worker_attr_t { field_mask, thread_mode, address_flags, address, address_length, max_am_header }
        ucp_ep_params_t {
            field_mask, address, err_mode, err_handler, user_data, flags, sockaddr, conn_request, name,
            local_sockaddr,
        }
        ucp_err_handler_t { cb, arg }
        ucp_mem_map_params_t { field_mask, address, length, flags, prot, memory_type, exported_memh_buffer }
        ucp_mem_attr_t { field_mask, address, length, mem_type }
        ucp_memh_pack_params_t { field_mask, flags }
        ucp_memh_buffer_release_params_t { field_mask }
        ucp_request_param_t {
            op_attr_mask, flags, request, cb, datatype, user_data, reply_buffer, memory_type, recv_info, memh,
        }
        ucp_am_handler_param_t { field_mask, id, flags, cb, arg }
        ucp_am_recv_param_t { recv_attr, reply_ep }
        ucp_context_attr_t { field_mask, request_size, thread_mode, memory_types, name, device_counter_size }
        ucp_ep_attr_t { field_mask, name, transports, user_data }
        ucp_transports_t { entries, num_entries, entry_size }
        ucp_transport_entry_t { transport_name, device_name }
        ucp_dt_iov_t { buffer, length }
        ucs_config_parser_t { read, write, clone, release, help, doc, arg }
        ucs_config_field_t { name, dfl_value, doc, offset, parser }
        ucs_config_global_list_entry_t { name, prefix, table, size, list, flags }
    }
    values! { to:
        UCS_OK, UCS_INPROGRESS, UCS_ERR_IO_ERROR, UCS_ERR_BUSY, UCS_ERR_UNSUPPORTED, UCS_ERR_LAST,
        UCS_MEMORY_TYPE_HOST, UCS_MEMORY_TYPE_UNKNOWN, UCS_THREAD_MODE_SINGLE,
        UCP_API_MAJOR, UCP_API_MINOR,
        UCP_PARAM_FIELD_FEATURES, UCP_PARAM_FIELD_NAME,
        UCP_FEATURE_RMA, UCP_FEATURE_WAKEUP, UCP_FEATURE_AM, UCP_FEATURE_EXPORTED_MEMH,
        UCP_WORKER_PARAM_FIELD_THREAD_MODE, UCP_WORKER_ATTR_FIELD_ADDRESS,
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        UCP_EP_PARAM_FIELD_ERR_HANDLER, UCP_ERR_HANDLING_MODE_NONE, UCP_ERR_HANDLING_MODE_PEER,
        UCP_EP_CLOSE_FLAG_FORCE,
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE, UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER,
        UCP_MEMH_PACK_PARAM_FIELD_FLAGS, UCP_MEMH_PACK_FLAG_EXPORT,
        UCP_OP_ATTR_FIELD_MEMH, UCP_OP_ATTR_FIELD_MEMORY_TYPE, UCP_OP_ATTR_FIELD_FLAGS,
        UCP_AM_SEND_FLAG_EAGER, UCP_AM_SEND_FLAG_COPY_HEADER, UCP_AM_RECV_ATTR_FLAG_RNDV,
        UCP_AM_HANDLER_PARAM_FIELD_ID, UCP_AM_HANDLER_PARAM_FIELD_CB, UCP_AM_HANDLER_PARAM_FIELD_ARG,
    }
    to.insert(
        "ucp_dt_make_contig(1)".to_owned(),
        answer(ucp_dt_make_contig(1)),
    );
    to.insert("ucp_dt_make_iov()".to_owned(), answer(ucp_dt_make_iov()));
    to
}

#[test]
fn bindings_agree_with_the_installed_headers() {
    let Some(include) = ucx_include() else {
        println!(
            "SKIP bindings_agree_with_the_installed_headers: no UCX headers; set XGVMI_UCX_INCLUDE or run \
             cargo xtask setup"
        );
        return;
    };
    let headers = Headers {
        names: &["ucp/api/ucp.h", "ucs/config/parser.h"],
        directory: Some(&include),
    };
    if let Err(error) = headers.compare(&expected()) {
        panic!("headers in {}:\n{error:#}", include.display());
    }
}

/// The directory that holds `ucp/api/ucp.h`.
fn ucx_include() -> Option<PathBuf> {
    if let Some(named) = env::var_os("XGVMI_UCX_INCLUDE") {
        return Some(named.into());
    }
    let part = fs::read_dir(cache()?)
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("lib"));
    let python = part
        .filter_map(|lib| fs::read_dir(lib).ok())
        .flat_map(|dir| dir.flatten());
    python
        .map(|entry| entry.path().join("site-packages/libucx/include"))
        .find(|include| include.join("ucp/api/ucp.h").is_file())
}

fn cache() -> Option<PathBuf> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XGVMI_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("xgvmi")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/xgvmi")))
}
