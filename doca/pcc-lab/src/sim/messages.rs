//! Messages on their way, and those that have arrived.

use super::flow::Flow;
use std::collections::VecDeque;

/// A message whose last byte has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub time_ps: u64,
    /// Its queue pair: the number of the flow, in the order of the scenario.
    pub flow: u32,
}

/// Messages on their way.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Of each flow: the packet behind each message. Empty if the scenario has no queue pairs for messages.
    pub(super) ends: Vec<VecDeque<u32>>,
    pub(super) arrived: VecDeque<Arrival>,
}

impl Messages {
    pub(super) fn new(flows: &[Flow]) -> Self {
        let has_some = flows.iter().any(|flow| flow.has_messages);
        Self {
            ends: vec![VecDeque::new(); if has_some { flows.len() } else { 0 }],
            arrived: VecDeque::new(),
        }
    }

    /// All packets of a flow before this one are at the receiver.
    pub(super) fn arrived(&mut self, time_ps: u64, flow: u32, expected: u32) {
        let Some(ends) = self.ends.get_mut(flow as usize) else {
            return;
        };
        if ends.front() == Some(&expected) {
            ends.pop_front();
            self.arrived.push_back(Arrival { time_ps, flow });
        }
    }
}
