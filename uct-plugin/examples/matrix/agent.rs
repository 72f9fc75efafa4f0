//! The process on one function: a UCX context, memory with numbers for names, and requests on the
//! standard input. Answers begin with `> `, so that they are told from what UCX logs.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::io::{self, BufRead as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use ucx_sys::{
    UCP_EP_CLOSE_FLAG_FORCE, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_ERR_HANDLING_MODE_PEER, UCP_FEATURE_EXPORTED_MEMH,
    UCP_FEATURE_RMA, UCP_MEM_MAP_PARAM_FIELD_ADDRESS, UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER,
    UCP_MEM_MAP_PARAM_FIELD_LENGTH, UCP_MEMH_PACK_FLAG_EXPORT, UCP_MEMH_PACK_PARAM_FIELD_FLAGS,
    UCP_OP_ATTR_FIELD_FLAGS, UCP_OP_ATTR_FIELD_MEMH, UCP_OP_ATTR_FIELD_MEMORY_TYPE,
    UCP_PARAM_FIELD_FEATURES, UCP_WORKER_ATTR_FIELD_ADDRESS, UCS_INPROGRESS, UCS_MEMORY_TYPE_HOST,
    UCS_OK, Ucp, ucp_context_h, ucp_ep_h, ucp_ep_params_t, ucp_mem_h, ucp_mem_map_params_t,
    ucp_memh_buffer_release_params_t, ucp_memh_pack_params_t, ucp_params_t, ucp_request_param_t,
    ucp_rkey_h, ucp_worker_attr_t, ucp_worker_h, ucs_ptr_is_ptr, ucs_ptr_status, ucs_status_t,
};

use crate::library;
use crate::memory::Pages;
use crate::say;

/// The API of the oldest UCX that is tried; newer ones have it as well.
const API: (u32, u32) = (1, 18);

pub(crate) fn main(libucp: Option<PathBuf>) -> ExitCode {
    let answer = |answer: Result<String, String>| match answer {
        Ok(words) => say(&mut io::stdout(), &format!("> ok {words}")),
        Err(error) => say(&mut io::stdout(), &format!("> error {error}")),
    };
    let mut agent = match Agent::start(libucp) {
        Ok(agent) => {
            answer(Ok(String::new()));
            agent
        }
        Err(error) => {
            answer(Err(error));
            return ExitCode::FAILURE;
        }
    };
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split_whitespace();
        let request = words.next().unwrap_or_default();
        if request == "quit" {
            break;
        }
        answer(agent.act(request, &mut words));
    }
    agent.close_all();
    // UCX writes its log through the C library's buffers.
    // SAFETY: a null stream stands for all of them.
    unsafe { libc::fflush(null_mut()) };
    answer(Ok(String::new()));
    // Some packagings of UCX do not survive their own destructors.
    // SAFETY: nothing of this process is needed any more.
    unsafe { libc::_exit(0) }
}

/// Memory with a name.
struct Memory {
    /// The context it is mapped in.
    context: usize,
    memh: ucp_mem_h,
    /// Where it is, in this process or in the exporter's.
    address: *mut c_void,
    bytes: usize,
    /// Kept as long as the memory is this process's own.
    pages: Option<Pages>,
}

struct Agent {
    ucp: &'static Ucp,
    contexts: HashMap<usize, ucp_context_h>,
    current: usize,
    memory: HashMap<u32, Memory>,
    loopback: Option<Loopback>,
    /// Own memory where imported memory is in its exporter.
    decoys: Vec<Pages>,
    loaded: *mut c_void,
    libucp: Option<PathBuf>,
}

/// A connection to oneself.
struct Loopback {
    worker: ucp_worker_h,
    endpoint: ucp_ep_h,
}

type Words<'a> = dyn Iterator<Item = &'a str> + 'a;
type Answer = Result<String, String>;

impl Agent {
    fn start(libucp: Option<PathBuf>) -> Result<Self, String> {
        let ucp = Ucp::load(libucp.as_deref()).map_err(|error| error.to_string())?;
        let mut agent = Self {
            ucp,
            contexts: HashMap::new(),
            current: 0,
            memory: HashMap::new(),
            loopback: None,
            decoys: Vec::new(),
            loaded: null_mut(),
            libucp,
        };
        agent.context(0)?;
        Ok(agent)
    }

