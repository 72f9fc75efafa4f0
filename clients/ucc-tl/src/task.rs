//! A collective as a task of UCC: initialize, post (repeatedly if it is persistent), progress, finalize.

use crate::bindings as b;
use crate::bindings::{ucc_coll_args_t, ucc_coll_type_t, ucc_status_t};
use crate::guard;
use crate::job::{Kept, Progress};
use crate::layout::Layout;
use crate::log;
use crate::object::{Object, allocate, free, own};
use crate::plan::{Caller, Plan, Refused, is_persistent};
use crate::refusals;
use crate::sets::{Set, Within};
use crate::settings::{OnFailure, name_of};
use crate::team::{Joined, TeamState};
use crate::ucc::{Ucc, read, write};
use crate::wait::{Pace, Rest, Usage};
use std::ffi::c_void;
use std::time::{Duration, Instant};
use xgvmi_offload::{Call, CommunicatorId, Numbered, OffloadError, Patience, Request, Verdict};

/// The component's state of a task, which follows UCC's part.
pub(crate) struct TaskState {
    /// UCC's team. It outlives its tasks.
    team: *mut c_void,
    kind: ucc_coll_type_t,
    plan: Plan,
    turn: Turn,
    /// Registrations of a persistent collective.
    kept: Option<Kept>,
    request: Option<Request>,
    patience: Patience,
    pace: Pace,
}

/// Among which calls a call matches.
enum Turn {
    /// Those of all ranks of the team, in the order of their initialisation.
    Numbered(Numbered),
    /// Those of a set of ranks or with a tag, in the order of their posts.
    Next(CommunicatorId),
}

impl Turn {
    fn of(
        Joined { job, communicator }: &Joined,
        set: Option<&Set>,
        is_persistent: bool,
    ) -> Result<Self, OffloadError> {
        match set {
            None => job.number(*communicator, is_persistent).map(Self::Numbered),
            Some(set) => job.communicator_of(set, *communicator).map(Self::Next),
        }
    }
}

/// Initializes a collective: `ucc_base_coll_init_fn_t`.
pub(crate) unsafe extern "C" fn init(
    base_args: *mut c_void,
    team: *mut c_void,
    to: *mut *mut c_void,
) -> ucc_status_t {
    guard("the initialisation of a collective", || {
        let Some((ucc, layout)) = known() else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        // SAFETY: UCC's arguments, valid through the call; every known version has the public arguments at this offset.
        let args: &ucc_coll_args_t = unsafe { &*base_args.cast::<u8>().add(layout.args).cast() };
        // SAFETY: a team that this component has created.
        let state: &TeamState = unsafe { own(team) };
        let Some(joined) = state.joined() else {
            // NOT_SUPPORTED would make UCC use its other components.
            return if state.must_fail() {
                b::UCC_ERR_NO_RESOURCE
            } else {
                b::UCC_ERR_NOT_SUPPORTED
            };
        };
        // SAFETY: UCC has validated the arguments, as far as they are not the user's responsibility.
        let (plan, set) = match unsafe { plan_of(args, state, ucc) } {
            Ok(planned) => planned,
            Err(Refused(reason)) => {
                let text = format!(
                    "{} is left to other components: {reason}",
                    name_of(args.coll_type)
                );
                if state.rank == 0 && refusals::is_new(reason) {
                    log::info!("{text}; later ones for this reason are not listed");
                } else {
                    log::debug!("{text}");
                }
                joined.job.leave();
                return b::UCC_ERR_NOT_SUPPORTED;
            }
        };
        if let Some(reason) = joined.job.failed() {
            if set.is_some() {
                // The members cannot agree to go on without the services: the other ranks of the team do not take part.
                let error = OffloadError::Failed(reason);
                return failed(state, args.coll_type, &error);
            }
            return refuse_after_failure(state, joined, args.coll_type, &reason);
        }
        let is_persistent = is_persistent(args);
        let turn = match Turn::of(joined, set.as_ref(), is_persistent) {
            Ok(turn) => turn,
            Err(error) => return failed(state, args.coll_type, &error),
        };
        let kept = is_persistent
            // SAFETY: the buffers of a persistent collective exist until its finalization.
            .then(|| unsafe { joined.job.keep(&plan) })
            .flatten();
        let task = allocate(TaskState {
            team,
            kind: args.coll_type,
            plan,
            turn,
            kept,
            request: None,
            patience: Patience::new(state.context().limit(), Instant::now()),
            pace: Pace::new(state.context().wait(), Instant::now(), Usage::now),
        });
        // SAFETY: newly allocated memory, and UCC's arguments.
        let status = unsafe { ucc.make_task(task, base_args, team) };
        // SAFETY: fields of a task that UCC has filled in; the following check validates their offsets.
        let (found_team, found_kind) = unsafe {
            let args: *const u8 = task.cast::<u8>().add(layout.task.args);
            (
                read::<*mut c_void>(task, layout.task.team),
                read::<ucc_coll_type_t>(
                    args.cast(),
                    std::mem::offset_of!(ucc_coll_args_t, coll_type),
                ),
            )
        };
        if status != b::UCC_OK || found_team != team || found_kind != args.coll_type {
            log::error!("UCC's tasks are not as expected, status {status}: nothing is offloaded");
            // SAFETY: allocated above, with no other reference.
            unsafe { free::<TaskState>(task) };
            if let Some(kept) = kept {
                joined.job.release(kept);
            }
            return b::UCC_ERR_NOT_SUPPORTED;
        }
        // SAFETY: the check of two fields above has validated the offsets of the functions in a task.
        unsafe {
            write(
                task,
                layout.task.post,
                post as unsafe extern "C" fn(*mut c_void) -> ucc_status_t,
            );
            write(
                task,
                layout.task.progress,
                progress as unsafe extern "C" fn(*mut c_void),
            );
            write(
                task,
                layout.task.finalize,
                finalize as unsafe extern "C" fn(*mut c_void) -> ucc_status_t,
            );
            to.write(task);
        }
        b::UCC_OK
    })
}

