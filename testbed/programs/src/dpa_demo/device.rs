//! The DPA of a process: its program, queues of kernels, and words that the Arm cores see.

use super::clock;
use super::link::End;
use anyhow::{Context as _, Result, bail, ensure};
use flexio::{
    App, Cq, CqAttr, CqTarget, Function, Launch, Outbox, Process, Qp, QpAttr, Receive, Remote,
    Retries, Thread, ThreadAttr, Window, Word,
};
use mlx5dv_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_port_attr,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xgvmi_verbs::{Adapter, Buffer};

/// The port of all connections.
const PORT: u8 = 1;
/// Entries of each queue, as a logarithm.
const LOG_ENTRIES: u32 = 6;
/// Reads of a connection at a time, as a logarithm. Each mlx5 device supports 16.
const LOG_READS: u8 = 4;
/// Wait of a sender whose receiver was not ready: 0.64 ms (IBTA 9.7.5.2.8).
const RNR_TIMER: u8 = 12;
/// Words of `struct queue` of kernels.c, and the first one of the ping-pong.
const WORDS: usize = 19;
const PONG: usize = 14;
/// A number with this bit reports a failed request; the syndrome of its completion is below.
const FAILED: u64 = 1 << 63;
const SYNDROME_AT: u32 = 32;

/// Words of this process that kernels write.
#[derive(Debug)]
pub(super) struct Flags {
    memory: Buffer,
    count: usize,
}

impl Flags {
    pub(super) fn new(dpa: &Dpa, count: usize) -> Result<Self> {
        // Whole pages, so that no other data is on them.
        let memory = Buffer::new(&dpa.adapter, (count * 8).next_multiple_of(4096))?;
        Ok(Self { memory, count })
    }

    fn address(&self, index: usize) -> Result<u64> {
        ensure!(index < self.count, "no flag {index}");
        Ok(self.memory.address() + 8 * index as u64)
    }

    /// The word for a launch or a queue.
    pub(super) fn word(&self, index: usize) -> Result<Word> {
        Ok(Word::Key {
            key: self.memory.lkey(),
            address: self.address(index)?,
        })
    }

    fn at(&mut self, index: usize) -> Result<&AtomicU64> {
        ensure!(index < self.count, "no flag {index}");
        let words = self.memory.bytes()[8 * index..].as_mut_ptr().cast::<u64>();
        ensure!(words.is_aligned(), "the flags are not aligned");
        // SAFETY: eight bytes of the memory at a multiple of 8, which live as long as the borrow. Kernels write whole words.
        Ok(unsafe { AtomicU64::from_ptr(words) })
    }

    /// The word's value.
    pub(super) fn get(&mut self, index: usize) -> Result<u64> {
        Ok(self.at(index)?.load(Ordering::Acquire))
    }

    /// Sets a word that kernels wait for.
    pub(super) fn set(&mut self, index: usize, value: u64) -> Result<()> {
        self.at(index)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The value of a flag that counts, or the error that it reports.
    pub(super) fn count(&mut self, index: usize) -> Result<u64> {
        let value = self.get(index)?;
        if value & FAILED != 0 {
            bail!(
                "a request of the DPA has failed, syndrome {:#x}",
                (value & !FAILED) >> SYNDROME_AT
            );
        }
        Ok(value)
    }
}

/// A running program.
#[derive(Debug)]
pub(super) struct Dpa {
    // Destroyed in this order.
    window: Window,
    outbox: Outbox,
    pub(super) process: Process,
    pub(super) adapter: Arc<Adapter>,
}

impl Dpa {
    /// Opens the first device and starts the program.
    pub(super) fn open(image: &Path) -> Result<Self> {
        let adapter = Adapter::open(None)?;
        Self::on(adapter, image)
    }

    /// Starts the program on a device.
    pub(super) fn on(adapter: Arc<Adapter>, image: &Path) -> Result<Self> {
        let elf = std::fs::read(image).with_context(|| image.display().to_string())?;
        let app = Arc::new(App::new("demo", &elf)?);
        let (context, pd) = adapter.raw();
        // SAFETY: the adapter stays open as long as this value, which drops the process first.
        let process = unsafe { Process::create(context, pd, &app) }?;
        Ok(Self {
            window: Window::create(&process)?,
            outbox: Outbox::create(&process)?,
            process,
            adapter,
        })
    }

    /// Zeroed memory of the DPA.
    pub(super) fn zeroed(&self, bytes: u64) -> Result<u64> {
        let address = self.process.allocate(bytes)?;
        self.process.fill(address, 0, bytes)?;
        Ok(address)
    }

    /// Runs a remote call with words as arguments.
    pub(super) fn call(&self, name: &str, arguments: &[u64]) -> Result<u64> {
        let function = function(name, arguments.len());
        Ok(self.process.call(&function, &bytes(arguments))?)
    }

    /// Launches a kernel.
    pub(super) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        Ok(self.process.launch(launch)?)
    }
}

/// A kernel or remote call of dpacc with words as arguments.
pub(super) fn function(name: &str, words: usize) -> Function {
    Function {
        name: name.to_owned(),
        unpack: format!("__dpacc_unpack_{name}"),
        stub: 0,
        argument_bytes: 8 * words,
        pack: None,
    }
}

/// Packed words.
pub(super) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A queue pair of the DPA whose completions activate a handler.
#[derive(Debug)]
pub(super) struct Queue {
    // Destroyed in this order: queues name memory and threads of the process.
    qp: Qp,
    _cq: Cq,
    _thread: Thread,
    /// Address of its `struct queue`.
    at: u64,
    end: End,
    process: Process,
}

