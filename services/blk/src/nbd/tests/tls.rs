//! TLS: who is served, who is refused and why, and both directions at once.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::net::{TcpListener, TcpStream};

/// Bound of a hang.
const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "blk.example";

/// An authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        let name = format!("authority {}", fastrand::u64(..));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    fn issue(&self, name: &str, last_year: i32) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        let key = key.serialize_pem();
        Identity { certificate, key }
    }
}

fn pems<'a>(identity: &'a Identity, client_ca: Option<&'a Authority>) -> Pems<'a> {
    Pems {
        certificate: identity.certificate.as_bytes(),
        key: identity.key.as_bytes(),
        client_ca: client_ca.map(|ca| ca.pem.as_bytes()),
    }
}

/// A server on TCP with one authority for both sides.
struct Site {
    ca: Authority,
    server: Arc<Server>,
    address: std::net::SocketAddr,
}

impl Site {
    fn new(required: bool) -> Self {
        let ca = Authority::new();
        let identity = ca.issue(NAME, 2090);
        let tls = Tls::new(&pems(&identity, Some(&ca)), required).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Arc::new(Server::new(Listener::Tcp(listener), export(), Some(tls)));
        let running = Arc::clone(&server);
        std::thread::spawn(move || running.run());
        let site = Self {
            ca,
            server,
            address,
        };
        site.settled(0);
        site
    }

    /// Waits until so many clients are connected: none keeps a place that it has left.
    fn settled(&self, clients: usize) {
        let end = std::time::Instant::now() + LIMIT;
        while self.server.connections() != clients {
            assert!(std::time::Instant::now() < end, "a connection stays open");
            std::thread::yield_now();
        }
    }

    fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        let mut client = Client {
            stream,
            server: None,
        };
        assert_eq!(client.take(16), GREETING);
        assert_eq!(client.take(2), [0, 3]);
        client.send(&3u32.to_be_bytes());
        client
    }

    /// A client that has asked for TLS: its first bytes must be those of TLS.
    fn starting(&self) -> TcpStream {
        let mut client = self.connect();
        assert_eq!(client.option(option::STARTTLS, &[]), [(reply::ACK, vec![])]);
        client.stream
    }

    /// A client with a certificate, if any, that trusts `root` and wants the server `name`.
    fn secure(
        &self,
        identity: Option<&Identity>,
        root: &Authority,
        name: &str,
    ) -> Client<StreamOwned<ClientConnection, TcpStream>> {
        let stream = self.starting();
        let connection = ClientConnection::new(
            Arc::new(config(identity, root)),
            ServerName::try_from(name.to_owned()).unwrap(),
        );
        Client {
            stream: StreamOwned::new(connection.unwrap(), stream),
            server: None,
        }
    }

    fn good(&self) -> Client<StreamOwned<ClientConnection, TcpStream>> {
        let identity = self.ca.issue("client", 2090);
        self.secure(Some(&identity), &self.ca, NAME)
    }

    /// The client gets an error whose text contains `expect`, and its place is free.
    fn refuses(&self, mut client: Client<StreamOwned<ClientConnection, TcpStream>>, expect: &str) {
        let before = self.server.refused();
        let _ = client.stream.write_all(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
        let mut byte = [0];
        let error = loop {
            match client.stream.read(&mut byte) {
                Ok(count) => panic!("{count} bytes"),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains(expect), "{error}");
        drop(client);
        self.settled(0);
        assert_eq!(self.server.refused(), before + 1);
    }
}

fn config(identity: Option<&Identity>, root: &Authority) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(root.pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    }
}

#[test]
fn a_server_without_certificates_refuses_tls_and_serves_on() {
    let mut client = Client::connect(&export(), 3);
    let replies = client.option(option::STARTTLS, &[]);
    assert_eq!(replies[0].0, reply::ERR_POLICY);
    client.go();
    client.leave();
}

#[test]
fn a_client_without_tls_is_refused_unless_it_is_optional() {
    let site = Site::new(true);
    let mut plain = site.connect();
    let go = [name("vol"), vec![0, 0]].concat();
    for (option, data) in [
        (option::LIST, &[][..]),
        (option::STRUCTURED_REPLY, &[]),
        (option::INFO, &go),
        (option::GO, &go),
        (99, b"x"),
    ] {
        assert_eq!(plain.option(option, data)[0].0, reply::ERR_TLS_REQD);
    }
    assert_eq!(
        plain.option(option::STARTTLS, b"x")[0].0,
        reply::ERR_INVALID
    );
    // The old form has no error: the connection ends.
    plain.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
    assert_eq!(plain.stream.read(&mut [0]).unwrap(), 0);
    site.settled(0);
    assert_eq!(site.server.refused(), 1);

    let site = Site::new(false);
    let mut plain = site.connect();
    plain.go();
    let mut secure = site.good();
    secure.go();
    site.settled(2);
}

