//! Directs `programs/roce_agent.c`: Ethernet ports, and InfiniBand ports that need a global route. What the device
//! answers, what it refuses, and what arrives.

use crate::agent::Driven;
use crate::harness::Case;
use crate::world::{Testbed, World, succeed};
use anyhow::{Result, ensure};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// One command; the slowest waits for a completion.
const ANSWER: Duration = Duration::from_secs(30);

const ETHERNET: &[&str] = &["--link", "ethernet"];
const GRH_REQUIRED: &[&str] = &["--link", "infiniband-grh"];
const INFINIBAND: &[&str] = &["--link", "infiniband"];

const HOST: &str = "node0.host";
const FAR: &str = "node1.host";

/// What the default topology gives to the two.
const HOST_MAC: &str = "02bf00000101";
const FAR_MAC: &str = "02bf00000201";
const HOST_LOCAL: &str = "fe8000000000000000bf00fffe000101";
const FAR_LOCAL: &str = "fe8000000000000000bf00fffe000201";
const HOST_IPV4: &str = "00000000000000000000ffff7f420101";
const FAR_IPV4: &str = "00000000000000000000ffff7f420201";
const HOST_IPV6: &str = "fd0000bf000000000000000000010001";
const FAR_IPV6: &str = "fd0000bf000000000000000000020001";
/// The GIDs of the two on InfiniBand.
const FAR_INFINIBAND: &str = "fe8000000000000002bf000000000201";
/// An address that nobody has.
const NOBODY_IPV4: &str = "00000000000000000000ffff7f42fefe";

/// Indices of an Ethernet port's table: link-local, IPv4, IPv6, each in v1 and v2; the next is empty.
const LOCAL_V1: u8 = 0;
const IPV4_V1: u8 = 2;
const IPV4_V2: u8 = 3;
const IPV6_V2: u8 = 5;
const EMPTY: u8 = 6;
const BEYOND: u8 = 16;

/// `IBV_WC_SUCCESS`, `IBV_WC_LOC_LEN_ERR` and `IBV_WC_RETRY_EXC_ERR`.
const SUCCESS: u32 = 0;
const TOO_LONG: u32 = 1;
const RETRY_EXCEEDED: u32 = 12;

const EINVAL: i32 = 22;
const ENODATA: i32 = 61;
const ETIMEDOUT: i32 = 110;
/// An errno for a command that the device refused.
const EREMOTEIO: i32 = 121;
/// `BAD_PARAM` of the device.
const BAD_PARAM: &str = "status 0x3";

/// A running agent, whose device is open.
struct Party(Driven);

impl Deref for Party {
    type Target = Driven;

    fn deref(&self) -> &Driven {
        &self.0
    }
}

impl DerefMut for Party {
    fn deref_mut(&mut self) -> &mut Driven {
        &mut self.0
    }
}

impl Party {
    fn start(testbed: &Testbed<'_>, options: &[&str], function: &'static str) -> Result<Self> {
        Driven::start(testbed, options, function, ("roce_agent", ANSWER)).map(Self)
    }

    /// Says a line that must be refused with an errno.
    fn refused(&mut self, command: &str, errno: i32) -> Result<()> {
        let answer = self.ask(command)?;
        ensure!(answer.ends_with(&format!("errno {errno}")), "{answer:?}");
        Ok(())
    }

    fn qp(&mut self, slot: u32, service: &str) -> Result<u32> {
        self.tell(&format!("qp {slot} {service}"))?.value("qpn")
    }