/// The rank's part of a collective, and who else takes part if these are not all ranks of the team.
///
/// # Safety
/// As for [`Plan::new`].
unsafe fn plan_of(
    args: &ucc_coll_args_t,
    team: &TeamState,
    ucc: &Ucc,
) -> Result<(Plan, Option<Set>), Refused> {
    let set = Set::of(args, team.size)?;
    let within = match &set {
        Some(set) => set.within(args, team.rank)?,
        None => Within {
            args: *args,
            rank: team.rank as usize,
            size: team.size as usize,
        },
    };
    let caller = Caller {
        rank: within.rank,
        size: within.size,
        datatype_bytes: ucc.datatype_bytes,
    };
    // SAFETY: the caller upholds the contract.
    let plan = unsafe { Plan::new(&within.args, caller) }?;
    Ok((plan, set))
}

/// Starts a collective.
unsafe extern "C" fn post(task: *mut c_void) -> ucc_status_t {
    guard("the post of a collective", || {
        let Some((ucc, layout)) = known() else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        // SAFETY: a task that init() has created; UCC calls a task's functions from one thread at a time.
        let state: &mut TaskState = unsafe { own_mut(task) };
        // SAFETY: the task's team.
        let team: &TeamState = unsafe { own(state.team) };
        let Some(joined) = team.joined() else {
            return b::UCC_ERR_NOT_SUPPORTED;
        };
        let call = match &mut state.turn {
            Turn::Numbered(call) => {
                team.count_call();
                Call::from(call)
            }
            Turn::Next(communicator) => Call::from(*communicator),
        };
        let now = Instant::now();
        state.patience = Patience::new(team.context().limit(), now);
        state.pace = Pace::new(team.context().wait(), now, Usage::now);
        // SAFETY: the user's buffers belong to a collective from its post to its completion. A failing job drops its
        // registrations before the task's status reports the failure.
        let begun = unsafe {
            let job = &joined.job;
            job.begin(call, state.kind, &state.plan, state.kept)
        };
        match begun {
            Ok(request) => state.request = Some(request),
            Err(error) => return failed(team, state.kind, &error),
        }
        // SAFETY: fields of the task.
        unsafe { write(task, layout.task.status, b::UCC_INPROGRESS) };
        // SAFETY: the same.
        unsafe { write(task, layout.task.user_status, b::UCC_INPROGRESS) };
        // SAFETY: the team's creation has checked its context, and the task is in no queue.
        unsafe { ucc.enqueue(&layout, team.context().core(), task) };
        b::UCC_OK
    })
}

