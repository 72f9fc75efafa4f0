//! Assigns a team to a service job. A team whose ranks' places in UCC's context are known joins a job of all of them at
//! once. Otherwise its ranks introduce themselves, join a job that all of them have or connect to a new one, and then agree
//! on whether the team is served. UCC polls repeatedly; no function here blocks.

mod connecting;

use crate::bindings::ucc_status_t;
use crate::context::ContextState;
use crate::job::Job;
use crate::log;
use crate::oob::{Gather, Oob, Vote};
use crate::places::Identity;
use crate::refusals;
use crate::settings::Fallback;
use connecting::Connecting;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Version of the messages between the ranks.
const VERSION: u32 = 4;

/// Maximum number of service jobs per process. If a program's teams need more, only the first ones are served.
const JOBS_MAX: usize = 4;

/// Time limit for the ranks' agreement after a failure, if a collective has none: a rank that makes no further collective
/// does not come.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(60);

/// A team of the component.
pub(crate) struct TeamState {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    context: Arc<ContextState>,
    oob: Option<Oob>,
    identity: Option<Identity>,
    stage: Mutex<Stage>,
    joined: OnceLock<Joined>,
    /// The strictest fallback of all ranks, after their introductions.
    fallback: OnceLock<Fallback>,
    /// The team could not be offloaded, and its collectives have to fail.
    must_fail: AtomicBool,
    pub(crate) after_failure: Mutex<AfterFailure>,
}

/// A team's service job and communicator.
pub(crate) struct Joined {
    pub(crate) job: Arc<Job>,
    pub(crate) communicator: u64,
}

/// Counts of calls that the ranks compare after the job has failed.
#[derive(Default)]
pub(crate) struct AfterFailure {
    /// Calls that this rank has started, or that have failed before.
    pub(crate) begun: u64,
    /// Maximum over all ranks, after the exchange.
    agreed: Option<u64>,
    /// The exchange that the last call has begun and that was not complete within the limit.
    pending: Option<Gather>,
}

enum Stage {
    /// Without a time limit once this process has a job: its ranks have the component, and one of them may come late.
    Introducing {
        gather: Gather,
        until: Option<Instant>,
        /// Time of a warning about a rank that is late.
        warn_at: Option<Instant>,
    },
    /// A rank that cannot join the job keeps all others from it.
    Joining {
        vote: Vote,
        mine: Result<Joined, String>,
    },
    Connecting(Box<Connecting>),
    /// Complete. `joined` tells whether the team is served.
    Over,
}

/// First message of each rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Introduction {
    version: u32,
    /// Why this rank cannot participate.
    fault: Option<String>,
    fallback: Fallback,
    agreement: String,
    /// Identifier for a new job. All ranks use rank 0's.
    id: u128,
    /// The open jobs of the rank.
    jobs: Vec<Membership>,
    /// Number of its connections. A job without its first team is not open and has one.
    connections: usize,
}

/// A job that a rank belongs to.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Membership {
    id: u128,
    rank: u32,
    size: u32,
    led: u32,
}

/// Decision from the introductions. All ranks derive the same one.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Join {
        id: u128,
        communicator: u64,
        members: Vec<u32>,
    },
    Connect {
        id: u128,
    },
    Refuse(String),
}

impl TeamState {
    /// Starts with the introductions if the team meets the requirements.
    pub(crate) fn new(
        context: Arc<ContextState>,
        [rank, size]: [u32; 2],
        oob: Option<Oob>,
        identity: Option<Identity>,
    ) -> Self {
        let stage = match oob {
            Some(oob) if size > 1 => introduce(&context, rank, oob),
            _ => Stage::Over,
        };
        let mut team = Self::empty(context, [rank, size], oob);
        team.identity = identity;
        team.stage = Mutex::new(stage);
        team
    }

    /// A team that has joined a job without a message.
    pub(crate) fn within(
        context: Arc<ContextState>,
        [rank, size]: [u32; 2],
        oob: Option<Oob>,
        Joined { job, communicator }: Joined,
    ) -> Self {
        let team = Self::empty(context, [rank, size], oob);
        team.join(job, communicator);
        team
    }

    fn empty(context: Arc<ContextState>, [rank, size]: [u32; 2], oob: Option<Oob>) -> Self {
        Self {
            rank,
            size,
            context,
            oob,
            identity: None,
            stage: Mutex::new(Stage::Over),
            joined: OnceLock::new(),
            fallback: OnceLock::new(),
            must_fail: AtomicBool::new(false),
            after_failure: Mutex::default(),
        }
    }

