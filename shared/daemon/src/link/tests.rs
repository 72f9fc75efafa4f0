//! Tests frames over real sockets: complete, in order, authenticated, and within their limits.

use super::reach::{RETRY, to_another};
use super::*;
use std::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(10);

const PROTOCOL: Protocol = Protocol {
    magic: *b"test",
    version: 3,
    program: "tested",
};

fn secret(text: &str) -> Secret {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    Secret::read(file.path(), "tests").expect("long enough")
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let left = reach(&address, LIMIT).expect("connected");
    (left, listener.accept().expect("accepted").0)
}

fn pair_with(caller: Option<&Secret>, service: &[Secret], budget: &Budget) -> (Link, Link) {
    let (left, right) = sockets();
    let left = Link::calling(left, PROTOCOL, caller).expect("a link");
    let right = Link::called(right, PROTOCOL, service, budget).expect("a link");
    (left, right)
}

fn pair() -> (Link, Link) {
    pair_with(None, &[], &Budget::new(FRAME_MAX))
}

/// Drives both ends until `left` has a frame or an error, and returns the result of `right`.
fn exchange(
    left: &mut Link,
    right: &mut Link,
) -> (Result<Vec<u8>, LinkError>, Result<(), LinkError>) {
    let end = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < end, "nothing happens");
        match right.take() {
            Ok(Some(body)) => right.send(&body).expect("echoed"),
            Ok(None) => {}
            Err(error) => {
                right.refuse(&error.to_string());
                return (wait(left), Err(error));
            }
        }
        match left.take() {
            Ok(Some(body)) => return (Ok(body), Ok(())),
            Ok(None) => {}
            Err(error) => return (Err(error), Ok(())),
        }
    }
}

fn wait(link: &mut Link) -> Result<Vec<u8>, LinkError> {
    link.wait(LIMIT).map(|frame| frame.expect("in time"))
}

/// The error of an accepting peer that receives these bytes.
fn refused(bytes: &[u8]) -> LinkError {
    let (mut left, right) = sockets();
    let mut right = Link::called(right, PROTOCOL, &[], &Budget::new(1 << 20)).expect("a link");
    left.write_all(bytes).expect("sent");
    drop(left);
    right.wait(LIMIT).expect_err("refused")
}

#[test]
fn frames_arrive_whole_and_in_order() {
    let (mut left, mut right) = pair();
    right.set_frame_max(FRAME_MAX);
    let long = vec![7; 3 << 20];
    for frame in [&b"one"[..], &long, b""] {
        left.send(frame).expect("sent");
    }
    left.close_when_sent();
    let mut got = Vec::new();
    while got.len() < 3 {
        // The link buffers bytes that do not fit into the sockets.
        left.flush().expect("sent");
        got.extend(right.take().expect("open"));
    }
    assert!(got == [b"one".to_vec(), long, Vec::new()]);
    assert!(matches!(right.wait(LIMIT), Err(LinkError::Closed)));
}

/// Frames that have arrived behind a long one stay in the socket until it is taken: its memory is kept, and theirs not moved.
/// One send, and one read of the peer, which sees that more is there.
#[test]
fn queued_frames_leave_with_the_next_one() {
    let (mut left, mut right) = pair();
    left.queue_parts(&[b"one"]).expect("queued");
    left.queue_parts(&[b"t", b"wo"]).expect("queued");
    assert!(left.wants_to_send());
    left.send(b"three").expect("sent");
    assert_eq!(wait(&mut right).expect("a frame"), b"one");
    for body in [&b"two"[..], b"three"] {
        assert!(right.has_next());
        assert_eq!(right.take().expect("a frame").as_deref(), Some(body));
    }
    assert!(!right.has_next());
    left.queue_parts(&[b"four"]).expect("queued");
    left.flush().expect("sent");
    assert_eq!(wait(&mut right).expect("a frame"), b"four");
}

#[test]
fn what_is_behind_a_long_frame_is_read_later() {
    let (mut left, mut right) = pair();
    right.set_frame_max(FRAME_MAX);
    let bodies = [7, 8, 9].map(|byte| vec![byte; 3 * CHUNK]);
    for body in &bodies {
        left.send(body).expect("sent");
    }
    for body in bodies {
        assert_eq!(wait(&mut right).expect("a frame"), body);
        assert!(right.input.is_empty(), "{} bytes", right.input.len());
    }
}