/// Replies in chunks that somebody has asked for in the client's name do not count.
#[test]
fn what_was_negotiated_before_tls_does_not_count() {
    let site = Site::new(false);
    let mut plain = site.connect();
    plain.option(option::STRUCTURED_REPLY, &[]);
    plain.option(option::STARTTLS, &[]);
    let identity = site.ca.issue("client", 2090);
    let name = ServerName::try_from(NAME).unwrap();
    let session = ClientConnection::new(Arc::new(config(Some(&identity), &site.ca)), name);
    let mut client = Client {
        stream: StreamOwned::new(session.unwrap(), plain.stream),
        server: None,
    };
    assert_eq!(
        client.option(option::STARTTLS, &[])[0].0,
        reply::ERR_INVALID
    );
    client.go();
    client.post((READ, 0), 0, 512, &[]);
    assert_eq!(client.number(4), u64::from(SIMPLE_REPLY_MAGIC));
    assert_eq!((client.number(4), client.number(8)), (0, 77));
    assert_eq!(client.take(512), [0; 512]);
}

#[test]
fn a_client_that_reads_no_reply_until_all_is_sent() {
    let site = Site::new(true);
    let mut client = site.good();
    client.option(option::STRUCTURED_REPLY, &[]);
    client.go();
    let length = 16 << 10;
    let data = |number: u64| -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(number);
        (0..length).map(|_| random.u8(..)).collect()
    };
    for number in 0..64 {
        let range = (number * u64::from(length), length);
        client.post_as(number, (WRITE, 0), range, &data(number));
    }
    let mut answered = [false; 64];
    for _ in 0..64 {
        assert_eq!(client.number(4), u64::from(CHUNK_MAGIC));
        assert_eq!(client.number(4), 1 << 16, "one chunk without data");
        let cookie = usize::try_from(client.number(8)).unwrap();
        assert!(!std::mem::replace(&mut answered[cookie], true));
        assert_eq!(client.number(4), 0);
    }
    let all = client.read(0, 64 * length);
    for (number, part) in (0..).zip(all.chunks(length as usize)) {
        assert!(part == data(number), "write {number}");
    }
    client.request((FLUSH, 0), 0, 0, &[]).unwrap();
    // The largest request, as one chunk of many records.
    let (old, new) = (all, vec![0x5a; 1 << 20]);
    assert!(old != new);
    client.request((WRITE, FUA), 0, 1 << 20, &new).unwrap();
    assert!(client.read(0, 1 << 20) == new);
    client.post((2, 0), 0, 0, &[]);
    // The end is TLS's own.
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    site.settled(0);
    assert_eq!(site.server.refused(), 0);
}