    /// Writes into another's memory. Returns the status; if it is success, the value is there.
    fn write_to(&mut self, other: &mut Party, slot: u32, value: u64) -> Result<u32> {
        let (addr, rkey): (u64, u32) = (other.opened.value("addr")?, other.opened.value("rkey")?);
        let at = addr + 64;
        let answer = self.tell(&format!("write {slot} {at} {rkey} {value}"))?;
        let there: u64 = other.tell("get 64")?.value("value")?;
        let status = answer.value("wc")?;
        ensure!((there == value) == (status == SUCCESS), "{answer:?}");
        Ok(status)
    }
}

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("roce_port_and_gids", port_and_gids),
        Case::new("roce_files", files),
        Case::new("roce_address_handles", address_handles),
        Case::new(
            "roce_address_handle_by_the_kernel",
            address_handle_by_the_kernel,
        ),
        Case::new("roce_connections_by_verbs", connections_by_verbs),
        Case::new("roce_connections_by_command", connections_by_command),
        Case::new("roce_versions_do_not_mix", versions_do_not_mix),
        Case::new("roce_udp_source_port", udp_source_port),
        Case::new("roce_address_of_a_target", address_of_a_target),
        Case::new("roce_datagrams", datagrams),
        Case::new("roce_capabilities", capabilities),
        Case::new("roce_mtu_of_the_topology", mtu_of_the_topology),
        Case::new("grh_required_by_verbs", grh_required_by_verbs),
        Case::new("grh_required_by_command", grh_required_by_command),
        Case::new("grh_index_on_infiniband", index_on_infiniband),
        Case::new("state_with_any_name", state_with_any_name),
    ]
}

/// No LIDs, one partition key, an MTU that fits the network device's, and a table of GIDs.
fn port_and_gids(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    host.opened
        .expect_start("ok layer=2 lid=0 sm_lid=0 flags=1 mtu=1024 gids=16 pkeys=1 ")?;
    let rows = [
        (HOST_LOCAL, 1),
        (HOST_LOCAL, 2),
        (HOST_IPV4, 1),
        (HOST_IPV4, 2),
        (HOST_IPV6, 1),
        (HOST_IPV6, 2),
    ];
    for (index, (gid, kind)) in rows.into_iter().enumerate() {
        // The loopback device is the first of every network namespace.
        let expect = format!("ok gid={gid} type={kind} ndev=1 count=6");
        host.tell(&format!("gid {index}"))?.expect_start(&expect)?;
    }
    for index in [EMPTY, BEYOND - 1] {
        host.refused(&format!("gid {index}"), ENODATA)?;
    }
    host.refused(&format!("gid {BEYOND}"), EINVAL)?;
    let mut shared = Party::start(&Testbed::new(world)?, GRH_REQUIRED, HOST)?;
    shared
        .opened
        .expect_start("ok layer=1 lid=1 sm_lid=1 flags=1 mtu=4096 gids=8 pkeys=128 ")?;
    shared.refused("gid 1", ENODATA)?;
    Party::start(&Testbed::new(world)?, INFINIBAND, HOST)?
        .opened
        .expect_start("ok layer=1 lid=1 sm_lid=1 flags=0 ")
}

