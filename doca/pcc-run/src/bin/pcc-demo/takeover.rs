//! The active process of each sender is killed in the middle of an incast, and the next one takes over.

use crate::programs::Contender;
use anyhow::{Context as _, Result, ensure};
use pcc_lab::algorithm::Port;
use pcc_lab::{Algorithm, Decision, Event, Failure, Lab, Report, Scenario};
use std::cell::RefCell;
use std::rc::Rc;

/// Senders, and bytes of each: the port needs 2 ms for all.
const FLOWS: u32 = 8;
const BYTES: u64 = 6_250_000;
/// Time of the kill.
const KILLED_PS: u64 = 1_000_000_000;

/// Times of the first decisions of the second processes.
type Times = Rc<RefCell<Vec<u64>>>;

/// A second process, whose first decision is noted.
#[derive(Debug)]
struct Watched {
    inner: Box<dyn Algorithm>,
    has_decided: bool,
    times: Times,
}

impl Algorithm for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn disabled_events(&self) -> u32 {
        self.inner.disabled_events()
    }

    fn handle(
        &mut self,
        context: &mut pcc_lab::Context,
        event: &Event,
        port: &Port,
    ) -> Result<Decision, Failure> {
        if !std::mem::replace(&mut self.has_decided, true) {
            self.times.borrow_mut().push(port.time_ps);
        }
        self.inner.handle(context, event, port)
    }

    fn port_changed(&mut self, mbps: u64) {
        self.inner.port_changed(mbps);
    }
}

/// The longest time from the kill to the first decision of the next process, in microseconds, and the run.
pub(crate) fn measure(contender: &Contender) -> Result<(f64, Report)> {
    let text = format!(
        "duration_us = 5000000\nlimits.trace = 0\nalgorithm.processes = 2
topology = {{ shape = 'star', hosts = {}, gbps = 200, delay_ns = 1000 }}
traffic = [{{ kind = 'incast', to = 0, flows = {FLOWS}, bytes = {BYTES} }}]",
        FLOWS + 1
    );
    let scenario = Scenario::from_toml(&text).context("the scenario of the takeover")?;
    let times = Times::default();
    let make = |place: pcc_lab::Place| -> Box<dyn Algorithm> {
        let inner = contender.process();
        if place.process == 0 {
            return inner;
        }
        Box::new(Watched {
            inner,
            has_decided: false,
            times: Rc::clone(&times),
        })
    };
    let mut lab = Lab::with_algorithm(&scenario, &make)?;
    lab.run_until(KILLED_PS);
    let killed_ps = lab.now_ps();
    (1..=FLOWS).for_each(|host| lab.kill(host));
    let report = lab.run();
    let lost = report.per_flow.iter().filter(|flow| !flow.is_done).count();
    ensure!(
        lost == 0 && report.unaccounted == 0,
        "{lost} flows are lost: {:?}",
        report.packets
    );
    let times = times.borrow();
    ensure!(
        times.len() == FLOWS as usize,
        "{} of {FLOWS} second processes have decided",
        times.len()
    );
    let last = times.iter().max().context("a time")?;
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    let us = (last - killed_ps) as f64 / 1e6;
    Ok((us, report))
}
