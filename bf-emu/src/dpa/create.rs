//! Creation of objects.

use std::collections::VecDeque;
use std::sync::Arc;

use dpa_os::{Limits, Os, OsError, THREADS_MAX};
use mlx5_prm::cmd::{self, status};
use mlx5_prm::dpa::{self, Affinity, ThreadAttr, object};
use rv64::{Config, Program};

use super::command::{Command, Refused, Result, get, get16, gone, no_thread, refused};
use super::device::Device;
use super::order;
use super::queues;
use super::tables::{Dpa, Runner, What};
use super::worker::{Pipe, Worker};
use crate::engine::tick;
use crate::fabric::numbers::{number_of, slot_of_number};
use crate::fabric::objects::{Channel, ChannelKind, Subscription, Umem};
use crate::fabric::table::Owner;
use crate::memory::Space;
use crate::process::dpa::wire::option;

/// Execution units: 16 cores with 16 each, without the two that the DPA's own operating system keeps.
const UNITS: u16 = 254;
/// Most instructions of a function for each second of its limit, without a limit of the caller.
const INSTRUCTIONS: u64 = 20_000_000_000 / option::LIMIT_SECONDS as u64;
/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;
/// Most bytes of a program's file.
const IMAGE_BYTES_MAX: u64 = 64 << 20;
/// Most outboxes and windows: device code has 16 bits for each number.
const CONFIGURED_MAX: u32 = 0xffff;

pub(super) fn create(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    match get16(command.input, cmd::GENERAL_OBJECT_TYPE) {
        object::PROCESS => process(command),
        object::MEMORY => memory(command),
        object::THREAD => thread(command),
        object::OUTBOX | object::WINDOW => configured(command),
        object::EVENT_QUEUE => queues::events(command),
        object::COMMAND_QUEUE => queues::commands(command),
        object::TELEMETRY => {
            let card = command.runner.process.fabric().card(command.function);
            let id = command.add(What::Telemetry { card })?;
            let fields = [(cmd::GENERAL_OBJECT_ID, u64::from(id))];
            Ok((id, command.output(dpa::CREATE_OUT_BYTES, &fields, &[])))
        }
        kind => refused(status::BAD_PARAM, format!("no object of type {kind:#x}")),
    }
}

impl Runner {
    /// A number for a new thread of a process, if the card has one left.
    pub(super) fn reserve_thread(&self, card: u64, process: u32) -> Option<u32> {
        let mut tables = self.tables();
        let used = tables.threads.values().filter(|(of, _)| *of == card);
        if used.count() >= THREADS_MAX as usize {
            return None;
        }
        let number = tables.number()?;
        tables.threads.insert(number, (card, process));
        Some(number)
    }
}

/// The program of a new process.
fn image(command: &Command<'_>) -> Result<(Program, Vec<u8>)> {
    let input = command.input;
    let bytes = dpa::IMAGE_BYTES.get(input);
    if bytes == 0 || bytes > IMAGE_BYTES_MAX {
        let text = format!("a program of {bytes} bytes; allowed are 1 to {IMAGE_BYTES_MAX}");
        return refused(status::BAD_PARAM, text);
    }
    let umem = get(input, dpa::IMAGE_UMEM);
    let address = command.in_umem(umem, dpa::IMAGE_OFFSET.get(input), bytes)?;
    let mut file = vec![0; usize::try_from(bytes).unwrap_or_default()];
    if Space::of(command.pid).read(address, &mut file).is_err() {
        return refused(status::BAD_PARAM, "the umem of the program is not readable");
    }
    let program = Program::parse(&file)
        .map_err(|error| Refused(status::BAD_PARAM, format!("the program: {error}")))?;
    Ok((program, file))
}

