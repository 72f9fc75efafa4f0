//! Programs with mistakes.

use super::{Outcome, ensure, word as word_at};
use crate::{Probe, call, function, say, words};
use flexio::{Launch, Status, Wait, Window, Word};

/// Most instructions of a function of these processes.
const INSTRUCTIONS: u64 = 3_000_000;

/// One store to nothing.
pub(super) fn fault(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let error = call(&process, "store", &[0x10]).expect_err("a fault");
    say(error);
    Ok(())
}

/// Each mistake ends its process, whose fault names the place. A new process works.
pub(super) fn faults(probe: &Probe) -> Outcome {
    let cases: [(&str, &[u64], &str); 7] = [
        ("loop", &[], "killed at the limit of 3000000 instructions"),
        ("store", &[0x10], "store to 0x10: no memory is there"),
        (
            "store",
            &[0x1_0000],
            "store to 0x10000: not allowed by the rights",
        ),
        ("jump", &[0x1000], "jump to 0x1000: no memory is there"),
        (
            "jump",
            &[0x10_0000_0000],
            "jump to 0x1000000000: not allowed by the rights",
        ),
        ("deep", &[1 << 20], "guard page of a stack"),
        ("bump", &[0x12_3451], "misaligned"),
    ];
    for (name, arguments, expect) in cases {
        let process = probe.process(INSTRUCTIONS)?;
        let error = call(&process, name, arguments).expect_err("a fault");
        let text = error.to_string();
        ensure(error.status == Status::Fatal, || text.clone())?;
        let fault = process.fault()?.ok_or("no fault")?;
        ensure(fault.text.contains(expect), || format!("{name}: {fault}"))?;
        ensure(fault.function.starts_with(name), || {
            format!("{name}: {fault}")
        })?;
        let (file, line) = fault.line.clone().ok_or("no line")?;
        ensure(file.ends_with("device.c") && line > 30, || {
            format!("{name}: {file}:{line}")
        })?;
        ensure(text.contains(&format!("device.c:{line}")), || text.clone())?;
        let again = call(&process, "count", &[]).expect_err("after a fault");
        ensure(again.status == Status::Fatal, || again.to_string())?;
        drop(process);
        let count = call(&probe.process(INSTRUCTIONS)?, "count", &[])?;
        ensure(count == 6, || format!("after {name}: {count}"))?;
    }
    say("ok");
    Ok(())
}

/// A fault of one process, and a loop of another, leave a third alone.
pub(super) fn other(probe: &Probe) -> Outcome {
    let works = probe.process(0)?;
    let faulty = probe.process(INSTRUCTIONS)?;
    let busy = probe.process(0)?;
    let attr = flexio::ThreadAttr {
        function: busy.symbol("loop")?,
        ..flexio::ThreadAttr::default()
    };
    let thread = flexio::Thread::create(&busy, &attr)?;
    thread.run(0)?;
    thread.activate()?;
    call(&faulty, "store", &[0]).expect_err("a fault");
    for expect in 6..20 {
        let count = call(&works, "count", &[])?;
        ensure(count == expect, || format!("{count}, not {expect}"))?;
    }
    ensure(busy.fault()?.is_none(), || "the loop has ended".to_owned())?;
    ensure(works.fault()?.is_none(), || "a fault of another".to_owned())?;
    say("ok");
    Ok(())
}

