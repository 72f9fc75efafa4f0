//! The process on one function: UCX contexts, numbered memory, and requests on the standard input.
//! Answers begin with `> `, which distinguishes them from UCX's log.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::io::{self, BufRead as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::ptr::null_mut;

use ucx_sys::{Ucp, ucp_mem_h};

use crate::context::{Context, Loopback};
use crate::library;
use crate::memory::Pages;
use crate::{say, steps, stress};

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
    // SAFETY: a null stream means all streams.
    unsafe { libc::fflush(null_mut()) };
    answer(Ok(String::new()));
    // Some packagings of UCX crash in their own destructors.
    // SAFETY: nothing of this process is needed any more.
    unsafe { libc::_exit(0) }
}

/// Numbered memory.
struct Memory {
    /// The context of its mapping.
    context: usize,
    memh: ucp_mem_h,
    /// Its address, in this process or in the exporter's.
    address: *mut c_void,
    bytes: usize,
    /// Kept while the memory belongs to this process.
    pages: Option<Pages>,
}

struct Agent {
    ucp: &'static Ucp,
    contexts: HashMap<usize, Context>,
    current: usize,
    memory: HashMap<u32, Memory>,
    /// A connection per context, created at its first use.
    loopbacks: HashMap<usize, Loopback>,
    /// Local memory at the addresses of imported memory in its exporter.
    decoys: Vec<Pages>,
    loaded: *mut c_void,
    libucp: Option<PathBuf>,
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
            loopbacks: HashMap::new(),
            decoys: Vec::new(),
            loaded: null_mut(),
            libucp,
        };
        agent.context(0, false)?;
        Ok(agent)
    }

    fn act<'a>(&mut self, request: &str, words: &mut Words<'a>) -> Answer {
        match request {
            "map" => self.map(words),
            "part" => self.part(words),
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
            "see" => self.see(words),
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
            "add" => {
                let id = seed_of(number(words)?)?;
                self.add(id, number(words)?)
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
                self.context(id, false)
            }
            "atomic" => {
                let id = size(words)?;
                self.context(id, true)
            }
            "copy" => {
                let file = PathBuf::from(words.next().ok_or("no file")?);
                self.ucp = Ucp::load(Some(&file)).map_err(|error| error.to_string())?;
                Ok(self.ucp.version().to_owned())
            }
            "close" => self.close(),
            "weight" => library::weight(),
            "steps" => steps::run(self.open_context()?, size(words)?),
            "stress" => stress::run(self.ucp, number(words)?),
            "stats" => {
                let numbers = library::numbers()?;
                let words: Vec<_> = numbers.iter().map(u64::to_string).collect();
                Ok(words.join(" "))
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
                // SAFETY: the handle comes from dlopen. The case tests whether code of the library
                // may still be in use.
                unsafe { libc::dlclose(self.loaded) };
                Ok(String::new())
            }
            _ => Err("what?".to_owned()),
        }
    }

    /// Maps memory of the agent's own, fills it and registers it.
    fn map(&mut self, words: &mut Words<'_>) -> Answer {
        let (id, bytes, seed) = (number(words)?, number(words)?, number(words)?);
        let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
        let at = std::ptr::without_provenance_mut(size(words).unwrap_or_default());
        let mut pages = Pages::map_at(at, bytes).map_err(|error| error.to_string())?;
        pages.fill(seed_of(seed)?);
        let memh = self.open_context()?.register(pages.address(), bytes)?;
        let address = pages.address();
        self.keep(seed_of(id)?, memh, address, bytes, Some(pages));
        Ok(String::new())
    }

    /// Registers a part of mapped memory.
    fn part(&mut self, words: &mut Words<'_>) -> Answer {
        let (id, whole) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
        let (offset, bytes) = (size(words)?, size(words)?);
        let address = self.named(whole)?.address.wrapping_byte_add(offset);
        let memh = self.open_context()?.register(address, bytes)?;
        self.keep(id, memh, address, bytes, None);
        Ok(String::new())
    }

    /// Compares the agent's own memory with a pattern.
    fn see(&mut self, words: &mut Words<'_>) -> Answer {
        let (id, seed) = (seed_of(number(words)?)?, seed_of(number(words)?)?);
        let memory = self.memory.get_mut(&id).ok_or("no such memory")?;
        let pages = memory.pages.as_mut().ok_or("not own memory")?;
        pages.check(seed)?;
        Ok(format!("{} bytes", memory.bytes))
    }

    /// Closes the current context.
    fn close(&mut self) -> Answer {
        if let Some(loopback) = self.loopbacks.remove(&self.current) {
            loopback.close();
        }
        let context = self.contexts.remove(&self.current).ok_or("no context")?;
        context.close();
        Ok(String::new())
    }

    /// Selects the context with this number and creates it if necessary, for atomics or not.
    fn context(&mut self, id: usize, atomics: bool) -> Answer {
        self.current = id;
        if self.contexts.contains_key(&id) {
            return Ok(String::new());
        }
        let context = match atomics {
            false => Context::open(self.ucp, false)?,
            true => Context::open_for_atomics(self.ucp)?,
        };
        self.contexts.insert(id, context);
        Ok(String::new())
    }

    fn export(&self, id: u32) -> Answer {
        let memory = self.named(id)?;
        let key = self.context_of(memory)?.export(memory.memh)?;
        let (address, bytes) = (memory.address.addr(), memory.bytes);
        Ok(format!("{} {address} {bytes}", to_hex(&key)))
    }

    fn import<'a>(&mut self, id: u32, words: &mut Words<'a>) -> Answer {
        let key = from_hex(words.next().ok_or("no key")?)?;
        let (address, bytes) = (size(words)?, size(words)?);
        let memh = self.open_context()?.import(&key)?;
        let address = std::ptr::without_provenance_mut(address);
        if let Some(before) = self.memory.remove(&id) {
            // A new import of the same memory replaces the older handle.
            self.release(&before)?;
        }
        self.keep(id, memh, address, bytes, None);
        Ok(String::new())
    }

    fn pull(&mut self, id: u32, seed: u32) -> Answer {
        let (memh, address, bytes) = {
            let memory = self.named(id)?;
            (memory.memh, memory.address, memory.bytes)
        };
        self.loopback()?.pull(memh, address, bytes, seed)?;
        Ok(format!("{bytes} bytes"))
    }

    /// Maps local memory at the address of imported memory in its exporter, so a copy by the CPU
    /// does not kill the process.
    fn decoy(&mut self, id: u32, seed: u32) -> Answer {
        let memory = self.named(id)?;
        let pages = Pages::map_at(memory.address, memory.bytes);
        let mut pages = pages.map_err(|error| error.to_string())?;
        pages.fill(seed);
        self.decoys.push(pages);
        Ok(String::new())
    }

    fn push(&mut self, id: u32, seed: u32) -> Answer {
        let (memh, address, bytes) = {
            let memory = self.named(id)?;
            (memory.memh, memory.address, memory.bytes)
        };
        self.loopback()?.push(memh, address, bytes, seed)?;
        Ok(String::new())
    }

    fn pack_rkey(&self, id: u32) -> Answer {
        let memory = self.named(id)?;
        self.open_context()?.pack_rkey(memory.memh, |_rkey| ())?;
        Ok(String::new())
    }

    /// Adds to words of the agent's own memory, by the adapter, and compares them.
    fn add(&mut self, id: u32, times: u64) -> Answer {
        let (memh, address) = {
            let memory = self.named(id)?;
            memory.pages.as_ref().ok_or("not own memory")?;
            (memory.memh, memory.address)
        };
        self.loopback()?.add(memh, address.cast(), times)?;
        Ok(String::new())
    }

    fn unmap(&mut self, id: u32) -> Answer {
        let memory = self.memory.get_mut(&id).ok_or("no such memory")?;
        let memh = std::mem::replace(&mut memory.memh, null_mut());
        let context = *self.contexts.get(&memory.context).ok_or("no context")?;
        context.unmap(memh)?;
        Ok(String::new())
    }

    fn release(&self, memory: &Memory) -> Answer {
        if !memory.memh.is_null() {
            self.context_of(memory)?.unmap(memory.memh)?;
        }
        Ok(String::new())
    }

    fn load(&mut self, file: &str) -> Answer {
        let name = CString::new(file).map_err(|error| error.to_string())?;
        // SAFETY: the file is the library under test, whose constructor has no preconditions.
        self.loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if self.loaded.is_null() {
            Err(format!("cannot open {file}"))
        } else {
            Ok(String::new())
        }
    }

    fn loopback(&mut self) -> Result<&Loopback, String> {
        if !self.loopbacks.contains_key(&self.current) {
            let loopback = self.open_context()?.connect()?;
            self.loopbacks.insert(self.current, loopback);
        }
        let loopback = self.loopbacks.get(&self.current);
        loopback.ok_or_else(|| "no connection".to_owned())
    }

    fn close_all(&mut self) {
        for (_id, loopback) in self.loopbacks.drain() {
            loopback.close();
        }
        for (_id, memory) in std::mem::take(&mut self.memory) {
            // The end of the context releases memory that cannot be unmapped.
            let _released = self.release(&memory);
        }
        for (_id, context) in self.contexts.drain() {
            context.close();
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

    fn context_of(&self, memory: &Memory) -> Result<Context, String> {
        let context = self.contexts.get(&memory.context).copied();
        context.ok_or_else(|| "no context".to_owned())
    }

    fn open_context(&self) -> Result<Context, String> {
        let context = self.contexts.get(&self.current).copied();
        context.ok_or_else(|| "no context".to_owned())
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
