//! One connection of a host, and its sessions one after the other.

use crate::counters::{add, timed};
use crate::kernel::Place;
use crate::shared::Shared;
use crate::slot::Slot;
use naaice::abi::code;
use naaice::dpu::frames::{HostFrame, KeyedRegion, ServiceFrame};
use naaice::wire::flag;
use std::time::{Duration, Instant};
use xgvmi_daemon::{Link, LinkError, Place as Connection};
use xgvmi_pool::{Announcement, Gvmi, Lkey, Seal, VirtAddr};
use xgvmi_verbs::{Access, Direction, Keys, VerbsError};

/// Time limit of a host's first frame.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of the keys of the outputs after the start of a call: the host registers the outputs meanwhile.
const KEYS_LIMIT: Duration = Duration::from_secs(30);
/// Keys in a hello. Each becomes an alias, which costs commands. Aliases of further keys follow with their sessions.
const HELLO_KEYS_MAX: usize = 4096;
/// Interval at which an idle connection looks whether the service ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Regions start at multiples of this size.
const PAGE: usize = 4096;

/// A region of a session.
struct Held {
    region: KeyedRegion,
    place: Place,
    /// `None` until the host has sent the key.
    access: Option<Access>,
}

/// A session.
struct Session {
    function: u8,
    regions: Vec<Held>,
    slot: Slot,
    /// The regions that are read once have been read.
    has_read: bool,
    /// Since when no call runs.
    idle_since: Instant,
}

impl Session {
    /// Whether all inputs have keys.
    fn has_inputs(&self) -> bool {
        let is_missing =
            |held: &Held| held.access.is_none() && held.region.flags & flag::INPUT != 0;
        !self.regions.iter().any(is_missing)
    }
}

/// Serves a connection until it ends. Returns why, if not in order.
pub(crate) fn serve(
    shared: &Shared,
    mut link: Link,
    mut entry: Connection,
) -> Result<(), LinkError> {
    let ended = serve_host(shared, &mut link, &mut entry);
    if let Err(error) = &ended
        && error.is_violation()
    {
        // The host learns the reason, such as a wrong secret.
        link.refuse(&error.to_string());
    }
    ended
}

