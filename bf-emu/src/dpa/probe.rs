//! Probes that a program of the receiver answers: the packet as it arrives there, with what the fabric knows as metadata.

use mlx5_prm::dpa::congestion::{PROBE_CCMAD, PROBE_IFA1, PROBE_IFA2};
use pcc_dev::layout::{PROBE_BYTES, Probe, RESPONSE_BYTES};

use super::tables::Functions;
use super::worker::State;

/// Ethernet and IPv4 headers.
const L4_AT: usize = 14 + 20;
const UDP_BYTES: usize = 8;
/// Base and datagram headers, and the header of a management datagram.
const MANAGEMENT_BYTES: usize = 12 + 8 + 24;
/// Guess: data of a management datagram.
const DATA_BYTES: usize = 64;
/// Marker of IFA 1.0, and the metadata of one switch.
const MARKER_BYTES: usize = 8;
const METADATA_BYTES: usize = 32;
/// Most bytes of a packet.
const PACKET_BYTES_MAX: usize = L4_AT + UDP_BYTES + MANAGEMENT_BYTES + DATA_BYTES;
/// Bytes of a cell of a switch's queue, as NVIDIA's program counts them.
const CELL_BYTES: u64 = 256;
/// Guess: numbers of the fabric's switch and its port, and the type of the port.
const SWITCH_PORT: u16 = 1;
const PORT_TYPE: u8 = 2;
/// Port of RoCE v2.
const UDP_PORT: u16 = 4_791;

/// Memory of a process for a probe, its answer and its packet.
pub(super) const PLACE_BYTES: usize = PROBE_BYTES + PACKET_BYTES_MAX;

/// What the fabric knows about a probe that arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// See [`mlx5_prm::dpa::congestion`].
    pub(super) form: u8,
    pub(super) hops: u8,
    /// Queue before the port, bytes that the port has passed on, and the time, all of the device.
    pub(super) queue_bytes: u64,
    pub(super) port_bytes: u64,
    pub(super) time_ns: u32,
}

impl Arrival {
    /// The packet, and where its payload begins.
    fn packet(&self) -> (Vec<u8>, usize) {
        let mut packet = vec![0; L4_AT + UDP_BYTES];
        packet[12..14].copy_from_slice(&[8, 0]);
        // IPv4 without options; UDP.
        packet[14] = 0x45;
        packet[22] = self.hops;
        packet[23] = 17;
        packet[L4_AT + 2..L4_AT + 4].copy_from_slice(&UDP_PORT.to_be_bytes());
        let payload = match self.form {
            PROBE_IFA1 | PROBE_IFA2 => {
                if self.form == PROBE_IFA1 {
                    packet.resize(packet.len() + MARKER_BYTES, 0);
                }
                let payload = packet.len();
                let words = u8::try_from(METADATA_BYTES / 4).unwrap_or(u8::MAX);
                packet.extend([0, 0, self.hops.saturating_sub(1), words]);
                packet.extend(self.metadata());
                payload
            }
            _ => {
                packet.resize(PACKET_BYTES_MAX, 0);
                PACKET_BYTES_MAX - DATA_BYTES
            }
        };
        let bytes = u16::try_from(packet.len()).unwrap_or(u16::MAX);
        let (ip, udp) = (bytes - 14, bytes - 34);
        packet[16..18].copy_from_slice(&ip.to_be_bytes());
        packet[L4_AT + 4..L4_AT + 6].copy_from_slice(&udp.to_be_bytes());
        (packet, payload)
    }

    /// What the fabric's one switch writes.
    fn metadata(&self) -> [u8; METADATA_BYTES] {
        let cells = self.queue_bytes.div_ceil(CELL_BYTES);
        let cells = u16::try_from(cells).unwrap_or(u16::MAX);
        let [.., a, b, c, d] = self.port_bytes.to_be_bytes();
        let mut data = [0; METADATA_BYTES];
        data[2] = 1;
        data[3] = PORT_TYPE;
        data[18..22].copy_from_slice(&self.time_ns.to_be_bytes());
        data[22..24].copy_from_slice(&cells.to_be_bytes());
        data[26..28].copy_from_slice(&SWITCH_PORT.to_be_bytes());
        data[28..].copy_from_slice(&[a, b, c, d]);
        data
    }
}

/// Lets a process answer a probe. None if the process fails; no bytes if the program does not answer.
pub(super) fn answer(
    state: &mut State,
    functions: Functions,
    address: u64,
    arrival: &Arrival,
) -> Option<Option<[u8; RESPONSE_BYTES]>> {
    let (packet, payload) = arrival.packet();
    let at = address + PROBE_BYTES as u64;
    let offset = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut probe = Probe::new(at, offset(packet.len()), offset(L4_AT), offset(payload), 0);
    state.os.write(at, &packet).ok()?;
    state.os.write(address, &probe.0).ok()?;
    let arguments = address.to_le_bytes().to_vec();
    let status = state.complete(functions, arguments).ok()?;
    state.os.read(address, &mut probe.0).ok()?;
    Some((status == 0).then(|| probe.response()))
}

/// True if a receiver's program answers probes of this form.
pub(super) fn is_answered(form: u8) -> bool {
    matches!(form, PROBE_CCMAD | PROBE_IFA1 | PROBE_IFA2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(form: u8) -> Arrival {
        Arrival {
            form,
            hops: 9,
            queue_bytes: 5 * CELL_BYTES + 1,
            port_bytes: 0x1_0203_0405,
            time_ns: 0x1122_3344,
        }
    }

    #[test]
    fn each_form_has_its_headers_and_says_its_length() {
        for (form, expect) in [(PROBE_CCMAD, 86), (PROBE_IFA1, 50), (PROBE_IFA2, 42)] {
            let (packet, payload) = arrival(form).packet();
            assert_eq!(payload, expect, "form {form}");
            assert!(packet.len() <= PACKET_BYTES_MAX && payload < packet.len());
            let length = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
            assert_eq!(
                (length(16), length(38)),
                (packet.len() - 14, packet.len() - 34)
            );
            assert_eq!((packet[23], length(36)), (17, 4_791));
        }
    }

    #[test]
    fn metadata_has_the_queue_in_cells_the_bytes_of_the_port_and_the_time() {
        let (packet, payload) = arrival(PROBE_IFA2).packet();
        assert_eq!(
            packet[payload..payload + 4],
            [0, 0, 8, 8],
            "one hop, eight words"
        );
        let data = &packet[payload + 4..];
        assert_eq!(data[18..24], [0x11, 0x22, 0x33, 0x44, 0, 6], "six cells");
        assert_eq!(data[28..], [2, 3, 4, 5]);
    }
}
