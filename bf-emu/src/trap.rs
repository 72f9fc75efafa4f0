//! A decoder of the x86-64 instructions that store to memory, for trapped doorbells. It has no side
//! effects. The signal handler uses it, so it does not allocate, lock or panic.
//!
//! It finds the length of the faulting instruction, which the handler skips, and the value of the
//! store. It knows the plain stores that compilers and libraries use for device registers: moves
//! from general registers and immediates, non-temporal and direct stores, and SSE, AVX and AVX-512
//! vector stores. Read-modify-write and string instructions give `None`. [`string`] decodes string
//! moves. [`copy`] handles the code after a store that is part of a longer copy. Encodings: Intel
//! SDM volume 2.

pub mod aarch64;
pub mod copy;
pub mod string;

/// Longest x86 instruction, in bytes (Intel SDM volume 2, section 2.3.11).
pub const INSTRUCTION_BYTES_MAX: usize = 15;

/// The general registers at the fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 ... r15: in the order of their encoding.
    pub general: [u64; 16],
    /// Address of the instruction.
    pub rip: u64,
}

/// A decoded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Length of the whole instruction, 1..=[`INSTRUCTION_BYTES_MAX`].
    pub length: u8,
    /// Bytes stored; for a masked AVX-512 store, the bytes with all lanes on.
    pub width: u8,
    /// The stored value in its low `width` bytes, if it comes from a general register or an
    /// immediate. Vector registers are not read.
    pub value: Option<u64>,
}

/// Decodes the instruction at the start of `bytes`. `bytes` may be longer than the instruction, or
/// shorter than [`INSTRUCTION_BYTES_MAX`] at the end of a mapping.
///
/// None if it is not a known store, or is incomplete.
#[must_use]
pub fn decode(bytes: &[u8], registers: &Registers) -> Option<Store> {
    let mut code = Code {
        bytes: bytes.get(..INSTRUCTION_BYTES_MAX).unwrap_or(bytes),
        at: 0,
    };
    let (prefixes, first) = code.legacy_prefixes()?;
    let (width, source) = match first {
        0x62 => code.evex(prefixes)?,
        0xc4 | 0xc5 => code.vex(first, prefixes)?,
        0x0f => code.two_byte(prefixes)?,
        opcode => code.one_byte(opcode, prefixes)?,
    };
    let value = match source {
        Source::Vector => None,
        Source::Immediate(value) => Some(value & mask(width)),
        Source::General(register) => Some(registers.general.get(register)? & mask(width)),
        Source::HighByte(register) => Some(registers.general.get(register)? >> 8 & 0xff),
        Source::Swapped(register) => {
            let swapped = registers.general.get(register)?.swap_bytes();
            Some(swapped.checked_shr(64 - 8 * u32::from(width))?)
        }
    };
    Some(Store {
        length: u8::try_from(code.at).ok()?,
        width,
        value,
    })
}

/// Source of the stored value; registers by their encoding.
#[derive(Clone, Copy)]
enum Source {
    Vector,
    Immediate(u64),
    General(usize),
    /// ah, ch, dh or bh, by the number of the containing register.
    HighByte(usize),
    /// A general register, its bytes in reverse order (MOVBE).
    Swapped(usize),
}

/// Bits of a REX prefix.
const REX_W: u8 = 8;
const REX_R: u8 = 4;

#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 0x66.
    operand_size: bool,
    /// 0x67.
    address_size: bool,
    /// The last of 0xf2 and 0xf3. It selects the instruction in the two-byte maps.
    repeat: Option<u8>,
    lock: bool,
    rex: Option<u8>,
}

impl Prefixes {
    fn rex(self, bit: u8) -> bool {
        self.rex.is_some_and(|rex| rex & bit != 0)
    }

    /// Operand width of the general-register instructions.
    fn width(self) -> u8 {
        match (self.rex(REX_W), self.operand_size) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 4,
        }
    }

    /// Operand width if only REX.W selects it.
    fn dword_or_qword(self) -> u8 {
        if self.rex(REX_W) { 8 } else { 4 }
    }

    /// The mandatory prefix of the two-byte maps, in the numbering of VEX.pp.
    fn pp(self) -> u8 {
        match (self.repeat, self.operand_size) {
            (Some(0xf3), _) => 2,
            (Some(_), _) => 3,
            (None, true) => 1,
            (None, false) => 0,
        }
    }
}

