//! Several volumes in one process: names, status, commands, and the loss of one of them.

mod common;

use common::{
    EIO, Nbd, Running, bad, create, good, names, program, sector, skip, turn, wait_until,
};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

const BLOCK: usize = 4096;

/// Targets of a volume in a directory of its own.
fn volume(dir: &Path, name: &str) -> [PathBuf; 3] {
    let dir = dir.join(name);
    fs::create_dir(&dir).unwrap();
    create(&dir, 64 << 10, BLOCK)
}

fn option(name: &str, targets: &[String]) -> String {
    format!("--volume={name}={}", targets.join(","))
}

/// What a stock program says of an export. `None` if it is not installed.
fn stock(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

/// True if a process takes connections, and the one that asks leaves again.
fn is_there(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

#[test]
fn a_volume_without_targets_stops_no_other() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| volume(dir.path(), name));
    let mut targets: Vec<Running> = a
        .iter()
        .map(|file| Running::target(file, "127.0.0.1:0", &[]))
        .collect();
    let of_a: Vec<String> = targets.iter().map(Running::address).collect();
    let (socket, status) = (dir.path().join("nbd"), dir.path().join("status"));
    let mut command = program();
    command.args(["export", &option("a", &of_a), &option("b", &names(&b))]);
    // Targets are killed, which closes their connections: no answer of a busy machine needs to be in time.
    command.args(["--outage-limit", "300ms", "--target-timeout", "60s"]);
    command.arg("--socket").arg(&socket);
    let export = Running::start(command.arg("--status-socket").arg(&status));
    assert!(
        export.line.contains("exports volumes a, b on"),
        "{}",
        export.line
    );
    let mut of_a = Nbd::connect_to(&socket, "a");
    let mut of_b = [(); 2].map(|()| Nbd::connect_to(&socket, "b"));
    of_a.write_through(0, &sector(0, 1)).unwrap();
    of_b[0].write_through(0, &sector(0, 2)).unwrap();
    let command =
        |words: &[&str]| good(&[&["ctl", "--socket", status.to_str().unwrap()], words].concat());
    for volume in ["a", "b"] {
        let said = command(&["snapshot", "create", "old", "--volume", volume]);
        let export = format!("as export '{volume}@old'");
        assert!(said.contains(&export), "{said}");
    }
    of_a.write_through(0, &sector(0, 3)).unwrap();
    of_b[1].write_through(0, &sector(0, 4)).unwrap();
    for (export, version) in [("a", 3), ("b", 4), ("a@old", 1), ("b@old", 2)] {
        let read = Nbd::connect_to(&socket, export).read(0, 512);
        assert_eq!(read.unwrap(), sector(0, version), "{export}");
    }

    // All targets of the first volume are lost, and the second one goes on.
    let addresses: Vec<String> = targets.iter().map(Running::address).collect();
    targets.drain(..).for_each(Running::kill);
    assert_eq!(of_a.write(0, &sector(0, 5)), Err(EIO));
    for number in 0..64 {
        let client = &mut of_b[number % 2];
        client
            .write_through(number * 512, &sector(number, 6))
            .unwrap();
        assert_eq!(client.read(number * 512, 512).unwrap(), sector(number, 6));
    }
    let prom = good(&["status", "--socket", status.to_str().unwrap(), "--prom"]);
    for line in [
        "xgvmi_blk_volume_open{volume=\"a\"} 1",
        "xgvmi_blk_target_present{volume=\"a\",role=\"data_1\"} 0",
        "xgvmi_blk_target_present{volume=\"b\",role=\"data_1\"} 1",
        "xgvmi_blk_size_bytes{volume=\"b\"} 65536",
    ] {
        assert!(prom.lines().any(|found| found == line), "{line}\n{prom}");
    }

    // They return, and the first volume serves the same client again.
    for (file, address) in a.iter().zip(&addresses) {
        let listen = address.strip_prefix("tcp:").unwrap();
        targets.push(Running::target(file, listen, &[]));
    }
    wait_until("the volume is back", || {
        let prom = good(&["status", "--socket", status.to_str().unwrap(), "--prom"]);
        let back = |role| {
            prom.contains(&format!(
                "xgvmi_blk_target_complete{{volume=\"a\",role=\"{role}\"}} 1\n"
            ))
        };
        ["data_1", "data_2", "data_p"].into_iter().all(back)
    });
    of_a.write_through(0, &sector(0, 7)).unwrap();
    assert_eq!(of_a.read(0, 512).unwrap(), sector(0, 7));
    drop((of_a, of_b));

    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
    drop(targets);
    for files in [&a, &b] {
        let words = names(files);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let report = good(&[&["scrub"], &words[..]].concat());
        assert!(report.contains("\"bad_halves\": 0"), "{report}");
    }
}

