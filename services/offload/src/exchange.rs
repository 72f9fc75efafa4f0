//! Allgather between the ranks of a job. The ranks use it to find each other before the offload is connected.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// An allgather between all ranks. In an MPI program this is `MPI_Allgatherv` on `MPI_COMM_WORLD`.
pub trait Exchange {
    /// Every rank calls this the same number of times. Each rank receives the bytes of all ranks, in rank order.
    ///
    /// # Errors
    /// The exchange failed. The other ranks cannot be notified through the exchange then.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error + Send + Sync>>;
}

/// An exchange over TCP, for programs without MPI: rank 0 listens, the others connect.
#[derive(Debug)]
pub struct TcpExchange {
    /// At rank 0, streams to the other ranks in rank order; at other ranks, the stream to rank 0.
    streams: Vec<TcpStream>,
    rank: u32,
    size: u32,
    limit: Duration,
}

/// Maximum bytes of one rank, and of all ranks together.
const BYTES_MAX: u64 = 1 << 30;

impl TcpExchange {
    /// Connects to the other ranks. `address` is the address of rank 0.
    ///
    /// # Errors
    /// Errors of the system, or [`io::ErrorKind::TimedOut`] if some ranks have not connected within `limit`. The limit
    /// also bounds each step of every later exchange.
    pub fn meet(address: &str, rank: u32, size: u32, limit: Duration) -> io::Result<Self> {
        let end = Instant::now() + limit;
        let streams = if rank == 0 {
            gather(&xgvmi_daemon::listen(address)?, size, end)?
        } else {
            vec![join(address, rank, size, end)?]
        };
        Self::over(streams, rank, size, limit)
    }

    fn over(streams: Vec<TcpStream>, rank: u32, size: u32, limit: Duration) -> io::Result<Self> {
        for stream in &streams {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(limit))?;
            stream.set_write_timeout(Some(limit))?;
        }
        if let ([stream], true) = (&streams[..], rank > 0) {
            read_verdict(stream)?;
        }
        Ok(Self {
            streams,
            rank,
            size,
            limit,
        })
    }

    /// The error of the connection to `rank`.
    fn error_of(&self, rank: u32, error: &io::Error) -> io::Error {
        let what = match error.kind() {
            // The system's name for the end of a socket's time limit.
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("has not answered within {} s", self.limit.as_secs())
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => {
                "has closed its connection: it has ended or was killed".to_owned()
            }
            _ => error.to_string(),
        };
        io::Error::new(error.kind(), format!("rank {rank} {what}"))
    }
}

impl Exchange for TcpExchange {
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error + Send + Sync>> {
        if self.rank == 0 {
            let mut all = vec![mine.to_vec()];
            for (rank, mut stream) in (1..).zip(&self.streams) {
                let blob = read_blob(&mut stream);
                all.push(blob.map_err(|error| self.error_of(rank, &error))?);
            }
            for (rank, mut stream) in (1..).zip(&self.streams) {
                for one in &all {
                    write_blob(&mut stream, one).map_err(|error| self.error_of(rank, &error))?;
                }
            }
            return Ok(all);
        }
        let [stream] = &self.streams[..] else {
            return Err("no connection to rank 0".into());
        };
        let mut stream = stream;
        let of_rank_0 = |error: io::Error| self.error_of(0, &error);
        write_blob(&mut stream, mine).map_err(of_rank_0)?;
        let all = (0..self.size).map(|_| Ok(read_blob(&mut stream).map_err(of_rank_0)?));
        all.collect()
    }
}

/// Accepts all other ranks and sends each the verdict.
fn gather(listener: &TcpListener, size: u32, end: Instant) -> io::Result<Vec<TcpStream>> {
    listener.set_nonblocking(true)?;
    let mut streams: Vec<Option<TcpStream>> = (1..size).map(|_| None).collect();
    let mut strangers = Vec::new();
    let mut verdict = Ok(());
    while verdict.is_ok() && streams.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                let (rank, of) = (read_u32(&mut stream)?, read_u32(&mut stream)?);
                let slot = (rank as usize).checked_sub(1);
                let slot = slot.and_then(|index| streams.get_mut(index));
                match slot {
                    Some(slot) if slot.is_none() && of == size => *slot = Some(stream),
                    _ => {
                        strangers.push(stream);
                        verdict = Err(invalid(format!(
                            "rank 0 is one of {size}, and a rank {rank} of {of} has come"
                        )));
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let absent = (1u32..)
                        .zip(&streams)
                        .filter(|(_, stream)| stream.is_none());
                    let absent: Vec<_> = absent.map(|(rank, _)| rank.to_string()).collect();
                    verdict = Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("ranks {} have not come", absent.join(", ")),
                    ));
                    break;
                }
                let fd = std::os::fd::AsRawFd::as_raw_fd(listener);
                xgvmi_daemon::poll(&mut [xgvmi_daemon::pollfd(fd, libc::POLLIN)], Some(left))?;
            }
            Err(error) => return Err(error),
        }
    }
    let text = verdict.as_ref().err().map(ToString::to_string);
    for stream in strangers.iter_mut().chain(streams.iter_mut().flatten()) {
        let told = write_blob(stream, text.as_deref().unwrap_or_default().as_bytes());
        // The first failure counts.
        verdict = verdict.and(told);
    }
    verdict.map(|()| streams.into_iter().flatten().collect())
}

