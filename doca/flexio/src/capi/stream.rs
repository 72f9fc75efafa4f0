//! Streams of messages of device code, written to files of C.

use crate::error::Result;
use crate::process::Process;
use std::ffi::CString;

/// A stream of messages, and the file that it is written to.
pub(super) struct Stream {
    pub(super) id: i32,
    pub(super) level: u8,
    pub(super) out: *mut libc::FILE,
}

// SAFETY: C files may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Number of a message for all streams.
pub(super) const BROADCAST: i32 = 0xff;
/// Most streams of a process.
pub(super) const STREAMS_MAX: usize = 255;

impl Stream {
    /// Writes the messages that have come.
    pub(super) fn write(&self, process: &Process) -> Result<()> {
        let mut messages = process.messages(Some(self.id))?;
        if self.id == 0 {
            messages.append(&mut process.messages(Some(BROADCAST))?);
        }
        for message in messages {
            if self.level != 0 && message.level > self.level {
                continue;
            }
            let text = CString::new(message.text.replace('\0', "")).unwrap_or_default();
            // SAFETY: the caller's file stays open as long as the stream, and the text ends with a zero byte.
            unsafe { libc::fputs(text.as_ptr(), self.out) };
        }
        // SAFETY: as above.
        unsafe { libc::fflush(self.out) };
        Ok(())
    }
}
