//! The C interface: keys, windows, outboxes, event handlers, messages.

use super::stream::{BROADCAST, STREAMS_MAX, Stream};
use super::{CProcess, destroy, given, guard, put};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::queue::{Mkey, Outbox, Window};
use crate::thread::Thread;
use mlx5_prm::dpa::{Affinity, ThreadAttr};
use mlx5dv_sys::{ibv_context, ibv_pd};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError};

/// `struct flexio_mkey_attr`.
#[repr(C)]
pub(crate) struct MkeyAttr {
    pd: *mut ibv_pd,
    daddr: u64,
    len: usize,
    access: c_int,
}

/// The domain of an object must be the process's.
pub(super) fn check_pd(process: &Process, pd: *mut ibv_pd) -> Result<()> {
    if pd.is_null() || pd == process.pd() {
        Ok(())
    } else {
        Err(Error::failed(
            "the protection domain is not that of the process",
        ))
    }
}

/// The context of an object must be the process's.
pub(super) fn check_context(process: &Process, context: *mut ibv_context) -> Result<()> {
    if context.is_null() || context == process.context() {
        Ok(())
    } else {
        Err(Error::failed("the context is not that of the process"))
    }
}

/// Creates a key.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_device_mkey_create(
    process: *const CProcess,
    attr: *const MkeyAttr,
    mkey: *mut *mut Mkey,
) -> u32 {
    guard("flexio_device_mkey_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        check_pd(&own.process, attr.pd)?;
        let made = own
            .process
            .mkey(attr.daddr, attr.len as u64, attr.access.cast_unsigned())?;
        // SAFETY: the caller's place.
        unsafe { put(mkey, Box::into_raw(Box::new(made))) }
    })
}

/// Destroys a key.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_device_mkey_destroy(mkey: *mut Mkey) -> u32 {
    // SAFETY: from `flexio_device_mkey_create`.
    unsafe { destroy("flexio_device_mkey_destroy", mkey) }
}

/// The key.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_mkey_get_id(mkey: *const Mkey) -> u32 {
    // SAFETY: from `flexio_device_mkey_create`.
    unsafe { mkey.as_ref() }.map_or(u32::MAX, Mkey::key)
}

/// Creates a window.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_window_create(
    process: *const CProcess,
    pd: *mut ibv_pd,
    window: *mut *mut Window,
) -> u32 {
    guard("flexio_window_create", || {
        // SAFETY: from `flexio_process_create`.
        let own = unsafe { given(process, "the process") }?;
        check_pd(&own.process, pd)?;
        let made = Window::create(&own.process)?;
        // SAFETY: the caller's place.
        unsafe { put(window, Box::into_raw(Box::new(made))) }
    })
}

/// Destroys a window.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_window_destroy(window: *mut Window) -> u32 {
    // SAFETY: from `flexio_window_create`.
    unsafe { destroy("flexio_window_destroy", window) }
}

/// Number of a window for device code.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_window_get_id(window: *const Window) -> u32 {
    // SAFETY: from `flexio_window_create`.
    unsafe { window.as_ref() }.map_or(u32::MAX, Window::id)
}

/// Creates an outbox.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_outbox_create(
    process: *const CProcess,
    attr: *const u32,
    outbox: *mut *mut Outbox,
) -> u32 {
    guard("flexio_outbox_create", || {
        // SAFETY: from `flexio_process_create`; null or the caller's attributes, which are one word.
        let (own, attr) = unsafe { (given(process, "the process")?, attr.as_ref()) };
        if attr.is_some_and(|en_pcc| *en_pcc != 0) {
            return Err(Error::failed(
                "en_pcc: programmable congestion control is not available",
            ));
        }
        let made = Outbox::create(&own.process)?;
        // SAFETY: the caller's place.
        unsafe { put(outbox, Box::into_raw(Box::new(made))) }
    })
}

/// Destroys an outbox.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_outbox_destroy(outbox: *mut Outbox) -> u32 {
    // SAFETY: from `flexio_outbox_create`.
    unsafe { destroy("flexio_outbox_destroy", outbox) }
}

/// Number of an outbox for device code.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_outbox_get_id(outbox: *const Outbox) -> u32 {
    // SAFETY: from `flexio_outbox_create`.
    unsafe { outbox.as_ref() }.map_or(u32::MAX, Outbox::id)
}

/// Page of an outbox.
#[unsafe(no_mangle)]
extern "C" fn flexio_outbox_get_uar(outbox: *const Outbox) -> *const Outbox {
    outbox
}

/// `struct flexio_affinity`.
#[repr(C)]
pub(crate) struct CAffinity {
    kind: u32,
    id: u32,
}

/// `struct flexio_event_handler_attr`.
#[repr(C)]
pub(crate) struct HandlerAttr {
    function: *const c_void,
    local_storage: u64,
    affinity: CAffinity,
    continuable: c_int,
}

