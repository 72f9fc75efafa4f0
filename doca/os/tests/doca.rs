//! Device calls of DOCA, made one at a time by a program of a few instructions. The expected values are computed here.

use dpa_dev::objects::{
    Kind, WORD, async_ops, completion, context, element, event, notification, queue, rdma,
    remote_event, table,
};
use dpa_os::{Denied, Device, Limits, Message, Os};
use mlx5_prm::cqe::{CQE_BYTES, Cqe, opcode as done};
use mlx5_prm::wqe::{Ctrl, opcode};
use rv64::{Atomic, Config, Program};
use std::collections::HashMap;

/// First address of the program: its entry, and then the function that makes a call.
const ENTRY: u64 = 0x1_0000;
const INVOKE: u64 = ENTRY + 32;

/// A program of this code: `INVOKE(buffer)` makes the device call `buffer[0]` with the arguments `buffer[1..]`.
fn program() -> Program {
    let load = |to: u32, offset: u32| 0x3003 | to << 7 | 7 << 15 | offset << 20;
    let mut code = vec![
        0x0005_0313, // mv t1, a0
        0x0005_8513, // mv a0, a1
        0x0006_0593, // mv a1, a2
        0x0003_00e7, // jalr t1
        0x0010_0293, // li t0, 1
        0x0000_0073, // ecall
        0x0010_0073, // ebreak
        0x0000_0013, // nop
        0x0005_0393, // mv t2, a0
        0xff01_0113, // addi sp, sp, -16
        load(6, 72), // the ninth argument
        0x0061_3023, // sd t1, 0(sp)
        load(5, 0),
    ];
    code.extend((0..8).map(|n| load(10 + n, 8 + 8 * n)));
    code.extend([
        0x0000_0073, // ecall
        0x0101_0113, // addi sp, sp, 16
        0x0000_8067, // ret
    ]);
    let text: Vec<u8> = code
        .iter()
        .flat_map(|word: &u32| word.to_le_bytes())
        .collect();
    let mut file = Vec::new();
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    for half in [2_u16, 243] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1_u32.to_le_bytes());
    for word in [ENTRY, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    for half in [1_u32, 5] {
        file.extend(half.to_le_bytes());
    }
    let size = text.len() as u64;
    for word in [0x1000, ENTRY, ENTRY, size, size, 0x1000] {
        file.extend(word.to_le_bytes());
    }
    file.resize(0x1000, 0);
    file.extend(text);
    Program::parse(&file).expect("a small program")
}

/// Memory behind keys, each from address 0, and what was rung.
#[derive(Debug, Default)]
struct Memory {
    keys: HashMap<u32, Vec<u8>>,
    rung: Vec<(u32, u32, u16)>,
    armed: Vec<(u32, u32, u32)>,
    said: Vec<String>,
}

impl Memory {
    fn part(&mut self, key: u32, address: u64, bytes: usize) -> Result<&mut [u8], Denied> {
        let from = usize::try_from(address).unwrap_or(usize::MAX);
        let memory = self.keys.get_mut(&key);
        memory
            .and_then(|memory| memory.get_mut(from..from.checked_add(bytes)?))
            .ok_or_else(|| Denied(format!("key {key} does not allow {address:#x}")))
    }
}

