//! A program whose instructions are known: the tests compare the counts of this tool with them.
//!
//! ```text
//! known marks ROUNDS      between marks; other threads run the same code meanwhile
//! known attached ROUNDS   without marks: it says `ready`, continues after a line on standard input, closes standard output
//!                         after the rounds, and ends after a second line
//! ```

#[cfg(not(target_arch = "x86_64"))]
fn main() {}

#[cfg(target_arch = "x86_64")]
fn main() {
    program::main();
}

#[cfg(target_arch = "x86_64")]
mod program {
    use std::arch::global_asm;
    use std::io::BufRead as _;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    /// Number of the system call that is a mark.
    const MARK: i64 = 0x5847_564d;
    /// Threads that run the counted code uncounted.
    const BESIDE: usize = 2;
    /// Faults of a round with faults.
    const FAULTS: u64 = 7;

    // The instructions of `known_rounds(rounds, buffer, mark)` after its first mark and before its last one:
    // 2 before the loop, 30 in an even and 32 in an odd round, and 3 after the loop.
    global_asm!(
        "known_rounds:",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r14, rdx",
        "mov edi, 1",
        "mov rax, r14",
        "syscall",
        "nop",
        "lea r13, [rip + known_leaf]",
        "2:",
        "call known_leaf",
        "call r13",
        "mov [r12], r13",
        "call [r12]",
        "lea rdi, [r12 + 64]",
        "lea rsi, [r12 + 8]",
        "mov ecx, 16",
        "rep movsb",
        "mov ecx, 5",
        "3:",
        "loop 3b",
        "mov eax, 39",
        "syscall",
        "test bl, 1",
        "je 4f",
        "nop",
        "nop",
        "jmp 5f",
        "4:",
        "nop",
        "5:",
        "dec rbx",
        "jne 2b",
        "nop",
        "xor edi, edi",
        "mov rax, r14",
        "syscall",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "ret",
        "known_leaf:",
        "lea rax, [rax + 1]",
        "nop",
        "ret",
        // A store that faults, of four bytes.
        "known_fault:",
        "mov qword ptr [rdi], 0",
        "ret",
    );

    unsafe extern "C" {
        fn known_rounds(rounds: u64, buffer: *mut u8, mark: i64);
        fn known_leaf();
        fn known_fault(address: usize);
    }

    static IS_DONE: AtomicBool = AtomicBool::new(false);
    static FAULTED: AtomicU64 = AtomicU64::new(0);

    pub(super) fn main() {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [how, rounds] = words.as_slice() else {
            panic!("usage: known marks|attached ROUNDS");
        };
        let rounds = rounds.parse().expect("a number of rounds");
        match how.as_str() {
            "marks" => marks(rounds),
            _ => attached(rounds),
        }
    }

    fn marks(rounds: u64) {
        let beside: Vec<_> = (0..BESIDE).map(|_| thread::spawn(beside)).collect();
        let mut buffer = [0_u8; 128];
        // SAFETY: the buffer is long enough for the copies of a round.
        unsafe { known_rounds(rounds, buffer.as_mut_ptr(), MARK) };
        faults();
        IS_DONE.store(true, Ordering::Relaxed);
        for thread in beside {
            thread.join().expect("no panic");
        }
    }

    #[expect(clippy::print_stdout, reason = "a program's answer")]
    fn attached(rounds: u64) {
        println!("ready");
        let mut lines = std::io::stdin().lock().lines();
        let mut buffer = [0_u8; 128];
        lines.next();
        // SAFETY: the buffer is long enough for the copies of a round. The kernel refuses the marks.
        unsafe { known_rounds(rounds, buffer.as_mut_ptr(), i64::from(i32::MAX)) };
        // The end of standard output says that the rounds are complete.
        // SAFETY: nothing else uses the descriptor.
        unsafe { libc::close(libc::STDOUT_FILENO) };
        lines.next();
    }

    /// The counted code, system calls, and memory, until the counted thread is done.
    fn beside() {
        while !IS_DONE.load(Ordering::Relaxed) {
            // SAFETY: the function changes a register that functions may change.
            unsafe { known_leaf() };
            // SAFETY: the call has no arguments.
            unsafe { libc::getppid() };
            drop(std::hint::black_box(vec![0_u8; 100]));
            thread::spawn(|| ()).join().expect("no panic");
        }
    }

    /// A section with faults that a handler skips.
    fn faults() {
        // SAFETY: the structure consists of integers and a pointer; zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::ucontext_t) = skip;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler calls nothing.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) };
        mark(2);
        for _ in 0..FAULTS {
            // SAFETY: the handler skips the store.
            unsafe { known_fault(8) };
        }
        mark(0);
        assert_eq!(FAULTED.load(Ordering::Relaxed), FAULTS);
    }

    extern "C" fn skip(
        _signal: libc::c_int,
        _info: *mut libc::siginfo_t,
        context: *mut libc::ucontext_t,
    ) {
        // Length of the store in `known_fault`.
        const STORE_BYTES: i64 = 7;
        FAULTED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the kernel's context of this handler.
        let context = unsafe { &mut *context };
        context.uc_mcontext.gregs[libc::REG_RIP as usize] += STORE_BYTES;
    }

    fn mark(label: u64) {
        // SAFETY: no kernel has this system call: it fails, and touches nothing.
        unsafe { libc::syscall(MARK, label) };
    }
}
