//! What the driver refuses, each with one clear line.

use crate::common::{Bench, fail, program, succeed, with_each_compiler, with_gcc};
use std::process::Command;

/// Compiles a source of the given text, and checks that the only message is the expected one, which begins with the
/// source's name and ends in a line.
#[track_caller]
fn refused(bench: &Bench, text: &str, expect: &str) {
    bench.write("k.c", text);
    let told = fail(bench.dpacc().args(["k.c", "-o", "x.a"]));
    assert_eq!(told, format!("{expect}\n"), "{}: {text}", bench.compiler);
    assert!(!bench.path("x.a").exists());
}

#[test]
fn functions_that_the_host_cannot_call() {
    let source = [
        "typedef int vector __attribute__((vector_size(16)));",
        "struct open { int n; int rest[]; };",
        "struct none {};",
        "struct big { char c[4097]; };",
        "__dpa_global__ int a(void) { return 1; }",
        "__dpa_rpc__ void b(void) {}",
        "__dpa_rpc__ unsigned c(void) { return 1; }",
        "__dpa_global__ void d(int n, ...) { (void)n; }",
        "__dpa_global__ void e(long double n) { (void)n; }",
        "__dpa_global__ void f(int n, vector v) { (void)n; (void)v; }",
        "__dpa_global__ void g(struct open n) { (void)n; }",
        "__dpa_global__ void h(struct none n) { (void)n; }",
        "__dpa_global__ void i(struct big n) { (void)n; }",
        "__dpa_global__ void good(struct big *n) { (void)n; }",
    ];
    let expect = "\
k.c:10: error: kernel 'f' cannot be called by the host: argument 2 is a vector, which host and DPA pass differently
k.c:11: error: kernel 'g' cannot be called by the host: argument 1 has an array whose length is open
k.c:12: error: kernel 'h' cannot be called by the host: argument 1 has no bytes
k.c:13: error: kernel 'i' has 4104 bytes of arguments, and the limit is 4096; pass a pointer
k.c:5: error: kernel 'a' returns a value; a kernel returns void
k.c:6: error: RPC 'b' does not return uint64_t, as each RPC does
k.c:7: error: RPC 'c' does not return uint64_t, as each RPC does
k.c:8: error: kernel 'd' has a variable list of arguments; give each a parameter
k.c:9: error: kernel 'e' cannot be called by the host: argument 1 is of type 'long double', which host and DPA represent \
differently
";
    with_each_compiler("refusals::functions_that_the_host_cannot_call", |bench| {
        bench.write("k.c", &source.join("\n"));
        let told = fail(bench.dpacc().args(["k.c", "-o", "x.a"]));
        let mut lines: Vec<&str> = told.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            expect.lines().collect::<Vec<_>>(),
            "{}",
            bench.compiler
        );
        assert!(!bench.path("x.a").exists());
    });
}

#[test]
fn a_function_that_the_host_cannot_find() {
    with_gcc("refusals::a_function_that_the_host_cannot_find", |bench| {
        refused(
            bench,
            "void k(void) {}\n",
            "dpacc: error: no function has __dpa_global__ or __dpa_rpc__, so the host could start nothing",
        );
        refused(
            bench,
            "__dpa_global__ static void k(void) {}\n",
            "k.c: error: kernel 'k' is static; the host finds functions by their symbols, so remove 'static'",
        );
        refused(
            bench,
            "__attribute__((visibility(\"hidden\"))) __dpa_global__ void k(void) {}\n",
            "k.c: error: kernel 'k' is hidden; the host finds functions by their symbols, so remove its visibility",
        );
        bench.write("a.c", "__dpa_global__ void k(void) {}\n");
        bench.write(
            "b.c",
            "#include <stdint.h>\n__dpa_rpc__ uint64_t k(void) { return 0; }\n",
        );
        let told = fail(bench.dpacc().args(["a.c", "b.c", "-o", "x.a"]));
        assert_eq!(
            told,
            "b.c: error: RPC 'k' has the name of a kernel in a.c\n"
        );
    });
}

#[test]
fn code_that_the_device_cannot_run() {
    with_each_compiler("refusals::code_that_the_device_cannot_run", |bench| {
        refused(
            bench,
            "__dpa_global__ void k(void) {}\n__asm__(\".section .wx,\\\"awx\\\"\\n.word 0\\n.text\");\n",
            "k.c: error: section .wx is writable and executable",
        );
        let text = "__attribute__((constructor)) void c(void) { __asm__ volatile(\"\"); }\n__dpa_global__ void k(void) {}\n";
        bench.write("k.c", text);
        let told = fail(bench.dpacc().args(["k.c", "-o", "x.a"]));
        assert!(
            told.starts_with("k.c: error: section .init_array: constructors do not run"),
            "{told}"
        );
    });
}

