//! A team of two whose other rank is this test: it comes late to the introductions.

use super::*;
use crate::bindings::{UCC_INPROGRESS, UCC_OK, ucc_oob_coll_t};
use crate::settings::Settings;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::{null_mut, slice_from_raw_parts};

/// The out-of-band allgathers of the team.
#[derive(Default)]
struct Partner {
    /// Blocks of the rank under test.
    sent: Vec<Vec<u8>>,
    /// Blocks of the other rank, which complete the allgathers in their order.
    replies: VecDeque<Vec<u8>>,
    /// Place of the other rank's block in the allgather under way.
    place: Option<(*mut u8, usize)>,
}

unsafe extern "C" fn allgather(
    send: *mut c_void,
    receive: *mut c_void,
    length: usize,
    partner: *mut c_void,
    request: *mut *mut c_void,
) -> ucc_status_t {
    // SAFETY: the test's partner, which no one else uses now.
    let at = unsafe { &mut *partner.cast::<Partner>() };
    // SAFETY: the caller's block.
    let mine = unsafe { &*slice_from_raw_parts(send.cast::<u8>(), length) };
    at.sent.push(mine.to_vec());
    let receive: *mut u8 = receive.cast();
    // SAFETY: the caller's buffer has room for the blocks of two ranks.
    unsafe { receive.copy_from_nonoverlapping(mine.as_ptr(), length) };
    at.place = Some((receive.wrapping_add(length), length));
    // SAFETY: the caller's place for the request.
    unsafe { request.write(partner) };
    UCC_OK
}

unsafe extern "C" fn test(request: *mut c_void) -> ucc_status_t {
    // SAFETY: the test's partner, as above.
    let at = unsafe { &mut *request.cast::<Partner>() };
    let Some(mut reply) = at.replies.pop_front() else {
        return UCC_INPROGRESS;
    };
    let (place, length) = at.place.take().expect("an allgather is under way");
    reply.resize(length, 0);
    // SAFETY: the room of the other rank's block.
    unsafe { place.copy_from_nonoverlapping(reply.as_ptr(), length) };
    UCC_OK
}

unsafe extern "C" fn free(_: *mut c_void) -> ucc_status_t {
    UCC_OK
}

/// A team with a partner that says nothing yet, in a process with these jobs; its connect limit is over at once.
fn team(partner: *mut Partner, jobs: &[Arc<Job>]) -> TeamState {
    let mut settings = Settings::of_services("127.0.0.1:1");
    settings.client.connect_limit = Duration::ZERO;
    let context = Arc::new(ContextState::with_settings(settings));
    for job in jobs {
        context.add_job(job);
    }
    let functions = ucc_oob_coll_t {
        allgather: Some(allgather),
        req_test: Some(test),
        req_free: Some(free),
        coll_info: partner.cast(),
        n_oob_eps: 2,
        oob_ep: 0,
    };
    let oob = Oob::new(functions, 0, 2).expect("functions of two ranks");
    TeamState::new(context, [0, 2], Some(oob), None)
}

fn partner() -> *mut Partner {
    Box::into_raw(Box::default())
}

/// # Safety
/// From [`partner`]; the team does not use it now.
unsafe fn with<R>(partner: *mut Partner, of: impl FnOnce(&mut Partner) -> R) -> R {
    assert_ne!(partner, null_mut());
    // SAFETY: the caller upholds the contract.
    of(unsafe { &mut *partner })
}

#[test]
fn a_rank_that_comes_late_to_a_team_of_a_job_is_waited_for() {
    let partner = partner();
    let job = Job::unconnected(5, [0, 2], None);
    let team = team(partner, &[Arc::clone(&job)]);
    let end = Instant::now() + Duration::from_millis(2);
    while Instant::now() < end {
        assert!(!team.step(), "the team was given up");
    }
    // The other rank comes. It belongs to the same job.
    // SAFETY: the team is not stepping.
    let theirs = unsafe { with(partner, |partner| partner.sent.clone()) };
    assert_eq!(theirs.len(), 1, "the lengths of the introductions");
    let mine: u64 = u64::from_le_bytes(theirs[0][..].try_into().expect("8 bytes"));
    // SAFETY: the same.
    unsafe {
        with(partner, |partner| {
            partner.replies.push_back(mine.to_le_bytes().to_vec())
        })
    };
    assert!(!team.step());
    // SAFETY: the same.
    let introduction = unsafe { with(partner, |partner| partner.sent[1].clone()) };
    let mut introduction: Introduction = serde_json::from_slice(&introduction).expect("plain");
    introduction.jobs[0].rank = 1;
    let introduction = serde_json::to_vec(&introduction).expect("plain");
    // SAFETY: the same.
    unsafe { with(partner, |partner| partner.replies.push_back(introduction)) };
    // SAFETY: the same.
    while unsafe { with(partner, |partner| partner.sent.len()) } < 3 {
        assert!(!team.step(), "the ranks agree before they use the job");
    }
    // This job has no connection, so this rank cannot join, and the other one learns of it.
    assert!(!team.step());
    // SAFETY: the same.
    let vote = unsafe { with(partner, |partner| partner.sent[2].clone()) };
    assert_eq!(vote, [0]);
    // SAFETY: the same.
    unsafe { with(partner, |partner| partner.replies.push_back(vec![1])) };
    assert!(team.step());
    assert!(team.joined().is_none());
}

#[test]
fn a_first_team_is_given_up_if_a_rank_does_not_introduce_itself() {
    // The component may be missing there.
    let team = team(partner(), &[]);
    while !team.step() {
        std::thread::yield_now();
    }
    assert!(team.joined().is_none());
}