fn process(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    let (program, file) = image(command)?;
    let runner = command.runner;
    let fabric = runner.process.fabric();
    let context = command.session.1;
    let pd = slot_of_number(get(command.input, dpa::PD));
    let is_pd = |slot: u32| {
        let locked = fabric.lock();
        let pds = &locked.peek(command.function).pds;
        pds.owned(slot, context).is_some()
    };
    let Some(pd) = pd.filter(|slot| is_pd(*slot)) else {
        return refused(status::BAD_RESOURCE, "no such protection domain");
    };
    let card = fabric
        .identity(command.function)
        .map_or(0, |identity| identity.sys_image_guid);
    // The number of the process is not known yet.
    let Some(caller) = runner.reserve_thread(card, 0) else {
        return no_thread();
    };
    let made = start(command, (program, file), (pd, caller, card));
    let (dpa, heap) = match made {
        Ok(made) => made,
        Err(error) => {
            runner.tables().threads.remove(&caller);
            return Err(error);
        }
    };
    let umem = dpa.umem;
    let id = command.add(What::Process(Arc::new(dpa)))?;
    runner.tables().threads.insert(caller, (card, id));
    let fields = [
        (cmd::GENERAL_OBJECT_ID, u64::from(id)),
        (dpa::UMEM, u64::from(number_of(umem))),
        (dpa::HEAP, heap.0),
        (dpa::HEAP_BYTES, heap.1),
        (dpa::THREADS, u64::from(THREADS_MAX)),
        (dpa::UNITS, u64::from(UNITS)),
    ];
    Ok((id, command.output(dpa::CREATE_OUT_BYTES, &fields, &[])))
}

/// Starts a process with its umem and its channel. Returns the place of its heap too.
fn start(
    command: &Command<'_>,
    (program, image): (Program, Vec<u8>),
    (pd, caller, card): (u32, u32, u64),
) -> Result<(Dpa, (u64, u64))> {
    let runner = command.runner;
    let fabric = runner.process.fabric();
    let config = Config::default();
    let seconds = u64::from(option::limit(command.options));
    let most = seconds * INSTRUCTIONS;
    let instructions = match dpa::INSTRUCTIONS.get(command.input) {
        0 => most,
        own => own.min(most),
    };
    let limits = Limits {
        instructions,
        wait_ns: seconds * SECOND_NS,
    };
    let mut os = Os::new(program, &config, limits, caller)?;
    if command.options & option::HOLD != 0 {
        os.hold();
    }
    if command.options & option::WEAK != 0 {
        os.check_order(&config);
    }
    let (place, heap, bytes) = os.heap(&config);
    let pipe =
        Pipe::new().map_err(|errno| Refused(status::NO_RESOURCES, format!("a pipe: {errno:?}")))?;
    let owner = Owner {
        process: runner.number,
        context: command.session.1,
    };
    let umem = Umem {
        address: place as u64,
        length: bytes,
        device_page: 0,
        of_dpa: true,
        ..Umem::default()
    };
    let channel = Channel {
        read_fd: pipe.read_fd,
        write_fd: pipe.write_fd,
        kind: ChannelKind::Completion,
        omit_data: false,
        device: Subscription::default(),
    };
    // Queues in this memory belong to the runner.
    tick::uses(command.function);
    let mut locked = fabric.lock();
    let function = locked.function(command.function);
    let umem = function.umems.insert(owner, umem);
    let channel = function.channels.insert(owner, channel);
    let (Some(umem), Some(channel)) = (umem, channel) else {
        umem.and_then(|slot| function.umems.remove(slot));
        channel.and_then(|slot| function.channels.remove(slot));
        return refused(status::LIMITS_EXCEEDED, "all umems or channels are taken");
    };
    drop(locked);
    let device = Device {
        fabric,
        function: command.function,
        context: command.session.1,
        runner: runner.number,
        pd,
        messages: VecDeque::new(),
        accesses: 0,
        doorbells: 0,
    };
    let image = Arc::new(image);
    let core = (command.options & option::CORE != 0).then_some(command.pid);
    let order = order::Log {
        state: runner.socket.with_file_name(order::FILE),
        image: std::sync::Arc::clone(&image),
        pid: command.pid,
    };
    let worker = Worker::start(pipe, os, device, core, order);
    let worker = match worker {
        Ok(worker) => worker,
        Err(error) => {
            let mut locked = fabric.lock();
            let function = locked.function(command.function);
            function.umems.remove(umem);
            function.channels.remove(channel);
            return refused(status::NO_RESOURCES, format!("a thread: {error}"));
        }
    };
    let dpa = Dpa {
        worker,
        function: command.function,
        card,
        umem,
        channel,
        place: (place as u64, bytes),
        pid: command.pid,
        image,
    };
    Ok((dpa, (heap, bytes)))
}

