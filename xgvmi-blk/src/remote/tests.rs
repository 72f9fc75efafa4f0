//! Tests of targets behind sockets.

use super::*;
use crate::block::encode;
use crate::error::BlkError;
use crate::geometry::{Geometry, Id, Role};
use crate::record::Half;
use crate::store::{Mark, MemoryMedium, NewTarget, Store, Target};
use crate::volume::Volume;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Serves a target in memory. Returns its address.
fn start(role: Role) -> String {
    let new = NewTarget {
        geometry: Geometry::new(4096, 64).unwrap(),
        role,
        volume: Id([4; 16]),
        complete: true,
    };
    let store = Store::create("memory", Box::new(MemoryMedium::default()), new, None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || Arc::new(TargetServer::new(store, Vec::new())).run(&listener));
    address
}

fn address(address: &str, owner: u8) -> Address {
    Address {
        address: address.to_owned(),
        secret: None,
        limit: Duration::from_secs(10),
        longest: Duration::from_secs(60),
        owner: [owner; 16],
    }
}

fn connect(to: &str, owner: u8) -> RemoteTarget {
    RemoteTarget::connect(&address(to, owner)).unwrap()
}

fn half(generation: u64) -> Half {
    let encoded = encode(&[7; 4096]);
    let [data, ..] = encoded.parts;
    Half {
        generation,
        kind: encoded.kind,
        stored: encoded.stored,
        data,
    }
}

#[test]
fn a_volume_on_three_processes_keeps_its_data() {
    let addresses = Role::ALL.map(start);
    let open = |owner| {
        let targets = addresses
            .iter()
            .map(|to| Arc::new(connect(to, owner)) as Arc<dyn Target>);
        Volume::open(targets.collect()).unwrap()
    };
    let volume = open(1);
    let bytes: Vec<u8> = (0..100_000u32).map(|n| (n / 3).to_le_bytes()[0]).collect();
    volume.write(5000, &bytes).unwrap();
    volume.flush().unwrap();
    let mut back = vec![0; bytes.len()];
    volume.read(5000, &mut back).unwrap();
    assert!(back == bytes);
    assert!(volume.status().targets.iter().all(|target| target.used > 0));
    // Another process opens the volume. The first one is told at its next write, and writes nothing.
    let later = open(2);
    let refused = volume.write(0, &[9; 4096]).unwrap_err();
    assert!(
        matches!(refused, BlkError::TooFewTargets { .. }),
        "{refused}"
    );
    later.read(5000, &mut back).unwrap();
    assert!(back == bytes);
    assert_eq!(later.scrub().unwrap().bad_halves, 0);
}

#[test]
fn a_late_call_of_an_earlier_connection_has_no_effect() {
    let to = start(Role::First);
    let early = connect(&to, 1);
    assert!(early.flush().is_err(), "it is not the owner");
    early.mark(1, Mark::Complete).unwrap();
    early.prepare(3, &half(1), 0).unwrap();
    // The same process connects again, and its first connection's calls arrive now.
    let again = connect(&to, 1);
    again.mark(1, Mark::Complete).unwrap();
    let late = early.commit(3, 1).unwrap_err();
    assert!(
        late.to_string().contains("another connection owns"),
        "{late}"
    );
    again.commit(3, 1).unwrap();
    assert_eq!(again.fetch(3, 1).unwrap(), half(1));
    // Another process with the same epoch, or an older one, is refused.
    let other = connect(&to, 2);
    for epoch in [0, 1] {
        let refused = other.mark(epoch, Mark::Complete).unwrap_err();
        assert!(
            refused.to_string().contains("another process has opened"),
            "{refused}"
        );
    }
    other.mark(2, Mark::Complete).unwrap();
    assert!(again.flush().is_err());
}

#[test]
fn a_target_that_does_not_answer_is_given_up_after_its_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = Address {
        limit: Duration::from_millis(50),
        longest: Duration::from_secs(60),
        ..address(&listener.local_addr().unwrap().to_string(), 1)
    };
    let error = RemoteTarget::connect(&silent).unwrap_err();
    assert!(
        error.to_string().contains("no answer within 50 ms"),
        "{error}"
    );
    drop(listener);
    let error = RemoteTarget::connect(&silent).unwrap_err();
    assert!(matches!(error, BlkError::Unreachable { .. }), "{error}");
}

#[test]
fn a_stranger_is_disconnected_and_the_target_serves_on() {
    use std::io::{Read as _, Write as _};
    let to = start(Role::First);
    for bytes in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        b"XBLK\x02\0\0\0\xff\xff\xff\xff\0",
        b"XBLK\x02\0\0\0\x02\0\0\0\0\x63",
    ] {
        let mut stream = TcpStream::connect(&to).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // Closed or reset: both are an end.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    let target = connect(&to, 1);
    target.mark(1, Mark::Complete).unwrap();
    let wrong = Half {
        data: vec![1; 99],
        ..half(1)
    };
    let error = target.prepare(0, &wrong, 0).unwrap_err();
    assert!(error.to_string().contains("wrong length"), "{error}");
    assert!(matches!(target.fetch(64, 1), Err(BlkError::Refused { .. })));
    target.prepare(0, &half(1), 0).unwrap();
    let held = target.held().unwrap();
    let held: Vec<_> = held.iter().map(|held| held.generation).collect();
    assert_eq!(held, [1, 0], "and the durable state before");
}