impl Queue {
    /// Creates `count` queues, whose structures are one array. Queue N has flag N.
    pub(super) fn array(
        dpa: &Dpa,
        (handler, count): (&str, usize),
        flags: &Flags,
        pong: &[u64],
    ) -> Result<Vec<Self>> {
        let array = dpa.zeroed((count * WORDS * 8) as u64)?;
        (0..count)
            .map(|index| {
                let at = array + (index * WORDS * 8) as u64;
                Self::new(dpa, handler, (at, flags.word(index)?), pong)
            })
            .collect()
    }

    fn new(dpa: &Dpa, handler: &str, (at, flag): (u64, Word), pong: &[u64]) -> Result<Self> {
        let process = &dpa.process;
        let uar = dpa.outbox.uar();
        let thread = Thread::create(
            process,
            &ThreadAttr {
                function: process.symbol(handler)?,
                ..ThreadAttr::default()
            },
        )?;
        let completions = process.allocate(64 << LOG_ENTRIES)?;
        process.copy_in(completions, &Cq::initial_ring(LOG_ENTRIES))?;
        let completions_record = dpa.zeroed(8)?;
        let cq = Cq::create(
            process,
            &CqAttr {
                log_entries: LOG_ENTRIES,
                ring: completions,
                doorbell: completions_record,
                uar,
                target: CqTarget::Thread(thread.number()),
                overrun_ignore: false,
            },
        )?;
        let receive = Receive {
            log_entries: LOG_ENTRIES,
            log_stride: 4,
        };
        let ring = dpa.zeroed((16 << LOG_ENTRIES) + (64 << LOG_ENTRIES))?;
        let records = dpa.zeroed(8)?;
        let qp = Qp::create(
            process,
            &QpAttr {
                ring,
                log_send: LOG_ENTRIES,
                receive: Some(receive),
                doorbell: records,
                send_cq: cq.number(),
                recv_cq: cq.number(),
                uar,
                ..QpAttr::default()
            },
        )?;
        let Word::Key { key, address } = flag else {
            bail!("a flag is behind a key");
        };
        let entries = 1 << LOG_ENTRIES;
        let mut words = vec![
            dpa.outbox.id().into(),
            dpa.window.id().into(),
            qp.number().into(),
            cq.number().into(),
            ring + qp.send_offset(),
            entries,
            records,
            completions,
            entries,
            completions_record,
            0,
            0,
            key.into(),
            address,
        ];
        words.extend(pong);
        process.copy_in(at, &bytes(&words))?;
        thread.run(at)?;
        cq.arm(0)?;
        let end = end(dpa, qp.number())?;
        Ok(Self {
            qp,
            _cq: cq,
            _thread: thread,
            at,
            end,
            process: process.clone(),
        })
    }

    /// Address of its structure.
    pub(super) fn address(&self) -> u64 {
        self.at
    }

    /// For the other side.
    pub(super) fn end(&self) -> End {
        self.end
    }

    /// Sets the words of the ping-pong: own word and key, other word and key.
    pub(super) fn set_pong(&self, words: &[u64]) -> Result<()> {
        let at = self.at + 8 * PONG as u64;
        Ok(self.process.copy_in(at, &bytes(words))?)
    }

    /// Fills the receive queue with entries without memory, for immediate values.
    pub(super) fn receive_all(&self, records: u64) -> Result<()> {
        let counter = 1_u32 << LOG_ENTRIES;
        Ok(self.process.copy_in(records, &counter.to_be_bytes())?)
    }

    /// Address of its doorbell record.
    pub(super) fn records(&self) -> Result<u64> {
        const RECORDS: u64 = 6;
        let mut word = [0; 8];
        self.process.copy_out(self.at + 8 * RECORDS, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Connects it.
    pub(super) fn connect(&self, other: End) -> Result<()> {
        let access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
        self.qp.to_init(access, PORT, 0)?;
        self.qp.to_rtr(&Remote {
            qpn: other.qpn,
            lid: other.lid,
            mtu: self.end.mtu.min(other.mtu),
            log_reads: LOG_READS,
            rnr_timer: RNR_TIMER,
            ..Remote::default()
        })?;
        Ok(self.qp.to_rts(&Retries {
            log_reads: LOG_READS,
            ..Retries::default()
        })?)
    }
}

fn end(dpa: &Dpa, qpn: u32) -> Result<End> {
    let mut port = ibv_port_attr::default();
    let lib = mlx5dv_sys::Mlx5Lib::open()?;
    // SAFETY: the context is open; the library fills in the older part of the structure.
    let failed = unsafe { lib.ibv_query_port(dpa.adapter.raw().0, PORT, (&raw mut port).cast()) };
    ensure!(failed == 0, "the port does not answer: errno {failed}");
    Ok(End {
        qpn,
        lid: port.lid,
        mtu: u8::try_from(port.active_mtu)?,
    })
}

/// Waits until a flag has a value.
pub(super) fn await_flag(
    flags: &mut Flags,
    index: usize,
    value: u64,
    process: &Process,
) -> Result<()> {
    clock::wait("completion of the DPA", || {
        let found = flags.count(index)?;
        Ok((found == value).then_some(()))
    })
    .map_err(|error| match process.fault() {
        Ok(Some(fault)) => error.context(fault.to_string()),
        _ => error,
    })
}
