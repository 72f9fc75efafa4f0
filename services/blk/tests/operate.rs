//! Whole processes as a site runs them: options in a file, secret, status, signals.

mod common;

use common::{Nbd, Running, WRITE, bad, create, good, names, program, run, turn, wait_until};
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

fn secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A mirror is created, shown, and given a new copy; other layouts and numbers of files are refused.
#[test]
fn a_mirror_is_created_and_gets_a_new_copy() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [one, two, new] = ["one", "two", "new"].map(place);
    for (layout, fault) in [
        ("mirror-3", "has 3 targets"),
        ("2+1", "has 3 targets"),
        ("4+2", "has 6 targets"),
        ("8+3", "has 11 targets"),
        ("9+1", "layout 9+1: give"),
        ("4+4", "layout 4+4: give"),
        ("mirror-4", "layout mirror-4: give"),
    ] {
        let words = ["create", &one, &two, "--size", "1M", "--layout", layout];
        let error = bad(&words);
        assert!(error.contains(fault), "{layout}: {error}");
    }
    good(&["create", &one, &two, "--size", "1M", "--layout", "mirror-2"]);
    let error = bad(&["create", &new, "--like", &one, "--role", "data_1"]);
    assert!(error.contains("give copy_1, copy_2"), "{error}");
    good(&["create", &new, "--like", &one, "--role", "copy_2"]);
    let shown = good(&["show", &one, &two]);
    assert!(shown.contains("\"copy_2\""), "{shown}");
    let error = bad(&["scrub", &one, &new]);
    assert!(error.contains("copy_2 may hold newer data"), "{error}");
    good(&["rebuild", &one, &new, "--without-absent"]);
    good(&["scrub", &one, &new]);
    let error = bad(&["scrub", &one, &two]);
    assert!(error.contains("has taken its place"), "{error}");
}

/// Secrets change while an export serves: it proves the new one to a target that was restarted.
#[test]
fn an_export_reads_the_secret_of_its_targets_again_on_sighup() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let place = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [key, status, socket] = ["key", "status", "nbd"].map(place);
    secret(Path::new(&key), "the first secret of this test");
    let options = ["--secret-file", &key];
    let mut targets = paths
        .each_ref()
        .map(|path| Running::target(path, "127.0.0.1:0", &options));
    let addresses = targets.each_ref().map(Running::address);
    let options_of_export = [&options[..], &["--status-socket", &status]].concat();
    let export = Running::export(&addresses, Path::new(&socket), &options_of_export);
    let mut nbd = Nbd::connect(Path::new(&socket));
    nbd.write(0, &[1; 4096]).unwrap();
    // A file that is no secret changes nothing. The command of the control socket does as the signal does, and says it.
    let rotate = ["ctl", "--socket", &status, "rotate-secret"];
    for text in ["short", "another secret of this test"] {
        secret(Path::new(&key), text);
        export.signal(libc::SIGHUP);
        match text {
            "short" => {
                let error = bad(&rotate);
                assert!(
                    error.contains("stays as it was") && error.contains(&key),
                    "{error}"
                );
            }
            _ => assert!(good(&rotate).contains("the secret was read again")),
        }
        targets
            .iter()
            .for_each(|target| target.signal(libc::SIGHUP));
        good(&["status", "--socket", &status]);
    }
    for (target, path) in targets.iter_mut().zip(&paths) {
        let address = target.address();
        let listen = address.strip_prefix("tcp:").unwrap();
        target.child.kill().unwrap();
        target.child.wait().unwrap();
        *target = Running::target(path, listen, &options);
        nbd.write(0, &[2; 4096]).unwrap();
        wait_until("the target is back", || {
            let shown = good(&["ctl", "--socket", &status, "show"]);
            shown.matches("\"complete\": true").count() == 3
        });
    }
    assert_eq!(nbd.read(0, 4096).unwrap(), [2; 4096]);
}