/// Connects to rank 0 as a rank.
fn join(address: &str, rank: u32, size: u32, end: Instant) -> io::Result<TcpStream> {
    // Rank 0 may not be listening yet.
    let mut stream = xgvmi_daemon::reach(address, end.saturating_duration_since(Instant::now()))?;
    stream.write_all(&rank.to_le_bytes())?;
    stream.write_all(&size.to_le_bytes())?;
    Ok(stream)
}

/// Reads the verdict of rank 0; an empty one means success.
fn read_verdict(mut stream: &TcpStream) -> io::Result<()> {
    let verdict = read_blob(&mut stream).map_err(|error| {
        io::Error::new(error.kind(), format!("rank 0 has not answered: {error}"))
    })?;
    if verdict.is_empty() {
        Ok(())
    } else {
        Err(invalid(String::from_utf8_lossy(&verdict).into_owned()))
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn read_u32(stream: &mut impl Read) -> io::Result<u32> {
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    Ok(u32::from_le_bytes(word))
}

fn write_blob(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

fn read_blob(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > BYTES_MAX {
        return Err(invalid(format!("{length} bytes of one rank")));
    }
    let mut bytes = Vec::new();
    if stream.take(length).read_to_end(&mut bytes)? as u64 == length {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn every_rank_gets_all_bytes_in_order() {
        const SIZE: u32 = 5;
        // The port stays bound: a free port may become another test's between its choice and its use.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let mut listener = Some(listener);
        let ranks: Vec<_> = (0..SIZE)
            .map(|rank| {
                let (address, listener) = (address.clone(), listener.take());
                thread::spawn(move || {
                    let end = Instant::now() + LIMIT;
                    let mut exchange = match listener {
                        Some(listener) => gather(&listener, SIZE, end)
                            .and_then(|streams| TcpExchange::over(streams, rank, SIZE, LIMIT)),
                        None => TcpExchange::meet(&address, rank, SIZE, LIMIT),
                    }
                    .expect("met");
                    (0..3u32)
                        .map(|round| {
                            let mine = vec![round.to_le_bytes()[0]; rank as usize];
                            exchange.allgather(&mine).expect("gathered")
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let expect: Vec<Vec<Vec<u8>>> = (0..3)
            .map(|round| (0..SIZE as usize).map(|count| vec![round; count]).collect())
            .collect();
        for rank in ranks {
            assert_eq!(rank.join().expect("no panic"), expect);
        }
    }

    #[test]
    fn a_wrong_number_of_ranks_is_told_to_all() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let end = Instant::now() + LIMIT;
        // Rank 0 accepts the ranks in the order of their connections, so it knows rank 1 when it meets the wrong one.
        let ranks = [(1, 3), (2, 4)]
            .map(|(rank, size)| join(&address, rank, size, end).expect("connected"));
        let mut errors = vec![gather(&listener, 3, end).unwrap_err()];
        for rank in &ranks {
            rank.set_read_timeout(Some(LIMIT)).expect("set");
            errors.push(read_verdict(rank).unwrap_err());
        }
        for error in errors {
            let error = error.to_string();
            assert!(error.contains("a rank 2 of 4 has come"), "{error}");
        }
    }

    #[test]
    fn a_silent_rank_and_an_ended_rank_are_named() {
        for (limit, is_there, expect) in [
            (
                Duration::from_millis(1),
                true,
                "rank 1 has not answered within 0 s",
            ),
            (
                LIMIT,
                false,
                "rank 1 has closed its connection: it has ended or was killed",
            ),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("bound").to_string();
            let end = Instant::now() + LIMIT;
            let other = join(&address, 1, 2, end).expect("connected");
            let other = is_there.then_some(other);
            let streams = gather(&listener, 2, end).expect("gathered");
            let mut exchange = TcpExchange::over(streams, 0, 2, limit).expect("met");
            let error = exchange.allgather(&[]).unwrap_err();
            assert_eq!(error.to_string(), expect);
            drop(other);
        }
    }

    #[test]
    fn a_missing_rank_is_named() {
        let limit = Duration::from_millis(1);
        let error = TcpExchange::meet("127.0.0.1:0", 0, 3, limit).unwrap_err();
        assert_eq!(error.to_string(), "ranks 1, 2 have not come");
    }
}
