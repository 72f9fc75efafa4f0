//! Tests a key between host and DPU: the host exports a buffer, the DPU reads it through an alias, and the read fails
//! after the key is invalidated.

use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cost_table::AliasTimes;
use xgvmi_pool::mlx5::steps::{Span, Steps};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options, ReadError};
use xgvmi_pool::{
    AccessKey, AliasDevice as _, HostHooks, MkeyDevice as _, OwnerUuid, PoolPolicy, Region,
    RemoteKey,
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

    /// Lets the DPU read a buffer of this host, both while the key is valid and after its invalidation.
    pub(super) fn exchange(&mut self, function: &Function) -> Result<Peer> {
        let mut bytes = vec![0; BYTES as usize];
        random(&mut bytes)?;
        let mut access = [0; AccessKey::BYTES];
        random(&mut access)?;
        let access = AccessKey::new(access);
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let steps = Steps::new(function)?;
        let span = Span::of(&mut bytes);
        let address = span.addr();
        let memory = steps.register(span)?;
        let policy = PoolPolicy {
            access_key: access.clone(),
            ..PoolPolicy::default()
        };
        let hooks = HostHooks::open(function.device(Mlx5Options::default())?, policy)?;
        let region = Region::new(address, u64::from(BYTES), memory.lkey())?;
        let export = hooks.export(region)?;
        let key = RemoteKey {
            gvmi: export.gvmi(),
            mkey: export.mkey(),
            owner: OwnerUuid::UNKNOWN,
        };
        let exported = Exported::new(&key, &access, address, BYTES);
        let Answer::Read {
            digest: found,
            create_ns,
            read_ns,
            destroy_ns,
        } = self.ask(&Request::Read(exported.clone()))?
        else {
            bail!("{}: the answer is of another request", self.address);
        };
        hooks.release(export)?;
        let invalid_refused = match self.ask(&Request::Read(exported))? {
            Answer::Read { digest, .. } => digest.is_none(),
            _ => bail!("{}: the answer is of another request", self.address),
        };
        hooks.close();
        memory.end()?;
        let us = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e6;
        Ok(Peer {
            address: self.address.clone(),
            device: self.greeting.device.clone(),
            firmware: self.greeting.firmware.clone(),
            link: self.greeting.link.clone(),
            vhca_id: self.greeting.vhca_id,
            bytes: BYTES.into(),
            verified: found.as_ref() == Some(&digest),
            invalid_refused,
            alias_create_us: us(create_ns),
            read_us: us(read_ns),
            alias_destroy_us: us(destroy_ns),
        })
    }

    /// Finds the maximum number of aliases of one key on the DPU's function.
    pub(super) fn limit(&mut self, function: &Function, most: u32) -> Result<Found> {
        let steps = Steps::new(function)?;
        let access = AccessKey::UCX_COMPATIBLE;
        let key = steps.create_umr(1)?;
        steps.allow(&key, &access)?;
        let remote = RemoteKey {
            gvmi: function.device(Mlx5Options::default())?.gvmi(),
            mkey: key.mkey(),
            owner: OwnerUuid::UNKNOWN,
        };
        let key_of_memory = Exported::new(&remote, &access, xgvmi_pool::VirtAddr::new(0), 0);
        let answer = self.ask(&Request::Limit {
            key: key_of_memory,
            most,
        })?;
        key.end()?;
        match answer {
            Answer::Limit(found) => Ok(found),
            _ => bail!("{}: the answer is of another request", self.address),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.line.send(request)?;
        let answer = self
            .line
            .receive()?
            .with_context(|| format!("{}: the DPU's probe has ended", self.address))?;
        match answer {
            Answer::Error(text) => bail!("{}: {text}", self.address),
            answer => Ok(answer),
        }
    }
}

impl AliasTimes for Dpu {
    fn alias_ns(&mut self, key: &RemoteKey, access: &AccessKey) -> Result<(u64, u64)> {
        let key = Exported::new(key, access, xgvmi_pool::VirtAddr::new(0), 0);
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
    let device = function.device(Mlx5Options::default())?;
    let mut served = 0_u32;
    while let Some(request) = line.receive::<Request>()? {
        let answer = carry_out(&device, &request);
        // One short line for any error text.
        let answer = answer.unwrap_or_else(|error| {
            Answer::Error(format!("{error:#}").chars().take(500).collect())
        });
        line.send(&answer)?;
        served += 1;
    }
    Ok(format!("{served} requests of {host} served\n"))
}

fn carry_out(device: &Mlx5Device, request: &Request) -> Result<Answer> {
    match request {
        Request::Read(key) => read(device, key),
        Request::Alias(key) => {
            let (alias, create_ns) = timed(|| {
                device
                    .create_alias(&key.key(), &key.access_key()?)
                    .map_err(Into::into)
            })?;
            let ((), destroy_ns) = timed(|| Ok(device.destroy_alias(alias.index)?))?;
            Ok(Answer::Alias {
                create_ns,
                destroy_ns,
            })
        }
        Request::Limit { key, most } => {
            ensure!(*most <= LIMIT_MAX, "at most {LIMIT_MAX} aliases are tried");
            let access = key.access_key()?;
            Ok(Answer::Limit(limits::aliases(
                device,
                &key.key(),
                &access,
                *most,
            )))
        }
    }
}

fn read(device: &Mlx5Device, key: &Exported) -> Result<Answer> {
    ensure!(
        (1..=BYTES_MAX).contains(&key.bytes),
        "{} bytes are not within 1 to {BYTES_MAX}",
        key.bytes
    );
    let access = key.access_key()?;
    let (alias, create_ns) = timed(|| Ok(device.create_alias(&key.key(), &access)?))?;
    let mut bytes = vec![0; key.bytes as usize];
    let from = xgvmi_pool::VirtAddr::new(key.address);
    let (read, read_ns) = timed(|| Ok(device.read(alias.lkey, from, &mut bytes)))?;
    let ((), destroy_ns) = timed(|| Ok(device.destroy_alias(alias.index)?))?;
    let digest = match read {
        Ok(()) => Some(blake3::hash(&bytes).to_hex().to_string()),
        Err(ReadError::Refused { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Answer::Read {
        digest,
        create_ns,
        read_ns,
        destroy_ns,
    })
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