impl Device for Memory {
    fn read(&mut self, key: u32, address: u64, bytes: &mut [u8]) -> Result<(), Denied> {
        bytes.copy_from_slice(self.part(key, address, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, key: u32, address: u64, bytes: &[u8]) -> Result<(), Denied> {
        self.part(key, address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        key: u32,
        address: u64,
        size: u8,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, Denied> {
        let place = self.part(key, address, usize::from(size))?;
        let mut word = [0; 8];
        word[..usize::from(size)].copy_from_slice(place);
        let old = u64::from_le_bytes(word);
        let new = operation.apply(old, operand, size).to_le_bytes();
        place.copy_from_slice(&new[..usize::from(size)]);
        Ok(old)
    }

    fn ring_send(&mut self, uar: u32, qpn: u32, index: u16) -> Result<(), Denied> {
        self.rung.push((uar, qpn, index));
        Ok(())
    }

    fn arm(&mut self, uar: u32, cqn: u32, consumer: u32) -> Result<(), Denied> {
        self.armed.push((uar, cqn, consumer));
        Ok(())
    }

    fn message(&mut self, message: Message) {
        self.said.push(message.text);
    }
}

/// A process, and the device.
struct Bench {
    os: Os,
    device: Memory,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits {
            instructions: 1_000_000,
            wait_ns: 1_000_000,
        };
        Self {
            os: Os::new(program(), &Config::default(), limits, 1).expect("a process"),
            device: Memory::default(),
        }
    }

    /// Makes a call by its name; `None` if it still waits.
    fn start(&mut self, name: &str, arguments: &[u64]) -> Option<Result<u64, String>> {
        let call = dpa_dev::calls::CALLS.iter().find(|call| call.name == name);
        let number = u64::from(call.expect("a call of the table").number);
        let mut buffer = vec![number];
        buffer.extend(arguments);
        buffer.resize(10, 0);
        let bytes = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.os
            .call(7, (INVOKE, INVOKE), bytes)
            .expect("the call is possible");
        self.go_on()
    }

    fn go_on(&mut self) -> Option<Result<u64, String>> {
        self.os.run(&mut self.device, 0, 10_000);
        self.os.take_finished().pop().map(|done| done.result)
    }

    /// A call that succeeds.
    fn call(&mut self, name: &str, arguments: &[u64]) -> u64 {
        self.start(name, arguments)
            .unwrap_or_else(|| panic!("{name} waits"))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The fault of a call.
    fn fault(&mut self, name: &str, arguments: &[u64]) -> String {
        let result = self.start(name, arguments).expect("the call ends");
        result.expect_err("a fault")
    }

    fn place(&mut self, bytes: u64) -> u64 {
        let address = self.os.allocate(bytes).expect("memory");
        self.os.fill(address, 0, bytes).expect("own memory");
        address
    }

    fn object(&mut self, kind: Kind, words: usize, values: &[(usize, u64)]) -> u64 {
        let address = self.place(words as u64 * WORD);
        self.set(address, 0, kind as u64);
        for (index, value) in values {
            self.set(address, *index, *value);
        }
        address
    }

    fn set(&mut self, object: u64, index: usize, value: u64) {
        let at = object + index as u64 * WORD;
        self.os.write(at, &value.to_le_bytes()).expect("own memory");
    }

    fn word(&self, object: u64, index: usize) -> u64 {
        let mut word = [0; 8];
        let at = object + index as u64 * WORD;
        self.os.read(at, &mut word).expect("own memory");
        u64::from_le_bytes(word)
    }

    fn event(&mut self, key: u32, address: u64, rights: u64) -> u64 {
        let words = [
            (event::KEY, u64::from(key)),
            (event::ADDRESS, address),
            (event::RIGHTS, rights),
        ];
        self.object(Kind::Event, event::WORDS, &words)
    }
}

#[test]
fn events_count_in_both_kinds_of_memory() {
    let mut bench = Bench::new();
    bench.device.keys.insert(5, vec![0; 64]);
    let own = bench.place(8);
    let out = bench.place(8);
    for (key, address) in [(0, own), (5, 16)] {
        let event = bench.event(key, address, event::READS | event::WRITES);
        bench.call("doca_dpa_dev_sync_event_update_set", &[event, 40]);
        bench.call("doca_dpa_dev_sync_event_update_add", &[event, 2]);
        bench.call("doca_dpa_dev_sync_event_get", &[event, out]);
        assert_eq!(bench.word(out, 0), 42);
        bench.call("doca_dpa_dev_sync_event_wait_gt", &[event, 41, u64::MAX]);
        // 42 has no bit below the second.
        let waits = bench.start("doca_dpa_dev_sync_event_wait_gt", &[event, 0, 1]);
        assert_eq!(waits, None);
        let counter = 43_u64.to_le_bytes();
        match key {
            0 => bench.os.write(address, &counter).expect("own memory"),
            _ => bench.device.keys.get_mut(&5).expect("the key")[16..24].copy_from_slice(&counter),
        }
        assert_eq!(bench.go_on(), Some(Ok(0)));
    }
}

#[test]
fn a_foreign_handle_and_a_missing_role_are_faults_that_say_so() {
    let mut bench = Bench::new();
    let own = bench.place(8);
    let event = bench.event(0, own, event::READS);
    let said = bench.fault("doca_dpa_dev_sync_event_update_set", &[event, 1]);
    assert!(
        said.contains("the DPA is no publisher of this event"),
        "{said}"
    );
    for (handle, part) in [(0, "is 0"), (own, "is no handle of a live sync event")] {
        let mut bench = Bench::new();
        bench.place(8);
        let said = bench.fault("doca_dpa_dev_sync_event_update_add", &[handle, 1]);
        assert!(
            said.contains("doca_dpa_dev_sync_event_update_add"),
            "{said}"
        );
        assert!(said.contains(part), "{said}");
    }
    let mut bench = Bench::new();
    let event = bench.event(5, 12, event::WRITES);
    bench.device.keys.insert(5, vec![0; 64]);
    let said = bench.fault("doca_dpa_dev_sync_event_update_add", &[event, 1]);
    assert!(said.contains("aligned"), "{said}");
}

#[test]
fn a_hash_table_answers_as_a_map() {
    let mut bench = Bench::new();
    let (slots, entries) = (64_u64, 40_u64);
    let base = bench.place(slots * 2 * WORD);
    let words = [
        (table::SLOTS, base),
        (table::COUNT, slots),
        (table::ENTRIES, entries),
    ];
    let handle = bench.object(Kind::Table, table::WORDS, &words);
    let out = bench.place(8);
    let mut map = HashMap::new();
    let mut random = 1_u64;
    for step in 0..400_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let key = random >> 59;
        match random >> 32 & 3 {
            0 => {
                bench.call("doca_dpa_dev_hash_table_remove", &[handle, key]);
                map.remove(&key);
            }
            1 | 2 => {
                bench.call("doca_dpa_dev_hash_table_add", &[handle, key, step]);
                map.insert(key, step);
            }
            _ => {
                let found = bench.call("doca_dpa_dev_hash_table_find", &[handle, key, out]);
                let value = (found == 1).then(|| bench.word(out, 0));
                assert_eq!(value, map.get(&key).copied(), "step {step}, key {key}");
            }
        }
    }
    for key in 100..100 + entries - map.len() as u64 {
        bench.call("doca_dpa_dev_hash_table_add", &[handle, key, key]);
    }
    let said = bench.fault("doca_dpa_dev_hash_table_add", &[handle, 99, 0]);
    assert!(said.contains("the table has its 40 entries"), "{said}");
}

#[test]
fn a_matrix_is_transposed_and_a_copy_stays_inside_its_buffers() {
    let mut bench = Bench::new();
    let (rows, columns) = (3_usize, 5_usize);
    let matrix: Vec<u8> = (0..60).collect();
    assert_eq!(matrix.len(), rows * columns * 4);
    bench.device.keys.insert(1, matrix.clone());
    bench.device.keys.insert(2, vec![0; matrix.len()]);
    let length = matrix.len() as u64;
    let buffer = |bench: &mut Bench, key: u64| {
        let place = bench.place(32);
        bench.set(place, 1, length);
        bench.set(place, 2, key);
        place
    };
    let (from, to) = (buffer(&mut bench, 1), buffer(&mut bench, 2));
    bench.call(
        "doca_dpa_dev_memcpy_transpose2D_nb",
        &[to, 0, from, 0, length, 4, columns as u64, rows as u64],
    );
    for row in 0..rows {
        for column in 0..columns {
            let (old, new) = ((row * columns + column) * 4, (column * rows + row) * 4);
            assert_eq!(bench.device.keys[&2][new..new + 4], matrix[old..old + 4]);
        }
    }
    bench.call("doca_dpa_dev_memcpy_nb", &[to, 8, from, 4, 12]);
    assert_eq!(bench.device.keys[&2][8..20], matrix[4..16]);
    let said = bench.fault("doca_dpa_dev_memcpy_nb", &[to, 50, from, 0, 11]);
    assert!(said.contains("not inside the buffer of 60 bytes"), "{said}");
}

/// A connected queue pair with a completion queue, and the RDMA handle.
struct Wires {
    rdma: u64,
    queue: u64,
    completion: u64,
    ring: u64,
    send: u64,
    receive: u64,
    record: u64,
}

const SEND_LOG: u64 = 3;

fn wires(bench: &mut Bench) -> Wires {
    let log_entries = 2_u64;
    let ring = bench.place((CQE_BYTES as u64) << log_entries);
    bench
        .os
        .fill(ring, 0xf1, (CQE_BYTES as u64) << log_entries)
        .expect("own memory");
    let elements = bench.place((element::WORDS as u64 * WORD) << log_entries);
    let (send, receive) = (bench.place(64 << SEND_LOG), bench.place(16 * 4));
    let (record, marks) = (bench.place(8), bench.place(1 << SEND_LOG));
    let words = [
        (queue::NUMBER, 0x77),
        (queue::UAR, 9),
        (queue::DOORBELL, record),
        (queue::SEND_RING, send),
        (queue::SEND_LOG, SEND_LOG),
        (queue::RECEIVE_RING, receive),
        (queue::RECEIVE_LOG, 2),
        (queue::MARKS, marks),
        (queue::USER_DATA, 1234),
        (queue::CONNECTED, 1),
    ];
    let queue = bench.object(Kind::Queue, queue::WORDS, &words);
    let list = bench.place(8);
    bench.set(list, 0, queue);
    let doorbell = bench.place(8);
    let words = [
        (completion::NUMBER, 0x55),
        (completion::LOG_ENTRIES, log_entries),
        (completion::RING, ring),
        (completion::DOORBELL, doorbell),
        (completion::UAR, 9),
        (completion::ELEMENTS, elements),
        (completion::QUEUES, list),
        (completion::QUEUE_COUNT, 1),
    ];
    let completion = bench.object(Kind::Completion, completion::WORDS, &words);
    let words = [
        (rdma::CONNECTIONS, list),
        (rdma::COUNT, 1),
        (rdma::SCRATCH_KEY, 3),
        (rdma::SCRATCH, 0x40),
        (rdma::COMPLETION, completion),
    ];
    Wires {
        rdma: bench.object(Kind::Rdma, rdma::WORDS, &words),
        queue,
        completion,
        ring,
        send,
        receive,
        record,
    }
}

impl Wires {
    /// The block of a request.
    fn block(&self, bench: &Bench, index: u64) -> [u8; 64] {
        let mut block = [0; 64];
        let at = self.send + 64 * (index & ((1 << SEND_LOG) - 1));
        bench.os.read(at, &mut block).expect("own memory");
        block
    }

    /// The device writes completion `index`.
    fn complete(&self, bench: &mut Bench, index: u64, opcode: u8, counter: u16) {
        let entry = Cqe {
            opcode,
            owner: index >> 2 & 1 == 1,
            qpn: 0x77,
            wqe_counter: counter,
            imm: 0xabcd,
            ..Cqe::default()
        };
        let at = self.ring + CQE_BYTES as u64 * (index & 3);
        bench.os.write(at, &entry.to_bytes()).expect("own memory");
    }
}

#[test]
fn posted_operations_are_requests_of_mlx5() {
    let mut bench = Bench::new();
    let wires = wires(&mut bench);
    let event = bench.object(
        Kind::RemoteEvent,
        remote_event::WORDS,
        &[(remote_event::KEY, 0x99), (remote_event::ADDRESS, 0x1000)],
    );
    let rdma = wires.rdma;
    bench.call(
        "doca_dpa_dev_rdma_post_write_imm",
        &[rdma, 0, 0x11, 0x2000, 0x22, 0x3000, 100, 77, 0],
    );
    assert_eq!(bench.device.rung, [], "without a flush nothing is rung");
    bench.call(
        "doca_dpa_dev_rdma_post_read",
        &[rdma, 0, 0x22, 0x3000, 0x11, 0x2000, 100, 1],
    );
    bench.call("doca_dpa_dev_rdma_signal_set", &[rdma, 0, event, 6]);
    bench.call(
        "doca_dpa_dev_rdma_post_atomic_fetch_add",
        &[rdma, 0, 0x11, 0x2008, 5, 3],
    );
    assert_eq!(
        bench.device.rung,
        [(9, 0x77, 2), (9, 0x77, 3), (9, 0x77, 4)]
    );
    let control = |block: &[u8; 64]| Ctrl::parse(block[..16].try_into().expect("16 bytes"));
    // Opcode, immediate, blocks of 16 bytes, completion.
    let expect = [
        (opcode::RDMA_WRITE_IMM, 77, 3, true),
        (opcode::RDMA_READ, 0, 3, true),
        (opcode::RDMA_WRITE, 0, 3, false),
        (opcode::ATOMIC_FA, 0, 4, true),
    ];
    for (index, (operation, immediate, ds, is_signaled)) in (0..).zip(expect) {
        let block = wires.block(&bench, index);
        let control = control(&block);
        assert_eq!(control.opcode, operation);
        assert_eq!(u64::from(control.index), index);
        assert_eq!(
            (control.qpn, control.imm, control.ds),
            (0x77, immediate, ds)
        );
        // A quarter of the ring without a report makes the next request report.
        assert_eq!(control.is_signaled(), is_signaled, "request {index}");
    }
    let write = wires.block(&bench, 0);
    assert_eq!(write[16..28], [0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0x11]);
    assert_eq!(
        write[32..48],
        [0, 0, 0, 100, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0x30, 0]
    );
    let signal = wires.block(&bench, 2);
    assert_eq!(signal[32..44], [0x80, 0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0]);
    let atomic = wires.block(&bench, 3);
    assert_eq!(atomic[32..40], 5_u64.to_be_bytes());
    let mut record = [0; 8];
    bench
        .os
        .read(wires.record, &mut record)
        .expect("own memory");
    assert_eq!(record, [0, 0, 0, 0, 0, 0, 0, 4]);
    bench.call("doca_dpa_dev_rdma_post_receive", &[rdma, 0x33, 0x4000, 64]);
    let mut entry = [0; 16];
    bench
        .os
        .read(wires.receive, &mut entry)
        .expect("own memory");
    assert_eq!(
        entry,
        [0, 0, 0, 64, 0, 0, 0, 0x33, 0, 0, 0, 0, 0, 0, 0x40, 0]
    );
    let said = bench.fault(
        "doca_dpa_dev_rdma_post_atomic_fetch_add",
        &[rdma, 0, 0x11, 0x2004, 5, 1],
    );
    assert!(
        said.contains("0x2004 of an atomic operation is no multiple of 8"),
        "{said}"
    );
}

#[test]
fn a_full_ring_waits_and_completions_of_the_library_are_hidden() {
    let mut bench = Bench::new();
    let wires = wires(&mut bench);
    let post = |bench: &mut Bench, flags| {
        bench.start(
            "doca_dpa_dev_rdma_post_send",
            &[wires.rdma, 0, 0x22, 0x3000, 8, flags],
        )
    };
    // Eight blocks without reports; each second one asks for a completion of the library.
    for _ in 0..8 {
        assert_eq!(post(&mut bench, 3), Some(Ok(0)));
    }
    assert_eq!(post(&mut bench, 1), None, "the ring is full");
    wires.complete(&mut bench, 0, done::REQ, 1);
    assert_eq!(bench.go_on(), Some(Ok(0)), "two blocks are free");
    assert_eq!(bench.word(wires.queue, queue::DONE), 2);
    wires.complete(&mut bench, 1, done::REQ, 3);
    wires.complete(&mut bench, 2, done::RESP_SEND_IMM, 0);
    wires.complete(&mut bench, 3, done::REQ, 8);
    let out = bench.place(8);
    let completion = wires.completion;
    let mut taken = Vec::new();
    while bench.call("doca_dpa_dev_get_completion", &[completion, out]) == 1 {
        let element = bench.word(out, 0);
        taken.push([
            bench.call("doca_dpa_dev_get_completion_type", &[element]),
            bench.call("doca_dpa_dev_get_completion_user_data", &[element]),
            bench.call("doca_dpa_dev_get_completion_immediate", &[element]),
            bench.call(
                "doca_dpa_dev_completion_element_get_wqe_counter",
                &[element],
            ),
        ]);
    }
    assert_eq!(taken, [[3, 1234, 0xabcd, 0], [0, 1234, 0xabcd, 8]]);
    assert_eq!(bench.word(wires.queue, queue::DONE), 9);
    assert_eq!(bench.word(wires.queue, queue::RECEIVED), 1);
    bench.call("doca_dpa_dev_completion_ack", &[completion, 2]);
    assert_eq!(bench.word(completion, completion::GIVEN), 4);
    bench.call(
        "doca_dpa_dev_completion_request_notification",
        &[completion],
    );
    assert_eq!(bench.device.armed, [(9, 0x55, 4)]);
    let said = bench.fault("doca_dpa_dev_completion_ack", &[completion, 1]);
    assert!(
        said.contains("1 completions to give back, and only 0 were taken"),
        "{said}"
    );
}

#[test]
fn synchronize_waits_for_all_operations_and_a_copy_reports() {
    let mut bench = Bench::new();
    let wires = wires(&mut bench);
    bench.device.keys.insert(1, (0..100).collect());
    bench.device.keys.insert(2, vec![0; 100]);
    let ops = bench.object(
        Kind::AsyncOps,
        async_ops::WORDS,
        &[
            (async_ops::QUEUE, wires.queue),
            (async_ops::COMPLETION, wires.completion),
        ],
    );
    bench.call("doca_dpa_dev_post_memcpy", &[ops, 2, 10, 1, 20, 30, 1]);
    assert_eq!(bench.device.keys[&2][10..40], bench.device.keys[&1][20..50]);
    let block = wires.block(&bench, 0);
    assert_eq!(block[3], opcode::NOP);
    assert_eq!(bench.device.rung, [(9, 0x77, 1)]);
    wires.complete(&mut bench, 0, done::REQ, 0);
    bench.call("doca_dpa_dev_rdma_synchronize", &[wires.rdma]);
    bench.call("doca_dpa_dev_rdma_post_send", &[wires.rdma, 0, 1, 0, 8, 3]);
    let waits = bench.start("doca_dpa_dev_rdma_synchronize", &[wires.rdma]);
    assert_eq!(waits, None);
    // The call has posted a request that reports, as number 2.
    assert_eq!(wires.block(&bench, 2)[3], opcode::NOP);
    wires.complete(&mut bench, 1, done::REQ, 2);
    assert_eq!(bench.go_on(), Some(Ok(0)));
    bench.call("doca_dpa_dev_rdma_post_send", &[wires.rdma, 0, 1, 0, 8, 1]);
    wires.complete(&mut bench, 2, done::REQ_ERR, 3);
    let said = bench.fault("doca_dpa_dev_rdma_synchronize", &[wires.rdma]);
    assert!(said.contains("an operation has failed"), "{said}");
}

#[test]
fn context_notification_and_trace() {
    let mut bench = Bench::new();
    let context = bench.object(Kind::Context, context::WORDS, &[]);
    bench.call("doca_dpa_dev_device_set", &[context]);
    bench.call("doca_dpa_dev_trace", &[1, 2, 3, 4, 0x55]);
    assert_eq!(bench.device.said, ["trace 0x1 0x2 0x3 0x4 0x55"]);
    let none = bench.object(
        Kind::Notification,
        notification::WORDS,
        &[(notification::THREAD, 44)],
    );
    let said = bench.fault("doca_dpa_dev_thread_notify", &[none]);
    assert!(said.contains("no event handler 44"), "{said}");
}
