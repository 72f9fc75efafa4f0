//! A job that tests the offload: alltoallvs of random counts on several communicators, with every byte verified.
//!
//! All ranks derive the same counts from the seed. Each rank therefore knows the counts of all other ranks.

mod messages;
mod mix;

use super::{
    Client, ClientArgs, ClientStats, CommunicatorId, Memory, Registered, Request, Scheme, Side,
    TcpExchange,
};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use messages::Pairs;
use mix::mix;
use std::time::{Duration, Instant};
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::pattern::Pattern;

/// Time of the sleep in which a test kills rank 0.
const STALL: Duration = Duration::from_secs(240);

/// What a rank of the check is told.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// This rank.
    #[arg(long)]
    pub rank: u32,
    /// Number of ranks.
    #[arg(long)]
    pub size: u32,
    /// Address on which rank 0 listens for the other ranks.
    #[arg(long, value_name = "ADDR:PORT")]
    pub meet: String,
    /// How to create keys.
    #[arg(long, default_value = "stock")]
    pub scheme: Scheme,
    /// Alltoallvs on each communicator.
    #[arg(long, default_value_t = 20)]
    pub rounds: u32,
    /// Untimed rounds at the start.
    #[arg(long, default_value_t = 2)]
    pub warm_up: u32,
    /// Longest block, in bytes.
    #[arg(long, default_value_t = 100_000, value_name = "BYTES")]
    pub block: usize,
    /// All blocks have the length of --block.
    #[arg(long)]
    pub equal: bool,
    /// Random seed of the counts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Registers the buffers once, instead of mapping new ones for each round.
    #[arg(long)]
    pub keep_buffers: bool,
    /// Uses the world alone, and not two communicators at the same time.
    #[arg(long)]
    pub world_only: bool,
    /// Sends messages between all ranks in each round, beside the alltoallvs.
    #[arg(long)]
    pub messages: bool,
    /// In this round, rank 0 sends the last rank a byte more than it expects.
    #[arg(long, value_name = "ROUND")]
    pub wrong_count_in: Option<u32>,
    /// In this round, rank 0 does not take part until it is killed.
    #[arg(long, value_name = "ROUND")]
    pub stall_in: Option<u32>,
    /// Where the services are.
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Limits of the block length and of the number of ranks. The buffers must fit in memory.
const BLOCK_MAX: usize = 1 << 30;
const SIZE_MAX: u32 = 4096;

/// A communicator and its state.
#[derive(Debug)]
struct Group {
    id: CommunicatorId,
    members: Vec<u32>,
}

/// The buffers of one call. The fields drop in this order: registrations before their memory.
#[derive(Debug)]
struct Call {
    registered: Option<(Registered, Registered)>,
    send: Buffer,
    receive: Buffer,
    sends: Layout,
    receives: Layout,
    /// The call sends from a copy of the receive buffer.
    in_place: bool,
    rooted: Option<(bool, usize)>,
}

#[derive(Debug, Default)]
struct Layout {
    counts: Vec<usize>,
    displacements: Vec<usize>,
    length: usize,
}

/// Runs the check as one rank. Each line of output goes to `print`.
///
/// # Errors
/// The cause of the failure. An error about a wrong byte contains its position.
pub fn run(args: &CheckArgs, mut print: impl FnMut(&str)) -> Result<()> {
    ensure!(
        args.rank < args.size && args.size <= SIZE_MAX,
        "rank {} of {}",
        args.rank,
        args.size
    );
    ensure!(args.block <= BLOCK_MAX, "a block of {} bytes", args.block);
    let options = args.client.clone().options(args.scheme)?;
    let mut exchange = TcpExchange::meet(&args.meet, args.rank, args.size, options.connect_limit)
        .with_context(|| format!("meeting the other ranks at {}", args.meet))?;
    let mut client = Client::connect(&options, args.rank, args.size, &mut exchange)?;
    let groups = groups(args);
    for group in groups.iter().skip(1) {
        client.add_communicator(group.id, &group.members)?;
    }
    print(&format!(
        "rank {}: connected, UCX {}",
        args.rank,
        client.ucx_version()
    ));
    let mut kept = if args.keep_buffers {
        Some(kept_call(args, &groups[0], &mut client)?)
    } else {
        None
    };
    let pairs = pairs(args);
    let (mut verified, mut time, mut before) = (0, Duration::ZERO, ClientStats::default());
    for round in 0..args.rounds {
        if round == args.warm_up {
            before = client.stats();
            time = Duration::ZERO;
        }
        let mut calls = match kept.take() {
            Some(call) => vec![call],
            None => groups
                .iter()
                .map(|group| prepare(args, group, round))
                .collect::<Result<Vec<_>>>()?,
        };
        for (group, call) in groups.iter().zip(&mut calls) {
            fill(args, group, round, call);
        }
        let mut messages = if args.messages {
            messages::prepare(&pairs, round)?
        } else {
            Vec::new()
        };
        if args.stall_in == Some(round) {
            print(&format!("rank {}: round {round}", args.rank));
            if args.rank == 0 {
                // The test kills this process during the sleep. The sleep is bounded in case no signal arrives.
                std::thread::sleep(STALL);
            }
        }
        let start = Instant::now();
        let mut of_messages = messages::begin(&mut client, &mut messages)?;
        let mut requests = Vec::with_capacity(groups.len());
        for (group, call) in groups.iter().zip(&mut calls) {
            requests.push(begin(&mut client, group, call)?);
        }
        end(&mut client, requests, &mut of_messages).with_context(|| format!("round {round}"))?;
        time += start.elapsed();
        for (group, call) in groups.iter().zip(&calls) {
            verified += verify(args, group, round, call)?;
        }
        verified += messages::verify(&pairs, round, &messages, &of_messages)?;
        if args.keep_buffers {
            kept = calls.pop();
        }
    }
    let timed = args.rounds.saturating_sub(args.warm_up).max(1);
    let after = client.stats();
    let per_round = |after: f64, before: f64| (after - before) / f64::from(timed);
    let hits = match (
        after.host_hits,
        after.host_misses,
        after.alias_hits,
        after.alias_misses,
    ) {
        (Some(hh), Some(hm), Some(ah), Some(am)) => {
            format!(", host keys {hh} hits {hm} misses, aliases {ah} hits {am} misses")
        }
        _ => String::new(),
    };
    print(&format!(
        "rank {}: {verified} bytes verified in {} calls; {:.1} us per round, {:.1} us of it registration{hits}",
        args.rank,
        after.calls,
        time.as_secs_f64() * 1e6 / f64::from(timed),
        per_round(after.registration_us, before.registration_us)
    ));
    if let Some((send, receive)) = kept.and_then(|call| call.registered) {
        client.release(send)?;
        client.release(receive)?;
    }
    client.close()?;
    Ok(())
}

