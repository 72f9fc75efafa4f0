//! One connection of a host, and its sessions one after the other.

use crate::counters::{add, timed};
use crate::kernel::Place;
use crate::service::Shared;
use crate::slot::Slot;
use naaice::abi::code;
use naaice::dpu::frames::{HostFrame, KeyedRegion, ServiceFrame};
use naaice::wire::flag;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use xgvmi_daemon::{Link, LinkError};
use xgvmi_pool::mlx5::Mlx5Device;
use xgvmi_pool::{
    AccessKey, Alias, AliasDevice as _, AliasRef, AnnounceError, Gvmi, Lkey, Mkey, OwnerUuid,
    RemoteKey, VirtAddr,
};
use xgvmi_verbs::{Direction, VerbsError};

/// Time limit of a host's first frame.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Interval at which an idle connection looks whether the service ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Regions start at multiples of this size.
const PAGE: usize = 4096;

/// Number of connections of each owner of keys. When the last one ends, the owner's aliases end.
#[derive(Debug, Default)]
pub(crate) struct Owners(Mutex<HashMap<u64, u32>>);

impl Owners {
    fn enter(&self, owner: u64) {
        *self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(owner)
            .or_default() += 1;
    }

    /// Whether this was the owner's last connection.
    fn leave(&self, owner: u64) -> bool {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = owners.get_mut(&owner) else {
            return false;
        };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            owners.remove(&owner);
        }
        is_last
    }
}

/// A host that has said hello.
struct Host {
    pooled: bool,
    gvmi: Gvmi,
    owner: u64,
}

/// An alias of a region's key.
enum Access {
    /// Of the map: it stays after the session.
    Pooled(AliasRef<Mlx5Device>),
    /// Of the session.
    Own(Arc<Mlx5Device>, Alias),
}

impl Access {
    fn lkey(&self) -> Lkey {
        match self {
            Self::Pooled(alias) => alias.lkey(),
            Self::Own(_, alias) => alias.lkey,
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Self::Own(device, alias) = self {
            // A refused destruction leaves the alias until the process ends; the session's other aliases still end.
            let _ = device.destroy_alias(alias.index);
        }
    }
}

/// A session.
struct Session {
    function: u8,
    regions: Vec<(KeyedRegion, Place, Access)>,
    slot: Slot,
    calls: u64,
}

/// Serves a connection until it ends. Returns why, if not in order.
pub(crate) fn serve(shared: &Shared, mut link: Link) -> Result<(), LinkError> {
    let ended = serve_host(shared, &mut link);
    if let Err(error) = &ended
        && error.is_violation()
    {
        // The host learns the reason, such as a wrong secret.
        link.refuse(&error.to_string());
    }
    ended
}

fn serve_host(shared: &Shared, link: &mut Link) -> Result<(), LinkError> {
    let Some(host) = hello(shared, link)? else {
        return Ok(());
    };
    shared.owners.enter(host.owner);
    let mut session = None;
    let ended = frames(shared, &host, link, &mut session);
    if let Some(session) = session.take() {
        end(shared, session);
    }
    if shared.owners.leave(host.owner) {
        shared.hooks.reap_owner(OwnerUuid::new(host.owner));
    }
    ended
}

fn hello(shared: &Shared, link: &mut Link) -> Result<Option<Host>, LinkError> {
    let Some(body) = link.wait(HELLO_LIMIT)? else {
        link.refuse("no hello within 10 s");
        return Ok(None);
    };
    let frame = HostFrame::parse(&body);
    let Ok(HostFrame::Hello {
        pooled,
        gvmi,
        owner,
        announcement,
    }) = frame
    else {
        link.refuse("the first frame must be a hello");
        return Ok(None);
    };
    let mut prepared = 0;
    if pooled && !announcement.is_empty() {
        match shared.hooks.receive(&announcement) {
            Ok((_, aliases)) => prepared = u32::try_from(aliases.ready).unwrap_or(u32::MAX),
            // Connections of one process may overtake each other. The newer announcement has all keys of this one.
            Err(AnnounceError::Replayed { .. }) => {}
            Err(error) => {
                link.refuse(&format!("the announcement of the keys: {error}"));
                return Ok(None);
            }
        }
    }
    link.set_frame_max(64 << 10);
    let welcome = ServiceFrame::Welcome {
        prepared,
        bytes_max: shared.options.session_bytes_max as u64,
    };
    link.send(&welcome.to_bytes())?;
    Ok(Some(Host {
        pooled,
        gvmi: Gvmi::new(gvmi),
        owner,
    }))
}

fn frames(
    shared: &Shared,
    host: &Host,
    link: &mut Link,
    session: &mut Option<Session>,
) -> Result<(), LinkError> {
    loop {
        let body = match link.wait(LOOK_INTERVAL) {
            Ok(Some(body)) => body,
            Ok(None) if shared.is_ending() => {
                link.refuse("the service ends");
                return Ok(());
            }
            Ok(None) => continue,
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
                let answer = match create(shared, host, function, &regions) {
                    Ok(created) => {
                        add(&shared.counters.sessions, 1);
                        *session = Some(created);
                        ServiceFrame::Created
                    }
                    Err(reason) => {
                        add(&shared.counters.refused, 1);
                        ServiceFrame::Refused(reason)
                    }
                };
                link.send(&answer.to_bytes())?;
                if let Some(session) = session {
                    // After the answer: the host sends its first call meanwhile.
                    zero(shared, session);
                }
            }
            (HostFrame::Invoke { user }, Some(mut current)) => {
                let done = call(shared, &mut current, user, link);
                *session = Some(current);
                match done {
                    Some((code, bytes)) => {
                        link.send(&ServiceFrame::Done { code, bytes }.to_bytes())?;
                    }
                    None => return Ok(()),
                }
            }
            (HostFrame::Finalize, Some(current)) => end(shared, current),
            (HostFrame::Finalize, None) => {}
            (_, other) => {
                *session = other;
                link.refuse("a frame that does not fit the state of the session");
                return Ok(());
            }
        }
    }
}

