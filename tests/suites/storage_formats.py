"""Reads targets of xgvmi-blk and images of the reference application without xgvmi-blk: the layout of docs/STORAGE.md,
LZ4 by liblz4 and parity by ISA-L.

    storage_formats.py targets DATA_1 DATA_2 DATA_P IMAGE     the targets of a volume hold IMAGE
    storage_formats.py sbc DATA_1 DATA_2 DATA_P IMAGE         the files of an image hold IMAGE
    storage_formats.py make IMAGE BLOCK_SIZE DATA_1 DATA_2 DATA_P
"""

import ctypes
import struct
import sys

LZ4 = ctypes.CDLL("liblz4.so.1")
ISAL = ctypes.CDLL("libisal.so.2")
ZERO, RAW, COMPRESSED = 1, 2, 3
SBC_MAGIC = 0xDEADF00D1337FADE
LZ4_BLOCK = 64 << 10
UNCOMPRESSED = 1 << 31
# Units of 24 groups in a sector of the map, and the number of no group.
MAP_UNITS = (512 - 4) * 4
NO_GROUP = 0xFFFFFFFF


def fail(text):
    sys.exit(f"FAILED {text}")


def decompress(data, size):
    """One LZ4 block of exactly `size` bytes."""
    into = ctypes.create_string_buffer(size)
    if LZ4.LZ4_decompress_safe(data, into, len(data), size) != size:
        fail("liblz4 does not accept a block")
    return into.raw


