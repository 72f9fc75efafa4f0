//! Reads that a program on the DPA posts in place of UCX: `services/offload/dpa/reads.c`, compiled by `dpacc`.
//!
//! The process writes the blocks of a batch into memory of the DPA by one RDMA write, whose immediate value starts the program.
//! The program posts a read per block on its own queue and tells how many are done. Both keys of a read are aliases that
//! this process has created beside those of UCX, and a dynamic connection leads to the service that owns the other one. An
//! offered key therefore carries the alias and the target behind UCX's bytes ([`Target`]); UCX ignores what follows its key.
//!
//! Whatever the DPA cannot do, UCX does: keys that are not of a pool, services without a DPA, a full queue. If the DPA is
//! lost, the reads under way start again with UCX, and one line says so.

mod block;
mod device;
pub(super) mod reads;
mod ring;

pub(super) use block::Target;
use block::{Block, Ends};
use device::Device;
use ring::Ring;
use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};
use xgvmi_pool::{AccessKey, Gvmi, Mkey, OwnerUuid, Secret, Tag};
use xgvmi_ucp::ExportedKey;
use xgvmi_verbs::{Access, Adapter, HostAliases, Keys};

/// Interval between two questions about the DPA while reads do not end.
const QUESTIONS: Duration = Duration::from_millis(250);

/// Most bytes of a request, below the adapter's 2 GiB.
const BYTES_MAX: usize = 1 << 30;

/// Aliases that are found without a search.
const KNOWN: usize = 1024;

/// A place of one of them.
type Known = Option<(ExportedKey, Rc<Access>)>;

/// The DPA of a job. The fields drop in this order: queues before the aliases that they use.
#[derive(Debug)]
pub(super) struct Dpa {
    device: RefCell<Option<Device>>,
    ring: RefCell<Ring>,
    /// The target of this service, without a key.
    target: Target,
    access: AccessKey,
    /// The last aliases, by key: a job uses the same keys again and again.
    known: RefCell<Vec<Known>>,
    aliases: HostAliases,
    /// The DPA has failed: reads that were put and have not ended never end.
    is_lost: Cell<bool>,
    asked: Cell<Instant>,
}

