//! Connects ranks that know nothing of each other: three exchanges between the ranks, with a step at the SP between
//! each two. Each exchange distributes the failures of the preceding step, so all ranks fail with the same error.

use super::introduction::{
    Introduction, Met, Told, Unmet, agree, complete, place, share, tabulate_all, untold,
};
use super::lanes::{Lanes, services_used};
use super::names::Names;
use super::options::ClientOptions;
use super::state::{Client, Communicator, Connected, Numbers};
use super::streams::Messages;
use super::waiting::Waiting;
use super::window::Window;
use crate::control::{FRAMES, Frame, Hello, Keys, Table, Welcome};
use crate::error::{OffloadError, Result};
use crate::exchange::Exchange;
use crate::job_id::JobId;
use crate::library::Library;
use crate::scheme::Scheme;
use crate::token::Token;
use crate::wire::{Export, From, GREETING_BYTES, Hello as HelloMessage, Kind, hello_header};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use ucx_sys::Ucp;
use xgvmi_daemon::{Link, LinkError, poll, pollfd, reach_within};
use xgvmi_ucp::buffer::Buffer;
use xgvmi_ucp::{Context, Endpoint, MappedBuffer, Request, Worker};

/// Number of keys that a rank announces when it connects: those of the greeting and of both buffers of the first call.
/// Each costs half a millisecond at the host and the SP, and stock UCX creates as many. A program that needs more keys at a
/// time creates them in the calls that first need them and announces them afterwards.
const FIRST_KEYS: u32 = 3;

/// State of a rank after its SPs have admitted it. The fields drop in this order.
#[derive(Debug)]
struct Admitted {
    endpoints: Vec<Endpoint>,
    worker: Worker,
    greeting: MappedBuffer,
    context: Context,
    lanes: Vec<InLane>,
}

/// The SP of a lane.
#[derive(Debug)]
struct InLane {
    address: String,
    link: Link,
    welcome: Welcome,
    /// Messages from the SP carry this token.
    token: Token,
}

pub(super) fn connect(
    options: &ClientOptions,
    rank: u32,
    size: u32,
    exchange: &mut dyn Exchange,
) -> Result<Client> {
    let start = Instant::now();
    let mine = introduction(options, rank, size)?;
    let ranks = share(exchange, &mine)?;
    let job = agree(&ranks)?;
    let nodes = ranks
        .iter()
        .map(|rank| (rank.place, rank.services, rank.least));
    let lanes = Lanes::of_nodes(nodes);
    let before = ranks.iter().take(rank as usize);
    let local = before.filter(|other| other.place == mine.place).count();
    let neighbours = ranks.iter().filter(|other| other.place == mine.place);
    let named = options.services.len();
    let used = services_used(neighbours.count(), named, options.ranks_per_sp);
    // Small jobs begin at different SPs.
    let first = usize::try_from(job.0 % named as u128).unwrap_or(0);
    let mine = match lanes.count() {
        1 => local % used..local % used + 1,
        lanes => 0..lanes,
    };
    let addresses = mine
        .clone()
        .map(|at| &options.services[(first + at) % named]);
    let addresses: Vec<&String> = addresses.collect();

    let admitted = admit(options, job, rank, size, &addresses);
    // The first rank of a node that has a service's name tells the service's addresses, and in lanes the ranks in turn.
    let tells = mine.map(|at| local == at || lanes.count() == 1 && local < used);
    let tells: Vec<bool> = tells.collect();
    let (mut admitted, told) = tell(exchange, admitted, &tells)?;
    let tables = tabulate_all(&told)?;
    let call_bytes = told.iter().flatten().map(|told| told.call_bytes);
    let call_bytes = call_bytes.min().unwrap_or(0);

    let made_ready = make_ready(options, &mut admitted, rank, &tables);
    all(share(exchange, &met(&made_ready, |()| ()))?)?;
    made_ready?;

    let library = Library::find();
    let announces = options.scheme == Scheme::Xgvmi;
    let announced_keys = library
        .filter(|_| announces)
        .map(|library| library.stats().pool_keys);
    let Some((table, welcome)) = tables.first().zip(admitted.lanes.first()) else {
        return Err(OffloadError::Exchange("there is no lane".into()));
    };
    let welcome = &welcome.welcome;
    let direct_min = usize::try_from(welcome.direct_min)
        .map_err(|_| OffloadError::Failed("direct_min does not fit".to_owned()))?;
    let mut communicators = HashMap::new();
    let mine = table.service_of.get(rank as usize).copied();
    let neighbours: Vec<u32> = mine.map_or_else(Vec::new, |mine| table.ranks_of(mine).collect());
    let world = Communicator::new((0..size).collect(), &neighbours, lanes.count());
    communicators.insert(0, world);
    let imports = admitted.lanes.iter().map(|lane| lane.welcome.imports);
    let accepted = admitted.lanes.iter().map(|lane| lane.welcome.accepted);
    Ok(Client {
        live: HashMap::new(),
        waiting: Waiting::new(usize::try_from(call_bytes).unwrap_or(usize::MAX)),
        window: Window::new(table, welcome.radix),
        neighbours,
        bounced: 0,
        unregistrable: VecDeque::new(),
        names: Names::new(imports.min().unwrap_or(0) as usize),
        numbers: Numbers {
            connect: start.elapsed(),
            announced_aliases: accepted.sum(),
            ..Numbers::default()
        },
        sends: Vec::new(),
        endpoints: admitted.endpoints,
        worker: admitted.worker,
        _greeting: admitted.greeting,
        context: admitted.context,
        services: admitted
            .lanes
            .into_iter()
            .map(|lane| Connected {
                address: lane.address,
                link: lane.link,
                from_service: lane.token,
                to_service: lane.welcome.token,
                silence_max: Duration::from_millis(lane.welcome.silence_ms),
                heard: Instant::now(),
            })
            .collect(),
        lanes,
        library,
        announced_keys,
        keys_looked: Instant::now(),
        rank,
        direct_min,
        communicators,
        messages: Messages::default(),
        limit: options.limit,
        spin: options.spin,
        link_checked: Instant::now(),
        failed: None,
    })
}

