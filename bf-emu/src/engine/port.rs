//! Changes of ports, and the events that report them.

use mlx5_prm::qp::state;

use super::complete::enter_error;
use super::event::{self, PortEvent};
use crate::fabric::counters::PortCounter;
use crate::fabric::objects::Qp;
use crate::fabric::{Locked, Place, PortState, QPN_BASE};

/// Changes the state of a port and notifies all processes that have its function open. A port that
/// is already in that state causes no event.
pub fn set_state(locked: &mut Locked<'_>, place: Place, state: PortState) {
    if locked.put_port_state(place, state) {
        if state == PortState::Down {
            let counters = locked.fabric().counters(place.function);
            counters.count_port(place.port, PortCounter::LinkDowned);
        }
        tell(locked, place, PortEvent::of(state));
    }
}

/// Makes a function fail: its queue pairs end, and all processes that have it open are notified.
pub fn fail_function(locked: &mut Locked<'_>, function: usize) {
    if !locked.fail_function(function) {
        return;
    }
    let alive = |qp: &Qp| !matches!(qp.state, state::RST | state::ERR);
    let mut from = 0;
    while let Some(slot) = locked.peek(function).qps.next(from, |_, qp| alive(qp)) {
        enter_error(locked, function, slot + QPN_BASE, None);
        from = slot + 1;
    }
    event::device_fatal(locked, function);
}

/// Notifies all processes that have a function open of an event on one of its ports.
pub fn tell(locked: &mut Locked<'_>, place: Place, event: PortEvent) {
    event::of_port(locked, place, event);
    // The subnet manager has forgotten the port's memberships (core/multicast.c,
    // `mcast_event_handler`).
    let forgets = matches!(
        event,
        PortEvent::Down
            | PortEvent::Initialized
            | PortEvent::LidChange
            | PortEvent::ClientReregister
    );
    if forgets && !locked.fabric().link_of(place).is_ethernet() {
        locked.cm_lose_groups(place);
    }
}
