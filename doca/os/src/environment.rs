//! The environment of a program: windows, outbox, device calls and intrinsics.

use crate::calls::{self, Outcome};
use crate::context::{Answer, Context};
use crate::device::Device;
use crate::fixed;
use crate::kernel::{Doorbell, Kernel};
use crate::refusal::Refusal;
use dpa_dev::{intrinsics, outbox};
use mlx5_prm::dpa::ThreadKind as Kind;
use rv64::{Action, Atomic, Call, Environment, HartId, MemoryAccess, WindowAccess};

/// Number of the range of windows for the machine.
pub(crate) const ALL_WINDOWS: u32 = 0;
/// Number of the outbox for the machine.
pub(crate) const OUTBOX: u32 = 1;

/// Code of a refusal whose text the kernel has.
const REFUSED: u32 = 1;
/// Register with the number of a device call.
const T0: u8 = 5;

/// The environment during a run.
pub(crate) struct Env<'a> {
    pub(crate) kernel: &'a mut Kernel,
    pub(crate) device: &'a mut dyn Device,
}

impl Env<'_> {
    fn refused(&mut self, refusal: impl Into<Refusal>) -> u32 {
        self.kernel.refusal = Some(refusal.into().0);
        REFUSED
    }

    /// The key and the address of an access to a window.
    fn behind(&mut self, access: &WindowAccess) -> Result<(u32, u64), u32> {
        if access.window == OUTBOX {
            let text = "the outbox has only stores of 8 bytes";
            return Err(self.refused(Refusal(text.to_owned())));
        }
        match self.kernel.behind(access.address) {
            Some(Ok(behind)) => Ok(behind),
            Some(Err(refusal)) => Err(self.refused(refusal)),
            None => Err(self.refused(Refusal("no window".to_owned()))),
        }
    }

    /// A store to a register of the outbox.
    fn ring(&mut self, hart: HartId, offset: u64, value: u64) -> Result<(), Refusal> {
        let uar = self.kernel.thread(hart).and_then(|thread| thread.uar);
        let Some(uar) = uar else {
            return Err(Refusal(
                "a doorbell of a thread without an outbox: flexio_dev_outbox_config() was not called"
                    .to_owned(),
            ));
        };
        let low = u32::try_from(value & 0xff_ffff).unwrap_or_default();
        let high = u32::try_from((value >> 32) & 0xff_ffff).unwrap_or_default();
        let doorbell = match offset {
            outbox::CQ_DB => Doorbell::Arm {
                uar,
                cqn: low,
                consumer: high,
            },
            outbox::SXD_DB => Doorbell::Send {
                uar,
                qpn: high,
                index: u16::try_from(low & 0xffff).unwrap_or_default(),
            },
            outbox::EQ_DB_REARM | outbox::EQ_DB_NO_REARM => Doorbell::Events {
                id: low,
                counter: high,
                arms: offset == outbox::EQ_DB_REARM,
            },
            _ => {
                return Err(Refusal(format!(
                    "register {offset:#x} of the outbox is not available"
                )));
            }
        };
        self.kernel.ring(hart, doorbell)
    }

    fn outcome(&mut self, call: &mut Call<'_>, outcome: Outcome) -> Result<Action, Refusal> {
        let hart = call.hart();
        let has_rung = !self.kernel.doorbells.is_empty();
        let now_ns = self.kernel.now_ns.max(1);
        let Some(thread) = self.kernel.thread_mut(hart) else {
            return Err(Refusal("the thread does not exist".to_owned()));
        };
        if outcome != Outcome::Answer(Answer::Again) {
            thread.waits_since_ns = 0;
        }
        match outcome {
            Outcome::Answer(Answer::Value(value) | Answer::Yield(value)) if has_rung => {
                call.set_result(value);
                Ok(Action::Stop)
            }
            Outcome::Answer(Answer::Value(value)) => {
                call.set_result(value);
                Ok(Action::Continue)
            }
            Outcome::Answer(Answer::Yield(value)) => {
                call.set_result(value);
                Ok(Action::Yield)
            }
            Outcome::Answer(Answer::Again) => {
                if thread.waits_since_ns == 0 {
                    thread.waits_since_ns = now_ns;
                }
                self.kernel.is_polling = true;
                Ok(Action::WaitAgain)
            }
            Outcome::Answer(Answer::Reschedule) => {
                self.end(hart, crate::thread::Ending::Reschedule)
            }
            Outcome::Answer(Answer::Finish) => self.end(hart, crate::thread::Ending::Finish),
            Outcome::Retrigger => self.end(hart, crate::thread::Ending::Retrigger),
            Outcome::Return(value) => {
                thread.ending = crate::thread::Ending::Return;
                Ok(Action::Finish(value))
            }
            Outcome::EndProcess => {
                self.kernel.is_finished = true;
                Ok(Action::Finish(0))
            }
        }
    }

    /// Ends the activation of an event handler.
    fn end(&mut self, hart: HartId, ending: crate::thread::Ending) -> Result<Action, Refusal> {
        match self.kernel.thread_mut(hart) {
            Some(thread) if thread.view.kind == Kind::Handler => {
                thread.ending = ending;
                Ok(Action::Finish(0))
            }
            _ => Err(Refusal(
                "a reschedule or finish in a kernel or remote call: only event handlers may"
                    .to_owned(),
            )),
        }
    }
}

