//! Multicast groups: `programs/mcast_agent.c` attaches queue pairs and sends, `programs/cm_agent.c`
//! joins groups. `mckey` and pyverbs' tests are in `cargo xtask suites rdmacm pyverbs`.

use crate::agent::Driven;
use crate::connections::{self, TCP, UDP, value};
use crate::harness::Case;
use crate::process;
use crate::world::{LIMIT, Testbed, World, succeed};
use anyhow::{Context, Result, ensure};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// One command; the slowest makes 240 queue pairs.
const ANSWER: Duration = Duration::from_secs(60);

const INFINIBAND: &[&str] = &[];
const ETHERNET: &[&str] = &["--link", "ethernet"];

/// The functions, and the addresses of their ports.
const HOST: &str = "node0.host";
const DPU: &str = "node0.dpu";
const FAR: &str = "node1.host";
const HOST_ADDRESS: &str = "127.66.1.1";
const FAR_ADDRESS: &str = "127.66.2.1";

/// A group, and its GID on InfiniBand in the port space UDP.
const GROUP: &str = "239.1.2.3";
const GROUP_GID: &str = "ff12:4001:ffff::f01:203";
const GROUP_GID_HEX: &str = "ff124001ffff0000000000000f010203";
/// Its GIDs on Ethernet.
const GROUP_V1: &str = "ff0e::ffff:ef01:203";
const GROUP_V1_HEX: &str = "ff0e00000000000000000000ffffef010203";
const GROUP_V2: &str = "::ffff:239.1.2.3";
/// Another group.
const OTHER: &str = "239.1.2.4";
const OTHER_GID: &str = "ff0e::77";
const OTHER_GID_HEX: &str = "ff0e0000000000000000000000000077";

/// `RDMA_UDP_QKEY`, and another key.
const QKEY: u32 = 0x0123_4567;
const WRONG_QKEY: u32 = 0x0777;
/// Destination of multicast messages.
const QPN: i64 = 0xff_ffff;

/// Events (`enum rdma_cm_event_type`), and flags of a membership.
const JOINED: i64 = 12;
const LOST: i64 = 13;
const MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

const EINVAL: &str = "Invalid argument";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("mcast_infiniband", infiniband),
        Case::new("mcast_ethernet", ethernet),
        Case::new("mcast_loopback", loopback),
        Case::new("mcast_death_of_a_receiver", death),
        Case::new("mcast_refusals", refusals),
        Case::new("mcast_limits", limits),
        Case::new("mcast_memberships", memberships),
        Case::new("mcast_memberships_roce", memberships_roce),
        Case::new("mcast_lost_memberships", lost),
    ]
}

/// A running agent with an open device.
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

/// Address of messages.
#[derive(Debug, Clone, Copy)]
struct To {
    gid: &'static str,
    lid: i64,
    qpn: i64,
    qkey: u32,
    sgid_index: u8,
    is_global: bool,
}

impl To {
    /// A group with the LID that its members got.
    fn group(gid: &'static str, lid: i64) -> Self {
        Self {
            gid,
            lid,
            qpn: QPN,
            qkey: QKEY,
            sgid_index: 0,
            is_global: true,
        }
    }
}

impl Party {
    fn start(testbed: &Testbed<'_>, options: &[&str], function: &'static str) -> Result<Self> {
        Driven::start(testbed, options, function, ("mcast_agent", ANSWER)).map(Self)
    }

    /// With a queue pair in slot 0 that is attached to a group and has receives.
    fn receiver(
        testbed: &Testbed<'_>,
        options: &[&str],
        function: &'static str,
        (gid, lid): (&str, i64),
    ) -> Result<Self> {
        let mut party = Self::start(testbed, options, function)?;
        party.attached(0, "ud", (gid, lid))?;
        party.tell("receive 0 8")?;
        Ok(party)
    }

    fn refused(&mut self, command: &str, why: &str) -> Result<()> {
        let answer = self.ask(command)?;
        answer.expect_refusal()?;
        ensure!(answer.ends_with(why), "{answer:?}, not {why}");
        Ok(())
    }

