//! Connects one service of a large job: its ranks and the service are real, and one thread answers for the services of all
//! other nodes. In a cluster each node does this work at the same time.

use super::*;
use crate::control::{PeerHello, ServiceAddress};
use crate::wire::Greeting;
use std::net::{TcpListener, TcpStream};
use xgvmi_daemon::Budget;

/// A job with one service per node.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Total number of ranks, a multiple of the nodes.
    pub ranks: u32,
    /// Number of nodes.
    pub nodes: u32,
}

/// The service of another node, which calls the measured one or is called by it.
struct Other {
    index: u32,
    address: ServiceAddress,
    listener: Option<TcpListener>,
}

/// Connects the ranks of the middle node, and ends their job. The measured service calls the services before it, and the
/// ones after it call it. The time ends when all of its ranks are ready.
///
/// # Errors
/// Errors of the system; others are a defect of the service.
pub fn connect(plan: &Plan) -> Result<Outcome> {
    let mailboxes: &'static Mailboxes = Box::leak(Box::default());
    let (service, service_address) = start(mailboxes)?;
    let me = plan.nodes / 2;
    let per_node = plan.ranks / plan.nodes;
    let others = (0..plan.nodes).filter(|index| *index != me);
    let others = others.map(|index| other(mailboxes, index, index < me));
    let others = others.collect::<Result<Vec<Other>>>()?;
    let ours = me * per_node..(me + 1) * per_node;

    let begun = Instant::now();
    let ranks = ours.map(|rank| knock(mailboxes, &service_address, JobId(1), rank, plan.ranks));
    let mut ranks = ranks.collect::<Result<Vec<Rank>>>()?;
    let welcomes = welcomes(&mut ranks)?;
    let Some(welcome) = welcomes.first() else {
        return Err(failed("there is no rank"));
    };
    let table = tabulate(&told_by_all(plan, me, welcome, &others))?;
    let worker = welcome.service.worker.clone();
    let tcp = welcome.service.tcp.clone();
    let crowd = thread::spawn(move || meet(mailboxes, &worker, &tcp, me, &others));
    let table = Frame::Table(table).to_bytes();
    ranks[0].link.send(&table).map_err(lost)?;
    for (number, welcome) in (me * per_node..).zip(&welcomes) {
        greet(mailboxes, number, welcome)?;
    }
    for rank in &mut ranks {
        await_ready(rank)?;
    }
    let time = begun.elapsed();
    let messages = mailboxes.messages.load(Relaxed);
    let links = crowd
        .join()
        .map_err(|_| failed("a thread has panicked"))??;
    for rank in &mut ranks {
        rank.link.send(&Frame::Bye.to_bytes()).map_err(lost)?;
    }
    service
        .join()
        .map_err(|_| failed("a service has panicked"))??;
    // The others leave after the measured service.
    drop(links);
    Ok(Outcome { time, messages })
}

/// What every rank of the job says of its service; one rank of each node tells the addresses.
fn told_by_all(plan: &Plan, me: u32, welcome: &Welcome, others: &[Other]) -> Vec<Told> {
    let per_node = plan.ranks / plan.nodes;
    let of_node = |node: u32| {
        let mut welcome = welcome.clone();
        if let Some(other) = others.iter().find(|other| other.index == node) {
            welcome.service = other.address.clone();
        }
        welcome
    };
    (0..plan.nodes)
        .flat_map(|node| {
            let welcome = if node == me {
                welcome.clone()
            } else {
                of_node(node)
            };
            (0..per_node).map(move |local| Told::of(&welcome, local == 0))
        })
        .collect()
}

/// A service of another node; with an address if it is called.
fn other(mailboxes: &Mailboxes, index: u32, is_called: bool) -> Result<Other> {
    let io = |error| OffloadError::io("a listener", error);
    let listener = is_called.then(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.transpose().map_err(io)?;
    let tcp = match &listener {
        Some(listener) => listener.local_addr().map_err(io)?.to_string(),
        None => "127.0.0.1:9".to_owned(),
    };
    let (_, worker) = add(mailboxes, None);
    Ok(Other {
        index,
        address: ServiceAddress {
            unique: 1 << 32 | u64::from(index),
            tcp,
            worker: worker.to_le_bytes().to_vec(),
        },
        listener,
    })
}

/// Plays the part of all other services. Their connections end when they are dropped.
fn meet(
    mailboxes: &Mailboxes,
    worker: &[u8],
    tcp: &str,
    me: u32,
    others: &[Other],
) -> Result<Vec<Link>> {
    let budget = Budget::new(1 << 30);
    let mailbox = find(mailboxes, worker)?;
    let mut links = Vec::new();
    for other in others {
        let token = Token((1 << 64 | u128::from(other.index)).to_le_bytes());
        let (link, accepted) = match &other.listener {
            Some(listener) => called(listener, &budget, token, me)?,
            None => calls(tcp, other.index, token)?,
        };
        let greeting = Greeting {
            rkey: APART.to_le_bytes().to_vec(),
            address: APART,
        };
        let hello = HelloMessage {
            from: From::Service(other.index),
            greeting: Some(greeting),
        };
        mailbox.put(Kind::Hello, hello_header(accepted), hello.to_bytes());
        links.push(link);
    }
    Ok(links)
}

/// The measured service calls; returns the token that it expects.
fn called(listener: &TcpListener, budget: &Budget, token: Token, me: u32) -> Result<(Link, Token)> {
    let io = |error| OffloadError::io("a call of the service", error);
    let (stream, _): (TcpStream, _) = listener.accept().map_err(io)?;
    let mut link = Link::called(stream, FRAMES, &[], budget).map_err(io)?;
    match answer(&mut link)? {
        Frame::Peer(peer) if peer.index == me => {
            link.send(&Frame::PeerWelcome(token).to_bytes())
                .map_err(lost)?;
            Ok((link, peer.token))
        }
        frame => Err(failed(format!("a service says {}", frame.name()))),
    }
}

/// Calls the measured service; returns the token that it expects.
fn calls(tcp: &str, index: u32, token: Token) -> Result<(Link, Token)> {
    let mut link = Link::connect(tcp, LIMIT, FRAMES, None).map_err(lost)?;
    let job = JobId(1);
    let hello = PeerHello { job, index, token };
    link.send(&Frame::Peer(hello).to_bytes()).map_err(lost)?;
    match answer(&mut link)? {
        Frame::PeerWelcome(accepted) => Ok((link, accepted)),
        frame => Err(failed(format!("a service answers {}", frame.name()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_one_node_get_ready_in_a_job_of_any_size() {
        for (ranks, nodes) in [(4, 2), (12, 3), (2048, 64)] {
            let outcome = connect(&Plan { ranks, nodes }).expect("connected");
            let per_node = u64::from(ranks / nodes);
            // Two for each rank of the node, and two for each other service.
            let expect = 2 * per_node + 2 * u64::from(nodes - 1);
            assert_eq!(outcome.messages, expect, "{ranks} ranks on {nodes} nodes");
        }
    }
}
