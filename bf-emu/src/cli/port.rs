//! `bf-emu port`: takes a port of a running fabric down or up, raises a port event, or makes its function fail.

use anyhow::{Result, bail};
use bf_emu::engine::event::PortEvent;
use bf_emu::engine::{self, port};
use bf_emu::fabric::{Fabric, Identity, Place, PortState};
use bf_emu::view::state::{StateDir, locate};
use clap::{Args, ValueEnum};

use super::args::StateArgs;

/// Arguments of `bf-emu port`.
#[derive(Args, Debug)]
pub(super) struct PortArgs {
    #[command(flatten)]
    state: StateArgs,
    /// A function (node0.host), or a node (node0) for each of its functions with such a port
    #[arg(value_name = "FUNCTION|NODE")]
    function: String,
    /// Port number, from 1
    port: u8,
    /// New state or event
    change: Happening,
}

/// A change of a port.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Happening {
    /// The port carries messages
    Up,
    /// The link is down: reliable messages are retried, others are lost
    Down,
    /// The link is up, but no subnet manager has configured the port: messages as with down
    Init,
    /// Report a LID change, without changing the LID
    LidChange,
    /// Report a change of the partition keys, without changing them
    PkeyChange,
    /// Report a change of the GIDs, without changing them
    GidChange,
    /// Report another subnet manager
    SmChange,
    /// Request clients to reregister with the subnet manager
    ClientReregister,
    /// The whole function fails: its queue pairs end, and commands fail until 'bf-emu reset'
    Fatal,
}

/// What a change does.
enum Effect {
    State(PortState),
    /// It is only reported.
    Event(PortEvent),
    Failure,
}

impl Happening {
    fn effect(self) -> Effect {
        match self {
            Self::Up => Effect::State(PortState::Active),
            Self::Down => Effect::State(PortState::Down),
            Self::Init => Effect::State(PortState::Initializing),
            Self::LidChange => Effect::Event(PortEvent::LidChange),
            Self::PkeyChange => Effect::Event(PortEvent::PkeyChange),
            Self::GidChange => Effect::Event(PortEvent::GidChange),
            Self::SmChange => Effect::Event(PortEvent::SmChange),
            Self::ClientReregister => Effect::Event(PortEvent::ClientReregister),
            Self::Fatal => Effect::Failure,
        }
    }
}

/// Executes the command.
pub(super) fn act(args: &PortArgs) -> Result<()> {
    let state = StateDir::open(&locate(args.state.state.as_deref()))?;
    // The lock prevents a new view with the old port states.
    let lock = state.lock()?;
    let fabric = engine::open(state.path())?;
    for place in places(&fabric, &args.function, args.port)? {
        match args.change.effect() {
            Effect::State(to) => {
                port::set_state(&mut fabric.lock(), place, to);
                state.show_ports(&fabric, &lock)?;
            }
            Effect::Event(event) => port::tell(&mut fabric.lock(), place, event),
            Effect::Failure => port::fail_function(&mut fabric.lock(), place.function),
        }
    }
    Ok(())
}

/// The ports with this number of the functions that a name selects.
fn places(fabric: &Fabric, name: &str, port: u8) -> Result<Vec<Place>> {
    let named = |identity: &Identity| {
        let own = identity.name();
        own == name || own.split_once('.').is_some_and(|(node, _)| node == name)
    };
    let all = || fabric.identities().iter().enumerate();
    if !all().any(|(_, identity)| named(identity)) {
        bail!(
            "no function or node {name:?}; there are {}",
            fabric.names().join(", ")
        );
    }
    let places: Vec<Place> = all()
        .filter(|(_, identity)| named(identity) && identity.ports().contains(&port))
        .map(|(function, _)| Place { function, port })
        .collect();
    if places.is_empty() {
        bail!("{name} has no port {port}; `bf-emu topology` shows the existing ports");
    }
    Ok(places)
}
