//! The process on the DPU of a node: it makes aliases of its ranks' keys and launches the kernel that moves their blocks.
//!
//! A block is read by the DPU of the receiving rank: from the other DPU's alias, or from an own one, into an own alias. The
//! Arm cores copy no byte and post no request.

use super::device::{Dpa, Flags, Queue, await_flag, bytes, function};
use super::link::{Exported, Finished, Hello, Link, Post, Readable, exchange, in_order};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexio::{Function, Launch};
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use xgvmi_pool::{AccessKey, Gvmi};
use xgvmi_verbs::{Access, HostAliases, Keys};

/// Ranks of each of the two nodes.
pub(super) const RANKS_PER_NODE: usize = 2;
/// Most blocks of a queue in a job, as in kernels.c, and the words of one.
const BLOCKS_MAX: usize = 64;
const BLOCK_WORDS: usize = 4;
/// Queues: to the own function, and to the other DPU.
const QUEUES: usize = 2;

#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// Program of the DPA.
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Port for the ranks of the node, and on node 0 for the other agent.
    #[arg(long)]
    port: u16,
    /// Port of the agent on node 0, which listens; none on node 0 itself.
    #[arg(long)]
    other: Option<u16>,
    /// Number of the node.
    #[arg(long)]
    node: usize,
}

/// The blocks of a call that an agent lets the other one read: one element for each own rank.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    block: u64,
    sends: Vec<Readable>,
}

/// A rank of the node.
struct Rank {
    link: Link,
    keys: Keys,
}

impl Agent {
    /// Serves the ranks until they end.
    pub(crate) fn run(&self) -> Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", self.port))?;
        let mut stdout = std::io::stdout();
        writeln!(stdout, "listens")?;
        stdout.flush()?;
        let mut other = match self.other {
            Some(port) => Link::connect(&format!("127.0.0.1:{port}"))?,
            None => Link::accept(&listener)?,
        };
        let dpa = Dpa::open(&self.image)?;
        let mover = Mover::connect(&dpa, &mut other)?;
        let aliases = HostAliases::open(&dpa.adapter)?;
        writeln!(stdout, "connected")?;
        stdout.flush()?;
        let mut hellos = Vec::new();
        for _ in 0..RANKS_PER_NODE {
            let mut link = Link::accept(&listener)?;
            hellos.push((link.receive::<Hello>()?, link));
        }
        let mut ranks = Vec::new();
        for (hello, mut link) in in_order(hellos)? {
            let keys = admit(&aliases, &hello)?;
            link.send(&Finished)?;
            ranks.push(Rank { link, keys });
        }
        let mut calls = Calls {
            node: self.node,
            dpa: &dpa,
            mover,
            aliases: &aliases,
            other,
            ranks,
        };
        while calls.serve()? {}
        Ok(())
    }
}

/// Creates the aliases of a rank's announced keys.
fn admit(aliases: &HostAliases, hello: &Hello) -> Result<Keys> {
    let access = hello.access_key.as_slice().try_into();
    let access = AccessKey::new(access.context("an access key")?);
    let keys = Keys {
        pooled: true,
        gvmi: Gvmi::new(hello.gvmi),
        owner: access.owner(),
        access,
    };
    aliases.enter(keys.owner);
    aliases.receive(&hello.announcement, &keys.access)?;
    Ok(keys)
}

/// Queues of the kernel, and the place of its job.
struct Mover {
    queues: Vec<Queue>,
    flags: Flags,
    job: u64,
    kernel: Function,
    jobs: u64,
}

impl Mover {
    fn connect(dpa: &Dpa, other: &mut Link) -> Result<Self> {
        let flags = Flags::new(dpa, QUEUES)?;
        let queues = Queue::array(dpa, ("on_done", QUEUES), &flags, &[])?;
        let ends = exchange(other, &queues[1].end())?;
        // A reliable queue pair may be connected to itself.
        queues[0].connect(queues[0].end())?;
        queues[1].connect(ends)?;
        // The other side may read only after both have connected.
        let Finished = exchange(other, &Finished)?;
        let job = dpa.zeroed(8 * (QUEUES + QUEUES * BLOCKS_MAX * BLOCK_WORDS) as u64)?;
        Ok(Self {
            queues,
            flags,
            job,
            kernel: function("post_reads", 2),
            jobs: 0,
        })
    }