#[test]
fn an_export_shows_its_status_in_three_forms_and_drains_on_sigterm() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let (socket, status) = (dir.path().join("nbd"), dir.path().join("status"));
    let config = dir.path().join("export.toml");
    let text = format!(
        "targets = {:?}\nsocket = {socket:?}\nstatus-socket = {status:?}\n",
        names(&paths[..2])
    );
    fs::write(&config, text).unwrap();
    let export = Running::start(program().arg("export").arg("--config").arg(&config));
    let mut client = Nbd::connect(&socket);
    client.write(512, &[7; 4096]).unwrap();
    let ask =
        |form: &[&str]| good(&[&["status", "--socket", status.to_str().unwrap()], form].concat());
    let json: serde_json::Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    assert_eq!(json["program"], "export", "{json}");
    assert_eq!(json["clients"], 1, "{json}");
    assert_eq!(json["pid"], export.child.id(), "{json}");
    assert_eq!(json["volume"]["written_bytes"], 4096, "{json}");
    let absent = json["volume"]["targets"][2]["absent"].as_str().unwrap();
    assert!(absent.contains("not there"), "{json}");
    let prom = ask(&["--prom"]);
    for line in [
        "xgvmi_blk_written_bytes_total 4096",
        "xgvmi_blk_target_present{role=\"data_p\"} 0",
        "xgvmi_blk_target_missing_blocks{role=\"data_p\"} 5",
    ] {
        assert!(prom.lines().any(|found| found == line), "{line}\n{prom}");
    }
    assert!(ask(&[]).contains("data_p  absent: "), "{}", ask(&[]));
    // Another export is refused the same status socket, and the first one is left alone.
    let other = dir.path().join("other");
    let error = bad(&[
        "export",
        "--memory",
        "1M",
        "--socket",
        other.to_str().unwrap(),
        "--status-socket",
        status.to_str().unwrap(),
    ]);
    assert!(error.contains("another daemon"), "{error}");
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
    assert!(!socket.exists() && !status.exists());
    let shown: serde_json::Value =
        serde_json::from_str(&good(&["show", &names(&paths)[0], &names(&paths)[1]])).unwrap();
    assert_eq!(shown["lost_blocks"], 0, "{shown}");
}

#[test]
fn the_default_status_socket_is_in_the_runtime_directory() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd");
    let mut command = program();
    command.env("RUNTIME_DIRECTORY", dir.path());
    command
        .args(["export", "--memory", "1M", "--socket"])
        .arg(&socket);
    let export = Running::start(&mut command);
    let said = program()
        .env("XDG_RUNTIME_DIR", dir.path())
        .arg("status")
        .output()
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("export of volume"), "{said}");
    // A second export does not get the default path, and serves without a status.
    let second = dir.path().join("second");
    let mut command = program();
    command.env("RUNTIME_DIRECTORY", dir.path());
    command
        .args(["export", "--memory", "1M", "--socket"])
        .arg(&second);
    let other = Running::start(&mut command);
    assert_eq!(Nbd::connect(&second).read(0, 512), Ok(vec![0; 512]));
    other.signal(libc::SIGINT);
    assert!(other.ended().success());
    export.signal(libc::SIGINT);
    assert!(export.ended().success());
    let error = bad(&["status"]);
    assert!(error.contains("give --socket FILE"), "{error}");
    let gone = dir.path().join("xgvmi-blk-export.sock");
    let error = bad(&["status", "--socket", gone.to_str().unwrap()]);
    assert!(error.contains("xgvmi-blk-export.sock"), "{error}");
}