/// Each length is a guess for the next frame, which may be shorter, longer, or not there.
#[test]
fn frames_behind_a_long_one_may_have_any_length() {
    let (mut left, mut right) = pair();
    right.set_frame_max(FRAME_MAX);
    let lengths = [
        100_000, 100_000, 7, 200_000, 90_000, 60_000, 0, 300_000, 300_000,
    ];
    for length in lengths {
        let bodies = [1, 2, 3].map(|nth| vec![nth; length / usize::from(nth)]);
        // Alone, and then all at once.
        for bodies in [&bodies[..1], &bodies] {
            for body in bodies {
                left.send(body).expect("sent");
            }
            for body in bodies {
                let taken = loop {
                    left.flush().expect("sent");
                    if let Some(taken) = right.take().expect("open") {
                        break taken;
                    }
                };
                assert!(taken == *body, "{} bytes", taken.len());
            }
        }
    }
}

#[test]
fn owners_of_the_secret_talk_under_seals() {
    let (one, other) = (secret("0123456789abcdef"), secret("fedcba9876543210"));
    // The second of a service's secrets is the previous one.
    for service in [vec![one.clone()], vec![other.clone(), one.clone()]] {
        let (mut left, mut right) = pair_with(Some(&one), &service, &Budget::new(1 << 20));
        for text in [&b"first"[..], b"second"] {
            left.send(text).expect("queued");
            let (answer, met) = exchange(&mut left, &mut right);
            assert_eq!(answer.expect("echoed"), text);
            met.expect("no error");
        }
        assert_eq!((left.secret(), right.secret()), (Some(&one), Some(&one)));
    }
}

#[test]
fn secrets_that_differ_are_told_to_both() {
    let (one, other) = (secret("0123456789abcdef"), secret("fedcba9876543210"));
    let check = |caller: Option<&Secret>, service: &[Secret], expect: &str| {
        let (mut left, mut right) = pair_with(caller, service, &Budget::new(1 << 20));
        left.send(b"hello").expect("queued");
        let (answer, met) = exchange(&mut left, &mut right);
        let (told, met) = (answer.expect_err("refused"), met.expect_err("refused"));
        assert_eq!(told.to_string(), met.to_string());
        assert!(met.to_string().contains(expect), "{met}");
        assert_eq!(met.reason(), "secret");
    };
    check(
        Some(&one),
        std::slice::from_ref(&other),
        "key files (--secret-file) differ",
    );
    check(
        None,
        std::slice::from_ref(&other),
        "give --secret-file FILE",
    );
    check(Some(&one), &[], "this service none");
}

#[test]
fn a_frame_that_was_changed_on_its_way_is_refused() {
    let one = secret("0123456789abcdef");
    let (mut left, mut right) = pair_with(
        Some(&one),
        std::slice::from_ref(&one),
        &Budget::new(1 << 20),
    );
    left.send(b"hello").expect("queued");
    exchange(&mut left, &mut right).0.expect("echoed");
    // A frame without a seal, as an attacker on the connection would inject it.
    let head = [
        &PROTOCOL.magic[..],
        &PROTOCOL.version.to_le_bytes(),
        &22u32.to_le_bytes(),
        &[Class::Data as u8],
        &[0; 21],
    ];
    left.output.push(&head.concat());
    left.flush().expect("sent");
    assert!(matches!(right.wait(LIMIT), Err(LinkError::Seal)));
}

#[test]
fn another_version_is_named_and_strangers_are_refused() {
    let header = |version: u32, length: u32| {
        [PROTOCOL.magic, version.to_le_bytes(), length.to_le_bytes()].concat()
    };
    let check = |bytes: &[u8], expect: &str| {
        let error = refused(bytes);
        assert!(error.to_string().contains(expect), "{error}");
        assert!(error.is_violation(), "{error}");
    };
    check(
        &header(99, 0),
        "protocol version is 99, and this program's is 3",
    );
    check(b"HTTP/1.1 200 OK\r\n\r\n", "neither tested");
    check(b"GET", "neither tested");
    check(
        &[&header(3, u32::MAX)[..], &[0]].concat(),
        "the most is 4096 before",
    );
    check(&[&header(3, 0)[..], &[0]].concat(), "without a class");
    check(&[&header(3, 1)[..], &[9]].concat(), "unknown class");
    check(
        &[&header(3, 1)[..], &[Class::Proof as u8]].concat(),
        "nobody asked for",
    );
    assert!(
        matches!(refused(&header(3, 5)), LinkError::Closed),
        "cut off"
    );
}

/// The signal would end a host program that keeps its default action.
#[test]
fn a_closed_connection_is_an_error_and_no_signal() {
    // SAFETY: plain data; the calls fill the sets, and change the mask of this thread alone.
    let is_pending = |signal| unsafe {
        let mut set = std::mem::zeroed();
        libc::sigpending(&raw mut set);
        libc::sigismember(&raw const set, signal) == 1
    };
    // A blocked signal stays pending, even if it is ignored.
    // SAFETY: as above.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    let (mut left, right) = pair();
    drop(right);
    let end = Instant::now() + LIMIT;
    while left.send(b"anyone?").is_ok() {
        assert!(Instant::now() < end, "no error");
    }
    assert!(!is_pending(libc::SIGPIPE));
}

