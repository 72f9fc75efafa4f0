//! Peers that speak the protocol of the service processes wrongly, each in a way of its own. Every one gets a refusal that
//! says why, or the end of its connection; the job beside them goes on, and nothing of them is left.

use crate::harness::Case;
use crate::offload::{Farm, Process, succeed};
use crate::process;
use crate::world::{LIMIT, World};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The version of the protocol.
pub(crate) const VERSION: u32 = 17;

/// Class of a program's frame, and of the frames of the handshake.
const DATA: u8 = 0;
const OPEN: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;

/// Kinds of frames.
const HELLO: u8 = 1;
const KEYS: u8 = 2;
const WELCOME: u8 = 3;
const TABLE: u8 = 4;
const PEER: u8 = 5;
const PEER_WELCOME: u8 = 6;
const READY: u8 = 7;
const BYE: u8 = 8;
const BEAT: u8 = 9;
const ABORT: u8 = 10;
const MORE: u8 = 11;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::new("offload_hostile_peers", hostile),
        Case::new("offload_hostile_peers_without_the_secret", without_secret),
    ]
}

/// What a peer sends, and what the service says to it; without words it only ends the connection.
struct Way {
    name: &'static str,
    bytes: Vec<u8>,
    expect: &'static str,
}

fn way(name: &'static str, bytes: Vec<u8>, expect: &'static str) -> Way {
    Way {
        name,
        bytes,
        expect,
    }
}

pub(crate) fn header(version: u32, length: u32) -> Vec<u8> {
    [
        b"xgsp".as_slice(),
        &version.to_le_bytes(),
        &length.to_le_bytes(),
    ]
    .concat()
}

/// A frame of a class.
fn frame(class: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(1 + body.len()).expect("short");
    [&header(VERSION, length)[..], &[class], body].concat()
}

/// A program's frame of a kind.
fn data(kind: u8, body: &[u8]) -> Vec<u8> {
    frame(DATA, &[&[kind], body].concat())
}

pub(crate) fn hello(job: &str, rank: &str, size: &str, scheme: &str, ucx: &str) -> Vec<u8> {
    let text = format!(
        "{{\"job\":{job},\"rank\":{rank},\"size\":{size},\"scheme\":{scheme},\"ucx_version\":{ucx}}}"
    );
    data(HELLO, text.as_bytes())
}

pub(crate) const JOB: &str = "\"0123456789abcdef0123456789abcdef\"";

fn blob(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// The first bytes of a connection.
fn first_words() -> Vec<Way> {
    const STRANGER: &str = "neither xgvmi-sp nor a client of it";
    vec![
        way("http", b"GET / HTTP/1.1\r\n\r\n".to_vec(), STRANGER),
        way(
            "tls",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
            STRANGER,
        ),
        way("ssh", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), STRANGER),
        way("one_wrong_byte_of_the_magic", b"xgsq".to_vec(), STRANGER),
        way("zeros", vec![0; 64], STRANGER),
        way("version_0", header(0, 1), "protocol version is 0,"),
        way("version_2", header(2, 1), "protocol version is 2,"),
        way("version_99", header(99, 0), "protocol version is 99,"),
        way(
            "version_max",
            header(u32::MAX, 1),
            "protocol version is 4294967295,",
        ),
        way(
            "length_max",
            [header(VERSION, u32::MAX), vec![0]].concat(),
            "the most is 4096 before",
        ),
        way(
            "length_32_mib",
            [header(VERSION, 32 << 20), vec![0]].concat(),
            "the most is 4096 before",
        ),
        way(
            "length_4097",
            [header(VERSION, 4097), vec![0]].concat(),
            "the most is 4096 before",
        ),
        way(
            "length_0",
            [header(VERSION, 0), vec![0]].concat(),
            "a frame without a class",
        ),
        way("class_5", frame(5, b""), "a frame of an unknown class"),
        way("class_255", frame(255, b""), "a frame of an unknown class"),
        way(
            "open_without_need",
            frame(OPEN, &[7; 32]),
            "this service none: give --secret-file",
        ),
        way(
            "challenge_without_need",
            frame(CHALLENGE, &[7; 32]),
            "nobody asked for",
        ),
        way(
            "proof_without_need",
            frame(PROOF, &[7; 32]),
            "nobody asked for",
        ),
    ]
}