    fn qp(&mut self, slot: u32, kind: &str) -> Result<u32> {
        self.tell(&format!("qp {slot} {kind} {QKEY}"))?.value("qpn")
    }

    fn attached(&mut self, slot: u32, kind: &str, (gid, lid): (&str, i64)) -> Result<u32> {
        let qpn = self.qp(slot, kind)?;
        self.tell(&format!("attach {slot} {gid} {lid}"))?;
        Ok(qpn)
    }

    /// Sends a message. Its completion is success, whoever receives it.
    fn send(&mut self, slot: u32, to: To, value: u64) -> Result<()> {
        let To {
            gid,
            lid,
            qpn,
            qkey,
            sgid_index,
            is_global,
        } = to;
        let global = u8::from(is_global);
        let line = format!("send {slot} {gid} {lid} {qpn} {qkey} {sgid_index} {global} {value}");
        let status: u32 = self.tell(&line)?.value("wc")?;
        ensure!(status == 0, "{}: status {status} of {to:?}", self.name);
        Ok(())
    }

    /// The queue pair has received this one message. Returns its header.
    fn got(&mut self, slot: u32, value: u64) -> Result<String> {
        let answer = self.tell(&format!("got {slot}"))?;
        let found: u64 = answer.value("value")?;
        let (status, bytes, grh): (u32, u32, u32) = (
            answer.value("wc")?,
            answer.value("bytes")?,
            answer.value("grh")?,
        );
        ensure!(
            (found, status, bytes, grh) == (value, 0, 48, 1),
            "{}: {answer:?}, not {value}",
            self.name
        );
        self.nothing(slot)?;
        answer.value("head")
    }

    fn nothing(&mut self, slot: u32) -> Result<()> {
        let answer = self.tell(&format!("got {slot}"))?;
        ensure!(answer.ends_with("none"), "{}: {answer:?}", self.name);
        Ok(())
    }
}

/// A program of the connection manager.
fn manager(testbed: &Testbed<'_>, options: &[&str], function: &str) -> Result<connections::Agent> {
    connections::Agent::start_with(testbed, options, function, None)
}

/// A new identifier of a port space that is bound to an address.
fn bound(agent: &mut connections::Agent, port_space: u32, address: &str) -> Result<i64> {
    let id = agent.create(port_space)?;
    agent.tell(&format!("bind 0 {id} {address} 0"))?;
    Ok(id)
}

/// Joins a group. Returns the number of the membership, and the LID of the group.
fn join(agent: &mut connections::Agent, id: i64, group: &str, flags: u32) -> Result<(i64, i64)> {
    let asked = agent.tell(&format!("join 0 {id} {group} {flags}"))?;
    let event = agent.expect(JOINED)?;
    let (number, name) = (value(&asked, "id")?, value(&asked, "uid")?);
    ensure!(
        (event.id, event.uid, event.qp, event.qkey) == (number, name, QPN, i64::from(QKEY)),
        "{event:?} after {asked}"
    );
    Ok((number, event.lid))
}

/// Datagrams that a function's queue pairs have dropped.
fn dropped(testbed: &Testbed<'_>, function: &str) -> Result<u64> {
    testbed.stats()?.refusals(function, "dropped")
}

fn dump(testbed: &Testbed<'_>) -> Result<String> {
    // Dead processes are removed by this command.
    succeed(&mut testbed.emulator("stats"))?;
    process::stdout(&mut testbed.emulator("dump"), LIMIT)
}