/// A volume whose targets are absent at the start is opened when they are there; meanwhile its clients get the reason.
#[test]
fn a_volume_that_cannot_be_opened_is_tried_again() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| volume(dir.path(), name));
    let away = dir.path().join("away");
    fs::rename(dir.path().join("a"), &away).unwrap();
    let (socket, status) = (dir.path().join("nbd"), dir.path().join("status"));
    let machine = dir.path().join("vhost");
    let config = dir.path().join("export.toml");
    let text = format!(
        "socket = {socket:?}\nstatus-socket = {status:?}\n\
         [[volume]]\nname = 'a'\ntargets = {:?}\nvhost-socket = {machine:?}\n\
         [[volume]]\nname = 'b'\ntargets = {:?}\nread-only = true\noutage-limit = '1s'\n",
        names(&a),
        names(&b),
    );
    fs::write(&config, text).unwrap();
    let export = Running::start(program().arg("export").arg("--config").arg(&config));
    let mut of_b = Nbd::connect_to(&socket, "b");
    assert_eq!(of_b.read(0, 512).unwrap(), [0; 512]);
    assert!(of_b.write(0, &[1; 512]).is_err(), "b is read-only");
    let show = |name: &str| {
        [
            "ctl",
            "--socket",
            status.to_str().unwrap(),
            "--volume",
            name,
            "show",
        ]
        .map(str::to_owned)
    };
    let refused = |words: &[String]| bad(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let error = refused(&show("a"));
    assert!(error.contains("volume a is not open: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let error = refused(&show("c"));
    assert!(error.contains("the process has a, b"), "{error}");
    let all = [
        "ctl",
        "--socket",
        status.to_str().unwrap(),
        "snapshot",
        "list",
    ];
    assert!(bad(&all).contains("give --volume NAME"));
    let prom = || good(&["status", "--socket", status.to_str().unwrap(), "--prom"]);
    assert!(prom().contains("xgvmi_blk_volume_open{volume=\"a\"} 0\n"));
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", socket.display());
    match stock("qemu-img", &["info", &uri("a")]) {
        Some((done, said)) => assert!(!done && said.contains("volume a is not open"), "{said}"),
        None => skip(
            "several::a_volume_that_cannot_be_opened_is_tried_again",
            "needs qemu-img",
        ),
    }
    assert!(is_there(&machine));
    // A list has those that are open.
    let listed = || {
        let (done, list) = stock("nbdinfo", &["--list", &uri("")])?;
        assert!(done, "{list}");
        Some(["a", "b"].map(|name| list.contains(&format!("export=\"{name}\":"))))
    };
    if let Some(listed) = listed() {
        assert_eq!(listed, [false, true]);
    }

    fs::rename(&away, dir.path().join("a")).unwrap();
    wait_until("the volume is open", || {
        prom().contains("xgvmi_blk_volume_open{volume=\"a\"} 1\n")
    });
    Nbd::connect_to(&socket, "a")
        .write_through(0, &[7; 512])
        .unwrap();
    assert!(listed().is_none_or(|listed| listed == [true, true]));
    let error = bad(&[
        "export",
        "--memory",
        "1M",
        "--socket",
        socket.to_str().unwrap(),
    ]);
    assert!(error.contains("another process listens"), "{error}");
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
    assert!(!socket.exists() && !machine.exists());
}

/// Threads that keep a volume complete.
const KEEPERS: [&str; 3] = ["keeper", "completer", "return"];

/// How many of them a process has.
fn threads(process: &Running) -> [(&'static str, usize); 3] {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.child.id())).unwrap();
    // One may have ended meanwhile.
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    let names: Vec<String> = tasks.flatten().filter_map(name).collect();
    KEEPERS.map(|keeper| {
        let of_keeper = names.iter().filter(|name| name.trim_end() == keeper);
        (keeper, of_keeper.count())
    })
}

/// Another process takes the targets of a volume over. It keeps them, and the other volume goes on.
#[test]
fn a_volume_that_is_taken_over_stops_no_other() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| volume(dir.path(), name));
    let targets: Vec<Running> = a
        .iter()
        .map(|file| Running::target(file, "127.0.0.1:0", &[]))
        .collect();
    let of_a: Vec<String> = targets.iter().map(Running::address).collect();
    let (socket, other, status) = (
        dir.path().join("nbd"),
        dir.path().join("other"),
        dir.path().join("status"),
    );
    let mut command = program();
    command.args(["export", "--take-over", &option("a", &of_a)]);
    command.arg(option("b", &names(&b)));
    command.arg("--socket").arg(&socket);
    let export = Running::start(command.arg("--status-socket").arg(&status));
    let mut of_b = Nbd::connect_to(&socket, "b");
    let mut old = Nbd::connect_to(&socket, "a");
    old.write_through(0, &sector(0, 1)).unwrap();
    assert_eq!(threads(&export)[..2], [("keeper", 2), ("completer", 2)]);
    let second = Running::export(&of_a, &other, &["--take-over"]);
    let mut new = Nbd::connect(&other);
    new.write_through(0, &sector(0, 2)).unwrap();
    assert_eq!(old.write(0, &sector(0, 3)), Err(EIO));
    let prom = || good(&["status", "--socket", status.to_str().unwrap(), "--prom"]);
    wait_until("the volume is lost", || {
        prom().contains("xgvmi_blk_volume_open{volume=\"a\"} 0\n")
    });
    let shown = good(&["status", "--socket", status.to_str().unwrap()]);
    assert!(shown.contains("volume a is lost: "), "{shown}");
    // What keeps it complete has ended, so the first process takes no target back: the threads of the other volume are left.
    wait_until("the keeper of the lost volume has ended", || {
        threads(&export) == [("keeper", 1), ("completer", 1), ("return", 0)]
    });
    for number in 0..8 {
        of_b.write_through(0, &sector(0, number)).unwrap();
        assert_eq!(of_b.read(0, 512).unwrap(), sector(0, number));
        new.write_through(512, &sector(1, number)).unwrap();
    }
    assert_eq!(new.read(0, 512).unwrap(), sector(0, 2));
    drop((old, of_b, new));
    for process in [export, second] {
        process.signal(libc::SIGTERM);
        assert!(process.ended().success());
    }
}

/// A new target of one of several volumes is made like those of the process, which does not name them, and takes its place.
#[test]
fn a_target_is_created_like_one_of_several_volumes() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let a = volume(dir.path(), "a");
    fs::create_dir(dir.path().join("b")).unwrap();
    let b = create(&dir.path().join("b"), 96 << 10, 512);
    let (socket, status) = (dir.path().join("nbd"), dir.path().join("status"));
    let mut command = program();
    command.args(["export", &option("a", &names(&a)), &option("b", &names(&b))]);
    command.arg("--socket").arg(&socket);
    let _export = Running::start(command.arg("--status-socket").arg(&status));
    Nbd::connect_to(&socket, "b")
        .write_through(0, &sector(0, 7))
        .unwrap();
    let (new, status) = (dir.path().join("new"), status.to_str().unwrap());
    let new = new.to_str().unwrap();
    for (words, expect) in [
        (vec![status], "give --volume NAME: the process has a, b"),
        (vec![status, "--volume", "c"], "the process has a, b"),
        (
            vec![b[0].to_str().unwrap(), "--volume", "b"],
            "no status socket: --volume is for a process with several volumes",
        ),
    ] {
        let words = [&["create", new, "--role", "data_2", "--like"], &words[..]].concat();
        let error = bad(&words);
        assert!(error.contains(expect), "{words:?}: {error}");
    }
    let words = ["create", new, "--role", "data_2", "--like", status];
    good(&[&words[..], &["--volume", "b"]].concat());
    let ctl = ["ctl", "--socket", status, "--volume", "b"];
    good(&[&ctl[..], &["replace", new, "--wait"]].concat());
    let shown = good(&[&ctl[..], &["show"]].concat());
    assert!(
        shown.contains(new) && shown.contains("\"block_size\": 512"),
        "{shown}"
    );
    assert!(!shown.contains(b[1].to_str().unwrap()), "{shown}");
    let read = Nbd::connect_to(&socket, "b").read(0, 512);
    assert_eq!(read.unwrap(), sector(0, 7));
}