/// First frames that are no hello.
fn first_frames() -> Vec<Way> {
    let expected = |name, kind: u8, body: &[u8], what| way(name, data(kind, body), what);
    let address = [&[0; 8][..], &blob(b"h:1"), &blob(b"w")].concat();
    let welcome = [&address[..], &[0; 16 + 32 + 8]].concat();
    let table = [&1u64.to_le_bytes()[..], &address, &0u64.to_le_bytes()].concat();
    vec![
        way(
            "an_empty_frame",
            frame(DATA, b""),
            "frame of 0 bytes is empty",
        ),
        expected("kind_0", 0, b"", "of an unknown kind"),
        expected("kind_12", 12, b"", "of an unknown kind"),
        expected(
            "more_first",
            MORE,
            &blob(b"keys"),
            "MORE is not expected now",
        ),
        expected("more_cut", MORE, b"", "a MORE of 0 bytes is too short"),
        expected("kind_255", 255, b"", "of an unknown kind"),
        expected(
            "keys_first",
            KEYS,
            &keys(b"address", b"", 8192),
            "KEYS is not expected now",
        ),
        expected(
            "welcome_first",
            WELCOME,
            &welcome,
            "WELCOME is not expected now",
        ),
        expected("table_first", TABLE, &table, "TABLE is not expected now"),
        expected(
            "peer_welcome_first",
            PEER_WELCOME,
            &[1; 16],
            "PEER_WELCOME is not expected now",
        ),
        expected("ready_first", READY, b"", "READY is not expected now"),
        expected("bye_first", BYE, b"", "BYE is not expected now"),
        expected("beat_first", BEAT, b"", "BEAT is not expected now"),
        expected(
            "abort_first",
            ABORT,
            &blob(b"why"),
            "ABORT is not expected now",
        ),
        expected("ready_with_a_body", READY, b"x", "is too long"),
        expected(
            "table_of_more_than_there_is",
            TABLE,
            &u64::MAX.to_le_bytes(),
            "TABLE of 8 bytes is too short",
        ),
        expected(
            "peer_without_json",
            PEER,
            b"\xff\xfe",
            "PEER of 2 bytes is not as it should be",
        ),
        expected(
            "peer_with_a_short_token",
            PEER,
            format!("{{\"job\":{JOB},\"index\":1,\"token\":[1,2]}}").as_bytes(),
            "is not as it should be",
        ),
        expected(
            "peer_of_no_job",
            PEER,
            format!("{{\"job\":{JOB},\"index\":1,\"token\":{:?}}}", [1; 16]).as_bytes(),
            "there is no job 01234567",
        ),
    ]
}

/// Hellos that make no sense.
fn hellos(ucx: &str) -> Vec<Way> {
    let ucx = format!("\"{ucx}\"");
    let good = |job, rank, size, scheme| hello(job, rank, size, scheme, &ucx);
    const SHAPE: &str = "is not as it should be";
    let long = format!("\"{}\"", "9".repeat(3000));
    vec![
        way("hello_without_json", data(HELLO, b"hello"), SHAPE),
        way("hello_cut_off", data(HELLO, b"{\"job\":\"01"), SHAPE),
        way("hello_of_nothing", data(HELLO, b"{}"), SHAPE),
        way(
            "hello_nested",
            data(HELLO, "[".repeat(3000).as_bytes()),
            SHAPE,
        ),
        way(
            "hello_with_a_short_job",
            good("\"0123\"", "0", "2", "\"stock\""),
            SHAPE,
        ),
        way(
            "hello_with_a_job_that_is_a_number",
            good("7", "0", "2", "\"stock\""),
            SHAPE,
        ),
        way(
            "hello_with_a_job_of_other_letters",
            good(&JOB.replace('f', "g"), "0", "2", "\"stock\""),
            SHAPE,
        ),
        way(
            "hello_with_a_negative_rank",
            good(JOB, "-1", "2", "\"stock\""),
            SHAPE,
        ),
        way(
            "hello_with_a_fraction",
            good(JOB, "0.5", "2", "\"stock\""),
            SHAPE,
        ),
        way(
            "hello_with_an_unknown_scheme",
            good(JOB, "0", "2", "\"fast\""),
            SHAPE,
        ),
        way(
            "hello_of_rank_2_of_2",
            good(JOB, "2", "2", "\"stock\""),
            "rank 2 of 2: ranks count from 0",
        ),
        way(
            "hello_of_a_job_without_ranks",
            good(JOB, "0", "0", "\"stock\""),
            "rank 0 of 0",
        ),
        way(
            "hello_of_too_many_ranks",
            good(JOB, "0", "65537", "\"stock\""),
            "65536 are the most",
        ),
        way(
            "hello_of_another_scheme",
            good(JOB, "0", "2", "\"ksm\""),
            "its scheme is ksm, and this service's stock",
        ),
        way(
            "hello_of_another_ucx",
            hello(JOB, "0", "2", "\"stock\"", "\"1.17.0\""),
            "use the same version",
        ),
        way(
            "hello_of_a_long_ucx",
            hello(JOB, "0", "2", "\"stock\"", &long),
            "use the same version",
        ),
    ]
}