class Aligned:
    """Memory for ISA-L: aligned to 64 bytes, a multiple of 64 bytes long."""

    def __init__(self, data, length):
        self.length = -(-max(length, 1) // 64) * 64
        self.memory = ctypes.create_string_buffer(self.length + 64)
        base = ctypes.addressof(self.memory)
        self.address = -(-base // 64) * 64
        ctypes.memmove(self.address, data, len(data))

    def bytes(self, length):
        return ctypes.string_at(self.address, length)


def parity(first, second):
    """Exclusive or by ISA-L, as long as `first`."""
    parts = [Aligned(first, len(first)), Aligned(second, len(first)), Aligned(b"", len(first))]
    pointers = (ctypes.c_void_p * 3)(*[part.address for part in parts])
    if ISAL.xor_gen(3, parts[0].length, pointers) != 0:
        fail("ISA-L refuses the vectors")
    return parts[2].bytes(len(first))


def pages(offset):
    """The next multiple of a page."""
    return -(-offset // 4096) * 4096


class Target:
    """A target file: superblock, index and records."""

    def __init__(self, path, role):
        self.data = open(path, "rb").read()
        copies = []
        for at in (0, 4096):
            page = self.data[at : at + 152]
            if page[:8] == b"XGVMIBLK":
                copies.append((struct.unpack(">Q", page[64:72])[0], page))
        page = max(copies)[1]
        self.block_size, = struct.unpack(">I", page[16:20])
        self.blocks, = struct.unpack(">Q", page[24:32])
        self.volume = page[32:48]
        if page[12] != role:
            fail(f"{path} has role {page[12]}")
        room, slots, ready = struct.unpack(">QQQ", page[96:120])
        groups = -(-room // 8)
        self.units = -(-groups // 24) if slots < groups else 0
        slots_at = pages(8192 + -(-self.units // MAP_UNITS) * 512)
        self.units_at = pages(slots_at + slots * 512)
        self.groups = {}
        for at in range(slots_at, slots_at + ready * 512, 512):
            number, = struct.unpack(">I", self.data[at : at + 4])
            if number != NO_GROUP:
                self.groups[number] = self.data[at + 8 : at + 512]

    def entry(self, block):
        """Slots of a block: of its group in change, or else of the settled index if the map says that it is there."""
        group, nth = divmod(block, 8)
        if group in self.groups:
            return self.groups[group][63 * nth : 63 * nth + 63]
        unit, within = divmod(group, 24)
        sector, bit = divmod(unit, MAP_UNITS)
        bits = self.data[8192 + 512 * sector + 4 + bit // 4] if self.units else 0
        if not bits >> bit % 4 * 2 & 1:
            return b""
        at = self.units_at + 4096 * unit + within // 3 * 512 + within % 3 * 168 + 21 * nth
        return self.data[at : at + 21]

    def record(self, block):
        """Generation, form and bytes of the newest settled generation; None for a block that was never written."""
        entry = self.entry(block)
        slots = []
        for at in range(0, len(entry), 21):
            generation, place, form = struct.unpack(">QQB", entry[at : at + 17])
            # A slot that is there and settled. Generation 0 is the state before the first write.
            if form & 0xC0 == 0xC0 and generation:
                slots.append((generation, (place >> 24) * 64, place & 0xFFFFFF, form & 0x0F))
        if not slots:
            return None
        generation, offset, length, kind = max(slots)
        if kind == ZERO:
            return generation, kind, 0, b""
        record = self.data[offset : offset + length]
        magic, form = record[:4], record[4]
        number, written, = struct.unpack(">QQ", record[8:24])
        stored, here = struct.unpack(">II", record[40:48])
        right = (b"XBH1", kind, block, generation, self.volume, length - 64)
        if (magic, form, number, written, record[24:40], here) != right:
            fail(f"the record of block {block} is another one")
        return generation, kind, stored, record[64:]


def targets(paths, image):
    first, second, third = (Target(path, role) for role, path in enumerate(paths))
    counts = {ZERO: 0, RAW: 0, COMPRESSED: 0}
    for block in range(first.blocks):
        size = first.block_size
        expect = image[block * size : (block + 1) * size]
        records = [target.record(block) for target in (first, second, third)]
        if records == [None] * 3:
            data = bytes(size)
            counts[ZERO] += 1
        else:
            if None in records or len({record[:3] for record in records}) != 1:
                fail(f"the targets differ about block {block}: {[r and r[:3] for r in records]}")
            _, kind, stored, _ = records[0]
            left, right, extra = (record[3] for record in records)
            if len(left) + len(right) != stored or parity(left, right) != extra:
                fail(f"the parity of block {block} is not ISA-L's")
            data = {
                ZERO: lambda: bytes(size),
                RAW: lambda: left + right,
                COMPRESSED: lambda: decompress(left + right, size),
            }[kind]()
            counts[kind] += 1
        if data != expect:
            fail(f"block {block} is not the image's")
    print(f"{first.blocks} blocks: {counts[ZERO]} zero, {counts[RAW]} raw, {counts[COMPRESSED]} compressed")


def sbc_file(path):
    data = open(path, "rb").read()
    magic, half, count = struct.unpack(">QII", data[:16])
    if magic != SBC_MAGIC or len(data) != 16 + half * count:
        fail(f"{path} is no .sbc file")
    return half, count, data[16:]


def sbc(paths, image):
    (half, count, left), (_, _, right), (_, _, extra) = (sbc_file(path) for path in paths)
    size = 2 * half
    for number in range(count):
        part = slice(number * half, (number + 1) * half)
        if parity(left[part], right[part]) != extra[part]:
            fail(f"the parity of block {number} is not ISA-L's")
        block = left[part] + right[part]
        original, compressed = struct.unpack(">II", block[:8])
        stream, data = block[8 : 8 + compressed], b""
        while stream:
            length, = struct.unpack("<I", stream[:4])
            body = stream[4 : 4 + (length & ~UNCOMPRESSED)]
            stream = stream[4 + len(body) :]
            wanted = min(LZ4_BLOCK, original - len(data))
            data += body if length & UNCOMPRESSED else decompress(body, wanted)
        if original != size or any(block[8 + compressed :]):
            fail(f"the header or the padding of block {number} is wrong")
        if data != image[number * size : (number + 1) * size].ljust(size, b"\0"):
            fail(f"block {number} is not the image's")
    print(f"{count} blocks of {size} bytes")


class FrameInfo(ctypes.Structure):
    _fields_ = [
        ("block_size", ctypes.c_int),
        ("block_mode", ctypes.c_int),
        ("content_checksum", ctypes.c_int),
        ("frame_type", ctypes.c_int),
        ("content_size", ctypes.c_ulonglong),
        ("dictionary", ctypes.c_uint),
        ("block_checksum", ctypes.c_int),
    ]


class Preferences(ctypes.Structure):
    _fields_ = [
        ("frame", FrameInfo),
        ("level", ctypes.c_int),
        ("auto_flush", ctypes.c_uint),
        ("favor_speed", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 3),
    ]


def reference_stream(data):
    """The LZ4 blocks of the reference: a frame by liblz4 without its header and its end mark."""
    preferences = Preferences(FrameInfo(block_size=4, block_mode=1), level=1, auto_flush=1)
    room = 2 * len(data) + 1024
    into = ctypes.create_string_buffer(room)
    LZ4.LZ4F_compressFrame.restype = ctypes.c_size_t
    LZ4.LZ4F_compressFrame.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    length = LZ4.LZ4F_compressFrame(into, room, data, len(data), ctypes.byref(preferences))
    # Magic number, two bytes of flags, header checksum; four zero bytes at the end.
    return into.raw[7 : length - 4]


def make(image, size, paths):
    image = image.ljust(-(-len(image) // size) * size, b"\0")
    header = struct.pack(">QII", SBC_MAGIC, size // 2, len(image) // size)
    files = [bytearray(header) for _ in range(3)]
    for at in range(0, len(image), size):
        stream = reference_stream(image[at : at + size])
        if len(stream) + 12 > size:
            fail(f"the block at {at} does not fit")
        block = (struct.pack(">II", size, len(stream)) + stream).ljust(size, b"\0")
        left, right = block[: size // 2], block[size // 2 :]
        for file, part in zip(files, (left, right, parity(left, right))):
            file += part
    for path, data in zip(paths, files):
        open(path, "wb").write(data)


def main():
    what, *words = sys.argv[1:]
    if what == "make":
        make(open(words[0], "rb").read(), int(words[1]), words[2:5])
    else:
        {"targets": targets, "sbc": sbc}[what](words[:3], open(words[3], "rb").read())


main()
