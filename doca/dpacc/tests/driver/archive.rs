//! What an archive holds and registers, how arguments lie in their buffers, and what the device reads from them.

use crate::common::{
    Bench, is_installed, libraries, program, skip, succeed, with_each_compiler, with_gcc,
};
use dpa_dev::calls::CALLS;
use dpa_dev::intrinsics::{self, Operation};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const APP: &str = "app_of_the_test";
const STRICT: &str = "-Wall -Wextra -Werror";
const BIG: u64 = 0xfedc_ba98_7654_3210;

/// Builds the two sources of kernels.
fn build(bench: &Bench, output: &str, keep: &str) {
    let mut command = bench.dpacc();
    command.arg(program("kernels.c")).arg(program("second.c"));
    command.args([
        "-o",
        output,
        "-mcpu=nv-dpa-bf3,nv-dpa-cx8",
        "-hostcc=cc",
        "-flto",
        "-disable-asm-checks",
    ]);
    command.args([
        format!("-hostcc-options={STRICT}"),
        format!("--devicecc-options={STRICT} -O1 -fvisibility=hidden"),
    ]);
    command.args([format!("--app-name={APP}"), format!("--keep-dir={keep}")]);
    command.arg("-device-libs=-L. -ldoca_dpa_dev -ldoca_dpa_dev_comm");
    assert_eq!(succeed(&mut command), b"");
}

