//! The loader: what it accepts, and one clear error for everything else.

mod common;

use common::{CODE, DATA, Elf, RET, part, words};
use rv64::{Limits, LoadError, Program, SegmentFault};

fn refused(change: impl FnOnce(&mut Elf)) -> (LoadError, String) {
    let mut elf = Elf::new(&[RET]);
    change(&mut elf);
    let error = Program::parse(&elf.build()).unwrap_err();
    let text = error.to_string();
    (error, text)
}

fn segment(index: usize, start: u64, fault: SegmentFault) -> LoadError {
    LoadError::Segment {
        index,
        start,
        fault,
    }
}

#[test]
fn a_program_has_segments_and_symbols() {
    let mut elf = Elf::new(&[RET, RET]);
    elf.symbols = vec![
        ("main", CODE, 4, true),
        ("helper", CODE + 4, 4, false),
        ("value", DATA + 8, 8, true),
        ("helper", CODE, 4, false),
        ("$x", CODE, 0, false),
    ];
    elf.parts.push(part(7, DATA, 4, &[1, 2], 100));
    let program = Program::parse(&elf.build()).unwrap();
    assert_eq!((program.entry(), program.local_bytes()), (CODE, 100));
    let starts: Vec<u64> = program
        .segments()
        .iter()
        .map(|segment| segment.start)
        .collect();
    assert_eq!(starts, [CODE, DATA]);
    assert_eq!(program.segments()[0].data, words(&[RET, RET]));
    assert_eq!(
        program.symbol("helper"),
        Some(CODE + 4),
        "the first of two local ones"
    );
    assert_eq!(
        (program.symbol("value"), program.symbol("$x")),
        (Some(DATA + 8), None)
    );
    assert_eq!(program.symbol_at(CODE + 6), Some(("helper", 2)));
    assert_eq!(program.symbol_at(DATA + 15), Some(("value", 7)));
    for nothing in [0, CODE + 8, DATA, DATA + 16, u64::MAX] {
        assert_eq!(program.symbol_at(nothing), None, "{nothing:#x}");
    }
}

#[test]
fn other_machines_and_conventions_are_refused() {
    assert_eq!(refused(|elf| elf.machine = 62).0, LoadError::Machine(62));
    assert_eq!(refused(|elf| elf.kind = 1).0, LoadError::Kind(1));
    let (error, text) = refused(|elf| elf.flags = 5);
    assert_eq!(error, LoadError::Convention(5));
    assert!(text.contains("-mabi=lp64"), "{text}");
    assert_eq!(refused(|elf| elf.flags = 8).0, LoadError::Convention(8));
}

#[test]
fn programs_that_need_a_linker_are_refused() {
    let (error, text) = refused(|elf| elf.relocations = 48);
    assert!(
        matches!(error, LoadError::Relocations { bytes: 48, .. }),
        "{error:?}"
    );
    assert!(
        text.starts_with("section .rela.text: 48 bytes of relocations are left"),
        "{text}"
    );
    let (error, _) = refused(|elf| elf.parts.push(part(3, 0, 4, b"/lib/ld.so\0", 11)));
    assert!(matches!(error, LoadError::Dynamic(_)), "{error:?}");
    let table = |tag: u64| [tag, 24, 0, 0].map(u64::to_le_bytes).concat();
    let dynamic = |tag| refused(|elf| elf.parts.push(part(2, DATA, 6, &table(tag), 32))).0;
    assert!(matches!(dynamic(1), LoadError::Dynamic(_)));
    for tag in [2, 8, 18, 35] {
        assert!(
            matches!(dynamic(tag), LoadError::Relocations { bytes: 24, .. }),
            "{tag}"
        );
    }
}

