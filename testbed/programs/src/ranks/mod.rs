//! The beginning and the end of a program that is one rank of a job.

use anyhow::{Context as _, Result, bail};
use std::time::Duration;
use xgvmi_offload::{Client, ClientArgs, Scheme, TcpExchange};

/// Time limits of a job whose device or machine is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// A connected rank.
pub(crate) struct Rank {
    pub(crate) client: Client,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) rounds: u32,
}

impl Rank {
    /// Connects the rank of the arguments: RANK SIZE NODE MEET SERVICES SCHEME ROUNDS.
    pub(crate) fn connect(program: &str) -> Result<Self> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [rank, size, node, meet, services, scheme, rounds] = words.as_slice() else {
            bail!("usage: {program} RANK SIZE NODE MEET SERVICES SCHEME ROUNDS");
        };
        let (rank, size, rounds): (u32, u32, u32) = (rank.parse()?, size.parse()?, rounds.parse()?);
        let scheme = [Scheme::Ksm, Scheme::Stock, Scheme::Xgvmi]
            .into_iter()
            .find(|known| known.to_string() == *scheme)
            .context("no such scheme")?;
        let args = ClientArgs {
            services: services.split(',').map(str::to_owned).collect(),
            node: Some(node.clone()),
            // Few ranks use all SPs.
            ranks_per_sp: Some(1),
            offload_limit: Some(LIMIT),
            connect_limit: Some(LIMIT),
            ..ClientArgs::default()
        };
        let options = args.options(scheme)?;
        let mut exchange = TcpExchange::meet(meet, rank, size, LIMIT)?;
        Ok(Self {
            client: Client::connect(&options, rank, size, &mut exchange)?,
            rank,
            size,
            rounds,
        })
    }

    /// Closes the connections and tells how many bytes were right.
    #[expect(clippy::print_stdout, reason = "a program's answer")]
    pub(crate) fn end(self, verified: u64) -> Result<()> {
        self.client.close()?;
        println!("rank {}: {verified} bytes verified", self.rank);
        Ok(())
    }
}
