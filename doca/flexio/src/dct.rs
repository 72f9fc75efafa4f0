//! Targets of dynamic connections: one target serves the initiators of all peers.

use crate::error::Result;
use crate::object::{Input, Object};
use crate::process::{Process, low};
use mlx5_prm::cmd::{self, opcode};
use mlx5_prm::qp::dct;
use mlx5dv_sys::{IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE};

/// Bytes of the command.
const CREATE_BYTES: usize = 0x80;

/// Attributes of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DctAttr {
    /// Number of its completion queue.
    pub cq: u32,
    /// Number of its receive queue, see [`Rmp`](crate::Rmp).
    pub shared: u32,
    /// Rights of initiators (`IBV_ACCESS_REMOTE_READ`, `IBV_ACCESS_REMOTE_WRITE`).
    pub access: u32,
    /// Initiators name this key.
    pub key: u64,
    /// Port, from 1 on.
    pub port: u8,
    /// `IBV_MTU_*`.
    pub mtu: u8,
    /// Code of the delay that a receiver that is not ready asks for.
    pub rnr_timer: u8,
}

/// The target of initiators, which are queue pairs with [`Transport::Dci`](crate::Transport::Dci) and name it in each request.
#[derive(Debug)]
pub struct Dct {
    #[expect(dead_code, reason = "destroyed with this value")]
    object: Object,
    number: u32,
    #[expect(dead_code, reason = "lives as long as this value")]
    process: Process,
}

impl Dct {
    /// Creates a target, which serves at once.
    ///
    /// # Errors
    /// A number is none of the program's, or the device has no dynamic connections.
    pub fn create(process: &Process, attr: &DctAttr) -> Result<Self> {
        let right = |bit: u32| u64::from(attr.access & bit != 0);
        let input = Input::new(opcode::CREATE_DCT, CREATE_BYTES)
            .with(dct::PD, process.pd_number().into())
            .with(dct::CQN, attr.cq.into())
            .with(dct::SRQN, attr.shared.into())
            .with(dct::REMOTE_READ, right(IBV_ACCESS_REMOTE_READ))
            .with(dct::REMOTE_WRITE, right(IBV_ACCESS_REMOTE_WRITE))
            .with(dct::DC_ACCESS_KEY, attr.key)
            .with(dct::MIN_RNR_NAK, attr.rnr_timer.into())
            .with(dct::MTU, attr.mtu.into())
            .with(dct::PORT, attr.port.into());
        let (object, output) = process.create_queue(&input, "target of dynamic connections")?;
        Ok(Self {
            object,
            number: low(cmd::OBJECT_NUMBER.get(&output)),
            process: process.clone(),
        })
    }

    /// Its number, for initiators.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}