fn serve_host(shared: &Shared, link: &mut Link, entry: &mut Connection) -> Result<(), LinkError> {
    let Some((host, announcement)) = hello(shared, link)? else {
        return Ok(());
    };
    if entry.admit().is_err() {
        add(&shared.counters.refused, 1);
        link.refuse("all connections of the service have sessions; try again later");
        return Ok(());
    }
    entry.rest();
    // Before the first alias: whatever happens, the aliases end with the owner's last connection.
    shared.aliases.enter(host.owner);
    let mut session = None;
    let ended = match welcome(shared, &host, link, &announcement) {
        Ok(true) => frames(shared, &host, (link, entry), &mut session),
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    if let Some(session) = session.take() {
        end(shared, session);
    }
    shared.aliases.leave(host.owner);
    ended
}

/// The host of a connection, and its announcement.
fn hello(shared: &Shared, link: &mut Link) -> Result<Option<(Keys, Vec<u8>)>, LinkError> {
    let began = Instant::now();
    let body = loop {
        match link.wait(LOOK_INTERVAL)? {
            Some(body) => break body,
            None if shared.is_ending() => {
                link.refuse("the service ends");
                return Ok(None);
            }
            None if began.elapsed() >= HELLO_LIMIT => {
                link.refuse("no hello within 10 s");
                return Ok(None);
            }
            None => {}
        }
    };
    let frame = HostFrame::parse(&body);
    let Ok(HostFrame::Hello {
        pooled,
        gvmi,
        access,
        announcement,
    }) = frame
    else {
        link.refuse("the first frame must be a hello");
        return Ok(None);
    };
    let host = Keys {
        pooled,
        gvmi: Gvmi::new(gvmi),
        owner: access.owner(),
        access,
    };
    Ok(Some((host, announcement)))
}

/// Creates the aliases of the announced keys, and answers the hello. False if the host was refused.
fn welcome(
    shared: &Shared,
    host: &Keys,
    link: &mut Link,
    announcement: &[u8],
) -> Result<bool, LinkError> {
    let mut prepared = 0;
    if host.pooled && !announcement.is_empty() {
        if let Err(reason) = check_announcement(host, announcement) {
            link.refuse(&format!("the announcement of the keys: {reason}"));
            return Ok(false);
        }
        match shared.aliases.receive(announcement, &host.access) {
            Ok(aliases) => prepared = aliases,
            Err(error) => {
                link.refuse(&format!("the announcement of the keys: {error}"));
                return Ok(false);
            }
        }
    }
    link.set_frame_max(64 << 10);
    let welcome = ServiceFrame::Welcome {
        prepared,
        bytes_max: shared.options.session_bytes as u64,
    };
    link.send(&welcome.to_bytes())?;
    Ok(true)
}

/// A host announces keys of its function, and not more than sessions can soon use.
fn check_announcement(host: &Keys, announcement: &[u8]) -> Result<(), String> {
    let announced =
        Announcement::parse(announcement, &Seal::OPEN).map_err(|error| error.to_string())?;
    if announced.gvmi != host.gvmi {
        return Err("it has another function than the hello".to_owned());
    }
    match announced.keys().count() {
        0..=HELLO_KEYS_MAX => Ok(()),
        keys => Err(format!(
            "it has {keys} keys; the maximum is {HELLO_KEYS_MAX}, further keys follow with their sessions"
        )),
    }
}

fn frames(
    shared: &Shared,
    host: &Keys,
    (link, entry): (&mut Link, &mut Connection),
    session: &mut Option<Session>,
) -> Result<(), LinkError> {
    loop {
        let body = match link.wait(LOOK_INTERVAL) {
            Ok(Some(body)) => body,
            Ok(None) if shared.is_ending() => {
                link.refuse("the service ends");
                return Ok(());
            }
            Ok(None) => match idle_too_long(shared, session.as_ref()) {
                Some(reason) => {
                    link.refuse(&reason);
                    return Ok(());
                }
                None => continue,
            },
            Err(LinkError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        };
        let frame = match HostFrame::parse(&body) {
            Ok(frame) => frame,
            Err(bad) => {
                link.refuse(&bad.to_string());
                return Ok(());
            }
        };
        match (frame, session.take()) {
            (HostFrame::Create { function, regions }, None) => {
                if !entry.begin() {
                    return Ok(());
                }
                let answer = match create(shared, host, function, &regions) {
                    Ok(created) => {
                        add(&shared.counters.sessions, 1);
                        *session = Some(created);
                        ServiceFrame::Created
                    }
                    Err(reason) => {
                        add(&shared.counters.refused, 1);
                        entry.rest();
                        ServiceFrame::Refused(reason)
                    }
                };
                link.send(&answer.to_bytes())?;
            }
            (HostFrame::Invoke { user }, Some(mut current)) if current.has_inputs() => {
                let done = call(shared, host, &mut current, user, link);
                current.idle_since = Instant::now();
                *session = Some(current);
                match done {
                    Some((code, bytes)) => {
                        link.send(&ServiceFrame::Done { code, bytes }.to_bytes())?;
                    }
                    None => return Ok(()),
                }
            }
            // Of the inputs; or of the outputs, after a call that has failed: one that succeeds waits for them.
            (HostFrame::Keys(keys), Some(mut current)) => {
                let accepted = accept_keys(shared, host, &mut current.regions, &keys);
                *session = Some(current);
                if let Err(reason) = accepted {
                    link.refuse(&reason);
                    return Ok(());
                }
            }
            (HostFrame::Finalize, Some(current)) => {
                end(shared, current);
                entry.rest();
            }
            (HostFrame::Finalize, None) => {}
            (_, other) => {
                *session = other;
                link.refuse("a frame that does not fit the state of the session");
                return Ok(());
            }
        }
    }
}

/// Why a session ends that makes no calls.
fn idle_too_long(shared: &Shared, session: Option<&Session>) -> Option<String> {
    let limit = shared.options.idle_limit?;
    let is_over = session.is_some_and(|session| session.idle_since.elapsed() > limit);
    is_over.then(|| format!("the session made no call for {limit:?} (--idle-limit)"))
}

/// Creates a session, or says why not.
fn create(
    shared: &Shared,
    host: &Keys,
    function: u8,
    regions: &[KeyedRegion],
) -> Result<Session, String> {
    let mut places = Vec::with_capacity(regions.len());
    let mut offset = 0_usize;
    for region in regions {
        let size = region.size as usize;
        places.push(Place {
            offset,
            size,
            flags: region.flags,
        });
        // Cannot overflow: at most 32 regions below 4 GiB.
        offset += size.next_multiple_of(PAGE);
    }
    let bytes_max = shared.options.session_bytes;
    if offset > bytes_max {
        return Err(format!(
            "its regions take {offset} bytes in pages; the service has {bytes_max} per session (--session-mib)"
        ));
    }
    let slot = shared.slots.take(offset)?;
    let mut held = Vec::with_capacity(regions.len());
    for (region, place) in regions.iter().zip(places) {
        let access = match region.mkey {
            0 => Ok(None),
            key => shared.aliases.attach(host, key).map(Some),
        };
        match access {
            Ok(access) => held.push(Held {
                region: *region,
                place,
                access,
            }),
            Err(reason) => {
                shared.slots.put(slot);
                return Err(reason);
            }
        }
    }
    Ok(Session {
        function,
        regions: held,
        slot,
        has_read: false,
        idle_since: Instant::now(),
    })
}

/// Notes keys that follow: those of all inputs without one; then those of all outputs without one.
fn accept_keys(
    shared: &Shared,
    host: &Keys,
    regions: &mut [Held],
    keys: &[u32],
) -> Result<(), String> {
    let is_input = |held: &Held| held.region.flags & flag::INPUT != 0;
    let of_inputs = regions.iter().any(|h| h.access.is_none() && is_input(h));
    let waiting = |held: &&mut Held| held.access.is_none() && is_input(held) == of_inputs;
    let mut waiting: Vec<&mut Held> = regions.iter_mut().filter(waiting).collect();
    if waiting.len() != keys.len() || keys.is_empty() {
        let (found, wanted) = (keys.len(), waiting.len());
        return Err(format!("{found} keys for {wanted} regions without one"));
    }
    for (held, key) in waiting.iter_mut().zip(keys) {
        held.region.mkey = *key;
        held.access = Some(shared.aliases.attach(host, *key)?);
    }
    Ok(())
}

/// Ends a session. Its bytes do not reach the next session of the slot.
fn end(shared: &Shared, session: Session) {
    let Session {
        regions, mut slot, ..
    } = session;
    timed(&shared.counters.zeroing_ns, || {
        for held in &regions {
            slot.clear(held.place);
        }
    });
    drop(regions);
    shared.slots.put(slot);
    add(&shared.counters.sessions_ended, 1);
}

/// Carries out a call: return code and bytes of the last output. `None` if the caller is gone.
fn call(
    shared: &Shared,
    host: &Keys,
    session: &mut Session,
    user: u32,
    link: &mut Link,
) -> Option<(u8, u32)> {
    add(&shared.counters.calls, 1);
    match carry_out(shared, host, session, user, link) {
        Ok(Some((code, bytes))) => {
            if code != code::SUCCESS {
                add(&shared.counters.calls_failed, 1);
            }
            Some((code, bytes))
        }
        Ok(None) => {
            add(&shared.counters.calls_failed, 1);
            None
        }
        Err(error) => {
            add(&shared.counters.calls_failed, 1);
            shared.error(&format!("a call has failed: {error}"));
            Some((code::MEMORY, 0))
        }
    }
}

/// Places, aliases and addresses of the chosen regions.
fn chosen(regions: &[Held], wanted: impl Fn(u8) -> bool) -> Vec<(Place, Lkey, VirtAddr)> {
    let chosen = regions.iter().filter(|held| wanted(held.region.flags));
    chosen
        .filter_map(|held| {
            let alias = held.access.as_ref()?.lkey();
            Some((held.place, alias, VirtAddr::new(held.region.addr)))
        })
        .collect()
}

fn bytes_of(regions: &[(Place, Lkey, VirtAddr)]) -> u64 {
    regions.iter().map(|(place, ..)| place.size as u64).sum()
}

fn carry_out(
    shared: &Shared,
    host: &Keys,
    session: &mut Session,
    user: u32,
    link: &mut Link,
) -> Result<Option<(u8, u32)>, VerbsError> {
    let is_first = !session.has_read;
    let inputs = chosen(&session.regions, |flags| {
        flags & flag::INPUT != 0 && (is_first || flags & flag::SINGLE_SEND == 0)
    });
    timed(&shared.counters.reading_ns, || {
        let slot = &mut session.slot;
        slot.transfer(&shared.adapter, Direction::FromHost, &inputs)
    })?;
    session.has_read = true;
    add(&shared.counters.bytes_read, bytes_of(&inputs));
    let places: Vec<Place> = session.regions.iter().map(|held| held.place).collect();
    let fd = link.fd();
    let mut keys = None;
    // The host is silent while its call runs, except for the keys of its outputs: another frame is a fault, and an end
    // means that it is gone.
    let gone = || match link.take() {
        Ok(None) => shared.is_ending(),
        Ok(Some(body)) => match HostFrame::parse(&body) {
            Ok(HostFrame::Keys(sent)) if keys.is_none() => {
                keys = Some(sent);
                false
            }
            _ => true,
        },
        Err(_) => true,
    };
    let ran = timed(&shared.counters.kernels_ns, || {
        let call = (session.function, user);
        session.slot.run(&shared.kernels, call, &places, gone, fd)
    });
    let Ok(code) = ran else {
        add(&shared.counters.kernels_killed, 1);
        return Ok(None);
    };
    if code == code::KERNEL_TIMEOUT {
        add(&shared.counters.kernels_killed, 1);
    }
    if !receive_keys(shared, host, session, link, (keys, code)) {
        return Ok(None);
    }
    if code != code::SUCCESS {
        return Ok(Some((code, 0)));
    }
    let outputs = chosen(&session.regions, |flags| flags & flag::OUTPUT != 0);
    timed(&shared.counters.writing_ns, || {
        let slot = &mut session.slot;
        slot.transfer(&shared.adapter, Direction::ToHost, &outputs)
    })?;
    add(&shared.counters.bytes_written, bytes_of(&outputs));
    let bytes = outputs.last().map_or(0, |(place, ..)| {
        u32::try_from(place.size).expect("a size of 32 bits")
    });
    Ok(Some((code, bytes)))
}

/// Notes the keys that arrived during the kernel. A call that has succeeded waits for them. False if the host is gone or
/// breaks the protocol.
fn receive_keys(
    shared: &Shared,
    host: &Keys,
    session: &mut Session,
    link: &mut Link,
    (mut keys, code): (Option<Vec<u32>>, u8),
) -> bool {
    let is_missing = session.regions.iter().any(|held| held.access.is_none());
    if keys.is_none() && is_missing && code == code::SUCCESS {
        keys = match link.wait(KEYS_LIMIT) {
            Ok(Some(body)) => match HostFrame::parse(&body) {
                Ok(HostFrame::Keys(keys)) => Some(keys),
                _ => None,
            },
            _ => None,
        };
        if keys.is_none() {
            link.refuse("no keys of the outputs within 30 s of the call");
            return false;
        }
    }
    let Some(keys) = keys else {
        return true;
    };
    match accept_keys(shared, host, &mut session.regions, &keys) {
        Ok(()) => true,
        Err(reason) => {
            link.refuse(&reason);
            false
        }
    }
}