/// What a rank says first.
fn introduction(options: &ClientOptions, rank: u32, size: u32) -> Result<Introduction> {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Introduction {
        rank,
        size,
        scheme: options.scheme,
        place: place(&options.node, &options.services),
        services: count(options.services.len()),
        least: count(options.ranks_per_sp),
        job: match rank {
            0 => Some(JobId(
                xgvmi_daemon::random().map_err(|e| OffloadError::io("random number", e))?,
            )),
            _ => None,
        },
    })
}

/// The ranks tell each other of their SPs. Returns what they have told, by lane. `tells` says for which lanes this rank tells the
/// addresses.
fn tell(
    exchange: &mut dyn Exchange,
    admitted: Result<Admitted>,
    tells: &[bool],
) -> Result<(Admitted, Vec<Vec<Told>>)> {
    let of_mine = met(&admitted, |admitted| {
        let told = tells.iter().zip(&admitted.lanes);
        told.map(|(tells, lane)| Told::of(&lane.welcome, *tells))
            .collect::<Vec<_>>()
    });
    let told = all(share(exchange, &of_mine)?)?;
    let admitted = admitted?;
    let mut told = by_lane(told, tells.len())?;
    let untold: Vec<Vec<u64>> = told.iter().map(|told| untold(told)).collect();
    if untold.iter().any(|untold| !untold.is_empty()) {
        let later = untold.iter().zip(&admitted.lanes).map(|(untold, lane)| {
            let is_untold = untold.contains(&lane.welcome.service.unique);
            Told::of(&lane.welcome, is_untold)
        });
        let later = share(exchange, &later.collect::<Vec<_>>())?;
        for (told, later) in told.iter_mut().zip(by_lane(later, tells.len())?) {
            complete(told, later);
        }
    }
    Ok((admitted, told))
}

/// What the ranks tell, by lane.
fn by_lane(told: Vec<Vec<Told>>, lanes: usize) -> Result<Vec<Vec<Told>>> {
    let mut all: Vec<Vec<Told>> = (0..lanes).map(|_| Vec::with_capacity(told.len())).collect();
    for (rank, told) in told.into_iter().enumerate() {
        if told.len() != lanes {
            let count = told.len();
            let text = format!("rank {rank} tells of {count} services, and {lanes} serve it");
            return Err(OffloadError::Exchange(text.into()));
        }
        for (lane, told) in all.iter_mut().zip(told) {
            lane.push(told);
        }
    }
    Ok(all)
}

fn met<T, U>(result: &Result<T>, of: impl Fn(&T) -> U) -> Met<U> {
    result.as_ref().map(of).map_err(|error| Unmet {
        reason: error.to_string(),
        late: matches!(error, OffloadError::Late(_)),
    })
}

/// Returns all results, or the failure of the first rank that did more than time out waiting for others.
fn all<T>(results: Vec<Met<T>>) -> Result<Vec<T>> {
    let count = results.iter().filter(|result| result.is_err()).count();
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    for (rank, result) in (0..).zip(results) {
        match result {
            Ok(value) => found.push(value),
            Err(unmet) => failed.push((rank, unmet)),
        }
    }
    // The sort is stable: the lowest rank of each kind stays first.
    failed.sort_by_key(|(_, unmet)| unmet.late);
    match failed.into_iter().next() {
        None => Ok(found),
        Some((rank, Unmet { reason, .. })) => Err(OffloadError::Connect {
            rank,
            reason,
            count,
        }),
    }
}