/// Creates a session, or says why not.
fn create(
    shared: &Shared,
    host: &Host,
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
    let bytes_max = shared.options.session_bytes_max;
    if offset > bytes_max {
        return Err(format!(
            "its regions take {offset} bytes in pages; the service has {bytes_max} per session (--session-mib)"
        ));
    }
    let slot = shared.slots.take().map_err(|error| error.to_string())?;
    let Some(slot) = slot else {
        let sessions = shared.options.sessions_max;
        return Err(format!(
            "all {sessions} sessions of the service are in use; try again later"
        ));
    };
    let mut kept = Vec::with_capacity(regions.len());
    for (region, place) in regions.iter().zip(places) {
        match access(shared, host, region) {
            Ok(access) => kept.push((*region, place, access)),
            Err(reason) => {
                shared.slots.put(slot);
                return Err(reason);
            }
        }
    }
    Ok(Session {
        function,
        regions: kept,
        slot,
        calls: 0,
    })
}

/// Zeroes the regions that no input fills: no host sees another host's bytes.
fn zero(shared: &Shared, session: &mut Session) {
    let Session { regions, slot, .. } = session;
    timed(&shared.counters.zeroing_ns, || {
        for (region, place, _) in regions {
            if region.flags & flag::INPUT == 0 {
                slot.clear(*place);
            }
        }
    });
}

fn access(shared: &Shared, host: &Host, region: &KeyedRegion) -> Result<Access, String> {
    let key = RemoteKey {
        gvmi: host.gvmi,
        mkey: Mkey::from_raw(region.mkey),
        owner: OwnerUuid::new(host.owner),
    };
    let failed = |error: &dyn std::fmt::Display| {
        format!("no alias of the host's key {:#x}: {error}", region.mkey)
    };
    if host.pooled {
        let alias = shared.hooks.attach(key).map_err(|error| failed(&error))?;
        return Ok(Access::Pooled(alias));
    }
    let device = shared.adapter.device();
    let alias = device
        .create_alias(&key, &AccessKey::UCX_COMPATIBLE)
        .map_err(|error| failed(&error))?;
    Ok(Access::Own(device, alias))
}

fn end(shared: &Shared, session: Session) {
    let Session { regions, slot, .. } = session;
    drop(regions);
    shared.slots.put(slot);
    add(&shared.counters.sessions_ended, 1);
}

/// Carries out a call: return code and bytes of the last output. `None` if the caller is gone.
fn call(shared: &Shared, session: &mut Session, user: u32, link: &mut Link) -> Option<(u8, u32)> {
    add(&shared.counters.calls, 1);
    let outcome = carry_out(shared, session, user, link);
    session.calls += 1;
    match outcome {
        Ok(Some((code, bytes))) => {
            if code != code::SUCCESS {
                add(&shared.counters.calls_failed, 1);
            }
            Some((code, bytes))
        }
        Ok(None) => {
            add(&shared.counters.calls_failed, 1);
            add(&shared.counters.kernels_killed, 1);
            None
        }
        Err(error) => {
            add(&shared.counters.calls_failed, 1);
            shared.error(&format!("a call has failed: {error}"));
            Some((code::MEMORY, 0))
        }
    }
}

fn carry_out(
    shared: &Shared,
    session: &mut Session,
    user: u32,
    link: &mut Link,
) -> Result<Option<(u8, u32)>, VerbsError> {
    let is_first = session.calls == 0;
    let Session {
        function,
        regions,
        slot,
        ..
    } = session;
    let chosen = |wanted: &dyn Fn(u8) -> bool| -> Vec<(Place, Lkey, VirtAddr)> {
        let chosen = regions.iter().filter(|(region, ..)| wanted(region.flags));
        chosen
            .map(|(region, place, access)| (*place, access.lkey(), VirtAddr::new(region.addr)))
            .collect()
    };
    let bytes_of = |regions: &[(Place, Lkey, VirtAddr)]| -> u64 {
        regions.iter().map(|(place, ..)| place.size as u64).sum()
    };
    let inputs =
        chosen(&|flags| flags & flag::INPUT != 0 && (is_first || flags & flag::SINGLE_SEND == 0));
    timed(&shared.counters.reading_ns, || {
        slot.transfer(&shared.adapter, Direction::FromHost, &inputs)
    })?;
    add(&shared.counters.bytes_read, bytes_of(&inputs));
    let places: Vec<Place> = regions.iter().map(|(_, place, _)| *place).collect();
    let fd = link.fd();
    // The host is silent while its call runs: a frame is a fault, and an end means that it is gone.
    let gone = || !matches!(link.take(), Ok(None));
    let ran = timed(&shared.counters.kernels_ns, || {
        slot.run(&shared.kernels, (*function, user), &places, gone, fd)
    });
    let Ok(code) = ran else {
        return Ok(None);
    };
    if code == code::KERNEL_TIMEOUT {
        add(&shared.counters.kernels_killed, 1);
    }
    let mut bytes = 0;
    if code == code::SUCCESS {
        let outputs = chosen(&|flags| flags & flag::OUTPUT != 0);
        timed(&shared.counters.writing_ns, || {
            slot.transfer(&shared.adapter, Direction::ToHost, &outputs)
        })?;
        add(&shared.counters.bytes_written, bytes_of(&outputs));
        bytes = outputs.last().map_or(0, |(place, ..)| {
            u32::try_from(place.size).expect("a size of 32 bits")
        });
    }
    Ok(Some((code, bytes)))
}