/// Output of the host program with an archive, one line each.
fn host(bench: &Bench, archive: &str) -> Vec<String> {
    let mut compile = Command::new("cc");
    compile
        .args(STRICT.split(' '))
        .arg(program("host.c"))
        .arg(archive);
    compile
        .arg("-o")
        .arg(bench.path("host"))
        .current_dir(bench.path("."));
    succeed(&mut compile);
    let told = succeed(&mut Command::new(bench.path("host")));
    String::from_utf8(told)
        .expect("text")
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Argument buffers, written down without the driver: each argument at a multiple of 8.
fn buffers() -> Vec<(&'static str, Vec<u8>)> {
    let slots = |arguments: &[&[u8]]| -> Vec<u8> {
        let mut buffer = Vec::new();
        for argument in arguments {
            buffer.extend_from_slice(argument);
            buffer.resize(buffer.len().next_multiple_of(8), 0);
        }
        buffer
    };
    let words =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut nested = vec![0_u8; 64];
    nested[..4].copy_from_slice(&77_u32.to_le_bytes());
    nested[24..32].copy_from_slice(&88_u64.to_le_bytes());
    nested[32..40].copy_from_slice(&2.5_f64.to_le_bytes());
    nested[40..42].copy_from_slice(&(5_u16 | 4097 << 3).to_le_bytes());
    nested[47] = (-3_i8).to_le_bytes()[0];
    nested[48..56].copy_from_slice(&0x4321_u64.to_le_bytes());
    nested.truncate(56);
    let pair = words(&[0x0102_0304, 0x1122_3344_5566_7788]);
    let mut packed = vec![0x5a];
    packed.extend(0x1234_5678_9abc_def0_u64.to_le_bytes());
    packed.extend(0xbeef_u16.to_le_bytes());
    let mut small = 9.0_f32.to_le_bytes().to_vec();
    small.extend((-2_i16).to_le_bytes());
    let floats: Vec<u8> = [1.0_f32, 2.0, 3.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let scalars = slots(&[
        &(-5_i8).to_le_bytes(),
        &60000_u16.to_le_bytes(),
        &(-7_i32).to_le_bytes(),
        &BIG.to_le_bytes(),
        &[1],
        &1.25_f32.to_le_bytes(),
        &2.75_f64.to_le_bytes(),
        &0x1234_u64.to_le_bytes(),
        &0x7fff_ffff_u32.to_le_bytes(),
        &99_u64.to_le_bytes(),
    ]);
    let thirteen = words(&[1, 2, 3, 4, 5, 6, 7, 0xffff_ffff, 9, 10, 11, 12, BIG]);
    let by_value = slots(&[
        &42_u64.to_le_bytes(),
        &pair,
        &packed,
        &nested,
        &small,
        &words(&[1000, 2000]),
        &floats,
    ]);
    vec![
        ("nothing", Vec::new()),
        ("scalars", scalars),
        ("thirteen", thirteen),
        ("by_value", by_value),
        ("counted", words(&[5])),
        ("counted", words(&[6])),
    ]
}

#[test]
fn a_host_program_registers_each_function_and_packs_its_arguments() {
    let test = "archive::a_host_program_registers_each_function_and_packs_its_arguments";
    with_each_compiler(test, |bench| {
        build(bench, "x.a", "kept");
        let lines = host(bench, "x.a");
        let sizes: BTreeMap<&str, usize> = buffers()
            .iter()
            .map(|(name, buffer)| (*name, buffer.len()))
            .chain([("order", 8)])
            .collect();
        let registered =
            |name: &str| format!("register {name} __dpacc_unpack_{name} {} 1", sizes[name]);
        let mut expect = vec![format!("create {APP} ELF 1")];
        // The order of the sources; a compiler may order the functions of one.
        let mut found = lines.clone();
        found[1..5].sort();
        found[5..7].sort();
        expect.extend(
            [
                "by_value", "nothing", "scalars", "thirteen", "counted", "order",
            ]
            .map(registered),
        );
        expect.push("main 1".to_owned());
        for (name, buffer) in buffers() {
            let hex: String = buffer.iter().map(|byte| format!("{byte:02x}")).collect();
            expect.push(format!("start {name} {hex}"));
        }
        expect.push("destroy 1".to_owned());
        assert_eq!(found, expect, "{}", bench.compiler);
    });
}

#[test]
fn the_device_reads_what_the_host_has_packed() {
    let test = "archive::the_device_reads_what_the_host_has_packed";
    if !is_installed("qemu-riscv64") {
        skip(
            test,
            "no qemu-riscv64; cargo xtask doctor names the package",
        );
        return;
    }
    with_each_compiler(test, |bench| {
        build(bench, "x.a", "kept");
        let runner = runner(bench);
        let mut command = Command::new("qemu-riscv64");
        let mut process = command
            .arg(runner)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("qemu-riscv64");
        let mut input = process.stdin.take().expect("standard input");
        let numbers = ["nothing", "scalars", "thirteen", "by_value", "counted"];
        for (name, buffer) in buffers() {
            let number = numbers
                .iter()
                .position(|known| *known == name)
                .expect("known");
            for word in [number, buffer.len()] {
                input
                    .write_all(&(word as u64).to_le_bytes())
                    .expect("a request");
            }
            input.write_all(&buffer).expect("a buffer");
        }
        drop(input);
        let done = process.wait_with_output().expect("its end");
        assert!(done.status.success(), "{}: {}", bench.compiler, done.status);
        let words: Vec<u64> = done
            .stdout
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let signed = |value: i64| value.cast_unsigned();
        let results = [
            0,
            0,
            0,
            0x1122_3344_5566_7788 ^ 0x1234_5678_9abc_def0,
            12,
            18,
        ];
        let mut expect = results.to_vec();
        expect.push(0x1111);
        expect.extend([
            signed(-5),
            60000,
            signed(-7),
            BIG,
            1,
            5,
            11,
            0x1234,
            0x7fff_ffff,
            99,
        ]);
        expect.extend([1, 2, 3, 4, 5, 6, 7, 0xffff_ffff, 9, 10, 11, 12, BIG]);
        expect.extend([
            42,
            0x0102_0304,
            0x1122_3344_5566_7788,
            0x5a,
            0x1234_5678_9abc_def0,
            0xbeef,
        ]);
        expect.extend([
            77,
            88,
            2.5_f64.to_bits(),
            5,
            4097,
            signed(-3),
            0x4321,
            9,
            signed(-2),
            1000,
            2000,
            321,
        ]);
        expect.extend([12, 101, 2, 0, 10, 18, 102, 4, 0, 10]);
        assert_eq!(words, expect, "{}", bench.compiler);
    });
}

/// Links the kept objects with a start for Linux, by the same script.
fn runner(bench: &Bench) -> std::path::PathBuf {
    let object = bench.path("runner.o");
    let mut compile = Command::new("riscv64-unknown-elf-gcc");
    compile.args([
        "-march=rv64imac",
        "-mabi=lp64",
        "-mcmodel=medany",
        "-O1",
        "-ffreestanding",
        "-Wall",
        "-Werror",
        "-c",
    ]);
    succeed(compile.arg(program("runner.c")).arg("-o").arg(&object));
    let tls = "\nrun_tdata = ADDR(.tdata);\nrun_tdata_size = SIZEOF(.tdata);\n";
    let script = bench.write("run.ld", &format!("{}{tls}", dpa_dev::LINKER_SCRIPT));
    let runner = bench.path("runner");
    // The linker of the compiler's own family, as the driver does it.
    let mut link = Command::new(if bench.compiler.starts_with("clang") {
        "ld.lld-19"
    } else {
        "riscv64-unknown-elf-ld"
    });
    link.args(["-m", "elf64lriscv", "-static", "-e", "_start", "-T"])
        .arg(script)
        .arg("-o")
        .arg(&runner);
    link.arg(object);
    for name in [
        "kernels.dpa.dev.o",
        "second.dpa.dev.o",
        &format!("{APP}.unpack.o"),
    ] {
        link.arg(bench.path("kept").join(name));
    }
    link.args(libraries());
    succeed(&mut link);
    runner
}

#[test]
fn the_program_keeps_the_rules_of_device_images() {
    let test = "archive::the_program_keeps_the_rules_of_device_images";
    with_each_compiler(test, |bench| {
        let yaml = bench.write(
            "attributes.yaml",
            "Feature_list:\n  Generating_Empty_CQE: true\n",
        );
        let blob = bench.path("attributes.blob");
        let mut convert = Command::new(env!("CARGO_BIN_EXE_dpa-app-attributes2blob"));
        succeed(convert.arg(yaml).arg(&blob));
        let mut command = bench.dpacc();
        command
            .arg(program("kernels.c"))
            .arg(program("second.c"))
            .args(["-o", "x.a", "--keep-dir", "kept"]);
        succeed(command.arg(format!("--dpa-proc-attr={}", blob.display())));
        let data = std::fs::read(bench.path("kept/__dpa_a_out.elf")).expect("the program");
        assert_eq!(dpacc::image::check(&data), Ok(()));
        let file = object::File::parse(&*data).expect("an ELF file");
        assert_eq!(file.entry(), dpa_dev::IMAGE_BASE);
        let symbols: BTreeMap<&str, u64> = file
            .symbols()
            .filter(|symbol| symbol.is_global() && symbol.is_definition())
            .map(|symbol| (symbol.name().expect("a name"), symbol.address()))
            .collect();
        assert_eq!(symbols[dpa_dev::ENTRY], file.entry());
        let code = file
            .segments()
            .find(|segment| segment.address() == dpa_dev::IMAGE_BASE)
            .expect("code");
        for name in [
            "nothing", "scalars", "thirteen", "by_value", "counted", "order",
        ] {
            for symbol in [name.to_owned(), format!("__dpacc_unpack_{name}")] {
                let at = symbols[symbol.as_str()] - code.address();
                assert!(at < code.size(), "{symbol}");
            }
        }
        let attributes = file.section_by_name(".dpa_attributes").expect("attributes");
        assert_eq!(
            attributes.data().expect("bytes"),
            b"Generating_Empty_CQE=1\n"
        );
        assert!(!symbols.keys().any(|name| name.contains("patchable")));
        for call in CALLS {
            let at = usize::try_from(symbols[call.name] - code.address()).expect("an offset");
            check_call(&code.data().expect("code")[at..], call.number, call.name);
        }
        let order = usize::try_from(symbols["order"] - code.address()).expect("an offset");
        check_intrinsics(&code.data().expect("code")[order..]);
    });
}

/// A device call is `li t0, NUMBER`, which may be compressed, `ecall`, `ret`.
#[track_caller]
fn check_call(code: &[u8], number: u16, name: &str) {
    let half = |at: usize| u32::from(u16::from_le_bytes([code[at], code[at + 1]]));
    let word = |at: usize| half(at) | half(at + 2) << 16;
    let (value, length) = if half(0) & 3 == 3 {
        assert_eq!(word(0) & 0xfffff, 0x00293, "{name}: li t0");
        (word(0) >> 20, 4)
    } else {
        assert_eq!(half(0) & 0xef83, 0x4281, "{name}: c.li t0");
        (half(0) >> 2 & 0x1f, 2)
    };
    assert_eq!(value, u32::from(number), "{name}");
    assert_eq!(word(length), 0x0000_0073, "{name}: ecall");
    assert_eq!(half(length + 4), 0x8082, "{name}: ret");
}

/// The intrinsics of the kernel `order`, in their order, and the reads of the three counters.
#[track_caller]
fn check_intrinsics(code: &[u8]) {
    let (mut found, mut counters, mut at) = (Vec::new(), Vec::new(), 0);
    let half = |at: usize| u32::from(u16::from_le_bytes([code[at], code[at + 1]]));
    while counters.len() < 3 {
        if half(at) & 3 != 3 {
            at += 2;
            continue;
        }
        let word = half(at) | half(at + 2) << 16;
        found.extend(intrinsics::decode(word).map(|found| found.operation));
        // csrrs rd, csr, zero
        if word & 0xf_f07f == 0x2073 {
            counters.push(word >> 20);
        }
        at += 4;
    }
    counters.sort_unstable();
    assert_eq!(counters, [0xc00, 0xc01, 0xc02]);
    use Operation::{DataIgnore, Fence, FxpLog2, FxpPow2, FxpRcp};
    use Operation::{MemoryWriteback, WindowReadInv, WindowWriteback};
    let expect = [
        Fence,
        WindowReadInv,
        WindowWriteback,
        MemoryWriteback,
        DataIgnore,
        FxpRcp,
        FxpPow2,
        FxpLog2,
    ];
    assert_eq!(found, expect);
}

#[test]
fn the_archive_has_one_member_with_the_program_and_the_stubs() {
    let test = "archive::the_archive_has_one_member_with_the_program_and_the_stubs";
    with_gcc(test, |bench| {
        build(bench, "x.a", "kept");
        let data = std::fs::read(bench.path("x.a")).expect("the archive");
        let archive = object::read::archive::ArchiveFile::parse(&*data).expect("an archive");
        let members: Vec<_> = archive
            .members()
            .map(|member| member.expect("a member"))
            .collect();
        assert_eq!(members.len(), 1);
        let file = object::File::parse(members[0].data(&*data).expect("bytes")).expect("an object");
        let program = file
            .section_by_name(".dpa_obj")
            .expect("the program")
            .data()
            .expect("bytes");
        let kept =
            std::fs::read(bench.path("kept").join(format!("{APP}.elf"))).expect("the program");
        assert_eq!(program[..kept.len()], kept);
        let wanted: Vec<&str> = file
            .symbols()
            .filter(|symbol| symbol.is_undefined() && symbol.is_global())
            .map(|symbol| symbol.name().expect("a name"))
            .filter(|name| *name != "_GLOBAL_OFFSET_TABLE_")
            .collect();
        let known = [
            "abort",
            "flexio_app_create",
            "flexio_app_destroy",
            "flexio_func_pup_register",
            "fprintf",
        ];
        for name in &wanted {
            let is_messages = ["fputs", "fwrite", "stderr", "__fprintf_chk"].contains(name);
            assert!(known.contains(name) || is_messages, "{name}");
        }
    });
}

#[test]
fn the_kept_files_make_the_same_archive() {
    let test = "archive::the_kept_files_make_the_same_archive";
    with_gcc(test, |bench| {
        build(bench, "x.a", "kept");
        let kept = bench.path("kept");
        let mut objects = Vec::new();
        // As a build script that links the stubs by itself.
        for name in ["kernels", "second"] {
            let object = format!("{name}.dpa.o");
            let mut compile = Command::new("cc");
            compile.args([
                "-c",
                &format!("{name}.dpa.host.c"),
                "-I",
                ".",
                "-o",
                &object,
                "-fPIC",
            ]);
            compile
                .arg(format!("-D__DPA_OBJ_STUB_FILE__=\"{name}.stub.inc\""))
                .current_dir(&kept);
            succeed(&mut compile);
            succeed(
                Command::new("objcopy")
                    .args(["--remove-section=.dpa_obj", &object])
                    .current_dir(&kept),
            );
            objects.push(object);
        }
        let mut join = Command::new("cc");
        join.args(["-r", &format!("{APP}.meta.c")]).args(&objects);
        join.args([
            "-D__DPA_EXEC_STUB_FILE__=\"device_exec.stub.inc\"",
            "-fPIC",
            "-nostdlib",
            "-o",
            "all.o",
        ]);
        succeed(join.current_dir(&kept));
        succeed(
            Command::new("ar")
                .args(["cr", "again.a", "all.o"])
                .current_dir(&kept),
        );
        assert_eq!(host(bench, "kept/again.a"), host(bench, "x.a"));
    });
}

#[test]
fn each_device_call_is_declared_by_the_headers() {
    let test = "archive::each_device_call_is_declared_by_the_headers";
    with_each_compiler(test, |bench| {
        let older = |name: &str| {
            let numbers = 0xa0..0xb0;
            let call = CALLS.iter().find(|call| call.name == name).expect("a call");
            numbers.contains(&call.number)
                || name.contains("memcpy_nb")
                || name.contains("transpose2D")
        };
        let rest = [
            "__dpa_thread_return",
            "doca_dpa_dev_printf",
            "doca_dpa_dev_memcpy_synchronize",
        ];
        let newest: String = CALLS
            .iter()
            .map(|call| call.name)
            .filter(|name| !older(name) && !rest.contains(name))
            .map(|name| format!("CALL({name}) "))
            .collect();
        let header = bench.write("calls.h", &format!("#define DEVICE_CALLS {newest}\n"));
        for version in ["", "-DFLEXIO_DEV_VER_USED=24004000"] {
            let mut command = bench.dpacc();
            command.arg(program("every_call.c")).args(["-o", "x.a"]);
            let include = format!("-include {}", header.display());
            succeed(command.arg(format!("--devicecc-options={STRICT} {include} {version}")));
        }
        let mut command = bench.dpacc();
        command.arg(program("calls_2_0.c")).args([
            "-o",
            "x.a",
            &format!("--devicecc-options={STRICT}"),
        ]);
        succeed(&mut command);
    });
}

/// Formats of mlx5 devices: opcode 8 and index, number and 3 segments, and so on, big-endian.
const SEGMENTS: &str = "\
00234508abcdef030000000800000000
11223344556677880102030400000000
000010000506070899aabbccddeeff00
8000000c0102030405060708090a0b0c
00000000000000010000000000000002
00000000c00005dc000000000012aabb
11111111000000008022222203045566
01000732000008040000000000000000
45230000 00000000 67452300
1 3 393a3b 3c3d 2c2d2e2f 212223 37 1415
1
";

#[test]
fn queue_entries_have_the_devices_format() {
    let test = "archive::queue_entries_have_the_devices_format";
    let dir = tempfile::tempdir().expect("a directory");
    let printer = dir.path().join("queues");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/include");
    let mut compile = Command::new("cc");
    compile
        .args(STRICT.split(' '))
        .args(["-O1", "-D__DPA__"])
        .arg("-I")
        .arg(headers);
    succeed(compile.arg(program("queues.c")).arg("-o").arg(&printer));
    let told = String::from_utf8(succeed(&mut Command::new(printer))).expect("text");
    assert_eq!(told, SEGMENTS);
    with_each_compiler(test, |bench| {
        for version in ["", "-DFLEXIO_DEV_VER_USED=24004000"] {
            let mut command = bench.dpacc();
            command.arg(program("queues.c")).args(["-o", "x.a"]);
            succeed(command.arg(format!("--devicecc-options={STRICT} {version}")));
        }
    });
}

#[test]
fn the_same_sources_make_the_same_archive() {
    let test = "archive::the_same_sources_make_the_same_archive";
    with_each_compiler(test, |bench| {
        let archive = |name: &str| {
            let mut command = bench.dpacc();
            command.arg(program("kernels.c")).arg(program("second.c"));
            succeed(command.args(["-o", name, "-hostcc-options=-g"]));
            std::fs::read(bench.path(name)).expect("the archive")
        };
        assert!(archive("x.a") == archive("y.a"), "{}", bench.compiler);
    });
}

#[test]
fn a_driver_leaves_nothing_and_uses_no_shell() {
    let test = "archive::a_driver_leaves_nothing_and_uses_no_shell";
    with_gcc(test, |bench| {
        let temporary = bench.path("tmp");
        std::fs::create_dir(&temporary).expect("a directory");
        let name = "a b;$(touch hit).c";
        bench.write(name, "__dpa_global__ void k(void) {}\n");
        bench.write("bad.c", "__dpa_global__ int k(void) { return 1; }\n");
        let mut command = bench.dpacc();
        succeed(command.args([name, "-o", "x.a"]).env("TMPDIR", &temporary));
        let mut command = bench.dpacc();
        crate::common::fail(
            command
                .args(["bad.c", "-o", "y.a"])
                .env("TMPDIR", &temporary),
        );
        let count = |dir: &Path| std::fs::read_dir(dir).expect("a directory").count();
        assert_eq!(count(&temporary), 0);
        let left = std::fs::read_dir(bench.path(".")).expect("a directory");
        let mut left: Vec<_> = left
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        left.sort();
        assert_eq!(left, [name, "bad.c", "tmp", "x.a"]);
    });
}

#[test]
fn equal_functions_and_aliases_are_functions_of_their_own() {
    let test = "archive::equal_functions_and_aliases_are_functions_of_their_own";
    with_each_compiler(test, |bench| {
        let text = "\
#include <doca_dpa_dev.h>
struct one { uint64_t x; };
struct two { uint64_t y; };
__dpa_global__ void a(struct one n) { doca_dpa_dev_thread_notify(n.x); doca_dpa_dev_trace_flush(); }
__dpa_global__ void b(struct two n) { doca_dpa_dev_thread_notify(n.y); doca_dpa_dev_trace_flush(); }
__dpa_global__ void c(void) {}
__dpa_global__ void d(void) {}
void e(struct one n) __attribute__((alias(\"a\")));
";
        bench.write("k.c", text);
        let mut command = bench.dpacc();
        command.args([
            "k.c",
            "-o",
            "x.a",
            "--keep-dir",
            "kept",
            "-devicecc-options=-O3",
        ]);
        succeed(&mut command);
        let meta =
            std::fs::read_to_string(bench.path("kept/__dpa_a_out.meta.c")).expect("the file");
        for name in ["a", "b", "c", "d", "e"] {
            assert!(meta.contains(&format!("{{\"{name}\", ")), "{name}: {meta}");
        }
        assert_eq!(meta.matches("__dpacc_unpack_").count(), 5);
    });
}

#[test]
fn damaged_files_are_refused_and_end_nothing() {
    let test = "archive::damaged_files_are_refused_and_end_nothing";
    with_each_compiler(test, |bench| {
        build(bench, "x.a", "kept");
        let read = |name: &str| std::fs::read(bench.path("kept").join(name)).expect("a kept file");
        let object = read("kernels.dpa.dev.o");
        let program = read(&format!("{APP}.elf"));
        let names = ["nothing", "scalars", "thirteen"];
        assert_eq!(dpacc::fuzzing::object(&object), Some(4));
        assert!(dpacc::fuzzing::program(&program, &names).is_some());
        // Few of the damages meet what is read. None may panic or take long.
        let mut random = fastrand::Rng::with_seed(28);
        for _ in 0..500 {
            let mut damaged = [object.clone(), program.clone()];
            for data in &mut damaged {
                for _ in 0..random.usize(1..16) {
                    let at = random.usize(..data.len());
                    data[at] = random.u8(..);
                }
                data.truncate(
                    random
                        .usize(data.len() / 2..=data.len() * 3)
                        .min(data.len()),
                );
            }
            let _ = dpacc::fuzzing::object(&damaged[0]);
            let _ = dpacc::fuzzing::program(&damaged[1], &names);
        }
    });
}