/// Good hellos, and then something else.
fn second_frames(ucx: &str) -> Vec<Way> {
    let hello = hello(JOB, "0", "2", "\"stock\"", &format!("\"{ucx}\""));
    let after = |name, bytes: Vec<u8>, expect| way(name, [&hello[..], &bytes].concat(), expect);
    let whole = keys(b"address", b"", 8192);
    let mut endless = vec![0; 16];
    endless.extend_from_slice(&u64::MAX.to_le_bytes());
    vec![
        after("hello_twice", hello.clone(), "HELLO is not expected now"),
        after(
            "table_instead_of_keys",
            data(TABLE, &[0; 16]),
            "TABLE is not expected now",
        ),
        after(
            "ready_instead_of_keys",
            data(READY, b""),
            "READY is not expected now",
        ),
        after(
            "beat_instead_of_keys",
            data(BEAT, b""),
            "BEAT is not expected now",
        ),
        after(
            "keys_of_nothing",
            data(KEYS, b""),
            "KEYS of 0 bytes is too short",
        ),
        after(
            "keys_cut_off",
            data(KEYS, &whole[..whole.len() - 1]),
            "is too short",
        ),
        after(
            "keys_with_more",
            data(KEYS, &[&whole[..], b"x"].concat()),
            "is too long",
        ),
        after(
            "keys_longer_than_the_frame",
            data(KEYS, &endless),
            "is too short",
        ),
        after(
            "keys_with_a_long_address",
            data(KEYS, &keys(&[0; 65_537], b"", 8192)),
            "too long in one of its parts",
        ),
        after(
            "keys_without_a_greeting",
            data(KEYS, &keys_with(b"address", b"", b"", 8192)),
            "without an exported handle",
        ),
        after(
            "keys_with_a_long_handle",
            data(KEYS, &keys_with(b"address", b"", &[1; 5000], 8192)),
            "too long in an exported handle",
        ),
        after(
            "a_frame_beyond_all_limits",
            header(VERSION, (32 << 20) + 1)
                .into_iter()
                .chain([0])
                .collect(),
            "the most is 33554432",
        ),
        after(
            "another_version_after_the_hello",
            header(VERSION + 1, 1),
            ", and this program's is",
        ),
        after(
            "another_protocol_after_the_hello",
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "neither xgvmi-sp",
        ),
    ]
}

fn keys(address: &[u8], announcement: &[u8], greeting: u64) -> Vec<u8> {
    keys_with(address, announcement, b"handle", greeting)
}

fn keys_with(address: &[u8], announcement: &[u8], handle: &[u8], greeting: u64) -> Vec<u8> {
    [
        &[7; 16][..],
        &blob(address),
        &blob(announcement),
        // Twice the length as a varint: the handle has no name.
        &varint(2 * handle.len()),
        handle,
        &0x1000u64.to_le_bytes(),
        &greeting.to_le_bytes(),
    ]
    .concat()
}

/// Seven bits per byte, the lowest first.
fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
    bytes
}

/// Sends bytes, closes this side, and reads all that the service says.
fn say(address: &str, bytes: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // A service that has heard enough closes, whatever else is sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    // It resets the connection if it has not read all of it, after its last words.
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn try_all(address: &str, ways: &[Way]) -> Result<()> {
    for way in ways {
        let answer = say(address, &way.bytes)?;
        ensure!(
            answer.contains(way.expect),
            "{}: expected '{}', the service says {answer:?}",
            way.name,
            way.expect
        );
    }
    Ok(())
}

/// The version of UCX in the output of a service.
pub(crate) fn ucx_version(said: &str) -> Result<String> {
    let rest = said.split("UCX ").nth(1);
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    Ok(word.context("UCX's version")?.to_owned())
}

/// All ways beside a job; then the service is as it was.
fn hostile(world: &World) -> Result<()> {
    let mut farm = Farm::with(world, "stock", 1, &["--scheme", "stock"])?;
    let socket = farm.testbed.path().join("status");
    let mut command = farm.command("node0.dpu", "xgvmi-sp");
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--scheme",
        "stock",
        "--status-socket",
    ]);
    command.arg(&socket);
    let mut service = Process::spawn(&mut command)?;
    service.hear(" listens on ")?;
    farm.services[0][0] = service;
    let address = farm.addresses(0)?;
    let ucx = ucx_version(&farm.services[0][0].said())?;

    let mut ways = first_words();
    ways.extend(first_frames());
    ways.extend(hellos(&ucx));
    ways.extend(second_frames(&ucx));
    ensure!(ways.len() >= 40, "{} ways", ways.len());
    let job = farm.job(2, &["--rounds", "20"], |_, _| ())?;
    try_all(&address, &ways)?;

    // Promises of 32 MiB each, none of which is believed, and silence.
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&address)?;
        let promise = [header(VERSION, 4000), vec![DATA]].concat();
        stream.write_all(&promise)?;
        open.push(stream);
    }
    succeed(job)?;
    drop(open);
    succeed(farm.job(1, &["--rounds", "3"], |_, _| ())?)?;

    let mut last = serde_json::Value::Null;
    let clean = process::wait_until(LIMIT, || {
        last = status(&farm, &socket).unwrap_or_default();
        last["connections"] == 0 && last["jobs"].as_array().is_some_and(Vec::is_empty)
    });
    ensure!(clean, "something is left: {last}");
    ensure!(last["buffered_bytes"] == 0, "bytes are left: {last}");
    let refused = last["refusals"].as_object().context("refusals")?;
    let refused: u64 = refused.values().filter_map(serde_json::Value::as_u64).sum();
    ensure!(refused >= ways.len() as u64, "{refused} refusals: {last}");
    ensure!(last["jobs_done"] == 2 && last["jobs_failed"] == 0, "{last}");
    Ok(())
}

