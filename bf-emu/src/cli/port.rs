//! `bf-emu port`: a port of the device that is there goes down and comes up again, or tells of something.

use anyhow::{Result, bail};
use bf_emu::engine::event::PortEvent;
use bf_emu::engine::{self, port};
use bf_emu::fabric::{Fabric, Identity, Place, PortState};
use bf_emu::view::state::{StateDir, locate};
use clap::{Args, ValueEnum};

use super::args::StateArgs;

/// Which port, and what happens to it.
#[derive(Args, Debug)]
pub(super) struct PortArgs {
    #[command(flatten)]
    state: StateArgs,
    /// A function, node0.host, or a node, node0, for each of its functions that has such a port
    #[arg(value_name = "FUNCTION|NODE")]
    function: String,
    /// Number of the port, from 1
    port: u8,
    /// What happens
    change: Happening,
}

/// What happens to a port.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Happening {
    /// It carries messages
    Up,
    /// Its link is gone: reliable messages are tried again, others are lost
    Down,
    /// There is a link, and no subnet manager has set it up: messages as with down
    Init,
    /// Tell of another LID, and change none
    LidChange,
    /// Tell of other partition keys, and change none
    PkeyChange,
    /// Tell of other addresses, and change none
    GidChange,
    /// Tell of another subnet manager
    SmChange,
    /// Ask all to subscribe again with the subnet manager
    ClientReregister,
}

impl Happening {
    /// A state, or something that is only told of.
    fn effect(self) -> std::result::Result<PortState, PortEvent> {
        match self {
            Self::Up => Ok(PortState::Active),
            Self::Down => Ok(PortState::Down),
            Self::Init => Ok(PortState::Initializing),
            Self::LidChange => Err(PortEvent::LidChange),
            Self::PkeyChange => Err(PortEvent::PkeyChange),
            Self::GidChange => Err(PortEvent::GidChange),
            Self::SmChange => Err(PortEvent::SmChange),
            Self::ClientReregister => Err(PortEvent::ClientReregister),
        }
    }
}

/// Does what was asked for.
pub(super) fn act(args: &PortArgs) -> Result<()> {
    let state = StateDir::open(&locate(args.state.state.as_deref()))?;
    // Until the views show what is so, no other view is made.
    let lock = state.lock()?;
    let fabric = engine::open(state.path())?;
    for place in places(&fabric, &args.function, args.port)? {
        match args.change.effect() {
            Ok(to) => {
                port::set_state(&mut fabric.lock(), place, to);
                state.show_ports(&fabric, &lock)?;
            }
            Err(event) => port::tell(&fabric.lock(), place, event),
        }
    }
    Ok(())
}

/// The ports of this number that a name stands for.
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
