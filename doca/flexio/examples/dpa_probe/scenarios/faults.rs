//! Programs with mistakes.

use super::{Outcome, ensure};
use crate::{Probe, call, say};
use flexio::Status;

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
    let cases: [(&str, &[u64], &str); 6] = [
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