/// Asks the service at a status socket of node 0 for its status.
pub(crate) fn status(farm: &Farm<'_>, socket: &Path) -> Result<serde_json::Value> {
    let mut command = farm.command("node0.dpu", "xgvmi-sp");
    command.args(["status", "--json", "--socket"]).arg(socket);
    let mut asked = Process::spawn(&mut command)?;
    let (code, said) = asked.end(LIMIT, &["}"])?;
    ensure!(code == Some(0), "exit code {code:?}: {said}");
    serde_json::from_str(&said).with_context(|| said.clone())
}

/// Peers that do not have the secret.
fn without_secret(world: &World) -> Result<()> {
    let mut farm = Farm::new(world, "stock", 1)?;
    let secret = farm.testbed.path().join("secret");
    fs::write(&secret, "a secret of the test\n")?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let mut command = farm.command("node0.dpu", "xgvmi-sp");
    command
        .args(["--listen", "127.0.0.1:0", "--secret-file"])
        .arg(&secret);
    let mut service = Process::spawn(&mut command)?;
    service.hear(" listens on ")?;
    farm.services[0][0] = service;
    let address = farm.addresses(0)?;
    const NEEDED: &str = "serves only owners of its secret";
    let open = frame(OPEN, &[7; 32]);
    let after_open = |bytes: Vec<u8>| [&open[..], &bytes].concat();
    try_all(
        &address,
        &[
            way(
                "hello_without_the_secret",
                hello(JOB, "0", "2", "\"stock\"", "\"1\""),
                NEEDED,
            ),
            way(
                "a_long_hello_without_the_secret",
                [header(VERSION, 5000), vec![0]].concat(),
                NEEDED,
            ),
            way("beat_without_the_secret", data(BEAT, b""), NEEDED),
            way(
                "challenge_of_the_service",
                frame(CHALLENGE, &[7; 32]),
                NEEDED,
            ),
            way("proof_before_open", frame(PROOF, &[7; 32]), NEEDED),
            way(
                "open_with_a_short_nonce",
                frame(OPEN, &[7; 31]),
                "of a wrong length",
            ),
            way(
                "open_with_a_long_nonce",
                frame(OPEN, &[7; 33]),
                "of a wrong length",
            ),
            way("open_twice", after_open(open.clone()), NEEDED),
            way(
                "a_guessed_proof",
                after_open(frame(PROOF, &[7; 32])),
                "the key files (--secret-file) differ",
            ),
            way(
                "a_short_proof",
                after_open(frame(PROOF, &[7; 3])),
                "of a wrong length",
            ),
            way(
                "hello_instead_of_a_proof",
                after_open(data(HELLO, b"{}")),
                NEEDED,
            ),
        ],
    )?;
    // The guess has cost the owner of the secret nothing.
    let with = |_: u32, command: &mut std::process::Command| {
        command.args(["--secret-file"]).arg(&secret);
    };
    let mut command = farm.command("node1.dpu", "xgvmi-sp");
    command
        .args(["--listen", "127.0.0.1:0", "--secret-file"])
        .arg(&secret);
    let mut service = Process::spawn(&mut command)?;
    service.hear(" listens on ")?;
    farm.services[1][0] = service;
    succeed(farm.job(1, &["--rounds", "2"], with)?)?;
    Ok(())
}