#[test]
fn replies_and_requests_pass_each_other() {
    let site = Site::new(true);
    let mut client = site.good();
    client.go();
    // More replies than the sockets hold: the server's writes stop until the client reads, and its reads go on.
    let reads = 48;
    for number in 0..reads {
        client.post_as(number, (READ, 0), (0, 512 << 10), &[]);
    }
    for number in reads..reads + 16 {
        client.post_as(number, (WRITE, 0), (512 << 10, 1 << 16), &[9; 1 << 16]);
    }
    for _ in 0..reads + 16 {
        assert_eq!(client.number(4), u64::from(SIMPLE_REPLY_MAGIC));
        assert_eq!(client.number(4), 0);
        if client.number(8) < reads {
            assert!(client.take(512 << 10).iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn certificates_that_do_not_match_are_refused() {
    let (site, other) = (Site::new(true), Authority::new());
    let good = site.ca.issue("client", 2090);
    site.refuses(site.secure(None, &site.ca, NAME), "CertificateRequired");
    let foreign = other.issue("client", 2090);
    site.refuses(site.secure(Some(&foreign), &site.ca, NAME), "UnknownCA");
    let expired = site.ca.issue("client", 2021);
    site.refuses(
        site.secure(Some(&expired), &site.ca, NAME),
        "CertificateExpired",
    );
    // These two are the client's own refusals.
    site.refuses(site.secure(Some(&good), &other, NAME), "UnknownIssuer");
    site.refuses(
        site.secure(Some(&good), &site.ca, "other.example"),
        "not valid for name",
    );
    let mut client = site.good();
    client.go();
    assert_eq!(site.server.connections(), 1);
}

/// A hello of TLS 1.1, cut off behind its version, cipher suites and compression.
fn hello_1_1() -> Vec<u8> {
    let mut body = vec![3, 2];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    let length = u8::try_from(body.len()).unwrap();
    let mut hello = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend(body);
    hello
}

#[test]
fn bytes_that_are_no_hello_are_refused() {
    let site = Site::new(true);
    let requests = b"IHAVEOPT\0\0\0\x08\0\0\0\0".to_vec();
    let huge = [&[22, 3, 1, 0xff, 0xff][..], &[1; 70_000]].concat();
    for (bytes, answered) in [
        (hello_1_1(), true),
        (requests, true),
        (vec![0; 4096], true),
        (huge, true),
        (vec![22, 3, 1], false),
        (vec![], false),
    ] {
        let mut stream = site.starting();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        // An alert, if the server had something to answer.
        assert_eq!(said.first(), answered.then_some(&21), "{said:?}");
        site.settled(0);
    }
    assert_eq!(site.server.refused(), 6);
}

#[test]
fn silent_clients_keep_nobody_out() {
    let site = Site::new(true);
    let silent: Vec<TcpStream> = (0..50)
        .map(|number| match number % 2 {
            0 => site.connect().stream,
            _ => site.starting(),
        })
        .collect();
    let mut client = site.good();
    client.go();
    site.settled(32);
    drop(silent);
    site.settled(1);
}

#[test]
fn a_handshake_has_one_limit_for_all_its_bytes() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let sender = std::thread::spawn(move || while theirs.write_all(&[22]).is_ok() {});
    let stream = stream::Stream::from(ours);
    let mut hurried = stream::Hurried::new(&stream, Duration::from_millis(50));
    let error = loop {
        if let Err(error) = hurried.read(&mut [0]) {
            break error;
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().contains("has not finished its handshake"));
    assert!(hurried.write(&[0]).is_err());
    drop(stream);
    sender.join().unwrap();
}

#[test]
fn new_certificates_are_for_new_connections() {
    let site = Site::new(true);
    let mut open = site.good();
    open.go();
    let old = site.ca.issue("client", 2090);
    let new = Authority::new();
    let identity = new.issue(NAME, 2090);
    let tls = site.server.tls().unwrap();
    // What does not match leaves the certificates as they are.
    let mixed = Identity {
        certificate: identity.certificate.clone(),
        key: old.key.clone(),
    };
    let error = tls.replace(&pems(&mixed, Some(&new))).unwrap_err();
    assert!(matches!(error, TlsError::Mismatch), "{error}");
    let empty = Identity {
        certificate: "-----".to_owned(),
        key: old.key.clone(),
    };
    let error = tls.replace(&pems(&empty, None)).unwrap_err();
    assert!(matches!(error, TlsError::Certificate(_)), "{error}");
    let mut still = site.secure(Some(&old), &site.ca, NAME);
    still.go();
    tls.replace(&pems(&identity, Some(&new))).unwrap();
    let own = new.issue("client", 2090);
    let mut client = site.secure(Some(&own), &new, NAME);
    client.go();
    let mut late = site.secure(Some(&old), &new, NAME);
    let _ = late.stream.write_all(b"x");
    let error = late.stream.read(&mut [0]).unwrap_err().to_string();
    assert!(error.contains("UnknownCA"), "{error}");
    // The open connections go on.
    for client in [&mut open, &mut still, &mut client] {
        client.post((READ, 0), 0, 512, &[]);
        assert_eq!(client.number(4), u64::from(SIMPLE_REPLY_MAGIC));
        client.take(12 + 512);
    }
}

#[test]
fn a_drain_ends_clients_that_go_on_sending() {
    let site = Site::new(true);
    let mut client = site.good();
    client.go();
    client.post((WRITE, 0), 0, 512, &[5; 512]);
    assert_eq!(client.number(4), u64::from(SIMPLE_REPLY_MAGIC));
    client.take(12);
    // Replies are dropped as they are.
    let mut replies = client.stream.sock.try_clone().unwrap();
    let reader = std::thread::spawn(move || io::copy(&mut replies, &mut io::sink()));
    let request = |client: &mut Client<StreamOwned<ClientConnection, TcpStream>>| {
        let bytes = [&0x2560_9513u32.to_be_bytes()[..], &[0; 20], &[0, 0, 2, 0]];
        client.stream.write_all(&bytes.concat())
    };
    let sender = std::thread::spawn(move || while request(&mut client).is_ok() {});
    site.server.drain();
    site.settled(0);
    sender.join().unwrap();
    let _ = reader.join().unwrap();
}
