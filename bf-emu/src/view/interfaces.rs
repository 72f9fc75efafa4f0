//! The network interfaces over a view's ports, as a kernel lists them beside those of the machine.

use std::net::IpAddr;

use crate::model::address::gid_of;
use crate::model::sockaddr::SocketAddress;
use crate::model::topology::View;

/// Bytes of an interface's name with its NUL (`IFNAMSIZ`, linux/if.h).
pub const NAME_BYTES: usize = 16;

/// The network masks of the ports' addresses: two bytes of IPv4, eight bytes of IPv6
/// ([`crate::fabric::Fabric::cm_is_neighbour`]).
const MASKS: (u32, u128) = (u32::MAX << 16, u128::MAX << 64);

/// An interface with one of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `bf<function>p<port>`, such as `bf0p1`. It ends with a NUL.
    pub name: [u8; NAME_BYTES],
    /// The address.
    pub address: SocketAddress,
    /// The mask of the address's network.
    pub mask: SocketAddress,
}

/// The interfaces of a view: one for each port, with one element for each of its addresses.
#[must_use]
pub fn of_view(view: &View) -> Vec<Interface> {
    let mut all = Vec::new();
    for (function, spec) in view.functions.iter().enumerate() {
        for (port, spec) in (1..).zip(&spec.ports) {
            let mut name = [0; NAME_BYTES];
            for (to, from) in name.iter_mut().zip(format!("bf{function}p{port}").bytes()) {
                *to = from;
            }
            all.extend(spec.addresses.iter().map(|&address| Interface {
                name,
                address: of_ip(address),
                mask: of_ip(match address {
                    IpAddr::V4(_) => IpAddr::V4(MASKS.0.into()),
                    IpAddr::V6(_) => IpAddr::V6(MASKS.1.into()),
                }),
            }));
        }
    }
    all
}

fn of_ip(address: IpAddr) -> SocketAddress {
    SocketAddress::of_ip(&gid_of(address), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::topology::Topology;

    #[test]
    fn each_address_of_a_port_has_its_interface() {
        let functions = Topology::with_nodes(2)
            .unwrap()
            .select("node1.host,node1.dpu")
            .unwrap();
        let expect: Vec<_> = functions
            .iter()
            .flat_map(|function| &function.ports[0].addresses)
            .map(|address| of_ip(*address))
            .collect();
        let all = of_view(&View {
            functions,
            sys_root: "/".into(),
        });
        let addresses: Vec<_> = all.iter().map(|interface| interface.address).collect();
        assert_eq!(addresses, expect);
        let names: Vec<_> = all.iter().map(|interface| &interface.name[..6]).collect();
        assert_eq!(names, [b"bf0p1\0", b"bf0p1\0", b"bf1p1\0", b"bf1p1\0"]);
        let masks: Vec<_> = all.iter().map(|interface| interface.mask.gid()).collect();
        assert_eq!(masks[0][12..], [255, 255, 0, 0]);
        assert_eq!(masks[1], (u128::MAX << 64).to_be_bytes());
    }
}
