//! The buffers of ranks that enter calls, and the memory that the job can give back.

use super::{Entered, Mover, Receive, check_step, check_token, failed, packed};
use crate::error::{OffloadError, Result};
use crate::service::actions::Buffers;
use crate::service::imports::Lent;
use crate::service::repeats;
use crate::service::transport::Transport;
use crate::wire::{Arrival, Blocks, ExportRef};

/// The imports of a rank's send and receive buffers.
pub(super) type Both<T> = (Option<Lent<T>>, Option<Lent<T>>);

impl<T: Transport> Mover<T> {
    /// A HOST_ARRIVE of a rank.
    pub(super) fn entry(&mut self, transport: &T, header: &[u8], data: &[u8]) -> Result<()> {
        if let Some(known) = self.repeats.take(data, |rank| self.ledger.local(rank)) {
            let (local, repeat) = &known;
            let entered = self.enter_again(transport, header, *local, &repeat.arrival);
            self.repeats.put(known);
            return entered;
        }
        let arrive = Arrival::parse(data);
        let arrive = arrive.map_err(|bad| OffloadError::message("a peer of the job", &bad))?;
        self.check_rank(header, arrive.rank)?;
        check_step(arrive.collective)?;
        repeats::check(&arrive, self.limits.direct_min)?;
        if let Some(local) = self.ledger.local(arrive.rank) {
            self.repeats.keep(local, data, &arrive);
        }
        self.arrive(transport, &arrive)
    }

    /// A HOST_ARRIVE that is like the last one of its rank. The ledger looks for no more than what may differ.
    #[inline]
    fn enter_again(
        &mut self,
        transport: &T,
        header: &[u8],
        local: usize,
        arrive: &Arrival<'static>,
    ) -> Result<()> {
        let expect = self.from_ranks.get(local).copied();
        check_token(header, expect, "rank", arrive.rank)?;
        check_step(arrive.collective)?;
        let (Some(send), Some(receive)) = (&arrive.send_memory, &arrive.receive_memory) else {
            return self.arrive(transport, arrive);
        };
        let (Blocks::Runs(sends), Blocks::Runs(receives)) = (&arrive.sends, &arrive.receives)
        else {
            return self.arrive(transport, arrive);
        };
        let (Some(sends), Some(receives)) = (sends.only(), receives.only()) else {
            return self.arrive(transport, arrive);
        };
        let base = send.address;
        let send = self.imports.get(transport, local, send)?;
        let receive = match self.imports.get(transport, local, receive) {
            Ok(receive) => receive,
            Err(error) => {
                send.release(transport)?;
                return Err(error);
            }
        };
        send.pack(transport)?;
        let key = send.key();
        let who = (arrive.rank, local, arrive.together);
        let buffers = Buffers { base, key };
        let arrived = self
            .ledger
            .arrive_again(arrive.collective, who, (sends, receives), buffers);
        let Some(call) = arrived.map_err(|wrong| failed(wrong.to_string()))? else {
            // The imports stay: they have names.
            return self.arrive(transport, arrive);
        };
        let entered = Entered::new(Some(send), Some(Receive::Own(receive)), self.now());
        self.keep_entered(call, local, entered);
        Ok(())
    }

    /// The buffer that a rank of this SP has exported.
    pub(super) fn import(
        &mut self,
        transport: &T,
        rank: u32,
        export: Option<ExportRef<'_>>,
    ) -> Result<Option<Lent<T>>> {
        let Some(export) = export else {
            return Ok(None);
        };
        let local = self.ledger.local(rank);
        let local = local.ok_or_else(|| failed(format!("rank {rank} is not this service's")))?;
        self.imports.get(transport, local, &export).map(Some)
    }

    /// Both buffers of a rank that enters a call, and the key that other SPs read with. After an error the call may enter again.
    pub(super) fn import_both(
        &mut self,
        transport: &T,
        rank: u32,
        send: Option<ExportRef<'_>>,
        receive: Option<ExportRef<'_>>,
    ) -> Result<Both<T>> {
        let send = self.import(transport, rank, send)?;
        let receive = match self.import(transport, rank, receive) {
            Ok(receive) => receive,
            Err(error) => {
                if let Some(send) = send {
                    send.release(transport)?;
                }
                return Err(error);
            }
        };
        packed(transport, send.as_ref())?;
        Ok((send, receive))
    }

    /// Whether an import has failed since the last question: the device may be full, and other jobs may have imports that no
    /// call uses.
    pub(in crate::service) fn lacks_room(&mut self) -> bool {
        self.imports.lacks_room()
    }

    /// Whether a window of an allreduce lacks memory that other jobs may have. It asks again with [`Mover::ask_again`].
    pub(in crate::service) fn window_lacks_room(&mut self) -> bool {
        self.reducing.segments.lacks_room()
    }

    /// Other jobs have given back what no call uses.
    pub(in crate::service) fn ask_again(&mut self, transport: &T) -> Result<()> {
        match self.reducing.segments.asks_again() {
            true => self.give_memory(transport),
            false => Ok(()),
        }
    }

    /// A rank has left the job.
    pub(in crate::service) fn forget(&mut self, transport: &T, rank: u32) -> Result<()> {
        match self.ledger.local(rank) {
            Some(local) => {
                self.repeats.forget(local);
                self.imports.forget(transport, local)
            }
            None => Ok(()),
        }
    }

    /// Bytes that are kept for later calls: memory of allreduces, and imports.
    pub(in crate::service) fn free_bytes(&self) -> usize {
        let kept = self.ledger.kept_bytes() + self.familiar.bytes();
        self.reducing.segments.free_bytes() + self.imports.bytes() + kept
    }

    /// Releases what no call uses.
    pub(in crate::service) fn drop_free(&mut self, transport: &T) -> Result<()> {
        self.ledger.drop_kept();
        self.familiar.clear();
        self.imports.drop_idle(transport)?;
        self.reducing.segments.shrink(transport, 0)
    }
}
