//! A context that has started: its process on the DPA.

use super::config::Config;
use super::{ACTIVE, DEACTIVATED, ERROR, STANDBY};
use crate::dev::Dev;
use crate::dpa::failed;
use crate::error::{Code, Fault, Result, fail};
use crate::lines::{self, Level};
use crate::path::port_of;
use flexio::{Function, Process, Role, Standing};
use mlx5dv_sys::IBV_LINK_LAYER_ETHERNET;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Guess: most instructions of a handler.
const INSTRUCTIONS: u64 = 10_000_000;
/// The number of its port for device code.
const PORT_OF_DEVICE: u64 = 0;
/// Streams of messages of the device library: refusals, and entries of the trace.
const STREAM_REFUSED: i32 = -1;
const STREAM_TRACE: i32 = -2;
/// Bytes of the print buffer without a setting.
const PRINT_BYTES: usize = 1 << 20;

/// A process on the DPA, and memory there for requests, responses and values.
#[derive(Debug)]
pub(super) struct Running {
    process: Process,
    buffers: [u64; 2],
    bytes: u64,
    /// One call of the program at a time uses the buffers.
    calls: Mutex<()>,
    has_dumped: AtomicBool,
    /// Keeps the device open for the process.
    _dev: Arc<Dev>,
}

/// True if the port is an Ethernet port.
pub(super) fn is_ethernet(dev: &Arc<Dev>) -> Result<bool> {
    Ok(u32::from(port_of(dev)?.link_layer) == IBV_LINK_LAYER_ETHERNET)
}

/// Speed of the port in Gb/s.
pub(super) fn gbps(dev: &Arc<Dev>) -> Result<u32> {
    let port = port_of(dev)?;
    // InfiniBand specification 1.7, PortInfo: rates of a lane and numbers of lanes.
    let lane = match port.active_speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => 0.0,
    };
    let lanes = match port.active_width {
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => 1.0,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 1200"
    )]
    Ok((lane * lanes) as u32)
}

/// A function of the device library with this many arguments.
fn function(name: &str, arguments: usize) -> Function {
    Function {
        name: name.to_owned(),
        unpack: format!("__dpacc_unpack_{name}"),
        stub: 0,
        argument_bytes: arguments * 8,
        pack: None,
    }
}

