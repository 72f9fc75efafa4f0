//! A decoder of UMR work requests and key commands that shares no code with the product or the emulated device.
//!
//! Its tables are those of rdma-core's public header (`infiniband/mlx5dv.h`: `mlx5_wqe_ctrl_seg`,
//! `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg`, `mlx5_wqe_umr_klm_seg`,
//! `mlx5_wqe_umr_repeat_block_seg`) and of the interface files (`mlx5_ifc.h`: `mkc`, `create_mkey_in`,
//! `alias_context`; UCX's `ib_mlx5_ifc.h`: `allow_other_vhca_access_in`). Offsets are in bits, as there. A reserved bit
//! that is set is an error.

use std::fmt;
use std::ops::Range;

/// Why bytes are no such request or command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

type Result<T> = std::result::Result<T, Malformed>;

fn malformed<T>(text: impl Into<String>) -> Result<T> {
    Err(Malformed(text.into()))
}

/// Bits of a structure, the most significant bit of its first byte being bit 0.
#[derive(Clone, Copy)]
struct Bits<'a>(&'a [u8]);

impl Bits<'_> {
    fn bit(self, at: usize) -> u64 {
        u64::from(self.0[at / 8] >> (7 - at % 8) & 1)
    }

    /// The field of `width` bits at `at`.
    fn get(self, at: usize, width: usize) -> u64 {
        (at..at + width).fold(0, |value, at| value << 1 | self.bit(at))
    }

    fn get8(self, at: usize, width: usize) -> u8 {
        u8::try_from(self.get(at, width)).expect("at most 8 bits")
    }

    fn get32(self, at: usize, width: usize) -> u32 {
        u32::try_from(self.get(at, width)).expect("at most 32 bits")
    }

    /// Refuses a set bit outside of `known`, which are ranges of bits in ascending order.
    fn rest_is_zero(self, what: &str, known: &[Range<usize>]) -> Result<()> {
        for at in 0..self.0.len() * 8 {
            if self.bit(at) == 1 && !known.iter().any(|range| range.contains(&at)) {
                return malformed(format!("{what}: reserved bit {at:#x} is set"));
            }
        }
        Ok(())
    }
}

/// What an mkey context says, in a CREATE_MKEY command or in a UMR request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) free: bool,
    pub(crate) umr_enabled: bool,
    pub(crate) access: Access,
    /// 0 PA, 1 MTT, 2 KLM, 3 KSM, 4 software ICM, 5 MEMIC, 6 crossing.
    pub(crate) access_mode: u8,
    pub(crate) queue_pair: u32,
    pub(crate) variant: u8,
    pub(crate) length64: bool,
    pub(crate) protection_domain: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) bsf_octowords: u32,
    pub(crate) crossing_target_gvmi: u16,
    pub(crate) translation_octowords: u32,
    pub(crate) log_page_size: u8,
}

/// Rights of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) local_read: bool,
    pub(crate) local_write: bool,
    pub(crate) remote_read: bool,
    pub(crate) remote_write: bool,
    pub(crate) atomic: bool,
}

/// Bytes of an mkey context.
pub(crate) const CONTEXT_BYTES: usize = 64;

impl Context {
    /// Reads `mkc` of a command.
    ///
    /// # Errors
    /// A reserved bit is set.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(bytes) = bytes.get(..CONTEXT_BYTES) else {
            return malformed("a context of less than 64 bytes");
        };
        Bits(bytes).rest_is_zero(
            "mkey context",
            &[
                0x01..0x02,   // free
                0x03..0x06,   // access_mode_4_2
                0x0d..0x0e,   // relaxed_ordering_write
                0x10..0x18,   // umr_en, a, rw, rr, lw, lr, access_mode_1_0
                0x20..0x40,   // qpn, mkey_7_0
                0x60..0x61,   // length64
                0x67..0x80,   // en_rinval, pd
                0x80..0x120,  // start_addr, len, bsf_octword_size
                0x180..0x190, // crossing_target_gvmi
                0x1a0..0x1c0, // translations_octword_size
                0x1c9..0x1ca, // relaxed_ordering_read
                0x1db..0x1e0, // log_page_size
            ],
        )?;
        Ok(Self::of_request(Bits(bytes)))
    }

    /// Reads `mkc` of a UMR request. The device looks at the fields that the mask names and at no others: libmlx5 leaves
    /// the rest as it was in the ring.
    fn of_request(bits: Bits<'_>) -> Self {
        let flag = |at| bits.get(at, 1) == 1;
        Self {
            free: flag(0x01),
            umr_enabled: flag(0x10),
            access: Access {
                atomic: flag(0x11),
                remote_write: flag(0x12),
                remote_read: flag(0x13),
                local_write: flag(0x14),
                local_read: flag(0x15),
            },
            access_mode: bits.get8(0x03, 3) << 2 | bits.get8(0x16, 2),
            queue_pair: bits.get32(0x20, 24),
            variant: bits.get8(0x38, 8),
            length64: flag(0x60),
            protection_domain: bits.get32(0x68, 24),
            start: bits.get(0x80, 64),
            length: bits.get(0xc0, 64),
            bsf_octowords: bits.get32(0x100, 32),
            crossing_target_gvmi: u16::try_from(bits.get(0x180, 16)).expect("16 bits"),
            translation_octowords: bits.get32(0x1a0, 32),
            log_page_size: bits.get8(0x1db, 5),
        }
    }
}