/// Opens UCX and requests admission from the SP of each lane.
fn admit(
    options: &ClientOptions,
    job: JobId,
    rank: u32,
    size: u32,
    addresses: &[&String],
) -> Result<Admitted> {
    check_library(options.scheme)?;
    let ucp = Ucp::load(options.ucx_library.as_deref())
        .map_err(|error| OffloadError::Options(error.to_string()))?;
    let context = Context::with_settings(ucp, "offload", options.scheme.settings())?;
    let worker = context.worker(Kind::COUNT)?;
    let announcement = match Library::find() {
        Some(library) if options.scheme == Scheme::Xgvmi => library
            .announce(FIRST_KEYS)
            .map_err(|error| OffloadError::Failed(error.to_string()))?,
        _ => Vec::new(),
    };
    // Runs after the announcement because the key of this memory stays in use.
    let (greeting, exported) = keep_greeting(&context)?;
    let mut called = Vec::with_capacity(addresses.len());
    for (lane, address) in (0..).zip(addresses) {
        let token = Token::random().map_err(|error| OffloadError::io("random number", error))?;
        worker.expect(token.0);
        let secret = options.secret.as_ref();
        let mut link = reach_within(address, options.connect_limit, options.absent_limit)
            .map_err(LinkError::Io)
            .and_then(|stream| Link::calling(stream, FRAMES, secret))
            .map_err(|error| {
                OffloadError::Failed(format!("cannot reach the service at {address}: {error}"))
            })?;
        let hello = Frame::Hello(Hello {
            // Each lane is a job of its own.
            job: JobId(job.0.wrapping_add(lane)),
            rank,
            size,
            scheme: options.scheme,
            ucx_version: ucp.version().to_owned(),
        });
        let keys = Frame::Keys(Keys {
            token,
            address: worker.address()?,
            announcement: announcement.clone(),
            greeting: exported.clone(),
        });
        for frame in [hello, keys] {
            link.send(&frame.to_bytes())
                .map_err(|error| lost(address, &error))?;
        }
        called.push((address, token, link));
    }
    // The SPs open their UCX at the same time.
    let (mut endpoints, mut lanes) = (Vec::new(), Vec::new());
    for (address, token, mut link) in called {
        let welcome = match answer(&mut link, options.connect_limit, address)? {
            Frame::Welcome(welcome) => welcome,
            frame => return Err(strange(address, &frame)),
        };
        // SAFETY: the SP sends the bytes of Worker::address unchanged; it has checked that its UCX version equals ours.
        endpoints.push(unsafe { worker.connect(&welcome.service.worker, address) }?);
        lanes.push(InLane {
            address: (*address).clone(),
            link,
            welcome,
            token,
        });
    }
    Ok(Admitted {
        endpoints,
        worker,
        greeting,
        context,
        lanes,
    })
}

/// Reads the reply of an SP. A refusal is an error.
fn answer(link: &mut Link, limit: Duration, address: &str) -> Result<Frame> {
    let Some(body) = link.wait(limit).map_err(|error| lost(address, &error))? else {
        return Err(OffloadError::Failed(format!(
            "the service at {address} has not answered within {} s",
            limit.as_secs()
        )));
    };
    match Frame::parse(&body) {
        Ok(Frame::Abort(reason)) => Err(OffloadError::Failed(format!(
            "the service at {address} refuses: {reason}"
        ))),
        Ok(frame) => Ok(frame),
        Err(bad) => Err(OffloadError::message(address, &bad)),
    }
}

fn strange(address: &str, frame: &Frame) -> OffloadError {
    OffloadError::Failed(format!("the service at {address} answers {}", frame.name()))
}

fn lost(address: &str, error: &LinkError) -> OffloadError {
    OffloadError::Failed(match error {
        LinkError::Closed => format!("the service at {address} has closed the connection"),
        LinkError::Refused(reason) => format!("the service at {address} refuses: {reason}"),
        error => format!("the service at {address}: {error}"),
    })
}

/// Allocates the memory that SPs use to test their connections, see [`GREETING_BYTES`].
fn keep_greeting(context: &Context) -> Result<(MappedBuffer, Export)> {
    let length = usize::try_from(2 * GREETING_BYTES).expect("a few kilobytes");
    let buffer = Buffer::new(length)
        .map_err(|error| OffloadError::io("memory for the services' greetings", error))?;
    let greeting = MappedBuffer::new(context, buffer)?;
    let exported = Export {
        address: greeting.address(),
        length: 2 * GREETING_BYTES,
        packed: greeting.export()?.to_vec(),
        name: None,
    };
    Ok((greeting, exported))
}