/// The same in sysfs. Of an empty entry there is no type and no network device.
fn files(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let read = |options: &[&str], file: &str| {
        let path = format!("/sys/class/infiniband/mlx5_0/ports/1/{file}");
        succeed(testbed.command_with(options, HOST, "cat").arg(path))
    };
    for (file, expect) in [
        ("link_layer", "Ethernet\n"),
        ("lid", "0x0\n"),
        ("gid_attrs/types/2", "IB/RoCE v1\n"),
        ("gid_attrs/types/3", "RoCE v2\n"),
        ("gid_attrs/ndevs/3", "lo\n"),
        ("gids/3", "0000:0000:0000:0000:0000:ffff:7f42:0101\n"),
        ("gid_attrs/types/6", ""),
        ("gid_attrs/ndevs/6", ""),
        ("gids/6", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
        ("pkeys/0", "0xffff\n"),
    ] {
        let text = read(ETHERNET, file)?;
        ensure!(text == expect, "{file} is {text:?}, not {expect:?}");
    }
    Ok(())
}

/// Stock libmlx5 asks the kernel for the destination's MAC.
fn address_handles(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    for (index, gid, mac) in [
        (LOCAL_V1, FAR_LOCAL, FAR_MAC),
        (LOCAL_V1, HOST_LOCAL, HOST_MAC),
        (1, FAR_LOCAL, FAR_MAC),
        (IPV4_V1, FAR_IPV4, FAR_MAC),
        (IPV4_V2, FAR_IPV4, FAR_MAC),
        (IPV4_V2, HOST_IPV4, HOST_MAC),
        (IPV6_V2, FAR_IPV6, FAR_MAC),
    ] {
        let answer = host.tell(&format!("handle 1 {index} {gid}"))?;
        // The bit that says so on InfiniBand is reserved here.
        answer.expect_start(&format!("ok mac={mac} grh=0"))?;
    }
    for (command, errno) in [
        // Without a global route.
        (format!("handle 0 {IPV4_V2} {FAR_IPV4}"), EINVAL),
        (format!("handle 1 {BEYOND} {FAR_IPV4}"), EINVAL),
        (format!("handle 1 {EMPTY} {FAR_IPV4}"), ENODATA),
        // From an IPv4 address to an IPv6 one.
        (format!("handle 1 {IPV4_V2} {FAR_IPV6}"), EINVAL),
        // A neighbour that does not answer.
        (format!("handle 1 {IPV4_V2} {NOBODY_IPV4}"), ETIMEDOUT),
    ] {
        host.refused(&command, errno)?;
    }
    Ok(())
}

/// The driver's answer has ten bytes, and the buffer for it must have as many.
fn address_handle_by_the_kernel(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    for bytes in [10, 16] {
        let answer = host.tell(&format!("kernel 1 {IPV4_V2} {FAR_IPV4} {bytes}"))?;
        answer.expect_start(&format!("ok length=10 mac={FAR_MAC} "))?;
        ensure!(bytes > 10 || answer.ends_with("behind=a5a5"), "{answer:?}");
    }
    host.refused(&format!("kernel 1 {IPV4_V2} {FAR_IPV4} 9"), EINVAL)?;
    host.refused(&format!("kernel 0 {IPV4_V2} {FAR_IPV4} 16"), EINVAL)?;
    host.refused(&format!("kernel 1 {EMPTY} {FAR_IPV4} 16"), ENODATA)?;
    // On InfiniBand there is nothing to answer.
    let mut shared = Party::start(&Testbed::new(world)?, GRH_REQUIRED, HOST)?;
    shared.refused(&format!("kernel 0 0 {FAR_INFINIBAND} 16"), EINVAL)?;
    let answer = shared.tell(&format!("kernel 1 0 {FAR_INFINIBAND} 16"))?;
    answer.expect_start("ok length=2779096485 mac=a5a5")
}

/// Each kind of GID connects; what the kernel refuses in a path is refused.
fn connections_by_verbs(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    let mut far = Party::start(&testbed, ETHERNET, FAR)?;
    for (slot, index, gids) in [
        (0, LOCAL_V1, (HOST_LOCAL, FAR_LOCAL)),
        (1, IPV4_V1, (HOST_IPV4, FAR_IPV4)),
        (2, IPV4_V2, (HOST_IPV4, FAR_IPV4)),
        (3, IPV6_V2, (HOST_IPV6, FAR_IPV6)),
    ] {
        let (own, there) = (host.qp(slot, "rc")?, far.qp(slot, "rc")?);
        // A LID means nothing here.
        host.tell(&format!("connect {slot} {there} 1 {index} {} 7", gids.1))?;
        far.tell(&format!("connect {slot} {own} 1 {index} {} 0", gids.0))?;
        let status = host.write_to(&mut far, slot, 0x5eed + u64::from(slot))?;
        ensure!(status == SUCCESS, "GID {index}: {status}");
    }
    for service in ["rc", "uc"] {
        let slot = 4;
        let there = far.qp(slot, service)?;
        host.qp(slot, service)?;
        for (global, index, gid, errno) in [
            (0, IPV4_V2, FAR_IPV4, EINVAL),
            (1, BEYOND, FAR_IPV4, EINVAL),
            (1, EMPTY, FAR_IPV4, ENODATA),
            (1, IPV4_V2, FAR_IPV6, EINVAL),
            (1, IPV4_V2, NOBODY_IPV4, ETIMEDOUT),
        ] {
            host.refused(
                &format!("connect {slot} {there} {global} {index} {gid} 1"),
                errno,
            )?;
        }
        host.tell(&format!("connect {slot} {there} 1 {IPV4_V2} {FAR_IPV4} 0"))?;
    }
    Ok(())
}

/// By the device's own command the path is the program's: a frame to another MAC reaches nobody.
fn connections_by_command(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    let mut far = Party::start(&testbed, ETHERNET, FAR)?;
    let (own, there) = (host.qp(0, "rc")?, far.qp(0, "rc")?);
    for index in [EMPTY, BEYOND] {
        let answer = host.ask(&format!(
            "command 0 {there} 0 {index} {FAR_IPV4} {FAR_MAC} 49152"
        ))?;
        let refused = answer.contains(BAD_PARAM);
        ensure!(
            refused && answer.ends_with(&format!("errno {EREMOTEIO}")),
            "{answer:?}"
        );
    }
    // The bit for a global route is reserved, and in the place of a LID is nothing.
    let answer = host.tell(&format!(
        "command 0 {there} 0 {IPV4_V2} {FAR_IPV4} {FAR_MAC} 0"
    ))?;
    answer.expect_start(&format!("ok index=3 gid={FAR_IPV4} mac={FAR_MAC}"))?;
    far.tell(&format!(
        "command 0 {own} 0 {IPV4_V2} {HOST_IPV4} {HOST_MAC} 0"
    ))?;
    ensure!(
        host.write_to(&mut far, 0, 0xabcd)? == SUCCESS,
        "not written"
    );
    let (own, there) = (host.qp(1, "rc")?, far.qp(1, "rc")?);
    host.tell(&format!(
        "command 1 {there} 0 {IPV4_V2} {FAR_IPV4} {HOST_MAC} 0"
    ))?;
    far.tell(&format!(
        "command 1 {own} 0 {IPV4_V2} {HOST_IPV4} {HOST_MAC} 0"
    ))?;
    let status = host.write_to(&mut far, 1, 0xdcba)?;
    ensure!(status == RETRY_EXCEEDED, "to another MAC: {status}");
    Ok(())
}

/// One side speaks v1 and the other v2: each sends, and nobody hears.
fn versions_do_not_mix(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    let mut far = Party::start(&testbed, ETHERNET, FAR)?;
    let (own, there) = (host.qp(0, "rc")?, far.qp(0, "rc")?);
    host.tell(&format!("connect 0 {there} 1 {IPV4_V1} {FAR_IPV4} 0"))?;
    far.tell(&format!("connect 0 {own} 1 {IPV4_V2} {HOST_IPV4} 0"))?;
    let status = host.write_to(&mut far, 0, 0x1111)?;
    ensure!(status == RETRY_EXCEEDED, "v1 to v2: {status}");
    Ok(())
}

/// Packets of RoCE v2 have a UDP source port, which libmlx5 may set; those of v1 have none.
fn udp_source_port(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    for (slot, index) in [(0, IPV4_V2), (1, IPV4_V1)] {
        let own = host.qp(slot, "rc")?;
        host.tell(&format!("connect {slot} {own} 1 {index} {HOST_IPV4} 0"))?;
    }
    host.tell("udp 0 55555")?.expect_start("ok port=55555")?;
    host.refused("udp 1 55555", EINVAL)
}

/// A target of dynamic connections has an address of its port.
fn address_of_a_target(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    for index in [LOCAL_V1, IPV4_V2] {
        host.tell(&format!("target {index}"))?;
    }
    for index in [EMPTY, BEYOND] {
        let answer = host.ask(&format!("target {index}"))?;
        ensure!(answer.contains(BAD_PARAM), "{answer:?}");
    }
    // On InfiniBand a target is reached by its LID.
    let mut other = Party::start(&Testbed::new(world)?, INFINIBAND, HOST)?;
    other.tell(&format!("target {EMPTY}")).map(drop)
}

/// The header in front of a datagram, the completion's word on it, and what stock libibverbs makes of both.
fn datagrams(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, ETHERNET, HOST)?;
    let mut far = Party::start(&testbed, ETHERNET, FAR)?;
    host.qp(0, "ud")?;
    let there = far.qp(0, "ud")?;
    // Version 6 with class and label, length of the transport's headers and 8 bytes, what comes next, hops.
    let global = |length: &str, next: &str, from: &str, to: &str| {
        format!("66801234{length}{next}40{from}{to}")
    };
    let untouched = "a5".repeat(20);
    // The checksum is that of these words.
    let ipv4 = format!("{untouched}4568003c00004000401138c37f4201017f420201");
    for (index, gids, kind, header) in [
        (
            0,
            (HOST_LOCAL, FAR_LOCAL),
            0,
            global("0020", "1b", HOST_LOCAL, FAR_LOCAL),
        ),
        (
            2,
            (HOST_IPV4, FAR_IPV4),
            0,
            global("0020", "1b", HOST_IPV4, FAR_IPV4),
        ),
        (
            5,
            (HOST_IPV6, FAR_IPV6),
            9,
            global("0028", "11", HOST_IPV6, FAR_IPV6),
        ),
        (3, (HOST_IPV4, FAR_IPV4), 10, ipv4),
    ] {
        far.tell("receive 0")?;
        let sent = host.tell(&format!("datagram 0 {there} {index} {} 49152 8", gids.1))?;
        sent.expect_start("ok wc=0")?;
        let arrived = far.tell("arrived")?;
        arrived.expect_start(&format!(
            "ok bytes=48 grh=1 data=90 sl={kind} header={header} "
        ))?;
        // The way back begins with the same entry of the receiver's table.
        let back = format!("index={index} back={} hops=64 tclass=104", gids.0);
        ensure!(arrived.ends_with(&back), "{arrived:?}, not {back}");
    }
    // One packet is all that a datagram may be.
    far.tell("receive 0")?;
    let sent = host.tell(&format!("datagram 0 {there} 3 {FAR_IPV4} 49152 1024"))?;
    sent.expect_start("ok wc=0")?;
    far.tell("arrived")?.expect_start("ok bytes=1064 ")?;
    let sent = host.tell(&format!("datagram 0 {there} 3 {FAR_IPV4} 49152 1025"))?;
    ensure!(sent.value::<u32>("wc")? == TOO_LONG, "{sent:?}");
    Ok(())
}