/// Makes progress on a collective and updates its status.
unsafe extern "C" fn progress(task: *mut c_void) {
    let Some((_, layout)) = known() else { return };
    let status = guard("the progress of a collective", || {
        // SAFETY: as in post().
        let state: &mut TaskState = unsafe { own_mut(task) };
        // SAFETY: the task's team.
        let team: &TeamState = unsafe { own(state.team) };
        let (Some(joined), Some(request)) = (team.joined(), &mut state.request) else {
            return b::UCC_ERR_NO_MESSAGE;
        };
        match joined.job.test(request) {
            Ok(Progress::Over) => {
                state.request = None;
                b::UCC_OK
            }
            Ok(Progress::Unknown) => b::UCC_INPROGRESS,
            Ok(Progress::Under) => {
                let now = Instant::now();
                match state.patience.look(now) {
                    Verdict::Wait => {
                        let rest = state.pace.look(now, Usage::now);
                        match rest {
                            Rest::None => {}
                            Rest::Yield => std::thread::yield_now(),
                            Rest::Sleep(most) => joined.job.rest(most),
                        }
                        if rest != Rest::None {
                            state.pace.rested(Instant::now(), Usage::now());
                        }
                        b::UCC_INPROGRESS
                    }
                    Verdict::Warn(waited) => {
                        if joined.job.may_warn() {
                            warn(team, state.kind, waited);
                        }
                        b::UCC_INPROGRESS
                    }
                    Verdict::GiveUp(limit) => {
                        let reason = format!(
                            "rank {}: {} is not complete after {} s (UCC_TL_XGVMI_LIMIT)",
                            team.rank,
                            name_of(state.kind),
                            limit.as_secs()
                        );
                        joined.job.abandon(&reason);
                        state.request = None;
                        failed(team, state.kind, &OffloadError::Failed(reason))
                    }
                }
            }
            Err(error) => {
                state.request = None;
                failed(team, state.kind, &error)
            }
        }
    });
    // SAFETY: a field of the task.
    unsafe { write(task, layout.task.status, status) };
}

/// Says that a collective takes long.
fn warn(team: &TeamState, kind: ucc_coll_type_t, waited: Duration) {
    log::warning!(
        "rank {}: {} is not complete after {} s. The service processes are alive and all ranks are connected, so the rank \
         waits on: has another rank of the team not started it? UCC_TL_XGVMI_LIMIT sets a limit",
        team.rank,
        name_of(kind),
        waited.as_secs()
    );
}

/// Frees a collective.
unsafe extern "C" fn finalize(task: *mut c_void) -> ucc_status_t {
    guard("the end of a collective", || {
        // SAFETY: as in post().
        let state: &mut TaskState = unsafe { own_mut(task) };
        // SAFETY: the task's team.
        let team: &TeamState = unsafe { own(state.team) };
        if let Some(joined) = team.joined() {
            if state.request.take().is_some() {
                // The collective has timed out in UCC: the device must not access the buffers any more.
                joined
                    .job
                    .abandon("a collective was given up before its end");
            }
            if let Some(kept) = state.kept.take() {
                joined.job.release(kept);
            }
        }
        if let Some(ucc) = Ucc::get() {
            // SAFETY: constructed in init(), destroyed once.
            unsafe { (ucc.task_destruct)(task) };
        }
        // SAFETY: allocated in init(); UCC does not use it after this call.
        unsafe { free::<TaskState>(task) };
        b::UCC_OK
    })
}

/// Handles the failure of a collective in a working job.
fn failed(team: &TeamState, kind: ucc_coll_type_t, error: &OffloadError) -> ucc_status_t {
    if matches!(error, OffloadError::Arguments(_)) {
        log::error!("{}: {error}", name_of(kind));
        return b::UCC_ERR_INVALID_PARAM;
    }
    log::error!("rank {}: {} has failed: {error}", team.rank, name_of(kind));
    if team.context().on_failure() == OnFailure::Abort {
        log::error!("the process ends (UCC_TL_XGVMI_ON_FAILURE=abort)");
        std::process::abort();
    }
    b::UCC_ERR_NO_MESSAGE
}

/// Handles a collective of a job that has failed earlier.
fn refuse_after_failure(
    team: &TeamState,
    joined: &Joined,
    kind: ucc_coll_type_t,
    reason: &str,
) -> ucc_status_t {
    if joined.job.is_forked() {
        // The other ranks do not wait for a child process.
        log::error!("rank {}: {} has failed: {reason}", team.rank, name_of(kind));
        return b::UCC_ERR_NO_RESOURCE;
    }
    let error = || OffloadError::Failed(reason.to_owned());
    match team.context().on_failure() {
        OnFailure::Abort | OnFailure::Error => {
            team.count_call();
            failed(team, kind, &error())
        }
        OnFailure::Host => match team.is_for_host() {
            Ok(true) => b::UCC_ERR_NOT_SUPPORTED,
            Ok(false) => failed(team, kind, &error()),
            Err(why) => {
                log::error!(
                    "rank {}: the ranks cannot agree to go on without the services: {why}",
                    team.rank
                );
                b::UCC_ERR_NO_MESSAGE
            }
        },
    }
}

/// UCC and its layout, if both have passed the checks.
fn known() -> Option<(&'static Ucc, Layout)> {
    let ucc = Ucc::get()?;
    Some((ucc, ucc.layout?))
}

/// # Safety
/// `task` is a task of this component. Only this thread uses it.
unsafe fn own_mut<'a>(task: *mut c_void) -> &'a mut TaskState {
    // SAFETY: the caller upholds the contract.
    unsafe { &mut (*task.cast::<Object<TaskState>>()).own }
}