#[test]
fn a_target_needs_a_secret_beyond_loopback_and_reads_it_again_on_sighup() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let file = paths[0].to_str().unwrap();
    let error = bad(&["target", file, "--listen", "0.0.0.0:0"]);
    assert!(error.contains("give --secret-file FILE"), "{error}");
    let key = dir.path().join("secret");
    for (text, mode, expect) in [
        ("short", 0o600, "16"),
        ("a secret of more than 16 bytes", 0o604, "chmod"),
    ] {
        fs::write(&key, text).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let error = bad(&["target", file, "--secret-file", key.to_str().unwrap()]);
        assert!(
            error.contains(expect) && error.contains("secret"),
            "{error}"
        );
    }
    secret(&key, "the first secret of this test");
    let status = dir.path().join("status");
    let more = [
        "--secret-file",
        key.to_str().unwrap(),
        "--status-socket",
        status.to_str().unwrap(),
    ];
    let target = Running::target(&paths[0], "127.0.0.1:0", &more);
    let mine = dir.path().join("mine");
    let show = |text: &str| {
        secret(&mine, text);
        let (address, second) = (target.address(), paths[1].to_str().unwrap());
        run(&[
            "show",
            &address,
            second,
            "--secret-file",
            mine.to_str().unwrap(),
        ])
    };
    assert!(show("the first secret of this test").status.success());
    assert!(!show("another secret of this test").status.success());
    // An unusable file changes nothing.
    fs::write(&key, "short").unwrap();
    target.signal(libc::SIGHUP);
    let rotate = ["ctl", "--socket", status.to_str().unwrap(), "rotate-secret"];
    let error = bad(&rotate);
    assert!(error.contains("the secret stays as it was"), "{error}");
    assert!(show("the first secret of this test").status.success());
    secret(&key, "another secret of this test");
    assert!(good(&rotate).contains("the secret was read again"));
    assert!(show("another secret of this test").status.success());
    secret(&key, "the third secret of this test");
    target.signal(libc::SIGHUP);
    wait_until("the new secret counts", || {
        show("the third secret of this test").status.success()
    });
    assert!(!show("the first secret of this test").status.success());
    let text = good(&["status", "--json", "--socket", status.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["program"], &json["role"]),
        (&"target".into(), &"data_1".into())
    );
    // `show` asks, and marks nothing.
    assert!(
        json["calls"].as_u64().unwrap() > 0 && json["epoch"] == 0,
        "{json}"
    );
    target.signal(libc::SIGTERM);
    assert!(target.ended().success());
    assert!(UnixStream::connect(&status).is_err());
}

