//! Several groups of a request at once: targets elsewhere carry out one while the next one is on its way.

use super::state::Volume;
use crate::error::Result;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Groups of one request that are under way at once.
const AT_ONCE: usize = 4;
impl Volume {
    /// Carries out the groups of a request. Without targets elsewhere, or threads, one after the other. After an error the rest
    /// is left out.
    pub(super) fn each_group<T: Send>(
        &self,
        groups: Vec<T>,
        work: impl Fn(T) -> Result<()> + Sync,
    ) -> Result<()> {
        let targets = self.targets();
        let is_one = groups.len() < 2;
        if is_one || !targets.iter().flatten().any(|target| target.is_elsewhere()) {
            return groups.into_iter().try_for_each(work);
        }
        drop(targets);
        let count = groups.len();
        let rest = Mutex::new(groups.into_iter());
        let next = || {
            // No holder panics.
            rest.lock().unwrap_or_else(PoisonError::into_inner).next()
        };
        let run = || -> Result<()> {
            while let Some(group) = next() {
                let done = work(group);
                if done.is_err() {
                    while next().is_some() {}
                    return done;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..count.min(AT_ONCE))
                .map_while(|_| {
                    let helper = self.helpers.take()?;
                    let work = || {
                        let _helper = helper;
                        run()
                    };
                    let thread = Builder::new().name("group".to_owned());
                    // Without another thread fewer are under way.
                    thread.spawn_scoped(scope, work).ok()
                })
                .collect();
            let mut done = run();
            for helper in helpers {
                let of_helper = helper.join().unwrap_or_else(|panic| resume_unwind(panic));
                done = done.and(of_helper);
            }
            done
        })
    }
}
