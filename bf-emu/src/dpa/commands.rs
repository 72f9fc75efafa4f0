//! Commands on the DPA's objects.

use std::sync::Arc;

use mlx5_prm::cmd::status;

use super::command::{Command, Refused, Result, gone, refused};
use super::tables::{Dpa, Runner, Session, Tables, What};
use super::{create, modify, query};
use crate::fabric::Function;
use crate::fabric::table::Owner;
use crate::process::dpa::wire::{Answer, Kind, Request};

/// Syndrome of each refusal: the context can ask for its text.
const SYNDROME: u32 = 0xd9a;

/// Carries out a command.
pub(super) fn act(runner: &'static Runner, request: Request, input: Vec<u8>) -> Answer {
    let session = (request.process, request.context);
    let function = request.function as usize;
    let known = runner.tables().sessions.contains_key(&session)
        && function < runner.process.fabric().identities().len();
    if !known {
        return Answer {
            errno: libc::EIO,
            ..Answer::default()
        };
    }
    let command = Command {
        runner,
        session,
        function,
        pid: request.pid,
        input: &input,
        capacity: request.capacity as usize,
        options: request.options,
    };
    let result = match request.kind {
        Kind::Create => create::create(&command),
        Kind::Modify => command
            .object(request.object)
            .and_then(|object| modify::modify(&command, request.object, &object))
            .map(|output| (request.object, output)),
        Kind::Query => command
            .object(request.object)
            .and_then(|object| query::query(&command, request.object, &object))
            .map(|output| (request.object, output)),
        Kind::Destroy => command
            .destroy(request.object)
            .map(|()| (request.object, Vec::new())),
        Kind::Events => command
            .events(request.object)
            .map(|output| (request.object, output)),
        Kind::Hello | Kind::Report | Kind::Debug | Kind::Program => {
            refused(status::BAD_OP, "no command")
        }
    };
    match result {
        Ok((object, output)) => Answer {
            object,
            output,
            ..Answer::default()
        },
        Err(Refused(status, reason)) => {
            if let Some(open) = runner.tables().sessions.get_mut(&session) {
                open.reason = reason;
            }
            Answer {
                status,
                syndrome: SYNDROME,
                ..Answer::default()
            }
        }
    }
}

impl Command<'_> {
    /// Destroys an object of the session.
    fn destroy(&self, id: u32) -> Result<()> {
        let object = self.object(id)?;
        match object.what {
            What::Process(dpa) => {
                if has_queues(self.runner, self.session, &dpa) {
                    let text = "queues or keys in the memory of the process exist";
                    return refused(status::BAD_RES_STATE, text);
                }
                end_process(self.runner, self.session, id, &dpa);
            }
            What::Memory { process, address } => {
                let dpa = self.process(process)?;
                let freed = dpa.worker.ask(move |state| state.os.free(address));
                freed.ok_or_else(gone)??;
            }
            What::Thread { process } => {
                let dpa = self.process(process)?;
                let destroyed = dpa.worker.ask(move |state| state.os.destroy_thread(id));
                destroyed.ok_or_else(gone)??;
                self.runner.tables().threads.remove(&id);
            }
            What::Outbox {
                process,
                id: outbox,
            } => {
                let dpa = self.process(process)?;
                dpa.worker.ask(move |state| state.os.remove_outbox(outbox));
            }
            What::Window {
                process,
                id: window,
            } => {
                let dpa = self.process(process)?;
                dpa.worker.ask(move |state| state.os.remove_window(window));
            }
            What::EventQueue { process } => {
                let dpa = self.process(process)?;
                dpa.worker.ask(move |state| state.os.remove_event_queue(id));
            }
            What::CommandQueue { process } => {
                let dpa = self.process(process)?;
                dpa.worker.ask(move |state| state.os.remove_task_queue(id));
                let mut tables = self.runner.tables();
                tables.threads.retain(|_, (_, owner)| *owner != id);
            }
            What::Telemetry { .. } => {}
        }
        self.runner.tables().objects.remove(&id);
        Ok(())
    }

    /// The channel, counted from 1, and the cookie of the events of a thread or event queue.
    fn events(&self, target: u32) -> Result<Vec<u8>> {
        let (What::Thread { process } | What::EventQueue { process }) = self.object(target)?.what
        else {
            let text = format!("object {target} is no thread and no event queue");
            return refused(status::BAD_RESOURCE, text);
        };
        let channel = self.process(process)?.channel + 1;
        let mut output = channel.to_le_bytes().to_vec();
        output.extend_from_slice(&u64::from(target).to_le_bytes());
        Ok(output)
    }
}

/// True if an address of the runner is in the memory of a process.
fn is_in(dpa: &Dpa, address: u64) -> bool {
    address.wrapping_sub(dpa.place.0) < dpa.place.1
}

fn has_queues(runner: &Runner, session: Session, dpa: &Dpa) -> bool {
    let locked = runner.process.fabric().lock();
    let Function {
        qps,
        cqs,
        srqs,
        mkeys,
        ..
    } = locked.peek(dpa.function);
    let ours = |owner: Owner| (owner.process, owner.context) == (runner.number, session.1);
    qps.iter()
        .any(|(_, owner, qp)| ours(owner) && is_in(dpa, qp.dbrec))
        || cqs
            .iter()
            .any(|(_, owner, cq)| ours(owner) && is_in(dpa, cq.dbrec))
        || srqs
            .iter()
            .any(|(_, owner, srq)| ours(owner) && is_in(dpa, srq.dbrec))
        || mkeys
            .iter()
            .any(|(_, owner, mkey)| ours(owner) && is_in(dpa, mkey.host))
}

/// Ends a process and all its objects. No queue or key names its memory any more.
fn end_process(runner: &'static Runner, session: Session, id: u32, dpa: &Dpa) {
    runner.detach(id);
    let mut locked = runner.process.fabric().lock();
    let function = locked.function(dpa.function);
    // The release of the context may have removed them, and others may have the numbers now.
    let is_ours = |owner: Option<Owner>| {
        owner.is_some_and(|owner| (owner.process, owner.context) == (runner.number, session.1))
    };
    if is_ours(function.umems.owner(dpa.umem)) {
        function.umems.remove(dpa.umem);
    }
    if is_ours(function.channels.owner(dpa.channel)) {
        function.channels.remove(dpa.channel);
    }
    drop(locked);
    dpa.worker.end();
    let mut tables = runner.tables();
    let Tables {
        objects, threads, ..
    } = &mut *tables;
    let is_gone = |other: u32| {
        let object = objects.get(&other);
        other == id || object.is_some_and(|object| object.what.process() == Some(id))
    };
    threads.retain(|_, (_, owner)| !is_gone(*owner));
    objects.retain(|other, object| *other != id && object.what.process() != Some(id));
}

/// Releases all objects of a session.
pub(super) fn release(runner: &'static Runner, session: Session) {
    // No queue or key may name memory that goes away.
    let fabric = runner.process.fabric();
    fabric.lock().release_dpa(runner.number, session.1);
    let tables = runner.tables();
    let ours = tables.objects.iter();
    let processes: Vec<(u32, Arc<Dpa>)> = ours
        .filter_map(|(id, object)| match &object.what {
            What::Process(dpa) if object.session == session => Some((*id, Arc::clone(dpa))),
            _ => None,
        })
        .collect();
    drop(tables);
    for (id, dpa) in processes {
        end_process(runner, session, id, &dpa);
    }
}