#[test]
fn wrong_segments_are_refused() {
    let (error, text) = refused(|elf| elf.parts[0].flags = 7);
    assert_eq!(error, segment(0, CODE, SegmentFault::WritableCode));
    assert!(
        text.starts_with("segment 0 at 0x10000: writable and executable"),
        "{text}"
    );
    let overlap = refused(|elf| elf.parts[1].start = CODE + 3).0;
    assert_eq!(overlap, segment(1, CODE + 3, SegmentFault::Overlap(CODE)));
    let behind = refused(|elf| elf.parts[1].start = CODE - 4095).0;
    assert_eq!(behind, segment(0, CODE, SegmentFault::Overlap(CODE - 4095)));
    assert_eq!(
        refused(|elf| elf.parts[1].start = 0).0,
        segment(1, 0, SegmentFault::NullPage)
    );
    assert_eq!(
        refused(|elf| elf.parts[0].start += 1).0,
        segment(0, CODE + 1, SegmentFault::Odd)
    );
    let wraps = refused(|elf| elf.parts[1].start = u64::MAX - 4094).0;
    assert_eq!(
        wraps,
        segment(1, u64::MAX - 4094, SegmentFault::Wraps(4096))
    );
    let (error, _) = refused(|elf| elf.parts[1] = part(1, DATA, 6, &[0; 8], 4));
    assert!(
        matches!(
            error,
            LoadError::Segment {
                fault: SegmentFault::Bytes {
                    in_file: 8,
                    in_memory: 4,
                    ..
                },
                ..
            }
        ),
        "{error:?}"
    );
    let (error, _) = refused(|elf| {
        elf.parts.push(part(7, DATA, 4, &[], 8));
        elf.parts[2].align = 24;
    });
    assert_eq!(error, segment(2, DATA, SegmentFault::Alignment(24)));
}

#[test]
fn the_entry_is_an_instruction() {
    for entry in [0, CODE - 2, CODE + 4, CODE + 1, DATA] {
        assert_eq!(
            refused(|elf| elf.entry = entry).0,
            LoadError::Entry(entry),
            "{entry:#x}"
        );
    }
}

#[test]
fn each_limit_holds() {
    let mut elf = Elf::new(&[RET]);
    elf.parts.push(part(7, DATA, 4, &[], 9));
    let file = elf.build();
    let none = Limits::default();
    let check = |limits: Limits, what: &str| {
        let error = Program::parse_with(&file, &limits).unwrap_err();
        let LoadError::Limit {
            what: found,
            found: size,
            limit,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((found, size), (what, limit + 1));
    };
    check(
        Limits {
            file_bytes: file.len() - 1,
            ..none
        },
        "bytes of the file",
    );
    check(
        Limits {
            segments: 1,
            ..none
        },
        "segments",
    );
    check(
        Limits {
            memory_bytes: 4099,
            ..none
        },
        "bytes of all segments",
    );
    check(
        Limits {
            code_bytes: 3,
            ..none
        },
        "bytes of executable segments",
    );
    check(
        Limits {
            local_bytes: 8,
            ..none
        },
        "bytes of thread-local storage",
    );
    check(Limits { symbols: 1, ..none }, "symbols");
    let mut elf = Elf::new(&[RET]);
    elf.parts[0].flags = 7;
    let writable = Limits {
        writable_code: true,
        ..none
    };
    assert!(Program::parse_with(&elf.build(), &writable).is_ok());
}

/// Each prefix, and each file with one changed byte, is accepted or refused without a panic.
#[test]
fn damaged_files_do_no_harm() {
    let mut elf = Elf::new(&[RET]);
    elf.parts.push(part(7, DATA, 4, &[1, 2], 100));
    let file = elf.build();
    for length in 0..file.len() {
        assert!(Program::parse(&file[..length]).is_err(), "{length}");
    }
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = file.clone();
            damaged[at] = value;
            if let Ok(program) = Program::parse(&damaged) {
                assert!(
                    program
                        .symbol_at(program.entry())
                        .is_none_or(|(name, _)| !name.is_empty())
                );
            }
        }
    }
    let error = Program::parse(b"\x7fELF").unwrap_err();
    assert!(
        matches!(
            error,
            LoadError::Format {
                part: "file header",
                ..
            }
        ),
        "{error}"
    );
}