/// The reg field of a ModRM byte with a memory operand.
#[derive(Clone, Copy)]
struct ModRm {
    reg: u8,
}

impl ModRm {
    fn general(self, prefixes: Prefixes) -> usize {
        usize::from(self.reg) + if prefixes.rex(REX_R) { 8 } else { 0 }
    }
}

struct Code<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Code<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        // Cannot overflow: `at` is within the slice and `count` at most 8.
        self.at += count;
        (self.at <= self.bytes.len()).then_some(())
    }

    /// Little-endian immediate of `count` bytes, sign-extended.
    fn immediate(&mut self, count: u8) -> Option<u64> {
        let mut value: u64 = 0;
        for i in 0..u32::from(count) {
            value |= u64::from(self.byte()?) << (8 * i);
        }
        let unused = 64 - 8 * u32::from(count);
        Some(((value << unused).cast_signed() >> unused).cast_unsigned())
    }

    /// All prefixes, and the byte after them.
    fn legacy_prefixes(&mut self) -> Option<(Prefixes, u8)> {
        let mut prefixes = Prefixes::default();
        loop {
            match self.byte()? {
                0x66 => prefixes.operand_size = true,
                0x67 => prefixes.address_size = true,
                repeat @ (0xf2 | 0xf3) => prefixes.repeat = Some(repeat),
                0xf0 => prefixes.lock = true,
                // Segment overrides change the address, which the fault reports.
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
                rex @ 0x40..=0x4f => {
                    // A REX prefix is valid only directly before the opcode. A later prefix cancels
                    // it.
                    let opcode = self.byte()?;
                    if is_prefix(opcode) {
                        self.at -= 1;
                        continue;
                    }
                    prefixes.rex = Some(rex);
                    return Some((prefixes, opcode));
                }
                opcode => return Some((prefixes, opcode)),
            }
        }
    }

    /// ModRM, SIB and displacement; None for the register form, which does not store to memory.
    fn memory_operand(&mut self) -> Option<ModRm> {
        let modrm = self.byte()?;
        let (mode, reg, rm) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        if mode == 3 {
            return None;
        }
        let base = if rm == 4 { self.byte()? & 7 } else { rm };
        self.skip(match (mode, base) {
            // RIP-relative, or an index without a base.
            (0, 5) | (2, _) => 4,
            (1, _) => 1,
            _ => 0,
        })?;
        Some(ModRm { reg })
    }

    fn one_byte(&mut self, opcode: u8, prefixes: Prefixes) -> Option<(u8, Source)> {
        if prefixes.lock {
            return None;
        }
        match opcode {
            0x88 => {
                let modrm = self.memory_operand()?;
                let source = match (prefixes.rex, modrm.reg) {
                    (None, high @ 4..=7) => Source::HighByte(usize::from(high - 4)),
                    _ => Source::General(modrm.general(prefixes)),
                };
                Some((1, source))
            }
            0x89 => {
                let modrm = self.memory_operand()?;
                Some((prefixes.width(), Source::General(modrm.general(prefixes))))
            }
            0xc6 | 0xc7 => {
                if self.memory_operand()?.reg != 0 {
                    return None;
                }
                let width = if opcode == 0xc6 { 1 } else { prefixes.width() };
                // A 64-bit move has a 32-bit immediate.
                let immediate = self.immediate(width.min(4))?;
                Some((width, Source::Immediate(immediate)))
            }
            0xa2 | 0xa3 => {
                self.skip(if prefixes.address_size { 4 } else { 8 })?;
                let width = if opcode == 0xa2 { 1 } else { prefixes.width() };
                Some((width, Source::General(0)))
            }
            _ => None,
        }
    }

    fn two_byte(&mut self, prefixes: Prefixes) -> Option<(u8, Source)> {
        if prefixes.lock {
            return None;
        }
        match self.byte()? {
            0x38 => {
                let opcode = self.byte()?;
                let modrm = self.memory_operand()?;
                let register = modrm.general(prefixes);
                match (opcode, prefixes.pp()) {
                    // MOVBE; with 0xf2 the opcode is CRC32.
                    (0xf1, 0 | 1) => Some((prefixes.width(), Source::Swapped(register))),
                    // MOVDIR64B: the decoded operand is its source. The fault is at its target.
                    (0xf8, 1) => Some((64, Source::Vector)),
                    // MOVDIRI
                    (0xf9, 0) => Some((prefixes.dword_or_qword(), Source::General(register))),
                    _ => None,
                }
            }
            0x3a => {
                let opcode = self.byte()?;
                self.memory_operand()?;
                self.skip(1)?;
                let width = extract_width(opcode, prefixes.pp(), prefixes.rex(REX_W))?;
                Some((width, Source::Vector))
            }
            // MOVNTI
            0xc3 if prefixes.pp() == 0 => {
                let register = self.memory_operand()?.general(prefixes);
                Some((prefixes.dword_or_qword(), Source::General(register)))
            }
            opcode => {
                self.memory_operand()?;
                let width = match (opcode, prefixes.pp()) {
                    // MMX: MOVD or MOVQ, MOVQ, MOVNTQ
                    (0x7e, 0) => prefixes.dword_or_qword(),
                    (0x7f | 0xe7, 0) => 8,
                    // MOVNTSS, MOVNTSD of SSE4a
                    (0x2b, 2) => 4,
                    (0x2b, 3) => 8,
                    (opcode, pp) => vector_width(opcode, pp, prefixes.rex(REX_W), 16)?,
                };
                Some((width, Source::Vector))
            }
        }
    }

    fn vex(&mut self, first: u8, prefixes: Prefixes) -> Option<(u8, Source)> {
        if !prefixes.allow_vex() {
            return None;
        }
        let (map, last) = if first == 0xc5 {
            (1, self.byte()? & 0x7f)
        } else {
            (self.byte()? & 0x1f, self.byte()?)
        };
        let wide = last & 0x80 != 0;
        let full = if last & 4 != 0 { 32 } else { 16 };
        self.vector(map, last & 3, wide, full)
    }

    fn evex(&mut self, prefixes: Prefixes) -> Option<(u8, Source)> {
        if !prefixes.allow_vex() {
            return None;
        }
        let map = self.byte()? & 7;
        let second = self.byte()?;
        let full = match self.byte()? >> 5 & 3 {
            0 => 16,
            1 => 32,
            2 => 64,
            _ => return None,
        };
        self.vector(map, second & 3, second & 0x80 != 0, full)
    }

    /// The opcode and its operands, after a VEX or EVEX prefix.
    fn vector(&mut self, map: u8, pp: u8, wide: bool, full: u8) -> Option<(u8, Source)> {
        let opcode = self.byte()?;
        self.memory_operand()?;
        let width = match map {
            1 => vector_width(opcode, pp, wide, full)?,
            3 => {
                self.skip(1)?;
                extract_width(opcode, pp, wide)?
            }
            _ => return None,
        };
        Some((width, Source::Vector))
    }
}

