"""Run by nbdsh: commands of libnbd against an export of 16 MiB, and requests that a server must refuse."""

import errno


def refused(what, code, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == code, f"{what}: {error}"
    else:
        raise AssertionError(f"{what} was carried out")


h.set_request_structured_replies(True)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
# Certificates.
h.set_uri_allow_local_file(True)
h.connect_uri(uri)
size = h.get_size()
assert size == 16 << 20
assert h.get_structured_replies_negotiated()
for can in (h.can_flush, h.can_fua, h.can_trim, h.can_zero, h.can_multi_conn, h.can_df, h.can_cache):
    assert can(), can
assert h.get_block_size(nbd.SIZE_MINIMUM) == 512
assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 << 20

h.pwrite(b"a" * 8192, 4096)
h.pwrite(b"b" * 512, 512, nbd.CMD_FLAG_FUA)
assert h.pread(16384, 0) == bytes(512) + b"b" * 512 + bytes(3072) + b"a" * 8192 + bytes(4096)

chunks = []
h.pread_structured(1 << 20, 0, lambda data, offset, status, error: chunks.append((offset, len(data), status)))
assert sum(length for _, length, _ in chunks) == 1 << 20
assert any(status == nbd.READ_HOLE for _, _, status in chunks)
whole = []
h.pread_structured(
    1 << 20, 0, lambda data, offset, status, error: whole.append(status), nbd.CMD_FLAG_DF
)
assert whole == [nbd.READ_DATA]


def extents(length, offset, flags=0):
    found = []
    h.block_status(length, offset, lambda context, at, entries, error: found.extend(entries), flags)
    return found


assert extents(size, 0) == [12288, 0, size - 12288, 3]
assert extents(size, 0, nbd.CMD_FLAG_REQ_ONE) == [12288, 0]
h.trim(4096, 4096)
assert extents(size, 0)[:4] == [4096, 0, 4096, 3]
assert h.pread(4096, 4096) == bytes(4096)
h.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_NO_HOLE)
assert extents(1 << 20, 1 << 20) == [1 << 20, 0]
h.zero(1 << 20, 1 << 20)
assert extents(1 << 20, 1 << 20) == [1 << 20, 3]
h.cache(4096, 0)
h.flush()

# 64 requests of one connection at once: each is answered, in any order.
buffers = [bytes([number + 1]) * 4096 for number in range(64)]
cookies = [h.aio_pwrite(data, (8 << 20) + number * 4096) for number, data in enumerate(buffers)]
while h.aio_in_flight():
    h.poll(10000)
assert all(h.aio_command_completed(cookie) for cookie in cookies)
reads = [nbd.Buffer(4096) for _ in buffers]
cookies = [h.aio_pread(data, (8 << 20) + number * 4096) for number, data in enumerate(reads)]
while h.aio_in_flight():
    h.poll(10000)
assert all(h.aio_command_completed(cookie) for cookie in cookies)
assert [bytes(data.to_bytearray()) for data in reads] == buffers

# libnbd checks requests itself. Without its checks the server must refuse them.
h.set_strict_mode(0)
refused("a read beyond the end", errno.EINVAL, lambda: h.pread(512, size))
refused("a write beyond the end", errno.ENOSPC, lambda: h.pwrite(b"x" * 512, size))
refused("an unaligned read", errno.EINVAL, lambda: h.pread(512, 1))
refused("an unaligned write", errno.EINVAL, lambda: h.pwrite(b"x" * 100, 0))
refused("a read of nothing", errno.EINVAL, lambda: h.pread(0, 0))
refused("a trim beyond the end", errno.ENOSPC, lambda: h.trim(1024, size - 512))
assert h.pread(512, 512) == b"b" * 512, "the connection goes on"

# A second connection sees what the first one wrote, and its flush is a flush of both.
other = nbd.NBD()
other.set_uri_allow_local_file(True)
other.connect_uri(uri)
h.pwrite(b"c" * 512, 0)
assert other.pread(512, 0) == b"c" * 512
other.flush()
other.shutdown()
print("nbdsh: all as expected")