/// Checks that the library matches the scheme. The reported scheme must be the one in use, not the one requested.
fn check_library(scheme: Scheme) -> Result<()> {
    match (scheme, Library::is_loaded()) {
        (Scheme::Xgvmi, false) => Err(OffloadError::Options(
            "scheme xgvmi, but libuct_ib_mlx5_xgvmi.so.0 is not in this process: set LD_PRELOAD to it".to_owned(),
        )),
        (Scheme::Stock | Scheme::Ksm, true) => Err(OffloadError::Options(format!(
            "scheme {scheme}, but libuct_ib_mlx5_xgvmi.so.0 is in this process"
        ))),
        _ => Ok(()),
    }
}

/// What a rank has heard of an SP that gets ready, and its hello to it.
struct Getting {
    ready: bool,
    greeted: bool,
    hello: Option<Request>,
}

impl Getting {
    fn is_ready(&self) -> bool {
        self.ready && self.greeted && self.hello.is_none()
    }
}

/// Sends the table of all SPs of each lane to this rank's SP there, and waits until these have connected to them.
fn make_ready(
    options: &ClientOptions,
    admitted: &mut Admitted,
    rank: u32,
    tables: &[Table],
) -> Result<()> {
    let mut getting = Vec::with_capacity(tables.len());
    for ((table, lane), endpoint) in tables
        .iter()
        .zip(&mut admitted.lanes)
        .zip(&admitted.endpoints)
    {
        // An SP needs the table from only one of its ranks.
        let mine = table.service_of.get(rank as usize);
        if table.service_of.iter().position(|of| Some(of) == mine) == Some(rank as usize) {
            let frame = Frame::Table(table.clone());
            let sent = lane.link.send(&frame.to_bytes());
            sent.map_err(|error| gone(&lane.address, error))?;
        }
        let data = HelloMessage {
            from: From::Rank(rank),
            greeting: None,
        }
        .to_bytes();
        let header = hello_header(lane.welcome.token);
        let hello = endpoint.send(Kind::Hello as u16, header, data)?;
        getting.push(Getting {
            ready: false,
            greeted: false,
            hello: Some(hello),
        });
    }
    let end = Instant::now() + options.connect_limit;
    loop {
        admitted.worker.progress_until_idle();
        for (lane, getting) in admitted.lanes.iter_mut().zip(&mut getting) {
            get_ready(&admitted.worker, lane, getting)?;
        }
        let Some(late) = getting.iter().position(|getting| !getting.is_ready()) else {
            return Ok(());
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(OffloadError::Late(format!(
                "the service at {} has not met all others within {} s",
                admitted.lanes[late].address,
                options.connect_limit.as_secs()
            )));
        }
        if admitted.worker.arm()? {
            let links = admitted.lanes.iter().map(|lane| lane.link.pollfd());
            let mut fds = vec![pollfd(admitted.worker.event_fd(), libc::POLLIN)];
            fds.extend(links);
            poll(&mut fds, Some(left.min(Duration::from_millis(100))))
                .map_err(|error| OffloadError::io("poll", error))?;
        }
    }
}

/// Takes what an SP that gets ready has sent.
fn get_ready(worker: &Worker, lane: &mut InLane, getting: &mut Getting) -> Result<()> {
    let address = &lane.address;
    getting.greeted |= worker
        .take(|m| m.id == Kind::Hello as u16 && m.header.starts_with(&lane.token.0))?
        .is_some();
    if let Some(hello) = &getting.hello
        && hello.test()?
    {
        getting.hello = None;
    }
    let body = lane.link.take().map_err(|error| gone(address, error))?;
    if let Some(body) = body {
        match Frame::parse(&body).map_err(|bad| OffloadError::message(address, &bad))? {
            Frame::Ready => getting.ready = true,
            Frame::Beat => {
                let sent = lane.link.send(&Frame::Beat.to_bytes());
                sent.map_err(|error| gone(address, error))?;
            }
            Frame::Abort(reason) => return Err(OffloadError::Failed(reason)),
            _ => {}
        }
    }
    lane.link.flush().map_err(|error| gone(address, error))
}

fn gone(address: &str, error: LinkError) -> OffloadError {
    match error {
        LinkError::Refused(reason) => OffloadError::Failed(reason),
        error => OffloadError::Failed(format!("the service at {address} is gone: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_more_than_wait_is_named() {
        let unmet = |late: bool| -> Met<()> {
            let result: Result<()> = Err(if late {
                OffloadError::Late("late".to_owned())
            } else {
                OffloadError::Failed("failed".to_owned())
            });
            met(&result, |()| ())
        };
        let check = |results: Vec<Met<()>>, expect: &str| {
            let error = all(results).expect_err("one has failed").to_string();
            assert_eq!(error, expect);
        };
        check(
            vec![unmet(true), Ok(()), unmet(false), unmet(false)],
            "rank 2: failed (and 2 ranks more)",
        );
        check(vec![Ok(()), unmet(true)], "rank 1: late");
        assert!(all(vec![Met::Ok(())]).is_ok());
    }
}
