//! A host and an accelerator that is not ready for it, for the system tests: `naaice_crowded ADDRESS`. The accelerator rejects two
//! requests without a text, as a system does in which as many requests wait as the accelerator permits. The host asks again.
//! The third rejection has a text, which is final.

#![expect(
    clippy::print_stdout,
    reason = "the test reads the outcome from standard output"
)]

use naaice::{NaaError, Session};
use rdmacm_sys::{
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_PS_TCP, RdmaCmLib, rdma_cm_id, rdma_event_channel,
};
use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::ptr;

/// Text of the last rejection.
const TEXT: &[u8] = b"out of order\0";
/// Rejections before it.
const WITHOUT_TEXT: usize = 2;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome {
    let address = std::env::args().nth(1).ok_or("no address")?;
    let lib = RdmaCmLib::open()?;
    let (channel, listener, port) = listen(&lib, address.parse()?)?;
    let entries = naaice::spec::parse(&format!("{address}:{port}:1:1"))?;
    let host = std::thread::spawn(move || {
        let session = Session::builder(1).input_output(vec![0; 64]);
        session.create_from(&entries).map(drop)
    });
    let mut requests = 0;
    while requests <= WITHOUT_TEXT {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live, and the result can be written.
        check(unsafe { lib.rdma_get_cm_event(channel, &raw mut event) })?;
        // SAFETY: the event is live until it is acknowledged.
        let (kind, id) = unsafe { ((*event).event, (*event).id) };
        // SAFETY: it is acknowledged once.
        check(unsafe { lib.rdma_ack_cm_event(event) })?;
        if kind != RDMA_CM_EVENT_CONNECT_REQUEST {
            continue;
        }
        requests += 1;
        let text = if requests <= WITHOUT_TEXT { &[] } else { TEXT };
        // SAFETY: the identifier of a request; the text lives during the call.
        check(unsafe { lib.rdma_reject(id, text.as_ptr().cast(), u8::try_from(text.len())?) })?;
        // SAFETY: the identifier belongs to the receiver of the request, and all its events are acknowledged.
        check(unsafe { lib.rdma_destroy_id(id) })?;
    }
    let outcome = host.join().map_err(|_| "the host has panicked")?;
    // SAFETY: all events are acknowledged, and the identifier is destroyed before its channel.
    unsafe {
        lib.rdma_destroy_id(listener);
        lib.rdma_destroy_event_channel(channel);
    }
    match outcome {
        Err(NaaError::Rejected { reason, .. }) if reason.contains("out of order") => {
            println!("ok crowded");
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

type Listener = (*mut rdma_event_channel, *mut rdma_cm_id, u16);

fn listen(
    lib: &RdmaCmLib,
    address: Ipv4Addr,
) -> Result<Listener, Box<dyn std::error::Error + Send + Sync>> {
    let mut place = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET)?,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from(address).to_be(),
        },
        sin_zero: [0; 8],
    };
    let mut id = ptr::null_mut();
    // SAFETY: each object is live when the next call uses it, and the results can be written.
    unsafe {
        let channel = lib.rdma_create_event_channel();
        if channel.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        check(lib.rdma_create_id(channel, &raw mut id, ptr::null_mut(), RDMA_PS_TCP))?;
        check(lib.rdma_bind_addr(id, (&raw mut place).cast()))?;
        check(lib.rdma_listen(id, 4))?;
        let port = u16::from_be(lib.rdma_get_src_port(id));
        Ok((channel, id, port))
    }
}

fn check(returned: c_int) -> std::io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
