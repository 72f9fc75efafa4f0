//! Command mailboxes: any commands on a context with a protection domain, memory and a doorbell
//! page.
#![no_main]

use arbitrary::Arbitrary;
use xgvmi_fuzz::{Attr, Device, Value};
use libfuzzer_sys::fuzz_target;

/// Commands of one input.
const COMMANDS_MAX: usize = 16;
/// `UVERBS_ID_NS_SHIFT`: first number of the driver's objects and methods.
const DRIVER: u16 = 1 << 12;
/// `UVERBS_OBJECT_DEVICE`, `UVERBS_METHOD_INVOKE_WRITE`.
const INVOKE_WRITE: (u16, u16) = (0, 0);
/// `IB_USER_VERBS_CMD_ALLOC_PD`.
const ALLOC_PD: u32 = 3;
/// `MLX5_IB_OBJECT_DEVX`, `_DEVX_OBJ`, `_DEVX_UMEM`, `_UAR`.
const DEVX: u16 = DRIVER;
const OBJECT: u16 = DRIVER + 1;
const UMEM: u16 = DRIVER + 2;
const UAR: u16 = DRIVER + 8;

#[derive(Debug, Arbitrary)]
enum Command {
    General(Vec<u8>),
    Create(Vec<u8>),
    Modify(Named, Vec<u8>),
    Query(Named, Vec<u8>),
    Destroy(Named),
}

/// An object: a created one, or an arbitrary one.
#[derive(Debug, Arbitrary)]
enum Named {
    Made(u8),
    Any(u8, u8),
}

fn attr(id: u8, of_driver: bool, value: Value) -> Attr {
    Attr {
        id,
        of_driver,
        flags: 1,
        value,
    }
}

fn of_driver(id: u8, value: Value) -> Attr {
    attr(id, true, value)
}

fn prepare(device: &mut Device) {
    let core = |id, value| attr(id, false, value);
    let pd = [
        core(0, Value::Bytes(vec![0; 8])),
        core(1, Value::Capacity(8)),
        core(2, Value::Number(ALLOC_PD, 8)),
        of_driver(0, Value::Bytes(vec![0; 8])),
        of_driver(1, Value::Capacity(8)),
    ];
    let made = device.call(INVOKE_WRITE.0, INVOKE_WRITE.1, &pd);
    assert!(made.is_some(), "no domain");
    let umem = [
        of_driver(0, Value::Handle(0, 0)),
        of_driver(1, Value::Address(0)),
        of_driver(2, Value::Number(0x8000, 8)),
        of_driver(3, Value::Number(7, 4)),
        of_driver(4, Value::Capacity(4)),
    ];
    let made = device.call(UMEM, DRIVER, &umem);
    assert!(made.is_some(), "no memory");
    let uar = [
        of_driver(0, Value::Handle(0, 0)),
        of_driver(1, Value::Number(0, 8)),
        of_driver(2, Value::Capacity(8)),
        of_driver(3, Value::Capacity(4)),
        of_driver(4, Value::Capacity(4)),
    ];
    let made = device.call(UAR, DRIVER, &uar);
    assert!(made.is_some(), "no page");
}

fuzz_target!(|commands: Vec<Command>| {
    let mut device = Device::open();
    prepare(&mut device);
    let mut made: Vec<u64> = Vec::new();
    for command in commands.iter().take(COMMANDS_MAX) {
        let handle = |named: &Named| {
            let word = match named {
                Named::Made(at) if !made.is_empty() => made[usize::from(*at) % made.len()],
                Named::Made(at) => u64::from(*at),
                Named::Any(kind, slot) => u64::from(*kind) << 24 | u64::from(*slot),
            };
            let [slot, _, _, kind, ..] = word.to_le_bytes();
            of_driver(0, Value::Handle(kind, slot))
        };
        let input = |id, bytes: &Vec<u8>| of_driver(id, Value::Bytes(bytes.clone()));
        let capacity = |id| of_driver(id, Value::Capacity(1024));
        match command {
            Command::General(bytes) => {
                device.call(DEVX, DRIVER, &[input(0, bytes), capacity(1)]);
            }
            Command::Create(bytes) => {
                let any = of_driver(0, Value::Handle(0, 0));
                let answer = device.call(OBJECT, DRIVER, &[any, input(1, bytes), capacity(2)]);
                made.extend(answer.and_then(|words| words.first().copied()));
            }
            Command::Modify(named, bytes) => {
                device.call(
                    OBJECT,
                    DRIVER + 2,
                    &[handle(named), input(1, bytes), capacity(2)],
                );
            }
            Command::Query(named, bytes) => {
                device.call(
                    OBJECT,
                    DRIVER + 3,
                    &[handle(named), input(1, bytes), capacity(2)],
                );
            }
            Command::Destroy(named) => {
                device.call(OBJECT, DRIVER + 1, &[handle(named)]);
            }
        }
    }
});