/// One sender; on InfiniBand a message reaches the ports that have joined.
fn infiniband(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut far = manager(&testbed, INFINIBAND, FAR)?;
    let id = bound(&mut far, UDP, FAR_ADDRESS)?;
    let (_, lid) = join(&mut far, id, GROUP, SEND_ONLY)?;
    let group = (GROUP_GID, lid);
    let mut sender = Party::start(&testbed, INFINIBAND, FAR)?;
    let qpn = sender.qp(0, "ud")?;
    let mut first = Party::receiver(&testbed, INFINIBAND, HOST, group)?;
    let mut second = Party::start(&testbed, INFINIBAND, HOST)?;
    second.attached(0, "ud", group)?;
    let mut third = Party::receiver(&testbed, INFINIBAND, DPU, group)?;
    let to = To::group(GROUP_GID, lid);

    sender.send(0, to, 1)?;
    first.nothing(0)?;
    third.nothing(0)?;

    let mut host = manager(&testbed, INFINIBAND, HOST)?;
    let id = bound(&mut host, UDP, HOST_ADDRESS)?;
    let (membership, same) = join(&mut host, id, GROUP, MEMBER)?;
    ensure!(same == lid, "one group has the LIDs {lid} and {same}");
    let before = dropped(&testbed, HOST)?;
    sender.send(0, to, 2)?;
    let head = first.got(0, 2)?;
    ensure!(
        head.starts_with('6') && head.ends_with(GROUP_GID_HEX),
        "{head}"
    );
    // The second one has no receive, and nobody waits for it.
    second.nothing(0)?;
    third.nothing(0)?;
    ensure!(dropped(&testbed, HOST)? == before + 1, "it is not counted");
    let from: u32 = {
        sender.send(0, to, 3)?;
        let answer = first.tell("got 0")?;
        answer.value("from")?
    };
    ensure!(from == qpn, "from {from}, not {qpn}");

    // A member that only sends receives nothing.
    let mut dpu = manager(&testbed, INFINIBAND, DPU)?;
    let id = bound(&mut dpu, UDP, "0.0.0.0")?;
    dpu.refused(&format!("join 0 {id} {GROUP} {SEND_ONLY}"), EINVAL)?;
    let id = dpu.create(UDP)?;
    dpu.tell(&format!("resolve 0 {id} {GROUP} 0 1000"))?;
    dpu.expect(0)?;
    let (sends, _) = join(&mut dpu, id, GROUP, SEND_ONLY)?;
    second.tell("receive 0 8")?;
    sender.send(0, to, 4)?;
    first.got(0, 4)?;
    second.got(0, 4)?;
    third.nothing(0)?;
    join(&mut dpu, id, GROUP, MEMBER)?;
    dpu.tell(&format!("leave 0 {sends}"))?;
    sender.send(0, to, 5)?;
    for party in [&mut first, &mut second, &mut third] {
        party.got(0, 5)?;
    }

    // What is not addressed to the group.
    for wrong in [
        To { lid: lid + 1, ..to },
        To { lid: 1, ..to },
        To { qpn: 0x48, ..to },
        To {
            is_global: false,
            ..to
        },
        To {
            qkey: WRONG_QKEY,
            ..to
        },
        To {
            sgid_index: 7,
            ..to
        },
        To {
            gid: OTHER_GID,
            ..to
        },
    ] {
        sender.send(0, wrong, 6)?;
        for party in [&mut first, &mut second, &mut third] {
            party.nothing(0).with_context(|| format!("{wrong:?}"))?;
        }
    }

    host.tell(&format!("leave 0 {membership}"))?;
    sender.send(0, to, 7)?;
    third.got(0, 7)?;
    first.nothing(0)
}