    /// Moves blocks: those of the own function, and those of the other one.
    fn transfer(&mut self, dpa: &Dpa, blocks: [&[[u64; BLOCK_WORDS]]; QUEUES]) -> Result<()> {
        let mut words = blocks.map(|of| of.len() as u64).to_vec();
        for of in blocks {
            ensure!(
                (1..=BLOCKS_MAX).contains(&of.len()),
                "{} blocks: a queue moves 1 to {BLOCKS_MAX}",
                of.len()
            );
        }
        for block in blocks[0] {
            words.extend(block);
        }
        dpa.process.copy_in(self.job, &bytes(&words))?;
        let words: Vec<u64> = blocks[1].iter().flatten().copied().collect();
        let second = self.job + 8 * (QUEUES + BLOCKS_MAX * BLOCK_WORDS) as u64;
        dpa.process.copy_in(second, &bytes(&words))?;
        dpa.launch(&Launch {
            function: &self.kernel,
            arguments: &bytes(&[self.queues[0].address(), self.job]),
            threads: u32::try_from(QUEUES)?,
            wait: None,
            done: None,
        })?;
        self.jobs += 1;
        for queue in 0..QUEUES {
            await_flag(&mut self.flags, queue, self.jobs, &dpa.process)?;
        }
        Ok(())
    }
}

/// The calls of the two ranks.
struct Calls<'a> {
    node: usize,
    dpa: &'a Dpa,
    mover: Mover,
    aliases: &'a HostAliases,
    other: Link,
    ranks: Vec<Rank>,
}

impl Calls<'_> {
    /// Serves one call; false after the end of the ranks.
    fn serve(&mut self) -> Result<bool> {
        let mut posts = Vec::new();
        for rank in &mut self.ranks {
            match rank.link.next::<Post>()? {
                Some(post) => posts.push(post),
                None => return Ok(false),
            }
        }
        let block = posts[0].block;
        let size = |post: &Post| post.block == block;
        ensure!(
            posts.iter().all(size),
            "the ranks have blocks of other sizes"
        );
        let attached = self.attach(&posts)?;
        let sends: Vec<Readable> = posts
            .iter()
            .zip(&attached)
            .map(|(post, (send, _))| readable(post.send, send))
            .collect();
        let offer = Offer {
            block,
            sends: sends.clone(),
        };
        let offered: Offer = exchange(&mut self.other, &offer)?;
        ensure!(
            offered.block == block && offered.sends.len() == RANKS_PER_NODE,
            "the other node's call has blocks of {} bytes",
            offered.block
        );
        let receives: Vec<Readable> = posts
            .iter()
            .zip(&attached)
            .map(|(post, (_, receive))| readable(post.receive, receive))
            .collect();
        let own = self.blocks(self.node, &sends, &receives, block);
        let others = self.blocks(1 - self.node, &offered.sends, &receives, block);
        self.mover.transfer(self.dpa, [&own, &others])?;
        // The ranks of this node may have their buffers back when the other DPU has read them.
        let Finished = exchange(&mut self.other, &Finished)?;
        drop(attached);
        for rank in &mut self.ranks {
            rank.link.send(&Finished)?;
        }
        Ok(true)
    }

    /// Aliases of the keys of all buffers.
    fn attach(&self, posts: &[Post]) -> Result<Vec<(Access, Access)>> {
        let mut attached = Vec::new();
        for (rank, post) in self.ranks.iter().zip(posts) {
            let keys = Keys {
                pooled: post.is_pooled,
                ..rank.keys.clone()
            };
            let attach = |of: Exported| {
                self.aliases
                    .attach(&keys, of.mkey)
                    .map_err(anyhow::Error::msg)
            };
            attached.push((attach(post.send)?, attach(post.receive)?));
        }
        Ok(attached)
    }

    /// The blocks from the ranks of a node to the own ones.
    fn blocks(
        &self,
        node: usize,
        sends: &[Readable],
        receives: &[Readable],
        block: u64,
    ) -> Vec<[u64; BLOCK_WORDS]> {
        let mut blocks = Vec::new();
        for (index, send) in sends.iter().enumerate() {
            for (own, receive) in receives.iter().enumerate() {
                let from = node * RANKS_PER_NODE + index;
                let to = self.node * RANKS_PER_NODE + own;
                blocks.push([
                    receive.address + from as u64 * block,
                    send.address + to as u64 * block,
                    u64::from(receive.key) | u64::from(send.key) << 32,
                    block,
                ]);
            }
        }
        blocks
    }
}

fn readable(memory: Exported, alias: &Access) -> Readable {
    Readable {
        address: memory.address,
        key: alias.lkey().raw(),
    }
}
