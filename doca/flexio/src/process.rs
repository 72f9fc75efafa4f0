//! Processes on the DPA: memory, remote calls, launches, faults.

use crate::app::{App, Function};
use crate::error::{Error, Result, Status};
use crate::launch::Launch;
use crate::memory::Umem;
use crate::object::{Input, Object};
use crate::verbs::{Context, Pd};
use mlx5_prm::Field;
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::dpa::{self, MessageHead, ThreadCounters, modify, object, query, state};
use mlx5dv_sys::{ibv_context, ibv_pd};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that one command copies.
const COPY_BYTES: usize = 256 << 10;
/// Most bytes of an answer.
const ANSWER_BYTES: usize = 16 << 10;

/// Bounds of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Most threads of a launch.
    pub units: u32,
    /// Most threads of the device.
    pub threads: u32,
    /// First address of the heap.
    pub heap: u64,
    /// Bytes of the heap.
    pub heap_bytes: u64,
}

/// What has ended a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Number of the thread.
    pub thread: u32,
    /// Address of the instruction.
    pub pc: u64,
    /// The refused address, or the program counter.
    pub address: u64,
    /// The function, with the distance from its start.
    pub function: String,
    /// File and line of the instruction, if the program has them.
    pub line: Option<(String, u32)>,
    /// The cause.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} at {:#x}", self.thread, self.pc)?;
        if !self.function.is_empty() {
            write!(f, " in {}", self.function)?;
        }
        if let Some((file, line)) = &self.line {
            write!(f, " ({file}:{line})")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// A line of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Number of the thread.
    pub thread: u32,
    /// The stream that the program names.
    pub stream: i32,
    /// The level that the program names.
    pub level: u8,
    /// The text.
    pub text: String,
}

