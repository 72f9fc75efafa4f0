//! A host that says hello to a service, for the system tests: `naaice_hello ADDRESS KEYS`. It announces KEYS keys of its pool and
//! prints the service's answer. Its connection ends at once when the process ends, without the rest of what was sent.

#![expect(
    clippy::print_stdout,
    reason = "the test reads the outcome from standard output"
)]

use naaice::dpu::frames::{FRAMES, HostFrame, ServiceFrame};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;
use xgvmi_daemon::{Link, LinkError};
use xgvmi_pool::mlx5::{Function, Mlx5Lib, Mlx5Options};
use xgvmi_pool::{AccessKey, HostHooks, MkeyDevice as _, PoolPolicy, Seal};

/// Bounds a hang.
const LIMIT: Duration = Duration::from_secs(60);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, keys] = words.as_slice() else {
        return Err("usage: naaice_hello ADDRESS KEYS".into());
    };
    let access = AccessKey::new(xgvmi_daemon::random_bytes()?);
    let keys = keys.parse()?;
    let function = Function::open(&Arc::new(Mlx5Lib::open()?), None)?;
    let device = function.device(Mlx5Options::default())?;
    let policy = PoolPolicy {
        access_key: access.clone(),
        mkeys_max: keys,
        ..PoolPolicy::default()
    };
    let hooks = HostHooks::open(Arc::clone(&device), policy)?;
    hooks.pool().prefill(keys);
    let announcement = hooks.pool().announce(access.owner(), 1);
    let hello = HostFrame::Hello {
        pooled: true,
        gvmi: device.gvmi().get(),
        access,
        announcement: announcement.to_bytes(&Seal::OPEN),
    };
    let mut link = Link::connect(address, LIMIT, FRAMES, None)?;
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let length = libc::socklen_t::try_from(size_of_val(&at_once))?;
    // SAFETY: the option has this type, and the descriptor is the link's.
    let set = unsafe {
        let value = (&raw const at_once).cast();
        libc::setsockopt(link.fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, length)
    };
    if set != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    link.send(&hello.to_bytes())?;
    link.flush()?;
    println!("sent");
    std::io::stdout().flush()?;
    match link.wait(LIMIT) {
        Ok(Some(body)) => println!("answer: {:?}", ServiceFrame::parse(&body)),
        Ok(None) => return Err("no answer".into()),
        Err(LinkError::Refused(reason)) => println!("refused: {reason}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
