//! Tests a key between host and DPU as the library uses it: the DPU keeps one alias of the key and reads two buffers
//! through it, to which the host binds the key in turn. Between them the key is invalid, and the read must fail.

use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cost_table::AliasTimes;
use xgvmi_pool::mlx5::steps::{Registration, Span, Steps};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options, ReadError};
use xgvmi_pool::{
    AccessKey, Alias, AliasDevice as _, HostHooks, MkeyDevice as _, OwnerUuid, PoolPolicy, Region,
    RemoteKey, UmrOp, VirtAddr,
};

use super::limits;
use super::report::{Found, Peer};
use super::wire::{Answer, Exported, Greeting, Line, PROTOCOL, Request};
use super::{Identity, LIMIT_MAX};

/// Length of the buffer that the DPU reads: more than one packet at any MTU.
const BYTES: u32 = 64 << 10;
/// Maximum number of bytes that a DPU reads for a host.
const BYTES_MAX: u32 = 1 << 20;
/// Maximum time to connect to a DPU.
const CONNECT: Duration = Duration::from_secs(10);

/// The connection of a host to its DPU.
#[derive(Debug)]
pub(super) struct Dpu {
    line: Line,
    greeting: Greeting,
    address: String,
}

impl Dpu {
    pub(super) fn connect(address: &str) -> Result<Self> {
        let mut places = address.to_socket_addrs().with_context(|| {
            format!("--peer {address}: not a HOST:PORT, or the name has no address")
        })?;
        let place = places
            .next()
            .with_context(|| format!("--peer {address}: the name has no address"))?;
        let stream = TcpStream::connect_timeout(&place, CONNECT).with_context(|| {
            format!("--peer {address}: start `xgvmi probe --serve ADDRESS:PORT` on the DPU first")
        })?;
        let mut line = Line::new(stream)?;
        let greeting: Greeting = line
            .receive()
            .with_context(|| format!("--peer {address}: not an `xgvmi probe --serve`"))?
            .with_context(|| format!("--peer {address}: the connection was closed at once"))?;
        ensure!(
            greeting.xgvmi_probe == PROTOCOL,
            "--peer {address} speaks version {} of the protocol, this command version {PROTOCOL}: install the same \
             version on both",
            greeting.xgvmi_probe
        );
        Ok(Self {
            line,
            greeting,
            address: address.to_owned(),
        })
    }

