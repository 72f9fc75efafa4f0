//! A constant rate: the set-points of a measurement, and the absence of control.

use crate::algorithm::{Algorithm, Context, Decision, Event, Failure, Port};

/// Sets each flow to the same rate.
#[derive(Debug)]
pub struct Constant(
    /// The rate as a fraction of [`RATE_MAX`](crate::RATE_MAX).
    pub u32,
);

impl Algorithm for Constant {
    fn name(&self) -> &str {
        if self.0 >= crate::units::RATE_MAX {
            "none"
        } else {
            "constant"
        }
    }

    fn handle(&mut self, context: &mut Context, _: &Event, _: &Port) -> Result<Decision, Failure> {
        if context[0] == self.0 {
            return Ok(Decision::default());
        }
        context[0] = self.0;
        Ok(Decision::rate(self.0))
    }
}
