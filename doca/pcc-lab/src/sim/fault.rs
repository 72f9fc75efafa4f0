//! Changes of links during the run.

use super::Lab;
use crate::counts::Reason;
use crate::port::Port;
use crate::scenario::Change;
use crate::trace::RecordKind;

impl Lab {
    pub(super) fn fault(&mut self, number: u32) {
        let fault = self.faults[number as usize].clone();
        for port in [fault.link * 2, fault.link * 2 + 1] {
            match fault.change {
                Change::Down => self.port_down(port),
                Change::Up => self.port_up(port),
                Change::Speed => self.port_speed(port, fault.gbps * 1_000),
            }
        }
    }

    /// The packets of all queues are lost, and pauses in both directions end.
    fn port_down(&mut self, number: u32) {
        let is_switch = self.ports[number as usize].node as usize >= self.hosts.len();
        let port = &mut self.ports[number as usize];
        port.is_up = false;
        port.downs = port.downs.wrapping_add(1);
        let mut lost = 0;
        while let Some(queue) = Port::highest(self.ports[number as usize].waiting) {
            let port = &mut self.ports[number as usize];
            let Some(packet) = port.pop(&self.packets, queue, self.now_ps) else {
                break;
            };
            if is_switch && queue != crate::port::CONTROL {
                self.release(packet);
            }
            self.lose(packet, Reason::LinkDown);
            lost += 1;
        }
        let port = &mut self.ports[number as usize];
        port.paused = 0;
        port.pausing = 0;
        self.trace
            .record(self.now_ps, RecordKind::PortDown, number, lost);
    }

    fn port_up(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        port.is_up = true;
        let mbps = port.mbps;
        self.trace
            .record(self.now_ps, RecordKind::PortUp, number, mbps);
        self.serve(number);
    }

    fn port_speed(&mut self, number: u32, mbps: u64) {
        let port = &mut self.ports[number as usize];
        port.mbps = mbps;
        let node = port.node;
        self.trace
            .record(self.now_ps, RecordKind::PortSpeed, number, mbps);
        let Some(host) = self.hosts.get_mut(node as usize) else {
            return;
        };
        host.internal.port_changed(mbps);
        for process in &mut host.processes {
            process.port_changed(mbps);
        }
        // Rates are fractions of the speed.
        let flows = (0..).take(self.flows.len());
        let own: Vec<u32> = flows
            .filter(|flow| self.flows[*flow as usize].from == node)
            .collect();
        for flow in own {
            self.repace(flow);
        }
    }
}
