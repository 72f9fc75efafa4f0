//! Executes a jump, a call or a return on a copy of the registers, as the processor would.

use crate::decode::value;
use anyhow::{Context, Result};
use iced_x86::{Code, ConditionCode, FlowControl, Instruction, OpKind};
use libc::user_regs_struct;

/// Words of the program's memory.
pub(crate) trait Words {
    fn read(&self, address: u64) -> Result<u64>;
    fn write(&self, address: u64, word: u64) -> Result<()>;
}

/// Flags of the processor (Intel SDM volume 1, 3.4.3).
mod flag {
    pub(super) const CARRY: u64 = 1 << 0;
    pub(super) const PARITY: u64 = 1 << 2;
    pub(super) const ZERO: u64 = 1 << 6;
    pub(super) const SIGN: u64 = 1 << 7;
    pub(super) const OVERFLOW: u64 = 1 << 11;
}

/// Whether [`follow`] can execute the instruction.
pub(crate) fn is_known(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::Call => {
            instruction.op0_kind() == OpKind::NearBranch64
        }
        FlowControl::ConditionalBranch => instruction.condition_code() != ConditionCode::None,
        FlowControl::IndirectBranch => instruction.code() == Code::Jmp_rm64,
        FlowControl::IndirectCall => instruction.code() == Code::Call_rm64,
        FlowControl::Return => matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16),
        _ => false,
    }
}

/// Executes the instruction, for which [`is_known`] holds.
pub(crate) fn follow(
    instruction: &Instruction,
    registers: &mut user_regs_struct,
    memory: &impl Words,
) -> Result<()> {
    let behind = instruction.next_ip();
    let push = |registers: &mut user_regs_struct| {
        registers.rsp = registers.rsp.wrapping_sub(8);
        memory.write(registers.rsp, behind)
    };
    registers.rip = match instruction.flow_control() {
        FlowControl::UnconditionalBranch => instruction.near_branch_target(),
        FlowControl::ConditionalBranch => {
            match holds(instruction.condition_code(), registers.eflags) {
                true => instruction.near_branch_target(),
                false => behind,
            }
        }
        FlowControl::IndirectBranch => target(instruction, registers, memory)?,
        FlowControl::Call => {
            push(registers)?;
            instruction.near_branch_target()
        }
        FlowControl::IndirectCall => {
            // The target may depend on the stack pointer before the push.
            let target = target(instruction, registers, memory)?;
            push(registers)?;
            target
        }
        _ => {
            let target = memory.read(registers.rsp)?;
            let released = match instruction.code() {
                Code::Retnq_imm16 => u64::from(instruction.immediate16()),
                _ => 0,
            };
            registers.rsp = registers.rsp.wrapping_add(8 + released);
            target
        }
    };
    Ok(())
}

/// Target of an indirect jump or call.
fn target(
    instruction: &Instruction,
    registers: &user_regs_struct,
    memory: &impl Words,
) -> Result<u64> {
    if instruction.op0_kind() == OpKind::Register {
        return value(instruction.op0_register(), registers).context("a jump to a vector register");
    }
    let address = instruction.virtual_address(0, 0, |register, _, _| value(register, registers));
    memory.read(address.context("a jump by a vector of addresses")?)
}

