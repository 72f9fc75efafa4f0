//! Executes the steps of each approach on a real function and times them.

use super::peer::Dpu;
use super::step::{Approach, Step};
use anyhow::{Context as _, Result};
use std::sync::Arc;
use std::time::Instant;
use xgvmi_pool::mlx5::steps::{Key, Span, Steps};
use xgvmi_pool::mlx5::{Function, Mlx5Device, Mlx5Options};
use xgvmi_pool::{
    AccessKey, Gvmi, HostHooks, Invalidate, MkeyDevice, OwnerUuid, PoolPolicy, Region, RemoteKey,
    UmrOp,
};
use xgvmi_ucp::buffer::Buffer;

/// Times of the executed steps, in nanoseconds, one list per step.
#[derive(Debug, Default)]
pub(super) struct Times(Vec<(Step, Vec<u64>)>);

impl Times {
    fn add(&mut self, step: Step, ns: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == step) {
            Some((_, times)) => times.push(ns),
            None => self.0.push((step, vec![ns])),
        }
    }

    /// Runs a step and records its duration.
    fn of<T, E>(&mut self, step: Step, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let done = run()?;
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.add(step, ns);
        Ok(done)
    }

    /// Steps and their times, in the order of their first execution.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Step, &[u64])> {
        self.0.iter().map(|(step, times)| (*step, times.as_slice()))
    }
}

/// A host's function, and optionally a DPU's.
pub(super) struct Bench<'f> {
    function: &'f Function,
    device: Arc<Mlx5Device>,
    gvmi: Gvmi,
    dpu: Option<Dpu<'f>>,
    repeats: u32,
}

/// The access key that importers must present. A measurement needs no secret.
const ACCESS: AccessKey = AccessKey::UCX_COMPATIBLE;

impl<'f> Bench<'f> {
    pub(super) fn new(function: &'f Function, dpu: Option<Dpu<'f>>, repeats: u32) -> Result<Self> {
        let device = function.device(Mlx5Options::default())?;
        let gvmi = device.gvmi();
        Ok(Self {
            function,
            device,
            gvmi,
            dpu,
            repeats,
        })
    }

    /// Executes the steps of an approach on touched memory of `size` bytes. The first round creates queues and
    /// fills caches. It does not count.
    pub(super) fn measure(&mut self, approach: Approach, size: usize) -> Result<Times> {
        let mut memory = Buffer::new(size)?;
        let steps = Steps::new(self.function)?;
        let pool = match approach {
            Approach::UmrPoolHit => Some(self.pool()?),
            _ => None,
        };
        self.round(
            approach,
            &steps,
            pool.as_ref(),
            &mut memory,
            &mut Times::default(),
        )?;
        let mut times = Times::default();
        for _ in 0..self.repeats {
            self.round(approach, &steps, pool.as_ref(), &mut memory, &mut times)?;
        }
        if let Some(pool) = pool {
            pool.close();
        }
        Ok(times)
    }

    /// A pool that contains a key and invalidates it during release, as in the published steps.
    fn pool(&self) -> Result<HostHooks<Mlx5Device>> {
        let policy = PoolPolicy {
            prefill: 1,
            invalidate: Invalidate::Strict,
            ..PoolPolicy::default()
        };
        HostHooks::open(Arc::clone(&self.device), policy).context("opening the pool")
    }

    fn round(
        &mut self,
        approach: Approach,
        steps: &Steps<'_>,
        pool: Option<&HostHooks<Mlx5Device>>,
        memory: &mut Buffer,
        times: &mut Times,
    ) -> Result<()> {
        let span = Span::of(memory.as_mut_slice());
        if approach == Approach::Umem {
            let umem = times.of(Step::UmemRegistration, || steps.register_umem(span))?;
            let key = times.of(Step::MkeyCreation, || steps.create_over_umem(&umem))?;
            times.of(Step::MkeyExport, || steps.allow(&key, &ACCESS))?;
            self.alias(&key, times)?;
            times.of(Step::MkeyDestroy, || key.end())?;
            times.of(Step::UmemDeregistration, || umem.end())?;
            return Ok(());
        }
        let memory = times.of(Step::MemoryRegistration, || steps.register(span))?;
        let region = Region::new(span.addr(), span.len() as u64, memory.lkey())?;
        match approach {
            Approach::Umem => {}
            Approach::Indirection => {
                let key = times.of(Step::MkeyCreation, || steps.create_ksm(&memory))?;
                times.of(Step::MkeyExport, || steps.allow(&key, &ACCESS))?;
                self.alias(&key, times)?;
                times.of(Step::MkeyDestroy, || key.end())?;
            }
            Approach::Umr => {
                let entries = u32::try_from(region.klm_entries())?;
                let key = times.of(Step::UmrMkeyCreation, || steps.create_umr(entries))?;
                let mkey = key.mkey();
                let bind = UmrOp::Bind {
                    mkey,
                    span: region.into(),
                };
                times.of(Step::UmrMkeyRegistration, || self.device.run(&[bind]))?;
                times.of(Step::UmrMkeyExport, || steps.allow(&key, &ACCESS))?;
                self.alias(&key, times)?;
                let invalidate = UmrOp::Invalidate { mkey };
                times.of(Step::UmrMkeyInvalidation, || self.device.run(&[invalidate]))?;
                times.of(Step::UmrMkeyDestroy, || key.end())?;
            }
            Approach::UmrPoolHit => {
                let pool = pool.context("the approach needs a pool")?;
                let export = times.of(Step::UmrMkeyRegistration, || pool.export(region))?;
                times.of(Step::UmrMkeyInvalidation, || export.release())?;
            }
        }
        times.of(Step::MemoryDeregistration, || memory.end())?;
        Ok(())
    }

    /// The DPU's two steps, if there is a DPU.
    fn alias(&mut self, key: &Key<'_>, times: &mut Times) -> Result<()> {
        let Some(dpu) = &mut self.dpu else {
            return Ok(());
        };
        let key = RemoteKey {
            gvmi: self.gvmi,
            mkey: key.mkey(),
            owner: OwnerUuid::UNKNOWN,
        };
        let (created, destroyed) = dpu.alias(&key, &ACCESS)?;
        times.add(Step::AliasCreation, created);
        times.add(Step::AliasDestroy, destroyed);
        Ok(())
    }
}