/// Waits for all calls of a round. The requests of messages have their lengths then.
fn end(client: &mut Client, calls: Vec<Request>, messages: &mut [Request]) -> Result<()> {
    for call in calls {
        client.wait(call)?;
    }
    for message in messages {
        client.wait_for(message)?;
    }
    Ok(())
}

fn pairs(args: &CheckArgs) -> Pairs {
    Pairs {
        rank: args.rank,
        size: args.size,
        seed: args.seed,
        block: args.block,
    }
}

/// The world, and this rank's half of it in reverse order. Neighbours belong to different halves.
fn groups(args: &CheckArgs) -> Vec<Group> {
    let world = Group {
        id: CommunicatorId::WORLD,
        members: (0..args.size).collect(),
    };
    let half = args.rank % 2;
    let half = Group {
        id: CommunicatorId(u64::from(1 + half)),
        members: (0..args.size)
            .rev()
            .filter(|rank| rank % 2 == half)
            .collect(),
    };
    if args.world_only || args.keep_buffers {
        vec![world]
    } else {
        vec![world, half]
    }
}

/// Bytes from `source` to `destination`: none, a few, several hundred around the shortest block that the device reads,
/// or many.
fn count(args: &CheckArgs, group: &Group, round: u32, source: u32, destination: u32) -> usize {
    if args.equal {
        return args.block;
    }
    match rooted(args, group, round) {
        Some((true, root)) if group.members[root] != source => return 0,
        Some((false, root)) if group.members[root] != destination => return 0,
        _ => {}
    }
    let bits = mix(&[
        args.seed,
        group.id.0,
        u64::from(round),
        u64::from(source),
        u64::from(destination),
    ]);
    let below = |limit: usize| usize::try_from((bits >> 8) % (limit as u64 + 1)).unwrap_or(limit);
    match bits & 7 {
        0 | 1 => 0,
        2 => below(args.block.min(64)),
        3 | 4 => below(args.block.min(2000)),
        _ => below(args.block),
    }
}

/// Whether a round is a scatter, or a gather, and its root; `None` for an alltoallv.
fn rooted(args: &CheckArgs, group: &Group, round: u32) -> Option<(bool, usize)> {
    let is_rooted =
        !args.equal && args.wrong_count_in != Some(round) && [2, 3].contains(&(round % 5));
    is_rooted.then(|| (round % 5 == 3, round as usize % group.members.len()))
}

fn prepare(args: &CheckArgs, group: &Group, round: u32) -> Result<Call> {
    let gap = |peer: u32| (mix(&[args.seed, u64::from(peer)]) % 3) as usize * 13;
    let counts = |of: &dyn Fn(u32) -> usize| group.members.iter().map(|peer| of(*peer)).collect();
    let in_place = !args.equal && round % 5 == 4;
    let receives = Layout::new(
        counts(&|peer| {
            if in_place {
                symmetric(args, group, round, peer)
            } else {
                count(args, group, round, peer, args.rank)
            }
        }),
        gap,
    );
    let mut sends = Layout::new(
        counts(&|peer| count(args, group, round, args.rank, peer)),
        gap,
    );
    if args.wrong_count_in == Some(round)
        && args.rank == 0
        && group.id == CommunicatorId::WORLD
        && let Some(last) = sends.counts.last_mut()
    {
        *last += 1;
        sends.length += 1;
    }
    Ok(Call {
        registered: None,
        send: Buffer::new(sends.length.max(1))?,
        receive: Buffer::new(receives.length.max(1))?,
        sends,
        receives,
        in_place,
        rooted: rooted(args, group, round),
    })
}