fn holds(condition: ConditionCode, flags: u64) -> bool {
    let is_set = |flag: u64| flags & flag != 0;
    let is_less = is_set(flag::SIGN) != is_set(flag::OVERFLOW);
    match condition {
        ConditionCode::o => is_set(flag::OVERFLOW),
        ConditionCode::no => !is_set(flag::OVERFLOW),
        ConditionCode::b => is_set(flag::CARRY),
        ConditionCode::ae => !is_set(flag::CARRY),
        ConditionCode::e => is_set(flag::ZERO),
        ConditionCode::ne => !is_set(flag::ZERO),
        ConditionCode::be => is_set(flag::CARRY | flag::ZERO),
        ConditionCode::a => !is_set(flag::CARRY | flag::ZERO),
        ConditionCode::s => is_set(flag::SIGN),
        ConditionCode::ns => !is_set(flag::SIGN),
        ConditionCode::p => is_set(flag::PARITY),
        ConditionCode::np => !is_set(flag::PARITY),
        ConditionCode::l => is_less,
        ConditionCode::ge => !is_less,
        ConditionCode::le => is_less || is_set(flag::ZERO),
        ConditionCode::g => !is_less && !is_set(flag::ZERO),
        ConditionCode::None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// Memory that holds each word at its address.
    #[derive(Default)]
    struct Memory(RefCell<BTreeMap<u64, u64>>);

    impl Words for Memory {
        fn read(&self, address: u64) -> Result<u64> {
            let words = self.0.borrow();
            words.get(&address).copied().context("no word there")
        }

        fn write(&self, address: u64, word: u64) -> Result<()> {
            self.0.borrow_mut().insert(address, word);
            Ok(())
        }
    }

    const AT: u64 = 0x4000;

    fn decoded(bytes: &[u8]) -> Instruction {
        Decoder::with_ip(64, bytes, AT, DecoderOptions::NONE).decode()
    }

    fn registers(eflags: u64) -> user_regs_struct {
        // SAFETY: the structure consists of integers; zero is a valid value.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        registers.rsp = 0x8000;
        registers.rax = 0x1000;
        registers.eflags = eflags;
        registers
    }

    #[track_caller]
    fn check(bytes: &[u8], rip: u64, rsp: u64) {
        let memory = Memory::default();
        for (address, word) in [(0x8000, 0x111), (0x1000, 0x222), (0x8010, 0x333)] {
            memory.write(address, word).expect("any address");
        }
        let instruction = decoded(bytes);
        assert!(is_known(&instruction), "{bytes:x?}");
        let mut registers = registers(0);
        follow(&instruction, &mut registers, &memory).expect("readable");
        assert_eq!((registers.rip, registers.rsp), (rip, rsp), "{bytes:x?}");
        if rsp < 0x8000 {
            let behind = AT + bytes.len() as u64;
            assert_eq!(memory.read(rsp).expect("pushed"), behind, "{bytes:x?}");
        }
    }

    #[test]
    fn jumps_calls_and_returns_go_to_their_targets() {
        check(&[0xeb, 0x10], AT + 2 + 0x10, 0x8000);
        check(&[0xe9, 0, 1, 0, 0], AT + 5 + 0x100, 0x8000);
        check(&[0xe8, 0xfb, 0xff, 0xff, 0xff], AT, 0x7ff8);
        // jmp rax; call rax; call [rax]; notrack jmp [rax]; call [rsp + 16]
        check(&[0xff, 0xe0], 0x1000, 0x8000);
        check(&[0xff, 0xd0], 0x1000, 0x7ff8);
        check(&[0xff, 0x10], 0x222, 0x7ff8);
        check(&[0x3e, 0xff, 0x20], 0x222, 0x8000);
        check(&[0xff, 0x54, 0x24, 0x10], 0x333, 0x7ff8);
        // ret; rep ret; ret 128
        check(&[0xc3], 0x111, 0x8008);
        check(&[0xf3, 0xc3], 0x111, 0x8008);
        check(&[0xc2, 0x80, 0], 0x111, 0x8088);
    }

    #[test]
    fn conditions_follow_the_flags() {
        // The conditions in the order of their encoding (Intel SDM volume 2, appendix B.1.4), for some flags.
        let flags = [
            0,
            flag::CARRY,
            flag::ZERO,
            flag::SIGN,
            flag::OVERFLOW,
            flag::PARITY,
            flag::SIGN | flag::OVERFLOW,
        ];
        for eflags in flags {
            let set = |flag: u64| eflags & flag != 0;
            let less = set(flag::SIGN) ^ set(flag::OVERFLOW);
            let even = [
                set(flag::OVERFLOW),
                set(flag::CARRY),
                set(flag::ZERO),
                set(flag::CARRY) || set(flag::ZERO),
                set(flag::SIGN),
                set(flag::PARITY),
                less,
                less || set(flag::ZERO),
            ];
            for (number, expect) in (0_u8..).zip(even.into_iter().flat_map(|is| [is, !is])) {
                let instruction = decoded(&[0x70 + number, 0x20]);
                let mut registers = registers(eflags);
                follow(&instruction, &mut registers, &Memory::default()).expect("no memory");
                let taken = registers.rip == AT + 2 + 0x20;
                assert_eq!(taken, expect, "condition {number}, flags {eflags:#x}");
            }
        }
    }

    #[test]
    fn other_instructions_need_the_processor() {
        // nop; syscall; loop; jrcxz; int3; xbegin
        let others: [&[u8]; 6] = [
            &[0x90],
            &[0x0f, 0x05],
            &[0xe2, 0xfe],
            &[0xe3, 0xfe],
            &[0xcc],
            &[0xc7, 0xf8, 0, 0, 0, 0],
        ];
        for bytes in others {
            assert!(!is_known(&decoded(bytes)), "{bytes:x?}");
        }
    }
}
