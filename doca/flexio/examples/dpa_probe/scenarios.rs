//! What the program does with the DPA, by the name of a scenario. Each checks its results and says what it has found.

mod faults;
mod queues;

use crate::{Probe, call, function, say, words};
use flexio::{Done, DoneOperation, Launch, Process, Thread, ThreadAttr, Wait, Window, Word};

pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Fails with a text unless a condition holds.
pub(crate) fn ensure(condition: bool, text: impl FnOnce() -> String) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(text().into())
    }
}

pub(crate) fn run(probe: &Probe, scenario: &str) -> Outcome {
    match scenario {
        "calls" => calls(probe),
        "memory" => memory(probe),
        "launches" => launches(probe),
        "waits" => waits(probe),
        "events" => events(probe),
        "window" => window(probe),
        "messages" => messages(probe),
        "threads" => threads(probe),
        "completions" => queues::completions(probe, false),
        "event_queue" => queues::completions(probe, true),
        "tasks" => queues::tasks(probe),
        "order" => order(probe),
        "fault" => faults::fault(probe),
        "faults" => faults::faults(probe),
        "other" => faults::other(probe),
        "key" => faults::key(probe),
        "never" => faults::never(probe),
        "fork" => faults::fork(probe),
        "limit" => faults::limit(probe),
        "many" => faults::many(probe),
        "stays" => stays(probe),
        "loops" => loops(probe),
        other => Err(format!("no scenario {other}").into()),
    }
}

