//! The program's code in blocks, and a breakpoint at the last instruction of each.
//!
//! A block is a sequence of instructions that run one after the other: the block continues behind a direct jump or call at its
//! target. The last instruction is never executed at its place, because the breakpoint is there.

use crate::branch::{self, Words};
use crate::decode::BYTES_MAX;
use anyhow::{Context, Result, ensure};
use iced_x86::{Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction};
use libc::pid_t;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

/// The instruction that is a breakpoint.
const BREAKPOINT: u8 = 0xcc;
/// Maximum number of instructions of a block.
const BLOCK_MAX: usize = 4096;

/// How the last instruction of a block is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Last {
    /// On a copy of the registers.
    Branch(Instruction),
    SystemCall,
    /// At its place, without the breakpoint, in a single step.
    Other,
}

/// Instructions that run one after the other.
#[derive(Debug)]
pub(crate) struct Block {
    /// Addresses of the instructions. No address is there twice.
    addresses: Vec<u64>,
}

impl Block {
    pub(crate) fn last(&self) -> u64 {
        self.addresses[self.addresses.len() - 1]
    }

    /// Number of instructions before the one at an address; `None` if the block does not contain it.
    pub(crate) fn position(&self, address: u64) -> Option<usize> {
        self.addresses.iter().position(|at| *at == address)
    }

    /// Addresses of the first `count` instructions.
    pub(crate) fn first(&self, count: usize) -> &[u64] {
        &self.addresses[..count]
    }
}

/// A breakpoint.
#[derive(Debug)]
struct Breakpoint {
    /// First byte of the instruction.
    byte: u8,
    last: Last,
}

/// The memory of the program.
#[derive(Debug)]
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn open(pid: pid_t) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(&path);
        Ok(Self(file.context(path)?))
    }

    pub(crate) fn read_bytes(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.0.read_at(bytes, address).unwrap_or_default()
    }

    pub(crate) fn write_bytes(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let written = self.0.write_all_at(bytes, address);
        written.with_context(|| format!("writing at {address:#x}"))
    }
}

impl Words for Memory {
    fn read(&self, address: u64) -> Result<u64> {
        let mut word = [0; 8];
        let read = self.0.read_exact_at(&mut word, address);
        read.with_context(|| format!("reading at {address:#x}"))?;
        Ok(u64::from_le_bytes(word))
    }

    fn write(&self, address: u64, word: u64) -> Result<()> {
        self.write_bytes(address, &word.to_le_bytes())
    }
}

/// All blocks that have run.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) memory: Memory,
    blocks: HashMap<u64, Rc<Block>>,
    breakpoints: HashMap<u64, Breakpoint>,
}

impl Code {
    pub(crate) fn open(pid: pid_t) -> Result<Self> {
        Ok(Self {
            memory: Memory::open(pid)?,
            blocks: HashMap::new(),
            breakpoints: HashMap::new(),
        })
    }

    /// The block that starts at an address. Its breakpoint is set.
    pub(crate) fn block(&mut self, start: u64) -> Result<Rc<Block>> {
        if let Some(known) = self.blocks.get(&start) {
            return Ok(Rc::clone(known));
        }
        let mut addresses = Vec::new();
        let mut at = start;
        loop {
            addresses.push(at);
            if self.breakpoints.contains_key(&at) {
                break;
            }
            let (instruction, byte) = self.decode(at)?;
            let next = match instruction.flow_control() {
                FlowControl::Next => Some(instruction.next_ip()),
                FlowControl::UnconditionalBranch | FlowControl::Call
                    if branch::is_known(&instruction) =>
                {
                    Some(instruction.near_branch_target())
                }
                _ => None,
            };
            let next = next.filter(|next| addresses.len() < BLOCK_MAX && !addresses.contains(next));
            match next {
                Some(next) => at = next,
                None => {
                    self.set(at, byte, last(&instruction))?;
                    break;
                }
            }
        }
        let block = Rc::new(Block { addresses });
        self.blocks.insert(start, Rc::clone(&block));
        Ok(block)
    }

    /// How the instruction at a breakpoint is executed; `None` if there is no breakpoint.
    pub(crate) fn at(&self, address: u64) -> Option<Last> {
        self.breakpoints
            .get(&address)
            .map(|breakpoint| breakpoint.last)
    }

    /// Removes a breakpoint for the execution of its instruction.
    pub(crate) fn lift(&self, address: u64) -> Result<()> {
        let breakpoint = self
            .breakpoints
            .get(&address)
            .context("no breakpoint there")?;
        self.memory.write_bytes(address, &[breakpoint.byte])
    }

    /// Sets a breakpoint again.
    pub(crate) fn lower(&self, address: u64) -> Result<()> {
        self.memory.write_bytes(address, &[BREAKPOINT])
    }

    /// Removes all breakpoints. The blocks stay known.
    pub(crate) fn lift_all(&self) -> Result<()> {
        self.breakpoints
            .keys()
            .try_for_each(|address| self.lift(*address))
    }

    /// Sets the breakpoints of all known blocks again.
    pub(crate) fn lower_all(&self) -> Result<()> {
        self.breakpoints
            .keys()
            .try_for_each(|address| self.lower(*address))
    }

    fn set(&mut self, address: u64, byte: u8, last: Last) -> Result<()> {
        self.lower(address)?;
        self.breakpoints.insert(address, Breakpoint { byte, last });
        Ok(())
    }

    /// The instruction at an address without a breakpoint, and its first byte.
    fn decode(&self, address: u64) -> Result<(Instruction, u8)> {
        let mut bytes = [0; BYTES_MAX];
        let read = self.memory.read_bytes(address, &mut bytes);
        ensure!(read > 0, "no instruction at {address:#x}");
        for (at, byte) in (address..).zip(&mut bytes).skip(1) {
            if let Some(breakpoint) = self.breakpoints.get(&at) {
                *byte = breakpoint.byte;
            }
        }
        let mut decoder = Decoder::with_ip(64, &bytes[..read], address, DecoderOptions::NONE);
        Ok((decoder.decode(), bytes[0]))
    }
}

fn last(instruction: &Instruction) -> Last {
    if instruction.code() == Opcode::Syscall {
        return Last::SystemCall;
    }
    match branch::is_known(instruction) {
        true => Last::Branch(*instruction),
        false => Last::Other,
    }
}