/// A key is destroyed while a kernel reads through it: the process ends, and a new one works.
pub(super) fn key(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let window = Window::create(&process)?;
    let rounds = process.allocate(8)?;
    process.fill(rounds, 0, 8)?;
    let mut word = Box::new(0u64);
    let at = &raw mut *word;
    let access = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE;
    // SAFETY: the word stays as long as its registration.
    let region = unsafe {
        probe
            .verbs
            .ibv_reg_mr_iova2(process.pd(), at.cast(), 8, at.addr() as u64, access)
    };
    ensure(!region.is_null(), || "no registration".to_owned())?;
    // SAFETY: it was just made.
    let key = unsafe { (*region).lkey };
    let arguments = words(&[window.id().into(), key.into(), at.addr() as u64, rounds]);
    let kernel = function("watch", 4);
    process.launch(&Launch {
        function: &kernel,
        arguments: &arguments,
        threads: 1,
        wait: None,
        done: None,
    })?;
    while word_at(&process, rounds)? < 100 {}
    // SAFETY: only the kernel uses it.
    unsafe { probe.verbs.ibv_dereg_mr(region) };
    let fault = loop {
        if let Some(fault) = process.fault()? {
            break fault;
        }
    };
    ensure(
        fault.text.contains("no such key") && fault.function.starts_with("watch"),
        || fault.to_string(),
    )?;
    drop((window, process));
    let count = call(&probe.process(0)?, "count", &[])?;
    ensure(count == 6, || format!("{count}"))?;
    say("ok");
    Ok(())
}

/// A launch whose event nobody signals ends with its process; others go on. Three times in a row.
pub(super) fn never(probe: &Probe) -> Outcome {
    let works = probe.process(0)?;
    for expect in 6..9 {
        let process = probe.process(0)?;
        let event = process.allocate(8)?;
        process.fill(event, 0, 8)?;
        let kernel = function("count", 0);
        process.launch(&Launch {
            function: &kernel,
            arguments: &[],
            threads: 254 - 10,
            wait: Some(Wait {
                word: Word::Dpa(event),
                mask: u64::MAX,
                above: 0,
            }),
            done: None,
        })?;
        let count = call(&works, "count", &[])?;
        ensure(count == expect, || format!("{count}"))?;
        ensure(process.fault()?.is_none(), || "a fault".to_owned())?;
    }
    say("ok");
    Ok(())
}

/// The limit of a second that the environment sets: a function that loops ends its process, whose fault names the line. Another
/// process goes on, and a new one works.
pub(super) fn limit(probe: &Probe) -> Outcome {
    let works = probe.process(0)?;
    let loops = probe.process(0)?;
    let error = call(&loops, "loop", &[]).expect_err("a limit");
    let text = error.to_string();
    ensure(
        text.contains("killed at the limit of 166666666 instructions")
            && text.contains("device.c:"),
        || text.clone(),
    )?;
    drop(loops);
    let count = call(&probe.process(0)?, "count", &[])?;
    ensure(count == 6, || format!("{count}"))?;
    let count = call(&works, "count", &[])?;
    ensure(count == 6, || format!("{count}"))?;
    say("ok");
    Ok(())
}

/// A child of a fork may not use its parent's process, and its end changes nothing.
pub(super) fn fork(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let address = process.allocate(8)?;
    // SAFETY: the child makes a command and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The parent's memory stays.
        let refused = process.allocate(8).is_err() && process.free(address).is_err();
        // SAFETY: a number only.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: the place of the status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure(waited == child && status == 0, || {
        format!("the child has ended with {status}")
    })?;
    process.copy_in(address, &9u64.to_le_bytes())?;
    let sum = call(&process, "sum", &[address, 1])?;
    ensure(sum == 9, || format!("{sum}"))?;
    process.free(address)?;
    say("ok");
    Ok(())
}

/// Far more threads and objects than exist at a time, one after the other: none is lost.
pub(super) fn many(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let attr = flexio::ThreadAttr {
        function: process.symbol("on_event")?,
        ..flexio::ThreadAttr::default()
    };
    let mut numbers = std::collections::HashSet::new();
    for _ in 0..1000 {
        let thread = flexio::Thread::create(&process, &attr)?;
        numbers.insert(thread.number());
        process.free(process.allocate(64)?)?;
    }
    ensure(numbers.len() == 1000, || "a number came again".to_owned())?;
    let threads = process.counters()?.len();
    ensure(threads == 1, || format!("{threads} threads"))?;
    say("ok");
    Ok(())
}