/// An entry of a translation list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Klm {
    pub(crate) byte_count: u32,
    pub(crate) key: u32,
    pub(crate) address: u64,
}

impl Klm {
    fn decode(bytes: &[u8]) -> Self {
        let bits = Bits(bytes);
        Self {
            byte_count: bits.get32(0, 32),
            key: bits.get32(32, 32),
            address: bits.get(64, 64),
        }
    }
}

/// One block that a strided layout repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stride {
    pub(crate) stride: u16,
    pub(crate) byte_count: u16,
    pub(crate) key: u32,
    pub(crate) address: u64,
}

/// The translation of a UMR request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// The request leaves the list of the key as it is.
    Unchanged,
    /// `mlx5_wqe_umr_klm_seg`, without the padding.
    List(Vec<Klm>),
    /// `mlx5_wqe_umr_repeat_block_seg`.
    Strided {
        repeat_count: u32,
        byte_count: u32,
        entries: Vec<Stride>,
    },
    /// The list lies in memory (`mlx5_wqe_data_seg`).
    InMemory(Klm),
}

/// When a request completes visibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Only if it fails.
    OnError,
    /// Only if it is the first that fails.
    OnFirstError,
    /// Always.
    Always,
    /// Always, with an event to a solicited queue.
    AlwaysSolicited,
}

/// Bits of `mkey_mask`: fields of the key that the request changes.
pub(crate) mod mask {
    pub(crate) const LENGTH: u64 = 1 << 0;
    pub(crate) const START: u64 = 1 << 6;
    pub(crate) const BSF_ENABLE: u64 = 1 << 12;
    pub(crate) const VARIANT: u64 = 1 << 13;
    pub(crate) const QUEUE_PAIR: u64 = 1 << 14;
    pub(crate) const LOCAL_WRITE: u64 = 1 << 18;
    pub(crate) const REMOTE_READ: u64 = 1 << 19;
    pub(crate) const REMOTE_WRITE: u64 = 1 << 20;
    pub(crate) const ATOMIC: u64 = 1 << 21;
    pub(crate) const FREE: u64 = 1 << 29;
    /// All that rdma-core's header names, and the signature error counter.
    pub(crate) const KNOWN: u64 = LENGTH
        | START
        | 1 << 9
        | BSF_ENABLE
        | VARIANT
        | QUEUE_PAIR
        | LOCAL_WRITE
        | REMOTE_READ
        | REMOTE_WRITE
        | ATOMIC
        | FREE;
}

/// A UMR work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Umr {
    pub(crate) index: u16,
    pub(crate) queue_pair: u32,
    pub(crate) fence: u8,
    pub(crate) completion: Completion,
    /// Bits 31 to 8 of the key that the request changes are its index.
    pub(crate) key: u32,
    /// The translation is part of the request.
    pub(crate) inline: bool,
    /// The key must be free.
    pub(crate) check_free: bool,
    /// The key must belong to this queue pair.
    pub(crate) check_queue_pair: bool,
    /// `translation_offset`, if the request says that it has one.
    pub(crate) translation_offset: Option<u16>,
    pub(crate) mask: u64,
    pub(crate) context: Context,
    pub(crate) translation: Translation,
}

/// Units of 16 bytes, in which a request says how long it is.
const OCTOWORD: usize = 16;
const UMR_OPCODE: u8 = 0x25;
const CTRL_BYTES: usize = 16;
const UMR_CTRL_BYTES: usize = 48;
const REPEAT_BLOCK: u32 = 0x400;