impl Prefixes {
    /// VEX and EVEX encode these prefixes themselves. Such a prefix before them is undefined.
    fn allow_vex(self) -> bool {
        !self.operand_size && self.repeat.is_none() && !self.lock && self.rex.is_none()
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// Bytes stored by an opcode of map 0x0f from a vector register of `full` bytes; `pp` is the
/// mandatory prefix: none, 66, f3, f2.
fn vector_width(opcode: u8, pp: u8, wide: bool, full: u8) -> Option<u8> {
    match (opcode, pp) {
        // MOVUPS, MOVUPD, MOVSS, MOVSD
        (0x11, 0 | 1) => Some(full),
        (0x11, 2) => Some(4),
        (0x11, _) => Some(8),
        // MOVLPS, MOVLPD, MOVHPS, MOVHPD
        (0x13 | 0x17, 0 | 1) => Some(8),
        // MOVAPS, MOVAPD, MOVNTPS, MOVNTPD
        (0x29 | 0x2b, 0 | 1) => Some(full),
        // MOVD, MOVQ
        (0x7e, 1) => Some(if wide { 8 } else { 4 }),
        (0xd6, 1) => Some(8),
        // MOVDQA, MOVDQU; with f2 the EVEX byte and word forms
        (0x7f, 1..=3) => Some(full),
        // MOVNTDQ
        (0xe7, 1) => Some(full),
        _ => None,
    }
}

/// Bytes stored by an opcode of map 0x0f3a: part of a vector register.
fn extract_width(opcode: u8, pp: u8, wide: bool) -> Option<u8> {
    match (opcode, pp) {
        // PEXTRB, PEXTRW, PEXTRD or PEXTRQ, EXTRACTPS
        (0x14, 1) => Some(1),
        (0x15, 1) => Some(2),
        (0x16, 1) => Some(if wide { 8 } else { 4 }),
        (0x17, 1) => Some(4),
        // VEXTRACTF128, VEXTRACTI128 and their EVEX forms, then the 256-bit ones
        (0x19 | 0x39, 1) => Some(16),
        (0x1b | 0x3b, 1) => Some(32),
        _ => None,
    }
}

fn mask(width: u8) -> u64 {
    u64::MAX
        .checked_shr(64 - 8 * u32::from(width.min(8)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn registers() -> Registers {
        let mut general = [0; 16];
        for (i, register) in (0_u64..).zip(general.iter_mut()) {
            *register = 0x1122_3344_5566_7700 + i;
        }
        Registers {
            general,
            rip: 0x40_0000,
        }
    }

    /// Checks width and value of a store that occupies all of `bytes`. Checks that it is refused if
    /// its last bytes are missing.
    fn check(bytes: &[u8], width: u8, value: Option<u64>) {
        let length = u8::try_from(bytes.len()).unwrap();
        let expected = Store {
            length,
            width,
            value,
        };
        assert_eq!(decode(bytes, &registers()), Some(expected), "{bytes:02x?}");
        let mut longer = bytes.to_vec();
        longer.extend([0xff; 4]);
        assert_eq!(
            decode(&longer, &registers()),
            Some(expected),
            "{bytes:02x?} and more"
        );
        for end in 0..bytes.len() {
            assert_eq!(
                decode(&bytes[..end], &registers()),
                None,
                "{:02x?}",
                &bytes[..end]
            );
        }
    }

    #[test]
    fn stores_of_general_registers() {
        // mov %rcx,(%rdx,%rax,1): libmlx5's doorbell
        check(&[0x48, 0x89, 0x0c, 0x02], 8, Some(0x1122_3344_5566_7701));
        // mov %rax,0x20(%rdx): libmlx5's CQ arm
        check(&[0x48, 0x89, 0x42, 0x20], 8, Some(0x1122_3344_5566_7700));
        // mov %r9,0x800(%r12)
        check(
            &[0x4d, 0x89, 0x8c, 0x24, 0x00, 0x08, 0x00, 0x00],
            8,
            Some(0x1122_3344_5566_7709),
        );
        // mov %esi,(%rdi)
        check(&[0x89, 0x37], 4, Some(0x5566_7706));
        // mov %r15d,0x0(%r13)
        check(&[0x45, 0x89, 0x7d, 0x00], 4, Some(0x5566_770f));
        // mov %cx,(%rax)
        check(&[0x66, 0x89, 0x08], 2, Some(0x7701));
        // mov %ch,(%rax); mov %bpl,(%rax); mov %dl,(%rax)
        check(&[0x88, 0x28], 1, Some(0x77));
        check(&[0x40, 0x88, 0x28], 1, Some(0x05));
        check(&[0x88, 0x10], 1, Some(0x02));
        // mov %rax,0x1234(%rip)
        check(
            &[0x48, 0x89, 0x05, 0x34, 0x12, 0x00, 0x00],
            8,
            Some(0x1122_3344_5566_7700),
        );
        // mov %rax,0x1000(,%rbx,8)
        check(
            &[0x48, 0x89, 0x04, 0xdd, 0x00, 0x10, 0x00, 0x00],
            8,
            Some(0x1122_3344_5566_7700),
        );
        // mov %rax,%fs:(%rbx); mov %eax,(%ebx)
        check(&[0x64, 0x48, 0x89, 0x03], 8, Some(0x1122_3344_5566_7700));
        check(&[0x67, 0x89, 0x03], 4, Some(0x5566_7700));
        // movabs %rax,0x1122334455667788; movabs %al,...
        check(
            &[0x48, 0xa3, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
            8,
            Some(0x1122_3344_5566_7700),
        );
        check(
            &[0xa2, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
            1,
            Some(0),
        );
        // movnti %rsi,(%rax); movnti %esi,(%rax)
        check(&[0x48, 0x0f, 0xc3, 0x30], 8, Some(0x1122_3344_5566_7706));
        check(&[0x0f, 0xc3, 0x30], 4, Some(0x5566_7706));
        // movdiri %rdx,0x8(%rax); movdiri %edx,(%rax)
        check(
            &[0x48, 0x0f, 0x38, 0xf9, 0x50, 0x08],
            8,
            Some(0x1122_3344_5566_7702),
        );
        check(&[0x0f, 0x38, 0xf9, 0x10], 4, Some(0x5566_7702));
        // movbe %rcx,(%rax); movbe %ecx,(%rax); movbe %cx,(%rax)
        check(
            &[0x48, 0x0f, 0x38, 0xf1, 0x08],
            8,
            Some(0x0177_6655_4433_2211),
        );
        check(&[0x0f, 0x38, 0xf1, 0x08], 4, Some(0x0177_6655));
        check(&[0x66, 0x0f, 0x38, 0xf1, 0x08], 2, Some(0x0177));
    }

    #[test]
    fn stores_of_immediates() {
        // movq $-1,(%rax)
        check(
            &[0x48, 0xc7, 0x00, 0xff, 0xff, 0xff, 0xff],
            8,
            Some(u64::MAX),
        );
        // movl $0x12345678,0x800(%rbx)
        check(
            &[0xc7, 0x83, 0x00, 0x08, 0x00, 0x00, 0x78, 0x56, 0x34, 0x12],
            4,
            Some(0x1234_5678),
        );
        // movw $0x8001,(%rax)
        check(&[0x66, 0xc7, 0x00, 0x01, 0x80], 2, Some(0x8001));
        // movb $0x80,(%r8)
        check(&[0x41, 0xc6, 0x00, 0x80], 1, Some(0x80));
    }

    #[test]
    fn vector_stores() {
        for (bytes, width) in [
            // movups %xmm0,(%rax); movupd; movss; movsd
            (&[0x0f, 0x11, 0x00][..], 16),
            (&[0x66, 0x0f, 0x11, 0x00], 16),
            (&[0xf3, 0x0f, 0x11, 0x00], 4),
            (&[0xf2, 0x0f, 0x11, 0x00], 8),
            // movaps %xmm9,0x10(%r8)
            (&[0x45, 0x0f, 0x29, 0x48, 0x10], 16),
            // movlps, movhps, movlpd %xmm1,(%rcx)
            (&[0x0f, 0x13, 0x09], 8),
            (&[0x0f, 0x17, 0x09], 8),
            (&[0x66, 0x0f, 0x13, 0x09], 8),
            // movntps %xmm0,(%rax); movntdq %xmm0,(%rax); movntq %mm0,(%rax)
            (&[0x0f, 0x2b, 0x00], 16),
            (&[0x66, 0x0f, 0xe7, 0x00], 16),
            (&[0x0f, 0xe7, 0x00], 8),
            // movdqa, movdqu %xmm0,(%rax); movq %mm0,(%rax)
            (&[0x66, 0x0f, 0x7f, 0x00], 16),
            (&[0xf3, 0x0f, 0x7f, 0x00], 16),
            (&[0x0f, 0x7f, 0x00], 8),
            // movd %xmm0,(%rax); movq %xmm0,(%rax), both encodings
            (&[0x66, 0x0f, 0x7e, 0x00], 4),
            (&[0x66, 0x48, 0x0f, 0x7e, 0x00], 8),
            (&[0x66, 0x0f, 0xd6, 0x00], 8),
            // pextrq $0x1,%xmm0,(%rax); extractps $0x2,%xmm0,0x4(%rax)
            (&[0x66, 0x48, 0x0f, 0x3a, 0x16, 0x00, 0x01], 8),
            (&[0x66, 0x0f, 0x3a, 0x17, 0x40, 0x04, 0x02], 4),
            // movdir64b (%rsi),%rdi
            (&[0x66, 0x0f, 0x38, 0xf8, 0x3e], 64),
            // vmovups %ymm0,(%rax); vmovaps %xmm0,(%rax); vmovdqu %ymm0,0x20(%rdi)
            (&[0xc5, 0xfc, 0x11, 0x00], 32),
            (&[0xc5, 0xf8, 0x29, 0x00], 16),
            (&[0xc5, 0xfe, 0x7f, 0x47, 0x20], 32),
            // vmovdqa %ymm1,(%r8); vmovntdq %ymm0,(%rax); vmovq %xmm0,(%rax)
            (&[0xc4, 0xc1, 0x7d, 0x7f, 0x08], 32),
            (&[0xc5, 0xfd, 0xe7, 0x00], 32),
            (&[0xc5, 0xf9, 0xd6, 0x00], 8),
            // vmovsd %xmm0,(%rax); vmovss %xmm0,(%rax)
            (&[0xc5, 0xfb, 0x11, 0x00], 8),
            (&[0xc5, 0xfa, 0x11, 0x00], 4),
            // vextracti128 $0x1,%ymm0,(%rax)
            (&[0xc4, 0xe3, 0x7d, 0x39, 0x00, 0x01], 16),
            // vmovdqu64 %zmm0,(%rax); vmovdqu64 %zmm0,0x40(%rdi); vmovntdq %zmm0,(%rax)
            (&[0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x00], 64),
            (&[0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x47, 0x01], 64),
            (&[0x62, 0xf1, 0x7d, 0x48, 0xe7, 0x00], 64),
            // vmovdqu32 %ymm16,(%rax); vmovups %xmm17,(%rax); vmovdqa64 %zmm0,0x800(%rcx)
            (&[0x62, 0xe1, 0x7e, 0x28, 0x7f, 0x00], 32),
            (&[0x62, 0xe1, 0x7c, 0x08, 0x11, 0x08], 16),
            (&[0x62, 0xf1, 0xfd, 0x48, 0x7f, 0x41, 0x20], 64),
            // vmovdqu8 %zmm0,(%rax){%k1}
            (&[0x62, 0xf1, 0x7f, 0x49, 0x7f, 0x00], 64),
            // vextracti64x4 $0x1,%zmm0,(%rax)
            (&[0x62, 0xf3, 0xfd, 0x48, 0x3b, 0x00, 0x01], 32),
        ] {
            check(bytes, width, None);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for bytes in [
            // mov (%rax),%rbx; mov %rax,%rbx; add %rax,(%rbx); lock add; xchg; rep movsq; rep stosq
            &[0x48, 0x8b, 0x18][..],
            &[0x48, 0x89, 0xc3],
            &[0x48, 0x01, 0x03],
            &[0xf0, 0x48, 0x01, 0x03],
            &[0x48, 0x87, 0x03],
            &[0xf3, 0x48, 0xa5],
            &[0xf3, 0x48, 0xab],
            // movq (%rax),%xmm0; crc32q; vmovdqu (%rax),%ymm0; xbegin's neighbour c7 /1
            &[0xf3, 0x0f, 0x7e, 0x00],
            &[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0x00],
            &[0xc5, 0xfe, 0x6f, 0x00],
            &[0xc7, 0x08, 0, 0, 0, 0],
            // A REX or an operand size before VEX; the reserved EVEX length; fifteen prefixes
            &[0x48, 0xc5, 0xfc, 0x11, 0x00],
            &[0x66, 0xc5, 0xfc, 0x11, 0x00],
            &[0x62, 0xf1, 0xfe, 0x68, 0x7f, 0x00],
            &[0x66; 20],
            &[0x48; 20],
            &[],
        ] {
            assert_eq!(decode(bytes, &registers()), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn a_rex_before_another_prefix_is_dropped() {
        // rex.W 66 mov %ax,(%rax): the 66 applies, the REX does not.
        check(&[0x48, 0x66, 0x89, 0x00], 2, Some(0x7700));
    }

    proptest! {
        /// Any bytes decode to None or to a store within them. Bytes after the store have no
        /// effect.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..20), extra in any::<[u8; 4]>()) {
            if let Some(store) = decode(&bytes, &registers()) {
                let length = usize::from(store.length);
                prop_assert!(length <= bytes.len() && length <= INSTRUCTION_BYTES_MAX);
                prop_assert!(matches!(store.width, 1 | 2 | 4 | 8 | 16 | 32 | 64));
                prop_assert!(store.width <= 8 || store.value.is_none());
                let mut other = bytes[..length].to_vec();
                other.extend(extra);
                prop_assert_eq!(decode(&other, &registers()), Some(store));
            }
        }
    }
}
