//! Tests of the command line.

use super::*;

fn parse(program: Program, line: &str) -> Result<Request, BadUsage> {
    Options::parse(program, line.split_whitespace().map(OsString::from))
}

fn options(program: Program, line: &str) -> Options {
    match parse(program, line) {
        Ok(Request::Run(options)) => *options,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn defaults_are_those_of_osu() {
    let options = options(Program::Blocking, "");
    assert_eq!(options.sizes().count(), 21);
    let rounds = |size| {
        let Rounds {
            iterations,
            warm_up,
        } = options.rounds(size);
        (iterations, warm_up)
    };
    assert_eq!(rounds(8192), (1000, 100));
    assert_eq!(rounds(8193), (100, 10));
    assert_eq!(options.validation_warm_up, 5);
    assert_eq!(options.memory_max, 536_870_912);
}

#[test]
fn options_are_read() {
    let check = |line: &str, change: &dyn Fn(&mut Options)| {
        let mut expect = Options::new(Program::NonBlocking);
        expect.datatypes = vec![Datatype::Char];
        change(&mut expect);
        assert_eq!(options(Program::NonBlocking, line), expect, "{line}");
    };
    check("-m 128", &|o| o.size.max = 128);
    check("-m 2:128", &|o| (o.size.min, o.size.max) = (2, 128));
    check("-m 2:", &|o| o.size.min = 2);
    check("-m :64K", &|o| o.size.max = 65536);
    check("--message-size=4", &|o| o.size.max = 4);
    check("-i 7 -x0", &|o| {
        (o.iterations, o.warm_up) = (Some(7), Some(0));
    });
    check("-f -c -u 10", &|o| {
        (o.full, o.validate, o.validation_warm_up) = (true, true, 10);
    });
    check("-z", &|o| o.percentiles = vec![50, 90, 99]);
    check("-z5,100", &|o| o.percentiles = vec![5, 100]);
    check("-T MPI_FLOAT -l -a 5", &|o| {
        (o.datatypes, o.in_place) = (vec![Datatype::Float], true);
        o.array_size = Some(5);
    });
    check("--type=all --in-place", &|o| {
        (o.datatypes, o.in_place) = (Datatype::ALL.to_vec(), true);
    });
    check("-t 9", &|o| o.overlap.test_calls = 9);
    // OSU takes its least limit instead of a lower one.
    check("-M 5", &|o| o.memory_max = 1 << 20);
    check("--temp-buffers ring:8 --time-alloc", &|o| {
        o.temp_buffers = TempBuffers::Ring(8);
        o.time_alloc = true;
    });
    check("--backend offload --scheme ksm --sp here:1,here:2", &|o| {
        o.backend = BackendKind::Offload;
        o.scheme = Scheme::Ksm;
        o.offload.services = vec!["here:1".to_owned(), "here:2".to_owned()];
    });
    check("--service-pids 17,4", &|o| o.service_pids = vec![17, 4]);
    check("--counters stats --json ; --json a", &|o| {
        o.counters = vec!["stats".into(), "--json".into()];
        o.json = Some("a".into());
    });
    check("--barrier sleep --compute sleep", &|o| {
        (o.barrier, o.overlap.compute) = (BarrierKind::Sleep, ComputeKind::Sleep);
    });
}

#[test]
fn what_is_not_understood_is_named() {
    let check = |line: &str, expect: &str| {
        let BadUsage(text) = parse(Program::Blocking, line).unwrap_err();
        assert_eq!(text, expect, "{line}");
    };
    check("-Z", "Invalid option [-Z]");
    check("--fast", "Invalid option [--fast]");
    check("-t 3", "Invalid option [-t]");
    check("-m", "Option Missing Required Argument [-m]");
    check("-m 0", "Invalid Message Size [-m 0]");
    check(
        "-m 99999999999999999999",
        "Invalid Message Size [-m 99999999999999999999]",
    );
    check("-m 2147483648", "Invalid Message Size [-m 2147483648]");
    check("-m :", "Invalid Message Size [-m :]");
    check("-m 1:2:3", "Invalid Message Size [-m 1:2:3]");
    check(
        "-m 8:4",
        "The smallest message size is above the largest [-m 8:4]",
    );
    check("-i 0", "Invalid Number of Iterations [-i 0]");
    check("-i 1e3", "Invalid Number of Iterations [-i 1e3]");
    check("-x -1", "Invalid Number of Warmup Iterations [-x -1]");
    check(
        "-u 11",
        "Number of Validation Warmup Iterations must not be more than 10 [-u 11]",
    );
    check(
        "-z0",
        "Percentile range must be in between 1 and 100 [-z 0]",
    );
    check(
        "-z1,2,3,4,5,6",
        "There is room for five percentiles [-z 1,2,3,4,5,6]",
    );
    check("-clog", "Validation takes no value here [-c log]");
    check(
        "-G tty",
        "Graphs are drawn without gnuplot here: --plot FILE.svg [-G]",
    );
    check(
        "--accelerator cuda",
        "Memory of accelerators (CUDA, ROCm, OpenACC) is not used here [-d]",
    );
    check("-D cont", "Derived datatypes are not measured here [-D]");
    check("-I", "Sessions of MPI-4 are not used here [-I]");
    // Of collectives that have a root.
    check("-k rotate", "Invalid option [-k]");
    check("-a 0", "Invalid Device Array Size [-a 0]");
    check(
        "-T MPI_DOUBLE",
        "Invalid datatype, there are MPI_CHAR, MPI_INT, MPI_FLOAT and all [-T MPI_DOUBLE]",
    );
    check(
        "-T all -T all -T mpi_int",
        "Too many datatypes [-T mpi_int]",
    );
    check(
        "--temp-buffers ring:0",
        "Invalid kind of buffers, there are none, malloc, mmap and ring:N [--temp-buffers ring:0]",
    );
    check(
        "--backend offload",
        "The offloaded backend needs to know where its service processes are [--sp]",
    );
    check(
        "--service-pids 7,0",
        "Process ids above zero, with commas [--service-pids 0]",
    );
    check("--counters ;", "A command without a program [--counters]");
    check(
        "--counters stats",
        "A command ends with a word ';' [--counters]",
    );
    check("here", "Unexpected argument [here]");
}

#[test]
fn help_and_pages_name_every_option() {
    for program in [Program::Blocking, Program::NonBlocking] {
        command(program).debug_assert();
        let dir = tempfile::tempdir().unwrap();
        cli_pages::generate(&command(program), dir.path()).unwrap();
        let page = dir.path().join(format!("man/{}.1", program.name()));
        let page = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
        let text = help(program);
        for arg in command(program).get_arguments() {
            let long = format!("--{}", arg.get_long().unwrap());
            assert!(text.contains(&long) && page.contains(&long), "{long}");
            if let Some(letter) = arg.get_short() {
                assert!(text.contains(&format!("-{letter}, {long}")), "{letter}");
            }
        }
        let overlap = program == Program::NonBlocking;
        assert_eq!(text.contains("--num-test-calls"), overlap);
        assert_eq!(text.contains("--compute"), overlap);
    }
    assert_eq!(parse(Program::Blocking, "-h"), Ok(Request::Help));
    assert_eq!(parse(Program::Blocking, "-v -Z"), Ok(Request::Version));
}