impl Dpa {
    /// Starts the program. The reason of a failure is for the log.
    pub(super) fn open(program: &[u8]) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let access = access_key()?;
        let adapter = Adapter::open(device_name().as_deref()).map_err(|error| failed(&error))?;
        let random = xgvmi_daemon::random().map_err(|error| failed(&error))?;
        #[expect(clippy::cast_possible_truncation, reason = "64 random bits of 128")]
        let device = Device::start(&adapter, program, random as u64);
        let device = device.map_err(|error| failed(&error))?;
        let aliases = HostAliases::open(&adapter).map_err(|error| failed(&error))?;
        Ok(Self {
            target: device.target(),
            ring: RefCell::new(Ring::new(&adapter).map_err(|error| failed(&error))?),
            device: RefCell::new(Some(device)),
            access,
            known: RefCell::new((0..KNOWN).map(|_| None).collect()),
            aliases,
            is_lost: Cell::new(false),
            asked: Cell::new(Instant::now()),
        })
    }

    /// An alias of an exported key; `None` for a key that is not of a pool, and when the adapter refuses.
    pub(super) fn attach(&self, packed: &[u8]) -> Option<Rc<Access>> {
        let key = ExportedKey::of(packed)?;
        let at = (key.mkey >> 8) as usize % KNOWN;
        if let Some((known, alias)) = &self.known.borrow()[at]
            && *known == key
        {
            return Some(Rc::clone(alias));
        }
        let alias = Rc::new(self.attach_new(key)?);
        self.known.borrow_mut()[at] = Some((key, Rc::clone(&alias)));
        Some(alias)
    }

    #[cold]
    fn attach_new(&self, key: ExportedKey) -> Option<Access> {
        let pooled = Mkey::from_raw(key.mkey).tag() == Tag::UCX_POOLED;
        if !pooled || self.is_lost.get() {
            return None;
        }
        let keys = Keys {
            pooled,
            gvmi: Gvmi::new(key.function),
            // A job ends with any of its ranks, and its aliases with it: a key cannot come from an earlier exporter.
            owner: OwnerUuid::UNKNOWN,
            access: self.access.clone(),
        };
        self.aliases.attach(&keys, key.mkey).ok()
    }

    /// What follows UCX's key for other services.
    pub(super) fn behind_key(&self, alias: &Access) -> [u8; Target::BYTES] {
        let key = alias.lkey().raw();
        Target { key, ..self.target }.to_bytes()
    }

    /// Whether the DPA can take a read of `length` bytes now.
    #[inline]
    fn has_room(&self, length: usize) -> bool {
        length <= BYTES_MAX && !self.is_lost.get() && self.ring.borrow().has_room()
    }

    /// Takes a read, for the next [`post`](Self::post). Its number is added to the owner's ends when it is done.
    #[inline]
    fn put(&self, block: &Block, owner: u32, number: u32) {
        self.ring.borrow_mut().put(block, owner, number);
    }

    fn enter(&self, ends: &Rc<Ends>) -> u32 {
        self.ring.borrow_mut().enter(ends)
    }

    /// Passes the reads of a round to the program.
    pub(super) fn post(&self) {
        let mut ring = self.ring.borrow_mut();
        if !ring.is_waiting() {
            return;
        }
        let mut device = self.device.borrow_mut();
        let Some(open) = device.as_mut() else {
            return;
        };
        if let Err(error) = ring.post(open) {
            drop(ring);
            drop(device);
            self.lose(&error);
        }
    }

    /// Collects ends of reads; true if there were any, or if the DPA is lost.
    #[inline]
    pub(super) fn collect(&self) -> bool {
        !self.ring.borrow().is_empty() && self.collect_some()
    }

    fn collect_some(&self) -> bool {
        let mut ended = false;
        loop {
            let heard = match &*self.device.borrow() {
                Some(device) => device.heard(),
                None => return ended,
            };
            match heard {
                Ok(None) => return ended,
                Ok(Some(done)) => ended |= self.ring.borrow_mut().done(done),
                Err(reason) => {
                    self.lose(&reason);
                    return true;
                }
            }
        }
    }

    /// Descriptor that is readable, once armed, when reads end.
    pub(super) fn fd(&self) -> RawFd {
        self.device.borrow().as_ref().map_or(-1, Device::fd)
    }

    /// Requests a wake-up by the end of a read; false when there is work already.
    pub(super) fn arm(&self) -> bool {
        if self.ring.borrow().is_empty() {
            return true;
        }
        let (armed, fault) = match &*self.device.borrow() {
            None => return true,
            Some(device) => {
                let is_time = self.asked.get().elapsed() > QUESTIONS;
                if is_time {
                    self.asked.set(Instant::now());
                }
                (device.arm(), is_time.then(|| device.fault()).flatten())
            }
        };
        if let Some(reason) = armed.err().or(fault) {
            self.lose(&reason);
            return false;
        }
        !self.collect()
    }

    /// Closes the queues. No read of the DPA writes after this.
    fn lose(&self, reason: &str) {
        if self.device.borrow_mut().take().is_some() {
            self.ring.borrow_mut().clear();
            self.is_lost.set(true);
            say(reason);
        }
    }
}

/// Reports that the service posts its reads itself.
pub(super) fn say(reason: &str) {
    eprintln!("xgvmi-sp: no DPA ({reason}): this service posts its reads itself");
}

/// The device that UCX uses, if it may use one only.
fn device_name() -> Option<String> {
    let devices = std::env::var("UCX_NET_DEVICES").ok()?;
    let name = devices.split(':').next()?;
    (!devices.contains(',') && name != "all").then(|| name.to_owned())
}

/// The key with which the ranks export their memory, as this project's library knows it.
fn access_key() -> Result<AccessKey, String> {
    let Some(file) = std::env::var_os("UCX_XGVMI_KEY_FILE") else {
        return Ok(AccessKey::UCX_COMPATIBLE);
    };
    let text = std::fs::read(file).map_err(|error| format!("UCX_XGVMI_KEY_FILE: {error}"))?;
    let secret = Secret::new(text.trim_ascii());
    let secret = secret.map_err(|error| format!("UCX_XGVMI_KEY_FILE: {error}"))?;
    Ok(secret.access_key())
}