/// What the device tells of its ports by command.
fn capabilities(world: &World) -> Result<()> {
    const GENERAL: u32 = 0;
    const ROCE: u32 = 4;
    let mut host = Party::start(&Testbed::new(world)?, ETHERNET, HOST)?;
    let general = host.tell(&format!("general cap {GENERAL}"))?;
    general.expect_start("ok port_type=1 roce=1 ")?;
    let roce = host.tell(&format!("general cap {ROCE}"))?;
    ensure!(roce.ends_with("l3=6 version=5 port=4791"), "{roce:?}");
    // The context of a virtual port is one of InfiniBand.
    let answer = host.ask("general vport")?;
    ensure!(answer.contains(BAD_PARAM), "{answer:?}");
    for (options, grh) in [(GRH_REQUIRED, 1), (INFINIBAND, 0)] {
        let mut party = Party::start(&Testbed::new(world)?, options, HOST)?;
        party
            .tell("general cap 0")?
            .expect_start("ok port_type=0 roce=0 ")?;
        party
            .tell("general vport")?
            .expect_start(&format!("ok grh={grh}"))?;
    }
    Ok(())
}

/// The network device's MTU and addresses are the topology's.
fn mtu_of_the_topology(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let file = testbed.path().join("topology.toml");
    let node = "[[node]]\n[[node.function]]\nrole = \"host\"\nlink = \"ethernet\"\nmtu = 9000\n\
                mac = \"0c:42:a1:00:00:01\"\naddresses = [\"192.0.2.7\"]\nndev = \"no-such\"\n";
    std::fs::write(&file, node)?;
    let testbed = testbed.with_topology(&file);
    let mut host = Party::start(&testbed, &[], HOST)?;
    host.opened
        .expect_start("ok layer=2 lid=0 sm_lid=0 flags=1 mtu=4096 ")?;
    let gid = host.tell("gid 3")?;
    gid.expect_start("ok gid=00000000000000000000ffffc0000207 type=2 ndev=0 count=4")?;
    let local = host.tell("gid 0")?;
    local.expect_start("ok gid=fe800000000000000e42a1fffe000001 type=1 ")
}

