"""As many clients of libnbd at once as an export takes, each with TLS. Arguments: port, their number, directory of certificates."""

import resource
import sys
import time

import nbd

port, places, certificates = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LIMIT_S = 60
SECTOR = 512

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, places + 200), most))


def connect():
    h = nbd.NBD()
    h.set_tls(nbd.TLS_REQUIRE)
    h.set_tls_certificates(certificates)
    h.connect_tcp("localhost", str(port))
    return h


def content(number):
    return number.to_bytes(4, "big") * (SECTOR // 4)


clients = [connect() for _ in range(places)]
# Requests of all of them are under way together.
for number, h in enumerate(clients):
    h.aio_pwrite(content(number), number * SECTOR)
for h in clients:
    while h.aio_in_flight():
        assert h.poll(LIMIT_S * 1000) == 1, "a write is not answered"
clients[0].flush()
for number, h in enumerate(reversed(clients)):
    assert h.pread(SECTOR, number * SECTOR) == content(number), number

# One more is told why, and the others are still served.
try:
    connect()
except nbd.Error as error:
    text = str(error)
else:
    raise AssertionError("a client more is served")
assert "policy" in text or "places" in text, text
print("refused:", text)
assert clients[-1].pread(SECTOR, 0) == content(0)

# A place that becomes free is given again.
clients.pop().shutdown()
end = time.monotonic() + LIMIT_S
while True:
    try:
        clients.append(connect())
        break
    except nbd.Error as error:
        assert time.monotonic() < end, error
assert clients[-1].pread(SECTOR, SECTOR) == content(1)
print(f"all as expected: {len(clients)} clients")
