//! Parsers of peers' messages, and a job at a service, for fuzz targets. Each accepts any bytes. It must neither panic nor
//! reserve more memory than the input length justifies.

use crate::control::Frame;
use crate::wire::{
    Arrival, Contribution, DpuFin, DpuNote, DpuRelay, DpuRelayed, DpuRts, Entry, Hello, HostFin,
};

pub use crate::service::script::job;

/// A message that a peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Any TCP frame.
    Frame,
    /// HELLO over UCP.
    Hello,
    /// HOST_ARRIVE.
    HostArrive,
    /// DPU_RTS.
    DpuRts,
    /// DPU_FIN.
    DpuFin,
    /// HOST_FIN.
    HostFin,
    /// HOST_REDUCE.
    HostReduce,
    /// HOST_TREE.
    HostTree,
    /// DPU_NOTE.
    DpuNote,
    /// DPU_RELAY.
    DpuRelay,
    /// DPU_RELAYED.
    DpuRelayed,
}

impl Message {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Frame,
        Self::Hello,
        Self::HostArrive,
        Self::DpuRts,
        Self::DpuFin,
        Self::HostFin,
        Self::HostReduce,
        Self::HostTree,
        Self::DpuNote,
        Self::DpuRelay,
        Self::DpuRelayed,
    ];
}