/// A port that functions share: the kernel and libmlx5 refuse what has no global route.
fn grh_required_by_verbs(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, GRH_REQUIRED, HOST)?;
    let mut far = Party::start(&testbed, GRH_REQUIRED, FAR)?;
    let own_gid = FAR_INFINIBAND.replace("0201", "0101");
    host.refused(&format!("handle 0 0 {FAR_INFINIBAND}"), EINVAL)?;
    host.tell(&format!("handle 1 0 {FAR_INFINIBAND}"))?
        .expect_start("ok mac=000000000000 grh=1")?;
    let (own, there) = (host.qp(0, "rc")?, far.qp(0, "rc")?);
    host.refused(&format!("connect 0 {there} 0 0 {FAR_INFINIBAND} 3"), EINVAL)?;
    host.refused(
        &format!("connect 0 {there} 1 1 {FAR_INFINIBAND} 3"),
        ENODATA,
    )?;
    host.refused(&format!("connect 0 {there} 1 8 {FAR_INFINIBAND} 3"), EINVAL)?;
    host.tell(&format!("connect 0 {there} 1 0 {FAR_INFINIBAND} 3"))?;
    far.tell(&format!("connect 0 {own} 1 0 {own_gid} 1"))?;
    ensure!(
        host.write_to(&mut far, 0, 0x2222)? == SUCCESS,
        "not written"
    );
    // The right LID and another port's GID.
    let (own, there) = (host.qp(1, "rc")?, far.qp(1, "rc")?);
    host.tell(&format!("connect 1 {there} 1 0 {own_gid} 3"))?;
    far.tell(&format!("connect 1 {own} 1 0 {own_gid} 1"))?;
    let status = host.write_to(&mut far, 1, 0x3333)?;
    ensure!(status == RETRY_EXCEEDED, "to another GID: {status}");
    Ok(())
}