/// On Ethernet nobody needs to join. The header is that of each version of RoCE.
fn ethernet(world: &World) -> Result<()> {
    const IPV4_V1: u8 = 2;
    const IPV4_V2: u8 = 3;
    const IPV6_V2: u8 = 5;
    let testbed = Testbed::new(world)?;
    let mut sender = Party::start(&testbed, ETHERNET, FAR)?;
    sender.qp(0, "ud")?;
    let mut host = Party::receiver(&testbed, ETHERNET, HOST, (GROUP_V2, 0))?;
    let mut dpu = Party::receiver(&testbed, ETHERNET, DPU, (GROUP_V2, 0))?;
    for party in [&mut host, &mut dpu] {
        party.tell(&format!("attach 0 {GROUP_V1} 0"))?;
        party.tell(&format!("attach 0 {OTHER_GID} 0"))?;
    }
    let to = |gid, sgid_index| To {
        sgid_index,
        ..To::group(gid, 0)
    };
    let untouched = "a5".repeat(20);
    for (value, index, gid, start, end) in [
        (1, IPV4_V2, GROUP_V2, untouched.as_str(), "ef010203"),
        (
            2,
            IPV4_V1,
            GROUP_V1,
            "6",
            GROUP_V1_HEX.trim_start_matches("ff0e0000"),
        ),
        (3, IPV6_V2, OTHER_GID, "6", OTHER_GID_HEX),
    ] {
        sender.send(0, to(gid, index), value)?;
        for party in [&mut host, &mut dpu] {
            let head = party.got(0, value)?;
            ensure!(
                head.starts_with(start) && head.ends_with(end),
                "{gid}: {head}"
            );
        }
    }
    for wrong in [
        // No header has addresses of both families.
        to(GROUP_V2, IPV6_V2),
        to(OTHER_GID, IPV4_V2),
        to("::ffff:239.1.2.9", IPV4_V2),
        To {
            qkey: WRONG_QKEY,
            ..to(GROUP_V2, IPV4_V2)
        },
    ] {
        sender.send(0, wrong, 4)?;
        for party in [&mut host, &mut dpu] {
            party.nothing(0).with_context(|| format!("{wrong:?}"))?;
        }
    }
    host.tell(&format!("detach 0 {GROUP_V2} 0"))?;
    sender.send(0, to(GROUP_V2, IPV4_V2), 5)?;
    host.nothing(0)?;
    dpu.got(0, 5).map(drop)
}

/// The sender's own queue pairs, and a sender that does not receive its own messages.
fn loopback(world: &World) -> Result<()> {
    const LID: i64 = 0xc055;
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, INFINIBAND, HOST)?;
    for (slot, kind) in [(0, "ud"), (1, "blocked"), (2, "blocked")] {
        party.attached(slot, kind, (OTHER_GID, LID))?;
        party.tell(&format!("receive {slot} 8"))?;
    }
    let to = To::group(OTHER_GID, LID);
    for (sender, receivers) in [(0, [0, 1, 2].as_slice()), (1, &[0, 2]), (2, &[0, 1])] {
        let value = 10 + u64::from(sender);
        party.send(sender, to, value)?;
        for slot in 0..3 {
            match receivers.contains(&slot) {
                true => party.got(slot, value).map(drop)?,
                false => party.nothing(slot)?,
            }
        }
    }
    // A queue pair that is attached with two LIDs gets a message once.
    party.tell(&format!("attach 0 {OTHER_GID} {}", LID + 1))?;
    party.send(0, to, 20)?;
    party.got(0, 20).map(drop)
}

/// A receiver that is killed. The others receive, and nothing of it remains.
fn death(world: &World) -> Result<()> {
    const LID: i64 = 0xc001;
    let testbed = Testbed::new(world)?;
    let mut sender = Party::receiver(&testbed, INFINIBAND, HOST, (OTHER_GID, LID))?;
    let mut killed = Party::receiver(&testbed, INFINIBAND, HOST, (OTHER_GID, LID))?;
    let mut last = Party::receiver(&testbed, INFINIBAND, HOST, (OTHER_GID, LID))?;
    let attached = |expect: usize| {
        let shown = dump(&testbed)?;
        let found = shown.matches(" multicast ").count();
        ensure!(
            found == expect,
            "{found} attachments, not {expect}:\n{shown}"
        );
        Ok(())
    };
    attached(3)?;
    killed.end()?;
    for value in 1..=3 {
        sender.send(0, To::group(OTHER_GID, LID), value)?;
        sender.got(0, value)?;
        last.got(0, value)?;
    }
    attached(2)?;
    for party in [&mut sender, &mut last] {
        party.end()?;
    }
    attached(0)
}

