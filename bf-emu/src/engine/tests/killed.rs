//! Ends a process at each step of its requests in turn. Its peer learns of all that happened to it: its new completions have an
//! event, a queue in error is flushed, and the end of the process is an error.

use super::crash::{async_channel, events};
use super::*;
use crate::fabric::objects::{Armed, Channel, ChannelKind, Srq};
use crate::sys::steps;

/// Names of the peer's objects in events.
const CQ_NAME: u64 = 0xc0;
const QP_NAME: u64 = 0x90;
const SRQ_NAME: u64 = 0x50;
/// Receive entries of the peer.
const RECEIVES: u32 = 3;
/// Requests of the process.
const REQUESTS: u32 = 2;
/// More steps than any of these requests has.
const STEPS_MAX: u32 = 2000;

/// What the process does to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Send,
    /// To a shared receive queue, whose limit is reached.
    SendShared,
    WriteImmediate,
    Read,
    /// A write that the peer's key does not permit.
    WriteRefused,
}

/// The process that ends, its peer, and their memory.
struct Scene<'a> {
    world: &'a World,
    process: u32,
    own: Queue,
    peer: Queue,
    /// Slot of the peer's completion queue.
    cq: u32,
    /// Channels of the peer: completion events and asynchronous events.
    channels: [i32; 2],
    /// The peer's shared receive queue.
    shared: Box<[u8]>,
    memory: Box<[u8]>,
    /// Key of the memory at the peer.
    key: u32,
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let mut locked = self.world.fabric.lock();
        let channels = &locked.peek(self.peer.function).channels;
        for (_, _, channel) in channels.iter() {
            sys::close(channel.write_fd);
        }
        for file in self.channels {
            sys::close(file);
        }
        locked.release_context(self.world.owner.context);
        locked.sweep();
    }
}

impl<'a> Scene<'a> {
    fn new(world: &'a mut World, (from, to): (usize, usize), act: Act) -> Self {
        let me = world.owner;
        let process = new_process(world);
        let memory = vec![0x77_u8; 64].into_boxed_slice();
        world.owner.process = process;
        let own = world.queue(from);
        let lkey = world.region(from, &memory, ALL_RIGHTS);
        world.owner = me;
        let world = &*world;
        let peer = world.queue(to);
        world.connect(&own, &peer);
        let rights = match act {
            Act::WriteRefused => access::LOCAL_WRITE,
            _ => ALL_RIGHTS,
        };
        let key = world.region(to, &memory, rights);
        let (completions, channel) = completion_channel(world, to);
        let (notices, event_channel) = async_channel(world, to);
        let mut cq = 0;
        world.change(&peer, |qp| {
            (qp.event_channel, qp.user_handle) = (event_channel, QP_NAME);
            (qp.path.timeout, qp.path.retry_count) = (1, 0);
            cq = qp.recv_cq;
        });
        let mut scene = Self {
            world,
            process,
            own,
            peer,
            cq,
            channels: [completions, notices],
            shared: Box::default(),
            memory,
            key,
        };
        scene.arm(channel);
        scene.post_receives(act, event_channel);
        for _ in 0..REQUESTS {
            scene.lay(act, lkey);
        }
        scene.own.ring_doorbell();
        scene
    }

    fn arm(&self, channel: u32) {
        let mut locked = self.world.fabric.lock();
        let cqs = &mut locked.function(self.peer.function).cqs;
        let cq = cqs.get_mut(self.cq).unwrap();
        (cq.channel, cq.user_handle, cq.armed) = (channel, CQ_NAME, Armed::Next);
    }

