//! The end of a listener, for the system tests: `naaice_listener ADDRESS`. Host and accelerator are threads of this process.
//! A session that outlives its listener uses the listener's channel; and a port is free again when its listener has ended.

#![expect(
    clippy::print_stdout,
    reason = "the test reads the outcome from standard output"
)]

use naaice::server::{Listener, ListenerOptions, MemoryLimit, Worker};
use naaice::{NaaError, Session};
use std::sync::mpsc;
use std::time::Duration;

/// Bounds a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// Time in which a bind to a port that is in use must not end.
const PATIENCE: Duration = Duration::from_millis(500);

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Outcome {
    let address = std::env::args().nth(1).ok_or("no address")?;
    late_session(&address)?;
    port_in_use(&address)?;
    println!("ok listener_life");
    Ok(())
}

fn listen(address: &str, port: u16) -> Result<Listener, NaaError> {
    let options = ListenerOptions {
        sessions_max: 4,
        session_bytes_max: 1 << 20,
    };
    Listener::bind(address, port, options, MemoryLimit::new(1 << 20))
}

/// Accepts a session, and takes its announcement before the listener ends.
fn accept(listener: &mut Listener) -> Result<Worker, Box<dyn std::error::Error + Send + Sync>> {
    for _ in 0..LIMIT.as_millis() {
        let mut failed = None;
        let accepted =
            listener.accept(Duration::from_millis(1), &mut |text| failed = Some(text))?;
        if let Some(text) = failed {
            return Err(text.into());
        }
        if let Some(accepted) = accepted {
            return Ok(accepted.worker);
        }
    }
    Err("no session".into())
}

fn is_open(fd: i32) -> bool {
    // SAFETY: the call reads the flags of a number that may be no descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

fn late_session(address: &str) -> Outcome {
    let mut listener = listen(address, 0)?;
    let entries = naaice::spec::parse(&format!("{address}:{}:1:1", listener.port()))?;
    let host = std::thread::spawn(move || -> Result<(), NaaError> {
        let session = Session::builder(1).input_output(vec![0; 64]);
        let mut session = session.create_from(&entries)?;
        session.invoke()?;
        session.wait().map(drop)
    });
    let worker = accept(&mut listener)?;
    let channel = listener.fd();
    drop(listener);
    if !is_open(channel) {
        return Err("the channel of a session has ended with the listener".into());
    }
    worker.serve(false, None, |_, _, _| 0)?;
    if is_open(channel) {
        return Err("the channel has not ended with its last session".into());
    }
    match host.join() {
        Ok(Err(error)) if error.is_unreachable() => Ok(()),
        other => Err(format!("the host did not notice the end: {other:?}").into()),
    }
}

fn port_in_use(address: &str) -> Outcome {
    let first = listen(address, 0)?;
    let port = first.port();
    let (sender, bound) = mpsc::channel();
    let place = address.to_owned();
    let second = std::thread::spawn(move || {
        // The receiver lives until the end of this thread.
        let _ = sender.send(listen(&place, port).map(|listener| listener.port()));
    });
    if let Ok(early) = bound.recv_timeout(PATIENCE) {
        return Err(format!("a port in use was not awaited: {early:?}").into());
    }
    drop(first);
    let port_of_second = bound.recv_timeout(LIMIT)??;
    second.join().map_err(|_| "the thread has panicked")?;
    match port_of_second == port {
        true => Ok(()),
        false => Err("another port".into()),
    }
}