impl Umr {
    /// Reads a request from its first byte. Bytes behind its end are ignored.
    ///
    /// # Errors
    /// The bytes are no UMR request, a length does not fit to another one, or a reserved bit is set.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(ctrl) = bytes.get(..CTRL_BYTES) else {
            return malformed("less than a control segment");
        };
        let ctrl = Bits(ctrl);
        // opcode modifier, signature and DCI stream are not used.
        ctrl.rest_is_zero("control segment", &[8..32, 32..56, 58..64, 88..128])?;
        let (opcode, units) = (ctrl.get8(24, 8), ctrl.get8(58, 6));
        if opcode != UMR_OPCODE {
            return malformed(format!("opcode {opcode:#x} is not UMR"));
        }
        let length = usize::from(units) * OCTOWORD;
        let head = CTRL_BYTES + UMR_CTRL_BYTES + CONTEXT_BYTES;
        let Some(bytes) = bytes.get(..length).filter(|_| length >= head) else {
            return malformed(format!(
                "{units} units of 16 bytes do not hold a UMR request"
            ));
        };
        let umr = Bits(&bytes[CTRL_BYTES..CTRL_BYTES + UMR_CTRL_BYTES]);
        umr.rest_is_zero(
            "UMR control segment",
            &[0..1, 2..5, 32..48, 48..64, 64..128],
        )?;
        let mask = umr.get(64, 64);
        if mask & !mask::KNOWN != 0 {
            return malformed(format!("mkey mask {mask:#x} has unknown bits"));
        }
        let inline = umr.get(0, 1) == 1;
        let octowords = usize::try_from(umr.get(32, 16)).expect("16 bits");
        let offset = u16::try_from(umr.get(48, 16)).expect("16 bits");
        let with_offset = umr.get(3, 1) == 1;
        if !with_offset && offset != 0 {
            return malformed("a translation offset without its flag");
        }
        let translation = translation(&bytes[head..], inline, octowords)?;
        Ok(Self {
            index: u16::try_from(ctrl.get(8, 16)).expect("16 bits"),
            queue_pair: ctrl.get32(32, 24),
            fence: ctrl.get8(88, 3),
            completion: match (ctrl.get(92, 2), ctrl.get(94, 1)) {
                (0, _) => Completion::OnError,
                (1, _) => Completion::OnFirstError,
                (2, 0) => Completion::Always,
                (2, _) => Completion::AlwaysSolicited,
                (other, _) => return malformed(format!("completion mode {other}")),
            },
            key: ctrl.get32(96, 32),
            inline,
            check_free: umr.get(2, 1) == 1,
            check_queue_pair: umr.get(4, 1) == 1,
            translation_offset: with_offset.then_some(offset),
            mask,
            context: Context::of_request(Bits(&bytes[head - CONTEXT_BYTES..head])),
            translation,
        })
    }

    /// Whether the key can be used after the request: it clears `free`, or leaves a used key in use.
    #[must_use]
    pub(crate) fn leaves_the_key_usable(&self) -> bool {
        self.mask & mask::FREE == 0 || !self.context.free
    }
}

/// What follows the context.
fn translation(bytes: &[u8], inline: bool, octowords: usize) -> Result<Translation> {
    if !inline {
        return match (octowords, bytes.len()) {
            (0, 0) => Ok(Translation::Unchanged),
            (_, OCTOWORD) => Ok(Translation::InMemory(Klm::decode(bytes))),
            (_, other) => malformed(format!(
                "{other} bytes behind a context without inline list"
            )),
        };
    }
    if octowords * OCTOWORD != bytes.len() {
        return malformed(format!(
            "a list of {octowords} units in {} bytes",
            bytes.len()
        ));
    }
    if !octowords.is_multiple_of(4) {
        return malformed(format!(
            "a list of {octowords} units is not padded to 64 bytes"
        ));
    }
    let entries = bytes.chunks_exact(OCTOWORD);
    let first = Bits(&bytes[..OCTOWORD.min(bytes.len())]);
    if bytes.len() >= OCTOWORD && first.get32(32, 32) == REPEAT_BLOCK {
        return strided(bytes);
    }
    let mut list: Vec<Klm> = entries.map(Klm::decode).collect();
    // The padding is zero: an entry of 2 GiB has a key.
    while list
        .last()
        .is_some_and(|last| (last.byte_count, last.key, last.address) == (0, 0, 0))
    {
        list.pop();
    }
    Ok(Translation::List(list))
}