/// The same by the device's own command.
fn grh_required_by_command(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, GRH_REQUIRED, HOST)?;
    let mut far = Party::start(&testbed, GRH_REQUIRED, FAR)?;
    let own_gid = FAR_INFINIBAND.replace("0201", "0101");
    let (own, there) = (host.qp(0, "rc")?, far.qp(0, "rc")?);
    for (grh, index) in [(0, 0), (1, 1)] {
        let command = format!("command 0 {there} {grh} {index} {FAR_INFINIBAND} 000000000000 3");
        let answer = host.ask(&command)?;
        ensure!(answer.contains(BAD_PARAM), "{answer:?}");
    }
    host.tell(&format!(
        "command 0 {there} 1 0 {FAR_INFINIBAND} 000000000000 3"
    ))?;
    far.tell(&format!("command 0 {own} 1 0 {own_gid} 000000000000 1"))?;
    ensure!(
        host.write_to(&mut far, 0, 0x4444)? == SUCCESS,
        "not written"
    );
    Ok(())
}

/// A global route is optional on an ordinary port; if there is one, its index must be of an entry.
fn index_on_infiniband(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut host = Party::start(&testbed, INFINIBAND, HOST)?;
    let mut far = Party::start(&testbed, INFINIBAND, FAR)?;
    let (own, there) = (host.qp(0, "rc")?, far.qp(0, "rc")?);
    host.refused(
        &format!("connect 0 {there} 1 1 {FAR_INFINIBAND} 3"),
        ENODATA,
    )?;
    host.refused(&format!("connect 0 {there} 1 8 {FAR_INFINIBAND} 3"), EINVAL)?;
    host.tell(&format!("connect 0 {there} 0 0 {FAR_INFINIBAND} 3"))?;
    far.tell(&format!("connect 0 {own} 0 0 {FAR_INFINIBAND} 1"))?;
    ensure!(
        host.write_to(&mut far, 0, 0x5555)? == SUCCESS,
        "not written"
    );
    Ok(())
}

/// A state whose path looks like one of the device.
fn state_with_any_name(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut command = testbed.named("infiniband").command(HOST, "cat");
    let text = succeed(command.arg("/sys/class/infiniband/mlx5_0/node_desc"))?;
    ensure!(text == "node0.host\n", "{text:?}");
    Ok(())
}
