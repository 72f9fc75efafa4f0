//! Whole-system tests: stock programs and the device's rules on the emulated device. They use built
//! artefacts only.
//!
//! `cargo xtask test system` builds the artefacts and passes their paths. Without these paths, each
//! test skips with a reason.
#![expect(
    clippy::print_stdout,
    reason = "a test harness reports on standard output"
)]

mod addresses;
mod adversary;
mod agent;
mod arena;
mod beside;
mod connections;
mod contexts;
mod cost;
mod counters;
mod crash;
mod deferred;
mod doca;
mod doca_samples;
mod dpa;
mod dpa_debug;
mod evidence;
mod faults;
mod forms;
mod harness;
mod hostile;
mod imports;
mod life;
mod limits;
mod moderation;
mod mpi;
mod multicast;
mod naaice;
mod naaice_limits;
mod next_poll;
mod notices;
mod offload;
mod offload_dpa;
mod offload_messages;
mod offload_remap;
mod pcc;
mod polling;
mod pool;
mod ports;
mod posted;
mod privileged;
mod probe;
mod refusals;
mod registrations;
mod rnr;
mod roce;
mod rules;
mod seen;
mod soak;
mod storage;
mod storage_rdma;
mod storage_site;
mod strict;
mod talk;
mod tools;
mod trap;
mod ucx;
mod verbs;
mod world;

use std::process::ExitCode;
use testbed::process;

fn main() -> ExitCode {
    process::end_children_on_signal();
    let mut cases = verbs::cases();
    cases.extend(ucx::cases());
    cases.extend(rules::cases());
    cases.extend(refusals::cases());
    cases.extend(registrations::cases());
    cases.extend(counters::cases());
    cases.extend(notices::cases());
    cases.extend(strict::cases());
    cases.extend(limits::cases());
    cases.extend(contexts::cases());
    cases.extend(connections::cases());
    cases.extend(addresses::cases());
    cases.extend(multicast::cases());
    cases.extend(rnr::cases());
    cases.extend(moderation::cases());
    cases.extend(next_poll::cases());
    cases.extend(ports::cases());
    cases.extend(roce::cases());
    cases.extend(tools::cases());
    cases.extend(trap::cases());
    cases.extend(pool::cases());
    cases.extend(posted::cases());
    cases.extend(forms::cases());
    cases.extend(imports::cases());
    cases.extend(arena::cases());
    cases.extend(offload::cases());
    cases.extend(offload_dpa::cases());
    cases.extend(offload_messages::cases());
    cases.extend(offload_remap::cases());
    cases.extend(hostile::cases());
    cases.extend(beside::cases());
    cases.extend(soak::cases());
    cases.extend(life::cases());
    cases.extend(cost::cases());
    cases.extend(probe::cases());
    cases.extend(faults::cases());
    cases.extend(deferred::cases());
    cases.extend(adversary::cases());
    cases.extend(polling::cases());
    cases.extend(seen::cases());
    cases.extend(privileged::cases());
    cases.extend(crash::cases());
    cases.extend(doca::cases());
    cases.extend(pcc::cases());
    cases.extend(doca_samples::cases());
    cases.extend(dpa::cases());
    cases.extend(dpa_debug::cases());
    cases.extend(mpi::cases());
    cases.extend(naaice::cases());
    cases.extend(naaice_limits::cases());
    cases.extend(storage::cases());
    cases.extend(storage_rdma::cases());
    cases.extend(storage_site::cases());
    harness::run(&cases)
}
