"""TLS of an export by libnbd and by Python's ssl. Arguments: port, process of the export, directories of certificates."""

import os
import shutil
import signal
import socket
import ssl
import struct
import sys
import time

import nbd

port, pid, dirs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LIMIT_S = 60


def connect(which, host="localhost", tls=nbd.TLS_REQUIRE):
    h = nbd.NBD()
    h.set_tls(tls)
    if which:
        h.set_tls_certificates(f"{dirs}/{which}")
    # The name that the server's certificate must have.
    h.set_tls_verify_peer(True)
    h.connect_tcp(host, str(port))
    # The export answers: in TLS 1.3 a client learns only now that its certificate was refused.
    h.pread(512, 0)
    return h


def refused(what, *args, **named):
    try:
        connect(*args, **named)
    except nbd.Error as error:
        text = str(error)
        assert "\n" not in text, text
        print(f"{what}: {text}")
    else:
        raise AssertionError(f"{what} is served")


# Wrong certificates, and none.
refused("no TLS", None, tls=nbd.TLS_DISABLE)
refused("another authority of the client", "foreign")
refused("another authority of the server", "wrong-ca")
refused("an expired certificate", "expired")
refused("no certificate", "none")
refused("another name of the server", "good", host="127.0.0.2")


def starting():
    """A connection after STARTTLS."""
    stream = socket.create_connection(("localhost", port), LIMIT_S)

    def take(length):
        data = b""
        while len(data) < length:
            part = stream.recv(length - len(data))
            assert part, "the server has left"
            data += part
        return data

    take(18)
    stream.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 5, 0))
    assert struct.unpack(">QIII", take(20)) == (0x3E889045565A9, 5, 1, 0)
    return stream


for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.load_verify_locations(f"{dirs}/good/ca-cert.pem")
    context.load_cert_chain(f"{dirs}/good/client-cert.pem", f"{dirs}/good/client-key.pem")
    try:
        with context.wrap_socket(starting(), server_hostname="localhost") as stream:
            assert stream.version() == "TLSv1.3", stream.version()
    except ssl.SSLError as error:
        assert version != ssl.TLSVersion.TLSv1_3, error
        assert "alert" in str(error), error

# OpenSSL also sends a certificate of an authority that the export does not name.
context.load_cert_chain(f"{dirs}/foreign/client-cert.pem", f"{dirs}/foreign/client-key.pem")
try:
    with context.wrap_socket(starting(), server_hostname="localhost") as stream:
        stream.recv(1)
except ssl.SSLError as error:
    assert "unknown ca" in str(error), error
else:
    raise AssertionError("a foreign certificate is served")

# No hello, and clients that go on with nothing: each leaves a free place.
for number in range(40):
    stream = starting()
    stream.sendall(b"IHAVEOPT" * 100)
    stream.close()
silent = [starting() for _ in range(40)]
opened = connect("good")
for stream in silent:
    stream.close()
for number in range(40):
    connect("good").shutdown()

# New certificates while a connection is open: it stays, and others need the new ones.
opened.pwrite(b"before" + bytes(506), 0)
for name in ("cert.pem", "key.pem", "ca.pem"):
    shutil.copy(f"{dirs}/next/{name}", f"{dirs}/server/{name}.new")
    os.chmod(f"{dirs}/server/{name}.new", 0o600)
    os.rename(f"{dirs}/server/{name}.new", f"{dirs}/server/{name}")
os.kill(pid, signal.SIGHUP)
end = time.monotonic() + LIMIT_S
while True:
    try:
        later = connect("next/client")
        break
    except nbd.Error as error:
        assert time.monotonic() < end, error
refused("a certificate of the former authority", "good")
assert later.pread(512, 0)[:6] == b"before"
opened.pwrite(b"after!" + bytes(506), 0)
opened.flush()
assert later.pread(512, 0)[:6] == b"after!"
opened.shutdown()
later.shutdown()
print("TLS: all as expected")