    /// The team's job and communicator, if the team is served.
    pub(crate) fn joined(&self) -> Option<&Joined> {
        self.joined.get()
    }

    pub(crate) fn context(&self) -> &ContextState {
        &self.context
    }

    /// Executes the next step; returns true when none is left.
    pub(crate) fn step(&self) -> bool {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match self.advance(&mut stage) {
            Ok(over) => over,
            Err(reason) => {
                if matches!(*stage, Stage::Connecting(_)) {
                    refusals::remember(self.context.settings(), &reason);
                }
                self.refuse(&reason);
                *stage = Stage::Over;
                true
            }
        }
    }

    /// Reports why the team is not offloaded. Every rank has the same reason, or has reported it to the others.
    fn refuse(&self, reason: &str) {
        let text = format!("a team of {} ranks is not offloaded: {reason}", self.size);
        let fallback = self.fallback.get().copied();
        let is_to_log = self.rank == 0 && refusals::is_new(reason);
        match fallback.unwrap_or_else(|| self.context.fallback()) {
            Fallback::Host if is_to_log => log::warning!("{text}"),
            Fallback::Host => log::info!("{text}"),
            Fallback::Error => {
                if is_to_log {
                    log::error!("{text}; its collectives fail (UCC_TL_XGVMI_FALLBACK=error)");
                }
                self.must_fail.store(true, Ordering::Release);
            }
            Fallback::Abort => {
                // The first process that ends makes the launcher end the others, so each says why.
                log::error!("{text}; the process ends (UCC_TL_XGVMI_FALLBACK=abort)");
                std::process::abort();
            }
        }
    }

    /// Whether the team's collectives have to fail.
    pub(crate) fn must_fail(&self) -> bool {
        self.must_fail.load(Ordering::Acquire)
    }

    fn advance(&self, stage: &mut MutexGuard<'_, Stage>) -> Result<bool, String> {
        match &mut **stage {
            Stage::Over => Ok(true),
            Stage::Introducing {
                gather,
                until,
                warn_at,
            } => {
                let Some(all) = within(gather, *until)? else {
                    if warn_at.take_if(|at| Instant::now() > *at).is_some() {
                        log::warning!(
                            "rank {} of a team of {} waits for a rank that has not begun to create the team: does each \
                             process create one team at a time?",
                            self.rank,
                            self.size
                        );
                    }
                    return Ok(false);
                };
                if let Some(fallback) = strictest(&all) {
                    // A team reaches this line once.
                    let _ = self.fallback.set(fallback);
                }
                match decide(&all, self.size) {
                    Decision::Refuse(reason) => Err(reason),
                    Decision::Join {
                        id,
                        communicator,
                        members,
                    } => {
                        let oob = self.oob.ok_or("the team has no out-of-band functions")?;
                        let mine = self.prepare_to_join(id, communicator, &members);
                        let vote = Vote::start(oob, mine.is_ok()).map_err(text_of)?;
                        **stage = Stage::Joining { vote, mine };
                        Ok(false)
                    }
                    Decision::Connect { id } => {
                        let settings = self.context.settings()?;
                        **stage = Stage::Connecting(Box::new(Connecting::start(
                            id,
                            settings.client.clone(),
                            self.rank,
                            self.size,
                        )));
                        Ok(false)
                    }
                }
            }
            Stage::Joining { vote, mine } => {
                let votes = vote.poll();
                let Some(votes) =
                    votes.map_err(|s| format!("UCC's out-of-band allgather: {}", text_of(s)))?
                else {
                    return Ok(false);
                };
                let mine = std::mem::replace(mine, Err("the team has joined".to_owned()));
                **stage = Stage::Over;
                let Joined { job, communicator } = mine?;
                if let Err(reason) = unanimous(&votes) {
                    job.remove_communicator(communicator);
                    return Err(reason);
                }
                self.join(job, communicator);
                Ok(true)
            }
            Stage::Connecting(connecting) => {
                let oob = self.oob.ok_or("the team has no out-of-band functions")?;
                let limit = self.context.settings()?.connect_limit();
                let Some(client) = connecting.poll(oob, limit)? else {
                    // The connecting thread may need the core.
                    std::thread::yield_now();
                    return Ok(false);
                };
                let places = self.identity.as_ref().map(|team| &team.places[..]);
                let job = Job::new(
                    connecting.id,
                    [self.rank, self.size],
                    client,
                    places,
                    self.context.wait(),
                );
                self.context.add_job(&job);
                self.join(job, 0);
                **stage = Stage::Over;
                Ok(true)
            }
        }
    }