impl Running {
    /// Starts a process and attaches it.
    pub(super) fn start(dev: &Arc<Dev>, role: Role, config: &Config) -> Result<Self> {
        let Some(app) = &config.app else {
            fail!(
                BadConfig,
                "the PCC context has no program: call doca_pcc_set_app first"
            );
        };
        if config.threads.is_empty() {
            fail!(
                BadConfig,
                "the PCC context has no threads: call doca_pcc_set_thread_affinity first"
            );
        }
        let (context, pd) = (dev.context(), dev.pd());
        // SAFETY: the device stays open as long as this value, which drops the process first.
        let process = unsafe { Process::create_limited(context, pd, &app.0, INSTRUCTIONS) };
        let process = process.map_err(failed)?;
        let sizes = config
            .mailbox
            .as_ref()
            .map_or((0, 0), super::mailbox::Mailbox::sizes);
        // Values of parameters need some bytes too.
        let bytes = sizes.0.max(sizes.1).max(1_024) as u64;
        let buffer = || process.allocate(bytes).map_err(failed);
        let buffers = [buffer()?, buffer()?];
        let running = Self {
            process,
            buffers,
            bytes,
            calls: Mutex::default(),
            has_dumped: AtomicBool::new(false),
            _dev: Arc::clone(dev),
        };
        let unwanted = match role {
            Role::Notification => 0,
            Role::Reaction => {
                let speed = gbps(dev)?;
                running.call("__pcc_port", &[PORT_OF_DEVICE, speed.into(), 1])?;
                running.call("__pcc_start", &[])?
            }
        };
        running.none_refused(config)?;
        let unwanted = u32::try_from(unwanted).unwrap_or(u32::MAX);
        let attached = running.process.attach(role, unwanted, config.probes());
        attached.map_err(failed)?;
        Ok(running)
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    fn call(&self, name: &str, arguments: &[u64]) -> Result<u64> {
        let bytes: Vec<u8> = arguments
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let function = function(name, arguments.len());
        self.process.call(&function, &bytes).map_err(failed)
    }

    /// Where the process stands, and why it has failed.
    pub(super) fn standing(&self) -> Result<(Standing, String)> {
        self.process.standing().map_err(failed)
    }

    /// `doca_pcc_process_state_t`. Messages of the program are written, and a core dump at its end.
    pub(super) fn observe(&self, config: &Config) -> Result<u32> {
        self.drain(config);
        let (standing, reason) = self.standing()?;
        Ok(match standing {
            Standing::Active => ACTIVE,
            Standing::Standby => STANDBY,
            Standing::Deactivated | Standing::Failed => {
                self.dump_core(config, &reason);
                if standing == Standing::Failed {
                    ERROR
                } else {
                    DEACTIVATED
                }
            }
            Standing::Detached => fail!(BadState, "the PCC context is stopped"),
        })
    }

    /// Writes the messages of the program, and returns what its library has refused.
    pub(super) fn drain(&self, config: &Config) -> Vec<String> {
        let mut refused = Vec::new();
        let mut left = config.print_bytes.unwrap_or(PRINT_BYTES);
        let Ok(messages) = self.process.messages(None) else {
            return refused;
        };
        for message in messages {
            let text = match message.stream {
                STREAM_REFUSED => {
                    refused.push(message.text);
                    continue;
                }
                STREAM_TRACE => config.formats.line(&message.text),
                _ => message.text,
            };
            // A full buffer loses lines, as on the device.
            if let Some(rest) = left.checked_sub(text.len()) {
                left = rest;
                lines::device(Level::Info, &text);
            }
        }
        refused
    }

    /// Fails with the first refusal of the library.
    fn none_refused(&self, config: &Config) -> Result<()> {
        match self.drain(config).into_iter().next() {
            Some(line) => fail!(InvalidValue, "{line}"),
            None => Ok(()),
        }
    }

    /// Passes a request to the program. Returns the status of its handler, and its response.
    pub(super) fn send(
        &self,
        config: &Config,
        request: &[u8],
        most: usize,
    ) -> Result<(u32, Vec<u8>)> {
        let _alone = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let [from, to] = self.buffers;
        self.process.copy_in(from, request).map_err(failed)?;
        let words = [from, request.len() as u64, most as u64, to];
        let result = self.call("__pcc_mailbox", &words)?;
        let refused = self.drain(config);
        if let Some(line) = refused
            .iter()
            .find(|line| line.starts_with("the program has no"))
        {
            return Err(Fault::new(Code::NotSupported, line.clone()));
        }
        for line in refused {
            lines::sdk(Level::Warning, &line);
        }
        let bytes = usize::try_from(result >> 32).unwrap_or_default().min(most);
        let mut response = vec![0; bytes];
        self.process.copy_out(to, &mut response).map_err(failed)?;
        Ok((
            u32::try_from(result & 0xffff_ffff).unwrap_or_default(),
            response,
        ))
    }

    /// Sets parameters of a slot.
    pub(super) fn set_parameters(
        &self,
        config: &Config,
        (slot, first): (u32, u32),
        values: &[u32],
    ) -> Result<()> {
        let _alone = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        if bytes.len() as u64 > self.bytes {
            fail!(InvalidValue, "{} values are too many", values.len());
        }
        let [from, _] = self.buffers;
        self.process.copy_in(from, &bytes).map_err(failed)?;
        let words = [
            PORT_OF_DEVICE,
            slot.into(),
            first.into(),
            values.len() as u64,
            from,
        ];
        let status = self.call("__pcc_set_params", &words)?;
        self.none_refused(config)?;
        if status != 0 {
            fail!(InvalidValue, "the program refuses the values");
        }
        Ok(())
    }

    /// Writes counters of the threads to the log.
    pub(super) fn dump(&self) -> Result<()> {
        for line in self.threads()?.lines() {
            lines::sdk(Level::Error, line);
        }
        Ok(())
    }

    fn threads(&self) -> Result<String> {
        let mut text = String::new();
        for thread in self.process.counters().map_err(failed)? {
            let _ = writeln!(
                text,
                "thread {}: {} activations, {} instructions",
                thread.number, thread.activations, thread.instructions
            );
        }
        Ok(text)
    }

    /// Writes the core dump once.
    fn dump_core(&self, config: &Config, reason: &str) {
        let Some(path) = &config.core_file else {
            return;
        };
        if self.has_dumped.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut text = format!(
            "process {} of {}\n{reason}\n",
            self.process.id(),
            self.process.app().name()
        );
        if let Ok(Some(fault)) = self.process.fault() {
            let _ = writeln!(
                text,
                "{fault}\nprogram counter {:#x}, address {:#x}",
                fault.pc, fault.address
            );
        }
        if let Ok(threads) = self.threads() {
            text.push_str(&threads);
        }
        if let Err(error) = std::fs::write(path, text) {
            let text = format!("cannot write the core dump {}: {error}", path.display());
            lines::sdk(Level::Error, &text);
        }
    }
}
