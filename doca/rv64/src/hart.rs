//! A hart: registers, program counter and what it is doing.

use crate::trap::{HartId, Trap};

/// Most harts of a machine: 16 cores with 16 execution units each.
pub const HARTS_MAX: u32 = 256;

/// Entries of the register file. A register number of one byte needs no bounds check; only the first 34 are used.
const FILE: usize = 256;

/// The entry with the address of the last jump.
pub(crate) const JUMP: usize = 33;

/// What a hart is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// It has not been started.
    #[default]
    Idle,
    /// It can execute instructions.
    Ready,
    /// It waits until the embedder wakes it.
    Waiting,
    /// Its function returned, or the environment ended it, with this value.
    Finished(u64),
    /// It cannot go on.
    Trapped(Trap),
}

/// Registers of a hart.
#[derive(Debug, Clone)]
pub struct Hart {
    id: HartId,
    pub(crate) file: Box<[u64; FILE]>,
    pub(crate) pc: u64,
    pub(crate) retired: u64,
    pub(crate) state: State,
}

impl Hart {
    pub(crate) fn new(id: HartId) -> Self {
        Self {
            id,
            file: Box::new([0; FILE]),
            pc: 0,
            retired: 0,
            state: State::Idle,
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> HartId {
        self.id
    }

    /// Register `x0` to `x31`. Others are 0.
    #[must_use]
    pub fn x(&self, n: u8) -> u64 {
        if n < 32 { self.file[usize::from(n)] } else { 0 }
    }

    /// Sets register `x1` to `x31`. Others are ignored.
    pub fn set_x(&mut self, n: u8, value: u64) {
        if (1..32).contains(&n) {
            self.file[usize::from(n)] = value;
        }
    }

    /// All registers, `x0` first.
    #[must_use]
    pub fn registers(&self) -> [u64; 32] {
        *self.file.first_chunk().unwrap_or(&[0; 32])
    }

    /// Address of the next instruction.
    #[must_use]
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// Sets the address of the next instruction. Bit 0 is cleared.
    pub fn set_pc(&mut self, pc: u64) {
        self.pc = pc & !1;
    }

    /// Address of the last jump or taken branch since its function was started, or 0: after a jump into nothing, the place of the
    /// mistake.
    #[must_use]
    pub fn last_jump(&self) -> u64 {
        self.file[JUMP]
    }

    /// Executed instructions since its creation. One that trapped does not count.
    #[must_use]
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }
}
