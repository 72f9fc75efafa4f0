//! Teams that join a job without a message between their ranks, and the end of the job.

use super::*;
use crate::settings::Settings;

/// The contexts of two processes that have one job of themselves and others, and the teams that keep it.
fn processes() -> [(Arc<ContextState>, TeamState); 2] {
    [0, 1].map(|rank| {
        let settings = Settings::of_services("127.0.0.1:1");
        let context = Arc::new(ContextState::with_settings(settings));
        let job = Job::unconnected(5, [rank, 3], Some(&[10, 11, 12]));
        context.add_job(&job);
        let joined = Joined {
            job,
            communicator: 0,
        };
        let first = TeamState::within(Arc::clone(&context), [rank, 3], None, joined);
        (context, first)
    })
}

fn identity(id: u16, places: &[u32]) -> Identity {
    Identity {
        id,
        places: places.to_vec(),
    }
}

/// A team of the two processes, as UCC's creation of one makes it.
fn create(context: &Arc<ContextState>, id: u16) -> Option<TeamState> {
    let identity = identity(id, &[11, 10]);
    let (job, members) = context.job_of(&identity)?;
    let rank = u32::from(job.rank == 0);
    let communicator = job.join(&identity, &members);
    let joined = Joined { job, communicator };
    Some(TeamState::within(
        Arc::clone(context),
        [rank, 2],
        None,
        joined,
    ))
}

fn number(team: &TeamState) -> u64 {
    team.joined().expect("joined").communicator
}

#[test]
fn ranks_agree_on_numbers_in_any_order_of_creations() {
    let [(context, _first), (other, _other_first)] = processes();
    // Two threads of each process create a team each, and overtake each other.
    let mine = [3, 4].map(|id| create(&context, id).expect("of the job"));
    let theirs = [4, 3].map(|id| create(&other, id).expect("of the job"));
    assert!(mine.iter().chain(&theirs).all(TeamState::step));
    assert_eq!(number(&mine[0]), number(&theirs[1]));
    assert_eq!(number(&mine[1]), number(&theirs[0]));
    assert_ne!(number(&mine[0]), number(&mine[1]));
    // A later team has the number of an earlier one in UCC.
    let [earlier, _] = mine.map(|team| number(&team));
    drop(theirs);
    let again = [&context, &other].map(|at| number(&create(at, 3).expect("of the job")));
    assert_eq!(again[0], again[1]);
    assert_ne!(again[0], earlier);
}

#[test]
fn a_rank_outside_the_job_is_no_member() {
    let [(context, _first), _] = processes();
    for places in [&[10, 13][..], &[11, 12]] {
        // The second one leaves out the process itself.
        assert!(context.job_of(&identity(3, places)).is_none(), "{places:?}");
    }
    assert!(context.job_of(&identity(3, &[12, 10])).is_some());
}

#[test]
fn a_job_takes_no_team_after_its_first_one_and_ends_with_its_last_one() {
    let [(context, first), _] = processes();
    let second = create(&context, 3).expect("of the job");
    drop(first);
    assert!(create(&context, 4).is_none(), "ranks outside may have left");
    assert_eq!(context.jobs().len(), 1, "a team uses it");
    drop(second);
    assert!(context.jobs().is_empty(), "the job has ended");
}