    /// Registers the team's communicator with the job.
    fn prepare_to_join(
        &self,
        id: u128,
        communicator: u64,
        members: &[u32],
    ) -> Result<Joined, String> {
        let job = self
            .context
            .job(id)
            .ok_or("a job of this process is gone")?;
        job.add_communicator(communicator, members)?;
        Ok(Joined { job, communicator })
    }

    fn join(&self, job: Arc<Job>, communicator: u64) {
        log::debug!(
            "rank {} of {} is rank {} of a job of {}, communicator {communicator}",
            self.rank,
            self.size,
            job.rank,
            job.size
        );
        if self.rank == 0 && communicator == 0 {
            log::info!(
                "a job of {} ranks is connected to its service processes",
                self.size
            );
        }
        // A team reaches this line once.
        let _ = self.joined.set(Joined { job, communicator });
    }

    /// Counts a started call.
    pub(crate) fn count_call(&self) {
        self.after_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .begun += 1;
    }

    /// After the job's failure: returns true if UCC's other components must execute this call at all ranks. Returns
    /// false if the call has failed at another rank and must therefore fail here.
    ///
    /// Ranks detect a failure between different calls. They exchange the numbers of calls that they have started and
    /// wait for the last rank.
    ///
    /// # Errors
    /// The count of a rank has not arrived within the limit. The next call goes on with the same exchange.
    pub(crate) fn is_for_host(&self) -> Result<bool, String> {
        let mut after = self
            .after_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let agreed = match after.agreed {
            Some(agreed) => agreed,
            None => {
                let oob = self.oob.ok_or("the team has no out-of-band functions")?;
                let mut gather = match after.pending.take() {
                    Some(gather) => gather,
                    None => {
                        Gather::start(oob, after.begun.to_le_bytes().to_vec()).map_err(text_of)?
                    }
                };
                let limit = self.context.limit().unwrap_or(AGREEMENT_LIMIT);
                let until = Instant::now() + limit;
                let all = loop {
                    match within(&mut gather, Some(until)) {
                        Ok(Some(all)) => break all,
                        Ok(None) => std::thread::yield_now(),
                        Err(_) => {
                            // Ranks that had begun this call before they knew of the failure answer at their next one. A
                            // second exchange would not match theirs, and this call has failed here as it has there.
                            after.begun += 1;
                            after.pending = Some(gather);
                            return Err(format!("not all have come within {} s", limit.as_secs()));
                        }
                    }
                };
                let counts = all
                    .into_iter()
                    .map(|bytes| bytes.try_into().map(u64::from_le_bytes));
                let counts = counts.collect::<Result<Vec<u64>, _>>();
                let counts = counts.map_err(|_| "a rank counts its calls in another way")?;
                *after.agreed.insert(counts.into_iter().max().unwrap_or(0))
            }
        };
        if after.begun < agreed {
            after.begun += 1;
            return Ok(false);
        }
        Ok(true)
    }
}

impl Drop for TeamState {
    fn drop(&mut self) {
        if let Some(Joined { job, communicator }) = self.joined.take() {
            job.remove_communicator(communicator);
        }
    }
}

fn introduce(context: &ContextState, rank: u32, oob: Oob) -> Stage {
    let (fault, agreement, limit) = match context.settings() {
        Ok(settings) => (
            refusals::earlier(settings),
            settings.agreement(),
            settings.connect_limit(),
        ),
        Err(fault) => (Some(fault), String::new(), FAULTY_LIMIT),
    };
    let jobs: Vec<Membership> = context
        .jobs()
        .iter()
        .filter(|job| job.is_open() && job.failed().is_none())
        .map(|job| Membership {
            id: job.id,
            rank: job.rank,
            size: job.size,
            // The first member numbers the communicator.
            led: if rank == 0 { job.leader.reserve() } else { 0 },
        })
        .collect();
    let until = jobs.is_empty().then(|| Instant::now() + limit);
    let introduction = Introduction {
        version: VERSION,
        fault,
        fallback: context.fallback(),
        agreement,
        id: random(),
        jobs,
        connections: context.jobs().len(),
    };
    // Plain data without maps: the serialization cannot fail.
    let bytes = serde_json::to_vec(&introduction).unwrap_or_default();
    match Gather::start(oob, bytes) {
        Ok(gather) => Stage::Introducing {
            gather,
            until,
            warn_at: Some(Instant::now() + LATE_AFTER.max(limit)),
        },
        Err(status) => {
            log::warning!("UCC's out-of-band allgather: {}", text_of(status));
            Stage::Over
        }
    }
}