impl Environment for Env<'_> {
    fn load(&mut self, access: &WindowAccess) -> Result<u64, u32> {
        let (key, address) = self.behind(access)?;
        let mut word = [0; 8];
        let bytes = &mut word[..usize::from(access.size)];
        match self.device.read(key, address, bytes) {
            Ok(()) => {
                let value = u64::from_le_bytes(word);
                if let Some(order) = &mut self.kernel.order {
                    let place = (access.address, access.size);
                    order.window_load(access.hart, access.pc, place, value);
                }
                Ok(value)
            }
            Err(denied) => Err(self.refused(denied)),
        }
    }

    fn store(&mut self, access: &WindowAccess, value: u64) -> Result<(), u32> {
        if access.window == OUTBOX && access.size == 8 {
            let rung = self.ring(access.hart, access.offset, value);
            return rung.map_err(|refusal| self.refused(refusal));
        }
        let (key, address) = self.behind(access)?;
        if let Some(order) = &mut self.kernel.order {
            order.window_store(access.hart, access.pc, (access.address, access.size));
        }
        let bytes = value.to_le_bytes();
        let written = self
            .device
            .write(key, address, &bytes[..usize::from(access.size)]);
        written.map_err(|denied| self.refused(denied))
    }

    fn stops(&mut self) -> bool {
        !self.kernel.doorbells.is_empty()
    }

    fn atomic(
        &mut self,
        access: &WindowAccess,
        operation: Atomic,
        operand: u64,
    ) -> Result<u64, u32> {
        let (key, address) = self.behind(access)?;
        let done = self
            .device
            .atomic(key, address, access.size, operation, operand);
        done.map_err(|denied| self.refused(denied))
    }

    fn ecall(&mut self, call: &mut Call<'_>) -> Action {
        let hart = call.hart();
        let number = call.register(T0);
        let mut context = Context {
            call,
            kernel: self.kernel,
            device: self.device,
            hart,
        };
        let served = calls::serve(number, &mut context);
        let action = served.and_then(|outcome| self.outcome(call, outcome));
        action.unwrap_or_else(|refusal| Action::Trap(self.refused(refusal)))
    }

    fn watched(&mut self, access: &MemoryAccess) {
        if let Some(order) = &mut self.kernel.order {
            order.memory(access);
        }
    }

    fn fence(&mut self, call: &mut Call<'_>, word: u32) {
        // The predecessors: loads are bit 25, stores bit 24.
        if let Some(order) = &mut self.kernel.order {
            order.fence(call.hart(), word >> 25 & 1 != 0, word >> 24 & 1 != 0);
        }
    }

    fn custom(&mut self, call: &mut Call<'_>, word: u32) -> Action {
        let Some(intrinsic) = intrinsics::decode(word) else {
            let text = format!("instruction {word:#010x} is none of this processor");
            return Action::Trap(self.refused(Refusal(text)));
        };
        let operand = call.register(intrinsic.rs1);
        // Memory is strongly ordered here: fences and operations on caches have nothing to do but for the record.
        if let Some(order) = &mut self.kernel.order {
            order.intrinsic(call.hart(), intrinsic.operation, operand);
        }
        if let Some(value) = fixed::apply(intrinsic.operation, operand) {
            call.registers().set_x(intrinsic.rd, value);
        }
        Action::Continue
    }
}
