//! The output of `-h`.

use super::Program;

const COMMON: &str = "\
Options of OSU's micro-benchmarks:
  -h, --help                print this help
  -v, --version             print version info
  -f, --full                more columns: minimum and maximum over ranks, iterations
  -m, --message-size        [MIN:]MAX, MIN: or :MAX, bytes to each rank (default 1:1048576, doubling)
  -i, --iterations          ITER timed iterations (default 1000, and 100 above 8192 bytes)
  -x, --warmup              ITER untimed iterations before them (default 100, and 10 above 8192 bytes)
  -M, --mem-limit           SIZE in bytes, maximum of one buffer (default 536870912)
  -c, --validation          compare every received byte
  -u, --validation-warmup   ITER calls before each validated iteration (default 5, at most 10)
  -T, --type                MPI_CHAR, MPI_INT, MPI_FLOAT or all: one table per datatype; repeatable (default MPI_CHAR)
  -l, --in-place            send from the receive buffer (MPI_IN_PLACE)
  -a, --array-size          SIZE of arrays on an accelerator; no effect without one
  -z, --tail-lat            [P,P,..] percentiles of the mean over ranks; no space after the letter (default 50,90,99)
";

const TEST_CALLS: &str =
    "  -t, --num-test-calls      CALLS of MPI_Test during the computation (default 0)\n";

const OWN: &str = "
Options of these programs:
  --backend mpi|offload     backend: MPI, or the service processes on the DPUs (default mpi)
  --scheme ksm|stock|xgvmi  keys of the offloaded collective: stock UCX with a key per buffer, stock UCX with its own
                            pool, or the same UCX with this project's library (default xgvmi)
  --sp ADDR:PORT,..         service processes of this rank's node; the node's ranks share them
  --node NAME               this rank's node (default: the host's name)
  --offload-config FILE     file with the service processes of all nodes and other options
  --connect-limit-s S, --offload-limit-s S
                            time limits of the connection set-up and of a collective (default 30 and 0: none)
  --offload-spin-us US      polling time before a wait sleeps (default 0)
  --secret-file FILE        secret of the service processes
  --plugin FILE             library of scheme xgvmi (default: libuct_ib_mlx5_xgvmi.so in this program's directory)
  --ucx-library FILE        libucp of the offloaded collective (default: the loader's search)
  --temp-buffers KIND       none: one pair of buffers for all iterations, as in OSU (default)
                            malloc, mmap: a new pair in each iteration; ring:N: N pairs in turn
  --time-alloc              include allocation, first touch and release of temporary buffers in the times
  --barrier spin|sleep      wait between iterations; use sleep with fewer cores than processes (default spin)
  --json FILE, --csv FILE   write the results (rank 0)
  --plot FILE.svg           plot the results (rank 0)
  --counters COMMAND.. ;    rank 0 runs COMMAND before and after the timed iterations of a size and writes the
                            device's commands per iteration to the JSON file
  --service-pids LIST       service processes on rank 0's machine; their processor time per iteration goes to the
                            JSON file
  --mpi-library FILE        library compiled from shim/osu_mpi.c with your mpicc (default: $OSU_MPI_LIBRARY, else
                            libosu_mpi.so in this program's directory)
";

const COMPUTE: &str = "  --compute loop|sleep      computation: OSU's loop, or a sleep of the same length (default loop)\n";

/// The whole text.
#[must_use]
pub fn help(program: Program) -> String {
    let (test_calls, compute) = match program {
        Program::Blocking => ("", ""),
        Program::NonBlocking => (TEST_CALLS, COMPUTE),
    };
    format!(
        "Usage: {} [options]\n{COMMON}{test_calls}{OWN}{compute}",
        program.name()
    )
}