#[test]
fn target_files_are_for_their_owner_alone() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let (new, like) = (dir.path().join("new"), paths[1].to_str().unwrap());
    let words = ["create", new.to_str().unwrap(), "--like", like];
    good(&[&words[..], &["--role", "data_1"]].concat());
    for path in paths.iter().chain([&new]) {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

/// Limits the open files of a process to those that it has.
fn take_descriptors(process: &Running, spare: u64) {
    let pid = process.child.id();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<u64> = open
        .map(|entry| {
            entry
                .unwrap()
                .file_name()
                .to_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    let free = (0..).find(|number| !open.contains(number)).unwrap();
    let limit = libc::rlimit {
        rlim_cur: free + spare,
        rlim_max: 4096,
    };
    let pid = pid.cast_signed();
    // SAFETY: a limit that lives through the call, and no place for the old one.
    let done = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// A process without descriptors accepts nobody, says so, and serves again when it has some.
#[test]
fn a_lack_of_descriptors_ends_no_process() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let log = |name: &str| dir.path().join(name);
    let said = |name: &str| fs::read_to_string(log(name)).unwrap();
    let stderr = |name: &str| fs::File::create(log(name)).unwrap();
    let mut command = program();
    command.arg("target").arg(&paths[0]);
    command.args(["--listen", "127.0.0.1:0"]);
    let target = Running::start(command.stderr(stderr("target")));
    let address = target.address();
    let words = [&address, &names(&paths)[1]];
    // It serves.
    good(&["show", words[0], words[1]]);
    wait_until("the target has no descriptor", || {
        take_descriptors(&target, 0);
        let _waits = TcpStream::connect(address.strip_prefix("tcp:").unwrap()).unwrap();
        said("target").contains("no connection is accepted")
    });
    take_descriptors(&target, 100);
    let socket = dir.path().join("nbd");
    let targets = [address, names(&paths)[1].clone(), names(&paths)[2].clone()];
    let mut command = program();
    command
        .arg("export")
        .args(&targets)
        .arg("--socket")
        .arg(&socket);
    let export = Running::start(command.stderr(stderr("export")));
    Nbd::connect(&socket).write(0, &[7; 1024]).unwrap();
    wait_until("the export has no descriptor", || {
        take_descriptors(&export, 0);
        let _waits = UnixStream::connect(&socket).unwrap();
        said("export").contains("no client is accepted")
    });
    take_descriptors(&export, 100);
    assert_eq!(Nbd::connect(&socket).read(0, 1024), Ok(vec![7; 1024]));
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
}

/// SIGTERM at a target while an export writes to it: nothing that was acknowledged is lost, and the export goes on.
#[test]
fn a_target_that_drains_is_taken_back_after_its_return() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let socket = dir.path().join("nbd");
    let target = Running::target(&paths[1], "127.0.0.1:0", &[]);
    let address = target.address();
    let targets = [
        names(&paths)[0].clone(),
        address.clone(),
        names(&paths)[2].clone(),
    ];
    let status = dir.path().join("status");
    let more = ["--status-socket", status.to_str().unwrap()];
    let export = Running::export(&targets, &socket, &more);
    let mut client = Nbd::connect(&socket);
    client.write(0, &[1; 4096]).unwrap();
    target.signal(libc::SIGTERM);
    assert!(target.ended().success());
    client.write(2048, &[2; 4096]).unwrap();
    let _target = Running::target(&paths[1], address.strip_prefix("tcp:").unwrap(), &[]);
    wait_until("the target is complete again", || {
        let text = good(&["status", "--json", "--socket", status.to_str().unwrap()]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let target = &json["volume"]["targets"][1];
        target["absent"] == "" && target["missing_blocks"] == 0
    });
    let expect = [&[1; 2048][..], &[2; 4096]].concat();
    assert!(client.read(0, 6144).unwrap() == expect);
    drop(client);
    export.signal(libc::SIGTERM);
    assert!(export.ended().success());
}

/// The limit of SIGTERM passes while a client's request waits for targets that have stopped. The client loses its
/// connection, and the block is the old or the new one.
#[test]
fn an_export_ends_at_its_limit_with_a_request_under_way() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let paths = create(dir.path(), 64 << 10, 1024);
    let targets = paths
        .each_ref()
        .map(|path| Running::target(path, "127.0.0.1:0", &[]));
    let addresses = targets.each_ref().map(Running::address);
    let (socket, log) = (dir.path().join("nbd"), dir.path().join("log"));
    let mut command = program();
    command.arg("export").args(&addresses);
    command.arg("--socket").arg(&socket);
    command.args(["--target-timeout", "200ms", "--outage-limit", "60s"]);
    command.args(["--drain-limit", "1s"]);
    let export = Running::start(command.stderr(fs::File::create(&log).unwrap()));
    let said = |words: &str| fs::read_to_string(&log).unwrap().contains(words);
    let mut client = Nbd::connect(&socket);
    client.write_through(0, &[7; 1024]).unwrap();
    for target in &targets {
        target.signal(libc::SIGSTOP);
    }
    client.post((WRITE, 0), 0, 1024, &[9; 1024]);
    wait_until("the request is under way", || said("is not used any more"));
    export.signal(libc::SIGTERM);
    wait_until("the limit passes", || {
        said("1 clients still have requests after 1s")
    });
    // The process makes durable what it can.
    for target in &targets {
        target.signal(libc::SIGCONT);
    }
    assert!(export.ended().success());
    assert!(!socket.exists());
    // A reply that had no more use for anybody may have left before the end.
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!([0, 16].contains(&rest.len()), "{rest:?}");
    let export = Running::export(&addresses, &socket, &[]);
    let mut client = Nbd::connect(&socket);
    let block = client.read(0, 1024).unwrap();
    assert!(block == [7; 1024] || block == [9; 1024], "a mixture");
    drop(export);
}
