//! The mode of weakly ordered memory: missing fences are reported.

use super::Os;
use crate::device::Device;
use crate::kernel::Doorbell;
use crate::order::OrderReport;
use rv64::{Config, HartId};

impl Os {
    /// Reports accesses that weakly ordered memory may not order. Programs run slower.
    pub fn check_order(&mut self, config: &Config) {
        self.kernel.order = Some(Box::default());
        self.heap_start = config.heap;
        self.machine.watch(config.heap, config.heap_bytes);
    }

    /// Takes the reports. Each instruction has one.
    pub fn take_order_reports(&mut self) -> Vec<OrderReport> {
        let Some(order) = &mut self.kernel.order else {
            return Vec::new();
        };
        let reports = order.take();
        let number = |hart: HartId| {
            let thread = self.kernel.thread(hart);
            thread.map_or(0, |thread| thread.view.number)
        };
        let named = reports.into_iter().map(|(hart, pc, text)| OrderReport {
            thread: number(hart),
            pc,
            text,
        });
        named.collect()
    }

    /// Addresses of the program for memory of the embedder's process.
    fn seen(&self, places: impl IntoIterator<Item = (usize, u64)>) -> Vec<(u64, u64)> {
        let (heap, bytes) = self.machine.heap_place();
        let ranges = places.into_iter().filter_map(|(place, length)| {
            let offset = place.checked_sub(heap)? as u64;
            (offset < bytes).then_some((self.heap_start + offset, length))
        });
        ranges.collect()
    }

    /// Before a run: the rings in which completions may be read.
    pub(super) fn order_rings(&mut self, device: &mut dyn Device) {
        if self.kernel.order.is_some() {
            let rings = self.seen(device.completion_rings());
            if let Some(order) = &mut self.kernel.order {
                order.set_rings(rings);
            }
        }
    }

    /// A doorbell of a thread.
    pub(super) fn order_doorbell(
        &mut self,
        device: &mut dyn Device,
        hart: HartId,
        doorbell: Doorbell,
    ) {
        if self.kernel.order.is_none() {
            return;
        }
        let visible = match doorbell {
            Doorbell::Send { qpn, .. } => self.seen(device.sent(qpn)),
            // The device writes the ring, and reads the record.
            Doorbell::Arm { cqn, .. } => {
                let places = device.completions(cqn);
                self.seen(places.map(|[_, record]| record))
            }
            Doorbell::Events { .. } => Vec::new(),
        };
        if let Some(order) = &mut self.kernel.order {
            order.doorbell(hart, &visible);
        }
    }

    /// The end of a thread's function.
    pub(super) fn order_ended(&mut self, hart: HartId) {
        if let Some(order) = &mut self.kernel.order {
            order.ended(hart);
        }
    }
}
