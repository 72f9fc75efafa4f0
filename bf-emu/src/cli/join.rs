//! `bf-emu join`: carries the requests of this machine's queue pairs to nodes on other machines, and executes those that
//! arrive, until it is ended.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use bf_emu::engine;
use bf_emu::engine::join::Join;
use bf_emu::engine::join::disturbance::{Disturbance, Way};
use bf_emu::fabric::Fabric;
use bf_emu::sys::{self, datagrams, full};
use bf_emu::view::state::{StateDir, locate};
use clap::Args;

use super::args::{StateArgs, print};

/// Arguments of `bf-emu join`.
#[derive(Args, Debug)]
pub(super) struct JoinArgs {
    #[command(flatten)]
    state: StateArgs,
    /// UDP port of all packets, here and on the other machines
    #[arg(long, value_name = "PORT", default_value_t = 4791)]
    port: u16,
    /// Of the packets that leave this machine, drop one in 100, send one in 100 twice, and let two in 100 be overtaken;
    /// SEED chooses which
    #[arg(long, value_name = "SEED")]
    disturb: Option<u64>,
}

/// Longest datagram: a packet of 4096 bytes and its headers.
const DATAGRAM_BYTES_MAX: usize = 4096 + 256;
/// Datagrams of a socket before others have their turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Longest wait. Connections of ended programs are looked for between waits.
const WAIT_NS: u64 = 100_000_000;
/// Longest wait of a packet that is to be overtaken.
const OVERTAKEN_NS: u64 = 200_000;

/// Executes the command.
pub(super) fn act(args: &JoinArgs) -> Result<()> {
    let state = StateDir::open(&locate(args.state.state.as_deref()))?;
    // The process lives as long as the fabric is used.
    let fabric: &'static Fabric = Box::leak(Box::new(engine::open(state.path())?));
    if !fabric.identities().iter().any(|own| own.is_remote) {
        bail!(
            "no node of {} is on another machine; set remote = true in its topology",
            state.path().display()
        );
    }
    full::end_with(&format!(
        "bf-emu: {}: its file system is full; free space there, and start `bf-emu join` again",
        state.path().display()
    ))
    .context("a signal handler")?;
    let Some(join) = Join::new(fabric, args.port) else {
        bail!(
            "another `bf-emu join` carries the requests of {}",
            state.path().display()
        );
    };
    let sockets = bind(&join, args.port)?;
    let addresses: Vec<String> = sockets.0.keys().map(IpAddr::to_string).collect();
    print(&format!(
        "joined: {} port {}\n",
        addresses.join(", "),
        args.port
    ))?;
    let woken = wake_by_requests(fabric)?;
    serve(join, &sockets, &woken, args.disturb.map(Disturbance::new))
}

/// A socket for each address of this machine's functions.
struct Sockets(BTreeMap<IpAddr, UdpSocket>);

fn bind(join: &Join<'_>, port: u16) -> Result<Sockets> {
    let mut sockets = BTreeMap::new();
    let mut refused = None;
    for address in join.addresses() {
        match UdpSocket::bind((address, port)) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                datagrams::prepare(&socket, address.is_ipv4())?;
                sockets.insert(address, socket);
            }
            // A default address of IPv6 is not one of the machine.
            Err(error) => refused = Some((address, error)),
        }
    }
    match (sockets.is_empty(), refused) {
        (true, Some((address, error))) => Err(error).with_context(|| {
            format!(
                "cannot receive at {address}, UDP port {port}; give the functions addresses of this machine, or another \
                 --port"
            )
        }),
        (true, None) => bail!("no function of this machine has an Ethernet port with an address"),
        (false, _) => Ok(Sockets(sockets)),
    }
}

/// A stream that becomes readable when a queue pair has new requests.
fn wake_by_requests(fabric: &'static Fabric) -> Result<UnixStream> {
    let (mut wake, woken) = UnixStream::pair().context("a pair of sockets")?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let watch = move || {
        let mut seen = fabric.handed_over_count();
        loop {
            let count = fabric.handed_over_count();
            if count != seen {
                seen = count;
                // A full stream is readable already.
                let _ = wake.write(&[1]);
            }
            fabric.wait_for_requests(seen, WAIT_NS);
        }
    };
    let thread = std::thread::Builder::new().name("bf-emu-join".to_owned());
    thread.spawn(watch).context("a thread")?;
    Ok(woken)
}

fn serve(
    mut join: Join<'_>,
    sockets: &Sockets,
    woken: &UnixStream,
    mut disturbance: Option<Disturbance>,
) -> Result<()> {
    let mut bytes = [0; DATAGRAM_BYTES_MAX];
    let mut warned = false;
    let mut descriptors: Vec<_> = sockets.0.values().map(AsRawFd::as_raw_fd).collect();
    descriptors.push(woken.as_raw_fd());
    loop {
        let mut more = false;
        for (own, socket) in &sockets.0 {
            more |= receive(&mut join, (*own, socket), &mut bytes)?;
        }
        while std::io::Read::read(&mut &*woken, &mut bytes).is_ok_and(|read| read != 0) {}
        let mut send = |from: IpAddr, to: SocketAddr, packet: &[u8]| match &mut disturbance {
            Some(disturbance) => {
                disturbance.pass((from, to), packet, |way, packet| sockets.send(way, packet));
            }
            None => sockets.send((from, to), packet),
        };
        let next_ns = join.work(sys::now_ns(), &mut send);
        if !warned && join.seen().wrong_checksum != 0 {
            warned = true;
            warn();
        }
        if more {
            continue;
        }
        let now_ns = sys::now_ns();
        let mut wait_ns = next_ns.map_or(WAIT_NS, |next| next.saturating_sub(now_ns).min(WAIT_NS));
        if disturbance.as_ref().is_some_and(Disturbance::is_waiting) {
            wait_ns = wait_ns.min(OVERTAKEN_NS);
        }
        datagrams::wait_readable(&descriptors, Some(wait_ns)).context("waiting for packets")?;
        if let Some(disturbance) = &mut disturbance {
            disturbance.release(|way, packet| sockets.send(way, packet));
        }
    }
}

/// Reports the first datagram with a wrong checksum.
fn warn() {
    // A closed stderr leaves no way to report it.
    let _ = writeln!(
        std::io::stderr(),
        "bf-emu: a packet with a wrong checksum was dropped; senders must use IPv4 identification 0, as `bf-emu join` \
         does, and no address translation"
    );
}

/// Takes datagrams of a socket. Returns true if more may be there.
fn receive(
    join: &mut Join<'_>,
    (own, socket): (IpAddr, &UdpSocket),
    bytes: &mut [u8],
) -> Result<bool> {
    for _ in 0..DATAGRAMS_PER_TURN {
        match socket.recv_from(bytes) {
            Ok((length, from)) => {
                let to = SocketAddr::new(own, socket.local_addr()?.port());
                let datagram = bytes.get(..length).unwrap_or_default();
                join.receive(sys::now_ns(), (without_scope(from), to), datagram);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // The other machine has no process that receives, or a datagram was too long for the way: packets are lost.
            Err(_) => {}
        }
    }
    Ok(true)
}

/// The address without fields that do not belong to the packet.
fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

impl Sockets {
    /// Sends a packet. One that cannot be sent is lost, as on a network: it is repeated.
    fn send(&self, (from, to): Way, packet: &[u8]) {
        if let Some(socket) = self.0.get(&from) {
            let _ = socket.send_to(packet, to);
        }
    }
}
