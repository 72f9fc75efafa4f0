//! A host's context, and a DPU's context with a connection to itself over which it reads imported memory.

use anyhow::{Context as _, Result, ensure};
use std::fs::File;
use std::os::fd::{AsFd as _, FromRawFd as _};
use std::time::Duration;
use ucx_sys::Ucp;
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{
    Context, Endpoint, ExportedMemh, Get, ImportedMemory, MappedRange, RemoteKey, Waiter, Worker,
};

use super::memory::Fresh;

/// A transfer takes milliseconds. A longer one hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// The UCX and the names of two functions of one adapter.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) ucp: &'static Ucp,
    pub(crate) host: String,
    pub(crate) dpu: String,
}

impl Devices {
    /// A context of the host.
    pub(crate) fn host(&self) -> Result<Context> {
        Ok(Context::with_settings(
            self.ucp,
            "fresh-host",
            &settings(&format!("{}:1", self.host)),
        )?)
    }

    /// Both sides.
    pub(crate) fn open(&self, bytes: usize) -> Result<Sides> {
        let host = self.host()?;
        Ok(Sides {
            host,
            dpu: self.dpu(bytes)?,
        })
    }

    /// The DPU, which receives up to `bytes` at once.
    pub(crate) fn dpu(&self, bytes: usize) -> Result<Dpu> {
        let context =
            Context::with_settings(self.ucp, "fresh-dpu", &settings(&format!("{}:1", self.dpu)))?;
        let worker = context.worker(1)?;
        let address = worker.address()?;
        // SAFETY: the address is the worker's own.
        let endpoint = unsafe { worker.connect_for_gets(&address, "this worker") }?;
        let target = ImportedMemory::own(&context, Buffer::new(bytes.max(4096))?)?;
        let (control, other) = pipe()?;
        let waiter = Waiter::new(Duration::from_secs(1), control.as_fd());
        Ok(Dpu {
            target,
            endpoint,
            worker,
            context,
            waiter,
            _pipe: (control, other),
        })
    }
}

fn settings(device: &str) -> [(&str, &str); 2] {
    [("NET_DEVICES", device), ("TLS", "rc_x")]
}

fn pipe() -> Result<(File, File)> {
    let mut ends = [-1; 2];
    ensure!(
        // SAFETY: the array has space for both descriptors.
        unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0,
        "no pipe"
    );
    // SAFETY: the descriptors are new and owned by nobody else.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// The fields are in the order of their ends.
pub(crate) struct Dpu {
    target: ImportedMemory,
    endpoint: Endpoint,
    worker: Worker,
    pub(crate) context: Context,
    waiter: Waiter,
    _pipe: (File, File),
}

/// Imported memory with the key by which the DPU reads it.
pub(crate) struct Peer {
    key: RemoteKey,
    memory: ImportedMemory,
}

impl Peer {
    /// The DPU's program releases the import.
    pub(crate) fn release(self) -> Result<()> {
        drop(self.key);
        Ok(self.memory.unmap()?)
    }
}

impl Dpu {
    /// Imports a host's buffer.
    pub(crate) fn import(&self, exported: &[u8]) -> Result<Peer> {
        // SAFETY: this process's UCX has packed the bytes, and they are unchanged.
        let memory = unsafe { ImportedMemory::new(&self.context, exported) }.context("import")?;
        let packed = memory.pack_rkey().context("remote key of the import")?;
        // SAFETY: as above.
        let key = unsafe { RemoteKey::unpack(&self.endpoint, &packed) }?;
        Ok(Peer { key, memory })
    }

    /// Reads from a host's buffer by the device.
    pub(crate) fn read(&mut self, peer: &Peer, address: usize, length: usize) -> Result<&[u8]> {
        let into = self.target.address();
        let get = Get::start(&peer.key, address as u64, &self.target, into, length)?;
        get.wait(&self.waiter, LIMIT)?;
        let bytes = self
            .target
            .own_bytes()
            .context("the target is still in use")?;
        Ok(&bytes[..length])
    }

    /// The bytes of the last read.
    pub(crate) fn last(&mut self, length: usize) -> Result<&[u8]> {
        let bytes = self
            .target
            .own_bytes()
            .context("the target is still in use")?;
        Ok(&bytes[..length])
    }

    /// Progresses outstanding work.
    pub(crate) fn progress(&self) {
        self.worker.progress_until_idle();
    }
}

/// Host and DPU.
pub(crate) struct Sides {
    pub(crate) host: Context,
    pub(crate) dpu: Dpu,
}

/// Registers a program's buffer and exports it.
pub(crate) fn export(context: &Context, buffer: &Fresh) -> Result<(MappedRange, ExportedMemh)> {
    export_part(context, buffer.pointer(), buffer.length())
}

/// Registers bytes of the program and exports them.
pub(crate) fn export_part(
    context: &Context,
    start: *const u8,
    length: usize,
) -> Result<(MappedRange, ExportedMemh)> {
    // SAFETY: the callers keep the memory mapped until they unmap the registration, except in the cases that are about
    // memory which is unmapped earlier; nothing accesses it then.
    let mapped = unsafe { MappedRange::new(context, start, length) }.context("map")?;
    let exported = mapped.export().context("export")?;
    Ok((mapped, exported))
}

impl Sides {
    /// Reads a whole buffer through the DPU, and returns its bytes.
    pub(crate) fn transfer(&mut self, buffer: &Fresh) -> Result<Vec<u8>> {
        let (mapped, exported) = export(&self.host, buffer)?;
        let peer = self.dpu.import(&exported)?;
        let bytes = self
            .dpu
            .read(&peer, buffer.address(), buffer.length())?
            .to_vec();
        peer.release()?;
        drop(exported);
        mapped.unmap()?;
        Ok(bytes)
    }
}