    /// Lets the DPU read two buffers of this host through one alias of one key, and lets it try to read while the key
    /// is invalid.
    pub(super) fn exchange(&mut self, function: &Function) -> Result<Peer> {
        let mut access = [0; AccessKey::BYTES];
        random(&mut access)?;
        let access = AccessKey::new(access);
        let steps = Steps::new(function)?;
        let (mut first, mut second) = (Buffer::new()?, Buffer::new()?);
        let (first, second) = (first.register(&steps)?, second.register(&steps)?);
        // The second export must find the key of the first one.
        let policy = PoolPolicy {
            access_key: access.clone(),
            mkeys_max: 1,
            cache_keys: 0,
            ..PoolPolicy::default()
        };
        let hooks = HostHooks::open(function.device(Mlx5Options::default())?, policy)?;
        let export = hooks.export(first.region)?;
        let (gvmi, mkey) = (export.gvmi(), export.mkey());
        let key = RemoteKey {
            gvmi,
            mkey,
            owner: OwnerUuid::UNKNOWN,
        };
        let exported = Exported::new(&key, &access, first.region.addr(), BYTES);
        let create_ns = match self.ask(&Request::Keep(exported.clone()))? {
            Answer::Kept { create_ns } => create_ns,
            _ => return self.another_answer(),
        };
        let (found, read_ns) = self.read(&first)?;
        hooks.release(export)?;
        let (while_invalid, _) = self.read(&first)?;
        let alias_of_invalid_refusal = match self.request(&Request::Alias(exported))? {
            Answer::Alias { .. } => None,
            Answer::Error(refusal) => Some(refusal),
            _ => return self.another_answer(),
        };
        let export = hooks.export(second.region)?;
        ensure!(
            export.mkey() == mkey,
            "a pool of one key exported {:?} after {mkey:?}",
            export.mkey()
        );
        let (found_again, _) = self.read(&second)?;
        hooks.release(export)?;
        let destroy_ns = match self.ask(&Request::End)? {
            Answer::Ended { destroy_ns } => destroy_ns,
            _ => return self.another_answer(),
        };
        hooks.close();
        let right = |found: Option<String>, buffer: &Registered<'_>| {
            found.is_some_and(|found| found == buffer.digest)
        };
        let us = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e6;
        let peer = Peer {
            address: self.address.clone(),
            device: self.greeting.device.clone(),
            firmware: self.greeting.firmware.clone(),
            link: self.greeting.link.clone(),
            vhca_id: self.greeting.vhca_id,
            bytes: BYTES.into(),
            verified: right(found, &first),
            invalid_refused: while_invalid.is_none(),
            rebound: right(found_again, &second),
            alias_of_invalid_refusal,
            alias_create_us: us(create_ns),
            read_us: us(read_ns),
            alias_destroy_us: us(destroy_ns),
        };
        first.memory.end()?;
        second.memory.end()?;
        Ok(peer)
    }

    /// Lets the DPU read a buffer through its alias. Returns the digest of the bytes, if the read is not refused, and
    /// its time.
    fn read(&mut self, buffer: &Registered<'_>) -> Result<(Option<String>, u64)> {
        let read = Request::Read {
            address: buffer.region.addr().get(),
            bytes: BYTES,
        };
        match self.ask(&read)? {
            Answer::Read { digest, read_ns } => Ok((digest, read_ns)),
            _ => self.another_answer(),
        }
    }

    /// Finds the maximum number of aliases of one key on the DPU's function. The key is bound, as an exported key is,
    /// if the device `binds`.
    pub(super) fn limit(&mut self, function: &Function, binds: bool, most: u32) -> Result<Found> {
        let mut buffer = Buffer::new()?;
        let steps = Steps::new(function)?;
        let buffer = buffer.register(&steps)?;
        let device = function.device(Mlx5Options::default())?;
        let access = AccessKey::UCX_COMPATIBLE;
        let key = steps.create_umr(1)?;
        steps.allow(&key, &access)?;
        if binds {
            device.run(&[UmrOp::Bind {
                mkey: key.mkey(),
                span: buffer.region.into(),
            }])?;
        }
        let remote = RemoteKey {
            gvmi: device.gvmi(),
            mkey: key.mkey(),
            owner: OwnerUuid::UNKNOWN,
        };
        let key_of_memory = Exported::new(&remote, &access, buffer.region.addr(), BYTES);
        let answer = self.ask(&Request::Limit {
            key: key_of_memory,
            most,
        })?;
        // A destroyed key gives no access, so it needs no invalidation.
        key.end()?;
        buffer.memory.end()?;
        match answer {
            Answer::Limit(found) => Ok(found),
            _ => self.another_answer(),
        }
    }

    fn another_answer<T>(&self) -> Result<T> {
        bail!("{}: the answer is of another request", self.address)
    }

    /// Sends a request. The DPU's error is an error here.
    fn ask(&mut self, request: &Request) -> Result<Answer> {
        match self.request(request)? {
            Answer::Error(text) => bail!("{}: {text}", self.address),
            answer => Ok(answer),
        }
    }

    /// Sends a request and returns the answer, which may be an error of the DPU.
    fn request(&mut self, request: &Request) -> Result<Answer> {
        self.line.send(request)?;
        self.line
            .receive()?
            .with_context(|| format!("{}: the DPU's probe has ended", self.address))
    }
}

/// Random bytes.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    digest: String,
}

/// A buffer that the adapter may access.
#[derive(Debug)]
struct Registered<'m> {
    region: Region,
    memory: Registration<'m>,
    digest: &'m str,
}

impl Buffer {
    fn new() -> Result<Self> {
        let mut bytes = vec![0; BYTES as usize];
        random(&mut bytes)?;
        let digest = digest(&bytes);
        Ok(Self { bytes, digest })
    }

    fn register<'m>(&'m mut self, steps: &'m Steps<'_>) -> Result<Registered<'m>> {
        let span = Span::of(&mut self.bytes);
        let address = span.addr();
        let memory = steps.register(span)?;
        Ok(Registered {
            region: Region::new(address, u64::from(BYTES), memory.lkey())?,
            memory,
            digest: &self.digest,
        })
    }
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

impl AliasTimes for Dpu {
    fn alias_ns(&mut self, key: &RemoteKey, access: &AccessKey) -> Result<(u64, u64)> {
        let key = Exported::new(key, access, VirtAddr::new(0), 0);
        match self.ask(&Request::Alias(key))? {
            Answer::Alias {
                create_ns,
                destroy_ns,
            } => Ok((create_ns, destroy_ns)),
            _ => bail!("{}: the answer is of another request", self.address),
        }
    }
}