    fn act<'a>(&mut self, request: &str, words: &mut Words<'a>) -> Answer {
        match request {
            "map" => {
                let (id, bytes, seed) = (number(words)?, number(words)?, number(words)?);
                let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
                let at = std::ptr::without_provenance_mut(size(words).unwrap_or_default());
                let mut pages = Pages::map_at(at, bytes).map_err(|error| error.to_string())?;
                pages.fill(seed_of(seed)?);
                let memh = self.register(pages.address(), bytes)?;
                let address = pages.address();
                self.keep(seed_of(id)?, memh, address, bytes, Some(pages));
                Ok(String::new())
            }
            "part" => {
                let (id, whole) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
                let (offset, bytes) = (size(words)?, size(words)?);
                let address = self.named(whole)?.address.wrapping_byte_add(offset);
                let memh = self.register(address, bytes)?;
                self.keep(id, memh, address, bytes, None);
                Ok(String::new())
            }
            "fill" => {
                let (id, seed) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
                let memory = self.memory.get_mut(&id).ok_or("no such memory")?;
                memory.pages.as_mut().ok_or("not own memory")?.fill(seed);
                Ok(String::new())
            }
            "decoy" => {
                let (id, seed) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
                self.decoy(id, seed)
            }
            "push" => {
                let (id, seed) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
                self.push(id, seed)
            }
            "see" => {
                let (id, seed) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
                let memory = self.memory.get_mut(&id).ok_or("no such memory")?;
                let pages = memory.pages.as_mut().ok_or("not own memory")?;
                verdict(pages, seed, memory.bytes)
            }
            "export" => {
                let id = seed_of(number(words)?)?;
                self.export(id)
            }
            "import" => {
                let id = seed_of(number(words)?)?;
                self.import(id, words)
            }
            "pull" => {
                let (id, seed) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
                self.pull(id, seed)
            }
            "rkey" => {
                let id = seed_of(number(words)?)?;
                self.pack_rkey(id)
            }
            "unmap" => {
                let id = seed_of(number(words)?)?;
                self.unmap(id)
            }
            "free" => {
                let id = seed_of(number(words)?)?;
                self.memory
                    .remove(&id)
                    .map(|_| String::new())
                    .ok_or("no such memory".to_owned())
            }
            "where" => {
                let memory = self.named(seed_of(number(words)?)?)?;
                Ok(format!("- {} {}", memory.address.addr(), memory.bytes))
            }
            "pid" => Ok(std::process::id().to_string()),
            "context" => {
                let id = size(words)?;
                self.context(id)
            }
            "close" => {
                let context = self.contexts.remove(&self.current).ok_or("no context")?;
                // SAFETY: the context is open, and its memory is unmapped.
                unsafe { self.ucp.ucp_cleanup(context) };
                Ok(String::new())
            }
            "announce" => library::announce().map(|message| to_hex(&message)),
            "accept" => {
                let message = from_hex(words.next().ok_or("no message")?)?;
                library::accept(&message).map(|ready| ready.to_string())
            }
            "file" => {
                let name = words.next().ok_or("no name")?;
                library::file(self.libucp.as_deref(), name)
            }
            "load" => self.load(words.next().ok_or("no file")?),
            "unload" => {
                // SAFETY: the handle comes from dlopen. That code of it may still be in use is
                // the very question.
                unsafe { libc::dlclose(self.loaded) };
                Ok(String::new())
            }
            _ => Err("what?".to_owned()),
        }
    }

    /// Makes a context, if there is none of this number, and uses it from now on.
    fn context(&mut self, id: usize) -> Answer {
        self.current = id;
        if self.contexts.contains_key(&id) {
            return Ok(String::new());
        }
        let params = ucp_params_t {
            field_mask: UCP_PARAM_FIELD_FEATURES.into(),
            features: (UCP_FEATURE_RMA | UCP_FEATURE_EXPORTED_MEMH).into(),
            ..Default::default()
        };
        let mut context = null_mut();
        // SAFETY: the parameters name their fields; without a configuration, UCX reads its own.
        let status = unsafe {
            self.ucp
                .ucp_init_version(API.0, API.1, &raw const params, null(), &raw mut context)
        };
        self.check("ucp_init", status)?;
        self.contexts.insert(id, context);
        Ok(String::new())
    }

    fn register(&self, address: *mut c_void, length: usize) -> Result<ucp_mem_h, String> {
        self.map(&ucp_mem_map_params_t {
            field_mask: (UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH).into(),
            address,
            length,
            ..Default::default()
        })
    }

    fn map(&self, params: &ucp_mem_map_params_t) -> Result<ucp_mem_h, String> {
        let mut memh = null_mut();
        let context = self.open_context()?;
        // SAFETY: the context is open and the parameters name their fields.
        let status = unsafe { self.ucp.ucp_mem_map(context, params, &raw mut memh) };
        self.check("ucp_mem_map", status)?;
        Ok(memh)
    }

    fn export(&self, id: u32) -> Answer {
        let memory = self.named(id)?;
        let params = ucp_memh_pack_params_t {
            field_mask: UCP_MEMH_PACK_PARAM_FIELD_FLAGS.into(),
            flags: UCP_MEMH_PACK_FLAG_EXPORT.into(),
        };
        let (mut buffer, mut bytes) = (null_mut(), 0);
        // SAFETY: the memory is mapped and the parameters name their fields.
        let status = unsafe {
            self.ucp.ucp_memh_pack(
                memory.memh,
                &raw const params,
                &raw mut buffer,
                &raw mut bytes,
            )
        };
        self.check("ucp_memh_pack", status)?;
        // SAFETY: UCX gave a buffer of that many bytes.
        let key = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes) };
        let mut text = to_hex(key);
        let params = ucp_memh_buffer_release_params_t::default();
        // SAFETY: the buffer is the one that UCX gave.
        unsafe { self.ucp.ucp_memh_buffer_release(buffer, &raw const params) };
        text.push_str(&format!(" {} {}", memory.address.addr(), memory.bytes));
        Ok(text)
    }

    fn import<'a>(&mut self, id: u32, words: &mut Words<'a>) -> Answer {
        let key = from_hex(words.next().ok_or("no key")?)?;
        let (address, bytes) = (size(words)?, size(words)?);
        let memh = self.map(&ucp_mem_map_params_t {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER.into(),
            exported_memh_buffer: key.as_ptr().cast(),
            ..Default::default()
        })?;
        let address = std::ptr::without_provenance_mut(address);
        if let Some(before) = self.memory.remove(&id) {
            // The same memory, imported again: the older handle is not needed any more.
            self.release(&before)?;
        }
        self.keep(id, memh, address, bytes, None);
        Ok(String::new())
    }

    /// Has the adapter move the memory's bytes to memory of this process, and looks at them.
    fn pull(&mut self, id: u32, seed: u32) -> Answer {
        let (memh, address, bytes) = {
            let memory = self.named(id)?;
            (memory.memh, memory.address, memory.bytes)
        };
        let mut pages = Pages::map(bytes).map_err(|error| error.to_string())?;
        pages.spoil(seed);
        let target = self.register(pages.address(), bytes)?;
        let rkey = self.own_rkey(target)?;
        let params = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
            memh,
            memory_type: UCS_MEMORY_TYPE_HOST,
            ..Default::default()
        };
        let (endpoint, ucp) = (self.loopback()?.endpoint, self.ucp);
        let to = pages.address().addr() as u64;
        // SAFETY: the memory handle names the source, which is another process's, so that only the
        // adapter touches it; the target is mapped until the flush is done.
        let put = unsafe { ucp.ucp_put_nbx(endpoint, address, bytes, to, rkey, &raw const params) };
        self.wait("ucp_put_nbx", put)?;
        let params = ucp_request_param_t::default();
        // SAFETY: the endpoint is open.
        let flush = unsafe { ucp.ucp_ep_flush_nbx(endpoint, &raw const params) };
        self.wait("ucp_ep_flush_nbx", flush)?;
        // SAFETY: no operation uses it any more.
        unsafe { ucp.ucp_rkey_destroy(rkey) };
        // SAFETY: as above.
        let status = unsafe { ucp.ucp_mem_unmap(self.open_context()?, target) };
        self.check("ucp_mem_unmap", status)?;
        verdict(&mut pages, seed, bytes)
    }

    /// Maps memory of this process where imported memory is in its exporter, so that a copy by the
    /// CPU does not kill the process.
    fn decoy(&mut self, id: u32, seed: u32) -> Answer {
        let memory = self.named(id)?;
        let pages = Pages::map_at(memory.address, memory.bytes);
        let mut pages = pages.map_err(|error| error.to_string())?;
        pages.fill(seed);
        self.decoys.push(pages);
        Ok(String::new())
    }

    /// Has the adapter move bytes of this process to the memory.
    fn push(&mut self, id: u32, seed: u32) -> Answer {
        let (memh, address, bytes) = {
            let memory = self.named(id)?;
            (memory.memh, memory.address, memory.bytes)
        };
        let mut pages = Pages::map(bytes).map_err(|error| error.to_string())?;
        pages.fill(seed);
        let source = self.register(pages.address(), bytes)?;
        let rkey = self.own_rkey(source)?;
        let params = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
            memh,
            memory_type: UCS_MEMORY_TYPE_HOST,
            ..Default::default()
        };
        let (endpoint, ucp) = (self.loopback()?.endpoint, self.ucp);
        let from = pages.address().addr() as u64;
        // SAFETY: the memory handle names the target, which is another process's, or a decoy; the
        // source is mapped until the request is done.
        let get =
            unsafe { ucp.ucp_get_nbx(endpoint, address, bytes, from, rkey, &raw const params) };
        let got = self.wait("ucp_get_nbx", get);
        // SAFETY: no operation uses it any more.
        unsafe { ucp.ucp_rkey_destroy(rkey) };
        // SAFETY: as above.
        let status = unsafe { ucp.ucp_mem_unmap(self.open_context()?, source) };
        self.check("ucp_mem_unmap", status)?;
        got
    }

    /// An rkey of this process's own memory, as the connection to itself needs it.
    fn own_rkey(&mut self, memh: ucp_mem_h) -> Result<ucp_rkey_h, String> {
        let (mut buffer, mut bytes) = (null_mut(), 0);
        let (context, ucp) = (self.open_context()?, self.ucp);
        let endpoint = self.loopback()?.endpoint;
        // SAFETY: the memory is mapped.
        let status = unsafe { ucp.ucp_rkey_pack(context, memh, &raw mut buffer, &raw mut bytes) };
        self.check("ucp_rkey_pack", status)?;
        let mut rkey = null_mut();
        // SAFETY: the endpoint is open, and the buffer is the one that UCX gave.
        let status = unsafe { ucp.ucp_ep_rkey_unpack(endpoint, buffer, &raw mut rkey) };
        // SAFETY: the buffer is the one that UCX gave.
        unsafe { ucp.ucp_rkey_buffer_release(buffer) };
        self.check("ucp_ep_rkey_unpack", status)?;
        Ok(rkey)
    }

    /// Packs the memory for a remote peer, which is not there.
    fn pack_rkey(&self, id: u32) -> Answer {
        let (mut buffer, mut bytes) = (null_mut(), 0);
        let (context, memory) = (self.open_context()?, self.named(id)?);
        // SAFETY: the memory is mapped.
        let status = unsafe {
            self.ucp
                .ucp_rkey_pack(context, memory.memh, &raw mut buffer, &raw mut bytes)
        };
        self.check("ucp_rkey_pack", status)?;
        // SAFETY: the buffer is the one that UCX gave.
        unsafe { self.ucp.ucp_rkey_buffer_release(buffer) };
        Ok(String::new())
    }

    fn unmap(&mut self, id: u32) -> Answer {
        let memory = self.memory.get_mut(&id).ok_or("no such memory")?;
        let memh = std::mem::replace(&mut memory.memh, null_mut());
        let context = *self.contexts.get(&memory.context).ok_or("no context")?;
        // SAFETY: the memory was mapped there and is not any more.
        let status = unsafe { self.ucp.ucp_mem_unmap(context, memh) };
        self.check("ucp_mem_unmap", status)?;
        Ok(String::new())
    }

    fn release(&self, memory: &Memory) -> Answer {
        if memory.memh.is_null() {
            return Ok(String::new());
        }
        let context = *self.contexts.get(&memory.context).ok_or("no context")?;
        // SAFETY: the memory was mapped there, and is given up here.
        let status = unsafe { self.ucp.ucp_mem_unmap(context, memory.memh) };
        self.check("ucp_mem_unmap", status)?;
        Ok(String::new())
    }

    fn load(&mut self, file: &str) -> Answer {
        let name = CString::new(file).map_err(|error| error.to_string())?;
        // SAFETY: the file is the library under test, whose constructor asks for nothing.
        self.loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if self.loaded.is_null() {
            Err(format!("cannot open {file}"))
        } else {
            Ok(String::new())
        }
    }

    fn loopback(&mut self) -> Result<&Loopback, String> {
        if self.loopback.is_none() {
            let ucp = self.ucp;
            let context = self.open_context()?;
            let mut worker = null_mut();
            let params = ucx_sys::ucp_worker_params_t::default();
            // SAFETY: the context is open.
            let status =
                unsafe { ucp.ucp_worker_create(context, &raw const params, &raw mut worker) };
            self.check("ucp_worker_create", status)?;
            let mut attributes = ucp_worker_attr_t {
                field_mask: UCP_WORKER_ATTR_FIELD_ADDRESS.into(),
                ..Default::default()
            };
            // SAFETY: the worker is there, and the attributes name their fields.
            let status = unsafe { ucp.ucp_worker_query(worker, &raw mut attributes) };
            self.check("ucp_worker_query", status)?;
            let address = attributes.address;
            let fields = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
            let params = ucp_ep_params_t {
                field_mask: fields.into(),
                address,
                err_mode: UCP_ERR_HANDLING_MODE_PEER,
                ..Default::default()
            };
            let mut endpoint = null_mut();
            // SAFETY: the worker is there, and the address is its own.
            let status = unsafe { ucp.ucp_ep_create(worker, &raw const params, &raw mut endpoint) };
            // SAFETY: the address came from the worker.
            unsafe { ucp.ucp_worker_release_address(worker, address) };
            self.check("ucp_ep_create", status)?;
            self.loopback = Some(Loopback { worker, endpoint });
        }
        self.loopback
            .as_ref()
            .ok_or_else(|| "no connection".to_owned())
    }

    fn wait(&self, call: &str, request: *mut c_void) -> Answer {
        let Some(loopback) = &self.loopback else {
            return Err("no connection".to_owned());
        };
        if !ucs_ptr_is_ptr(request) {
            return self.check(call, ucs_ptr_status(request));
        }
        loop {
            // SAFETY: the request is under way.
            let status = unsafe { self.ucp.ucp_request_check_status(request) };
            if status != UCS_INPROGRESS {
                // SAFETY: it is not under way any more.
                unsafe { self.ucp.ucp_request_free(request) };
                return self.check(call, status);
            }
            // SAFETY: the worker is there, and only this thread uses it.
            unsafe { self.ucp.ucp_worker_progress(loopback.worker) };
        }
    }

    fn close_all(&mut self) {
        if let Some(Loopback { worker, endpoint }) = self.loopback.take() {
            let params = ucp_request_param_t {
                op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
                flags: UCP_EP_CLOSE_FLAG_FORCE,
                ..Default::default()
            };
            // SAFETY: nothing uses the endpoint any more.
            let close = unsafe { self.ucp.ucp_ep_close_nbx(endpoint, &raw const params) };
            self.loopback = Some(Loopback { worker, endpoint });
            // A connection to oneself that does not close is of no interest here.
            let _closed = self.wait("ucp_ep_close_nbx", close);
            self.loopback = None;
            // SAFETY: its only endpoint is closed.
            unsafe { self.ucp.ucp_worker_destroy(worker) };
        }
        for (_id, memory) in std::mem::take(&mut self.memory) {
            // What cannot be unmapped, the context's end takes along.
            let _released = self.release(&memory);
        }
        for (_id, context) in self.contexts.drain() {
            // SAFETY: the context is open, and its worker and its memory are gone.
            unsafe { self.ucp.ucp_cleanup(context) };
        }
    }

    fn keep(
        &mut self,
        id: u32,
        memh: ucp_mem_h,
        address: *mut c_void,
        bytes: usize,
        pages: Option<Pages>,
    ) {
        let context = self.current;
        self.memory.insert(
            id,
            Memory {
                context,
                memh,
                address,
                bytes,
                pages,
            },
        );
    }

    fn named(&self, id: u32) -> Result<&Memory, String> {
        self.memory
            .get(&id)
            .ok_or_else(|| format!("no memory {id}"))
    }

    fn open_context(&self) -> Result<ucp_context_h, String> {
        self.contexts
            .get(&self.current)
            .copied()
            .ok_or_else(|| "no context".to_owned())
    }

    fn check(&self, call: &str, status: ucs_status_t) -> Answer {
        if status == UCS_OK {
            Ok(String::new())
        } else {
            Err(format!("{call}: {}", self.ucp.status_string(status)))
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let bytes: Option<Vec<u8>> = (0..text.len() / 2)
        .map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok())
        .collect();
    bytes.ok_or_else(|| "bytes that are none".to_owned())
}

/// Whether the pages have the pattern, in words.
fn verdict(pages: &mut Pages, seed: u32, bytes: usize) -> Answer {
    match pages.mismatches(seed) {
        0 => Ok(format!("{bytes} bytes")),
        wrong => Err(format!("{wrong} of {bytes} bytes are wrong")),
    }
}

fn number<'a>(words: &mut Words<'a>) -> Result<u64, String> {
    let word = words.next().ok_or("a number is missing")?;
    word.parse().map_err(|error| format!("{word}: {error}"))
}

fn size<'a>(words: &mut Words<'a>) -> Result<usize, String> {
    usize::try_from(number(words)?).map_err(|error| error.to_string())
}

fn seed_of(number: u64) -> Result<u32, String> {
    u32::try_from(number).map_err(|error| error.to_string())
}