fn strided(bytes: &[u8]) -> Result<Translation> {
    let head = Bits(bytes);
    let count = usize::try_from(head.get(112, 16)).expect("16 bits");
    if head.get(96, 16) != 0 {
        return malformed("repeat block: reserved bits are set");
    }
    let Some(entries) = bytes.get(OCTOWORD..OCTOWORD * (1 + count)) else {
        return malformed(format!("a repeat block of {count} entries is cut"));
    };
    let entries = entries.chunks_exact(OCTOWORD).map(|entry| {
        let bits = Bits(entry);
        Stride {
            stride: u16::try_from(bits.get(0, 16)).expect("16 bits"),
            byte_count: u16::try_from(bits.get(16, 16)).expect("16 bits"),
            key: bits.get32(32, 32),
            address: bits.get(64, 64),
        }
    });
    Ok(Translation::Strided {
        byte_count: head.get32(0, 32),
        repeat_count: head.get32(64, 32),
        entries: entries.collect(),
    })
}

/// A command about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    CreateMkey {
        context: Context,
        /// The memory comes from a umem.
        umem: Option<(u32, u64)>,
        translation_octowords: u32,
        list: Vec<Klm>,
    },
    AllowOtherVhcaAccess {
        object_type: u16,
        object: u32,
        access_key: [u8; 32],
    },
    CreateAlias {
        object_type: u16,
        vhca: u16,
        object: u32,
        access_key: [u8; 32],
        protection_domain: u32,
    },
}

impl Command {
    /// Reads the input mailbox of a command; `None` if it is not about the creation of a key or alias.
    ///
    /// # Errors
    /// A mailbox that is too short, or a reserved bit that is set.
    pub(crate) fn decode(mailbox: &[u8]) -> Result<Option<Self>> {
        let Some(head) = mailbox.get(..16) else {
            return malformed("less than a header");
        };
        let head = Bits(head);
        match head.get(0, 16) {
            0x200 => create_mkey(mailbox).map(Some),
            0xb16 => allow(mailbox).map(Some),
            0xa00 if head.get(0x60, 1) == 1 => create_alias(mailbox).map(Some),
            _ => Ok(None),
        }
    }
}

fn access_key(mailbox: &[u8]) -> [u8; 32] {
    mailbox[32..64].try_into().expect("32 bytes")
}

fn create_mkey(mailbox: &[u8]) -> Result<Command> {
    const LIST: usize = 0x880 / 8;
    if mailbox.len() < LIST || !(mailbox.len() - LIST).is_multiple_of(OCTOWORD) {
        return malformed(format!("CREATE_MKEY of {} bytes", mailbox.len()));
    }
    let bits = Bits(&mailbox[..LIST]);
    bits.rest_is_zero(
        "CREATE_MKEY",
        &[0..0x40, 0x60..0x62, 0x80..0x280, 0x300..0x3a0],
    )?;
    let umem = bits.get(0x61, 1) == 1;
    Ok(Command::CreateMkey {
        context: Context::decode(&mailbox[16..])?,
        umem: umem.then(|| (bits.get32(0x320, 32), bits.get(0x340, 64))),
        translation_octowords: bits.get32(0x300, 32),
        list: mailbox[LIST..]
            .chunks_exact(OCTOWORD)
            .map(Klm::decode)
            .collect(),
    })
}

fn allow(mailbox: &[u8]) -> Result<Command> {
    if mailbox.len() != 64 {
        return malformed(format!(
            "ALLOW_OTHER_VHCA_ACCESS of {} bytes",
            mailbox.len()
        ));
    }
    let bits = Bits(mailbox);
    bits.rest_is_zero(
        "ALLOW_OTHER_VHCA_ACCESS",
        &[0..0x40, 0x90..0xc0, 0x100..0x200],
    )?;
    Ok(Command::AllowOtherVhcaAccess {
        object_type: u16::try_from(bits.get(0x90, 16)).expect("16 bits"),
        object: bits.get32(0xa0, 32),
        access_key: access_key(mailbox),
    })
}

fn create_alias(mailbox: &[u8]) -> Result<Command> {
    if mailbox.len() < 80 {
        return malformed(format!("an alias of {} bytes", mailbox.len()));
    }
    let bits = Bits(mailbox);
    bits.rest_is_zero(
        "CREATE_GENERAL_OBJECT",
        &[
            0..0x20,
            0x30..0x40,
            0x60..0x61,
            0x80..0x90,
            0xa0..0xc0,
            0x100..0x220,
        ],
    )?;
    Ok(Command::CreateAlias {
        object_type: u16::try_from(bits.get(0x30, 16)).expect("16 bits"),
        vhca: u16::try_from(bits.get(0x80, 16)).expect("16 bits"),
        object: bits.get32(0xa0, 32),
        access_key: access_key(mailbox),
        protection_domain: bits.get32(0x200, 32),
    })
}
