//! Ranks and SPs that were admitted to a job and then break the protocol. Each of them ends its own job with a reason, and
//! the job beside it goes on.

mod harness;
mod kept;
mod members;
mod messages;
mod mutated;

use super::*;
use harness::{Beside, Member, Served, Way, allreduce, arrival, check, reason};
use members::{IMPOSTORS, WRONG_FRAMES, WRONG_TABLES, pointed};
use messages::{HOARDS, WRONG_MESSAGES, WRONG_OFFERS};

fn served() -> Served {
    Served::start(|options| {
        options.call_bytes_max = 16 << 20;
        // The services that a test plays are silent.
        options.silence_limit = LIMIT;
        options.log = xgvmi_daemon::LogLevel::Info;
    })
}

#[test]
fn frames_that_a_member_does_not_send_end_its_job_alone() {
    check(&served(), WRONG_FRAMES);
}

#[test]
fn a_table_that_lies_ends_its_job_alone() {
    check(&served(), WRONG_TABLES);
}

#[test]
fn a_silent_third_party_ends_its_job_alone() {
    let served = Served::start(|options| options.setup_limit = Duration::from_secs(4));
    let silent: Way = (
        "third_party_that_is_silent",
        |s, job| pointed(s, job, b""),
        "not all are connected: ranks without a connection: [], services: [0]",
    );
    check(&served, &[silent]);
}

/// The port of a service that calls is the system's choice, and changes with each call.
#[test]
fn a_service_that_is_lost_is_named_by_its_address_in_the_table() {
    let served = served();
    let (mut member, impostor) = served
        .ready_beside_impostor(JobId(1), 2)
        .expect("connected");
    drop(impostor);
    let reason = reason(&mut member.rank.link);
    assert!(
        reason.starts_with("service 1 (127.0.0.1:9) has closed its connection"),
        "{reason}"
    );
}

#[test]
fn services_that_are_none_are_refused() {
    check(&served(), IMPOSTORS);
}

#[test]
fn messages_that_a_rank_does_not_send_end_its_job_alone() {
    check(&served(), WRONG_MESSAGES);
}

#[test]
fn offers_that_a_service_does_not_make_end_their_job_alone() {
    check(&served(), WRONG_OFFERS);
}

/// Jobs keep memory of their last allreduces for the next ones: more than the limit, all together.
#[test]
fn memory_that_idle_jobs_keep_ends_no_job() {
    let served = Served::start(|options| options.call_bytes_max = 4 << 20);
    let mut jobs: Vec<Vec<Member>> = (10..30)
        .map(|job| {
            let members = served.ready(JobId(job), 2).expect("ready");
            allreduce(&served, &members, 0);
            members
        })
        .collect();
    for members in &jobs {
        allreduce(&served, members, 1);
    }
    for member in jobs.iter_mut().flatten() {
        member.tell(&Frame::Bye).expect("the job goes on");
    }
}

/// A process that ends its teams and creates others has one job after the other.
#[test]
fn jobs_that_follow_each_other_leave_nothing() {
    const JOBS: u64 = 6;
    let mut served = Served::start(|options| options.jobs = Some(JOBS));
    for job in 0..u128::from(JOBS) {
        let mut members = served.ready(JobId(20 + job), 2).expect("ready");
        allreduce(&served, &members, 0);
        for member in &mut members {
            member.tell(&Frame::Bye).expect("told");
        }
    }
    let kept = served.join();
    assert_eq!((kept.jobs, kept.buffered), (0, 0), "{kept:?}");
    // The last job's connections may be closing.
    assert!(kept.connections <= 2, "{kept:?}");
}

#[test]
fn a_job_that_hoards_memory_ends_alone() {
    check(&served(), HOARDS);
}

#[test]
fn no_message_of_one_job_reaches_another() {
    let served = served();
    let mut beside = Beside::start(&served);
    let others = served.ready(JobId(2), 2).expect("ready");
    let (ours, theirs) = (&beside.members[0], &others[0]);
    // The worker of a job accepts the tokens of its own peers alone.
    for token in [theirs.welcome.token, theirs.rank.token, Token([0; 16])] {
        let service = find(served.mailboxes, &ours.welcome.service.worker).expect("there");
        let data = arrival(0, 2).to_bytes();
        service.put(Kind::HostArrive, token.0.to_vec(), data);
    }
    beside.round(&served);
    assert_ne!(ours_worker(&beside), theirs.welcome.service.worker);
}

fn ours_worker(beside: &Beside) -> Vec<u8> {
    beside.members[0].welcome.service.worker.clone()
}

#[test]
fn an_idle_rank_gets_one_beat_however_long_it_reads_nothing() {
    const BEATS: u32 = 4;
    let served = Served::start(|options| options.silence_limit = Duration::from_millis(20));
    let mut members = served.ready(JobId(4), 2).expect("ready");
    let (idle, busy) = members.split_at_mut(1);
    let (idle, busy) = (&mut idle[0], &mut busy[0]);
    for _ in 0..2 {
        // The service has beaten this often, as the other rank knows.
        for _ in 0..BEATS {
            assert_eq!(busy.wait(LIMIT), Some(Frame::Beat));
            busy.tell(&Frame::Beat).expect("told");
        }
        assert_eq!(idle.wait(LIMIT), Some(Frame::Beat));
        assert_eq!(
            idle.wait(Duration::ZERO),
            None,
            "a beat without an answer to the last one"
        );
        idle.tell(&Frame::Beat).expect("told");
    }
    for member in [idle, busy] {
        member.tell(&Frame::Bye).expect("told");
    }
}

/// SIGTERM while UCX is opened for a job: its ranks are admitted, and those of a new job are not.
#[test]
fn a_job_that_begins_survives_a_drain() {
    let mut served = served();
    let mut first = served.admitted(JobId(3), 0, 2).expect("admitted");
    served.signal(libc::SIGTERM);
    // The signal has been handled when a new job is refused.
    let end = Instant::now() + LIMIT;
    for job in 100.. {
        assert!(Instant::now() < end, "SIGTERM has no effect");
        if let Err(error) = served.admitted(JobId(job), 0, 2) {
            let error = error.to_string();
            assert!(error.contains("ends when its jobs are done"), "{error}");
            break;
        }
    }
    let mut second = served
        .admitted(JobId(3), 1, 2)
        .expect("of a job that has begun");
    for member in [&mut first, &mut second] {
        member.tell(&Frame::Bye).expect("told");
    }
    served.join();
}
