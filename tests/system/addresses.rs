//! Local addresses of the connection manager: those of ports, of the machine, and of the loopback
//! interface. The addresses of interfaces are in `bf-emu/preload/tests/interpose/interfaces.rs`.

use crate::connections::{Agent, CLIENT, PORT, SERVER, TCP, kind, two};
use crate::harness::{Case, Outcome};
use crate::world::{Testbed, World, succeed};
use anyhow::{Result, ensure};
use std::net::{IpAddr, UdpSocket};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("cm_loopback_bind", loopback_bind),
        Case::that_may_skip("cm_address_without_device", address_without_device),
    ]
}

/// A loopback address has no device: a listener on it hears all ports, as on the unspecified
/// address. As a target it leads to a port.
fn loopback_bind(world: &World) -> Result<()> {
    const LOOPBACK: &str = "127.0.0.1";
    let testbed = Testbed::new(world)?;
    let (mut server, mut client) = two(&testbed)?;
    let listener = server.create(TCP)?;
    server.tell(&format!("bind 0 {listener} {LOOPBACK} {PORT}"))?;
    let objects = succeed(&mut testbed.emulator("dump"))?;
    let is_bound = |line: &str| line.starts_with("- ") && line.contains("stage Bound");
    ensure!(objects.lines().any(is_bound), "a device:\n{objects}");
    let mut second = Agent::start(&testbed, "node0.host")?;
    let clashing = second.create(TCP)?;
    let why = "Cannot assign requested address";
    second.refused(&format!("bind 0 {clashing} {SERVER} {PORT}"), why)?;
    server.tell(&format!("listen 0 {listener} 0"))?;
    client.requesting()?;
    server.expect(kind::REQUEST)?;
    let own = second.create(TCP)?;
    second.tell(&format!("bind 0 {own} {LOOPBACK} 0"))?;
    second.tell(&format!("resolve 0 {own} {LOOPBACK} {PORT} 1000"))?;
    second.expect(kind::ADDRESS_RESOLVED)?;
    second.tell(&format!("route 0 {own} 1000"))?;
    second.expect(kind::ROUTE_RESOLVED)?;
    second.tell(&format!("connect 0 {own} 0"))?;
    server.expect(kind::REQUEST).map(drop)
}

/// An address of the machine that no port has: there is no device for it, and the program may use
/// another transport. An address of no machine is not available.
fn address_without_device(world: &World) -> Result<Outcome> {
    let Some(address) = address_of_the_machine() else {
        let why = "this machine has no address beside that of the loopback interface";
        return Ok(Outcome::Skipped(why.to_owned()));
    };
    let testbed = Testbed::new(world)?;
    let mut agent = Agent::start(&testbed, "node0.host")?;
    let id = agent.create(TCP)?;
    for port in [0, PORT] {
        agent.refused(&format!("bind 0 {id} {address} {port}"), "No such device")?;
    }
    let why = "Cannot assign requested address";
    agent.refused(&format!("bind 0 {id} 203.0.113.9 {PORT}"), why)?;
    agent.refused(&format!("bind 0 {id} {CLIENT} {PORT}"), why)?;
    // The identifier is still new.
    agent.tell(&format!("bind 0 {id} {SERVER} {PORT}"))?;
    Ok(Outcome::Passed)
}

/// The address from which this machine would send to another one. Nothing is sent.
fn address_of_the_machine() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}
