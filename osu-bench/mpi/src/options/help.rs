//! What `-h` prints.

use super::Program;

const COMMON: &str = "\
Options of OSU's micro-benchmarks:
  -h, --help                print this help
  -v, --version             print version info
  -f, --full                more columns: least and greatest of all ranks, iterations
  -m, --message-size        [MIN:]MAX, MIN: or :MAX, bytes to each rank (default 1:1048576, doubling)
  -i, --iterations          ITER timed iterations (default 1000, and 100 above 8192 bytes)
  -x, --warmup              ITER iterations before them (default 100, and 10 above 8192 bytes)
  -M, --mem-limit           SIZE bytes that one buffer may have (default 536870912)
  -c, --validation          compare every byte that is received
  -u, --validation-warmup   ITER calls before each iteration that is validated (default 5, at most 10)
  -T, --type                MPI_CHAR, MPI_INT, MPI_FLOAT or all: a table for each, may be repeated (default MPI_CHAR)
  -l, --in-place            what is sent lies where what comes will be (MPI_IN_PLACE)
  -a, --array-size          SIZE of arrays on an accelerator: taken, and of no effect without one
  -z, --tail-lat            [P,P,..] percentiles of the mean over ranks, attached to the letter (default 50,90,99)
";

const TEST_CALLS: &str =
    "  -t, --num-test-calls      CALLS of MPI_Test during the computation (default 0)\n";

const OWN: &str = "
Options of these programs:
  --backend mpi|offload     who carries the collective out: MPI, or the service processes on the DPUs (default mpi)
  --scheme ksm|stock|xgvmi  keys of the offloaded collective: stock UCX that creates a key for each buffer, stock UCX
                            with its own pool, or this project's library in the same UCX (default xgvmi)
  --sp ADDR:PORT,..         service processes of this rank's node, shared by the node's ranks
  --node NAME               this rank's node (default: the host's name)
  --offload-config FILE     a file that names the service processes of all nodes, and other options
  --connect-limit-s S, --offload-limit-s S
                            the longest that connecting, and a collective, may take (default 30 and 60)
  --offload-spin-us US      poll for so long before sleeping in a wait (default 0)
  --secret-file FILE        the secret of the service processes, if they have one
  --plugin FILE             the library of scheme xgvmi (default: libuct_ib_mlx5_xgvmi.so beside this program)
  --ucx-library FILE        libucp of the offloaded collective (default: the loader's search)
  --temp-buffers KIND       none: one pair of buffers for all iterations, as OSU has it (default)
                            malloc, mmap: a new pair in each iteration; ring:N: N pairs in turn
  --time-alloc              time the allocation, first touch and release of temporary buffers as well
  --barrier spin|sleep      between iterations; sleep where there are fewer cores than processes (default spin)
  --json FILE, --csv FILE   write the results, by rank 0
  --plot FILE.svg           draw them
  --counters COMMAND.. ;    rank 0 runs COMMAND before and after the timed iterations of a size and writes the
                            device's commands per iteration to the JSON file
  --mpi-library FILE        the library made of shim/osu_mpi.c by your mpicc (default: $OSU_MPI_LIBRARY, else
                            libosu_mpi.so beside this program)
";

const COMPUTE: &str = "  --compute loop|sleep      what stands for computation: OSU's loop, or sleep (default loop)\n";

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