#[test]
fn strangers_get_no_memory() {
    let (mut left, mut right) = pair();
    left.send(b"short").expect("sent");
    assert_eq!(wait(&mut right).expect("short"), b"short");
    left.send(&vec![0; STRANGER_FRAME_MAX]).expect("sent");
    let error = right.wait(LIMIT).expect_err("refused");
    assert!(matches!(error, LinkError::TooLong { .. }), "{error}");
    assert!(right.input.len() <= STRANGER_FRAME_MAX + HEADER + CHUNK);
}

#[test]
fn all_connections_share_one_budget() {
    let budget = Budget::new(100_000);
    let promised = |bytes: usize| {
        let (mut left, mut right) = pair_with(None, &[], &budget);
        right.set_frame_max(FRAME_MAX);
        let length = u32::try_from(FRAME_MAX).expect("fits");
        let head = [
            PROTOCOL.magic,
            PROTOCOL.version.to_le_bytes(),
            length.to_le_bytes(),
        ];
        left.output.push(&head.concat());
        left.output.push(&vec![0; bytes]);
        while left.wants_to_send() {
            left.flush().expect("sent");
        }
        (left, right)
    };
    let (_first, mut one) = promised(60_000);
    let (_second, mut two) = promised(60_000);
    let end = Instant::now() + LIMIT;
    while one.input.len() < 60_000 {
        assert!(Instant::now() < end, "bytes are missing");
        assert_eq!(one.take().expect("within the budget"), None);
    }
    assert!(one.partial_since().is_some());
    let error = loop {
        assert!(Instant::now() < end, "no refusal");
        if let Err(error) = two.take() {
            break error;
        }
    };
    assert_eq!(error.reason(), "budget");
    drop(two);
    drop(one);
    assert_eq!(budget.used(), 0, "given back with the connections");
}

/// A socket at an address that it keeps from others, and does not listen.
fn silent() -> (std::os::fd::OwnedFd, String) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &any).expect("bound");
    let address = getsockname(&socket).expect("its address");
    let address = std::net::SocketAddr::try_from(address).expect("IPv4");
    (socket, address.to_string())
}

#[test]
fn a_connection_to_itself_reaches_nobody() {
    let (socket, address) = silent();
    let own: std::net::SocketAddrV4 = address.parse().expect("IPv4");
    rustix::net::connect(&socket, &own).expect("the kernel connects it to itself");
    let error = to_another(TcpStream::from(socket)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn nobody_there_is_an_error_within_the_limit() {
    let (_socket, address) = silent();
    let error = reach(&address, RETRY).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(reach("no port", RETRY).is_err());
}

#[test]
fn a_peer_that_is_absent_has_a_limit_of_its_own() {
    let (_socket, address) = silent();
    // Without its own limit, this test takes an hour.
    let error = reach_within(&address, Duration::from_secs(3600), 2 * RETRY);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_peer_that_starts_late_is_reached() {
    let (socket, address) = silent();
    let late = std::thread::spawn(move || reach_within(&address, LIMIT, LIMIT));
    // An attempt before is refused.
    rustix::net::listen(&socket, 1).expect("listens");
    late.join().expect("no panic").expect("reached");
}

#[test]
fn a_reason_of_a_stranger_forges_no_log() {
    let (mut left, right) = sockets();
    let mut right =
        Link::calling(right, PROTOCOL, Some(&secret("0123456789abcdef"))).expect("a link");
    // Anybody who takes the call can refuse it before the secret is proved.
    let reason = [
        b"no\nservice: all is well \x1b[2J".as_slice(),
        &[b'x'; 1 << 20],
    ]
    .concat();
    let length = u32::try_from(1 + reason.len()).expect("short");
    let head = [
        b"test".as_slice(),
        &3_u32.to_le_bytes(),
        &length.to_le_bytes(),
    ]
    .concat();
    let class = [Class::Refused as u8];
    let sent = std::thread::spawn(move || {
        left.write_all(&[&head[..], &class, &reason].concat())
            .map(|()| left)
    });
    let told = right.wait(LIMIT).expect_err("refused").to_string();
    // A close before would have discarded what was not read.
    sent.join().expect("no panic").expect("sent");
    assert_eq!(told.len(), REASON_MAX);
    assert!(
        told.starts_with("no service: all is well  [2Jxx"),
        "{told:?}"
    );
}
