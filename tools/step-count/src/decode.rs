//! Decodes one instruction: its memory accesses, whether it is a system call, whether it repeats, and
//! whether it is locked.

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};
use libc::user_regs_struct;

/// Maximum length of an instruction.
pub(crate) const BYTES_MAX: usize = 15;

/// Direction of an instruction that moves the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flags {
    Push,
    Pop,
}

/// A decoded instruction.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) is_system_call: bool,
    /// The instruction has a repeat prefix and traps after each repetition.
    pub(crate) repeats: bool,
    /// The processor locks the cache line: a lock prefix, or an exchange with memory.
    pub(crate) is_locked: bool,
    /// The instruction moves the flags between their register and the stack.
    pub(crate) flags: Option<Flags>,
    pub(crate) length: u64,
    memory: Vec<UsedMemory>,
}

impl Step {
    pub(crate) fn decode(bytes: &[u8], at: u64, factory: &mut InstructionInfoFactory) -> Self {
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        decoder.decode_out(&mut instruction);
        let memory = factory.info(&instruction).used_memory();
        let is_exchange = instruction.mnemonic() == Mnemonic::Xchg
            && (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
        let touches =
            |used: &&UsedMemory| !matches!(used.access(), OpAccess::None | OpAccess::NoMemAccess);
        Self {
            is_system_call: instruction.code() == Code::Syscall,
            repeats: instruction.has_rep_prefix() || instruction.has_repne_prefix(),
            is_locked: is_exchange || instruction.has_lock_prefix(),
            flags: match instruction.code() {
                Code::Pushfq => Some(Flags::Push),
                Code::Popfq => Some(Flags::Pop),
                _ => None,
            },
            length: instruction.len() as u64,
            memory: memory.iter().filter(touches).copied().collect(),
        }
    }

    /// The cache lines that the instruction accesses with these register values, and whether it may write them.
    pub(crate) fn lines(&self, registers: &user_regs_struct) -> impl Iterator<Item = (u64, bool)> {
        let of = |register: Register| value(register, registers);
        let ranges = self.memory.iter().filter_map(move |used| {
            let first = used.virtual_address(0, |register, _, _| of(register))?;
            let bytes = used.memory_size().size().max(1) as u64;
            let writes = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            let lines = (first >> 6)..=((first + bytes - 1) >> 6);
            Some(lines.map(move |line| (line, writes)))
        });
        ranges.flatten()
    }
}

/// Value of a register in an address expression.
pub(crate) fn value(register: Register, registers: &user_regs_struct) -> Option<u64> {
    let full = match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::RIP => registers.rip,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        // A vector of addresses (gather). No library under test uses it.
        _ => return None,
    };
    match register.size() {
        4 => Some(full & 0xffff_ffff),
        _ => Some(full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers() -> user_regs_struct {
        // SAFETY: the structure consists of integers; zero is a valid value.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        registers.rax = 0x1000;
        registers.rbx = 2;
        registers.fs_base = 0x8000;
        registers
    }

    #[track_caller]
    fn check(bytes: &[u8], expect: &[u64]) {
        let step = Step::decode(bytes, 0x4000, &mut InstructionInfoFactory::new());
        let lines: Vec<u64> = step.lines(&registers()).map(|(line, _)| line).collect();
        assert_eq!(lines, expect, "{bytes:x?}");
    }

    #[test]
    fn lines_are_those_that_the_instruction_touches() {
        // mov rax, [rax + rbx * 8 + 0x2c]: eight bytes across a line boundary.
        check(&[0x48, 0x8b, 0x44, 0xd8, 0x2c], &[0x40, 0x41]);
        // lea rax, [rax]
        check(&[0x48, 0x8d, 0x00], &[]);
        // mov rax, fs:[0x28]
        check(&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], &[0x200]);
        // mov eax, [rip + 0x3a]
        check(&[0x8b, 0x05, 0x3a, 0, 0, 0], &[0x101]);
        // ret reads the stack, at 0.
        check(&[0xc3], &[0]);
    }

    #[test]
    fn a_line_is_written_if_the_instruction_may_write_it() {
        let written = |bytes: &[u8]| {
            let step = Step::decode(bytes, 0, &mut InstructionInfoFactory::new());
            step.lines(&registers()).any(|(_, writes)| writes)
        };
        // mov [rax], ebx; lock cmpxchg [rax], ebx
        assert!(written(&[0x89, 0x18]));
        assert!(written(&[0xf0, 0x0f, 0xb1, 0x18]));
        // mov ebx, [rax]; cmp [rax], ebx
        assert!(!written(&[0x8b, 0x18]));
        assert!(!written(&[0x39, 0x18]));
    }

    #[test]
    fn a_locked_instruction_has_the_prefix_or_exchanges_with_memory() {
        let step = |bytes: &[u8]| Step::decode(bytes, 0, &mut InstructionInfoFactory::new());
        // lock add [rax], ebx; xchg [rax], ebx
        assert!(step(&[0xf0, 0x01, 0x18]).is_locked);
        assert!(step(&[0x87, 0x18]).is_locked);
        // add [rax], ebx; xchg eax, ebx; nop
        assert!(!step(&[0x01, 0x18]).is_locked);
        assert!(!step(&[0x87, 0xd8]).is_locked);
        assert!(!step(&[0x90]).is_locked);
    }

    #[test]
    fn a_system_call_and_a_repetition_are_told_apart() {
        let step = |bytes: &[u8]| Step::decode(bytes, 0, &mut InstructionInfoFactory::new());
        assert!(step(&[0x0f, 0x05]).is_system_call);
        assert!(step(&[0xf3, 0xa4]).repeats);
        assert!(!step(&[0x90]).is_system_call && !step(&[0x90]).repeats);
        assert_eq!(step(&[0x9c]).flags, Some(Flags::Push));
        assert_eq!(step(&[0x9d]).flags, Some(Flags::Pop));
        assert_eq!(step(&[0x90]).flags, None);
    }
}
