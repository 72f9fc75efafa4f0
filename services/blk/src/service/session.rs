//! One connection of an initiator.

use super::connection::{Connection, who};
use super::identities::{Identity, Right};
use super::queue::Job;
use super::shared::{REQUESTS_MAX, Shared};
use crate::frames::{Hello, Outcome, PROTOCOL, REQUEST_MAX, Request, Welcome};
use crate::say::say;
use crate::volume::Volume;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use xgvmi_daemon::{Link, LinkError, Place, poll};
use xgvmi_pool::{AccessKey, Gvmi};
use xgvmi_verbs::Keys;

/// Time limit of an initiator's first frame.
const HELLO: Duration = Duration::from_secs(10);
/// Interval at which an idle connection is looked at.
const LOOK: Duration = Duration::from_secs(60);

/// Serves a connection until it ends. Says how it has ended.
pub(super) fn serve(shared: &Shared, stream: TcpStream, place: Place) {
    let mut known = None;
    match serve_until(shared, stream, place, &mut known) {
        Ok(()) | Err(LinkError::Closed) => {
            if let Some(identity) = &known {
                say(format_args!("{} has left", who(Some(identity))));
            }
        }
        Err(error) => shared.told.say(format_args!(
            "{} is disconnected: {error}",
            who(known.as_ref())
        )),
    }
}

fn serve_until(
    shared: &Shared,
    stream: TcpStream,
    mut place: Place,
    known: &mut Option<Arc<Identity>>,
) -> Result<(), LinkError> {
    let identities = shared.identities();
    let mut link = Link::called(stream, PROTOCOL, &identities.secrets(), &shared.budget)?;
    let hello = match hello(&mut link) {
        Ok(Some(hello)) => hello,
        Ok(None) => return Ok(()),
        Err(error) => {
            if error.is_violation() {
                // The initiator learns the reason, such as a wrong secret.
                let hint = match error {
                    LinkError::Secret(_) if identities.has_names() => {
                        "; each initiator gives its name (--identity) and its own secret"
                    }
                    _ => "",
                };
                link.refuse(&format!("{error}{hint}"));
            }
            return Err(error);
        }
    };
    if let Err(full) = place.admit() {
        link.refuse(&full.to_string());
        shared
            .told
            .say(format_args!("an initiator was refused: {full}"));
        return Ok(());
    }
    let identity = identities.of(link.secret());
    let session = identity.as_ref().map(Identity::connect).transpose();
    let session = match session {
        Ok(session) => session,
        Err(full) => {
            link.refuse(&full);
            shared
                .told
                .say(format_args!("an initiator was refused: {full}"));
            return Ok(());
        }
    };
    known.clone_from(&identity);
    let volume = match volume_for(shared, &hello, identity.as_ref()) {
        Ok(volume) => volume,
        Err(reason) => {
            link.refuse(&reason);
            return Ok(());
        }
    };
    let prepared = match (hello.pooled, &hello.announcement) {
        (true, announcement) if !announcement.is_empty() => {
            shared.aliases.receive(announcement, &hello.access_key)
        }
        _ => Ok(0),
    };
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            link.refuse(&format!("the announcement of the keys: {error}"));
            return Ok(());
        }
    };
    link.set_frame_max(REQUEST_MAX);
    let keys = Keys {
        pooled: hello.pooled,
        gvmi: Gvmi::new(hello.gvmi),
        owner: hello.access_key.owner(),
        access: if hello.stock {
            AccessKey::UCX_COMPATIBLE
        } else {
            hello.access_key
        },
    };
    let connection = Connection::new(keys, volume, identity, link);
    shared.aliases.enter(connection.keys.owner);
    shared.connections.enter(hello.session, &connection);
    let identity = connection.identity.as_ref();
    if connection.has_changed() || identity.is_some_and(|identity| identity.is_revoked()) {
        // Since it has proved its secret.
        connection.end();
    }
    if known.is_some() {
        say(format_args!("{} has connected", connection.who()));
    }
    let welcome = Welcome {
        geometry: connection.volume.geometry(),
        volume: connection.volume.id(),
        transfer_max: shared.transfer_max,
        requests_max: REQUESTS_MAX,
        prepared,
        wait_ms: shared.wait_ms,
        read_only: connection.told != Some(Right::Write),
    };
    let sent = connection.link().send(&welcome.to_bytes());
    let ended = sent.and_then(|()| requests(shared, &connection));
    if shared.is_draining() {
        // What has arrived is still answered.
        connection.drain();
    }
    connection.end();
    connection.drain();
    shared.connections.leave(hello.session, &connection);
    shared.aliases.leave(connection.keys.owner);
    drop(session);
    ended
}

/// The volume that an initiator wants, or why it gets none.
fn volume_for(
    shared: &Shared,
    hello: &Hello,
    identity: Option<&Arc<Identity>>,
) -> Result<(usize, Arc<Volume>), String> {
    if hello.stock && !shared.stock_keys {
        return Err(
            "keys with the access key of stock UCX, which every process knows: choose another scheme, or give the service \
             --stock-keys to compare"
                .to_owned(),
        );
    }
    shared.find(&hello.volume, identity)
}

fn hello(link: &mut Link) -> Result<Option<Hello>, LinkError> {
    let Some(bytes) = link.wait(HELLO)? else {
        link.refuse("no hello within 10 s");
        return Ok(None);
    };
    match Hello::parse(&bytes) {
        Ok(hello) => Ok(Some(hello)),
        Err(error) => {
            link.refuse(&error.to_string());
            Ok(None)
        }
    }
}

/// Takes requests until the connection ends.
fn requests(shared: &Shared, connection: &Arc<Connection>) -> Result<(), LinkError> {
    loop {
        let mut fds = [connection.link().pollfd()];
        poll(&mut fds, Some(LOOK))?;
        loop {
            if shared.is_draining() || connection.has_ended() {
                return Ok(());
            }
            let mut link = connection.link();
            link.flush()?;
            let Some(bytes) = link.take()? else {
                break;
            };
            let request = match Request::parse(&bytes) {
                Ok(request) => request,
                Err(error) => {
                    link.refuse(&error.to_string());
                    return Ok(());
                }
            };
            drop(link);
            if !accept(shared, connection, request) {
                connection
                    .link()
                    .refuse("more requests at once than the welcome allows");
                return Ok(());
            }
        }
    }
}

/// Hands a request to the workers. False if the initiator exceeds its limit.
fn accept(shared: &Shared, connection: &Arc<Connection>, request: Request) -> bool {
    {
        let mut open = connection.open();
        if *open >= REQUESTS_MAX {
            return false;
        }
        *open += 1;
    }
    let job = Job {
        connection: Arc::clone(connection),
        request,
    };
    shared.under_way.fetch_add(1, Ordering::AcqRel);
    if shared.queue.push(job).is_err() {
        let busy = Outcome::Failed("the service has too many requests".to_owned());
        connection.answer(request.number, busy);
        shared.under_way.fetch_sub(1, Ordering::AcqRel);
    }
    true
}