/// What the kernel refuses.
fn refusals(world: &World) -> Result<()> {
    const BUSY: &str = "Device or resource busy";
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, INFINIBAND, HOST)?;
    party.qp(0, "ud")?;
    party.qp(1, "rc")?;
    for line in [
        format!("attach 1 {OTHER_GID} 0xc001"),
        "attach 0 fe80::1 0xc001".to_owned(),
        "attach 0 ::ffff:10.0.0.1 0xc001".to_owned(),
        format!("attach 0 {OTHER_GID} 0xbfff"),
        format!("attach 0 {OTHER_GID} 0xffff"),
        format!("detach 0 {OTHER_GID} 0xc001"),
    ] {
        party.refused(&line, EINVAL)?;
    }
    // A second attachment changes nothing.
    for _ in 0..2 {
        party.tell(&format!("attach 0 {OTHER_GID} 0xc001"))?;
    }
    party.refused(&format!("detach 0 {OTHER_GID} 0xc002"), EINVAL)?;
    party.refused("destroy 0", BUSY)?;
    party.tell(&format!("detach 0 {OTHER_GID} 0xc001"))?;
    party.refused(&format!("detach 0 {OTHER_GID} 0xc001"), EINVAL)?;
    party.tell("destroy 0")?;
    // Ethernet ignores the LID.
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, ETHERNET, HOST)?;
    party.attached(0, "ud", (OTHER_GID, 5))?;
    party.refused(&format!("detach 0 {OTHER_GID} 6"), EINVAL)?;
    party.refused("destroy 0", BUSY)
}

/// The limits are those that the device advertises.
fn limits(world: &World) -> Result<()> {
    const LID: i64 = 0xc001;
    const ENOMEM: u32 = 12;
    let testbed = Testbed::new(world)?;
    let mut party = Party::start(&testbed, INFINIBAND, HOST)?;
    let advertised = |key: &str| party.opened.value::<u64>(key);
    let (groups, attach, total) = (
        advertised("groups")?,
        advertised("attach")?,
        advertised("total")?,
    );
    ensure!(
        groups * attach == total && advertised("block")? == 1,
        "{:?}",
        party.opened
    );
    let crowd = party.tell(&format!("crowd {OTHER_GID} {LID} {}", attach + 5))?;
    let found: (u64, u32) = (crowd.value("attached")?, crowd.value("errno")?);
    ensure!(found == (attach, ENOMEM), "{crowd:?}");
    party.qp(0, "ud")?;
    let many = party.tell(&format!("groups 0 {LID} {}", groups + 5))?;
    let found: (u64, u32) = (many.value("attached")?, many.value("errno")?);
    // The crowd has one group.
    ensure!(found == (groups - 1, ENOMEM), "{many:?}");
    ensure!(
        testbed.stats()?.refusals(HOST, "table_full")? == 2,
        "it is not counted"
    );
    // Another function has groups of its own.
    let mut other = Party::start(&testbed, INFINIBAND, DPU)?;
    other.attached(0, "ud", (OTHER_GID, LID)).map(drop)
}