    fn post_receives(&mut self, act: Act, event_channel: u32) {
        if act != Act::SendShared {
            for _ in 0..RECEIVES {
                self.peer.post_receive(self.key, &self.memory);
            }
            return;
        }
        // A list whose last word is the doorbell record.
        let (count, stride) = (4, 64);
        let mut list = vec![0_u8; count * stride].into_boxed_slice();
        for (index, entry) in (1_u16..).zip(list.chunks_mut(stride)) {
            entry[2..4].copy_from_slice(&index.to_be_bytes());
            entry[16..32].copy_from_slice(&segment(self.key, &self.memory));
        }
        let record = count * stride - 4;
        list[record..].copy_from_slice(&RECEIVES.to_be_bytes());
        let srq = Srq {
            ring: Ring {
                base: address(&list),
                count: 4,
                log_stride: 6,
            },
            dbrec: address(&list) + record as u64,
            pd: PD,
            sge_max: 1,
            limit: RECEIVES,
            event_channel,
            user_handle: SRQ_NAME,
            ..Srq::default()
        };
        let mut locked = self.world.fabric.lock();
        let srqs = &mut locked.function(self.peer.function).srqs;
        let slot = srqs.insert(self.world.owner, srq).unwrap();
        drop(locked);
        self.world.change(&self.peer, |qp| qp.srq = slot + 1);
        self.shared = list;
    }

    fn lay(&mut self, act: Act, lkey: u32) {
        let remote = RemoteAddress {
            address: address(&self.memory),
            rkey: self.key,
        };
        let data = segment(lkey, &self.memory);
        let both = [&remote.to_bytes()[..], &data].concat();
        let (opcode, body) = match act {
            Act::Send | Act::SendShared => (opcode::SEND, data.to_vec()),
            Act::WriteImmediate => (opcode::RDMA_WRITE_IMM, both),
            Act::Read => (opcode::RDMA_READ, both),
            Act::WriteRefused => (opcode::RDMA_WRITE, both),
        };
        let ctrl = Ctrl {
            opcode,
            ..Ctrl::default()
        };
        self.own.lay(ctrl, &body);
    }

    /// Executes the requests in a process that ends at this step. Returns whether it got so far.
    fn end_at(&self, step: u32) -> bool {
        let fabric = &self.world.fabric;
        let slot = self.process - 1;
        // SAFETY: the child calls only what a signal handler may call, and ends without the C library.
        match unsafe { libc::fork() } {
            0 => {
                sys::forget_pid();
                let mut locked = fabric.lock();
                if let Some(process) = locked.common().processes.get_mut(slot) {
                    process.pid = sys::pid();
                }
                drop(locked);
                fabric.live(slot);
                steps::end_at(step);
                run(fabric, self.own.function, self.own.qpn);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the child is of this thread, and the status of this frame.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(waited, child);
                if libc::WIFEXITED(status) {
                    assert_eq!(libc::WEXITSTATUS(status), 0);
                    return false;
                }
                assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
                true
            }
        }
    }

    /// Number of completion events that the peer reads. The device counts them, but for those whose sender ended while it
    /// sent them.
    fn told(&self) -> u32 {
        let mut name = [0; 8];
        let mut count = 0;
        while sys::read(self.channels[0], &mut name) == Ok(8) {
            assert_eq!(u64::from_ne_bytes(name), CQ_NAME);
            count += 1;
        }
        count
    }