/// libnbd's and QEMU's programs see all volumes and their snapshots by name.
#[test]
fn stock_programs_choose_by_name() {
    const NAME: &str = "several::stock_programs_choose_by_name";
    let _turn = turn();
    if stock("nbdinfo", &["--version"]).is_none() || stock("qemu-img", &["--version"]).is_none() {
        return skip(NAME, "needs nbdinfo and qemu-img");
    }
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| volume(dir.path(), name));
    let (socket, status) = (dir.path().join("nbd"), dir.path().join("status"));
    let start = |volumes: &[String]| {
        let mut command = program();
        command
            .arg("export")
            .args(volumes)
            .arg("--socket")
            .arg(&socket);
        Running::start(command.arg("--status-socket").arg(&status))
    };
    let both = [option("a", &names(&a)), option("b", &names(&b))];
    let export = start(&both);
    let status = status.to_str().unwrap();
    good(&[
        "ctl", "--socket", status, "--volume", "b", "snapshot", "create", "s1",
    ]);
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", socket.display());
    let (done, list) = stock("nbdinfo", &["--list", &uri("")]).unwrap();
    assert!(done, "{list}");
    for name in ["a", "b", "b@s1"] {
        assert!(
            list.contains(&format!("export=\"{name}\":")),
            "{name}: {list}"
        );
        let (done, said) = stock("nbdinfo", &["--size", &uri(name)]).unwrap();
        assert!(done && said.trim() == "65536", "{said}");
        let (done, said) = stock("qemu-img", &["info", &uri(name)]).unwrap();
        assert!(done && said.contains("64 KiB"), "{said}");
    }
    for (name, expect) in [
        (
            "",
            "there is no export '': name one of a, b, or VOLUME@SNAPSHOT",
        ),
        (
            "c",
            "there is no export 'c': name one of a, b, or VOLUME@SNAPSHOT",
        ),
        ("a@s1", "there is no export 'a@s1'"),
    ] {
        let (done, said) = stock("qemu-img", &["info", &uri(name)]).unwrap();
        assert!(!done && said.contains(expect), "{said}");
        let (done, said) = stock("nbdinfo", &["--size", &uri(name)]).unwrap();
        let expect = format!("server has no export named '{name}'");
        assert!(!done && said.contains(&expect), "{said}");
    }
    drop(export);
    // The only one is also the default export.
    let _export = start(&both[1..]);
    let (done, said) = stock("nbdinfo", &["--size", &uri("")]).unwrap();
    assert!(done && said.trim() == "65536", "{said}");
    let (done, said) = stock("nbdinfo", &["--size", &uri("b@s1")]).unwrap();
    assert!(done, "{said}");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let _turn = turn();
    let many: Vec<String> = (0..17)
        .map(|at| format!("--volume=v{at}=x{at},y{at}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let export = ["export", "--socket", "/nowhere/s"];
    for (words, expect) in [
        (
            &["--volume=a=x,y", "--volume=a=z,w"][..],
            "volume a is named twice",
        ),
        (
            &["--volume=a=x,y", "--volume=b=y,z"],
            "y is a target of the volumes a and b",
        ),
        (&["--volume=a@b=x,y"], "the name of a volume has"),
        (&["--volume=a"], "no targets: give volume a"),
        (
            &["--volume={ name = 'a', targets = ['x', 'y'], sokcet = 's' }"],
            "unknown option sokcet",
        ),
        (&["--volume=a=x,y", "--name", "n"], "a [[volume]]"),
        (&["--volume=a=x,y", "z"], "cannot be used"),
        (
            &["--volume=a=x,y", "--service=h:1"],
            "the name of a volume has",
        ),
        (
            &["--volume=a", "--volume=b=x,y", "--service=h:1"],
            "volume b of a service: it has its targets and their options there",
        ),
        (
            &["--volume={ name = 'a', capacity = '1G' }", "--service=h:1"],
            "volume a of a service: it has its targets and their options there",
        ),
        (
            &["--volume=a", "--volume=a", "--service=h:1"],
            "volume a is named twice",
        ),
        (&many, "17 volumes: a process has at most 16"),
    ] {
        let error = bad(&[&export[..], words].concat());
        assert!(error.contains(expect), "{words:?}: {error}");
    }
    let five: Vec<&str> = [&["service"][..], &many[..5]].concat();
    let error = bad(&five);
    assert!(
        error.contains("5 volumes and 4 workers: give --workers 5"),
        "{error}"
    );
    let error = bad(&[
        "service",
        "--volume={ name = 'a', targets = ['x','y'], read-only = true }",
    ]);
    assert!(
        error.contains("neither vhost-socket nor read-only"),
        "{error}"
    );
}