/// Creates an event handler.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_event_handler_create(
    process: *const CProcess,
    attr: *const HandlerAttr,
    handler: *mut *mut Thread,
) -> u32 {
    guard("flexio_event_handler_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        let app = own.process.app();
        let Some(function) = app.find(attr.function.addr()) else {
            let text = format!("no function of the program {}", app.name());
            return Err(Error::failed(text));
        };
        let id = u16::try_from(attr.affinity.id).unwrap_or(u16::MAX);
        let affinity = match attr.affinity.kind {
            0 => Affinity::None,
            1 => Affinity::Unit(id),
            2 => Affinity::Group(id),
            kind => return Err(Error::failed(format!("no affinity {kind}"))),
        };
        let attr = ThreadAttr {
            function: app.symbol(&function.name)?,
            argument: 0,
            local_storage: attr.local_storage,
            affinity,
        };
        let made = Thread::create(&own.process, &attr)?;
        // SAFETY: the caller's place.
        unsafe { put(handler, Box::into_raw(Box::new(made))) }
    })
}

/// Prepares an event handler.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_event_handler_run(handler: *const Thread, argument: u64) -> u32 {
    guard("flexio_event_handler_run", || {
        // SAFETY: from `flexio_event_handler_create`.
        unsafe { given(handler, "the event handler") }?.run(argument)
    })
}

/// Destroys an event handler.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_event_handler_destroy(handler: *mut Thread) -> u32 {
    // SAFETY: from `flexio_event_handler_create`.
    unsafe { destroy("flexio_event_handler_destroy", handler) }
}

/// The thread of an event handler.
#[unsafe(no_mangle)]
extern "C" fn flexio_event_handler_get_thread(handler: *const Thread) -> *const Thread {
    handler
}

/// Number of an event handler for device code.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_event_handler_get_id(handler: *const Thread) -> u32 {
    // SAFETY: from `flexio_event_handler_create`.
    unsafe { handler.as_ref() }.map_or(u32::MAX, Thread::number)
}

/// `flexio_msg_stream_attr_t`.
#[repr(C)]
pub(crate) struct StreamAttr {
    data_bsize: usize,
    sync_mode: u32,
    level: u8,
}

/// A stream for C, with its process.
pub(crate) struct CStream {
    stream: Arc<Stream>,
    process: *const CProcess,
}

/// Creates a stream.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_msg_stream_create(
    process: *const CProcess,
    attr: *const StreamAttr,
    out: *mut libc::FILE,
    _thread: *mut c_void,
    stream: *mut *mut CStream,
) -> u32 {
    guard("flexio_msg_stream_create", || {
        // SAFETY: from `flexio_process_create`, and the caller's attributes.
        let (own, attr) = unsafe {
            (
                given(process, "the process")?,
                given(attr, "the attributes")?,
            )
        };
        if out.is_null() {
            return Err(Error::failed("the file is NULL"));
        }
        let _ = (attr.data_bsize, attr.sync_mode);
        let mut streams = own.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |id: &i32| streams.iter().all(|stream| stream.id != *id);
        let Some(id) = (0..BROADCAST).find(is_free) else {
            return Err(Error::failed(format!(
                "the process has {STREAMS_MAX} streams"
            )));
        };
        let made = Arc::new(Stream {
            id,
            level: attr.level,
            out,
        });
        streams.push(Arc::clone(&made));
        let made = Box::new(CStream {
            stream: made,
            process,
        });
        // SAFETY: the caller's place.
        unsafe { put(stream, Box::into_raw(made)) }
    })
}

/// Writes the messages of a stream.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_msg_stream_flush(stream: *const CStream) -> u32 {
    guard("flexio_msg_stream_flush", || {
        // SAFETY: from `flexio_msg_stream_create`.
        let own = unsafe { given(stream, "the stream") }?;
        // SAFETY: the process is destroyed after its streams.
        let process = unsafe { given(own.process, "the process") }?;
        own.stream.write(&process.process)
    })
}

/// Writes what has come, and ends a stream.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_msg_stream_destroy(stream: *mut CStream) -> u32 {
    guard("flexio_msg_stream_destroy", || {
        if stream.is_null() {
            return Ok(());
        }
        // SAFETY: from `flexio_msg_stream_create`, used no more.
        let own = unsafe { Box::from_raw(stream) };
        // SAFETY: the process is destroyed after its streams.
        let process = unsafe { given(own.process, "the process") }?;
        let written = own.stream.write(&process.process);
        let mut streams = process
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        streams.retain(|other| other.id != own.stream.id);
        written
    })
}

/// Number of a stream for device code.
///
/// # Safety
/// The header's.
#[unsafe(no_mangle)]
unsafe extern "C" fn flexio_msg_stream_get_id(stream: *const CStream) -> c_int {
    // SAFETY: from `flexio_msg_stream_create`.
    unsafe { stream.as_ref() }.map_or(-1, |own| own.stream.id)
}