/// The commands of memberships, on InfiniBand.
fn memberships(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = manager(&testbed, INFINIBAND, HOST)?;
    agent.tell("open")?;
    let unbound = agent.create(UDP)?;
    let stream = bound(&mut agent, TCP, HOST_ADDRESS)?;
    let id = bound(&mut agent, UDP, HOST_ADDRESS)?;
    for (line, why) in [
        (format!("join 0 {unbound} {GROUP} 0"), EINVAL),
        (format!("join 0 {stream} {GROUP} 0"), EINVAL),
        (format!("join 0 {id} {GROUP} 2"), EINVAL),
        (format!("join 1 {id} {GROUP} 0"), EINVAL),
        (
            "join 0 999 239.1.2.3 0".to_owned(),
            "No such file or directory",
        ),
        ("raw 0 22 152 3 160".to_owned(), "No space left on device"),
        ("raw 0 17 16 3 24".to_owned(), "No space left on device"),
        ("leave 0 999".to_owned(), "No such file or directory"),
    ] {
        agent.refused(&line, why)?;
    }
    let (first, lid) = join(&mut agent, id, GROUP, MEMBER)?;
    let (second, other_lid) = join(&mut agent, id, OTHER, SEND_ONLY)?;
    ensure!(
        lid > 0xc000 && other_lid > 0xc000 && lid != other_lid,
        "LIDs {lid:#x} and {other_lid:#x}"
    );
    agent.refused(&format!("leave 1 {first}"), EINVAL)?;
    let left = agent.tell(&format!("leave 0 {first}"))?;
    ensure!(value(&left, "events")? == 1, "{left}");
    agent.refused(&format!("leave 0 {first}"), "No such file or directory")?;
    // An event that nobody has read ends with its membership.
    let asked = agent.tell(&format!("join 0 {id} {GROUP} 0"))?;
    let left = agent.tell(&format!("leave 0 {}", value(&asked, "id")?))?;
    ensure!(value(&left, "events")? == 0, "{left}");
    agent.expect_nothing()?;
    // An event moves with the identifier to another file.
    let asked = agent.tell(&format!("join 0 {id} {GROUP} 0"))?;
    agent.tell(&format!("migrate 1 {id} 0"))?;
    agent.expect_nothing()?;
    let moved = agent.tell("event 1 10000")?;
    ensure!(value(&moved, "uid")? == value(&asked, "uid")?, "{moved}");
    agent.tell(&format!("leave 1 {second}"))?;
    // The last one ends with the identifier.
    ensure!(
        dump(&testbed)?.matches(" rdma_cm_member ").count() == 1,
        "one remains"
    );
    agent.tell(&format!("destroy 1 {id}"))?;
    ensure!(
        !dump(&testbed)?.contains(" rdma_cm_member "),
        "none remains"
    );
    // And with the process.
    let id = bound(&mut agent, UDP, HOST_ADDRESS)?;
    join(&mut agent, id, GROUP, MEMBER)?;
    agent.talk.end()?;
    ensure!(
        !dump(&testbed)?.contains(" rdma_cm_member "),
        "a dead member remains"
    );
    Ok(())
}

/// Memberships on Ethernet have no LID.
fn memberships_roce(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let mut agent = manager(&testbed, ETHERNET, HOST)?;
    let id = bound(&mut agent, UDP, HOST_ADDRESS)?;
    agent.refused(&format!("join 0 {id} 0.0.0.0 0"), EINVAL)?;
    let (membership, lid) = join(&mut agent, id, GROUP, MEMBER)?;
    ensure!(lid == 0, "LID {lid:#x}");
    let shown = dump(&testbed)?;
    ensure!(shown.contains("gid ::ffff:239.1.2.3"), "{shown}");
    agent.tell(&format!("leave 0 {membership}")).map(drop)
}

/// A port that goes down loses its memberships, and a port that is down gets none.
fn lost(world: &World) -> Result<()> {
    let testbed = Testbed::new(world)?;
    let port = |state: &str| {
        let mut command = testbed.emulator("port");
        succeed(command.args([HOST, "1", state])).map(drop)
    };
    let mut host = manager(&testbed, INFINIBAND, HOST)?;
    let mut far = manager(&testbed, INFINIBAND, FAR)?;
    let id = bound(&mut host, UDP, HOST_ADDRESS)?;
    let far_id = bound(&mut far, UDP, FAR_ADDRESS)?;
    let (membership, lid) = join(&mut host, id, GROUP, MEMBER)?;
    join(&mut far, far_id, GROUP, MEMBER)?;
    port("down")?;
    let event = host.expect_status(LOST, -i64::from(libc::ENETRESET))?;
    ensure!(event.id == membership, "{event:?}");
    far.expect_nothing()?;
    host.tell(&format!("join 0 {id} {OTHER} 0"))?;
    host.expect_status(LOST, -i64::from(libc::ETIMEDOUT))?;
    port("up")?;
    host.expect_nothing()?;
    let left = host.tell(&format!("leave 0 {membership}"))?;
    // That it was joined, and that it was lost.
    ensure!(value(&left, "events")? == 2, "{left}");
    let (_, again) = join(&mut host, id, GROUP, MEMBER)?;
    ensure!(
        again == lid,
        "the group has moved from {lid:#x} to {again:#x}"
    );
    Ok(())
}
