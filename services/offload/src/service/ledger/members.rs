//! The members of a communicator by their SPs.

use super::Ledger;
use crate::service::spacing::{Member, meet};
use crate::wire::{Blocks, Record, blocks_of};
use std::rc::Rc;

impl Ledger {
    /// The SPs of members in ascending order. The work follows the number of SPs if the members are runs; the ranks of one run
    /// share the result.
    ///
    /// # Errors
    /// Ranks that do not exist or are not in ascending order.
    pub(in crate::service) fn members(
        &mut self,
        members: Blocks<'_>,
    ) -> Result<Rc<[Member]>, &'static str> {
        let one = match members {
            Blocks::Runs(runs) => runs.lasting().map(|runs| *runs.first()),
            _ => None,
        };
        let Some(run) = one else {
            return Ok(self.found(members)?.into());
        };
        let ranks = (run.peer, run.step, run.count);
        if let Some(found) = self.known.get(ranks) {
            return Ok(found);
        }
        let found: Rc<[Member]> = self.found(members)?.into();
        self.known.keep(ranks, Rc::clone(&found));
        Ok(found)
    }

    fn found(&self, members: Blocks<'_>) -> Result<Vec<Member>, &'static str> {
        let size = self.service_of.len();
        let ranks = match members {
            Blocks::Runs(runs) => {
                if runs
                    .iter()
                    .any(|run| run.block(run.count - 1).peer as usize >= size)
                {
                    return Err("it names a rank that is not there");
                }
                if self.can_divide(runs) {
                    let all = (0..).zip(&self.spaced).filter_map(|(service, spaced)| {
                        let parts = runs.iter().filter_map(|run| {
                            let (first, apart, count) = meet(&run, *spaced)?;
                            Some(run.part(first, apart, count))
                        });
                        parts.fold(None, |member: Option<Member>, part| match member {
                            None => Some(Member {
                                service,
                                first: part.peer,
                                count: part.count,
                            }),
                            Some(member) => Some(Member {
                                count: member.count + part.count,
                                ..member
                            }),
                        })
                    });
                    return Ok(all.collect());
                }
                None
            }
            other => Some(other),
        };
        let ranks: Vec<u32> = match ranks {
            None => ranks_of(members),
            Some(listed) => {
                let ranks = ranks_of(listed);
                if !ranks.is_sorted_by(|a, b| a < b) {
                    return Err("its members are not in ascending order");
                }
                ranks
            }
        };
        let mut all: Vec<Option<Member>> = vec![None; self.services];
        for rank in ranks {
            let service = self.service_of.get(rank as usize);
            let service = *service.ok_or("it names a rank that is not there")?;
            let member = all[service as usize].get_or_insert(Member {
                service,
                first: rank,
                count: 0,
            });
            member.count += 1;
        }
        Ok(all.into_iter().flatten().collect())
    }

    /// Whether a rank is a member.
    pub(in crate::service) fn has_member(members: Blocks<'_>, rank: u32) -> bool {
        match members {
            Blocks::Narrow(records) => {
                let found = records.binary_search_by_key(&rank, |record| record.block().peer);
                found.is_ok()
            }
            Blocks::Wide(records) => {
                let found = records.binary_search_by_key(&rank, |record| record.block().peer);
                found.is_ok()
            }
            Blocks::Runs(runs) => runs.iter().any(|run| run.index_of(rank).is_some()),
        }
    }

    /// The members at this SP in ascending order.
    pub(in crate::service) fn local_members(&self, members: Blocks<'_>) -> Vec<u32> {
        let ranks = self.rank_of.iter().copied();
        ranks
            .filter(|rank| Self::has_member(members, *rank))
            .collect()
    }
}

fn ranks_of(members: Blocks<'_>) -> Vec<u32> {
    match members {
        Blocks::Narrow(records) => records.iter().map(|record| record.block().peer).collect(),
        Blocks::Wide(records) => records.iter().map(|record| record.block().peer).collect(),
        Blocks::Runs(runs) => blocks_of(runs).map(|block| block.peer).collect(),
    }
}