    /// What the peer sees of the requests.
    fn check_requests(&mut self) {
        let mut locked = self.world.fabric.lock();
        for function in [self.own.function, self.peer.function] {
            assert!(locked.function(function).journal.pending().is_none());
        }
        drop(locked);
        let entries = u32::try_from(self.peer.completions().len()).unwrap();
        let told = self.told();
        let wanted = if entries == 0 { 0..=0 } else { 1..=2 };
        assert!(
            wanted.contains(&told),
            "{entries} entries, {told} events of them"
        );
        let locked = self.world.fabric.lock();
        let tables = locked.peek(self.peer.function);
        let cq = tables.cqs.get(self.cq).unwrap();
        let qp = tables.qps.get(self.peer.qpn - QPN_BASE).unwrap();
        assert_eq!(cq.produced, entries);
        assert!((cq.events_sent - cq.events_unsure..=cq.events_sent).contains(&told));
        let taken = tables
            .srqs
            .iter()
            .next()
            .map_or(qp.rq_done, |(.., srq)| srq.taken);
        assert_eq!(taken, entries);
        let notices = events(self.channels[1]);
        let of = |name: u64| notices.iter().filter(|notice| notice.0 == name).count();
        assert!(of(QP_NAME) <= 2 && of(SRQ_NAME) <= 2, "{notices:?}");
        assert_eq!(of(QP_NAME) > 0, qp.state == state::ERR, "{notices:?}");
        if qp.state == state::ERR {
            assert_eq!(entries, RECEIVES);
        }
        if let Some((.., srq)) = tables.srqs.iter().next() {
            assert_eq!(of(SRQ_NAME) > 0, srq.limit == 0, "{notices:?}");
            assert!(srq.taken == 0 || srq.limit == 0);
        }
    }

    /// The peer's next request tells that the process has ended.
    fn check_end(&mut self) {
        if self.world.state(&self.peer) == state::ERR {
            return;
        }
        let channel = {
            let locked = self.world.fabric.lock();
            locked
                .peek(self.peer.function)
                .cqs
                .get(self.cq)
                .unwrap()
                .channel
        };
        self.arm(channel);
        let memory = self.memory.clone();
        let key = self.key;
        let mut found = self
            .world
            .post(&mut self.peer, opcode::SEND, 0, &[&segment(key, &memory)]);
        if found.is_empty() {
            self.world.change(&self.peer, |qp| qp.give_up_at_ns = 1);
            run(&self.world.fabric, self.peer.function, self.peer.qpn);
            found = self.peer.completions();
        }
        assert_eq!(found[0].syndrome, syndrome::TRANSPORT_RETRY_EXC_ERR);
        assert_eq!(self.told(), 1);
    }
}

/// A process that takes the number of a child later.
fn new_process(world: &World) -> u32 {
    let mut locked = world.fabric.lock();
    let mine = world.owner.process - 1;
    let processes = &mut locked.common().processes;
    let me = *processes.get(mine).unwrap();
    let slot = processes.insert(Owner::default(), me).unwrap();
    world.fabric.renew_life(&locked, slot).unwrap();
    slot + 1
}

/// The read end of a new channel of completion events, and its number, counted from 1.
fn completion_channel(world: &World, function: usize) -> (i32, u32) {
    let (read_end, write_fd) = sys::pipe(false).unwrap();
    sys::set_nonblocking(read_end).unwrap();
    let channel = Channel {
        kind: ChannelKind::Completion,
        write_fd,
        ..Channel::default()
    };
    let mut locked = world.fabric.lock();
    let channels = &mut locked.function(function).channels;
    (read_end, channels.insert(world.owner, channel).unwrap() + 1)
}

/// Ends the process at each step. Returns the number of steps.
fn at_each_step(functions: (usize, usize), act: Act) -> u32 {
    let mut world = World::new();
    for step in 1..STEPS_MAX {
        let mut scene = Scene::new(&mut world, functions, act);
        let ended = scene.end_at(step);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scene.check_requests();
            scene.check_end();
        }));
        assert!(checked.is_ok(), "{act:?} from {functions:?}, step {step}");
        if !ended {
            return step;
        }
    }
    unreachable!("more than {STEPS_MAX} steps")
}

#[test]
fn a_peer_learns_of_all_at_whatever_step_a_process_ends() {
    // SAFETY: permits the children to write to this process, as each process of the device does.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    for functions in [(HOST, FAR), (FAR, HOST)] {
        for act in [
            Act::Send,
            Act::SendShared,
            Act::WriteImmediate,
            Act::Read,
            Act::WriteRefused,
        ] {
            let steps = at_each_step(functions, act);
            assert!(steps > 10, "{act:?} has {steps} steps");
        }
    }
}