/// Serves one probing host and returns a summary.
pub(super) fn serve(
    function: &Function,
    identity: &Identity,
    (address, wait): (&str, Duration),
) -> Result<String> {
    let listener = TcpListener::bind(address).with_context(|| format!("--serve {address}"))?;
    eprintln!(
        "xgvmi probe: serving {} at {} for {} s",
        identity.device,
        listener.local_addr()?,
        wait.as_secs()
    );
    wait_for(&listener, wait)?;
    let (stream, host) = listener.accept()?;
    let mut line = Line::new(stream)?;
    line.send(&Greeting {
        xgvmi_probe: PROTOCOL,
        device: identity.device.clone(),
        firmware: identity.firmware.clone(),
        link: identity.link.clone(),
        vhca_id: identity.vhca_id,
    })?;
    let mut service = Service {
        device: function.device(Mlx5Options::default())?,
        kept: None,
    };
    let mut served = 0_u32;
    while let Some(request) = line.receive::<Request>()? {
        let answer = service.carry_out(&request);
        // One short line for any error text.
        let answer = answer.unwrap_or_else(|error| {
            Answer::Error(format!("{error:#}").chars().take(500).collect())
        });
        line.send(&answer)?;
        served += 1;
    }
    // A host that failed in between has not sent the end.
    if service.kept.is_some() {
        service.end()?;
    }
    Ok(format!("{served} requests of {host} served\n"))
}

/// The DPU's side of one connection.
#[derive(Debug)]
struct Service {
    device: Arc<Mlx5Device>,
    /// The alias of [`Request::Keep`].
    kept: Option<Alias>,
}

impl Service {
    fn carry_out(&mut self, request: &Request) -> Result<Answer> {
        match request {
            Request::Keep(key) => self.keep(key),
            Request::Read { address, bytes } => self.read(VirtAddr::new(*address), *bytes),
            Request::End => self.end(),
            Request::Alias(key) => {
                let (alias, create_ns) = self.create(key)?;
                let ((), destroy_ns) = timed(|| Ok(self.device.destroy_alias(alias.index)?))?;
                Ok(Answer::Alias {
                    create_ns,
                    destroy_ns,
                })
            }
            Request::Limit { key, most } => {
                ensure!(*most <= LIMIT_MAX, "at most {LIMIT_MAX} aliases are tried");
                let access = key.access_key()?;
                Ok(Answer::Limit(limits::aliases(
                    &self.device,
                    &key.key(),
                    &access,
                    *most,
                )))
            }
        }
    }

    fn create(&self, key: &Exported) -> Result<(Alias, u64)> {
        let access = key.access_key()?;
        timed(|| Ok(self.device.create_alias(&key.key(), &access)?))
    }

    fn keep(&mut self, key: &Exported) -> Result<Answer> {
        ensure!(
            self.kept.is_none(),
            "this connection keeps an alias already"
        );
        let (alias, create_ns) = self.create(key)?;
        self.kept = Some(alias);
        Ok(Answer::Kept { create_ns })
    }

    fn read(&self, from: VirtAddr, bytes: u32) -> Result<Answer> {
        ensure!(
            (1..=BYTES_MAX).contains(&bytes),
            "{bytes} bytes are not within 1 to {BYTES_MAX}"
        );
        let alias = self
            .kept
            .as_ref()
            .context("this connection keeps no alias")?;
        let mut into = vec![0; bytes as usize];
        let (read, read_ns) = timed(|| Ok(self.device.read(alias.lkey, from, &mut into)))?;
        let digest = match read {
            Ok(()) => Some(digest(&into)),
            Err(ReadError::Refused { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Answer::Read { digest, read_ns })
    }

    fn end(&mut self) -> Result<Answer> {
        let alias = self.kept.take().context("this connection keeps no alias")?;
        let ((), destroy_ns) = timed(|| Ok(self.device.destroy_alias(alias.index)?))?;
        Ok(Answer::Ended { destroy_ns })
    }
}

fn timed<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let start = Instant::now();
    let done = run()?;
    // An overflow would take five centuries.
    let ns = u64::try_from(start.elapsed().as_nanos()).expect("a step takes less than centuries");
    Ok((done, ns))
}

/// Waits for a connection.
fn wait_for(listener: &TcpListener, wait: Duration) -> Result<()> {
    let mut poll = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = libc::c_int::try_from(wait.as_millis()).context("--wait is too long")?;
    // SAFETY: one writable structure.
    match unsafe { libc::poll(&raw mut poll, 1, ms) } {
        1 => Ok(()),
        0 => bail!("no host connected within {} s (--wait)", wait.as_secs()),
        _ => Err(std::io::Error::last_os_error()).context("waiting for a host"),
    }
}

fn random(bytes: &mut [u8]) -> Result<()> {
    // A call returns up to 256 bytes without failure.
    for part in bytes.chunks_mut(256) {
        // SAFETY: the buffer is writable for the given length.
        let count = unsafe { libc::getrandom(part.as_mut_ptr().cast(), part.len(), 0) };
        ensure!(
            usize::try_from(count).ok() == Some(part.len()),
            "getrandom: {}",
            std::io::Error::last_os_error()
        );
    }
    Ok(())
}