/// Reads a word of the DPA.
pub(crate) fn word(process: &Process, address: u64) -> flexio::Result<u64> {
    let mut bytes = [0; 8];
    process.copy_out(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Waits until a word of the DPA has a value.
pub(crate) fn wait_for(process: &Process, address: u64, value: u64) -> Outcome {
    // The number of questions only bounds a hang.
    for _ in 0..1_000_000 {
        if word(process, address)? == value {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Err(format!("the word is {} and not {value}", word(process, address)?).into())
}

/// Remote calls with arguments, results, variables and memory.
fn calls(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let table: Vec<u64> = (1..=100_000).collect();
    let bytes = words(&table);
    let address = process.allocate(bytes.len() as u64)?;
    process.copy_in(address, &bytes)?;
    let sum = call(&process, "sum", &[address, table.len() as u64])?;
    ensure(sum == table.iter().sum(), || format!("sum {sum}"))?;
    let counts = [call(&process, "count", &[])?, call(&process, "count", &[])?];
    ensure(counts == [6, 7], || format!("{counts:?}"))?;
    // RISC-V defines the quotient by 0: all bits are set.
    let quotients = [
        call(&process, "divide", &[85, 5])?,
        call(&process, "divide", &[85, 0])?,
    ];
    ensure(quotients == [17, u64::MAX], || format!("{quotients:?}"))?;
    let refused = process.call(&function("sum", 2), &words(&[1]));
    let text = refused.expect_err("too few arguments").to_string();
    ensure(
        text.contains("8 bytes of arguments for sum, which has 16"),
        || text.clone(),
    )?;
    let refused = process.call(&function("missing", 0), &[]);
    let text = refused.expect_err("no function").to_string();
    ensure(text.contains("the program probe has no missing"), || {
        text.clone()
    })?;
    let counters = process.counters()?;
    ensure(counters.len() == 1 && counters[0].activations == 5, || {
        format!("{counters:?}")
    })?;
    say(format_args!("ok {}", counters[0].instructions));
    Ok(())
}

/// Allocations, copies and their bounds.
fn memory(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let limits = process.limits();
    let all = process.allocate(limits.heap_bytes + 1);
    let text = all.expect_err("more than the heap").to_string();
    ensure(text.contains("do not fit"), || text.clone())?;
    let address = process.allocate(1000)?;
    process.fill(address, 7, 1000)?;
    let mut bytes = [0; 1000];
    process.copy_out(address, &mut bytes)?;
    ensure(bytes == [7; 1000], || "the fill".to_owned())?;
    let beyond = [
        process.copy_in(address + 1, &bytes),
        process.copy_out(address + 999, &mut [0; 2]),
        process.fill(address, 0, 1001),
        process.copy_in(limits.heap - 8, &[0; 8]),
    ];
    for result in beyond {
        let error = result.expect_err("beyond an allocation");
        ensure(error.status == flexio::Status::Failed, || error.to_string())?;
    }
    process.free(address)?;
    let twice = process.free(address).expect_err("freed twice").to_string();
    ensure(twice.contains("no allocation of the DPA begins"), || {
        twice.clone()
    })?;
    ensure(process.copy_in(address, &[0; 8]).is_err(), || {
        "freed memory".to_owned()
    })?;
    // A large block moves in several commands, and arrives whole.
    let large: Vec<u8> = (0..3_000_001u32)
        .map(|at| at.to_le_bytes()[1] ^ at.to_le_bytes()[0])
        .collect();
    let address = process.allocate(large.len() as u64)?;
    process.copy_in(address, &large)?;
    let mut back = vec![0; large.len()];
    process.copy_out(address, &mut back)?;
    ensure(back == large, || "the large block".to_owned())?;
    say("ok");
    Ok(())
}

/// Launches of several widths, one after the other.
fn launches(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let units = process.limits().units;
    let table = process.allocate(8 * u64::from(units))?;
    let done = process.allocate(8)?;
    process.fill(table, 0, 8 * u64::from(units))?;
    process.fill(done, 0, 8)?;
    let kernel = function("ranks", 1);
    let arguments = words(&[table]);
    let launch = |threads| Launch {
        function: &kernel,
        arguments: &arguments,
        threads,
        wait: None,
        done: Some(Done {
            word: Word::Dpa(done),
            operation: DoneOperation::Add,
            value: 1,
        }),
    };
    for threads in [1, 16, 16, units] {
        process.launch(&launch(threads))?;
    }
    wait_for(&process, done, 4)?;
    for rank in [0, 1, 15, 16, u64::from(units) - 1] {
        let widths: &[u64] = match rank {
            0 => &[1, 16, 16, 254],
            1..16 => &[16, 16, 254],
            _ => &[254],
        };
        let expect = widths.iter().map(|width| 1000 * width + rank).sum::<u64>();
        let found = word(&process, table + 8 * rank)?;
        ensure(found == expect, || {
            format!("rank {rank}: {found}, not {expect}")
        })?;
    }
    for threads in [0, units + 1] {
        let text = process
            .launch(&launch(threads))
            .expect_err("a width")
            .to_string();
        ensure(text.contains("allowed are 1 to 254"), || text.clone())?;
    }
    // The call thread, and one thread for each rank: launches of the same width have made none.
    let threads = process.counters()?.len();
    ensure(threads == 255, || format!("{threads} threads"))?;
    say("ok");
    Ok(())
}

/// A launch that waits for a word of the host keeps neither commands nor remote calls waiting.
fn waits(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let [event, done, total] = [
        process.allocate(8)?,
        process.allocate(8)?,
        process.allocate(8)?,
    ];
    for address in [event, done, total] {
        process.fill(address, 0, 8)?;
    }
    let kernel = function("add", 2);
    let arguments = words(&[total, 10]);
    let launch = |above, value| Launch {
        function: &kernel,
        arguments: &arguments,
        threads: 2,
        wait: Some(Wait {
            word: Word::Dpa(event),
            mask: u64::MAX,
            above,
        }),
        done: Some(Done {
            word: Word::Dpa(done),
            operation: DoneOperation::Set,
            value,
        }),
    };
    process.launch(&launch(0, 1))?;
    process.launch(&launch(1, 2))?;
    let count = call(&process, "count", &[])?;
    ensure(count == 6, || format!("count {count}"))?;
    ensure(word(&process, total)? == 0, || {
        "a launch has not waited".to_owned()
    })?;
    process.copy_in(event, &1u64.to_le_bytes())?;
    wait_for(&process, done, 1)?;
    ensure(word(&process, total)? == 20, || {
        "the first launch".to_owned()
    })?;
    process.copy_in(event, &2u64.to_le_bytes())?;
    wait_for(&process, done, 2)?;
    ensure(word(&process, total)? == 40, || {
        "the second launch".to_owned()
    })?;
    // The end of the process ends a launch that waits for ever.
    process.launch(&launch(99, 3))?;
    drop(process);
    say("ok");
    Ok(())
}

/// An event handler runs once for each event after it was prepared.
fn events(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let count = process.allocate(8)?;
    process.fill(count, 0, 8)?;
    let attr = ThreadAttr {
        function: process.symbol("on_event")?,
        ..ThreadAttr::default()
    };
    let thread = Thread::create(&process, &attr)?;
    // An event before the preparation is not lost.
    thread.activate()?;
    thread.run(count)?;
    wait_for(&process, count, 1)?;
    for expect in 2..6 {
        thread.activate()?;
        wait_for(&process, count, expect)?;
    }
    let bad = ThreadAttr {
        affinity: flexio::Affinity::Unit(254),
        ..attr
    };
    let text = Thread::create(&process, &bad)
        .expect_err("a unit of the OS")
        .to_string();
    ensure(text.contains("may use 0 to 253"), || text.clone())?;
    say("ok");
    Ok(())
}

/// Memory of the host by a key.
fn window(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let window = Window::create(&process)?;
    let mut table: Vec<u64> = (0..1000).collect();
    let at = table.as_mut_ptr();
    let access = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE;
    // SAFETY: the table stays as long as its registration.
    let region = unsafe {
        probe
            .verbs
            .ibv_reg_mr_iova2(process.pd(), at.cast(), 8000, at.addr() as u64, access)
    };
    ensure(!region.is_null(), || "no registration".to_owned())?;
    // SAFETY: it was just made.
    let key = unsafe { (*region).lkey };
    let arguments = [u64::from(window.id()), key.into(), at.addr() as u64, 1000];
    let result = call(&process, "doubled", &arguments)?;
    ensure(result == 0, || format!("result {result}"))?;
    for index in 0..1000 {
        // SAFETY: an entry of the table, which the device has written.
        let value = unsafe { at.add(index).read_volatile() };
        ensure(value == 2 * index as u64, || {
            format!("entry {index}: {value}")
        })?;
    }
    // One word too many ends the process.
    let beyond = [u64::from(window.id()), key.into(), at.addr() as u64, 1001];
    let error = call(&process, "doubled", &beyond).expect_err("beyond the key");
    ensure(error.status == flexio::Status::Fatal, || error.to_string())?;
    let text = error.to_string();
    ensure(
        text.contains("beyond the key's range") && text.contains("device.c:"),
        || text.clone(),
    )?;
    // SAFETY: the registration is used no more.
    unsafe { probe.verbs.ibv_dereg_mr(region) };
    say("ok");
    Ok(())
}

/// Queues and a window, with all fences that weakly ordered memory needs, unless the program was built without one.
fn order(probe: &Probe) -> Outcome {
    queues::completions(probe, false)?;
    let process = probe.process(0)?;
    let window = Window::create(&process)?;
    let mut table: Vec<u64> = (0..8).collect();
    let at = table.as_mut_ptr();
    let access = mlx5dv_sys::IBV_ACCESS_LOCAL_WRITE;
    // SAFETY: the table stays as long as its registration.
    let region = unsafe {
        probe
            .verbs
            .ibv_reg_mr_iova2(process.pd(), at.cast(), 64, at.addr() as u64, access)
    };
    ensure(!region.is_null(), || "no registration".to_owned())?;
    // SAFETY: it was just made.
    let key = unsafe { (*region).lkey };
    let words = [u64::from(window.id()), key.into(), at.addr() as u64];
    call(&process, "doubled", &[words[0], words[1], words[2], 8])?;
    for value in [3, 4, 5] {
        // SAFETY: an entry of the table, which no kernel accesses now.
        unsafe { at.write_volatile(value) };
        let seen = call(&process, "word_of", &words)?;
        ensure(seen == value, || format!("{seen}, not {value}"))?;
    }
    // SAFETY: the registration is used no more.
    unsafe { probe.verbs.ibv_dereg_mr(region) };
    Ok(())
}

/// Lines of kernels.
fn messages(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    for number in 0..3 {
        call(&process, "talk", &[number])?;
    }
    let messages = process.messages(Some(3))?;
    let texts: Vec<&str> = messages
        .iter()
        .map(|message| message.text.as_str())
        .collect();
    ensure(
        texts == ["number 0, text", "number 1, text", "number 2, text"],
        || format!("{texts:?}"),
    )?;
    ensure(process.messages(None)?.is_empty(), || "twice".to_owned())?;
    say("ok");
    Ok(())
}

/// All threads of the device taken.
fn threads(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    let attr = ThreadAttr {
        function: process.symbol("on_event")?,
        ..ThreadAttr::default()
    };
    let mut threads = Vec::new();
    let error = loop {
        match Thread::create(&process, &attr) {
            Ok(thread) => threads.push(thread),
            Err(error) => break error.to_string(),
        }
    };
    ensure(threads.len() == 255, || {
        format!("{} threads", threads.len())
    })?;
    ensure(
        error.contains("all 256 threads of the DPA are taken"),
        || error.clone(),
    )?;
    let error = probe
        .process(0)
        .expect_err("no thread for calls")
        .to_string();
    ensure(error.contains("no process"), || error.clone())?;
    drop(threads);
    probe.process(0)?;
    say("ok");
    Ok(())
}

/// Prints its process and stays until it is killed.
fn stays(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    call(&process, "count", &[])?;
    let attr = ThreadAttr {
        function: process.symbol("loop")?,
        ..ThreadAttr::default()
    };
    let thread = Thread::create(&process, &attr)?;
    thread.run(0)?;
    thread.activate()?;
    say("running");
    loop {
        std::thread::park();
    }
}

/// A remote call that does not end, until the DPA does.
fn loops(probe: &Probe) -> Outcome {
    let process = probe.process(0)?;
    say("running");
    let error = call(&process, "loop", &[]).expect_err("an endless loop");
    ensure(error.status == flexio::Status::Fatal, || error.to_string())?;
    let later = process.allocate(8).expect_err("a lost DPA");
    ensure(later.status == flexio::Status::Fatal, || later.to_string())?;
    say(format_args!("ended: {error}"));
    Ok(())
}