/// In place, the block sent to a rank and the block received from it have equal length.
fn symmetric(args: &CheckArgs, group: &Group, round: u32, peer: u32) -> usize {
    let (low, high) = (args.rank.min(peer), args.rank.max(peer));
    count(args, group, round, low, high)
}

/// Blocks of equal length in buffers that are registered for all rounds.
fn kept_call(args: &CheckArgs, group: &Group, client: &mut Client) -> Result<Call> {
    let layout = || Layout::new(vec![args.block; group.members.len()], |_| 0);
    let (sends, receives) = (layout(), layout());
    let mut buffers = (
        Buffer::new(sends.length.max(1))?,
        Buffer::new(receives.length.max(1))?,
    );
    let mut register = |buffer: &mut Buffer| {
        let bytes = buffer.as_mut_slice();
        // SAFETY: the buffer outlives its registration: run() releases it, or the order of the fields does. No code
        // accesses it during a call.
        unsafe { client.register(bytes.as_mut_ptr(), bytes.len()) }
    };
    Ok(Call {
        registered: Some((register(&mut buffers.0)?, register(&mut buffers.1)?)),
        send: buffers.0,
        receive: buffers.1,
        sends,
        receives,
        in_place: false,
        rooted: None,
    })
}

fn pattern(args: &CheckArgs, group: &Group, round: u32, source: u32, destination: u32) -> Pattern {
    Pattern::new(&[
        args.seed,
        group.id.0,
        u64::from(round),
        u64::from(source),
        u64::from(destination),
    ])
}

fn fill(args: &CheckArgs, group: &Group, round: u32, call: &mut Call) {
    let (buffer, layout) = if call.in_place {
        (&mut call.receive, &call.receives)
    } else {
        (&mut call.send, &call.sends)
    };
    for (member, range) in group.members.iter().zip(layout.ranges()) {
        let pattern = pattern(args, group, round, args.rank, *member);
        pattern.fill(&mut buffer.as_mut_slice()[range]);
    }
}

fn begin(client: &mut Client, group: &Group, call: &mut Call) -> Result<Request> {
    let receive = call.receives.side(&mut call.receive);
    if call.in_place {
        // SAFETY: the buffer stays allocated and unaccessed until run() has waited for the request.
        return Ok(unsafe { client.alltoallv_in_place(group.id, receive) }?);
    }
    let send = call.sends.side(&mut call.send);
    let registered = call.registered.as_ref();
    let (send, receive) = match registered {
        None => (send, receive),
        Some((of_send, of_receive)) => (
            Side {
                memory: Memory::Registered(of_send),
                ..send
            },
            Side {
                memory: Memory::Registered(of_receive),
                ..receive
            },
        ),
    };
    Ok(match call.rooted {
        // SAFETY: as above.
        Some((true, root)) => unsafe { client.scatter(group.id, root, send, receive) }?,
        // SAFETY: as above.
        Some((false, root)) => unsafe { client.gather(group.id, root, send, receive) }?,
        // SAFETY: as above.
        None => unsafe { client.alltoallv(group.id, send, receive) }?,
    })
}

/// Compares every block and returns the number of bytes.
fn verify(args: &CheckArgs, group: &Group, round: u32, call: &Call) -> Result<u64> {
    let mut verified = 0;
    for (member, range) in group.members.iter().zip(call.receives.ranges()) {
        let block = &call.receive.as_slice()[range];
        if let Some(wrong) = pattern(args, group, round, *member, args.rank).check(block) {
            bail!(
                "round {round}, communicator {}: {} of {} bytes from rank {member} are wrong, the first at {}",
                group.id.0,
                wrong.bytes,
                block.len(),
                wrong.first
            );
        }
        verified += block.len() as u64;
    }
    Ok(verified)
}

impl Layout {
    /// Lays out blocks one after the other, with gaps.
    fn new(counts: Vec<usize>, gap: impl Fn(u32) -> usize) -> Self {
        let mut layout = Self::default();
        for (place, count) in (0..).zip(&counts) {
            layout.length += gap(place);
            layout.displacements.push(layout.length);
            layout.length += count;
        }
        layout.counts = counts;
        layout
    }

    fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.displacements
            .iter()
            .zip(&self.counts)
            .map(|(start, count)| *start..start + count)
    }

    fn side<'a>(&'a self, buffer: &mut Buffer) -> Side<'a> {
        Side {
            memory: Memory::Temporary {
                start: buffer.as_mut_slice().as_mut_ptr(),
                length: self.length,
            },
            counts: &self.counts,
            displacements: &self.displacements,
        }
    }
}