/// Minimum time until a warning about a rank that is late at the creation of a team.
const LATE_AFTER: Duration = Duration::from_secs(60);

/// Time limit for the introductions of a rank with invalid options.
const FAULTY_LIMIT: Duration = Duration::from_secs(30);

/// The blocks of all ranks, `None` while one is missing, or an error after the deadline.
fn within(gather: &mut Gather, until: Option<Instant>) -> Result<Option<Vec<Vec<u8>>>, String> {
    match gather.poll() {
        Err(status) => Err(format!("UCC's out-of-band allgather: {}", text_of(status))),
        Ok(None) if until.is_some_and(|until| Instant::now() > until) => Err(
            "some ranks have not introduced themselves in time: is UCC_TL_XGVMI_SERVICES or UCC_TL_XGVMI_CONFIG set for \
             all of them, and the component installed on all nodes?"
                .to_owned(),
        ),
        Ok(all) => Ok(all),
    }
}

/// Whether all ranks can join the job.
fn unanimous(votes: &[u8]) -> Result<(), String> {
    match votes.iter().position(|vote| *vote == 0) {
        None => Ok(()),
        Some(rank) => Err(format!(
            "rank {rank} cannot join the service job of the others"
        )),
    }
}

fn text_of(status: ucc_status_t) -> String {
    format!("status {status}")
}

/// The strictest fallback in the introductions, so that all ranks do the same; `None` if one has another version.
fn strictest(all: &[Vec<u8>]) -> Option<Fallback> {
    let of = |bytes: &Vec<u8>| serde_json::from_slice::<Introduction>(bytes).ok();
    let fallbacks: Option<Vec<Fallback>> =
        all.iter().map(|bytes| Some(of(bytes)?.fallback)).collect();
    fallbacks?.into_iter().max()
}