/// Parses `bytes`; returns true if they are a message of this kind. Serializing a parsed message must reproduce it.
#[must_use]
pub fn parse(message: Message, bytes: &[u8]) -> bool {
    match message {
        Message::Frame => Frame::parse(bytes).is_ok_and(|frame| {
            // The bytes may differ: JSON has many forms, and the parser sanitizes reasons.
            assert_eq!(Frame::parse(&frame.to_bytes()), Ok(frame));
            true
        }),
        Message::Hello => Hello::parse(bytes).is_ok(),
        Message::HostArrive => Arrival::parse(bytes).is_ok(),
        Message::DpuRts => DpuRts::parse(bytes).is_ok(),
        Message::DpuFin => DpuFin::parse(bytes).is_ok_and(|fin| {
            assert_eq!(fin.to_bytes(), bytes);
            true
        }),
        Message::HostFin => HostFin::parse(bytes).is_ok_and(|fin| {
            assert_eq!(HostFin::parse(&fin.to_bytes()), Ok(fin));
            true
        }),
        Message::HostTree => Entry::parse(bytes).is_ok(),
        Message::DpuNote => DpuNote::parse(bytes).is_ok_and(|note| {
            assert_eq!(note.to_bytes_in(Vec::new()), bytes);
            true
        }),
        Message::DpuRelay => DpuRelay::parse(bytes).is_ok_and(|relay| {
            assert_eq!(relay.to_bytes(), bytes);
            true
        }),
        Message::DpuRelayed => DpuRelayed::parse(bytes).is_ok_and(|answer| {
            assert_eq!(answer.to_bytes_in(Vec::new()), bytes);
            true
        }),
        Message::HostReduce => Contribution::parse(bytes).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Keys;
    use crate::draft::{RtsDraft, RtsHead};
    use crate::reduction::Reduction;
    use crate::token::Token;
    use crate::wire::{
        Block, Collective, Delivered, Export, From, Greeting, HostArrive, HostReduce, HostTree,
        Narrow, Route, Target,
    };
    use fastrand::Rng;

    /// Lengths and counts at the limits of a parser's checks.
    const EDGES: [u64; 6] = [0, 1, 7, u32::MAX as u64, 1 << 60, u64::MAX];

    /// Inputs for each message, unless the variable says another number.
    const INPUTS: u64 = 50_000;
    const INPUTS_VARIABLE: &str = "XGVMI_FUZZ_INPUTS";

    /// A rank's part in a broadcast.
    fn tree(collective: Collective, export: Export) -> HostTree {
        HostTree {
            whole: 0,
            collective,
            rank: 1,
            root: 2,
            is_barrier: false,
            members: (0..40).collect(),
            memory: Some(export),
            length: 1 << 20,
            short: Vec::new(),
        }
    }

    /// Offers of a gather.
    fn relay(collective: Collective) -> DpuRelay<'static> {
        DpuRelay {
            collective,
            from: 1,
            id: 3,
            root: Some(2),
            offers: vec![(2, &[7; 40]), (2, &[])],
        }
    }

    /// The end of a call with short blocks.
    fn fin(collective: Collective) -> HostFin {
        HostFin {
            collective,
            short: vec![Delivered {
                offset: 3,
                stride: 8,
                length: 5,
                count: 2,
            }],
            bytes: vec![8; 10],
            aliases: Some((1, 2)),
            message: Some(300),
        }
    }

    /// A rank's way in a gather.
    fn route() -> Route {
        Route::Gather {
            root: 3,
            members: (0..40).collect(),
        }
    }

    /// A valid message of each kind.
    fn sample(message: Message) -> Vec<u8> {
        let collective = Collective {
            communicator: 1,
            sequence: 2,
            start: 0,
            step: 0,
        };
        let block = |peer| Block {
            peer,
            offset: 4096,
            length: 5,
        };
        let export = Export {
            address: 1 << 40,
            length: 1 << 20,
            packed: vec![7; 40],
            name: None,
        };
        match message {
            Message::Frame => {
                let keys = Keys {
                    token: Token([3; 16]),
                    address: vec![1; 50],
                    announcement: vec![2; 50],
                    greeting: export,
                };
                Frame::Keys(keys).to_bytes()
            }
            Message::Hello => Hello {
                from: From::Service(3),
                greeting: Some(Greeting {
                    rkey: vec![9; 40],
                    address: 1 << 40,
                }),
            }
            .to_bytes(),
            Message::HostArrive => HostArrive {
                collective,
                rank: 1,
                together: 1,
                send_memory: Some(export.clone()),
                receive_memory: Some(export),
                sends: vec![block(0), block(1)].into(),
                receives: vec![block(0), block(1)].into(),
                short: vec![5; 10],
                route: route(),
            }
            .to_bytes(),
            Message::DpuRts => {
                let mut draft = RtsDraft::default();
                for source in 0..3 {
                    draft.begin::<Narrow>(source, 1 << 40);
                    draft.block(&[source.to_le_bytes()[0]; 12], Some(b"short"));
                    draft.block(&[4; 12], None);
                    draft.end(&[9; 40]);
                }
                let (_, bytes) = draft.finish(RtsHead {
                    whole: 0,
                    collective,
                    from: 1,
                    offer: 2,
                });
                bytes
            }
            Message::DpuFin => DpuFin {
                from: 1,
                offers: vec![2, 3],
            }
            .to_bytes(),
            Message::HostFin => fin(collective).to_bytes(),
            Message::HostTree => tree(collective, export).to_bytes(),
            Message::DpuRelay => relay(collective).to_bytes(),
            Message::DpuRelayed => DpuRelayed { from: 1, id: 3 }.to_bytes_in(Vec::new()),
            Message::DpuNote => DpuNote {
                collective,
                from: 1,
            }
            .to_bytes_in(Vec::new()),
            Message::HostReduce => HostReduce {
                whole: 0,
                collective,
                rank: 1,
                reduction: Reduction::from_codes(2, 0).expect("a sum"),
                turn: Some(0),
                open: 0,
                length: 1 << 20,
                members: vec![0, 1, 2].into(),
                target: Target::Ranges(vec![block(1), block(2)]),
                send_memory: Some(export.clone()),
                receive_memory: Some(export),
                short: vec![5; 10],
            }
            .to_bytes(),
        }
    }

    /// An input: a mutated valid message, or mostly zeros, which make many lengths valid.
    fn input(random: &mut Rng, message: Message, sample: &[u8]) -> Vec<u8> {
        let mut bytes = if random.usize(..2) == 0 {
            sample.to_vec()
        } else {
            vec![0; random.usize(..160)]
        };
        if random.usize(..4) == 0 {
            bytes.truncate(random.usize(..=bytes.len()));
        }
        for _ in 0..random.usize(..8) {
            let at = random.usize(..bytes.len().max(1));
            let byte = random.u8(..);
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        let at = random.usize(..bytes.len().max(1));
        let edge = EDGES[random.usize(..EDGES.len())].to_le_bytes();
        if random.usize(..2) == 0
            && let Some(place) = bytes.get_mut(at..at + 8)
        {
            place.copy_from_slice(&edge);
        }
        if let (Message::Frame, Some(kind)) = (message, bytes.first_mut()) {
            *kind %= 13;
        }
        bytes
    }

    fn inputs() -> u64 {
        let inputs = std::env::var(INPUTS_VARIABLE);
        inputs.map_or(INPUTS, |text| text.parse().expect("a number of inputs"))
    }

    #[test]
    fn no_messages_make_a_job_panic() {
        let (mut random, mut good) = (Rng::with_seed(1), 0_u64);
        for _ in 0..inputs() {
            // Small numbers make messages that are valid.
            let wild = random.usize(..4) == 0;
            let script: Vec<u8> = (0..random.usize(..200))
                .map(|_| random.u8(..))
                .map(|byte| if wild { byte } else { byte % 100 })
                .collect();
            good += u64::from(job(&script));
        }
        eprintln!("{good} of {} scripts break nothing", inputs());
        assert!(good > 0 && good < inputs(), "{good}");
    }

    #[test]
    fn no_bytes_make_a_parser_panic() {
        let inputs = inputs();
        let mut random = Rng::with_seed(1);
        for message in Message::ALL {
            let sample = sample(message);
            assert!(parse(message, &sample), "{message:?}");
            let mut valid = 0_u64;
            for _ in 0..inputs {
                valid += u64::from(parse(message, &input(&mut random, message, &sample)));
            }
            eprintln!("{message:?}: {inputs} inputs, {valid} of them valid");
            assert!(valid > 0 && valid < inputs, "{message:?}: {valid}");
        }
    }
}