fn memory(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    let process = get(command.input, dpa::PROCESS_ID);
    let bytes = dpa::MEMORY_BYTES.get(command.input);
    let dpa = command.process(process)?;
    let allocated = dpa.worker.ask(move |state| state.os.allocate(bytes));
    let address = allocated.ok_or_else(gone)??;
    let id = command.add(What::Memory { process, address });
    if id.is_err() {
        dpa.worker.ask(move |state| state.os.free(address));
    }
    let id = id?;
    let fields = [
        (cmd::GENERAL_OBJECT_ID, u64::from(id)),
        (dpa::MEMORY_ADDRESS, address),
    ];
    Ok((id, command.output(dpa::CREATE_OUT_BYTES, &fields, &[])))
}

/// The attributes of a thread in a command.
pub(super) fn attributes(input: &[u8]) -> Result<ThreadAttr> {
    let attr = ThreadAttr::parse(input)?;
    match attr.affinity {
        Affinity::Unit(id) if id >= UNITS => {
            let last = UNITS - 1;
            let text = format!("execution unit {id}: a process may use 0 to {last}");
            refused(status::BAD_PARAM, text)
        }
        // No group of execution units exists on this device.
        Affinity::Group(id) => refused(
            status::BAD_PARAM,
            format!("no group {id} of execution units"),
        ),
        _ => Ok(attr),
    }
}

fn thread(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    let process = get(command.input, dpa::PROCESS_ID);
    let attributes = attributes(command.input)?;
    let dpa = command.process(process)?;
    let Some(number) = command.runner.reserve_thread(dpa.card, process) else {
        return no_thread();
    };
    let created = dpa
        .worker
        .ask(move |state| state.os.create_thread(number, attributes));
    let created = created.ok_or_else(gone).and_then(|made| Ok(made?));
    let mut tables = command.runner.tables();
    if let Err(error) = created {
        tables.threads.remove(&number);
        return Err(error);
    }
    let what = What::Thread { process };
    let session = command.session;
    let object = super::tables::Object { session, what };
    tables.objects.insert(number, object);
    let fields = [(cmd::GENERAL_OBJECT_ID, u64::from(number))];
    let output = command.output(dpa::CREATE_OUT_BYTES, &fields, &[]);
    Ok((number, output))
}

/// An outbox or a window, with a number for device code.
fn configured(command: &Command<'_>) -> Result<(u32, Vec<u8>)> {
    let process = get(command.input, dpa::PROCESS_ID);
    let dpa = command.process(process)?;
    let mut tables = command.runner.tables();
    tables.configured = tables.configured % CONFIGURED_MAX + 1;
    let id = tables.configured;
    drop(tables);
    let is_outbox = get16(command.input, cmd::GENERAL_OBJECT_TYPE) == object::OUTBOX;
    let uar = get(command.input, dpa::UAR);
    let added = dpa
        .worker
        .ask(move |state| -> std::result::Result<(), OsError> {
            if is_outbox {
                state.os.add_outbox(id, uar)
            } else {
                state.os.add_window(id)
            }
        });
    added.ok_or_else(gone)??;
    let what = if is_outbox {
        What::Outbox { process, id }
    } else {
        What::Window { process, id }
    };
    let object = command.add(what)?;
    let fields = [
        (cmd::GENERAL_OBJECT_ID, u64::from(object)),
        (dpa::CONFIG_ID, u64::from(id)),
    ];
    let output = command.output(dpa::CREATE_OUT_BYTES, &fields, &[]);
    Ok((object, output))
}