#[test]
fn objects_of_another_machine() {
    with_gcc("refusals::objects_of_another_machine", |bench| {
        let source = bench.write("k.c", "void helper(void) {}\n");
        succeed(
            Command::new("cc")
                .arg("-c")
                .arg(&source)
                .arg("-o")
                .arg(bench.path("host.o")),
        );
        let told = fail(bench.dpacc().args(["host.o", "-o", "x.a"]));
        assert!(
            told.starts_with("host.o: error: is an object for "),
            "{told}"
        );
        assert!(
            told.trim_end().ends_with("and not for 64-bit RISC-V"),
            "{told}"
        );
        let mut hard = Command::new("riscv64-unknown-elf-gcc");
        hard.args(["-march=rv64gc", "-mabi=lp64d", "-c"])
            .arg(&source)
            .arg("-o")
            .arg(bench.path("hard.o"));
        succeed(&mut hard);
        let told = fail(bench.dpacc().args(["hard.o", "-o", "x.a"]));
        assert!(
            told.starts_with("hard.o: error: is built for floating-point registers"),
            "{told}"
        );
        // The same in a library.
        succeed(
            Command::new("ar")
                .args(["rcs", "libmine.a", "host.o"])
                .current_dir(bench.path(".")),
        );
        bench.write("k.c", "__dpa_global__ void k(void) {}\n");
        let told = fail(
            bench
                .dpacc()
                .args(["k.c", "-o", "x.a", "-device-libs=-L. -lmine"]),
        );
        assert!(
            told.starts_with("./libmine.a: error: member host.o is an object for "),
            "{told}"
        );
        let told = fail(
            bench
                .dpacc()
                .args(["k.c", "-o", "x.a", "-device-libs=-L. -lother"]),
        );
        assert_eq!(
            told,
            "dpacc: error: no libother.a in the directories of -device-libs\n"
        );
        bench.write("text.o", "no object");
        let told = fail(bench.dpacc().args(["text.o", "-o", "x.a"]));
        assert_eq!(told, "text.o: error: not an object file of device code\n");
    });
}

#[test]
fn a_library_may_have_kernels_of_its_own() {
    with_gcc("refusals::a_library_may_have_kernels_of_its_own", |bench| {
        let text = format!(
            "{} void of_library(unsigned long a) {{ (void)a; }}\n",
            dpa_dev::KERNEL_MARK
        );
        let source = bench.write("own.c", &text);
        for (object, option) in [("own.o", "-g"), ("plain.o", "-g0")] {
            let mut compile = Command::new("riscv64-unknown-elf-gcc");
            compile
                .args([
                    "-march=rv64imac",
                    "-mabi=lp64",
                    "-mcmodel=medany",
                    option,
                    "-c",
                ])
                .arg(&source);
            succeed(compile.arg("-o").arg(bench.path(object)));
        }
        let told = fail(bench.dpacc().args(["plain.o", "-o", "x.a"]));
        let expect = "plain.o: error: kernel 'of_library' has no debug information, from which its arguments are read; \
                      compile it with -g\n";
        assert_eq!(told, expect);
        succeed(
            Command::new("ar")
                .args(["rcs", "libown.a", "own.o"])
                .current_dir(bench.path(".")),
        );
        bench.write("k.c", "__dpa_global__ void k(void) {}\n");
        let mut command = bench.dpacc();
        command.args([
            "k.c",
            "-o",
            "x.a",
            "-device-libs",
            "-L . -lown",
            "--keep-dir",
            "kept",
        ]);
        succeed(&mut command);
        let meta =
            std::fs::read_to_string(bench.path("kept/__dpa_a_out.meta.c")).expect("the file");
        assert!(
            meta.contains("{\"of_library\", \"__dpacc_unpack_of_library\","),
            "{meta}"
        );
    });
}

#[test]
fn mistakes_of_the_command_line_and_of_the_source() {
    with_gcc(
        "refusals::mistakes_of_the_command_line_and_of_the_source",
        |bench| {
            let line = |words: &[&str]| fail(bench.dpacc().args(words));
            assert_eq!(line(&[]), "dpacc: error: no input file\n");
            let told = line(&["k.c", "-o", "x.a", "-shared"]);
            assert_eq!(
                told,
                "dpacc: error: unknown option '-shared'; dpacc --help lists all options\n"
            );
            assert_eq!(
                line(&["none.c", "-o", "x.a"]),
                "none.c: error: no such file\n"
            );
            bench.write("k.c", "__dpa_global__ void k(void) { syntax }\n");
            let told = line(&["k.c", "-o", "x.a"]);
            assert!(
                told.contains("k.c:1:") && told.contains("error: ") && !told.contains("dpacc: "),
                "{told}"
            );
            bench.write(
                "k.c",
                "void absent(void);\n__dpa_global__ void k(void) { absent(); }\n",
            );
            let told = line(&["k.c", "-o", "x.a"]);
            assert!(
                told.contains("absent") && told.contains("undefined"),
                "{told}"
            );
            bench.write("k.c", "__dpa_global__ void k(void) {}\n");
            let told = line(&["k.c", "./k.c", "-o", "x.a"]);
            assert!(
                told.starts_with("./k.c: error: another input has the same file name"),
                "{told}"
            );
            let told = line(&["k.c", "-o", "none/x.a"]);
            assert!(
                told.starts_with("none/x.a: error: cannot write: "),
                "{told}"
            );
            let told = line(&["k.c", "-o", "x.a", "-hostcc=no-such-compiler"]);
            assert!(
                told.starts_with("dpacc: error: cannot run 'no-such-compiler': "),
                "{told}"
            );
            let told = line(&["k.c", "-o", "x.a", "--dpa-proc-attr=none"]);
            assert!(told.starts_with("none: error: cannot read: "), "{told}");
        },
    );
}

#[test]
fn a_compiler_that_cannot_be_used() {
    with_gcc("refusals::a_compiler_that_cannot_be_used", |bench| {
        let source = program("kernels.c");
        let with = |compiler: &str| {
            let mut command = bench.dpacc();
            command
                .arg(&source)
                .args(["-o", "x.a"])
                .env("DPACC_DEVICE_CC", compiler);
            fail(&mut command)
        };
        let told = with("no-such-compiler");
        assert_eq!(
            told,
            "dpacc: error: DPACC_DEVICE_CC names 'no-such-compiler', which is not a program\n"
        );
        assert!(with("cc").contains("is no compiler for riscv64"));
    });
}