/// A process on the DPA. A copy is the same process, which ends with the last copy and the last object of it.
#[derive(Debug, Clone)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Destroyed first to last.
    memory: Mutex<HashMap<u64, Object>>,
    object: Object,
    id: u32,
    umem: u32,
    limits: Limits,
    staging: Mutex<Umem>,
    messages: Mutex<Vec<Message>>,
    pd: Pd,
    context: Context,
    app: Arc<App>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Starts a process. Without a protection domain it gets its own.
    ///
    /// # Errors
    /// The device has no DPA, or all of its threads are taken.
    ///
    /// # Safety
    /// The context is open, the domain belongs to it or is null, and both stay as long as the process and its objects.
    pub unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        app: &Arc<App>,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::create_limited(context, pd, app, 0) }
    }

    /// As [`create`](Self::create), with a maximal number of instructions of each function; 0 for the device's own.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn create_limited(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        app: &Arc<App>,
        instructions: u64,
    ) -> Result<Self> {
        if context.is_null() {
            return Err(Error::failed("a process needs a context"));
        }
        let context = Context(context);
        // SAFETY: the caller's promise.
        let pd = unsafe { Pd::new(context, pd) }?;
        // SAFETY: the caller's promise.
        let mut image = unsafe { Umem::new(context, app.elf().len()) }?;
        image.bytes_mut()[..app.elf().len()].copy_from_slice(app.elf());
        let input = Input::general(object::PROCESS)
            .with(dpa::IMAGE_UMEM, image.number().into())
            .with(dpa::PD, pd.number.into())
            .with(dpa::IMAGE_BYTES, app.elf().len() as u64)
            .with(dpa::INSTRUCTIONS, instructions);
        // SAFETY: the caller's promise.
        let created = unsafe { Object::create(context, &input, dpa::CREATE_OUT_BYTES) };
        let (object, output) = created.map_err(|error| {
            let text = format!("no process of {} on the DPA: {error}", app.name());
            Error {
                status: error.status,
                ..Error::failed(text)
            }
        })?;
        drop(image);
        // SAFETY: the caller's promise.
        let staging = unsafe { Umem::new(context, COPY_BYTES) }?;
        let word = |field: Field| low(field.get(&output));
        let inner = Inner {
            memory: Mutex::default(),
            id: word(cmd::GENERAL_OBJECT_ID),
            umem: word(dpa::UMEM),
            limits: Limits {
                units: word(dpa::UNITS),
                threads: word(dpa::THREADS),
                heap: dpa::HEAP.get(&output),
                heap_bytes: dpa::HEAP_BYTES.get(&output),
            },
            object,
            staging: Mutex::new(staging),
            messages: Mutex::default(),
            pd,
            context,
            app: Arc::clone(app),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> *mut ibv_context {
        self.inner.context.0
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> *mut ibv_pd {
        self.inner.pd.raw
    }

    /// Number of its protection domain.
    #[must_use]
    pub fn pd_number(&self) -> u32 {
        self.inner.pd.number
    }

    /// The program.
    #[must_use]
    pub fn app(&self) -> &Arc<App> {
        &self.inner.app
    }

    /// Its number on the device.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.id
    }

    /// Its bounds.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// Number of the umem with its heap, for commands that make queues and keys.
    pub(crate) fn umem(&self) -> u32 {
        self.inner.umem
    }

    /// Offset of a heap address in the umem.
    pub(crate) fn offset(&self, address: u64) -> Result<u64> {
        let limits = self.inner.limits;
        address
            .checked_sub(limits.heap)
            .filter(|offset| *offset < limits.heap_bytes)
            .ok_or_else(|| Error::failed(format!("{address:#x} is not in the heap of the DPA")))
    }

    /// Creates an object of the process.
    pub(crate) fn create_object(
        &self,
        input: &Input,
        output_bytes: usize,
    ) -> Result<(Object, Vec<u8>)> {
        // SAFETY: the creator of the process keeps the context open as long as its objects.
        let created = unsafe { Object::create(self.inner.context, input, output_bytes) };
        created.map_err(|error| self.explained(error))
    }

    /// An error with the device's own reason.
    pub(crate) fn explained(&self, error: Error) -> Error {
        let reason = self.ask(&self.question(query::REASON), ANSWER_BYTES);
        let reason = reason
            .ok()
            .and_then(|output| body(&output).map(<[u8]>::to_vec));
        match reason.filter(|reason| !reason.is_empty()) {
            Some(reason) => Error {
                status: error.status,
                ..Error::failed(String::from_utf8_lossy(&reason).into_owned())
            },
            None => error,
        }
    }

    pub(crate) fn question(&self, operation: u16) -> Input {
        Input::new(opcode::QUERY_GENERAL_OBJECT, dpa::BODY_AT)
            .with(cmd::GENERAL_OBJECT_TYPE, object::PROCESS.into())
            .with(cmd::GENERAL_OBJECT_ID, self.inner.id.into())
            .with(dpa::OPERATION, operation.into())
    }

    pub(crate) fn ask(&self, input: &Input, output_bytes: usize) -> Result<Vec<u8>> {
        self.inner.object.query(input, output_bytes)
    }

    pub(crate) fn change(&self, operation: u16) -> Input {
        Input::new(opcode::MODIFY_GENERAL_OBJECT, dpa::BODY_AT)
            .with(cmd::GENERAL_OBJECT_TYPE, object::PROCESS.into())
            .with(cmd::GENERAL_OBJECT_ID, self.inner.id.into())
            .with(dpa::OPERATION, operation.into())
    }

    pub(crate) fn modify(&self, input: &Input) -> Result<()> {
        let done = self.inner.object.modify(input);
        done.map_err(|error| self.explained(error))
    }

    /// Address of a function or variable on the DPA.
    ///
    /// # Errors
    /// The program does not have it.
    pub fn symbol(&self, name: &str) -> Result<u64> {
        self.inner.app.symbol(name)
    }

    /// Allocates memory of the DPA, at a multiple of 64. Its content is undefined.
    ///
    /// # Errors
    /// The heap is full.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        let input = Input::general(object::MEMORY)
            .with(dpa::PROCESS_ID, self.inner.id.into())
            .with(dpa::MEMORY_BYTES, bytes);
        let (object, output) = self.create_object(&input, dpa::CREATE_OUT_BYTES)?;
        let address = dpa::MEMORY_ADDRESS.get(&output);
        locked(&self.inner.memory).insert(address, object);
        Ok(address)
    }

    /// Returns memory of the DPA.
    ///
    /// # Errors
    /// No allocation begins there, or it has been returned already; or the device refuses, and the memory stays allocated.
    pub fn free(&self, address: u64) -> Result<()> {
        let mut memory = locked(&self.inner.memory);
        let Some(object) = memory.get_mut(&address) else {
            let text = format!("no allocation of the DPA begins at {address:#x}");
            return Err(Error::failed(text));
        };
        object.destroy()?;
        memory.remove(&address);
        Ok(())
    }

    /// Copies to memory of the DPA: to one allocation, or to variables of the program.
    ///
    /// # Errors
    /// The range is beyond an allocation; nothing or a first part is copied.
    pub fn copy_in(&self, address: u64, from: &[u8]) -> Result<()> {
        let mut staging = locked(&self.inner.staging);
        for (index, part) in from.chunks(COPY_BYTES).enumerate() {
            staging.bytes_mut()[..part.len()].copy_from_slice(part);
            let at = address.wrapping_add((index * COPY_BYTES) as u64);
            self.copy(modify::COPY_IN, &staging, at, part.len())?;
        }
        Ok(())
    }

    /// Copies from memory of the DPA, as [`copy_in`](Self::copy_in).
    ///
    /// # Errors
    /// As there.
    pub fn copy_out(&self, address: u64, to: &mut [u8]) -> Result<()> {
        let mut staging = locked(&self.inner.staging);
        for (index, part) in to.chunks_mut(COPY_BYTES).enumerate() {
            let at = address.wrapping_add((index * COPY_BYTES) as u64);
            self.copy(modify::COPY_OUT, &staging, at, part.len())?;
            part.copy_from_slice(&staging.bytes_mut()[..part.len()]);
        }
        Ok(())
    }

    fn copy(&self, operation: u16, staging: &Umem, address: u64, bytes: usize) -> Result<()> {
        let input = self
            .change(operation)
            .with(dpa::COPY_UMEM, staging.number().into())
            .with(dpa::COPY_BYTES, bytes as u64)
            .with(dpa::COPY_ADDRESS, address);
        self.modify(&input)
    }

    /// Fills memory of the DPA with a byte.
    ///
    /// # Errors
    /// As [`copy_in`](Self::copy_in).
    pub fn fill(&self, address: u64, byte: u8, bytes: u64) -> Result<()> {
        let input = self
            .change(modify::FILL)
            .with(dpa::BYTE, byte.into())
            .with(dpa::COPY_BYTES, bytes)
            .with(dpa::COPY_ADDRESS, address);
        self.modify(&input)
    }

    /// Arms a completion queue.
    pub(crate) fn arm(&self, cq: u32, consumer: u32) -> Result<()> {
        let input = self
            .change(modify::ARM)
            .with(dpa::ARM_CQ, cq.into())
            .with(dpa::ARM_COUNTER, consumer.into());
        self.modify(&input)
    }

    /// The addresses of a function, and its arguments, in a command.
    fn work(&self, input: Input, function: &Function, arguments: &[u8]) -> Result<Input> {
        let bytes = arguments.len();
        if bytes != function.argument_bytes || bytes > dpa::ARGUMENT_BYTES_MAX {
            return Err(Error::failed(format!(
                "{bytes} bytes of arguments for {}, which has {}; the maximum is {}",
                function.name,
                function.argument_bytes,
                dpa::ARGUMENT_BYTES_MAX
            )));
        }
        Ok(input
            .with(dpa::UNPACK, self.symbol(&function.unpack)?)
            .with(dpa::KERNEL, self.symbol(&function.name)?)
            .with(dpa::ARGUMENT_BYTES, bytes as u64)
            .and(arguments))
    }

    /// Calls a function on the DPA and waits for its result. Calls of a process run one after the other.
    ///
    /// # Errors
    /// The function has a fault, which ends the process.
    pub fn call(&self, function: &Function, arguments: &[u8]) -> Result<u64> {
        let input = self.work(self.question(query::CALL), function, arguments)?;
        let output = self.ask(&input, dpa::BODY_AT);
        let output = output.map_err(|error| self.lined(self.explained(error)))?;
        Ok(dpa::RESULT.get(&output))
    }

    /// The error of a process with a fault names the line.
    fn lined(&self, error: Error) -> Error {
        if error.status != Status::Fatal {
            return error;
        }
        match self.fault() {
            Ok(Some(fault)) => Error::fatal(format!("the process on the DPA has ended: {fault}")),
            _ => error,
        }
    }

    /// Launches a kernel. Returns when the launch is in the queue.
    ///
    /// # Errors
    /// The number of threads is not possible, or the process has ended.
    pub fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let input = self
            .change(modify::LAUNCH)
            .with(dpa::WIDTH, launch.threads.into())
            .filled(|bytes| launch.wait.is_none_or(|wait| wait.put(bytes)))
            .filled(|bytes| launch.done.is_none_or(|done| done.put(bytes)));
        let input = self.work(input, launch.function, launch.arguments)?;
        self.modify(&input).map_err(|error| self.lined(error))
    }

    /// The fault that has ended the process.
    ///
    /// # Errors
    /// The DPA is lost, or a thread has ended the process.
    pub fn fault(&self) -> Result<Option<Fault>> {
        let output = self.ask(&self.question(query::STATUS), ANSWER_BYTES)?;
        match low(dpa::STATE.get(&output)).to_le_bytes()[0] {
            state::ALIVE => return Ok(None),
            state::FINISHED => {
                return Err(Error::fatal("a thread has ended the process on the DPA"));
            }
            _ => {}
        }
        let text = String::from_utf8_lossy(body(&output).unwrap_or_default()).into_owned();
        let (function, text) = text.split_once('\0').unwrap_or(("", &text));
        let pc = dpa::FAULT_PC.get(&output);
        Ok(Some(Fault {
            thread: low(dpa::FAULT_THREAD.get(&output)),
            pc,
            address: dpa::FAULT_ADDRESS.get(&output),
            function: function.to_owned(),
            line: self.inner.app.line(pc),
            text: text.to_owned(),
        }))
    }

    /// Takes the messages of a stream, or of all streams.
    ///
    /// # Errors
    /// The DPA is lost.
    pub fn messages(&self, stream: Option<i32>) -> Result<Vec<Message>> {
        let mut waiting = locked(&self.inner.messages);
        loop {
            let output = self.ask(&self.question(query::MESSAGES), ANSWER_BYTES)?;
            let mut rest = body(&output).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            while let Some((head, text, behind)) = MessageHead::split(rest) {
                waiting.push(Message {
                    thread: head.thread,
                    stream: head.stream,
                    level: head.level,
                    text: String::from_utf8_lossy(text).into_owned(),
                });
                rest = behind;
            }
        }
        let is_wanted = |message: &Message| stream.is_none_or(|stream| message.stream == stream);
        let all = std::mem::take(&mut *waiting);
        let (wanted, others) = all.into_iter().partition(is_wanted);
        *waiting = others;
        Ok(wanted)
    }

    /// Writes registers and memory as an ELF core file, for debuggers. Memory behind windows is left out.
    ///
    /// # Errors
    /// The DPA is lost, or the file cannot be written.
    pub fn write_core(&self, to: &mut impl std::io::Write) -> Result<()> {
        let mut offset = 0;
        loop {
            let input = self.question(query::CORE).with(dpa::QUERY_OFFSET, offset);
            let output = self.ask(&input, ANSWER_BYTES)?;
            let part = body(&output).unwrap_or_default();
            if part.is_empty() {
                return Ok(());
            }
            to.write_all(part)
                .map_err(|error| Error::failed(format!("the core file: {error}")))?;
            offset += part.len() as u64;
        }
    }

    /// Counters of its threads.
    ///
    /// # Errors
    /// The DPA is lost.
    pub fn counters(&self) -> Result<Vec<ThreadCounters>> {
        let output = self.ask(&self.question(query::COUNTERS), ANSWER_BYTES)?;
        let body = body(&output).unwrap_or_default();
        let records = body.as_chunks::<{ ThreadCounters::BYTES }>().0.iter();
        let counters = records.map(ThreadCounters::parse);
        counters
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::failed(error.to_string()))
    }
}

/// The lower half of a word.
pub(crate) fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The bytes of an answer.
pub(crate) fn body(output: &[u8]) -> Option<&[u8]> {
    let bytes = low(dpa::BODY_BYTES.get(output)) as usize;
    output.get(dpa::BODY_AT..)?.get(..bytes)
}