fn decide(all: &[Vec<u8>], size: u32) -> Decision {
    let parsed: Result<Vec<Introduction>, _> = all
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect();
    let Ok(ranks) = parsed else {
        return Decision::Refuse("a rank has another version of the component".to_owned());
    };
    let Some(first) = ranks.first().filter(|_| ranks.len() == size as usize) else {
        return Decision::Refuse(
            "the out-of-band allgather has another number of ranks".to_owned(),
        );
    };
    for (rank, other) in ranks.iter().enumerate() {
        if other.version != first.version {
            return Decision::Refuse(format!("rank {rank} has another version of the component"));
        }
        if let Some(fault) = &other.fault {
            return Decision::Refuse(format!("rank {rank}: {fault}"));
        }
        if other.agreement != first.agreement {
            return Decision::Refuse(format!(
                "rank {rank} has other options: {} and not {}",
                other.agreement, first.agreement
            ));
        }
    }
    for Membership {
        id,
        size,
        led,
        rank,
    } in &first.jobs
    {
        let members: Option<Vec<u32>> = ranks
            .iter()
            .map(|other| {
                other
                    .jobs
                    .iter()
                    .find(|job| job.id == *id)
                    .map(|job| job.rank)
            })
            .collect();
        let Some(members) = members else { continue };
        // The number is unique over all ranks because it contains the first member's rank in the job.
        let number =
            (*led < u32::MAX).then(|| u64::from(*led) * u64::from(*size) + u64::from(*rank) + 1);
        return match number {
            Some(communicator) => Decision::Join {
                id: *id,
                communicator,
                members,
            },
            None => Decision::Refuse("rank 0 has numbered too many teams".to_owned()),
        };
    }
    if ranks.iter().any(|rank| rank.connections >= JOBS_MAX) {
        return Decision::Refuse(format!("a rank has {JOBS_MAX} service jobs already"));
    }
    Decision::Connect { id: first.id }
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is writable for the given length. If the call fails, the number is 0 on every such rank; the
    // number only distinguishes the jobs of one process.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod late;
#[cfg(test)]
mod silent;

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(jobs: &[(u128, u32, u32)]) -> Introduction {
        Introduction {
            version: VERSION,
            fault: None,
            fallback: Fallback::Host,
            agreement: "A".to_owned(),
            id: 9,
            jobs: jobs
                .iter()
                .map(|(id, rank, led)| Membership {
                    id: *id,
                    rank: *rank,
                    size: 8,
                    led: *led,
                })
                .collect(),
            connections: jobs.len(),
        }
    }

    fn decision(ranks: &[Introduction]) -> Decision {
        let bytes: Vec<Vec<u8>> = ranks
            .iter()
            .map(|rank| serde_json::to_vec(rank).expect("plain"))
            .collect();
        decide(&bytes, u32::try_from(ranks.len()).expect("few"))
    }

    #[test]
    fn the_first_team_connects() {
        assert_eq!(
            decision(&[rank(&[]), rank(&[])]),
            Decision::Connect { id: 9 }
        );
        // One of the ranks has a job with others.
        assert_eq!(
            decision(&[rank(&[(u128::MAX, 0, 0)]), rank(&[])]),
            Decision::Connect { id: 9 }
        );
    }

    #[test]
    fn a_team_within_a_job_joins_it() {
        let first = rank(&[(5, 1, 0), (u128::MAX, 3, 2)]);
        let second = rank(&[(u128::MAX, 7, 0)]);
        let expect = Decision::Join {
            id: u128::MAX,
            communicator: 2 * 8 + 3 + 1,
            members: vec![3, 7],
        };
        assert_eq!(decision(&[first, second]), expect);
    }

    #[test]
    fn no_two_teams_get_one_number() {
        let mut seen = std::collections::BTreeSet::from([0]);
        for led in 0..4 {
            for member in 0..8 {
                let ranks = [rank(&[(5, member, led)]), rank(&[(5, (member + 1) % 8, 0)])];
                let Decision::Join { communicator, .. } = decision(&ranks) else {
                    panic!("joins");
                };
                assert!(seen.insert(communicator), "{communicator}");
            }
        }
    }

    #[test]
    fn two_teams_that_are_created_at_once_get_two_numbers() {
        // Rank 2 of the job is the first member of both teams, and introduces itself twice before either is decided.
        let leader = crate::job::Leader::default();
        let teams = [leader.reserve(), leader.reserve()]
            .map(|led| decision(&[rank(&[(5, 2, led)]), rank(&[(5, 3, 0)])]));
        let [
            Decision::Join {
                communicator: a, ..
            },
            Decision::Join {
                communicator: b, ..
            },
        ] = teams
        else {
            panic!("{teams:?}");
        };
        assert_ne!(a, b);
    }

    #[test]
    fn one_rank_that_cannot_join_keeps_all_out() {
        assert_eq!(unanimous(&[1, 1]), Ok(()));
        let error = unanimous(&[1, 0, 1, 0]).unwrap_err();
        assert!(error.contains("rank 1 cannot join"), "{error}");
    }

    #[test]
    fn the_strictest_fallback_of_all_ranks_counts() {
        let of = |fallbacks: &[Fallback]| {
            let bytes = fallbacks.iter().map(|fallback| {
                let mut rank = rank(&[]);
                rank.fallback = *fallback;
                serde_json::to_vec(&rank).expect("plain")
            });
            strictest(&bytes.collect::<Vec<_>>())
        };
        use Fallback::{Abort, Error, Host};
        assert_eq!(of(&[Host, Host]), Some(Host));
        assert_eq!(of(&[Host, Error, Host]), Some(Error));
        assert_eq!(of(&[Abort, Error]), Some(Abort));
        assert_eq!(strictest(&[b"{}".to_vec()]), None);
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let check = |change: &dyn Fn(&mut Introduction), expect: &str| {
            let mut second = rank(&[]);
            change(&mut second);
            match decision(&[rank(&[]), second]) {
                Decision::Refuse(reason) => assert!(reason.contains(expect), "{reason}"),
                other => panic!("{other:?}"),
            }
        };
        check(
            &|rank| rank.version = VERSION + 1,
            "rank 1 has another version",
        );
        check(
            &|rank| rank.fault = Some("no file".to_owned()),
            "rank 1: no file",
        );
        check(
            &|rank| rank.agreement = "B".to_owned(),
            "rank 1 has other options: B and not A",
        );
        let many: Vec<(u128, u32, u32)> = (0..4).map(|id| (id, 0, 0)).collect();
        let many = self::rank(&many);
        check(&|rank| *rank = many.clone(), "4 service jobs");
        assert!(matches!(
            decide(&[b"{}".to_vec(), Vec::new()], 2),
            Decision::Refuse(_)
        ));
        let one = serde_json::to_vec(&rank(&[])).expect("plain");
        assert!(matches!(decide(&[one], 2), Decision::Refuse(_)));
    }
}
