"""Reads an encrypted volume without the product: judge.py KEY_FILE IMAGE DATA_1 DATA_2.

AES by python3-cryptography; BLAKE3 (of up to 1024 bytes), LZ4 and CRC32C as their specifications describe them. Of each block the
newest record counts, so the volume must be flushed. Blocks without a record are zeros.
"""

import struct
import sys

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
MIX = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
START, END, ROOT, KEYED, CONTEXT, MATERIAL = 1, 2, 8, 16, 32, 64
M = 0xFFFFFFFF


def compress(value, words, length, flags):
    state = list(value) + list(IV[:4]) + [0, 0, length, flags]

    def turn(at, by):
        state[at] = (state[at] >> by | state[at] << 32 - by) & M

    for _ in range(7):
        for (a, b, c, d), nth in zip(MIX, range(0, 16, 2)):
            for word, (one, two) in zip(words[nth : nth + 2], ((16, 12), (8, 7))):
                state[a] = (state[a] + state[b] + word) & M
                state[d] ^= state[a]
                turn(d, one)
                state[c] = (state[c] + state[d]) & M
                state[b] ^= state[c]
                turn(b, two)
        words = [words[at] for at in ORDER]
    return [state[at] ^ state[at + 8] for at in range(8)]


def blake3(key, flags, text):
    """32 bytes of the hash of one chunk."""
    value = key
    blocks = [text[at : at + 64] for at in range(0, len(text), 64)] or [b""]
    for nth, block in enumerate(blocks):
        of_block = flags | (START if nth == 0 else 0) | (END | ROOT if nth == len(blocks) - 1 else 0)
        value = compress(value, list(struct.unpack("<16I", block.ljust(64, b"\0"))), len(block), of_block)
    return struct.pack("<8I", *value)


def words(key):
    return struct.unpack("<8I", key)


def wrapping_key(path, volume):
    """As `Secret::read`, `Secret::derive` and `KeyFile` make it."""
    context = blake3(IV, CONTEXT, b"xgvmi 2026 block storage encryption at rest")
    secret = blake3(words(context), MATERIAL, open(path, "rb").read().strip())
    return blake3(words(secret), KEYED, b"wrapped data key of volume " + volume)


def crc32c(data):
    crc = M
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ M


def superblock(disk):
    """Volume, block size, blocks and wrapped key of the copy with the highest sequence."""
    found = []
    for copy in (disk[0:512], disk[4096:4608]):
        version, features = struct.unpack(">I", copy[8:12])[0], struct.unpack(">I", copy[204:208])[0]
        if copy[:8] == b"XGVMIBLK" and version == 6 and crc32c(copy[:508]) == struct.unpack(">I", copy[508:])[0]:
            assert features & 2 and copy[384:388] == b"\0\0\0\1", "no AES-256-XTS"
            block, blocks = struct.unpack(">I", copy[16:20])[0], struct.unpack(">Q", copy[24:32])[0]
            found.append((struct.unpack(">Q", copy[64:72])[0], copy[32:48], block, blocks, copy[400:472]))
    return max(found)[1:]


def halves(disk, volume):
    """The newest record of each block: generation, form, stored bytes of the block, bytes here."""
    newest = {}
    at = disk.find(b"XBH1")
    while at >= 0:
        if at % 64 == 0 and disk[at + 24 : at + 40] == volume:
            block, generation = struct.unpack(">QQ", disk[at + 8 : at + 24])
            stored, length = struct.unpack(">II", disk[at + 40 : at + 48])
            bytes_here = disk[at + 64 : at + 64 + length]
            if crc32c(disk[at : at + 60] + bytes_here) == struct.unpack(">I", disk[at + 60 : at + 64])[0]:
                newest[block] = max(newest.get(block, (0,)), (generation, disk[at + 4], stored, bytes_here))
        at = disk.find(b"XBH1", at + 4)
    return newest


def lz4(data):
    out, at = bytearray(), 0

    def length(of):
        nonlocal at
        more = of == 15
        while more:
            of, more, at = of + data[at], data[at] == 255, at + 1
        return of

    while at < len(data):
        token, at = data[at], at + 1
        literals = length(token >> 4)
        out += data[at : at + literals]
        at += literals
        if at == len(data):
            break
        back, at = data[at] | data[at + 1] << 8, at + 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-back])
    return bytes(out)


def main(key_file, image, *disks):
    disks = [open(disk, "rb").read() for disk in disks]
    volume, size, blocks, wrapped = superblock(disks[0])
    assert superblock(disks[1]) == (volume, size, blocks, wrapped), "the targets differ"
    key = aes_key_unwrap(wrapping_key(key_file, volume), wrapped)
    first, second = [halves(disk, volume) for disk in disks]
    out = bytearray(size * blocks)
    for block, (generation, form, stored, left) in first.items():
        assert second[block][:3] == (generation, form, stored), "the halves differ"
        tweak = struct.pack("<QQ", block, generation)
        decryptor = Cipher(algorithms.AES(key), modes.XTS(tweak)).decryptor()
        plain = decryptor.update(left + second[block][3]) + decryptor.finalize()
        plain = lz4(plain) if form == 3 else plain
        assert len(plain) == size, "the length of a block"
        out[block * size : (block + 1) * size] = plain
    open(image, "wb").write(out)
    print(len(first), "blocks")


main(*sys.argv[1:])
